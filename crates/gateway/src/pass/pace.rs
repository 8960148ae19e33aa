//! How fast a body may come (`*_limit_rate`): what came with its head is free, the rest is held until it is due.

use bytes::Bytes;
use std::collections::VecDeque;
use yorozu_kernel::base::pace::Pace;

pub struct Paced {
    pace: Pace,
    passed: u64,
    /// What was read and is not due yet.
    held: VecDeque<Bytes>,
}

impl Paced {
    /// Leaves what came within the first `free` bytes in `pieces`, and holds what is beyond.
    pub fn new(bytes_per_second: u64, pieces: &mut Vec<Bytes>, free: usize) -> Self {
        let mut held: VecDeque<Bytes> = std::mem::take(pieces).into();
        let mut left = free;
        while let Some(piece) = split_first(&mut held, left) {
            left -= piece.len();
            pieces.push(piece);
        }
        let passed = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pace: Pace::of_rest(bytes_per_second), passed, held }
    }

    /// Waits until more is due; how many bytes.
    pub async fn due(&self) -> usize {
        self.pace.due(self.passed).await
    }

    /// Whether something that was read still waits.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn hold(&mut self, piece: Bytes) {
        self.held.push_back(piece);
    }

    /// The next of what is held, as much as is due.
    pub fn take(&mut self, due: usize) -> Option<Bytes> {
        let piece = split_first(&mut self.held, due)?;
        self.passed += piece.len() as u64;
        Some(piece)
    }
}

/// Of the first piece as much as `bytes`; none if there is none, or nothing is wanted.
fn split_first(pieces: &mut VecDeque<Bytes>, bytes: usize) -> Option<Bytes> {
    let first = pieces.front_mut().filter(|_| bytes > 0)?;
    if first.len() <= bytes { pieces.pop_front() } else { Some(first.split_to(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// After how many seconds which bytes came, of pieces that are there at once.
    async fn times(rate: u64, free: usize, lengths: &[usize]) -> Vec<(u64, usize)> {
        let mut pieces = lengths.iter().map(|length| Bytes::from(vec![0; *length])).collect();
        let begun = tokio::time::Instant::now();
        let mut paced = Paced::new(rate, &mut pieces, free);
        let mut found = vec![(0, pieces.iter().map(Bytes::len).sum())];
        while paced.holds() {
            let due = paced.due().await;
            let time = begun.elapsed() + Duration::from_millis(100);
            found.push((time.as_secs(), paced.take(due).unwrap().len()));
        }
        found
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_with_the_head_is_free_and_then_each_second_has_its_share() {
        assert_eq!(times(4000, 4000, &[9000]).await, [(0, 4000), (1, 4000), (2, 1000)]);
        assert_eq!(times(4000, 4000, &[3000, 3000]).await, [(0, 4000), (1, 2000)]);
        assert_eq!(times(4000, 4000, &[3000]).await, [(0, 3000)]);
    }
}
