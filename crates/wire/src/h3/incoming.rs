//! A stream of frames that arrives in pieces (RFC 9114, section 7.1). Knows no kind of frame.

use super::frame::{HEAD_BYTES_MAX, read_integer};

/// What comes next on a stream. Each frame begins once, and then has one part of its payload at least.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step<'a> {
    Begins { kind: u64, length: u64, head_bytes: usize },
    Payload { kind: u64, part: &'a [u8], left: u64 },
}

/// How far the reading of a stream is.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// As much of a head as is there.
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// The frame whose payload comes next: its kind, and how much of it is missing.
    frame: Option<(u64, u64)>,
}

impl Incoming {
    /// Whether the stream may end here.
    pub(super) fn is_between_frames(&self) -> bool {
        self.frame.is_none() && self.head_bytes == 0
    }

    /// Takes of `bytes`; `None` when all of them are taken.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Step<'a>> {
        match self.frame {
            None => self.head(bytes),
            Some((kind, missing)) => self.payload(kind, missing, bytes),
        }
    }

    fn head<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Step<'a>> {
        while let Some((first, rest)) = bytes.split_first() {
            *bytes = rest;
            // Two integers fit: the head is whole before there is no more room.
            self.head[self.head_bytes] = *first;
            self.head_bytes += 1;
            let head = &self.head[..self.head_bytes];
            let Some((kind, kind_bytes)) = read_integer(head) else { continue };
            let Some((length, _)) = read_integer(&head[kind_bytes..]) else { continue };
            self.frame = Some((kind, length));
            let head_bytes = std::mem::take(&mut self.head_bytes);
            return Some(Step::Begins { kind, length, head_bytes });
        }
        None
    }

    fn payload<'a>(&mut self, kind: u64, missing: u64, bytes: &mut &'a [u8]) -> Option<Step<'a>> {
        if missing > 0 && bytes.is_empty() {
            return None;
        }
        let count = usize::try_from(missing).map_or(bytes.len(), |count| count.min(bytes.len()));
        let (part, rest) = bytes.split_at(count);
        *bytes = rest;
        let left = missing - count as u64;
        self.frame = (left > 0).then_some((kind, left));
        Some(Step::Payload { kind, part, left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_may_come_in_any_pieces() {
        let stream = [&[0, 3][..], b"abc", &[0x40, 33, 0], &[1, 0x40, 1], b"z"].concat();
        let whole = frames(&stream, stream.len());
        assert_eq!(whole, [(0, b"abc".to_vec()), (33, vec![]), (1, b"z".to_vec())]);
        for size in 1..stream.len() {
            assert_eq!(frames(&stream, size), whole, "pieces of {size}");
        }
    }

    fn frames(stream: &[u8], size: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut incoming, mut found) = (Incoming::default(), Vec::<(u64, Vec<u8>)>::new());
        for mut piece in stream.chunks(size) {
            while let Some(step) = incoming.next(&mut piece) {
                match step {
                    Step::Begins { kind, .. } => found.push((kind, Vec::new())),
                    Step::Payload { part, .. } => {
                        found.last_mut().unwrap().1.extend_from_slice(part);
                    }
                }
            }
            assert!(piece.is_empty());
        }
        assert!(incoming.is_between_frames());
        found
    }

    #[test]
    fn a_stream_does_not_end_within_a_frame() {
        for mut piece in [&[0x40][..], &[0], &[0, 3], &[0, 3, 1, 2]] {
            let mut incoming = Incoming::default();
            while incoming.next(&mut piece).is_some() {}
            assert!(!incoming.is_between_frames());
        }
    }
}
