//! How much of a head has room in the buffers that the configuration allows.
//!
//! What arrives is kept in one piece here, so this is arithmetic: where nginx would put the lines, and whether it
//! would run out of buffers. Requests that follow one another without a pause begin in an empty buffer here; in nginx
//! they have what the one before left of it.
//!
//! # Source
//! nginx, `ngx_http_alloc_large_header_buffer`: a line that does not fit in the rest of a buffer moves to the next as
//! a whole.

use super::head::Bounds;
use memchr::memchr;

/// The lines of a head that have their place so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderBuffers {
    /// Where the next line begins in the head.
    at: usize,
    /// Bytes that are left of the present buffer.
    room: usize,
    /// Large buffers that are not used yet.
    left: u64,
}

impl HeaderBuffers {
    /// None of a head's lines is in them; before the first are `skipped` bytes, which may fill the buffer again and
    /// again.
    pub(super) fn new(skipped: usize, bounds: &Bounds) -> Self {
        let first = bounds.first_bytes.max(1);
        Self { at: skipped, room: first - skipped % first, left: bounds.large_count }
    }

    /// Whether all lines up to `end` have room; of one without an end more than that has to follow.
    pub(super) fn have_room(&mut self, head: &[u8], end: usize, bounds: &Bounds) -> bool {
        while self.at < end {
            let rest = &head[self.at..end];
            let Some(length) = memchr(b'\n', rest) else {
                let mut with_it = *self;
                return with_it.take(rest.len() + 1, bounds);
            };
            if !self.take(length + 1, bounds) {
                return false;
            }
            self.at += length + 1;
        }
        true
    }

    fn take(&mut self, length: usize, bounds: &Bounds) -> bool {
        if length > self.room {
            if self.left == 0 || length > bounds.large_bytes {
                return false;
            }
            self.left -= 1;
            self.room = bounds.large_bytes;
        }
        self.room -= length;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A first buffer of 10 bytes, and two of 20.
    const BOUNDS: Bounds =
        Bounds { first_bytes: 10, large_bytes: 20, large_count: 2, ..Bounds::NONE };

    fn have_room(lines: &[usize], rest: usize) -> bool {
        let mut head = Vec::new();
        for length in lines {
            head.resize(head.len() + length - 1, b'a');
            head.push(b'\n');
        }
        head.resize(head.len() + rest, b'a');
        HeaderBuffers::new(0, &BOUNDS).have_room(&head, head.len(), &BOUNDS)
    }

    #[test]
    fn a_line_is_in_one_buffer() {
        assert!(have_room(&[10, 20, 20], 0));
        assert!(!have_room(&[10, 20, 20], 1));
        assert!(have_room(&[9, 11, 9, 20], 0), "the third is behind the second");
        assert!(!have_room(&[9, 11, 10, 11], 0));
        assert!(!have_room(&[21], 0) && have_room(&[20], 0));
    }

    #[test]
    fn a_line_without_an_end_needs_room_for_it() {
        assert!(have_room(&[10, 20], 19));
        assert!(!have_room(&[10, 20], 20));
    }

    #[test]
    fn a_head_that_comes_by_and_by_is_judged_as_one() {
        let head = b"aaaaaaaaa\nbbbbbbbbbbbbbbb\ncccccc\nd";
        for step in 1..head.len() {
            let mut buffers = HeaderBuffers::new(0, &BOUNDS);
            let ends = (0..head.len()).step_by(step).chain([head.len()]);
            for end in ends {
                assert!(buffers.have_room(head, end, &BOUNDS), "{step} {end}");
            }
            assert_eq!((buffers.room, buffers.left), (13, 0), "{step}");
        }
    }

    #[test]
    fn empty_lines_before_a_request_fill_the_first_buffer_again() {
        assert_eq!(HeaderBuffers::new(4, &BOUNDS).room, 6);
        assert_eq!(HeaderBuffers::new(20, &BOUNDS).room, 10);
    }
}
