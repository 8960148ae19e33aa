//! The upstream's side of a body: a pump reads ahead of the client, into memory and then into a
//! temporary file, as far as the location's buffers allow.

use super::fetch::Url;
use super::pace::Paced;
use super::pools::{Lease, Rest};
use super::store::Saver;
use super::upload::Sending;
use crate::cache::Collecting;
use crate::protocol::codec::{BodyStep, Codec, CodecError};
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use yorozu_cache::Filling;
use yorozu_kernel::base::spare::Spare;
use yorozu_kernel::base::turn::{self, unix_seconds_of};
use yorozu_kernel::base::{faults, tasks, timer};
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::response::Segment;
use yorozu_kernel::exchange::stream::{Ending, Shared, Stream, Torn, Totals};
use yorozu_kernel::files::read;
use yorozu_kernel::files::temporary::TemporaryFile;
use yorozu_kernel::logging::error::{Context, Level, os_error};
use yorozu_upstream::Connection;

/// Room for what an upstream sends at once; chosen: a page in one read.
const ANSWER_BYTES: usize = 32 * 1024;

thread_local! {
    /// Read into while an answer arrives: connections that are kept own no buffer.
    pub static ANSWERS: Spare = const { Spare::of(ANSWER_BYTES) };
}

/// How long a connection that is to be kept may take for the last words of a request; chosen: they are few bytes.
const REST_TIME: Duration = Duration::from_secs(1);

/// A connection in the middle of a response.
pub struct Source {
    /// `None`: the whole answer is in the codec.
    pub connection: Option<Rc<Connection>>,
    pub codec: Box<dyn Codec>,
    pub input: BytesMut,
    /// The request, which may still be on its way.
    pub sending: Sending,
    /// Why nothing more can be read: the system says it once.
    lost: Option<io::Error>,
}

