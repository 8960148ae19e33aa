//! A response body that arrives while it is sent: a pump reads ahead of the client, into memory and
//! then into a temporary file, as far as the location's buffers allow.
//!
//! | who | ends when |
//! | --- | --- |
//! | pump (a task of the worker) | the body ended, failed, or nobody wants it any more |
//! | [`Stream`] (the client's side) | everything queued was taken, or it is dropped |
//!
//! # Invariants
//! - A pump with a [`Collector`] goes on though its client is gone.
//! - A body that ends early is reported as torn and never stored.

use super::pools::Lease;
use super::store::Saver;
use super::upload::Upload;
use super::{BodyStep, Codec, CodecError};
use crate::cache::Collector;
use crate::exchange::response::{Body, Segment};
use crate::exchange::temporary::unnamed_file;
use crate::exchange::unix_seconds;
use crate::filters::compress::{Coder, Coding};
use crate::logging::error::{Context, Level, os_error};
use bytes::{Bytes, BytesMut};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;
use yorozu_cache::{Broken, Flow, Piece, Place};
use yorozu_upstream::Connection;

/// The body ended before its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Torn;

/// What the pump did, for the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub body_bytes: u64,
    pub received: u64,
    pub time: Duration,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Segment>,
    memory_bytes: usize,
    ended: Option<Result<(), Torn>>,
    is_abandoned: bool,
    totals: Totals,
    trailers: Vec<(Bytes, Bytes)>,
}

#[derive(Debug, Default)]
struct Shared {
    state: RefCell<State>,
    readable: Notify,
    writable: Notify,
}

/// The client's side.
#[derive(Debug)]
pub struct Stream {
    shared: Rc<Shared>,
    /// Set by the filters that compress, and that undo it.
    pub coder: Option<Box<Coder>>,
    /// Read and not coded yet.
    uncoded: Bytes,
    /// The part of the body the client wants; all without.
    pub window: Option<Range<u64>>,
    /// What is left of the length the client was told; `None` if it was told none.
    pub announced: Option<u64>,
    /// Is the body stored as a page on its way?
    pub is_collected: bool,
    /// Of a page another request makes, with how far it was read along; the queue stays empty then.
    along: Option<(Arc<Flow>, Place)>,
    /// Bytes taken from the queue so far.
    taken: u64,
    /// Bytes in and out of a filter that compresses, once it has ended.
    pub coded_bytes: Option<(Coding, u64, u64)>,
}

impl Stream {
    fn new(shared: Rc<Shared>) -> Self {
        Self {
            shared,
            coder: None,
            uncoded: Bytes::new(),
            window: None,
            announced: None,
            is_collected: false,
            along: None,
            taken: 0,
            coded_bytes: None,
        }
    }

