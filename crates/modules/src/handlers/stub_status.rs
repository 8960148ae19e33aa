//! `stub_status`: counters of connections and requests.

use bytes::Bytes;
use serde_json::json;
use std::io::Write as _;
use yorozu_kernel::base::counters::{Seen, seen};
use yorozu_kernel::base::report::Report;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::figures::Section;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_stub_status", || DIRECTIVES.to_vec())
    .computing(VARIABLES)
    .showing(|_, report| add(report), SECTIONS);

/// What `api` shows of it.
const SECTIONS: &[Section] = &[
    Section::one("connections", |_| {
        let Seen { accepted, active, waiting, .. } = seen();
        json!({
            "accepted": accepted,
            "dropped": 0,
            "active": active.saturating_sub(waiting),
            "idle": waiting,
        })
    }),
    Section::one("http/requests", |_| {
        let Seen { requests, writing, .. } = seen();
        json!({ "total": requests, "current": writing })
    }),
];

/// Adds the metrics that nginx-prometheus-exporter makes of it, under their names there.
fn add(report: &mut Report) {
    let Seen { accepted, requests, active, reading, writing, waiting } = seen();
    report.gauge("nginx_up", "Whether the server answers; always 1.").count(&[], 1);
    report.untyped("nginx_connections_accepted", "Accepted connections.").count(&[], accepted);
    report.untyped("nginx_connections_handled", "Handled connections.").count(&[], accepted);
    let gauges = [
        ("nginx_connections_active", "Active connections.", active),
        ("nginx_connections_reading", "Connections whose head is read.", reading),
        ("nginx_connections_writing", "Requests that are answered.", writing),
        ("nginx_connections_waiting", "Idle connections.", waiting),
    ];
    for (name, help, value) in gauges {
        report.gauge(name, help).count(&[], value);
    }
    report.counter("nginx_http_requests_total", "Requests.").count(&[], requests);
}

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
    Arity::UP_TO_ONE,
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
    let Seen { accepted, requests, active, reading, writing, waiting } = seen();
    let text = format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {accepted} {requests} \n\
         Reading: {reading} Writing: {writing} Waiting: {waiting} \n",
    );
    Outcome::Respond(Box::new(Response::with_body(200, Bytes::from_static(b"text/plain"), text)))
}

/// `$connections_*`
pub const VARIABLES: &[Row] = &[
    ("connections_active", Variable::Builtin(|_, out| put(out, seen().active))),
    ("connections_reading", Variable::Builtin(|_, out| put(out, seen().reading))),
    ("connections_writing", Variable::Builtin(|_, out| put(out, seen().writing))),
    ("connections_waiting", Variable::Builtin(|_, out| put(out, seen().waiting))),
];

fn put(out: &mut Vec<u8>, value: u64) -> bool {
    write!(out, "{value}").is_ok()
}
