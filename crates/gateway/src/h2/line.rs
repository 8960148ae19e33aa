//! A connection to an upstream: what both sides said of it, and what of ours is to be said next.

use crate::protocol::call::Outgoing;
use bytes::Bytes;
use std::cell::RefCell;
use tokio::sync::Notify;
use yorozu_kernel::exchange::engine::Later;
use yorozu_wire::h2::frame::{
    self, Head, PAYLOAD_BYTES, PREFACE, STREAM_MAX, WINDOW_BYTES, WINDOW_MAX, flag, kind, setting,
};
use yorozu_wire::h2::hpack::{Decoder, NO_TABLE, Stop};

/// Frames that bring neither content nor a head, one behind another; nginx's bound of pings and of settings.
const IDLE_FRAMES_MAX: u32 = 1000;
/// What may wait to be said, in bytes: a peer that asks much and reads nothing is left. Chosen: more than
/// [`IDLE_FRAMES_MAX`] answers.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// A window of ours that is smaller is opened again.
const WINDOW_LOW: i64 = WINDOW_MAX / 4;

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Line {
    state: RefCell<State>,
    /// There is more room, or something to say.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    decoder: Decoder,
    /// The stream of the request under way; 0 before the first.
    stream: u32,
    /// How much the peer takes: of the connection, of this stream, of a stream that begins.
    room: i64,
    stream_room: i64,
    initial_room: i64,
    /// Longest payload that it takes.
    payload_bytes_max: usize,
    /// How much it may send us: of the connection, of this stream.
    window: i64,
    stream_window: i64,
    /// It takes no further streams, or did what only ends with the connection.
    is_leaving: bool,
    /// Frames that wait to be sent.
    output: Vec<u8>,
    idle_frames: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            decoder: Decoder::default(),
            stream: 0,
            room: WINDOW_BYTES,
            stream_room: WINDOW_BYTES,
            initial_room: WINDOW_BYTES,
            payload_bytes_max: PAYLOAD_BYTES,
            window: WINDOW_MAX,
            stream_window: WINDOW_MAX,
            is_leaving: false,
            output: Vec::new(),
            idle_frames: 0,
        }
    }
}

impl State {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.stream == 0 {
            out.extend_from_slice(PREFACE);
            let [a, b, c, d] = u32::try_from(WINDOW_MAX).expect("31 bits").to_be_bytes();
            let [_, push] = setting::ENABLE_PUSH.to_be_bytes();
            let [_, window] = setting::INITIAL_WINDOW_SIZE.to_be_bytes();
            let settings = [0, push, 0, 0, 0, 0, 0, window, a, b, c, d];
            frame::write(out, kind::SETTINGS, 0, 0, &settings);
            widen(out, 0, WINDOW_MAX - WINDOW_BYTES);
            self.stream = 1;
        } else {
            out.append(&mut self.output);
            self.stream += 2;
        }
        self.stream_room = self.initial_room;
        self.stream_window = WINDOW_MAX;
        self.idle_frames = 0;
    }

    fn room(&self) -> usize {
        usize::try_from(self.room.min(self.stream_room)).unwrap_or(0)
    }

    /// How long the next frame of content may be.
    fn piece_bytes(&self) -> usize {
        self.room().min(self.payload_bytes_max)
    }

    fn put_data(&mut self, bytes: usize, is_last: bool, out: &mut Vec<u8>) {
        let count = i64::try_from(bytes).expect("a frame's length");
        self.room -= count;
        self.stream_room -= count;
        self.idle_frames = 0;
        let flags = if is_last { flag::END_STREAM } else { 0 };
        let head = Head { length: bytes, kind: kind::DATA, flags, stream: self.stream };
        out.extend_from_slice(&head.bytes());
    }
}

/// Gives the peer room.
fn widen(out: &mut Vec<u8>, stream: u32, more: i64) {
    let more = u32::try_from(more).expect("windows have 31 bits");
    frame::write(out, kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes());
}

/// What the peer did wrong, in nginx's words.
pub(super) type Broken = String;

impl Line {
    /// Writes the fields of a request that begins now; before those of the first, what a connection begins with.
    pub(super) fn begin(&self, block: &[u8], is_all: bool, out: &mut Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let is_first = state.stream == 0;
        state.begin(out);
        let mut block = Bytes::copy_from_slice(block);
        if is_first {
            block = [&[NO_TABLE], &block[..]].concat().into();
        }
        let mut kind = kind::HEADERS;
        let mut flags = if is_all { flag::END_STREAM } else { 0 };
        loop {
            let part = block.split_to(block.len().min(state.payload_bytes_max));
            if block.is_empty() {
                flags |= flag::END_HEADERS;
            }
            frame::write(out, kind, flags, state.stream, &part);
            if block.is_empty() {
                return;
            }
            (kind, flags) = (kind::CONTINUATION, 0);
        }
    }

