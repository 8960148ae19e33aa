//! A rate as nginx counts it: what has passed is followed by the time that it takes, and no second that has begun has more than
//! its share.

use std::cell::Cell;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Larger pieces come in bursts; smaller ones are too many at a high rate.
const PIECE_BYTES_MIN: u64 = 64 * 1024;
const PIECES_PER_SECOND: u64 = 10;

pub struct Pace {
    bytes_per_second: u64,
    /// Bytes before the limit begins.
    free: u64,
    begun: Instant,
    /// What had passed, of what counts, when a piece was let last, and when that was; `None` before the first.
    last: Cell<Option<(u64, Instant)>>,
}

impl Pace {
    pub fn new(bytes_per_second: u64, free: u64) -> Self {
        let begun = Instant::now();
        Self { bytes_per_second, free, begun, last: Cell::new(None) }
    }

    /// Of something whose start has passed: it is waited for as if it had been let.
    pub fn of_rest(bytes_per_second: u64) -> Self {
        let pace = Self::new(bytes_per_second, 0);
        pace.last.set(Some((0, pace.begun)));
        pace
    }

    /// Waits until more is due than the bytes that have passed; how many.
    pub async fn due(&self, passed: u64) -> usize {
        let counted = passed.saturating_sub(self.free);
        if let Some((before, since)) = self.last.get() {
            let pause = self.time_of(counted.saturating_sub(before));
            // The shortest sleep is a millisecond.
            if pause > since.elapsed() {
                sleep_until(since + pause).await;
            }
        }
        loop {
            let seconds = self.begun.elapsed().as_secs() + 1;
            let allowed = self.bytes_per_second.saturating_mul(seconds);
            if allowed > counted {
                self.last.set(Some((counted, Instant::now())));
                let left = allowed.saturating_add(self.free) - passed;
                let most = PIECE_BYTES_MIN.max(self.bytes_per_second / PIECES_PER_SECOND);
                return usize::try_from(left.min(most)).unwrap_or(usize::MAX);
            }
            sleep(self.time_of(counted - allowed) + Duration::from_millis(1)).await;
        }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_millis(bytes.saturating_mul(1000) / self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When, in tenths of a second, how much of this many bytes is due.
    async fn pieces(pace: Pace, total: u64) -> Vec<(u128, usize)> {
        let (mut passed, mut found) = (0, Vec::new());
        while passed < total {
            let due = pace.due(passed).await;
            found.push((pace.begun.elapsed().as_millis() / 100, due));
            passed += due as u64;
        }
        found
    }

    #[tokio::test(start_paused = true)]
    async fn each_second_has_its_share_behind_what_is_free() {
        let found = pieces(Pace::new(10_000, 0), 24_000).await;
        assert_eq!(found, [(0, 10_000), (10, 10_000), (20, 10_000)]);
        let found = pieces(Pace::new(8000, 4000), 24_000).await;
        assert_eq!(found, [(0, 12_000), (10, 8000), (20, 8000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_s_share_does_not_come_at_once() {
        let found = pieces(Pace::new(300_000, 0), 300_000).await;
        let times: Vec<_> = found.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [0, 2, 4, 6, 8], "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_wakes_until_more_is_due() {
        let pace = Pace::new(1000, 0);
        assert_eq!(pace.due(0).await, 1000);
        let mut waiting = Box::pin(pace.due(1000));
        let mut woken = 0;
        let begun = Instant::now();
        std::future::poll_fn(|context| {
            woken += 1;
            waiting.as_mut().poll(context)
        })
        .await;
        assert!(begun.elapsed() >= Duration::from_secs(1) && woken < 4, "woken {woken} times");
    }
}
