//! The body of a request: read when somebody wants it, into memory and then a file.

use super::h2;
use super::origin;
pub use super::origin::Origin;
use super::spill::{Name, Spill};
use super::transport::Transport;
use crate::config::http_core::{Conf, InFileOnly, temp_folder};
use crate::exchange::temporary::NamedFile;
use crate::logging::error::os_error;
use ::h2::RecvStream;
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use yorozu_wire::h1::{BareLf, Chunked, ChunkedStep};

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// Its framing is broken.
    Broken,
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
    /// So many bytes are still to come.
    Length(u64),
    Chunked(Chunked),
    /// The data frames of an HTTP/2 stream; their length if the client announced it.
    Frames(Option<u64>),
    /// Somebody else reads it: nothing can come after it on this connection.
    Lent,
}

#[derive(Debug)]
enum Stored {
    Nothing,
    Memory(Bytes),
    File { file: Arc<File>, bytes: u64, path: Option<NamedFile> },
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

impl PieceBounds {
    pub fn of(conf: &Conf, gateway_buffer_bytes: usize) -> Self {
        let buffer_bytes = conf.client_body_buffer_size.bytes();
        Self {
            held_bytes: buffer_bytes.saturating_add(gateway_buffer_bytes),
            timeout: conf.client_body_timeout,
            buffer_bytes,
            body_bytes_max: conf.client_max_body_size.0,
        }
    }
}

/// The content of a request as an upstream gets it. What a head announces is read from here and nowhere else, so
/// that nothing is announced that is not sent: an upstream would take the next request for it.
#[derive(Clone, Debug)]
pub enum Content {
    None,
    Memory(Bytes),
    /// A file of so many bytes.
    File(Arc<File>, u64),
    /// It follows while it arrives; `length` as the client announced it.
    Live {
        length: Option<u64>,
    },
}

impl Content {
    /// How long it is, as far as that is known before it is sent.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Memory(bytes) => Some(bytes.len() as u64),
            Self::File(_, bytes) => Some(*bytes),
            Self::Live { length } => *length,
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub struct RequestBody {
    origin: Origin,
    /// The frames of a body that comes in an HTTP/2 stream.
    frames: Option<RecvStream>,
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
            origin: Origin::Nobody,
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
        io: Rc<Transport>,
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
        Self { origin: Origin::H1(io), unread, framing, wants_continue, ..Self::none() }
    }

    /// The body of an HTTP/2 stream; `length` as the client announced it.
    pub fn of_stream(back: Rc<h2::Back>, frames: RecvStream, length: Option<u64>) -> Self {
        let framing = match frames.is_end_stream() {
            true => Framing::Done,
            false => Framing::Frames(length),
        };
        Self { origin: Origin::H2(back), frames: Some(frames), framing, ..Self::none() }
    }

    /// Was there never a body?
    pub fn is_empty(&self) -> bool {
        matches!((&self.framing, &self.stored), (Framing::Done, Stored::Nothing))
    }

    /// Has all of it been read, or given up?
    pub fn is_finished(&self) -> bool {
        matches!(self.framing, Framing::Done)
    }

    /// Does an upload still read it?
    pub fn is_lent(&self) -> bool {
        matches!(self.framing, Framing::Lent)
    }

    /// Nobody will ask for it any more (an error page is made instead).
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

    /// Was a part sent on that was not kept? Then it cannot be sent again.
    pub fn is_lost(&self) -> bool {
        self.is_lent() || (self.kept.is_none() && matches!(self.stored, Stored::Nothing))
    }

    /// The same body for another request, as far as it was read and kept.
    pub fn copy(&self) -> Self {
        let stored = match &self.stored {
            Stored::Nothing => Stored::Nothing,
            Stored::Memory(bytes) => Stored::Memory(bytes.clone()),
            Stored::File { file, bytes, .. } => {
                Stored::File { file: Arc::clone(file), bytes: *bytes, path: None }
            }
        };
        Self { stored, received: self.received, ..Self::none() }
    }