    /// Writes as much of the content as there is room for.
    pub(super) fn put_content(&self, content: &mut Bytes, is_whole: bool, out: &mut Vec<u8>) {
        let mut state = self.state.borrow_mut();
        while !content.is_empty() && state.piece_bytes() > 0 {
            let piece = content.split_to(content.len().min(state.piece_bytes()));
            state.put_data(piece.len(), is_whole && content.is_empty(), out);
            out.extend_from_slice(&piece);
        }
    }

    /// The stream of the request under way.
    pub(super) fn stream(&self) -> u32 {
        self.state.borrow().stream
    }

    /// Whether another request can follow.
    pub(super) fn is_reusable(&self) -> bool {
        let state = self.state.borrow();
        !state.is_leaving && state.stream < STREAM_MAX - 2
    }

    /// No other request can follow.
    pub(super) fn leave(&self) {
        self.state.borrow_mut().is_leaving = true;
    }

    /// Gives the fields of a block to `put`.
    pub(super) fn decode(
        &self,
        block: &[u8],
        put: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        self.state.borrow_mut().decoder.decode(block, put)
    }

    /// Something came that the request waits for.
    pub(super) fn progress(&self) {
        self.state.borrow_mut().idle_frames = 0;
    }

    /// Counts a frame that brought nothing.
    pub(super) fn idle(&self, what: &str) -> Result<(), Broken> {
        let mut state = self.state.borrow_mut();
        state.idle_frames += 1;
        match state.idle_frames > IDLE_FRAMES_MAX || state.output.len() > OUTPUT_BYTES_MAX {
            true => Err(format!("upstream sent too many {what} frames")),
            false => Ok(()),
        }
    }

    fn say(&self, put: impl FnOnce(&mut State)) {
        put(&mut self.state.borrow_mut());
        self.changed.notify_one();
    }

