//! The variables of what every exchange has: client, request, response, upstream's attempts, time.

use super::Exchange;
use super::attempts::UpstreamAttempt;
use super::variables::{Row, Variable, put, put_known, put_number};
use crate::base::scratch::Scratch;
use crate::exchange::request::append_joined;
use crate::logging::clock;
use crate::logging::error::{self, Level};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;
use yorozu_wire::h1::Version;
use yorozu_wire::proxy_protocol::ProxyHeader;

/// The variables.
pub const VARIABLES: &[Row] = &[
    ("body_bytes_sent", Variable::Builtin(|ex, out| put_number(out, ex.body_bytes_sent))),
    ("bytes_sent", Variable::Builtin(|ex, out| put_number(out, ex.bytes_sent))),
    (
        "content_length",
        Variable::Builtin(|ex, out| match (ex.request.content_length, ex.body.known_length()) {
            // As it was sent, with whatever zeros before it.
            (Some(length), _) => match ex.request.field(b"content-length") {
                Some(text) => put(out, text),
                None => put_number(out, length),
            },
            (None, Some(length)) if ex.request.is_chunked => put_number(out, length),
            _ => false,
        }),
    ),
    (
        "content_type",
        Variable::Builtin(|ex, out| append_joined(ex.request.values(b"content-type"), b", ", out)),
    ),
    // No hello is encrypted.
    ("ssl_ech_status", Variable::Builtin(|_, _| false)),
    (
        "request_body_length",
        Variable::Builtin(|ex, out| put_number(out, ex.body.known_length().unwrap_or(0))),
    ),
    (
        "http2",
        Variable::Builtin(|ex, out| {
            let name: &[u8] = match ex.request.version {
                Version::V20 if ex.client.is_tls() => b"h2",
                Version::V20 => b"h2c",
                // As nginx: there, and empty.
                _ => b"",
            };
            put(out, name)
        }),
    ),
    (
        "document_root",
        Variable::Builtin(|ex, out| {
            crate::files::path::append_document_root(ex, out);
            true
        }),
    ),
    ("realpath_root", Variable::Builtin(realpath_root)),
    ("uri", Variable::Builtin(uri)),
    ("document_uri", Variable::Builtin(uri)),
    (
        "host",
        Variable::Builtin(|ex, out| match &ex.request.host[..] {
            b"" => put(out, ex.conf.server(ex.server).name().as_bytes()),
            host => put(out, host),
        }),
    ),
    ("hostname", Variable::Builtin(|ex, out| put(out, ex.conf.hostname.as_bytes()))),
    ("https", Variable::Builtin(|ex, out| put(out, if ex.is_https() { b"on" } else { b"" }))),
    ("is_args", Variable::Builtin(|ex, out| put(out, if ex.args.is_empty() { b"" } else { b"?" }))),
    (
        "is_request_port",
        Variable::Builtin(|ex, out| put(out, if ex.request.port.is_empty() { b"" } else { b":" })),
    ),
    ("request_port", Variable::Builtin(|ex, out| put(out, &ex.request.port))),
    ("nginx_version", Variable::Builtin(|_, out| put(out, crate::base::NGINX_VERSION.as_bytes()))),
    ("pid", Variable::Builtin(|_, out| put_number(out, std::process::id().into()))),
    ("remote_user", Variable::Builtin(remote_user)),
    ("request", Variable::Builtin(|ex, out| put(out, ex.request.line_text()))),
    (
        "request_body",
        Variable::Builtin(|ex, out| ex.body.in_memory().is_some_and(|body| put(out, body))),
    ),
    (
        "request_body_file",
        Variable::Builtin(|ex, out| {
            ex.body.file_path().is_some_and(|p| put(out, p.as_os_str().as_encoded_bytes()))
        }),
    ),
    (
        "request_completion",
        Variable::Builtin(|ex, out| put(out, if ex.is_complete { b"OK" } else { b"" })),
    ),
    (
        "request_filename",
        Variable::Builtin(|ex, out| {
            let was = out.len();
            crate::files::path::append_file_of(ex, &ex.uri, out);
            out.len() > was
        }),
    ),
    ("request_id", Variable::Builtin(request_id)),
    (
        "request_length",
        Variable::Builtin(|ex, out| put_number(out, ex.request_bytes + ex.body.received())),
    ),
    ("request_uri", Variable::Builtin(|ex, out| put_known(out, ex.request.target()))),
    ("scheme", Variable::Builtin(|ex, out| put(out, ex.scheme()))),
    (
        "server_name",
        Variable::Builtin(|ex, out| put(out, ex.conf.server(ex.server).name().as_bytes())),
    ),
    (
        "server_protocol",
        Variable::Builtin(|ex, out| match ex.request.version {
            Version::V09 => put(out, b"HTTP/0.9"),
            Version::V10 => put(out, b"HTTP/1.0"),
            Version::V11 => put(out, b"HTTP/1.1"),
            Version::V20 => put(out, b"HTTP/2.0"),
            Version::V30 => put(out, b"HTTP/3.0"),
        }),
    ),
    (
        "status",
        Variable::Builtin(|ex, out| {
            // An `error_page` has decided it, not its page.
            let settled = ex.final_status().unwrap_or(ex.status);
            // By hand, as in `decimal`.
            let digit = |scale: u16| b'0' + u8::try_from(settled / scale % 10).unwrap_or(0);
            put(out, &[digit(100), digit(10), digit(1)])
        }),
    ),
    (
        "binary_remote_addr",
        Variable::Builtin(|ex, out| match ex.remote.ip() {
            Some(std::net::IpAddr::V4(ip)) => put(out, &ip.octets()),
            Some(std::net::IpAddr::V6(ip)) => put(out, &ip.octets()),
            None => put(out, b"unix:"),
        }),
    ),
    ("connection", Variable::Builtin(|ex, out| put_number(out, ex.client.number))),
    ("connection_requests", Variable::Builtin(|ex, out| put_number(out, ex.client.requests.get()))),
    ("connection_time", Variable::Builtin(|ex, out| put_seconds(out, ex.client.since.elapsed()))),
    ("pipe", Variable::Builtin(|ex, out| put(out, if ex.is_pipelined { b"p" } else { b"." }))),
    ("remote_addr", Variable::Builtin(|ex, out| put(out, ex.remote.text.as_bytes()))),
    ("remote_port", Variable::Builtin(|ex, out| put_port(out, ex.remote.address))),
    ("realip_remote_addr", Variable::Builtin(|ex, out| put(out, ex.client.remote.text.as_bytes()))),
    ("realip_remote_port", Variable::Builtin(|ex, out| put_port(out, ex.client.remote.address))),
    (
        "proxy_protocol_addr",
        Variable::Builtin(|ex, out| put_ip(out, proxied(ex, |header| header.source))),
    ),
    (
        "proxy_protocol_port",
        Variable::Builtin(|ex, out| put_port(out, proxied(ex, |header| header.source))),
    ),
    (
        "proxy_protocol_server_addr",
        Variable::Builtin(|ex, out| put_ip(out, proxied(ex, |header| header.destination))),
    ),
    (
        "proxy_protocol_server_port",
        Variable::Builtin(|ex, out| put_port(out, proxied(ex, |header| header.destination))),
    ),
    (
        "server_addr",
        Variable::Builtin(|ex, out| match ex.client.local {
            Some(local) => put_address(out, local.ip()),
            None => put(out, ex.client.address.to_string().as_bytes()),
        }),
    ),
    (
        "server_port",
        Variable::Builtin(|ex, out| {
            ex.client.local.is_some_and(|local| put_number(out, local.port().into()))
        }),
    ),
    (
        "msec",
        Variable::Builtin(|_, out| {
            let now = std::time::SystemTime::now();
            put_seconds(out, now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default())
        }),
    ),
    ("request_time", Variable::Builtin(|ex, out| put_seconds(out, ex.request_time()))),
    ("time_iso8601", Variable::Builtin(|_, out| put(out, clock::now().iso8601.as_bytes()))),
    ("time_local", Variable::Builtin(|_, out| put(out, clock::now().local.as_bytes()))),
    (
        "upstream_addr",
        Variable::Builtin(|ex, out| attempts(ex, out, |a, out| put(out, a.peer.as_bytes()))),
    ),
    (
        "upstream_status",
        Variable::Builtin(|ex, out| {
            attempts(ex, out, |a, out| {
                if a.status == 0 { put(out, b"-") } else { put_number(out, a.status.into()) }
            })
        }),
    ),
    (
        "upstream_connect_time",
        Variable::Builtin(|ex, out| {
            attempts(ex, out, |a, out| put_optional_seconds(out, a.connect_time))
        }),
    ),
    (
        "upstream_header_time",
        Variable::Builtin(|ex, out| {
            attempts(ex, out, |a, out| put_optional_seconds(out, a.header_time))
        }),
    ),
    (
        "upstream_response_time",
        Variable::Builtin(|ex, out| {
            attempts(ex, out, |a, out| put_optional_seconds(out, a.response_time))
        }),
    ),
    (
        "upstream_last_addr",
        Variable::Builtin(|ex, out| {
            ex.attempts.last().is_some_and(|last| put(out, last.peer.as_bytes()))
        }),
    ),
    (
        "upstream_bytes_sent",
        Variable::Builtin(|ex, out| attempts(ex, out, |a, out| put_number(out, a.bytes_sent))),
    ),
    (
        "upstream_bytes_received",
        Variable::Builtin(|ex, out| attempts(ex, out, |a, out| put_number(out, a.bytes_received))),
    ),
    (
        "upstream_response_length",
        Variable::Builtin(|ex, out| attempts(ex, out, |a, out| put_number(out, a.response_bytes))),
    ),
    ("args", Variable::Args),
    ("query_string", Variable::Args),
    ("limit_rate", Variable::LimitRate),
    ("request_method", Variable::RequestMethod),
];

