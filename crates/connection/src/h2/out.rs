//! What waits to be sent: frames, in order, without a copy of long payloads.

use crate::fields::may_send;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;
use yorozu_http::field;
use yorozu_wire::h2::frame::{self, Code, Head, flag, kind};
use yorozu_wire::h2::hpack;

/// A shorter payload is copied, in bytes; chosen.
const COPIED_BYTES: usize = 512;
/// What was sent is forgotten from here on, in bytes; chosen.
const SENT_BYTES: usize = 64 * 1024;

/// Frames to be sent.
#[derive(Debug, Default)]
pub(super) struct Out {
    /// Heads of frames, and payloads that are short.
    text: Vec<u8>,
    /// Payloads that are long, and the place in the text each goes before.
    long: VecDeque<(usize, Bytes)>,
    /// How much of the text is sent.
    sent: usize,
    /// Bytes that wait.
    waiting: usize,
    /// Whether a block of fields was written: the first one says that the encoder has no table.
    has_fields: bool,
}

/// A block of fields that is being written.
pub(super) struct Fields<'a> {
    out: &'a mut Vec<u8>,
}

impl Fields<'_> {
    /// Appends a field, if HTTP/2 has it (RFC 9113, section 8.2.2).
    pub(super) fn put(&mut self, name: &[u8], value: &[u8]) {
        if may_send(name) {
            hpack::put_field(self.out, name, &field::Value::new(value));
        }
    }
}

