//! The body of a request: read on demand, into memory and then a file.

use super::content::Content;
use super::source::{ByteStream, Frames, Interim, Lost, RequestSource};
pub use super::spill::Name;
use super::spill::Spill;
use crate::files::temporary::TemporaryFile;
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use yorozu_conf::os_error;
use yorozu_wire::WireError;
use yorozu_wire::h1::{BareLf, Chunked, ChunkedStep};

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// Its framing is broken.
    Broken,
    /// The frames of a stream are malformed: their content has another length than the head says.
    Malformed,
    /// The client closed the connection.
    Closed,
    /// The client was silent too long.
    Timeout,
    /// It exceeds `client_max_body_size`.
    TooLarge,
    /// The file it should go to failed.
    File(String),
    /// It was sent to an upstream while it arrived, and not kept.
    Spent,
}

#[derive(Debug)]
enum Framing {
    /// No body, or all of it was read.
    Done,
    /// This many bytes are still to come.
    Length(u64),
    Chunked(Chunked),
    /// The data frames of an HTTP/2 stream; their length if the client announced it.
    Frames(Option<u64>),
    /// An upload or another owner reads it: nothing can come after it on this connection.
    Lent,
}

#[derive(Debug)]
enum Stored {
    Nothing,
    Memory(Bytes),
    File { file: Arc<File>, bytes: u64, owned: Option<TemporaryFile> },
}

/// Bounds of a body that is sent on while it arrives.
#[derive(Clone, Copy, Debug)]
pub struct PieceBounds {
    /// `client_body_timeout`: the time between two pieces.
    pub timeout: Duration,
    /// `client_body_buffer_size`: how much is kept for `$request_body`.
    pub buffer_bytes: usize,
    /// How much is held on its way: that buffer and the gateway's (`*_buffer_size`).
    pub held_bytes: usize,
    /// `client_max_body_size`; 0 for none.
    pub body_bytes_max: u64,
}

/// How a body is read as a whole.
#[derive(Clone, Copy, Debug)]
pub struct BodyRules<'a> {
    /// `client_body_timeout`: the time between two pieces.
    pub timeout: Duration,
    /// `client_body_buffer_size`: how much is kept in memory.
    pub buffer_bytes: usize,
    /// `client_max_body_size`; 0 for none.
    pub body_bytes_max: u64,
    /// `client_body_in_file_only`: whether a body's file has a name.
    pub in_file: Name,
    /// `client_body_temp_path`
    pub folder: &'a Path,
}

/// A request's body.
#[derive(Debug)]
pub struct RequestBody {
    /// The client's bytes, where the body lies among them.
    bytes: Option<Rc<dyn ByteStream>>,
    /// The client of a stream, whose bodies come in frames.
    stream: Option<Rc<dyn RequestSource>>,
    frames: Option<Box<dyn Frames>>,
    /// Bytes read from the client beyond the head: the body, then the next request.
    pub unread: BytesMut,
    framing: Framing,
    stored: Stored,
    received: u64,
    /// Bytes of content sent on.
    passed: u64,
    wants_continue: bool,
    is_discarded: bool,
    /// Pieces of a body that is sent on, as long as they fit the buffer: `$request_body`.
    kept: Option<Vec<Bytes>>,
}

impl RequestBody {
    /// A request without one, and without a client.
    pub fn none() -> Self {
        Self {
            bytes: None,
            stream: None,
            frames: None,
            unread: BytesMut::new(),
            framing: Framing::Done,
            stored: Stored::Nothing,
            received: 0,
            passed: 0,
            wants_continue: false,
            is_discarded: false,
            kept: Some(Vec::new()),
        }
    }

    /// A body that an upload still reads.
    pub fn lent() -> Self {
        Self { framing: Framing::Lent, ..Self::none() }
    }

