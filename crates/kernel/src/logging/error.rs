//! What the error log says of requests and connections: `… *3 text, client: …, server: …, request: "…"`.

pub use super::error_log::ErrorLogs;
pub use super::level::Level;
pub use super::verbatim::{path as path_text, verbatim};
use crate::config::servers::{LocationId, ServerId};
use crate::exchange::conf::{Config, WorkerConf};
use crate::exchange::{Client, Exchange, Remote};
use bytes::Bytes;
use std::fmt::Write as _;
use std::rc::Rc;
pub use yorozu_conf::os_error;
use yorozu_wire::h1::{Span, slice};

impl ErrorLogs {
    /// A message about a connection, outside any request.
    pub fn connection(&self, level: Level, client: &Client, text: &str) {
        if self.takes(level) {
            let text =
                format!("{text}, client: {}, server: {}", client.remote.text, client.address);
            self.write_line(level, Some(client.number), &text);
        }
    }
}

/// What a request's message is dressed with when the exchange itself is not at hand; cheap to make.
#[derive(Clone, Debug)]
pub struct Context {
    conf: Rc<WorkerConf>,
    server: ServerId,
    location: LocationId,
    client: Rc<Client>,
    remote: Rc<Remote>,
    /// The request's line and fields.
    head: Bytes,
    line: Span,
    /// Of a part of another request's answer.
    subrequest: Option<Bytes>,
}

impl Context {
    pub fn of(exchange: &Exchange) -> Self {
        Self {
            conf: Rc::clone(&exchange.conf),
            server: exchange.server,
            location: exchange.location,
            client: Rc::clone(&exchange.client),
            remote: Rc::clone(&exchange.remote),
            head: exchange.request.head.clone(),
            line: exchange.request.line.clone(),
            subrequest: exchange.is_subrequest().then(|| Bytes::copy_from_slice(&exchange.uri)),
        }
    }

    fn logs(&self) -> &ErrorLogs {
        &self.conf.location(self.location).error_log
    }

    pub fn takes(&self, level: Level) -> bool {
        self.logs().takes(level)
    }

    /// Logs a message about the upstream; `peer` as `fastcgi://unix:/path:`.
    pub fn upstream(&self, level: Level, text: &str, peer: Option<&str>) {
        if !self.takes(level) {
            return;
        }
        let mut line = format!(
            "{text}, client: {}, server: {}, request: \"{}\"",
            self.remote.text,
            self.conf.server(self.server).name(),
            verbatim(slice(&self.head, &self.line)),
        );
        if let Some(uri) = &self.subrequest {
            let _ = write!(line, ", subrequest: \"{}\"", verbatim(uri));
        }
        if let Some(peer) = peer {
            let _ = write!(line, ", upstream: \"{peer}\"");
        }
        for (name, shown) in [("host", "host"), ("referer", "referrer")] {
            if let Some(value) = self.field(name) {
                let _ = write!(line, ", {shown}: \"{}\"", verbatim(value));
            }
        }
        self.logs().write_line(level, Some(self.client.number), &line);
    }

    /// A field of the request, looked for in its bytes.
    fn field(&self, wanted: &str) -> Option<&[u8]> {
        let lines = self.head[self.line.end as usize..].split(|byte| *byte == b'\n');
        lines.into_iter().find_map(|line| {
            let (name, rest) = line.split_at_checked(wanted.len())?;
            let value = rest.strip_prefix(b":")?;
            name.eq_ignore_ascii_case(wanted.as_bytes()).then(|| value.trim_ascii())
        })
    }
}

fn tail(exchange: &Exchange) -> String {
    let server = exchange.conf.server(exchange.server);
    let request = &exchange.request;
    let mut text = format!(
        ", client: {}, server: {}, request: \"{}\"",
        exchange.remote.text,
        server.name(),
        verbatim(request.line_text()),
    );
    if exchange.is_subrequest() {
        let _ = write!(text, ", subrequest: \"{}\"", verbatim(&exchange.uri));
    }
    if let Some(host) = request.field(b"host") {
        let _ = write!(text, ", host: \"{}\"", verbatim(host));
    }
    if let Some(referrer) = request.field(b"referer") {
        let _ = write!(text, ", referrer: \"{}\"", verbatim(referrer));
    }
    text
}

/// Logs a message about a request, unless it is only tried ([`Exchange::is_question`]).
pub fn request(exchange: &Exchange, level: Level, text: &str) {
    let logs = &exchange.conf.location(exchange.location).error_log;
    if logs.takes(level) && !exchange.is_question() {
        logs.write_line(level, Some(exchange.client.number), &format!("{text}{}", tail(exchange)));
    }
}

/// Logs a message about the upstream of a request; `peer` as [`Context::upstream`] has it, asked for where it is written.
pub fn upstream(exchange: &Exchange, level: Level, text: &str, peer: impl FnOnce() -> String) {
    let context = Context::of(exchange);
    if context.takes(level) {
        context.upstream(level, text, Some(&peer()));
    }
}

/// Logs a message of the process to the main log.
pub fn process(config: &Config, level: Level, text: &str) {
    config.error_log.process(level, text);
}
