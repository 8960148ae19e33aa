//! A response body that arrives while it is sent.
//!
//! | side | ends when |
//! | --- | --- |
//! | pump, or another task of the worker ([`Sink`]) | the body ended, failed, or is not wanted any more |
//! | [`Stream`] (the client's side) | everything queued was taken, or it is dropped |
//!
//! # Invariants
//! - A pump whose body is stored goes on though its client is gone. That body is in its flow, for the maker's client
//!   as for all who read along; the queue is for what is not stored.
//! - A body that ends early is reported as torn and never stored.

use super::coding::Coding;
use super::recode::Recode;
use crate::base::{limits, tasks};
use crate::exchange::response::{Body, Segment};
use crate::files::read;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use yorozu_cache::{Broken, Follower, Piece};

/// How much of a body is coded or decoded in one turn; chosen: some milliseconds.
const CHANGED_BYTES_MAX: usize = 256 * 1024;

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

/// What waits for the client, and how it stands.
#[derive(Debug, Default)]
pub struct State {
    pub queue: VecDeque<Segment>,
    pub memory_bytes: usize,
    pub ended: Option<Result<(), Torn>>,
    pub is_abandoned: bool,
    pub totals: Totals,
    pub trailers: Vec<(Bytes, Bytes)>,
}

impl State {
    /// Takes the first of what waits.
    fn pop(&mut self) -> Option<Segment> {
        let segment = self.queue.pop_front()?;
        if let Segment::Memory(bytes) = &segment {
            self.memory_bytes -= bytes.len();
        }
        Some(segment)
    }
}

/// Shared by a stream's writer and its reader.
#[derive(Debug, Default)]
pub struct Shared {
    pub state: RefCell<State>,
    pub readable: Notify,
    pub writable: Notify,
}

impl Shared {
    /// There is no more of the body.
    pub fn end(&self, result: Result<(), Torn>) {
        self.state.borrow_mut().ended.get_or_insert(result);
        self.readable.notify_one();
    }
}

/// Held by the task that makes a body: however that ends, also by a panic, its client does not wait for ever.
#[derive(Debug)]
pub struct Ending(pub Rc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end(Err(Torn));
    }
}

/// What a stream's bytes come from.
#[derive(Debug)]
enum Feed {
    Queue(Rc<Shared>),
    /// A page that is stored while it arrives; what its maker tells the log and the client behind it, if this is
    /// the maker's own client.
    Along(Follower, Option<Rc<Shared>>),
    /// A stream that is changed once more.
    Changed(Box<Stream>),
}

/// What the maker of a sliced body needs to know.
#[derive(Debug)]
pub struct Slices {
    /// First byte that is wanted, and the byte behind the last.
    pub wanted: Rc<Cell<(u64, u64)>>,
    /// Length of a slice.
    pub bytes: u64,
}

/// The client's side.
#[derive(Debug)]
pub struct Stream {
    feed: Feed,
    /// Set by a filter that changes the content.
    coder: Option<Box<dyn Recode>>,
    /// Taken, and not read into memory yet: for the client, and for the coder.
    reading: Option<Segment>,
    coding: Option<Segment>,
    /// Read and not coded yet.
    uncoded: Bytes,
    /// What was changed since others had their turn.
    changed_bytes: usize,
    /// The part of the body the client wants; all without.
    window: Option<Range<u64>>,
    slices: Option<Slices>,
    /// The task that makes the body, for this stream alone.
    maker: Option<AbortHandle>,
    /// What is left of the announced length; `None` if none was announced.
    pub announced: Option<u64>,
    /// Whether the body is stored as a page on its way.
    pub is_collected: bool,
    /// Bytes taken from the queue so far.
    taken: u64,
    /// Bytes in and out of a filter that compresses, once it has ended.
    pub coded_bytes: Option<(Coding, u64, u64)>,
}

impl Stream {
    pub fn new(shared: Rc<Shared>) -> Self {
        Self::of(Feed::Queue(shared))
    }

    fn of(feed: Feed) -> Self {
        Self {
            feed,
            coder: None,
            reading: None,
            coding: None,
            uncoded: Bytes::new(),
            changed_bytes: 0,
            window: None,
            slices: None,
            maker: None,
            announced: None,
            is_collected: false,
            taken: 0,
            coded_bytes: None,
        }
    }

