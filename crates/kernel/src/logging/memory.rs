//! `error_log memory:SIZE`: the last lines, in memory, for `yorozu log --error`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// What a line takes beside its bytes; chosen: its place and the allocator's.
const LINE_BYTES: usize = 48;

/// The last lines, within a bound of bytes.
#[derive(Debug)]
pub struct Ring {
    bytes_max: usize,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    all: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Ring {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, lines: Mutex::default() }
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Keeps a line; of one that is longer than the whole, the beginning.
    pub fn push(&self, line: &[u8]) {
        let bytes = line.len().min(self.bytes_max.saturating_sub(LINE_BYTES));
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        while lines.bytes + bytes + LINE_BYTES > self.bytes_max {
            let Some(oldest) = lines.all.pop_front() else { break };
            lines.bytes -= oldest.len() + LINE_BYTES;
        }
        lines.bytes += bytes + LINE_BYTES;
        lines.all.push_back(line[..bytes].into());
    }

    /// The lines, the oldest first.
    pub fn text(&self) -> Vec<u8> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Vec::with_capacity(lines.bytes);
        for line in &lines.all {
            text.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                text.push(b'\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_the_bytes() {
        let ring = Ring::new(3 * LINE_BYTES + 20);
        for number in 0..100 {
            ring.push(format!("{number}\n").as_bytes());
        }
        assert_eq!(ring.text(), b"97\n98\n99\n");
        ring.push(&[b'x'; 1000]);
        assert_eq!(ring.text(), [&[b'x'; 2 * LINE_BYTES + 20][..], b"\n"].concat());
        ring.push(b"last\n");
        assert_eq!(ring.text(), b"last\n");
    }
}