    /// The peer's settings.
    pub(super) fn set(&self, payload: &[u8]) -> Result<(), Broken> {
        let mut state = self.state.borrow_mut();
        for pair in frame::settings(payload) {
            let pair = pair.map_err(|broken| format!("upstream sent settings frame with {broken}"));
            match pair? {
                (setting::INITIAL_WINDOW_SIZE, value) => {
                    let value = i64::from(value);
                    state.stream_room += value - state.initial_room;
                    state.initial_room = value;
                    if state.stream_room > WINDOW_MAX {
                        return Err("upstream sent too large initial window".to_owned());
                    }
                }
                (setting::MAX_FRAME_SIZE, value) => {
                    // Longer ones would only have to be gathered.
                    state.payload_bytes_max = PAYLOAD_BYTES.min(value as usize);
                }
                _ => {}
            }
        }
        frame::write(&mut state.output, kind::SETTINGS, flag::ACK, 0, &[]);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The peer asks whether the connection is alive.
    pub(super) fn pong(&self, content: &[u8]) {
        self.say(|state| frame::write(&mut state.output, kind::PING, flag::ACK, 0, content));
    }

    /// The peer has room for more.
    pub(super) fn widen(&self, stream: u32, more: u32) -> Result<(), Broken> {
        let mut state = self.state.borrow_mut();
        let room = if stream == 0 { &mut state.room } else { &mut state.stream_room };
        *room += i64::from(more);
        if *room > WINDOW_MAX {
            return Err("upstream sent too large window update".to_owned());
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes a frame of content, with its padding, off our windows, and opens them again.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Broken> {
        let mut state = self.state.borrow_mut();
        let State { window, stream_window, output, stream, .. } = &mut *state;
        let count = i64::try_from(bytes).expect("a frame's length");
        let mut is_said = false;
        for (window, stream, what) in
            [(stream_window, *stream, "stream"), (window, 0, "connection")]
        {
            if count > *window {
                return Err(format!(
                    "upstream violated {what} flow control, received {bytes} data frame with window {window}"
                ));
            }
            *window -= count;
            if *window < WINDOW_LOW {
                widen(output, stream, WINDOW_MAX - *window);
                *window = WINDOW_MAX;
                is_said = true;
            }
        }
        drop(state);
        if is_said {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// What is to be said now.
    pub(super) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.borrow_mut().output)
    }
}

impl Outgoing for Line {
    fn room(&self) -> usize {
        self.state.borrow().room()
    }

    fn put(&self, pieces: &mut Vec<Bytes>, is_last: bool, out: &mut Vec<Bytes>) {
        let mut state = self.state.borrow_mut();
        let mut rest = std::mem::take(pieces).into_iter().peekable();
        while let Some(mut piece) = rest.next() {
            while !piece.is_empty() && state.piece_bytes() > 0 {
                let part = piece.split_to(piece.len().min(state.piece_bytes()));
                let mut head = Vec::with_capacity(frame::HEAD_BYTES);
                let ends = is_last && piece.is_empty() && rest.peek().is_none();
                state.put_data(part.len(), ends, &mut head);
                out.extend([head.into(), part]);
            }
            if !piece.is_empty() {
                pieces.push(piece);
                break;
            }
        }
        pieces.extend(rest);
    }

    fn end(&self, out: &mut Vec<u8>) {
        self.state.borrow_mut().put_data(0, true, out);
    }

    fn take_output(&self) -> Vec<u8> {
        Self::take_output(self)
    }

    fn changed(&self) -> Later<'_, ()> {
        Box::pin(self.changed.notified())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds, flags, streams and lengths of frames.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, usize)> {
        let mut found = Vec::new();
        while let Some(head) = Head::read(bytes) {
            found.push((head.kind, head.flags, head.stream, head.length));
            bytes = &bytes[frame::HEAD_BYTES + head.length..];
        }
        assert!(bytes.is_empty());
        found
    }

    fn put(line: &Line, content: &[usize], is_last: bool) -> (Vec<(u8, u8, u32, usize)>, usize) {
        let mut pieces: Vec<Bytes> = content.iter().map(|bytes| vec![0; *bytes].into()).collect();
        let mut out = Vec::new();
        line.put(&mut pieces, is_last, &mut out);
        (frames(&out.concat()), pieces.iter().map(Bytes::len).sum())
    }

    #[test]
    fn a_connection_begins_once_and_its_streams_count_up() {
        let (line, mut out) = (Line::default(), Vec::new());
        line.begin(b"block", true, &mut out);
        let rest = out.strip_prefix(PREFACE).unwrap();
        let all = flag::END_HEADERS | flag::END_STREAM;
        let expected = [
            (kind::SETTINGS, 0, 0, 12),
            (kind::WINDOW_UPDATE, 0, 0, 4),
            (kind::HEADERS, all, 1, 6),
        ];
        assert_eq!(frames(rest), expected);
        out.clear();
        line.pong(&[0; 8]);
        line.begin(&[0; 40_000], false, &mut out);
        let expected = [
            (kind::PING, flag::ACK, 0, 8),
            (kind::HEADERS, 0, 3, 16_384),
            (kind::CONTINUATION, 0, 3, 16_384),
            (kind::CONTINUATION, flag::END_HEADERS, 3, 7232),
        ];
        assert_eq!(frames(&out), expected);
    }

    #[test]
    fn no_more_is_sent_than_the_peer_takes() {
        let line = Line::default();
        line.begin(b"", false, &mut Vec::new());
        let data = |bytes, flags| (kind::DATA, flags, 1, bytes);
        let full = [data(16_384, 0), data(16_384, 0), data(16_384, 0), data(16_383, 0)];
        assert_eq!(put(&line, &[70_000], true), (full.to_vec(), 70_000 - 65_535));
        assert_eq!((line.room(), put(&line, &[1], true)), (0, (vec![], 1)));
        line.widen(1, 10).unwrap();
        assert_eq!(line.room(), 0, "the connection has none");
        line.widen(0, 7).unwrap();
        let expected = (vec![data(3, 0), data(4, 0)], 2);
        assert_eq!(put(&line, &[3, 6], true), expected);
        line.widen(0, 2).unwrap();
        assert_eq!(put(&line, &[2], true), (vec![data(2, flag::END_STREAM)], 0));
    }

    #[test]
    fn settings_change_the_window_of_a_stream_that_is_open() {
        let line = Line::default();
        line.begin(b"", false, &mut Vec::new());
        line.set(&[0, 4, 0, 0, 0, 5, 0, 5, 0, 0, 64, 0]).unwrap();
        assert_eq!(line.room(), 5);
        put(&line, &[5], false);
        line.set(&[0, 4, 0, 0, 0, 3]).unwrap();
        assert_eq!(line.room(), 0, "two less than none");
        line.widen(1, 3).unwrap();
        assert_eq!(line.room(), 1);
        line.begin(b"", false, &mut Vec::new());
        assert_eq!(line.room(), 3);
    }
}
