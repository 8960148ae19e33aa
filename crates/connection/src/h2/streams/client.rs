//! What a client sends, as far as its streams are concerned.

use super::broken::{idle, other_length, too_large_window};
use super::{Ended, Entry, Streams};
use std::task::Waker;
use yorozu_wire::h2::frame::{self, Broken, Code, STREAM_MAX, WINDOW_MAX, flag, kind, setting};

/// What the PING behind the first GOAWAY says.
pub(in crate::h2) const FAREWELL: [u8; 8] = *b"farewell";

impl Streams {
    /// A piece of a body; `bytes`: what it counts, with its padding.
    ///
    /// # Errors
    /// [`Broken`]
    pub(in crate::h2) fn data(
        &self,
        id: u32,
        content: &[u8],
        bytes: usize,
        is_last: bool,
    ) -> Result<(), Broken> {
        let mut state = self.0.borrow_mut();
        let text = "client violated flow control: too much data";
        let counts = i64::try_from(bytes).unwrap_or(i64::MAX);
        state.room -= counts;
        if state.room < 0 {
            return Err(Broken::Connection(Code::FLOW_CONTROL_ERROR, text));
        }
        if state.room < WINDOW_MAX / 2 {
            let more = WINDOW_MAX - state.room;
            state.out.window(0, more);
            state.room = WINDOW_MAX;
        }
        let highest = state.highest;
        let Some(entry) = state.entry(id) else {
            return match state.absent(id) {
                _ if id > highest => Err(idle("DATA")),
                Some(Ended::ByServer) => Ok(()),
                _ => Err(Broken::Stream(Code::STREAM_CLOSED, "DATA frame for a closed stream")),
            };
        };
        match entry.reset {
            Some(Ended::ByServer) => return Ok(()),
            None if entry.is_malformed => return Ok(()),
            None if !entry.is_received => {}
            _ => return Err(Broken::Stream(Code::STREAM_CLOSED, "DATA frame for a closed stream")),
        }
        entry.room -= counts;
        if entry.room < 0 {
            return Err(Broken::Stream(Code::FLOW_CONTROL_ERROR, text));
        }
        entry.due += counts - i64::try_from(content.len()).unwrap_or(0);
        entry.received.extend_from_slice(content);
        if let Some(left) = &mut entry.announced {
            let Some(rest) = left.checked_sub(content.len() as u64) else {
                return malformed(entry);
            };
            *left = rest;
        }
        if is_last {
            return ended(entry);
        }
        if let Some(reader) = entry.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    /// The request is over, with fields behind its body.
    ///
    /// # Errors
    /// [`Broken`], if the body is shorter than it should be.
    pub(in crate::h2) fn end(&self, id: u32) -> Result<(), Broken> {
        self.0.borrow_mut().entry(id).map_or(Ok(()), ended)
    }

    /// The client gives a stream up.
    ///
    /// # Errors
    /// [`Broken`], if there never was one.
    pub(in crate::h2) fn give_up(&self, id: u32, code: Code) -> Result<(), Broken> {
        let mut state = self.0.borrow_mut();
        if id > state.highest {
            return Err(idle("RST_STREAM"));
        }
        if state.entry(id).is_some_and(|entry| entry.reset.is_none()) {
            state.resets += 1;
            state.reset(id, code, Ended::ByClient);
        }
        Ok(())
    }

    /// Ends a stream that breaks the rules.
    pub(in crate::h2) fn break_off(&self, id: u32, code: Code) {
        let mut state = self.0.borrow_mut();
        state.resets += 1;
        state.reset(id, code, Ended::ByServer);
    }

    /// A stream is not answered now.
    pub(in crate::h2) fn refuse(&self, id: u32) {
        let mut state = self.0.borrow_mut();
        state.out.reset(id, Code::REFUSED_STREAM);
        state.resets += 1;
        state.remember(id, Ended::ByServer);
    }

    /// The client takes more.
    ///
    /// # Errors
    /// [`Broken`]
    pub(in crate::h2) fn widen(&self, id: u32, more: u32) -> Result<(), Broken> {
        let mut state = self.0.borrow_mut();
        if id > state.highest {
            return Err(idle("WINDOW_UPDATE"));
        }
        state.add_window(id, i64::from(more))
    }

    /// Takes the client's settings over, and says so.
    ///
    /// # Errors
    /// [`Broken`]
    pub(in crate::h2) fn set(&self, payload: &[u8]) -> Result<(), Broken> {
        let mut state = self.0.borrow_mut();
        let mut window = state.window_at_first;
        for pair in frame::settings(payload) {
            // Frames are no longer than what everyone takes, and nothing is kept of fields that were sent.
            if let (setting::INITIAL_WINDOW_SIZE, value) = pair? {
                window = i64::from(value);
            }
        }
        let more = window - state.window_at_first;
        state.window_at_first = window;
        for entry in state.entries.iter_mut().filter(|_| more != 0) {
            entry.window += more;
            if entry.window > WINDOW_MAX {
                return Err(too_large_window());
            }
            if entry.window > 0 {
                entry.writer.take().into_iter().for_each(Waker::wake);
            }
        }
        state.out.frame(kind::SETTINGS, flag::ACK, 0, b"");
        Ok(())
    }

    pub(in crate::h2) fn pong(&self, content: [u8; 8]) {
        self.0.borrow_mut().out.frame(kind::PING, flag::ACK, 0, &content);
    }

    /// Says that no stream above the last one will be answered, once the client has heard of it: it answers the PING
    /// (RFC 9113, section 6.8).
    pub(in crate::h2) fn announce_end(&self) {
        let mut state = self.0.borrow_mut();
        state.out.go_away(STREAM_MAX, Code::NO_ERROR);
        state.out.frame(kind::PING, 0, 0, &FAREWELL);
    }

    /// Says that no stream above the last one will be answered.
    pub(in crate::h2) fn go_away(&self, code: Code) {
        let mut state = self.0.borrow_mut();
        let last = state.last;
        state.out.go_away(last, code);
    }

    /// The connection is over: so is everything that waits for it.
    pub(in crate::h2) fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.is_gone = true;
        for entry in &mut state.entries {
            entry.reset.get_or_insert(Ended::ByClient);
            entry.wake_all();
        }
    }
}

fn ended(entry: &mut Entry) -> Result<(), Broken> {
    entry.is_received = true;
    if entry.announced.is_some_and(|left| left > 0) {
        return malformed(entry);
    }
    if let Some(reader) = entry.reader.take() {
        reader.wake();
    }
    Ok(())
}

/// The content has another length than the client said: who reads it is told, and a stream that has its response ends.
fn malformed(entry: &mut Entry) -> Result<(), Broken> {
    entry.is_malformed = true;
    entry.reader.take().into_iter().for_each(Waker::wake);
    if entry.is_sent { Err(other_length()) } else { Ok(()) }
}