    /// A page that another request makes.
    pub fn along(flow: Arc<Flow>) -> Self {
        let mut stream = Self::new(Rc::default());
        stream.is_collected = true;
        stream.along = Some((flow, Place::default()));
        stream
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The upstream failed in the middle, or sent less than was announced.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Segment>, Torn> {
        let piece = self.coded().await?;
        if let Some(left) = &mut self.announced {
            match &piece {
                Some(piece) => *left = left.saturating_sub(piece.bytes()),
                None if *left > 0 => return Err(Torn),
                None => {}
            }
        }
        Ok(piece)
    }

    /// The next piece, through the filter that compresses.
    async fn coded(&mut self) -> Result<Option<Segment>, Torn> {
        loop {
            if self.uncoded.is_empty() {
                let piece = self.wanted().await?;
                let Some(coder) = &mut self.coder else { return Ok(piece) };
                let Some(piece) = piece else {
                    let rest = coder.finish().map_err(|_| Torn)?;
                    let totals = (coder.bytes_in, coder.bytes_out);
                    self.coded_bytes = coder.coding.map(|coding| (coding, totals.0, totals.1));
                    self.coder = None;
                    return Ok((!rest.is_empty()).then(|| Segment::Memory(rest)));
                };
                self.uncoded = in_memory(piece).map_err(|_| Torn)?;
            }
            let is_last = self.is_waiting();
            let Some(coder) = &mut self.coder else { continue };
            let count = self.uncoded.len().min(coder.takes());
            let bytes = self.uncoded.split_to(count);
            // Nothing more waits: let the client have what there is.
            let is_flushed = self.uncoded.is_empty() && is_last;
            let coded = coder.write(&bytes, is_flushed).map_err(|_| Torn)?;
            if !coded.is_empty() {
                return Ok(Some(Segment::Memory(coded)));
            }
        }
    }

    /// The next piece of the part that is wanted.
    async fn wanted(&mut self) -> Result<Option<Segment>, Torn> {
        let Some(window) = self.window.clone() else { return self.plain().await };
        while self.taken < window.end {
            let Some(segment) = self.plain().await? else { return Ok(None) };
            let start = self.taken;
            self.taken += segment.bytes();
            let (from, to) = (window.start.max(start), window.end.min(self.taken));
            if from < to {
                return Ok(Some(segment.part(from - start..to - start)));
            }
        }
        Ok(None)
    }

    async fn plain(&mut self) -> Result<Option<Segment>, Torn> {
        if let Some((flow, place)) = &mut self.along {
            return match flow.next(place).await {
                Ok(piece) => Ok(piece.map(|piece| match piece {
                    Piece::Memory(bytes) => Segment::Memory(bytes),
                    Piece::File(file, range) => Segment::File(file, range),
                })),
                Err(Broken) => Err(Torn),
            };
        }
        loop {
            let waiting = self.shared.readable.notified();
            {
                let mut state = self.shared.state.borrow_mut();
                if let Some(segment) = state.queue.pop_front() {
                    if let Segment::Memory(bytes) = &segment {
                        state.memory_bytes -= bytes.len();
                    }
                    self.shared.writable.notify_one();
                    return Ok(Some(segment));
                }
                if let Some(ended) = state.ended {
                    return ended.map(|()| None);
                }
            }
            waiting.await;
        }
    }

    /// Would the next piece have to be waited for?
    pub fn is_waiting(&self) -> bool {
        if let Some((flow, place)) = &self.along {
            return flow.is_waiting(place);
        }
        self.shared.state.borrow().queue.is_empty()
    }

    /// Fields behind the body, once it has ended.
    pub fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        std::mem::take(&mut self.shared.state.borrow_mut().trailers)
    }

    pub fn totals(&self) -> Totals {
        self.shared.state.borrow().totals
    }
}

fn in_memory(segment: Segment) -> io::Result<Bytes> {
    match segment {
        Segment::Memory(bytes) => Ok(bytes),
        Segment::File(file, range) => {
            let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes.into())
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().is_abandoned = true;
        self.shared.writable.notify_one();
    }
}

/// A connection in the middle of a response.
pub struct Source {
    /// `None`: the whole answer is in the codec.
    pub connection: Option<Rc<Connection>>,
    pub codec: Box<dyn Codec>,
    pub input: BytesMut,
    /// The request, while it is still on its way.
    pub upload: Option<Upload>,
}