impl Source {
    pub fn new(
        connection: Option<Rc<Connection>>,
        codec: Box<dyn Codec>,
        input: BytesMut,
        sending: Sending,
    ) -> Self {
        Self { connection, codec, input, sending, lost: None }
    }

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
            if let Some(words) = self.words() {
                if words.await.is_err() {
                    self.sending = Sending::Broken;
                }
            }
            match self.read().await {
                Ok(0) if self.codec.is_whole_at_close() => return Ok(None),
                Ok(0) => return Err(CodecError::Incomplete),
                Ok(_) => {}
                Err(problem) => return Err(CodecError::Lost(problem)),
            }
        }
    }

    /// What the peer has to be told, once the request is sent; until then that is the upload's.
    ///
    /// # Cancel safety
    /// Not safe: see [`Connection::write_all`].
    fn words(&mut self) -> Option<Later<'static, io::Result<()>>> {
        let connection = self.connection.as_ref().filter(|_| self.sending.is_done())?;
        let output = self.codec.take_output();
        (!output.is_empty()).then(|| {
            let connection = Rc::clone(connection);
            Box::pin(async move { connection.write_all(&output).await }) as Later<'static, _>
        })
    }

    /// Reads, while the request may still be on its way.
    async fn read(&mut self) -> io::Result<usize> {
        if let Some(problem) = self.lost.take() {
            return Err(problem);
        }
        match self.receive().await {
            // As nginx: over TLS, too, a connection that just ends is closed.
            Err(problem) if problem.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }

    async fn receive(&mut self) -> io::Result<usize> {
        let Some(connection) = &self.connection else { return Ok(0) };
        if let Sending::UnderWay(upload) = &mut self.sending {
            let uploaded = tokio::select! {
                biased;
                read = connection.read(&mut self.input) => return read,
                uploaded = &mut upload.work => uploaded,
            };
            // Its outcome does not matter: the answer has begun and decides.
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
            if let Some(words) = self.words() {
                if !matches!(tokio::time::timeout_at(deadline, words).await, Ok(Ok(()))) {
                    // A part of them may be said.
                    self.sending = Sending::Broken;
                }
            }
            match tokio::time::timeout_at(deadline, self.read()).await {
                Ok(Ok(count)) if count > 0 => {}
                Ok(Err(problem)) => {
                    self.lost = Some(problem);
                    return Ok(false);
                }
                Ok(Ok(_)) | Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The connection, if it can serve another request.
    pub async fn rest(mut self, is_whole: bool) -> Option<Rest> {
        let is_reusable =
            is_whole && self.sending.is_done() && self.input.is_empty() && self.codec.is_reusable();
        ANSWERS.with(|spare| spare.give(std::mem::take(&mut self.input)));
        if !is_reusable {
            return None;
        }
        if let Some(words) = self.words() {
            let said = Box::pin(timer::within(REST_TIME, words)).await;
            if !matches!(said, Some(Ok(()))) {
                return None;
            }
        }
        let memory = self.codec.leave();
        let connection = self.connection.filter(|connection| Rc::strong_count(connection) == 1)?;
        Some(Rest { connection, memory })
    }
}

/// How far the pump may read ahead.
pub struct ReadAhead {
    pub read_timeout: Duration,
    pub memory_bytes_max: usize,
    /// Folder and bound of the temporary file; `None` for none.
    pub file: Option<(PathBuf, u64)>,
    /// `*_limit_rate`.
    pub pace: Option<Paced>,
    /// The source has nothing more: what is left is what the pace holds.
    pub is_whole: bool,
}

/// What happens around the pump.
pub struct PumpEnd {
    pub collecting: Option<Collecting>,
    pub saver: Option<Saver>,
    pub context: Context,
    pub url: Url,
    pub started: Instant,
    /// The peer, until the connection goes back, whole or not.
    pub lease: Lease,
}

impl PumpEnd {
    /// Logs what the application wrote for that, if anything.
    fn log_stderr(&self, codec: &mut dyn Codec) {
        if let Some(text) = codec.take_stderr() {
            self.log(Level::Error, &codec.in_nginx_words(&text));
        }
    }

    /// Logs what went wrong with the content.
    fn log(&self, level: Level, text: &str) {
        if self.context.takes(level) {
            let url = self.url.at(self.lease.peer().text());
            self.context.upstream(level, &format!("{text} while reading upstream"), Some(&url));
        }
    }
}

/// Starts a pump and returns the client's side of it; `pieces` came with the head.
pub fn start_with(
    pieces: Vec<Bytes>,
    source: Source,
    ahead: ReadAhead,
    mut end: PumpEnd,
    received: u64,
) -> Stream {
    let shared = Rc::new(Shared::default());
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    let totals = Totals { body_bytes: bytes as u64, received, time: Duration::ZERO };
    shared.state.borrow_mut().totals = totals;
    if end.saver.as_mut().is_some_and(|saver| !pieces.iter().all(|piece| saver.push(piece))) {
        end.saver = None;
    }
    let (outlet, stream) = match end.collecting.take() {
        None => {
            let mut state = shared.state.borrow_mut();
            state.memory_bytes = bytes;
            state.queue = pieces.into_iter().map(Segment::Memory).collect();
            (Outlet::Queue, Stream::new(Rc::clone(&shared)))
        }
        Some(mut collecting) => {
            pieces.iter().for_each(|piece| collecting.push(piece));
            let follower = collecting.filling().flow().follow().expect("nothing was let go");
            let stream = Stream::of_page(follower, Some(Rc::clone(&shared)));
            (Outlet::Stored(Box::new(collecting)), stream)
        }
    };
    let pump = Pump { ending: Ending(Rc::clone(&shared)), shared, outlet, ahead, file: None };
    tasks::of_request(pump.run(source, end));
    stream
}

/// Where a body goes.
enum Outlet {
    /// To the one client.
    Queue,
    /// To all who read along, and into the cache, without waiting for any of them.
    Stored(Box<Collecting>),
    /// To all who read along; storing it was given up.
    Passed(Filling),
}

/// What the source says; `None`: nothing in time.
type Next = Option<Result<Option<Bytes>, CodecError>>;

/// Whether there is room for a piece.
enum Room {
    Yes,
    No,
    /// It is not wanted any more.
    Unwanted,
}

struct Pump {
    shared: Rc<Shared>,
    /// Of the queue; a flow has its own.
    ending: Ending,
    outlet: Outlet,
    ahead: ReadAhead,
    file: Option<(Arc<File>, u64)>,
}

impl Pump {
    async fn run(mut self, mut source: Source, mut end: PumpEnd) {
        let result = self.transfer(&mut source, &mut end).await;
        let is_whole = matches!(result, Ok(true));
        // Behind the last piece of content there may be the reason why it was the last.
        end.log_stderr(&mut *source.codec);
        if let Err(text) = &result {
            end.log(Level::Error, text);
        }
        let may_be_stored = source.codec.may_be_stored();
        let trailers = if is_whole { source.codec.take_trailers() } else { Vec::new() };
        // First of all: a client that knows the length has all of it already, and may ask again.
        let filling = match self.outlet {
            Outlet::Stored(collecting) if is_whole && may_be_stored => {
                Some(collecting.finish(unix_seconds_of(SystemTime::now())).await)
            }
            Outlet::Stored(collecting) if is_whole => Some(collecting.give_up()),
            Outlet::Passed(filling) => Some(filling),
            // Dropped, it ends torn.
            Outlet::Stored(_) | Outlet::Queue => None,
        };
        end.lease.release(source.rest(is_whole).await);
        {
            let mut state = self.shared.state.borrow_mut();
            state.trailers = trailers;
            state.totals.time = turn::since(end.started);
        }
        if let Some(saver) = end.saver.take().filter(|_| is_whole && may_be_stored) {
            saver.finish().await;
        }
        match filling {
            Some(filling) if is_whole => filling.end(),
            // Dropped, it ends torn; as does what has no end.
            Some(_) => {}
            None => self.ending.0.end(if is_whole { Ok(()) } else { Err(Torn) }),
        }
    }

    /// `Ok(false)`: the rest is not wanted.
    async fn transfer(&mut self, source: &mut Source, end: &mut PumpEnd) -> Result<bool, String> {
        self.spill_collected().await;
        let mut pieces = Vec::new();
        loop {
            let is_kept = matches!(self.outlet, Outlet::Stored(_)) || end.saver.is_some();
            let Some(next) = self.next(source, is_kept).await else { return Ok(false) };
            match next {
                Some(Ok(Some(piece))) => pieces.push(piece),
                Some(Ok(None)) => return Ok(true),
                Some(Err(problem)) => return Err(problem.text(&*source.codec)),
                None => return Err("upstream timed out (110: Connection timed out)".to_owned()),
            }
            // What was read with it is handed on with it.
            let is_paced = self.ahead.pace.is_some();
            let arrived = if is_paced { Ok(false) } else { source.arrived(&mut pieces) };
            faults::point("pump");
            end.log_stderr(&mut *source.codec);
            if let Some(saver) = &mut end.saver {
                if !(pieces.iter().all(|piece| saver.push(piece)) && saver.flush().await) {
                    end.saver = None;
                }
            }
            if let Outlet::Stored(collecting) = &mut self.outlet {
                pieces.iter().for_each(|piece| collecting.push(piece));
                self.count(bytes_of(&pieces));
                pieces.clear();
                self.spill_collected().await;
            } else if !self.queue(&mut pieces, &end.context).await && end.saver.is_none() {
                return Ok(false);
            }
            match arrived {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(problem) => return Err(problem.text(&*source.codec)),
            }
        }
    }

    /// Has what is stored keep within its memory; a body that cannot be stored is passed on.
    async fn spill_collected(&mut self) {
        let Outlet::Stored(collecting) = &mut self.outlet else { return };
        if !collecting.spill().await {
            if let Outlet::Stored(given_up) = std::mem::replace(&mut self.outlet, Outlet::Queue) {
                self.outlet = Outlet::Passed(given_up.give_up());
            }
        }
    }

    fn count(&self, bytes: u64) {
        let totals = &mut self.shared.state.borrow_mut().totals;
        totals.received += bytes;
        totals.body_bytes += bytes;
    }

    /// The next piece when it is due; `None`: it is not wanted any more.
    async fn next(&mut self, source: &mut Source, is_kept: bool) -> Option<Next> {
        let Some(mut pace) = self.ahead.pace.take() else {
            return self.unless_abandoned(is_kept, self.read(source)).await;
        };
        let due = self.unless_abandoned(is_kept, pace.due()).await?;
        let mut next = Some(Ok(None));
        if !pace.holds() {
            next = self.unless_abandoned(is_kept, self.read(source)).await?;
        }
        if let Some(Ok(Some(piece))) = next {
            pace.hold(piece);
            next = Some(Ok(None));
        }
        if let Some(piece) = pace.take(due) {
            next = Some(Ok(Some(piece)));
        }
        self.ahead.pace = Some(pace);
        Some(next)
    }

    async fn read(&self, source: &mut Source) -> Next {
        if self.ahead.is_whole {
            return Some(Ok(None));
        }
        timer::within(self.ahead.read_timeout, source.next()).await
    }

    /// The outcome of waiting; `None` if meanwhile all readers have left, unless it is kept anyway.
    async fn unless_abandoned<T>(
        &self,
        is_kept: bool,
        waiting: impl Future<Output = T>,
    ) -> Option<T> {
        if is_kept || self.is_abandoned() {
            return Some(waiting.await);
        }
        tokio::select! {
            result = waiting => Some(result),
            () = self.abandoned() => None,
        }
    }

    fn is_abandoned(&self) -> bool {
        match &self.outlet {
            Outlet::Queue => self.shared.state.borrow().is_abandoned,
            Outlet::Stored(_) => false,
            Outlet::Passed(filling) => filling.is_abandoned(),
        }
    }

    async fn abandoned(&self) {
        while !self.is_abandoned() {
            self.taken().await;
        }
    }

    /// Returns when a reader took something, or left.
    async fn taken(&self) {
        match &self.outlet {
            Outlet::Queue | Outlet::Stored(_) => self.shared.writable.notified().await,
            Outlet::Passed(filling) => filling.taken().await,
        }
    }

    fn room(&self, bytes: u64) -> Room {
        if self.is_abandoned() {
            return Room::Unwanted;
        }
        let (in_memory, is_empty) = match &self.outlet {
            Outlet::Queue | Outlet::Stored(_) => {
                let state = self.shared.state.borrow();
                (state.memory_bytes as u64, state.queue.is_empty())
            }
            Outlet::Passed(filling) => (filling.memory_bytes(), filling.is_taken()),
        };
        match is_empty || in_memory.saturating_add(bytes) <= self.ahead.memory_bytes_max as u64 {
            true => Room::Yes,
            false => Room::No,
        }
    }

    /// Hands pieces on once there is room for them; `false` if they are not wanted.
    async fn queue(&mut self, pieces: &mut Vec<Bytes>, context: &Context) -> bool {
        let mut has_waited = false;
        loop {
            match self.room(bytes_of(pieces)) {
                Room::Unwanted => {
                    pieces.clear();
                    return false;
                }
                Room::Yes => {
                    self.hand_on(pieces.drain(..).map(Segment::Memory));
                    return true;
                }
                // A client that takes what there is at once needs no file.
                Room::No if !has_waited => {
                    has_waited = true;
                    tokio::task::yield_now().await;
                    continue;
                }
                Room::No => {}
            }
            match self.spill(pieces).await {
                Ok(true) => return true,
                Ok(false) => self.taken().await,
                Err(problem) => {
                    // The client goes on without it, at its own pace.
                    let folder = self.ahead.file.take().map(|(folder, _)| folder);
                    let folder = folder.unwrap_or_default();
                    let text = format!(
                        "a temporary file in \"{}\" failed ({}) while reading upstream",
                        folder.display(),
                        os_error(&problem)
                    );
                    context.upstream(Level::Crit, &text, None);
                }
            }
        }
    }

    fn hand_on(&self, segments: impl Iterator<Item = Segment>) {
        for segment in segments {
            self.count(segment.bytes());
            match (&self.outlet, segment) {
                (Outlet::Passed(filling), Segment::Memory(bytes)) => filling.push(&bytes),
                (Outlet::Passed(filling), Segment::File(file, range)) => {
                    filling.push_file(&file, range);
                }
                (_, segment) => {
                    let mut state = self.shared.state.borrow_mut();
                    if let Segment::Memory(bytes) = &segment {
                        state.memory_bytes += bytes.len();
                    }
                    state.queue.push_back(segment);
                }
            }
        }
        self.shared.readable.notify_one();
    }

    /// Puts pieces into the temporary file, if there is one with room.
    ///
    /// # Errors
    /// The file cannot be made or written.
    async fn spill(&mut self, pieces: &mut Vec<Bytes>) -> io::Result<bool> {
        let Some((folder, bytes_max)) = &self.ahead.file else { return Ok(false) };
        let used = self.file.as_ref().map_or(0, |(_, used)| *used);
        let end = used + bytes_of(pieces);
        if end > *bytes_max {
            return Ok(false);
        }
        let file = match self.file.take() {
            Some((file, _)) => file,
            None => unnamed_file_in(folder.clone()).await?,
        };
        read::write(&file, pieces.clone(), used).await?;
        pieces.clear();
        self.hand_on(std::iter::once(Segment::File(Arc::clone(&file), used..end)));
        self.file = Some((file, end));
        Ok(true)
    }
}

fn bytes_of(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

async fn unnamed_file_in(folder: PathBuf) -> io::Result<Arc<File>> {
    let made = tokio::task::spawn_blocking(move || TemporaryFile::unnamed(&folder));
    Ok(Arc::clone(made.await.map_err(io::Error::other)??.file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::codec::{Head, Whole};
    use yorozu_upstream::{PeerAddress, SocketOptions};

    struct NeverWhole;

    impl Codec for NeverWhole {
        fn read_head(&mut self, _: &mut BytesMut) -> Result<Option<Head>, CodecError> {
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
        let mut source = Source::new(connection, codec, BytesMut::new(), Sending::Done);
        let (mut pieces, begun) = (Vec::new(), tokio::time::Instant::now());
        tokio::time::pause();
        let is_whole = source.gather(&mut pieces, Duration::from_millis(2)).await.unwrap();
        (is_whole, pieces.len(), begun.elapsed())
    }

    #[tokio::test]
    async fn a_body_that_is_whole_is_not_waited_for() {
        let codec = Whole { body: Some(Bytes::from_static(b"page")), end_bytes: 0 };
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
