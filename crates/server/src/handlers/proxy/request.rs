//! The request to an HTTP upstream: line, fields, body.

use super::{Conf, Destination, HttpVersion};
use crate::cache;
use crate::config::compiled::LocationConf;
use crate::config::template::Template;
use crate::exchange::Exchange;
use crate::exchange::request::{Method, append_joined};
use bytes::Bytes;
use std::io::Write as _;
use yorozu_http::uri::{Escape, escape_into};

/// What `proxy_set_header` and its defaults say, made ready.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Lines in order.
    lines: Vec<(Bytes, Template)>,
    /// Names of the client's fields that do not go on.
    replaced: Vec<Bytes>,
}

/// Fields of the client that concern its own connection, or are made anew.
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
    /// From the lines that were written; `host` is the default of `Host`.
    pub fn new(written: &[super::SetHeader], host: Template) -> Self {
        let is_written =
            |name: &str| written.iter().any(|w| w.name.eq_ignore_ascii_case(name.as_bytes()));
        let mut fields = Self::default();
        if !is_written("Host") {
            fields.lines.push((Bytes::from_static(b"Host"), host));
        }
        for header in written {
            fields.lines.push((header.name.clone(), header.value.clone()));
            fields.replaced.push(header.name.clone());
        }
        fields.replaced.extend(
            NEVER_PASSED
                .iter()
                .filter(|name| !is_written(name))
                .map(|n| Bytes::from_static(n.as_bytes())),
        );
        fields
    }

    fn replaces(&self, name: &[u8]) -> bool {
        self.replaced.iter().any(|found| found.eq_ignore_ascii_case(name))
    }

    fn sets(&self, name: &[u8]) -> bool {
        self.lines.iter().any(|(found, _)| found.eq_ignore_ascii_case(name))
    }
}

/// How the body goes.
enum Sends {
    Nothing,
    /// So many bytes: these, or the exchange's.
    Length(u64, Option<Bytes>),
    Chunked,
}

/// The bytes of the request up to a body that is not in memory, and how such a body is framed.
pub(super) struct Made {
    pub(super) bytes: Vec<u8>,
    pub(super) uri: Vec<u8>,
    pub(super) is_chunked: bool,
    /// Does the exchange's body belong to it?
    pub(super) sends_body: bool,
}

/// Makes the request; `is_live`: the body follows while it arrives.
pub(super) fn make(
    exchange: &mut Exchange,
    location: &LocationConf,
    destination: &Destination,
    is_live: bool,
) -> Made {
    let conf = &location.proxy;
    let sends = sends(exchange, conf, is_live);
    let mut out = Vec::with_capacity(1024);
    method(exchange, conf, &mut out);
    out.push(b' ');
    let uri = without_breaks(uri(exchange, location, destination));
    out.extend_from_slice(&uri);
    out.extend_from_slice(match conf.proxy_http_version {
        HttpVersion::V10 => b" HTTP/1.0\r\n",
        HttpVersion::V11 => b" HTTP/1.1\r\n",
    });
    own_fields(exchange, conf, &sends, &mut out);
    if conf.gateway.pass_request_headers {
        client_fields(exchange, conf, &mut out);
    }
    if exchange.is_cacheable() {
        validators(exchange, conf, &mut out);
        if let Some(range) = cache::missing_range(exchange) {
            let _ = write!(out, "Range: {range}\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    let mut sends_body = false;
    match &sends {
        Sends::Length(_, Some(body)) => out.extend_from_slice(body),
        Sends::Length(_, None) if conf.gateway.pass_request_body => {
            sends_body = true;
            if let Some(body) = exchange.body.in_memory() {
                out.extend_from_slice(body);
            }
        }
        Sends::Chunked => sends_body = true,
        Sends::Length(..) | Sends::Nothing => {}
    }
    Made { bytes: out, uri, is_chunked: matches!(sends, Sends::Chunked), sends_body }
}

fn sends(exchange: &mut Exchange, conf: &Conf, is_live: bool) -> Sends {
    if let Some(body) = &conf.proxy_set_body {
        let body = body.value(exchange);
        return Sends::Length(body.len() as u64, Some(body));
    }
    if !conf.gateway.pass_request_body {
        // Unlike nginx, which announces a length and sends nothing: the next request on the
        // connection would be taken for the body.
        return Sends::Nothing;
    }
    if exchange.body.is_lent() {
        return Sends::Nothing;
    }
    match (exchange.request.content_length, exchange.body.known_length()) {
        (Some(length), _) => Sends::Length(length, None),
        (None, Some(length)) if exchange.request.is_chunked => Sends::Length(length, None),
        _ if is_live => Sends::Chunked,
        _ => Sends::Nothing,
    }
}

fn method(exchange: &mut Exchange, conf: &Conf, out: &mut Vec<u8>) {
    match &conf.proxy_method {
        Some(method) => {
            let method = method.value(exchange);
            out.extend(method.iter().filter(|byte| byte.is_ascii_graphic()));
        }
        None if is_converted_head(exchange, conf) => out.extend_from_slice(b"GET"),
        None => out.extend_from_slice(exchange.request.method_text()),
    }
}

/// A target in which nothing can end the request line: what variables decoded (`$uri` in
/// `proxy_pass`) is escaped again. nginx sends it as it is.
fn without_breaks(uri: Vec<u8>) -> Vec<u8> {
    if !uri.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return uri;
    }
    let mut out = Vec::with_capacity(uri.len() + 16);
    for byte in uri {
        if byte <= b' ' || byte == 0x7f {
            let _ = write!(out, "%{byte:02X}");
        } else {
            out.push(byte);
        }
    }
    out
}

/// Is a HEAD sent on as GET, so that the whole page can be stored?
pub(super) fn is_converted_head(exchange: &Exchange, conf: &Conf) -> bool {
    conf.proxy_cache_convert_head
        && exchange.is_cacheable()
        && exchange.request.method == Method::Head
}

/// The target: as the client sent it, or with another prefix, or as variables spell it.
///
/// # Source
/// nginx, `proxy_pass`.
pub(super) fn uri(
    exchange: &Exchange,
    location: &LocationConf,
    destination: &Destination,
) -> Vec<u8> {
    let prefix = &destination.uri;
    if destination.is_spelled && !prefix.is_empty() {
        return prefix.to_vec();
    }
    if prefix.is_empty() && exchange.is_uri_as_sent {
        let target = exchange.request.target();
        return if target.starts_with(b"/") { target.to_vec() } else { [b"/", target].concat() };
    }
    let mut out = Vec::with_capacity(prefix.len() + exchange.uri.len() + exchange.args.len() + 1);
    let mut rest = &exchange.uri[..];
    if exchange.is_uri_in_location && !prefix.is_empty() {
        out.extend_from_slice(prefix);
        rest = rest.get(location.name.len()..).unwrap_or_default();
    }
    // As nginx: a target without escapes goes on without new ones.
    let has_escapes = memchr::memchr(b'%', exchange.request.target()).is_some();
    if has_escapes || exchange.is_internal {
        escape_into(&mut out, rest, Escape::Path);
    } else {
        out.extend_from_slice(rest);
    }
    if !exchange.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&exchange.args);
    }
    out
}

