//! What a worker does at present, for the thread that looks whether it still turns.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Times are counted from here.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Of one worker: the turn of its event loop that is under way.
#[derive(Debug, Default)]
pub struct Beat {
    /// Milliseconds since [`START`], and one more; 0 between turns.
    began: AtomicU64,
    /// The serial number of the connection that was worked on last; 0 for none.
    connection: AtomicU64,
    /// The system's number of the thread.
    thread: AtomicU64,
}

/// A turn that lasts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Busy {
    /// Since when, in milliseconds: the turn's name.
    pub began: u64,
    pub time: Duration,
    pub connection: u64,
    pub thread: u64,
}

impl Beat {
    /// The thread that calls it is the worker.
    pub fn begin(&self) {
        let thread = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// A turn begins.
    pub fn turn(&self, now: Instant) {
        self.connection.store(0, Ordering::Relaxed);
        let time = now.saturating_duration_since(*START);
        let millis = time.as_secs() * 1000 + u64::from(time.subsec_millis());
        self.began.store(millis + 1, Ordering::Relaxed);
    }

    /// It works on this connection from here on.
    pub fn works_on(&self, connection: u64) {
        self.connection.store(connection, Ordering::Relaxed);
    }

    /// The turn is over.
    pub fn rest(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// The turn under way, if it has lasted for `limit`.
    pub fn busy(&self, limit: Duration) -> Option<Busy> {
        let began = self.began.load(Ordering::Relaxed);
        let since = began.checked_sub(1)?;
        let time = START.elapsed().saturating_sub(Duration::from_millis(since));
        (time >= limit).then(|| Busy {
            began,
            time,
            connection: self.connection.load(Ordering::Relaxed),
            thread: self.thread.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_lasts_is_seen_and_what_it_works_on() {
        let beat = Beat::default();
        assert_eq!(beat.busy(Duration::ZERO), None, "no turn");
        beat.turn(Instant::now());
        beat.works_on(7);
        assert_eq!(beat.busy(Duration::from_secs(60)), None, "not for long");
        let busy = beat.busy(Duration::ZERO).unwrap();
        assert_eq!(busy.connection, 7);
        beat.turn(Instant::now() + Duration::from_millis(5));
        let next = beat.busy(Duration::ZERO).unwrap();
        assert!(next.began > busy.began && next.connection == 0);
        beat.rest();
        assert_eq!(beat.busy(Duration::ZERO), None);
    }
}
