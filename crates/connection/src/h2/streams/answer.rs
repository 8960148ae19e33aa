//! What answers a stream, as far as its connection is concerned: room, frames, and the body of its request.

use super::{Ended, Gone, Handle, Streams};
use crate::h2::out::Fields;
use bytes::Bytes;
use std::rc::Rc;
use std::task::{Context, Poll};
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::source::{Frames, Lost};
use yorozu_wire::h2::frame::{self, Code};

/// What a client may send of a body that is read, in bytes; chosen, as the default of `http2_body_preread_size`.
const READING_BYTES: i64 = 64 * 1024;

impl Streams {
    /// Sends a block of fields; the bytes of its frames.
    ///
    /// # Errors
    /// [`Gone`]
    pub(in crate::h2) fn send_fields(
        &self,
        id: u32,
        status: Option<u16>,
        is_last: bool,
        write: impl FnOnce(&mut Fields<'_>),
    ) -> Result<usize, Gone> {
        let mut state = self.0.borrow_mut();
        state.open(id)?.is_sent = is_last;
        let before = state.out.waiting();
        state.out.fields(id, status, is_last, frame::PAYLOAD_BYTES, write);
        let bytes = state.out.waiting() - before;
        state.useful += bytes as u64;
        state.wake_connection();
        Ok(bytes)
    }

    /// How much of a body may be sent without waiting.
    pub(in crate::h2) fn room(&self, id: u32) -> usize {
        let mut state = self.0.borrow_mut();
        let shared = if state.waiting.is_empty() { state.shared_room() } else { 0 };
        let own = state.open(id).map_or(0, |entry| entry.window);
        usize::try_from(own.min(shared)).unwrap_or(0)
    }

    /// Waits for room; those that wait for the same are served in turn.
    ///
    /// # Errors
    /// [`Gone`]
    pub(in crate::h2) fn poll_room(
        &self,
        id: u32,
        context: &Context<'_>,
    ) -> Poll<Result<usize, Gone>> {
        let mut state = self.0.borrow_mut();
        let shared = state.shared_room();
        let own = match state.open(id) {
            Ok(entry) => entry.window,
            Err(gone) => return Poll::Ready(Err(gone)),
        };
        let is_next = state.waiting.front().is_none_or(|first| *first == id);
        if own > 0 && shared > 0 && is_next {
            state.waiting.pop_front();
            // The next one, when this one has taken its part.
            state.wake_first();
            return Poll::Ready(Ok(usize::try_from(own.min(shared)).unwrap_or(0)));
        }
        if own <= 0 {
            state.leave_queue(id);
        } else if !state.waiting.contains(&id) {
            state.waiting.push_back(id);
            state.wake_first();
        }
        if let Some(entry) = state.entry(id) {
            entry.writer = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Sends a piece of a body, no longer than there is room, in as many frames as it needs.
    ///
    /// # Errors
    /// [`Gone`]
    pub(in crate::h2) fn send_data(
        &self,
        id: u32,
        mut bytes: Bytes,
        frame_bytes: usize,
        is_last: bool,
    ) -> Result<usize, Gone> {
        let mut state = self.0.borrow_mut();
        let counts = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let frame_bytes = frame_bytes.min(frame::PAYLOAD_BYTES);
        let entry = state.open(id)?;
        (entry.window, entry.is_sent) = (entry.window - counts, is_last);
        state.window -= counts;
        state.useful += counts.unsigned_abs();
        let mut frames = 0;
        while frames == 0 || !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(frame_bytes));
            state.out.data(id, piece, is_last && bytes.is_empty());
            frames += 1;
        }
        state.wake_connection();
        Ok(frames)
    }

    /// Whether what waits for the client is as much as may wait.
    pub(in crate::h2) fn is_busy(&self) -> bool {
        self.0.borrow().out.waiting() >= limits::H2_SEND_BYTES
    }

    /// Ready when the client has sent all of a request that counts, or given it up.
    pub(in crate::h2) fn poll_received(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        match state.open_for_reading(id) {
            Some(entry) if !entry.is_received && !entry.is_malformed => {
                entry.reader = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Ends a stream before its end.
    pub(in crate::h2) fn send_reset(&self, id: u32, code: Code) {
        let mut state = self.0.borrow_mut();
        if state.entry(id).is_some_and(|entry| entry.reset.is_none()) {
            state.reset(id, code, Ended::ByServer);
        }
    }

    /// Ready when the stream is over without its response.
    pub(in crate::h2) fn poll_reset(&self, id: u32, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        let Some(entry) = state.entry(id).filter(|entry| entry.reset.is_none()) else {
            return Poll::Ready(());
        };
        if !entry.closers.iter().any(|waker| waker.will_wake(context.waker())) {
            entry.closers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// The body of a stream's request.
#[derive(Debug)]
pub(in crate::h2) struct Body(pub(in crate::h2) Rc<Handle>);

impl Frames for Body {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        let mut state = self.0.streams.0.borrow_mut();
        let wanted = state.room_at_first.max(READING_BYTES);
        let id = self.0.id;
        let Some(entry) = state.open_for_reading(id) else {
            return Poll::Ready(Some(Err(Lost::Reset)));
        };
        if entry.is_malformed {
            return Poll::Ready(Some(Err(Lost::Malformed)));
        }
        let piece = entry.received.split().freeze();
        entry.due += i64::try_from(piece.len()).unwrap_or(0);
        if !entry.is_received {
            // One that was not read from before may have been given less.
            let more = entry.due.max(wanted - entry.room);
            if more >= wanted / 2 {
                (entry.room, entry.due) = (entry.room + more, 0);
                state.out.window(id, more);
                state.wake_connection();
            }
        }
        let entry = state.entry(id).expect("just found");
        if !piece.is_empty() {
            return Poll::Ready(Some(Ok(piece)));
        }
        if entry.is_received {
            return Poll::Ready(None);
        }
        entry.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let mut state = self.0.streams.0.borrow_mut();
        state.entry(self.0.id).is_none_or(|entry| entry.is_received && entry.received.is_empty())
    }
}