impl Source {
    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// The peer closed early, broke the protocol, or the connection failed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CodecError> {
        loop {
            match self.codec.read_body(&mut self.input)? {
                BodyStep::Data(bytes) => return Ok(Some(bytes)),
                BodyStep::End => return Ok(None),
                BodyStep::NeedMore => {}
            }
            if !matches!(self.read().await, Ok(count) if count > 0) {
                return if self.codec.is_whole_at_close() {
                    Ok(None)
                } else {
                    Err(CodecError::Incomplete)
                };
            }
        }
    }

    /// Reads, while the request may still be on its way.
    async fn read(&mut self) -> io::Result<usize> {
        let Some(connection) = &self.connection else { return Ok(0) };
        if let Some(upload) = &mut self.upload {
            tokio::select! {
                biased;
                read = connection.read(&mut self.input) => return read,
                // Whatever became of it: the answer has begun and decides.
                _ = upload => {}
            }
            self.upload = None;
        }
        connection.read(&mut self.input).await
    }

    /// Takes what has arrived of the body; `true` if that was all of it.
    ///
    /// # Errors
    /// The peer broke the protocol, or ended too early.
    pub fn arrived(&mut self, pieces: &mut Vec<Bytes>) -> Result<bool, CodecError> {
        loop {
            match self.codec.read_body(&mut self.input)? {
                BodyStep::Data(piece) => pieces.push(piece),
                BodyStep::End => return Ok(true),
                BodyStep::NeedMore => return Ok(false),
            }
        }
    }

    /// As [`Source::arrived`], with what arrives within `longest`.
    ///
    /// # Errors
    /// As [`Source::arrived`].
    pub async fn gather(
        &mut self,
        pieces: &mut Vec<Bytes>,
        longest: Duration,
    ) -> Result<bool, CodecError> {
        let deadline = tokio::time::Instant::now() + longest;
        while !self.arrived(pieces)? {
            let read = tokio::time::timeout_at(deadline, self.read()).await;
            if !matches!(read, Ok(Ok(count)) if count > 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The connection for another request, and whether it can serve one.
    pub fn into_connection(self, is_whole: bool) -> (Option<Connection>, bool) {
        let is_reusable =
            is_whole && self.upload.is_none() && self.input.is_empty() && self.codec.is_reusable();
        drop(self.upload);
        (self.connection.and_then(Rc::into_inner), is_reusable)
    }
}

/// How far the pump may read ahead.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    pub read_timeout: Duration,
    pub memory_bytes_max: usize,
    /// `*_limit_rate`, in bytes per second; 0 for none.
    pub rate: u64,
    /// Folder and bound of the temporary file; `None` for none.
    pub file: Option<(PathBuf, u64)>,
}

/// What happens around the pump.
pub struct PumpEnd {
    pub collector: Option<Collector>,
    pub saver: Option<Saver>,
    pub context: Context,
    pub peer: String,
    pub started: Instant,
    /// The peer, until the connection goes back, whole or not.
    pub lease: Lease,
}

impl PumpEnd {
    /// Is the body wanted though its client is gone?
    fn is_kept(&self) -> bool {
        self.collector.is_some() || self.saver.is_some()
    }
}

/// Starts a pump and returns the client's side of it; `pieces` came with the head.
pub fn start_with(
    pieces: Vec<Bytes>,
    source: Source,
    ahead: ReadAhead,
    end: PumpEnd,
    received: u64,
) -> Stream {
    let shared = Rc::new(Shared::default());
    {
        let mut state = shared.state.borrow_mut();
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        state.totals = Totals { body_bytes: bytes as u64, received, time: Duration::ZERO };
        state.memory_bytes = bytes;
        state.queue = pieces.into_iter().map(Segment::Memory).collect();
    }
    let is_collected = end.collector.is_some();
    let pump = Pump { shared: Rc::clone(&shared), ahead, file: None };
    tokio::task::spawn_local(pump.run(source, end));
    let mut stream = Stream::new(shared);
    stream.is_collected = is_collected;
    stream
}

/// A body that is known whole, with fields behind it.
pub fn of_whole(body: Body, trailers: Vec<(Bytes, Bytes)>) -> Stream {
    let shared = Rc::new(Shared::default());
    {
        let mut state = shared.state.borrow_mut();
        state.queue = match body {
            Body::Memory(bytes) => VecDeque::from([Segment::Memory(bytes)]),
            Body::Segments(segments) => segments.into_iter().flat_map(pieces).collect(),
            Body::Stream(_) | Body::Tunnel(_) => unreachable!("not known whole"),
        };
        state.memory_bytes = usize::MAX;
        state.trailers = trailers;
        state.ended = Some(Ok(()));
    }
    Stream::new(shared)
}

/// A body in memory, coded piece by piece.
pub fn of_memory(bytes: Bytes, coder: Coder) -> Stream {
    of_segments(vec![Segment::Memory(bytes)], coder)
}

/// A body that is known whole, coded piece by piece.
pub fn of_segments(segments: Vec<Segment>, coder: Coder) -> Stream {
    let shared = Rc::new(Shared::default());
    {
        let mut state = shared.state.borrow_mut();
        state.queue = segments.into_iter().flat_map(pieces).collect();
        state.memory_bytes = usize::MAX;
        state.ended = Some(Ok(()));
    }
    let mut stream = Stream::new(shared);
    stream.coder = Some(Box::new(coder));
    stream
}

/// Cuts a segment so that no piece is large in memory.
fn pieces(segment: Segment) -> Vec<Segment> {
    match segment {
        Segment::Memory(_) => vec![segment],
        Segment::File(file, range) => {
            let step = crate::limits::FILE_CHUNK_BYTES;
            let starts = range.clone().step_by(step);
            starts
                .map(|start| {
                    Segment::File(Arc::clone(&file), start..range.end.min(start + step as u64))
                })
                .collect()
        }
    }
}

struct Pump {
    shared: Rc<Shared>,
    ahead: ReadAhead,
    file: Option<(Arc<File>, u64)>,
}

impl Pump {
    async fn run(mut self, mut source: Source, mut end: PumpEnd) {
        let result = self.transfer(&mut source, &mut end).await;
        let is_whole = matches!(result, Ok(true));
        if let Err(text) = &result {
            end.context.upstream(Level::Error, text, Some(&end.peer));
        }
        if is_whole {
            end.collector.take_if(|_| !source.codec.may_be_stored());
            if let Some(collector) = end.collector.take() {
                collector.finish(unix_seconds(SystemTime::now()));
            }
            if let Some(saver) = end.saver.take() {
                saver.finish();
            }
        }
        drop(end.collector);
        let trailers = if is_whole { source.codec.take_trailers() } else { Vec::new() };
        let (connection, is_reusable) = source.into_connection(is_whole);
        end.lease.release(connection, is_reusable);
        let mut state = self.shared.state.borrow_mut();
        state.trailers = trailers;
        state.totals.time = end.started.elapsed();
        state.ended = Some(if is_whole { Ok(()) } else { Err(Torn) });
        self.shared.readable.notify_one();
    }

    /// `Ok(false)`: nobody wants the rest.
    async fn transfer(&mut self, source: &mut Source, end: &mut PumpEnd) -> Result<bool, String> {
        let begun = Instant::now();
        loop {
            self.slow_down(begun).await;
            let next = if self.shared.state.borrow().is_abandoned || end.is_kept() {
                tokio::time::timeout(self.ahead.read_timeout, source.next()).await
            } else {
                tokio::select! {
                    next = tokio::time::timeout(self.ahead.read_timeout, source.next()) => next,
                    () = self.abandoned() => return Ok(false),
                }
            };
            let piece = match next {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => return Ok(true),
                Ok(Err(CodecError::Incomplete)) => {
                    return Err(format!("{} while reading upstream", source.codec.closed_early()));
                }
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => {
                    return Err(
                        "upstream timed out (110: Connection timed out) while reading upstream"
                            .to_owned(),
                    );
                }
            };
            if let Some(text) = source.codec.take_stderr() {
                end.context.upstream(Level::Error, &stderr_text(&text), Some(&end.peer));
            }
            if end.saver.as_mut().is_some_and(|saver| !saver.push(&piece)) {
                end.saver = None;
            }
            if end.collector.as_mut().is_some_and(|collector| !collector.push(&piece)) {
                end.collector = None;
            }
            if !self
                .queue(piece, end.collector.is_some())
                .await
                .map_err(|error| os_error(&error))?
                && !end.is_kept()
            {
                return Ok(false);
            }
        }
    }

    /// With `*_limit_rate`: waits until the next piece is due.
    async fn slow_down(&self, begun: Instant) {
        let Some(millis) =
            (self.shared.state.borrow().totals.received * 1000).checked_div(self.ahead.rate)
        else {
            return;
        };
        let ahead = Duration::from_millis(millis).saturating_sub(begun.elapsed());
        if !ahead.is_zero() {
            tokio::time::sleep(ahead).await;
        }
    }

    async fn abandoned(&self) {
        while !self.shared.state.borrow().is_abandoned {
            self.shared.writable.notified().await;
        }
    }

    /// Hands a piece to the client's side; `false` if it is gone.
    async fn queue(&mut self, piece: Bytes, is_collected: bool) -> io::Result<bool> {
        loop {
            {
                let mut state = self.shared.state.borrow_mut();
                if state.is_abandoned {
                    return Ok(false);
                }
                // A collected body is in memory anyway: waiting would only keep PHP busy.
                let has_room = state.memory_bytes + piece.len() <= self.ahead.memory_bytes_max
                    || state.queue.is_empty()
                    || is_collected;
                state.totals.received += if has_room { piece.len() as u64 } else { 0 };
                if has_room {
                    state.totals.body_bytes += piece.len() as u64;
                    state.memory_bytes += piece.len();
                    state.queue.push_back(Segment::Memory(piece));
                    self.shared.readable.notify_one();
                    return Ok(true);
                }
            }
            if self.spill(&piece)? {
                return Ok(true);
            }
            self.shared.writable.notified().await;
        }
    }

    /// Puts a piece into the temporary file, if there is one with room.
    fn spill(&mut self, piece: &Bytes) -> io::Result<bool> {
        let Some((folder, bytes_max)) = &self.ahead.file else { return Ok(false) };
        let used = self.file.as_ref().map_or(0, |(_, used)| *used);
        if used + piece.len() as u64 > *bytes_max {
            return Ok(false);
        }
        if self.file.is_none() {
            self.file = Some((Arc::new(unnamed_file(folder)?), 0));
        }
        let (file, used) = self.file.as_mut().expect("just made");
        file.write_all_at(piece, *used)?;
        let range = *used..*used + piece.len() as u64;
        *used = range.end;
        let mut state = self.shared.state.borrow_mut();
        state.totals.received += piece.len() as u64;
        state.totals.body_bytes += piece.len() as u64;
        state.queue.push_back(Segment::File(Arc::clone(file), range));
        self.shared.readable.notify_one();
        Ok(true)
    }
}

/// nginx's wording for what an application wrote to its standard error.
pub fn stderr_text(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text.trim_ascii_end()).into_owned();
    format!("FastCGI sent in stderr: \"{text}\" while reading response header from upstream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::memcached::ValueCodec;
    use yorozu_upstream::{PeerAddress, SocketOptions};

    struct NeverWhole;

    impl Codec for NeverWhole {
        fn read_head(
            &mut self,
            _: &mut BytesMut,
        ) -> Result<Option<super::super::Head>, CodecError> {
            Ok(None)
        }

        fn read_body(&mut self, _: &mut BytesMut) -> Result<BodyStep, CodecError> {
            Ok(BodyStep::NeedMore)
        }

        fn is_whole_at_close(&self) -> bool {
            false
        }

        fn is_reusable(&self) -> bool {
            false
        }
    }

    /// What gathering from a peer that says nothing yields, and how long it takes.
    async fn gather(codec: Box<dyn Codec>) -> (bool, usize, Duration) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = PeerAddress::Tcp(listener.local_addr().unwrap());
        let connection = Connection::open(&address, SocketOptions::default()).await.unwrap();
        let _silent = listener.accept().await.unwrap();
        let connection = Some(Rc::new(connection));
        let mut source = Source { connection, codec, input: BytesMut::new(), upload: None };
        let (mut pieces, begun) = (Vec::new(), tokio::time::Instant::now());
        tokio::time::pause();
        let is_whole = source.gather(&mut pieces, Duration::from_millis(2)).await.unwrap();
        (is_whole, pieces.len(), begun.elapsed())
    }

    #[tokio::test]
    async fn a_body_that_is_whole_is_not_waited_for() {
        let codec = ValueCodec { body: Some(Bytes::from_static(b"page")) };
        let (is_whole, pieces, time) = gather(Box::new(codec)).await;
        assert_eq!((is_whole, pieces), (true, 1));
        assert!(time < Duration::from_millis(2), "{time:?}");
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_waited_for_so_long() {
        let (is_whole, pieces, time) = gather(Box::new(NeverWhole)).await;
        assert_eq!((is_whole, pieces), (false, 0));
        assert!(time >= Duration::from_millis(2), "{time:?}");
    }
}