/// The root without symbolic links.
fn realpath_root(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let mut root = Scratch::take();
    crate::files::path::append_document_root(exchange, &mut root);
    match std::path::Path::new(std::ffi::OsStr::from_bytes(&root)).canonicalize() {
        Ok(path) => put(out, path.as_os_str().as_encoded_bytes()),
        Err(problem) => {
            let (root, why) = (error::verbatim(&root), error::os_error(&problem));
            error::request(exchange, Level::Crit, &format!("realpath() \"{root}\" failed ({why})"));
            false
        }
    }
}

fn request_id(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    put(out, base16ct::lower::encode_string(exchange.id()).as_bytes())
}

fn remote_user(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let value = exchange.request.known(exchange.request.known.authorization);
    let user = value.and_then(crate::exchange::credentials::basic_user);
    user.is_some_and(|user| put(out, &user))
}

fn put_optional_seconds(out: &mut Vec<u8>, time: Option<Duration>) -> bool {
    match time {
        Some(time) => put_seconds(out, time),
        None => put(out, b"-"),
    }
}

/// A request that could not be read has none, whatever path its answer is looked for with.
fn uri(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    !exchange.request.target().is_empty() && put(out, &exchange.uri)
}

/// One value per attempt, joined as nginx joins them.
fn attempts(
    exchange: &Exchange,
    out: &mut Vec<u8>,
    one: impl Fn(&UpstreamAttempt, &mut Vec<u8>) -> bool,
) -> bool {
    for (index, attempt) in exchange.attempts.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(if attempt.is_led { b" : " } else { b", " });
        }
        one(attempt, out);
    }
    !exchange.attempts.is_empty()
}

