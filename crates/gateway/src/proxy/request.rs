//! The request to an HTTP upstream: line, fields, body.

use super::destination::{Destination, Scheme};
use super::{HttpVersion, SetHeader};
use crate::cache::settings::with_prefix;
use crate::protocol::SetTo;
use crate::protocol::call::{Call, Framing, Talk};
use crate::protocol::family::Family;
use crate::protocol::tls;
use crate::{cache, h2, pass};
use bytes::Bytes;
use std::io::Write as _;
use std::ops::Range;
use yorozu_http::field;
use yorozu_http::uri::{Escape, escape_breaks, escape_into};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::request::{Method, append_joined};

/// What `proxy_set_header` and its defaults say, made ready.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Lines in order.
    lines: Vec<Line>,
    /// The default of `Host`.
    host: Template,
    /// Names of the client's fields that do not go on.
    replaced: Names,
    /// What is said of `Content-Length`: no line, see [`sent`].
    content_length: Option<Template>,
}

/// A field that is written to each request.
#[derive(Clone, Debug)]
struct Line {
    name: Bytes,
    /// All of it, or `Name: ` before a value that variables spell.
    text: Bytes,
    value: Option<Template>,
}

impl Line {
    fn new(name: &Bytes, value: &Template) -> Self {
        let is_host = name.eq_ignore_ascii_case(b"Host");
        let start = [name, &b": "[..]].concat();
        let (text, value) = match value.as_literal() {
            // Requests of HTTP/1.1 have a `Host` all the same.
            Some(value) if !(value.is_empty() && is_host) => {
                let mut text = start;
                // As nginx: an empty value takes the field away.
                if value.is_empty() {
                    text.clear();
                } else {
                    put_value(&mut text, &value);
                }
                (text, None)
            }
            _ => (start, Some(value.clone())),
        };
        Self { name: name.clone(), text: text.into(), value }
    }
}

/// Names of fields, looked for by their length first.
#[derive(Clone, Debug, Default)]
struct Names {
    /// A bit for each length below 64; the last is that of longer ones, too.
    lengths: u64,
    all: Vec<Bytes>,
}

impl Names {
    fn bit(name: &[u8]) -> u64 {
        1 << name.len().min(63)
    }

    fn add(&mut self, name: Bytes) {
        self.lengths |= Self::bit(&name);
        self.all.push(name);
    }

    /// Whether one of them is the name, as applications may read it.
    fn has(&self, name: &[u8]) -> bool {
        self.lengths & Self::bit(name) != 0
            && self.all.iter().any(|found| field::is_alike(name, found))
    }
}

/// Fields of the client that concern its own connection, or are written by the gateway.
const NEVER_PASSED: [&str; 9] = [
    "Host",
    "Connection",
    "Proxy-Connection",
    "Content-Length",
    "Transfer-Encoding",
    "TE",
    "Keep-Alive",
    "Expect",
    "Upgrade",
];

impl Fields {
    /// From the lines that were written; `host` is the default of `Host`, `others` those of other fields.
    pub fn new(written: &[SetHeader], host: &Template, others: &[SetHeader]) -> Self {
        let is_written =
            |name: &[u8]| written.iter().any(|line| line.name.eq_ignore_ascii_case(name));
        let mut fields = Self { host: host.clone(), ..Self::default() };
        if !is_written(b"Host") {
            fields.lines.push(Line::new(&Bytes::from_static(b"Host"), host));
        }
        let others = others.iter().filter(|line| !is_written(&line.name));
        fields.lines.extend(others.map(|line| Line::new(&line.name, &line.value)));
        for header in written {
            let is = |name: &[u8]| header.name.eq_ignore_ascii_case(name);
            if is(b"Content-Length") {
                fields.content_length = Some(header.value.clone());
            }
            // How the content is framed, only the content says.
            if is(b"Content-Length") || is(b"Transfer-Encoding") {
                continue;
            }
            fields.lines.push(Line::new(&header.name, &header.value));
            fields.replaced.add(header.name.clone());
        }
        NEVER_PASSED
            .iter()
            .for_each(|name| fields.replaced.add(Bytes::from_static(name.as_bytes())));
        fields
    }

