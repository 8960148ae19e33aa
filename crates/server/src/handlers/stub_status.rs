//! `stub_status`: counters of connections and requests.

use super::{Handler, Outcome};
use crate::config::directive::*;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use bytes::Bytes;
use std::io::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counters of the process.
#[derive(Debug, Default)]
pub struct Counters {
    pub accepted: AtomicU64,
    pub requests: AtomicU64,
    pub active: AtomicI64,
    pub reading: AtomicI64,
    pub writing: AtomicI64,
}

/// The one set of counters: a process serves one configuration.
pub static COUNTERS: Counters = Counters {
    accepted: AtomicU64::new(0),
    requests: AtomicU64::new(0),
    active: AtomicI64::new(0),
    reading: AtomicI64::new(0),
    writing: AtomicI64::new(0),
};

/// Counts while it lives.
#[derive(Debug)]
pub struct Gauge(&'static AtomicI64);

impl Gauge {
    pub fn new(counter: &'static AtomicI64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

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

fn waiting() -> i64 {
    let load = |counter: &AtomicI64| counter.load(Ordering::Relaxed);
    (load(&COUNTERS.active) - load(&COUNTERS.reading) - load(&COUNTERS.writing)).max(0)
}

/// The counters as text.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head() {
        return Outcome::Status(405);
    }
    let load = |counter: &AtomicI64| counter.load(Ordering::Relaxed).max(0);
    let accepted = COUNTERS.accepted.load(Ordering::Relaxed);
    let text = format!(
        "Active connections: {} \nserver accepts handled requests\n {accepted} {accepted} {} \n\
         Reading: {} Writing: {} Waiting: {} \n",
        load(&COUNTERS.active),
        COUNTERS.requests.load(Ordering::Relaxed),
        load(&COUNTERS.reading),
        load(&COUNTERS.writing),
        waiting(),
    );
    Outcome::Respond(Box::new(Response::with_body(200, Bytes::from_static(b"text/plain"), text)))
}

/// `$connections_*`
pub fn getter(name: &str) -> Option<fn(&Exchange, &mut Vec<u8>) -> bool> {
    fn put(out: &mut Vec<u8>, value: i64) -> bool {
        write!(out, "{value}").is_ok()
    }
    Some(match name {
        "connections_active" => |_, out| put(out, COUNTERS.active.load(Ordering::Relaxed)),
        "connections_reading" => |_, out| put(out, COUNTERS.reading.load(Ordering::Relaxed)),
        "connections_writing" => |_, out| put(out, COUNTERS.writing.load(Ordering::Relaxed)),
        "connections_waiting" => |_, out| put(out, waiting()),
        _ => return None,
    })
}
