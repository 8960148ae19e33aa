//! Counters of the process: connections and requests.

use std::sync::atomic::AtomicU64;
use yorozu_upstream::{Gauge, Taken};

/// Counters of the process.
#[derive(Debug, Default)]
pub struct Counters {
    pub accepted: AtomicU64,
    pub requests: AtomicU64,
    /// Connections.
    pub active: Gauge,
    /// Heads that are read.
    pub reading: Gauge,
    /// Requests that are answered.
    pub writing: Gauge,
    /// Of those, streams of HTTP/2, of which a connection may have many.
    pub streams: Gauge,
    /// Connections with such streams.
    pub with_streams: Gauge,
}

/// The one set of counters: a process serves one configuration.
pub static COUNTERS: Counters = Counters {
    accepted: AtomicU64::new(0),
    requests: AtomicU64::new(0),
    active: Gauge::new(),
    reading: Gauge::new(),
    writing: Gauge::new(),
    streams: Gauge::new(),
    with_streams: Gauge::new(),
};

/// One of [`COUNTERS`]' gauges, while it lives.
pub type Counted = Taken<&'static Gauge>;

impl Counters {
    /// Connections whose client has no request under way.
    ///
    /// Gauges that others move meanwhile are not of one moment: the difference may be less than nothing.
    pub fn waiting(&self) -> usize {
        let answering = self.writing.get() + self.with_streams.get();
        (self.active.get() + self.streams.get()).saturating_sub(self.reading.get() + answering)
    }
}
