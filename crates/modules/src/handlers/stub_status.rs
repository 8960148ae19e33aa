//! `stub_status`: counters of connections and requests.

use bytes::Bytes;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module =
    Module::new("http_stub_status", || DIRECTIVES.to_vec()).computing(VARIABLES);

#[derive(Debug)]
struct StubStatus;

impl Handler for StubStatus {
    fn respond(&self, exchange: &mut Exchange) -> Outcome {
        respond(exchange)
    }
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "stub_status",
    SERVER | LOCATION,
    Arity::ANY,
    Action::Set(|block, _| {
        block.handle_by(StubStatus);
        Ok(())
    }),
    "Answers with counters of connections and requests.",
)];

/// The counters as text.
fn respond(exchange: &mut Exchange) -> Outcome {
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
pub const VARIABLES: &[Row] = &[
    ("connections_active", Variable::Builtin(|_, out| put(out, COUNTERS.active.get()))),
    ("connections_reading", Variable::Builtin(|_, out| put(out, COUNTERS.reading.get()))),
    ("connections_writing", Variable::Builtin(|_, out| put(out, COUNTERS.writing.get()))),
    ("connections_waiting", Variable::Builtin(|_, out| put(out, COUNTERS.waiting()))),
];

fn put(out: &mut Vec<u8>, value: usize) -> bool {
    write!(out, "{value}").is_ok()
}