    /// Where others can read the body while the request lasts.
    pub fn file_path(&self) -> Option<PathBuf> {
        match &self.stored {
            Stored::File { path: Some(file), .. } => Some(file.path().to_owned()),
            Stored::File { file, .. } => {
                // It has no name, so that it cannot be left behind.
                let (pid, fd) = (std::process::id(), file.as_raw_fd());
                Some(PathBuf::from(format!("/proc/{pid}/fd/{fd}")))
            }
            _ => None,
        }
    }

    /// Returns when the client has gone; a future of its own, so that work can go on beside it.
    pub fn client_closed(&self) -> impl Future<Output = ()> + use<> {
        let origin = self.origin.clone();
        async move { origin.closed().await }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// [`BodyError`]; the connection cannot be used for another request then.
    ///
    /// # Cancel safety
    /// What was read so far is lost; drop the connection.
    pub async fn read_all(&mut self, conf: &Conf) -> Result<(), BodyError> {
        let memory_max = conf.client_body_buffer_size.bytes();
        let bytes_max = Some(conf.client_max_body_size.0).filter(|max| *max > 0);
        self.read(conf, memory_max, bytes_max.unwrap_or(u64::MAX)).await
    }

    /// As [`RequestBody::read_all`], with other bounds than the location's.
    ///
    /// # Errors
    /// As [`RequestBody::read_all`].
    ///
    /// # Cancel safety
    /// As [`RequestBody::read_all`].
    pub async fn read(
        &mut self,
        conf: &Conf,
        memory_max: usize,
        bytes_max: u64,
    ) -> Result<(), BodyError> {
        if !matches!(self.stored, Stored::Nothing) {
            return Ok(());
        }
        if self.is_lost() {
            return Err(BodyError::Spent);
        }
        if matches!(self.framing, Framing::Length(length) if length > bytes_max) {
            return Err(BodyError::TooLarge);
        }
        self.send_continue(conf.client_body_timeout).await?;
        let failed = |why: io::Error| BodyError::File(file_error(conf, &why));
        // What was sent on already belongs to it.
        let mut memory: BytesMut = self.kept.iter().flatten().flatten().copied().collect();
        let mut file: Option<Spill> = None;
        let mut total = memory.len() as u64;
        while let Some(piece) = self.next(conf.client_body_timeout, usize::MAX).await? {
            total += piece.len() as u64;
            if total > bytes_max {
                return Err(BodyError::TooLarge);
            }
            if file.is_none() && memory.len() + piece.len() > memory_max {
                let spill = begin_spill(conf, &mut memory).await.map_err(failed)?;
                file = Some(spill);
            }
            match &mut file {
                Some(file) => file.push(piece).await.map_err(failed)?,
                None => memory.extend_from_slice(&piece),
            }
        }
        if file.is_none() && conf.client_body_in_file_only != InFileOnly::Off {
            let spill = begin_spill(conf, &mut memory).await.map_err(failed)?;
            file = Some(spill);
        }
        self.stored = match file {
            Some(mut spill) => {
                spill.flush().await.map_err(failed)?;
                Stored::File { file: spill.file, bytes: total, path: spill.path }
            }
            None => Stored::Memory(memory.freeze()),
        };
        Ok(())
    }

    /// The client, for interim answers.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Has a part of it arrived that nobody took yet?
    pub fn is_at_hand(&self) -> bool {
        !self.unread.is_empty()
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

    /// May it be sent on while it arrives? One without known length only if `chunked` is taken.
    pub fn may_be_sent_on(&self, chunked: bool) -> bool {
        let is_known = match self.framing {
            Framing::Length(_) => true,
            Framing::Frames(length) => length.is_some() || chunked,
            Framing::Chunked(_) => chunked,
            Framing::Done | Framing::Lent => false,
        };
        is_known && self.received == 0 && matches!(self.stored, Stored::Nothing)
    }

    /// Has all of it arrived behind the head? Then there is nothing to wait for.
    pub fn is_whole_at_hand(&self) -> bool {
        match &self.framing {
            Framing::Done => true,
            Framing::Lent => false,
            Framing::Frames(_) => self.frames.as_ref().is_none_or(RecvStream::is_end_stream),
            Framing::Length(left) => self.unread.len() as u64 >= *left,
            Framing::Chunked(chunked) => {
                let (mut chunked, mut at) = (chunked.clone(), 0);
                loop {
                    match chunked.next(&self.unread[at..]) {
                        Ok(ChunkedStep::Data(range)) => at += range.end,
                        Ok(ChunkedStep::Done(_)) => return true,
                        Ok(ChunkedStep::Partial(_)) | Err(_) => return false,
                    }
                }
            }
        }
    }

    async fn send_continue(&mut self, timeout: Duration) -> Result<(), BodyError> {
        if !std::mem::take(&mut self.wants_continue) || !self.unread.is_empty() {
            return Ok(());
        }
        let Origin::H1(io) = &self.origin else { return Ok(()) };
        let sent = origin::interim(io, b"HTTP/1.1 100 Continue\r\n\r\n", timeout).await;
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
            let Origin::H1(io) = self.origin.clone() else { return Err(BodyError::Closed) };
            match tokio::time::timeout(timeout, io.read_at_most(&mut self.unread, bytes_max)).await
            {
                Err(_) => return Err(BodyError::Timeout),
                Ok(Ok(count)) if count > 0 => {}
                Ok(_) => return Err(BodyError::Closed),
            }
        }
    }

    /// Takes a data frame; its room is given back to the client at once.
    fn frame(
        &mut self,
        frame: Option<Result<Bytes, ::h2::Error>>,
    ) -> Result<Option<Bytes>, BodyError> {
        let Some(frames) = &mut self.frames else { return Ok(None) };
        match frame {
            None => {
                self.framing = Framing::Done;
                Ok(None)
            }
            Some(Err(_)) => Err(BodyError::Closed),
            Some(Ok(piece)) => {
                let _ = frames.flow_control().release_capacity(piece.len());
                self.received += piece.len() as u64;
                if frames.is_end_stream() {
                    self.framing = Framing::Done;
                }
                // An empty one is no piece: framed as a chunk it would be the end of the body.
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
                // Whoever waits for more asks again with a waker of its own.
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

    /// Throws away what has already arrived of an unwanted body.
    ///
    /// # Errors
    /// Its framing is broken.
    pub fn skip_buffered(&mut self) -> Result<(), BodyError> {
        while self.buffered()?.is_some() {}
        Ok(())
    }

    /// Reads an unwanted body to its end, so that the next request can be read.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn skip(&mut self, conf: &Conf) -> Result<(), BodyError> {
        let skip = async {
            while self.next(conf.lingering_timeout, usize::MAX).await?.is_some() {}
            Ok(())
        };
        tokio::time::timeout(conf.lingering_time, skip).await.map_err(|_| BodyError::Timeout)?
    }

    /// Is the client waiting for leave to send the body? Then it will not come.
    pub fn is_awaiting_continue(&self) -> bool {
        self.wants_continue && self.unread.is_empty()
    }
}

async fn begin_spill(conf: &Conf, memory: &mut BytesMut) -> io::Result<Spill> {
    let name = match conf.client_body_in_file_only {
        InFileOnly::Off => Name::None,
        InFileOnly::Clean => Name::Goes,
        InFileOnly::On => Name::Stays,
    };
    Spill::begin(temp_folder(conf), name, memory.split().freeze()).await
}

fn file_error(conf: &Conf, error: &io::Error) -> String {
    let folder = temp_folder(conf);
    format!("writing a request body below \"{}\" failed ({})", folder.display(), os_error(error))
}