    /// The body behind a head; `unread` is what came with the head.
    pub fn new(
        bytes: Rc<dyn ByteStream>,
        unread: BytesMut,
        content_length: Option<u64>,
        is_chunked: bool,
        wants_continue: bool,
    ) -> Self {
        let framing = match content_length {
            _ if is_chunked => Framing::Chunked(Chunked::new(BareLf::Refuse)),
            Some(length) if length > 0 => Framing::Length(length),
            _ => Framing::Done,
        };
        Self { bytes: Some(bytes), unread, framing, wants_continue, ..Self::none() }
    }

    /// The body of an HTTP/2 stream's request, if it has one; `length` as the client announced it.
    pub fn of_stream(
        stream: Rc<dyn RequestSource>,
        frames: Option<Box<dyn Frames>>,
        length: Option<u64>,
    ) -> Self {
        let framing = match frames {
            None => Framing::Done,
            Some(_) => Framing::Frames(length),
        };
        Self { stream: Some(stream), frames, framing, ..Self::none() }
    }

    /// Whether there was never a body.
    pub fn is_empty(&self) -> bool {
        matches!((&self.framing, &self.stored), (Framing::Done, Stored::Nothing))
    }

    /// Whether all of it was read, or given up.
    pub fn is_finished(&self) -> bool {
        matches!(self.framing, Framing::Done)
    }

    /// Whether there is one of which nothing was read yet.
    pub fn is_to_come(&self) -> bool {
        let is_open = !matches!(self.framing, Framing::Done | Framing::Lent);
        is_open && self.received == 0 && matches!(self.stored, Stored::Nothing)
    }

    /// Whether an upload still reads it.
    pub fn is_lent(&self) -> bool {
        matches!(self.framing, Framing::Lent)
    }

    /// It is refused, and will not be asked for: the page of that error is not refused for the same reason.
    pub fn discard(&mut self) {
        self.is_discarded = true;
    }

    pub fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Bytes of body received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The length, once all is read.
    pub fn known_length(&self) -> Option<u64> {
        match &self.stored {
            Stored::Nothing => None,
            Stored::Memory(bytes) => Some(bytes.len() as u64),
            Stored::File { bytes, .. } => Some(*bytes),
        }
    }

