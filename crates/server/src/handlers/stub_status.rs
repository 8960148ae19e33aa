//! `stub_status`: counters of connections and requests.

use super::{Handler, Outcome};
use crate::config::directive::*;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use bytes::Bytes;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
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

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "stub_status",
    SERVER | LOCATION,
    Arity::ANY,
    Action::Set(|block, _| {
        block.handler = Some(Handler::StubStatus);
        Ok(())
    }),
    "Answers with counters of connections and requests.",
)];

impl Counters {
    /// Connections whose client has no request under way.
    ///
    /// Gauges that others move meanwhile are not of one moment: the difference may be less than nothing.
    fn waiting(&self) -> usize {
        let answering = self.writing.get() + self.with_streams.get();
        (self.active.get() + self.streams.get()).saturating_sub(self.reading.get() + answering)
    }
}

/// The counters as text.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head() {
        return Outcome::Status(405);
    }
    let accepted = COUNTERS.accepted.load(Ordering::Relaxed);
    let text = format!(
        "Active connections: {} \nserver accepts handled requests\n {accepted} {accepted} {} \n\
         Reading: {} Writing: {} Waiting: {} \n",
        COUNTERS.active.get(),
        COUNTERS.requests.load(Ordering::Relaxed),
        COUNTERS.reading.get(),
        COUNTERS.writing.get(),
        COUNTERS.waiting(),
    );
    Outcome::Respond(Box::new(Response::with_body(200, Bytes::from_static(b"text/plain"), text)))
}

/// `$connections_*`
pub fn getter(name: &str) -> Option<fn(&Exchange, &mut Vec<u8>) -> bool> {
    fn put(out: &mut Vec<u8>, value: usize) -> bool {
        write!(out, "{value}").is_ok()
    }
    Some(match name {
        "connections_active" => |_, out| put(out, COUNTERS.active.get()),
        "connections_reading" => |_, out| put(out, COUNTERS.reading.get()),
        "connections_writing" => |_, out| put(out, COUNTERS.writing.get()),
        "connections_waiting" => |_, out| put(out, COUNTERS.waiting()),
        _ => return None,
    })
}
