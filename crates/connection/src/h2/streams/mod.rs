//! The streams of a connection: their states, their windows, and what waits to be sent (RFC 9113, section 5).
//!
//! The connection's task reads and writes; what answers a stream asks for room here, and puts frames here.

mod answer;
mod broken;
mod client;

pub(super) use answer::Body;
use broken::{TOO_LARGE_WINDOW, too_large_window};
pub(super) use client::FAREWELL;

use super::out::Out;
use crate::transport::Transport;
use bytes::BytesMut;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::time::Instant;
use yorozu_kernel::base::counters::{Counted, Present};
use yorozu_kernel::base::limits;
use yorozu_wire::h2::frame::{Broken, Code, WINDOW_BYTES, WINDOW_MAX, kind, setting};

/// Streams that ended and are still told from those that never were; chosen.
const RECENT_MAX: usize = 256;

/// What happened to a stream that is not open any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ended {
    /// Both sides have sent all.
    Whole,
    ByClient,
    /// What the client had sent before it knew is no error.
    ByServer,
}

/// One stream, from its request's head until what answers it is gone.
#[derive(Debug)]
struct Entry {
    id: u32,
    /// What may be sent of its response, in bytes; less than nothing after a change of settings.
    window: i64,
    /// What the client may send of its body.
    room: i64,
    /// What was taken of it, and the client was not told yet.
    due: i64,
    received: BytesMut,
    /// What is to come, if the client said it.
    announced: Option<u64>,
    is_received: bool,
    /// Whether it is not of that length: the rest counts for nothing, and the response may still say so.
    is_malformed: bool,
    is_sent: bool,
    reset: Option<Ended>,
    /// Who waits for the body.
    reader: Option<Waker>,
    /// Who waits for room.
    writer: Option<Waker>,
    /// Who waits for the client to give up.
    closers: Vec<Waker>,
    _counted: Counted,
}

impl Entry {
    fn wake_all(&mut self) {
        let waiting = self.reader.take().into_iter().chain(self.writer.take());
        waiting.chain(self.closers.drain(..)).for_each(Waker::wake);
    }
}

#[derive(Debug)]
struct State {
    out: Out,
    /// By number.
    entries: Vec<Entry>,
    recent: VecDeque<(u32, Ended)>,
    /// What may be sent on the connection.
    window: i64,
    /// The window that a stream begins with.
    window_at_first: i64,
    /// What the client may send on the connection.
    room: i64,
    /// What it may send on a stream before that is read.
    room_at_first: i64,
    /// Streams that wait for what they share, in order.
    waiting: VecDeque<u32>,
    /// The highest stream that was begun.
    highest: u32,
    /// The highest one that was not ignored.
    last: u32,
    /// Streams that the client gave up or broke, or that were refused.
    resets: u64,
    /// Bytes of fields and content that were sent.
    useful: u64,
    is_gone: bool,
    /// Whether TLS may hold what it took.
    is_unflushed: bool,
    /// Since when the client has taken nothing of what waits for it.
    stalled: Option<Instant>,
    /// Whether that was too long.
    is_timed_out: bool,
    /// While there is a stream.
    counted: Option<Counted>,
    connection: Option<Waker>,
}

/// The client does not want the stream any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Streams(RefCell<State>);

/// A stream lives as long as this does.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) streams: Rc<Streams>,
    pub(super) id: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.streams.release(self.id);
    }
}

impl State {
    fn entry(&mut self, id: u32) -> Option<&mut Entry> {
        let index = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        Some(&mut self.entries[index])
    }