impl Out {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Appends a frame.
    pub(super) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.waiting += frame::HEAD_BYTES + payload.len();
        frame::write(&mut self.text, kind, flags, stream, payload);
    }

    pub(super) fn reset(&mut self, stream: u32, code: Code) {
        self.frame(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes());
    }

    pub(super) fn go_away(&mut self, last: u32, code: Code) {
        self.frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.0.to_be_bytes()].concat());
    }

    pub(super) fn window(&mut self, stream: u32, room: i64) {
        let room = u32::try_from(room).unwrap_or_default();
        self.frame(kind::WINDOW_UPDATE, 0, stream, &room.to_be_bytes());
    }

    /// Appends a frame of a body, no longer than the client takes.
    pub(super) fn data(&mut self, stream: u32, payload: Bytes, is_last: bool) {
        let flags = if is_last { flag::END_STREAM } else { 0 };
        let head = Head { length: payload.len(), kind: kind::DATA, flags, stream };
        self.text.extend_from_slice(&head.bytes());
        self.waiting += frame::HEAD_BYTES + payload.len();
        if payload.len() < COPIED_BYTES {
            self.text.extend_from_slice(&payload);
        } else {
            self.long.push_back((self.text.len(), payload));
        }
    }

    /// Appends a block of fields, in frames of at most `frame_bytes`.
    pub(super) fn fields(
        &mut self,
        stream: u32,
        status: Option<u16>,
        is_last: bool,
        frame_bytes: usize,
        write: impl FnOnce(&mut Fields<'_>),
    ) {
        let start = self.text.len();
        let block = start + frame::HEAD_BYTES;
        self.text.resize(block, 0);
        if !std::mem::replace(&mut self.has_fields, true) {
            self.text.push(hpack::NO_TABLE);
        }
        if let Some(status) = status {
            hpack::put_status(&mut self.text, status);
        }
        write(&mut Fields { out: &mut self.text });
        let length = self.text.len() - block;
        let last = if is_last { flag::END_STREAM } else { 0 };
        if length <= frame_bytes {
            let flags = last | flag::END_HEADERS;
            let head = Head { length, kind: kind::HEADERS, flags, stream };
            self.text[start..block].copy_from_slice(&head.bytes());
            self.waiting += frame::HEAD_BYTES + length;
        } else {
            let rest = self.text.split_off(block);
            self.text.truncate(start);
            self.in_parts(stream, last, &rest, frame_bytes);
        }
    }

    fn in_parts(&mut self, stream: u32, last: u8, block: &[u8], frame_bytes: usize) {
        let count = block.len().div_ceil(frame_bytes);
        for (index, part) in block.chunks(frame_bytes).enumerate() {
            let (kind, mut flags) =
                if index == 0 { (kind::HEADERS, last) } else { (kind::CONTINUATION, 0) };
            if index + 1 == count {
                flags |= flag::END_HEADERS;
            }
            self.frame(kind, flags, stream, part);
        }
    }

    /// The first of what waits; how many slices that fills.
    pub(super) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let (mut at, mut count) = (self.sent, 0);
        let mut put = |bytes: &'a [u8]| {
            if !bytes.is_empty() && count < into.len() {
                into[count] = IoSlice::new(bytes);
                count += 1;
            }
        };
        for (place, payload) in &self.long {
            put(&self.text[at..*place]);
            put(payload);
            at = *place;
        }
        put(&self.text[at..]);
        count
    }

    /// This many bytes were sent.
    pub(super) fn advance(&mut self, mut count: usize) {
        self.waiting -= count;
        while count > 0 {
            let place = self.long.front().map_or(self.text.len(), |(place, _)| *place);
            let text = count.min(place - self.sent);
            (self.sent, count) = (self.sent + text, count - text);
            if let Some((_, payload)) = self.long.front_mut() {
                let part = count.min(payload.len());
                bytes::Buf::advance(payload, part);
                count -= part;
                if payload.is_empty() {
                    self.long.pop_front();
                }
            }
        }
        if self.waiting == 0 {
            self.text.clear();
            self.sent = 0;
        } else if self.sent >= SENT_BYTES {
            self.text.drain(..self.sent);
            self.long.iter_mut().for_each(|(place, _)| *place -= self.sent);
            self.sent = 0;
        }
    }

    /// Gives memory back that nothing waits in.
    pub(super) fn rest(&mut self) {
        if self.is_empty() {
            (self.text, self.long) = (Vec::new(), VecDeque::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(out: &mut Out, steps: impl Iterator<Item = usize>) -> Vec<u8> {
        let mut sent = Vec::new();
        for step in steps {
            let mut slices = [IoSlice::new(b""); 3];
            let count = out.slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            let step = step.min(bytes.len());
            sent.extend_from_slice(&bytes[..step]);
            out.advance(step);
            if out.is_empty() {
                break;
            }
        }
        sent
    }

    fn filled() -> Out {
        let mut out = Out::default();
        for round in 0..40 {
            out.reset(round, Code::CANCEL);
            out.data(round, vec![u8::try_from(round).unwrap(); 5000].into(), false);
            out.data(round, Bytes::from_static(b"short"), true);
        }
        out
    }

    #[test]
    fn frames_are_sent_in_order_in_whatever_pieces() {
        let whole = sent(&mut filled(), std::iter::repeat(usize::MAX));
        assert_eq!(whole.len(), 40 * (13 + 9 + 5000 + 9 + 5));
        let mut pieces = (0..).map(|step| 1 + step * 37 % 11_000);
        let mut out = filled();
        assert_eq!(sent(&mut out, &mut pieces), whole);
        assert!(out.is_empty() && out.waiting() == 0);
        let head = Head::read(&whole[13..]).unwrap();
        assert_eq!((head.kind, head.length, head.stream), (kind::DATA, 5000, 0));
    }

    #[test]
    fn long_blocks_of_fields_are_split() {
        let mut out = Out::default();
        out.fields(1, Some(200), true, 16, |fields| {
            fields.put(b"x-a", &[b'\n'; 40]);
            fields.put(b"Connection", b"close");
        });
        let bytes = sent(&mut out, std::iter::repeat(usize::MAX));
        let (mut at, mut heads, mut block) = (0, Vec::new(), Vec::new());
        while let Some(head) = Head::read(&bytes[at..]) {
            block.extend_from_slice(&bytes[at + 9..at + 9 + head.length]);
            at += 9 + head.length;
            heads.push((head.kind, head.flags));
        }
        assert_eq!(heads[0], (kind::HEADERS, flag::END_STREAM));
        assert!(heads[1..].iter().all(|(kind, _)| *kind == kind::CONTINUATION));
        assert_eq!(heads.last().unwrap().1, flag::END_HEADERS);
        let mut found = Vec::new();
        let read = hpack::Decoder::default().decode(&block, |name, value| {
            found.push((name.to_vec(), value.to_vec()));
            true
        });
        assert_eq!(read, Ok(()));
        assert_eq!(
            found,
            [(b":status".to_vec(), b"200".to_vec()), (b"x-a".to_vec(), vec![b' '; 40])]
        );
    }
}