/// What a proxy in front said of the connection.
fn proxied(
    exchange: &Exchange,
    wanted: fn(&ProxyHeader) -> Option<SocketAddr>,
) -> Option<SocketAddr> {
    exchange.client.proxied.get().and_then(|header| wanted(header))
}

fn put_ip(out: &mut Vec<u8>, address: Option<SocketAddr>) -> bool {
    address.is_some_and(|address| put_address(out, address.ip()))
}

fn put_port(out: &mut Vec<u8>, address: Option<SocketAddr>) -> bool {
    let port = address.map_or(0, |address| address.port());
    port > 0 && put_number(out, port.into())
}

fn put_address(out: &mut Vec<u8>, address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(address) => {
            // By hand, as in `decimal`.
            let (mut text, mut length) = ([b'.'; 16], 0);
            for octet in address.octets() {
                for (least, scale) in [(100, 100), (10, 10), (0, 1)] {
                    if octet >= least {
                        text[length] = b'0' + octet / scale % 10;
                        length += 1;
                    }
                }
                text[length] = b'.';
                length += 1;
            }
            put(out, &text[..length - 1])
        }
        std::net::IpAddr::V6(address) => write!(out, "{address}").is_ok(),
    }
}

fn put_seconds(out: &mut Vec<u8>, time: Duration) -> bool {
    write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis()).is_ok()
}