    pub fn in_memory(&self) -> Option<&[u8]> {
        match &self.stored {
            Stored::Memory(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// What of it an upstream can be sent: as it was read, or `is_live` while it arrives. One that was
    /// sent on before, and not kept, is not there a second time.
    pub fn content(&self, is_live: bool) -> Content {
        match &self.stored {
            Stored::Memory(bytes) => Content::Memory(bytes.clone()),
            Stored::File { file, bytes, .. } => Content::File(Arc::clone(file), *bytes),
            Stored::Nothing if is_live => Content::Live { length: self.announced() },
            Stored::Nothing => Content::None,
        }
    }

    /// The length of a body of which nothing has been read yet, if the client announced it.
    fn announced(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(left) => Some(left),
            Framing::Frames(length) => length,
            Framing::Done | Framing::Chunked(_) | Framing::Lent => None,
        }
    }

    /// Whether a part was sent on that was not kept: then it cannot be sent again.
    pub fn is_lost(&self) -> bool {
        self.is_lent() || (self.kept.is_none() && matches!(self.stored, Stored::Nothing))
    }

    /// The same body for another request, as far as it was read and kept.
    pub fn copy(&self) -> Self {
        let stored = match &self.stored {
            Stored::Nothing => Stored::Nothing,
            Stored::Memory(bytes) => Stored::Memory(bytes.clone()),
            Stored::File { file, bytes, .. } => {
                Stored::File { file: Arc::clone(file), bytes: *bytes, owned: None }
            }
        };
        Self { stored, received: self.received, ..Self::none() }
    }

    /// Where others can read the body while the request lasts.
    pub fn file_path(&self) -> Option<PathBuf> {
        match &self.stored {
            Stored::File { file, owned, .. } => {
                let path = owned.as_ref().and_then(TemporaryFile::path);
                // Without a name it cannot be left behind.
                let (pid, fd) = (std::process::id(), file.as_raw_fd());
                let unnamed = || PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
                Some(path.map_or_else(unnamed, Path::to_owned))
            }
            _ => None,
        }
    }

    /// Returns when the client has gone; a separate future, so that work can go on beside it.
    pub fn client_closed(&self) -> impl Future<Output = ()> + use<> {
        let source = self.source();
        poll_fn(move |context| match &source {
            Some(source) => source.poll_closed(context),
            None => Poll::Pending,
        })
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// [`BodyError`]; the connection cannot be used for another request then.
    ///
    /// # Cancel safety
    /// What was read so far is lost; drop the connection.
    pub async fn read_all(&mut self, rules: BodyRules<'_>) -> Result<(), BodyError> {
        let bytes_max = Some(rules.body_bytes_max).filter(|max| *max > 0);
        self.read(rules, bytes_max.unwrap_or(u64::MAX)).await
    }

    async fn read(&mut self, rules: BodyRules<'_>, bytes_max: u64) -> Result<(), BodyError> {
        if !matches!(self.stored, Stored::Nothing) {
            return Ok(());
        }
        if self.is_lost() {
            return Err(BodyError::Spent);
        }
        if matches!(self.framing, Framing::Length(length) if length > bytes_max) {
            return Err(BodyError::TooLarge);
        }
        self.send_continue(rules.timeout).await?;
        let failed = |why: io::Error| BodyError::File(file_error(rules.folder, &why));
        // What was sent on already belongs to it.
        let mut memory: BytesMut = self.kept.iter().flatten().flatten().copied().collect();
        let mut file: Option<Spill> = None;
        let mut total = memory.len() as u64;
        while let Some(piece) = self.next(rules.timeout, usize::MAX).await? {
            total += piece.len() as u64;
            if total > bytes_max {
                return Err(BodyError::TooLarge);
            }
            if file.is_none() && memory.len() + piece.len() > rules.buffer_bytes {
                let spill = begin_spill(rules, &mut memory).await.map_err(failed)?;
                file = Some(spill);
            }
            match &mut file {
                Some(file) => file.push(piece).await.map_err(failed)?,
                None => memory.extend_from_slice(&piece),
            }
        }
        if file.is_none() && rules.in_file != Name::None {
            let spill = begin_spill(rules, &mut memory).await.map_err(failed)?;
            file = Some(spill);
        }
        self.stored = match file {
            Some(mut spill) => {
                spill.flush().await.map_err(failed)?;
                let file = Arc::clone(spill.file.file());
                Stored::File { file, bytes: total, owned: Some(spill.file) }
            }
            None => Stored::Memory(memory.freeze()),
        };
        Ok(())
    }

    /// The client, if the request has one.
    pub fn source(&self) -> Option<Rc<dyn RequestSource>> {
        match &self.bytes {
            Some(bytes) => Some(Rc::clone(bytes) as Rc<dyn RequestSource>),
            None => self.stream.clone(),
        }
    }

    /// What has arrived of a body that is sent on, at least one piece; none at its end.
    ///
    /// # Errors
    /// [`BodyError`]; the connection cannot be used for another request then.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn pieces(&mut self, bounds: &PieceBounds) -> Result<Vec<Bytes>, BodyError> {
        self.send_continue(bounds.timeout).await?;
        let first = self.next(bounds.timeout, bounds.held_bytes).await?;
        let mut pieces: Vec<Bytes> = first.into_iter().collect();
        if !pieces.is_empty() {
            while let Some(piece) = self.buffered()? {
                pieces.push(piece);
            }
        }
        for piece in &pieces {
            self.keep(Some(piece), bounds)?;
        }
        if self.is_finished() {
            self.keep(None, bounds)?;
        }
        Ok(pieces)
    }

    /// Counts a piece, and keeps a small body for `$request_body`.
    fn keep(&mut self, piece: Option<&Bytes>, bounds: &PieceBounds) -> Result<(), BodyError> {
        match (piece, &mut self.kept) {
            (None, Some(kept)) => {
                // The body is whole, and small.
                self.stored = Stored::Memory(kept.concat().into());
            }
            (None, None) => {}
            (Some(piece), kept) => {
                self.passed += piece.len() as u64;
                if bounds.body_bytes_max > 0 && self.passed > bounds.body_bytes_max {
                    return Err(BodyError::TooLarge);
                }
                match kept {
                    Some(kept) if self.passed <= bounds.buffer_bytes as u64 => {
                        kept.push(piece.clone());
                    }
                    _ => self.kept = None,
                }
            }
        }
        Ok(())
    }

    /// Whether it may be sent on while it arrives; without a known length only if the peer takes `chunked`.
    pub fn may_be_sent_on(&self, chunked: bool) -> bool {
        self.is_to_come() && (chunked || self.announced().is_some())
    }

    /// Whether all of it has arrived behind the head: then there is nothing to wait for.
    pub fn is_whole_at_hand(&self) -> bool {
        match &self.framing {
            Framing::Done => true,
            Framing::Lent => false,
            Framing::Frames(_) => self.frames.as_ref().is_none_or(|frames| frames.is_end_stream()),
            Framing::Length(left) => self.unread.len() as u64 >= *left,
            Framing::Chunked(chunked) => matches!(self.chunks_at_hand(chunked), Ok(true)),
        }
    }

    /// Whether what has arrived behind the head of a body that nothing has read is wrongly framed.
    pub fn is_broken_at_hand(&self) -> bool {
        match &self.framing {
            Framing::Chunked(chunked) => self.is_to_come() && self.chunks_at_hand(chunked).is_err(),
            _ => false,
        }
    }

    /// Whether the last chunk has arrived; an error if one is no chunk.
    fn chunks_at_hand(&self, chunked: &Chunked) -> Result<bool, WireError> {
        let (mut chunked, mut at) = (chunked.clone(), 0);
        loop {
            match chunked.next(&self.unread[at..])? {
                ChunkedStep::Data(range) => at += range.end,
                ChunkedStep::Done(_) => return Ok(true),
                ChunkedStep::Partial(_) => return Ok(false),
            }
        }
    }

    async fn send_continue(&mut self, timeout: Duration) -> Result<(), BodyError> {
        if !std::mem::take(&mut self.wants_continue) || !self.unread.is_empty() {
            return Ok(());
        }
        let Some(client) = &self.bytes else { return Ok(()) };
        let sent = client.interim(Interim::Continue, timeout).await;
        sent.map_err(|problem| match problem.kind() {
            io::ErrorKind::TimedOut => BodyError::Timeout,
            _ => BodyError::Closed,
        })
    }

    /// The next piece of the body; `None` at its end.
    async fn next(
        &mut self,
        timeout: Duration,
        bytes_max: usize,
    ) -> Result<Option<Bytes>, BodyError> {
        loop {
            if let Some(piece) = self.buffered()? {
                return Ok(Some(piece));
            }
            if self.is_finished() {
                return Ok(None);
            }
            if let Some(frames) = &mut self.frames {
                let frame = poll_fn(|context| frames.poll_data(context));
                let frame = tokio::time::timeout(timeout, frame).await;
                match self.frame(frame.map_err(|_| BodyError::Timeout)?)? {
                    Some(piece) => return Ok(Some(piece)),
                    // Nothing in it, or the end.
                    None => continue,
                }
            }
            let Some(client) = self.bytes.clone() else { return Err(BodyError::Closed) };
            match tokio::time::timeout(timeout, client.read(&mut self.unread, bytes_max)).await {
                Err(_) => return Err(BodyError::Timeout),
                Ok(Ok(count)) if count > 0 => {}
                Ok(_) => return Err(BodyError::Closed),
            }
        }
    }

    /// Takes a data frame.
    fn frame(&mut self, frame: Option<Result<Bytes, Lost>>) -> Result<Option<Bytes>, BodyError> {
        let Some(frames) = &mut self.frames else { return Ok(None) };
        match frame {
            None => {
                self.framing = Framing::Done;
                Ok(None)
            }
            Some(Err(Lost::Reset)) => Err(BodyError::Closed),
            Some(Err(Lost::Malformed)) => Err(BodyError::Malformed),
            Some(Ok(piece)) => {
                self.received += piece.len() as u64;
                if frames.is_end_stream() {
                    self.framing = Framing::Done;
                }
                // An empty one is not a piece: framed as a chunk it would be the end of the body.
                Ok(Some(piece).filter(|piece| !piece.is_empty()))
            }
        }
    }

    /// A piece of the body out of what is already here.
    fn buffered(&mut self) -> Result<Option<Bytes>, BodyError> {
        match &mut self.framing {
            Framing::Done | Framing::Lent => Ok(None),
            Framing::Frames(_) => {
                let Some(frames) = &mut self.frames else { return Ok(None) };
                // A task that waits for more polls again with its own waker.
                match frames.poll_data(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => Ok(None),
                    Poll::Ready(frame) => self.frame(frame),
                }
            }
            Framing::Length(left) => {
                if self.unread.is_empty() {
                    return Ok(None);
                }
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(self.unread.len());
                *left -= count as u64;
                if *left == 0 {
                    self.framing = Framing::Done;
                }
                self.received += count as u64;
                Ok(Some(self.unread.split_to(count).freeze()))
            }
            Framing::Chunked(chunked) => match chunked.next(&self.unread) {
                Err(_) => Err(BodyError::Broken),
                Ok(ChunkedStep::Data(range)) => {
                    let mut piece = self.unread.split_to(range.end);
                    self.received += range.end as u64;
                    Ok(Some(piece.split_off(range.start).freeze()))
                }
                Ok(ChunkedStep::Partial(used)) => {
                    self.received += used as u64;
                    drop(self.unread.split_to(used));
                    Ok(None)
                }
                Ok(ChunkedStep::Done(used)) => {
                    self.received += used as u64;
                    drop(self.unread.split_to(used));
                    self.framing = Framing::Done;
                    Ok(None)
                }
            },
        }
    }

    /// Throws away what has already arrived of an unwanted body. As nginx: `$request_length` does not count it.
    ///
    /// # Errors
    /// Its framing is broken.
    pub fn skip_buffered(&mut self) -> Result<(), BodyError> {
        if self.is_finished() {
            return Ok(());
        }
        let received = self.received;
        let skipped = loop {
            match self.buffered() {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(problem) => break Err(problem),
            }
        };
        self.received = received;
        skipped
    }

    /// Reads an unwanted body to its end, so that the next request can be read: `pause` is the longest time between two
    /// pieces, `whole` that for all of it.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn skip(&mut self, pause: Duration, whole: Duration) -> Result<(), BodyError> {
        let skip = async {
            while self.next(pause, usize::MAX).await?.is_some() {}
            Ok(())
        };
        tokio::time::timeout(whole, skip).await.map_err(|_| BodyError::Timeout)?
    }

    /// Whether the client still waits for `100 Continue`: then the body will not come.
    pub fn is_awaiting_continue(&self) -> bool {
        self.wants_continue && self.unread.is_empty()
    }
}

async fn begin_spill(rules: BodyRules<'_>, memory: &mut BytesMut) -> io::Result<Spill> {
    Spill::begin(rules.folder.to_owned(), rules.in_file, memory.split().freeze()).await
}

fn file_error(folder: &Path, error: &io::Error) -> String {
    format!("writing a request body below \"{}\" failed ({})", folder.display(), os_error(error))
}