fn own_fields(exchange: &mut Exchange, conf: &Conf, sends: &Sends, out: &mut Vec<u8>) {
    for (name, value) in &conf.fields.lines {
        let start = out.len();
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        let value_start = out.len();
        value.append(exchange, out);
        if out.len() == value_start {
            // As nginx: an empty value takes the field away.
            out.truncate(start);
            continue;
        }
        // Variables may bring line ends: they become spaces, never a second line.
        for byte in out[value_start..].iter_mut().filter(|b| matches!(b, b'\r' | b'\n' | 0)) {
            *byte = b' ';
        }
        out.extend_from_slice(b"\r\n");
    }
    if conf.proxy_http_version == HttpVersion::V10 && !conf.fields.sets(b"Connection") {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    match sends {
        Sends::Length(length, _) if !conf.fields.sets(b"Content-Length") => {
            let _ = write!(out, "Content-Length: {length}\r\n");
        }
        Sends::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Sends::Length(..) | Sends::Nothing => {}
    }
}

fn client_fields(exchange: &Exchange, conf: &Conf, out: &mut Vec<u8>) {
    let is_cached = exchange.is_cacheable();
    let request = &exchange.request;
    for field in &request.fields {
        let name = request.name(field);
        let is_conditional = is_cached && cache::is_for_stored_page(name);
        if is_conditional || conf.fields.replaces(name) {
            continue;
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(request.value(field));
        out.extend_from_slice(b"\r\n");
    }
}

/// Asks whether the expired page is still good.
fn validators(exchange: &Exchange, conf: &Conf, out: &mut Vec<u8>) {
    let (modified, etag) = cache::validators(exchange, &conf.gateway);
    if let Some(modified) = modified.filter(|_| !conf.fields.sets(b"If-Modified-Since")) {
        let _ = write!(out, "If-Modified-Since: {modified}\r\n");
    }
    if !etag.is_empty() && !conf.fields.sets(b"If-None-Match") {
        out.extend_from_slice(b"If-None-Match: ");
        out.extend_from_slice(&etag);
        out.extend_from_slice(b"\r\n");
    }
}

/// `$proxy_add_x_forwarded_for`
pub fn add_x_forwarded_for(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    if append_joined(exchange.request.values(b"x-forwarded-for"), b", ", out) {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(exchange.remote.text.as_bytes());
    true
}
