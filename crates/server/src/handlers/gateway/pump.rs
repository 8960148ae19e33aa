//! The upstream's side of a body: a pump reads ahead of the client, into memory and then into a
//! temporary file, as far as the location's buffers allow.

use super::pools::Lease;
use super::store::Saver;
use super::stream::{Shared, Stream, Torn, Totals};
use super::upload::Sending;
use super::{BodyStep, Codec, CodecError};
use crate::cache::Collector;
use crate::connection::timer;
use crate::exchange::response::Segment;
use crate::exchange::temporary::unnamed_file;
use crate::exchange::unix_seconds;
use crate::logging::error::{Context, Level, os_error};
use crate::process::turn;
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use yorozu_upstream::Connection;

/// A connection in the middle of a response.
pub struct Source {
    /// `None`: the whole answer is in the codec.
    pub connection: Option<Rc<Connection>>,
    pub codec: Box<dyn Codec>,
    pub input: BytesMut,
    /// The request, which may still be on its way.
    pub sending: Sending,
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
        if let Sending::UnderWay(upload) = &mut self.sending {
            let uploaded = tokio::select! {
                biased;
                read = connection.read(&mut self.input) => return read,
                uploaded = upload => uploaded,
            };
            // Whatever became of it: the answer has begun and decides.
            self.sending = Sending::of(&uploaded.result);
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
            is_whole && self.sending.is_done() && self.input.is_empty() && self.codec.is_reusable();
        // An upload under way holds the connection, too.
        drop(self.sending);
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
            if !source.codec.may_be_stored() {
                (end.collector, end.saver) = (None, None);
            }
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
        state.totals.time = turn::since(end.started);
        state.ended = Some(if is_whole { Ok(()) } else { Err(Torn) });
        self.shared.readable.notify_one();
    }

    /// `Ok(false)`: nobody wants the rest.
    async fn transfer(&mut self, source: &mut Source, end: &mut PumpEnd) -> Result<bool, String> {
        let begun = Instant::now();
        loop {
            self.slow_down(begun).await;
            let next = if self.shared.state.borrow().is_abandoned || end.is_kept() {
                timer::within(self.ahead.read_timeout, source.next()).await
            } else {
                tokio::select! {
                    next = timer::within(self.ahead.read_timeout, source.next()) => next,
                    () = self.abandoned() => return Ok(false),
                }
            };
            let piece = match next {
                Some(Ok(Some(piece))) => piece,
                Some(Ok(None)) => return Ok(true),
                Some(Err(CodecError::Incomplete)) => {
                    return Err(format!("{} while reading upstream", source.codec.closed_early()));
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => {
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
        let mut source =
            Source { connection, codec, input: BytesMut::new(), sending: Sending::Done };
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
