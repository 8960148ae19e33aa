//! Counters of the process: connections and requests.

use crate::base::tally::Tally;
use std::sync::atomic::AtomicU64;
use std::sync::{LazyLock, OnceLock};
use std::time::SystemTime;

/// Counters of what is rare.
#[derive(Debug, Default)]
pub struct Counters {
    /// TLS handshakes that came to a session, and how many of these were resumed.
    pub handshakes: AtomicU64,
    pub handshakes_resumed: AtomicU64,
    pub handshakes_failed: AtomicU64,
    /// Those that took too long.
    pub handshakes_late: AtomicU64,
    /// Lines that could not be written to a log.
    pub log_lines_lost: AtomicU64,
    /// Worker threads that took the place of one that ended by itself.
    pub workers_respawned: AtomicU64,
}

/// The one set of counters: a process serves one configuration.
pub static COUNTERS: Counters = Counters {
    handshakes: AtomicU64::new(0),
    handshakes_resumed: AtomicU64::new(0),
    handshakes_failed: AtomicU64::new(0),
    handshakes_late: AtomicU64::new(0),
    log_lines_lost: AtomicU64::new(0),
    workers_respawned: AtomicU64::new(0),
};

static BEGUN: OnceLock<SystemTime> = OnceLock::new();

/// When the counters of this process were at zero; the server process asks at its start.
///
/// Viewers tell by it what was counted by which process, and whether the figures are older than an hour.
pub fn begun() -> SystemTime {
    *BEGUN.get_or_init(SystemTime::now)
}

/// What happens again and again; each worker counts for itself.
#[derive(Clone, Copy)]
pub enum Happened {
    /// A connection is accepted.
    Accepted,
    /// A request is begun.
    Request,
}

/// What there are some of at a time; each worker counts for itself.
#[derive(Clone, Copy)]
pub enum Present {
    /// Connections.
    Active = Happened::Request as isize + 1,
    /// Heads that are read.
    Reading,
    /// Requests that are answered.
    Writing,
    /// Of those, streams of HTTP/2, of which a connection may have many.
    Streams,
    /// Connections with such streams.
    WithStreams,
}

const CELLS: usize = Present::WithStreams as usize + 1;

static TALLY: LazyLock<&'static Tally> = LazyLock::new(|| Tally::leaked(CELLS));

/// Counts what happened.
#[inline]
pub fn count(event: Happened) {
    TALLY.with(|cells| cells.add(event as usize, 1));
}

/// One of what is [`Present`], while it lives.
#[derive(Debug)]
pub struct Counted(usize);

impl Counted {
    /// One more.
    #[inline]
    pub fn of(what: Present) -> Self {
        TALLY.with(|cells| cells.add(what as usize, 1));
        Self(what as usize)
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        TALLY.with(|cells| cells.subtract(self.0, 1));
    }
}

/// The counters as they were read. What workers count meanwhile is not of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub accepted: u64,
    pub requests: u64,
    pub active: u64,
    pub reading: u64,
    pub writing: u64,
    /// Connections whose client has no request under way.
    pub waiting: u64,
}

/// Sums what the workers counted.
pub fn seen() -> Seen {
    let sums = TALLY.sums();
    // What one worker began and another one ends may be seen ended first.
    let present = |what: Present| u64::try_from(sums[what as usize].cast_signed()).unwrap_or(0);
    let (active, reading, writing) =
        (present(Present::Active), present(Present::Reading), present(Present::Writing));
    let busy = reading + writing + present(Present::WithStreams);
    Seen {
        accepted: sums[Happened::Accepted as usize],
        requests: sums[Happened::Request as usize],
        active,
        reading,
        writing,
        waiting: (active + present(Present::Streams)).saturating_sub(busy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_elsewhere_is_counted_off() {
        let before = seen();
        let counted = [Present::Active, Present::Active, Present::Writing].map(Counted::of);
        let now = seen();
        assert_eq!((now.active - before.active, now.writing - before.writing), (2, 1));
        assert_eq!(now.waiting - before.waiting, 1);
        std::thread::spawn(move || drop(counted)).join().unwrap();
        assert_eq!((seen().active, seen().writing), (before.active, before.writing));
    }
}