    /// A stream that may be sent on.
    fn open(&mut self, id: u32) -> Result<&mut Entry, Gone> {
        let is_gone = self.is_gone;
        self.entry(id)
            .filter(|entry| !is_gone && entry.reset.is_none() && !entry.is_sent)
            .ok_or(Gone)
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        io: &Transport,
    ) -> Poll<std::io::Result<()>> {
        if self.out.is_empty() && !self.is_unflushed {
            return Poll::Ready(Ok(()));
        }
        self.is_unflushed = true;
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(b""); 32];
            let count = self.out.slices(&mut slices);
            match ready!(io.poll_write(context, &slices[..count]))? {
                0 => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
                sent => self.out.advance(sent),
            }
            self.stalled = None;
            self.wake_first();
        }
        ready!(io.poll_flush(context))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// A stream whose request may be read from.
    fn open_for_reading(&mut self, id: u32) -> Option<&mut Entry> {
        self.entry(id).filter(|entry| entry.reset.is_none())
    }

    fn wake_connection(&mut self) {
        if let Some(waker) = self.connection.take() {
            waker.wake();
        }
    }

    /// What streams share: the connection's window, and memory.
    fn shared_room(&self) -> i64 {
        let memory = limits::H2_SEND_BYTES.saturating_sub(self.out.waiting());
        self.window.min(i64::try_from(memory).unwrap_or(i64::MAX))
    }

    /// Whoever waits longest for what they share goes on.
    fn wake_first(&mut self) {
        if self.shared_room() <= 0 {
            return;
        }
        if let Some(first) = self.waiting.front().copied() {
            match self.entry(first) {
                Some(entry) => entry.writer.take().into_iter().for_each(Waker::wake),
                None => _ = self.waiting.pop_front(),
            }
        }
    }

    fn leave_queue(&mut self, id: u32) {
        if let Some(place) = self.waiting.iter().position(|waiting| *waiting == id) {
            self.waiting.remove(place);
            self.wake_first();
        }
    }

    /// The frame's stream ends.
    fn reset(&mut self, id: u32, code: Code, by: Ended) {
        if by == Ended::ByServer {
            self.out.reset(id, code);
            self.wake_connection();
        }
        self.leave_queue(id);
        if let Some(entry) = self.entry(id) {
            entry.received = BytesMut::new();
            entry.reset.get_or_insert(by);
            entry.wake_all();
        }
    }

    fn remember(&mut self, id: u32, ended: Ended) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((id, ended));
    }

    /// What a frame means for a stream that is not there.
    fn absent(&self, id: u32) -> Option<Ended> {
        let ended = self.recent.iter().rev().find(|(recent, _)| *recent == id);
        ended.map(|(_, ended)| *ended)
    }

    fn add_window(&mut self, id: u32, more: i64) -> Result<(), Broken> {
        if id == 0 {
            self.window += more;
            if self.window > WINDOW_MAX {
                return Err(too_large_window());
            }
            self.wake_first();
        } else if let Some(entry) = self.entry(id).filter(|entry| entry.reset.is_none()) {
            entry.window += more;
            if entry.window > WINDOW_MAX {
                return Err(Broken::Stream(Code::FLOW_CONTROL_ERROR, TOO_LARGE_WINDOW));
            }
            if entry.window > 0 {
                entry.writer.take().into_iter().for_each(Waker::wake);
            }
        }
        Ok(())
    }
}

/// What is known of a stream that a frame is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Known {
    /// It may begin with this frame.
    New,
    /// Its request is not over.
    Receiving,
    /// What it still receives counts for nothing.
    Ignored,
    /// The client had ended it.
    Closed,
    /// There was a later one before it.
    Skipped,
}

// What the connection's task does; `client.rs` has the rest of it, `answer.rs` what answers a stream does.
impl Streams {
    /// Begins, with what is said to the client first.
    pub(super) fn new(room_at_first: i64, streams_max: u32) -> Self {
        let mut out = Out::default();
        let setting =
            |name: u16, value: u32| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
        let window = u32::try_from(room_at_first).unwrap_or(u32::MAX);
        let settings = [
            setting(setting::MAX_CONCURRENT_STREAMS, streams_max),
            setting(setting::INITIAL_WINDOW_SIZE, window),
        ];
        out.frame(kind::SETTINGS, 0, 0, &settings.concat());
        out.window(0, WINDOW_MAX - WINDOW_BYTES);
        Self(RefCell::new(State {
            out,
            entries: Vec::new(),
            recent: VecDeque::new(),
            window: WINDOW_BYTES,
            window_at_first: WINDOW_BYTES,
            room: WINDOW_MAX,
            room_at_first,
            waiting: VecDeque::new(),
            highest: 0,
            last: 0,
            resets: 0,
            useful: 0,
            is_gone: false,
            is_unflushed: false,
            stalled: None,
            is_timed_out: false,
            counted: None,
            connection: None,
        }))
    }