    /// A page that another request makes.
    pub fn along(follower: Follower) -> Self {
        Self::of_page(follower, None)
    }

    /// A page that is stored while it arrives; `maker`: for the request that makes it.
    pub fn of_page(follower: Follower, maker: Option<Rc<Shared>>) -> Self {
        let mut stream = Self::of(Feed::Along(follower, maker));
        stream.is_collected = true;
        stream
    }

    /// It is made of slices, the first of which begins where the wanted part does.
    pub fn slice(&mut self, slices: Slices) {
        self.taken = slices.wanted.get().0;
        self.slices = Some(slices);
    }

    pub fn is_sliced(&self) -> bool {
        self.slices.is_some()
    }

    /// Lets through what of the whole lies in `window`.
    pub fn cut(&mut self, window: Range<u64>) {
        if let Some(Slices { wanted, bytes }) = &self.slices {
            if window.start >= self.taken + bytes {
                self.taken = window.start / bytes * bytes;
            }
            wanted.set((window.start, window.end));
        }
        self.window = Some(window);
    }

    /// The same with its content changed by `coder`, after what changes it already.
    fn changed(self, coder: Box<dyn Recode>) -> Self {
        let mut stream = match self.coder {
            None if self.announced.is_none() => self,
            _ => Self::of(Feed::Changed(Box::new(self))),
        };
        stream.coder = Some(coder);
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
        if let Some(segment) = self.reading.take() {
            return Ok(Some(segment));
        }
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

    /// The next piece, if it is in memory and needs no work: what would have to be waited for, read or changed is left to
    /// [`Stream::next`].
    pub fn at_hand(&mut self) -> Option<Bytes> {
        if self.reading.is_some() || self.coder.is_some() || self.window.is_some() {
            return None;
        }
        let bytes = match &mut self.feed {
            Feed::Queue(shared) => {
                let mut state = shared.state.borrow_mut();
                let Some(Segment::Memory(_)) = state.queue.front() else { return None };
                let Some(Segment::Memory(bytes)) = state.pop() else { return None };
                shared.writable.notify_one();
                bytes
            }
            Feed::Along(follower, _) => follower.at_hand()?,
            Feed::Changed(_) => return None,
        };
        if let Some(left) = &mut self.announced {
            *left = left.saturating_sub(bytes.len() as u64);
        }
        Some(bytes)
    }

    /// As [`Stream::next`], read into memory.
    ///
    /// # Errors
    /// As [`Stream::next`], or a file of it cannot be read.
    pub async fn next_bytes(&mut self) -> Result<Option<Bytes>, Torn> {
        let Some(segment) = self.next().await? else { return Ok(None) };
        let bytes = in_memory(self.reading.insert(segment)).await;
        self.reading = None;
        bytes.map(Some)
    }

    /// The next piece, through the filter that compresses.
    async fn coded(&mut self) -> Result<Option<Segment>, Torn> {
        loop {
            if self.uncoded.is_empty() {
                let piece = match self.coding.take() {
                    Some(piece) => Some(piece),
                    None => self.wanted().await?,
                };
                let Some(coder) = &mut self.coder else { return Ok(piece) };
                let Some(piece) = piece else {
                    let rest = coder.finish().map_err(|_| Torn)?;
                    self.coded_bytes = coder.coded_bytes();
                    self.coder = None;
                    return Ok((!rest.is_empty()).then(|| Segment::Memory(rest)));
                };
                self.uncoded = in_memory(self.coding.insert(piece)).await?;
                self.coding = None;
            }
            // A client that takes it as fast as it is made would have the worker for itself.
            if self.changed_bytes >= CHANGED_BYTES_MAX {
                self.changed_bytes = 0;
                tokio::task::yield_now().await;
            }
            let is_last = self.is_waiting();
            let Some(coder) = &mut self.coder else { continue };
            let count = self.uncoded.len().min(coder.takes());
            let bytes = self.uncoded.split_to(count);
            // Nothing more waits: let the client have what there is.
            let is_flushed = self.uncoded.is_empty() && is_last;
            let coded = coder.write(&bytes, is_flushed).map_err(|_| Torn)?;
            self.changed_bytes += bytes.len().max(coded.len());
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
        let shared = match &mut self.feed {
            Feed::Queue(shared) => shared,
            Feed::Changed(stream) => return Box::pin(stream.next()).await,
            Feed::Along(follower, _) => {
                return match follower.next().await {
                    Ok(piece) => Ok(piece.map(|piece| match piece {
                        Piece::Memory(bytes) => Segment::Memory(bytes),
                        Piece::File(file, range) => Segment::File(file, range),
                    })),
                    Err(Broken) => Err(Torn),
                };
            }
        };
        loop {
            let waiting = shared.readable.notified();
            {
                let mut state = shared.state.borrow_mut();
                if let Some(segment) = state.pop() {
                    shared.writable.notify_one();
                    return Ok(Some(segment));
                }
                if let Some(ended) = state.ended {
                    return ended.map(|()| None);
                }
            }
            waiting.await;
        }
    }

    /// Whether the next piece would have to be waited for.
    pub fn is_waiting(&self) -> bool {
        match &self.feed {
            Feed::Queue(shared) => shared.state.borrow().queue.is_empty(),
            Feed::Along(follower, _) => follower.is_waiting(),
            Feed::Changed(stream) => stream.uncoded.is_empty() && stream.is_waiting(),
        }
    }

    /// Fields behind the body, once it has ended.
    pub fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        match &mut self.feed {
            Feed::Queue(shared) | Feed::Along(_, Some(shared)) => {
                std::mem::take(&mut shared.state.borrow_mut().trailers)
            }
            Feed::Along(_, None) => Vec::new(),
            Feed::Changed(stream) => stream.take_trailers(),
        }
    }

    pub fn totals(&self) -> Totals {
        match &self.feed {
            Feed::Queue(shared) | Feed::Along(_, Some(shared)) => shared.state.borrow().totals,
            Feed::Along(_, None) => Totals::default(),
            Feed::Changed(stream) => stream.totals(),
        }
    }
}

async fn in_memory(segment: &Segment) -> Result<Bytes, Torn> {
    match segment {
        Segment::Memory(bytes) => Ok(bytes.clone()),
        Segment::File(file, range) => {
            let length = usize::try_from(range.end - range.start).map_err(|_| Torn)?;
            read::read(file, range.start, length).await.map_err(|_| Torn)
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(maker) = &self.maker {
            maker.abort();
        }
        if let Feed::Queue(shared) = &self.feed {
            shared.state.borrow_mut().is_abandoned = true;
            shared.writable.notify_one();
        }
    }
}

/// A body that is known whole, with fields behind it.
pub fn of_whole(body: Body, trailers: Vec<(Bytes, Bytes)>) -> Stream {
    let shared = Rc::new(Shared::default());
    {
        let mut state = shared.state.borrow_mut();
        state.queue = match body {
            Body::Memory(bytes) if bytes.is_empty() => VecDeque::new(),
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

impl Body {
    /// The content, changed by `coder` while it is sent.
    #[must_use]
    pub fn changed(self, coder: Box<dyn Recode>) -> Self {
        match self {
            Self::Memory(bytes) if bytes.is_empty() => Self::Memory(bytes),
            tunnel @ Self::Tunnel(_) => tunnel,
            body => Self::Stream(Box::new(body.into_stream().changed(coder))),
        }
    }

    /// The content piece by piece; none of a tunnel.
    pub fn into_stream(self) -> Stream {
        match self {
            Self::Stream(stream) => *stream,
            Self::Tunnel(_) => of_whole(Self::empty(), Vec::new()),
            whole => of_whole(whole, Vec::new()),
        }
    }
}

/// A body that `make` writes into the [`Sink`] it gets, as a task of the worker that ends when it has no reader any more,
/// or its client is gone: it may wait for others for long before there is something to send.
pub fn made_by<F>(
    client_closed: impl Future<Output = ()> + 'static,
    make: impl FnOnce(Sink) -> F,
) -> Stream
where
    F: Future<Output = Result<(), Torn>> + 'static,
{
    let shared = Rc::new(Shared::default());
    let made = make(Sink { shared: Rc::clone(&shared) });
    let mut stream = Stream::new(Rc::clone(&shared));
    let ending = Ending(shared);
    let maker = tasks::of_request(async move {
        let ended = tokio::select! {
            biased;
            ended = made => ended,
            () = client_closed => Err(Torn),
        };
        ending.0.end(ended);
    });
    stream.maker = Some(maker.abort_handle());
    stream
}

/// Where a task puts the body it makes.
#[derive(Debug)]
pub struct Sink {
    shared: Rc<Shared>,
}

impl Sink {
    /// Waits until there is room, then queues `bytes`.
    ///
    /// # Errors
    /// It has no reader any more.
    pub async fn put(&self, bytes: Bytes) -> Result<(), Torn> {
        if bytes.is_empty() {
            return Ok(());
        }
        loop {
            {
                let mut state = self.shared.state.borrow_mut();
                if state.is_abandoned {
                    return Err(Torn);
                }
                if state.queue.is_empty() || state.memory_bytes < limits::MADE_AHEAD_BYTES {
                    state.memory_bytes += bytes.len();
                    state.queue.push_back(Segment::Memory(bytes));
                    self.shared.readable.notify_one();
                    return Ok(());
                }
            }
            self.shared.writable.notified().await;
        }
    }

    /// Queues a body to its end.
    ///
    /// # Errors
    /// It broke off, or has no reader any more.
    pub async fn append(&self, stream: &mut Stream) -> Result<(), Torn> {
        while let Some(bytes) = stream.next_bytes().await? {
            self.put(bytes).await?;
        }
        Ok(())
    }

    /// As [`Sink::append`], of the body that is the request's own.
    ///
    /// # Errors
    /// As [`Sink::append`].
    pub async fn put_all(&self, stream: &mut Stream) -> Result<(), Torn> {
        let result = self.append(stream).await;
        self.note(stream);
        result
    }

    /// Takes over what the log and the client get to know behind the body.
    pub fn note(&self, stream: &mut Stream) {
        let mut state = self.shared.state.borrow_mut();
        state.trailers = stream.take_trailers();
        state.totals = stream.totals();
    }
}

/// Cuts a segment so that no piece is large in memory.
fn pieces(segment: Segment) -> Vec<Segment> {
    match segment {
        Segment::Memory(_) => vec![segment],
        Segment::File(file, range) => {
            let step = limits::FILE_CHUNK_BYTES;
            let starts = range.clone().step_by(step);
            starts
                .map(|start| {
                    Segment::File(Arc::clone(&file), start..range.end.min(start + step as u64))
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tokio::task::LocalSet;

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_whose_maker_panics_is_torn() {
        let make = async {
            let mut stream = made_by(std::future::pending(), |sink| async move {
                sink.put(Bytes::from_static(b"half")).await?;
                panic!("in the middle of a body");
            });
            assert_eq!(stream.next_bytes().await.unwrap().as_deref(), Some(&b"half"[..]));
            tokio::time::timeout(Duration::from_secs(10), stream.next_bytes()).await
        };
        let ended = LocalSet::new().run_until(make).await;
        assert_eq!(ended.expect("the client notices"), Err(Torn));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_that_ends_is_not_torn_by_its_makers_end() {
        let make = async {
            let mut stream = made_by(std::future::pending(), |sink| async move {
                sink.put(Bytes::from_static(b"all")).await
            });
            assert_eq!(stream.next_bytes().await.unwrap().as_deref(), Some(&b"all"[..]));
            stream.next_bytes().await
        };
        assert_eq!(LocalSet::new().run_until(make).await, Ok(None));
    }

    #[derive(Debug)]
    struct Doubling;

    impl Recode for Doubling {
        fn takes(&self) -> usize {
            64 * 1024
        }

        fn write(&mut self, bytes: &[u8], _is_flushed: bool) -> io::Result<Bytes> {
            Ok([bytes, bytes].concat().into())
        }

        fn finish(&mut self) -> io::Result<Bytes> {
            Ok(Bytes::new())
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn others_have_their_turn_while_a_long_body_is_changed() {
        let mut stream =
            Body::Memory(Bytes::from(vec![0; 2 << 20])).changed(Box::new(Doubling)).into_stream();
        let (turns, seen) = (Cell::new(0), Cell::new(0));
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            let mut bytes = 0;
            while let Some(piece) = stream.next_bytes().await.unwrap() {
                bytes += piece.len();
            }
            seen.set(turns.get());
            bytes
        };
        tokio::select! {
            biased;
            bytes = read => assert_eq!(bytes, 4 << 20),
            () = others => unreachable!("it has no end"),
        }
        assert!(seen.get() >= 8, "{} turns", seen.get());
    }
}