    /// As [`Protocol::each_set`](crate::protocol::Protocol::each_set), of what was written and of the defaults.
    pub fn each_set(&self, name: &[u8], each: &mut dyn FnMut(SetTo<'_>)) -> bool {
        if !self.replaced.has(name) {
            return false;
        }
        for line in self.lines.iter().filter(|line| field::is_alike(name, &line.name)) {
            match &line.value {
                Some(value) => each(SetTo::Spelled(value)),
                None => each(SetTo::Text(&line.text)),
            }
        }
        true
    }

    fn sets(&self, name: &[u8]) -> bool {
        self.lines.iter().any(|line| line.name.eq_ignore_ascii_case(name))
    }
}

/// Appends a value and the line's end. Variables may bring line ends: they become spaces, never a second line.
fn put_value(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(value);
    end_line(out, out.len() - value.len());
}

/// Ends the line whose value begins at a position.
fn end_line(out: &mut Vec<u8>, value_at: usize) {
    field::keep_on_line(&mut out[value_at..]);
    out.extend_from_slice(b"\r\n");
}

/// What the configuration says of requests, with `proxy_*` or `grpc_*`.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub family: &'static Family,
    pub fields: &'a Fields,
    pub version: HttpVersion,
    pub method: Option<&'a Template>,
    pub body: Option<&'a Template>,
    /// Whether a GET is sent for a HEAD, where the page may be stored.
    pub converts_head: bool,
}

impl Rules<'_> {
    /// Whether a HEAD is sent on as GET, so that the whole page can be stored; as nginx, also where it will not be this time.
    fn converts(&self, exchange: &Exchange) -> bool {
        self.converts_head && cache::is_asked(exchange) && exchange.request.method == Method::Head
    }
}

/// The request: its head, with the empty line behind it, and its content.
pub struct Made {
    pub head: Scratch,
    /// Whether its method is one whose answers have no content.
    pub is_head_request: bool,
    /// Where the target stands in it.
    pub uri: Range<usize>,
    pub content: Content,
    /// Whether its only condition is that the stored page is still good.
    pub validates: bool,
}

impl Made {
    /// How it is begun over HTTP/2.
    pub fn session(&self, exchange: &Exchange, rules: Rules<'_>, scheme: Scheme) -> Talk {
        let location = exchange.conf.location(exchange.location);
        let asked = h2::Asked {
            head_bytes_max: pass::head_bytes_max(location, rules.family),
            is_head_request: self.is_head_request,
        };
        let block = h2::request::block(&self.head, scheme.of_requests());
        Talk::Within(Box::new(h2::Asking::new(block, &self.content, asked)))
    }

    /// The whole of it; `conf` is about TLS, where the destination asks for that.
    ///
    /// # Errors
    /// As [`tls::options`].
    pub fn call(
        self,
        exchange: &mut Exchange,
        conf: Option<&tls::Conf>,
        destination: &Destination,
        talk: Talk,
    ) -> Result<Call, u16> {
        let Self { head: mut request, uri, content, validates, .. } = self;
        let is_h2 = matches!(talk, Talk::Within(_));
        let tls = match conf {
            None => None,
            Some(conf) => {
                let options = tls::options(exchange, conf, &destination.host)?;
                Some(if is_h2 { conf.for_h2(options) } else { options })
            }
        };
        match &content {
            // Over HTTP/2 its session has it.
            Content::Memory(body) if !is_h2 => request.extend_from_slice(body),
            _ => {}
        }
        Ok(Call {
            request: request.into(),
            framing: match content {
                Content::Live { length: None } => Framing::CHUNKED,
                _ => Framing::PLAIN,
            },
            content,
            validates,
            talk,
            catch_stderr: Vec::new(),
            line: None,
            // A certificate that variables name is one request's.
            may_keep: conf.is_none_or(|conf| !conf.is_spelled()),
            tls,
            scheme: destination.scheme.text(),
            uri,
        })
    }
}