    /// Streams that are being answered.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().entries.len()
    }

    /// Streams that are open, as the client must see it; one that it has reset is, until nothing is done for it any more.
    pub(super) fn open_count(&self) -> usize {
        let is_over = |entry: &&Entry| entry.is_sent && entry.is_received;
        let state = self.0.borrow();
        state.entries.len() - state.entries.iter().filter(is_over).count()
    }

    /// Bytes of fields and content that were sent.
    pub(super) fn useful(&self) -> u64 {
        self.0.borrow().useful
    }

    /// Whether a stream of this number was never begun.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        id > self.0.borrow().highest
    }

    /// Streams that the client gave up or broke, or that were refused.
    pub(super) fn resets(&self) -> u64 {
        self.0.borrow().resets
    }

    /// Whether the client has to take something before it is read from again.
    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().out.waiting() > 2 * limits::H2_SEND_BYTES
    }

    /// Wakes this task when there is something to send, or a stream has ended.
    pub(super) fn register(&self, context: &Context<'_>) {
        let mut state = self.0.borrow_mut();
        match &mut state.connection {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Wakes no one: the connection's task is at work.
    pub(super) fn unregister(&self) {
        self.0.borrow_mut().connection = None;
    }

    /// Sends what waits, as far as the client takes it; `Ready` when nothing waits.
    pub(super) fn poll_send(
        &self,
        context: &mut Context<'_>,
        io: &Transport,
    ) -> Poll<std::io::Result<()>> {
        let mut state = self.0.borrow_mut();
        let sent = state.poll_send(context, io);
        if sent.is_ready() {
            state.stalled = None;
        } else if state.stalled.is_none() {
            state.stalled = Some(Instant::now());
        }
        sent
    }

    /// Whether something waits to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        let state = self.0.borrow();
        !state.out.is_empty() || state.is_unflushed
    }

    /// Since when the client has taken nothing of what waits for it.
    pub(super) fn stalled(&self) -> Option<Instant> {
        self.0.borrow().stalled
    }

    /// The client has taken nothing for too long.
    pub(super) fn time_out(&self) {
        self.0.borrow_mut().is_timed_out = true;
    }

    pub(super) fn is_timed_out(&self) -> bool {
        self.0.borrow().is_timed_out
    }

    /// Gives memory back while nothing happens.
    pub(super) fn rest(&self) {
        self.0.borrow_mut().out.rest();
    }

    /// What is known of the stream of a HEADERS frame.
    pub(super) fn known(&self, id: u32) -> Known {
        let mut state = self.0.borrow_mut();
        let highest = state.highest;
        match state.entry(id) {
            Some(entry) => match entry.reset {
                Some(Ended::ByServer) => Known::Ignored,
                Some(_) => Known::Closed,
                None if entry.is_received => Known::Closed,
                None => Known::Receiving,
            },
            None if id > highest => Known::New,
            None => match state.absent(id) {
                Some(Ended::ByServer) => Known::Ignored,
                Some(_) => Known::Closed,
                None => Known::Skipped,
            },
        }
    }

    /// A stream is begun, and may be answered.
    pub(super) fn note(&self, id: u32) {
        let mut state = self.0.borrow_mut();
        (state.highest, state.last) = (id, id);
    }

    /// A stream is begun that the client was told will not be answered: what belongs to it counts for nothing.
    pub(super) fn ignore(&self, id: u32) {
        let mut state = self.0.borrow_mut();
        state.highest = id;
        state.remember(id, Ended::ByServer);
    }

    /// Begins a stream whose request has a head; `announced`: the length of its body.
    pub(super) fn begin(
        self: &Rc<Self>,
        id: u32,
        is_received: bool,
        announced: Option<u64>,
    ) -> Handle {
        let mut state = self.0.borrow_mut();
        let (window, room) = (state.window_at_first, state.room_at_first);
        if state.entries.is_empty() {
            state.counted = Some(Counted::of(Present::WithStreams));
        }
        state.entries.push(Entry {
            id,
            window,
            room,
            due: 0,
            received: BytesMut::new(),
            announced,
            is_received,
            is_malformed: false,
            is_sent: false,
            reset: None,
            reader: None,
            writer: None,
            closers: Vec::new(),
            _counted: Counted::of(Present::Streams),
        });
        Handle { streams: Rc::clone(self), id }
    }

    fn release(&self, id: u32) {
        let mut state = self.0.borrow_mut();
        let Ok(index) = state.entries.binary_search_by_key(&id, |entry| entry.id) else { return };
        let entry = state.entries.remove(index);
        let ended = match entry.reset {
            Some(ended) => ended,
            None if entry.is_malformed => {
                state.resets += 1;
                state.out.reset(id, Code::PROTOCOL_ERROR);
                Ended::ByServer
            }
            None if entry.is_sent && entry.is_received => Ended::Whole,
            None => {
                let code = if entry.is_sent { Code::NO_ERROR } else { Code::INTERNAL_ERROR };
                state.out.reset(id, code);
                Ended::ByServer
            }
        };
        state.leave_queue(id);
        state.remember(id, ended);
        if state.entries.is_empty() {
            state.counted = None;
        }
        state.wake_connection();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn streams() -> Rc<Streams> {
        Rc::new(Streams::new(65_536, 128))
    }

    fn begin(streams: &Rc<Streams>, id: u32) -> Handle {
        streams.note(id);
        streams.begin(id, true, None)
    }

    fn room(streams: &Streams, id: u32) -> Option<usize> {
        match streams.poll_room(id, &Context::from_waker(Waker::noop())) {
            Poll::Ready(room) => Some(room.unwrap_or(0)),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_belongs_to_a_stream_behind_the_last_one_is_no_error() {
        let streams = streams();
        let _first = begin(&streams, 1);
        streams.ignore(5);
        assert_eq!(streams.data(5, b"body", 4, true), Ok(()));
        assert_eq!(streams.widen(5, 7), Ok(()));
        assert_eq!(streams.give_up(5, Code::CANCEL), Ok(()));
        assert_eq!(streams.known(5), Known::Ignored);
        assert!(matches!(streams.data(7, b"", 0, true), Err(Broken::Connection(..))));
        assert_eq!(streams.0.borrow().last, 1, "what GOAWAY names");
    }

    #[test]
    fn streams_that_wait_for_the_connection_are_served_in_turn() {
        let streams = streams();
        let _all: Vec<Handle> = [1, 3, 5].map(|id| begin(&streams, id)).into();
        // All that the connection's window has.
        assert_eq!(streams.send_data(1, vec![0; 65_535].into(), 16_384, false).ok(), Some(4));
        assert_eq!([3, 5].map(|id| room(&streams, id)), [None, None]);
        streams.widen(0, 10).unwrap();
        assert_eq!(room(&streams, 5), None, "3 came first");
        assert_eq!(room(&streams, 3), Some(10));
        assert_eq!(streams.send_data(3, vec![0; 10].into(), 16_384, false).ok(), Some(1));
        streams.widen(0, 5).unwrap();
        streams.send_reset(5, Code::CANCEL);
        assert_eq!(room(&streams, 3), Some(5));
        assert!(matches!(
            streams.poll_room(5, &Context::from_waker(Waker::noop())),
            Poll::Ready(Err(_))
        ));
    }

    #[test]
    fn windows_that_settings_take_back_come_again() {
        let streams = streams();
        let _one = begin(&streams, 1);
        let window = |bytes: u32| [&4u16.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
        streams.send_data(1, vec![0; 1000].into(), 16_384, false).unwrap();
        // The last one counts; every one is judged.
        streams.set(&[window(70_000), window(500)].concat()).unwrap();
        assert_eq!((streams.room(1), room(&streams, 1)), (0, None));
        streams.widen(1, 501).unwrap();
        assert_eq!(room(&streams, 1), Some(1));
        assert!(streams.set(&[window(1 << 31), window(0)].concat()).is_err());
    }

    #[test]
    fn what_is_remembered_of_streams_has_a_bound_and_refusals_count() {
        let streams = streams();
        for number in 0..1000 {
            streams.note(2 * number + 1);
            streams.refuse(2 * number + 1);
        }
        assert_eq!(streams.0.borrow().recent.len(), RECENT_MAX);
        assert_eq!(streams.resets(), 1000);
        assert_eq!(streams.known(1999), Known::Ignored);
    }

    #[test]
    fn a_stream_that_both_sides_ended_is_not_open() {
        let streams = streams();
        streams.note(1);
        let handle = streams.begin(1, false, Some(4));
        streams.send_fields(1, Some(200), true, |_| {}).unwrap();
        assert_eq!((streams.count(), streams.open_count()), (1, 1));
        let context = Context::from_waker(Waker::noop());
        assert_eq!(streams.poll_received(1, &context), Poll::Pending);
        streams.data(1, b"body", 4, true).unwrap();
        assert_eq!(streams.poll_received(1, &context), Poll::Ready(()));
        assert_eq!((streams.count(), streams.open_count()), (1, 0));
        drop(handle);
        assert_eq!((streams.count(), streams.known(1)), (0, Known::Closed));
    }
}