/// Room for a request before it has to grow; chosen: most are shorter.
const REQUEST_BYTES: usize = 1024;

/// Makes the request, with `content` where the configuration has no other for it.
pub fn make(
    exchange: &mut Exchange,
    location: &LocationConf,
    rules: Rules<'_>,
    destination: &Destination,
    content: Content,
) -> Made {
    let content = sent(exchange, rules, content);
    let mut out = Scratch::take();
    out.reserve(REQUEST_BYTES);
    method(exchange, rules, &mut out);
    // As nginx, which knows the one that a configuration spells in whatever case.
    let is_head_request = out.eq_ignore_ascii_case(b"HEAD");
    out.push(b' ');
    let uri_at = out.len();
    append_uri(exchange, location, destination, &mut out);
    // What variables decoded (`$uri` in `proxy_pass`); nginx sends it as it is.
    escape_breaks(&mut out, uri_at);
    let uri = uri_at..out.len();
    out.extend_from_slice(match rules.version {
        HttpVersion::V10 => b" HTTP/1.0\r\n",
        HttpVersion::V11 => b" HTTP/1.1\r\n",
        HttpVersion::V2 => b" HTTP/2.0\r\n",
    });
    own_fields(exchange, rules, &mut out);
    let gateway = pass::conf(location, rules.family);
    let sends_body = gateway.pass_request_body && rules.fields.content_length.is_none();
    announce(exchange, sends_body, &content, &mut out);
    if gateway.pass_request_headers {
        client_fields(exchange, rules, &mut out);
    }
    let mut validates = false;
    if cache::is_cacheable(exchange) {
        validates = validators(exchange, rules, &mut out);
        if let Some(range) = cache::parts::missing_range(exchange) {
            let _ = write!(out, "Range: {range}\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    Made { head: out, is_head_request, uri, content, validates }
}

/// The content as the configuration has it: `proxy_set_body` puts its own in the place of the client's,
/// a `proxy_set_header Content-Length` that is empty or 0 takes it away.
fn sent(exchange: &mut Exchange, rules: Rules<'_>, content: Content) -> Content {
    let content = match rules.body {
        Some(body) => Content::Memory(body.value(exchange)),
        None => content,
    };
    let is_taken_away = match &rules.fields.content_length {
        Some(length) => matches!(&length.value(exchange)[..], b"" | b"0"),
        None => false,
    };
    if is_taken_away { Content::None } else { content }
}

/// Says how the content is framed (RFC 9112, section 6). Unlike nginx, which also announces what it does not
/// send: the next request on the connection would be taken for it. `sends_body`: the client's would be sent.
fn announce(exchange: &Exchange, sends_body: bool, content: &Content, out: &mut Vec<u8>) {
    let request = &exchange.request;
    match (content, content.length()) {
        (_, Some(length)) => {
            let _ = write!(out, "Content-Length: {length}\r\n");
        }
        (Content::Live { .. }, None) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        // What the client announced is empty, or was sent to another upstream already.
        (_, None) => {
            if sends_body && (request.content_length.is_some() || request.is_chunked) {
                out.extend_from_slice(b"Content-Length: 0\r\n");
            }
        }
    }
}

fn method(exchange: &mut Exchange, rules: Rules<'_>, out: &mut Vec<u8>) {
    match rules.method {
        // As nginx: before what the configuration names.
        _ if rules.converts(exchange) => out.extend_from_slice(b"GET"),
        Some(method) => {
            let method = method.value(exchange);
            out.extend(method.iter().filter(|byte| byte.is_ascii_graphic()));
        }
        None => out.extend_from_slice(exchange.request.method_text()),
    }
}

/// Appends the target: as the client sent it, or with another prefix, or as variables spell it.
///
/// # Source
/// nginx, `proxy_pass`.
pub fn append_uri(
    exchange: &Exchange,
    location: &LocationConf,
    destination: &Destination,
    out: &mut Vec<u8>,
) {
    let prefix = &destination.uri;
    if destination.is_spelled && !prefix.is_empty() {
        return out.extend_from_slice(prefix);
    }
    if prefix.is_empty() && exchange.is_uri_as_sent {
        let target = exchange.request.target();
        if !target.starts_with(b"/") {
            out.push(b'/');
        }
        return out.extend_from_slice(target);
    }
    let mut rest = &exchange.uri[..];
    if exchange.is_uri_in_location && !prefix.is_empty() {
        out.extend_from_slice(prefix);
        rest = rest.get(location.name.len()..).unwrap_or_default();
    }
    // As nginx: a path without escapes goes on without new ones.
    let has_escapes = exchange.request.path_as_sent().contains(&b'%');
    if has_escapes || exchange.is_internal {
        escape_into(out, rest, Escape::Path);
    } else {
        out.extend_from_slice(rest);
    }
    if !exchange.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&exchange.args);
    }
}

fn own_fields(exchange: &mut Exchange, rules: Rules<'_>, out: &mut Vec<u8>) {
    // Its requests must have a Host (RFC 9112, section 3.2).
    let needs_host = rules.version != HttpVersion::V10;
    for Line { name, text, value } in &rules.fields.lines {
        let start = out.len();
        out.extend_from_slice(text);
        let Some(value) = value else { continue };
        let value_at = out.len();
        value.append(exchange, out);
        if out.len() == value_at && needs_host && name.eq_ignore_ascii_case(b"Host") {
            rules.fields.host.append(exchange, out);
        }
        if out.len() == value_at {
            // As nginx: an empty value takes the field away.
            out.truncate(start);
        } else {
            end_line(out, value_at);
        }
    }
    if rules.version == HttpVersion::V10 && !rules.fields.sets(b"Connection") {
        out.extend_from_slice(b"Connection: close\r\n");
    }
}

fn client_fields(exchange: &Exchange, rules: Rules<'_>, out: &mut Vec<u8>) {
    let is_cached = cache::is_cacheable(exchange);
    let request = &exchange.request;
    for field in &request.fields {
        let name = request.name(field);
        let is_conditional = is_cached && cache::is_for_stored_page(name);
        if is_conditional || rules.fields.replaced.has(name) {
            continue;
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(request.value(field));
        out.extend_from_slice(b"\r\n");
    }
}

/// Asks whether the expired page is still good; `true` if no other condition is put.
fn validators(exchange: &Exchange, rules: Rules<'_>, out: &mut Vec<u8>) -> bool {
    let (modified, etag) = cache::validators(
        exchange,
        with_prefix(exchange.conf.location(exchange.location), rules.family),
    );
    if let Some(modified) = modified.as_ref().filter(|_| !rules.fields.sets(b"If-Modified-Since")) {
        let _ = write!(out, "If-Modified-Since: {modified}\r\n");
    }
    if !etag.is_empty() && !rules.fields.sets(b"If-None-Match") {
        out.extend_from_slice(b"If-None-Match: ");
        out.extend_from_slice(&etag);
        out.extend_from_slice(b"\r\n");
    }
    // What the configuration spells may be the stored validators, or the client's.
    let is_ours = |line: &[u8]| match line.iter().position(|byte| *byte == b':') {
        Some(at) if line[..at].eq_ignore_ascii_case(b"if-none-match") => {
            line[at + 1..].trim_ascii() == etag
        }
        Some(at) if line[..at].eq_ignore_ascii_case(b"if-modified-since") => modified
            .as_ref()
            .is_some_and(|modified| line[at + 1..].trim_ascii() == modified.as_bytes()),
        _ => false,
    };
    let lines = out.split(|byte| *byte == b'\n').skip(1);
    let mut conditions =
        lines.filter(|line| line.get(..3).is_some_and(|start| field::is_alike(start, b"if-")));
    (modified.is_some() || !etag.is_empty()) && conditions.by_ref().all(is_ours)
}

/// `$proxy_add_x_forwarded_for`
pub fn add_x_forwarded_for(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    if append_joined(exchange.request.values(b"x-forwarded-for"), b", ", out) {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(exchange.remote.text.as_bytes());
    true
}
