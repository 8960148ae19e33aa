//! From a stream's head to a request as the rest of the server knows it.

use super::Fields;
use crate::head::{Bounds, Received, Refusal, interpret};
use bytes::Bytes;
use http::Method;
use http::header::{COOKIE, HOST};
use http::request::Parts;
use http::uri::Authority;
use yorozu_kernel::exchange::request::Request;
use yorozu_wire::h1::{RequestLine, Version};

/// Whether a head exceeds `large_client_header_buffers`; counted as by nginx: names and values.
pub(super) fn is_too_large(parts: &Parts, bounds: &Bounds) -> bool {
    let optional = |text: Option<&str>| text.map_or(0, str::len);
    let target = parts.uri.path_and_query().map_or(1, |target| target.as_str().len());
    let pseudo = [
        (":method", parts.method.as_str().len()),
        (":scheme", optional(parts.uri.scheme_str())),
        (":authority", optional(parts.uri.authority().map(Authority::as_str))),
        (":path", target),
    ];
    let pseudo = pseudo.into_iter().map(|(name, value)| (name.len(), value));
    let fields = parts.headers.iter().map(|(name, value)| (name.as_str().len(), value.len()));
    let mut whole = 0;
    for (name, value) in pseudo.chain(fields) {
        whole += name + value;
        if name.max(value) > bounds.line_bytes_max || whole > bounds.head_bytes_max {
            return true;
        }
    }
    false
}

/// The request, as if it had come as lines, and why it is refused if it is.
pub(super) fn read(parts: &Parts, bounds: &Bounds) -> (Request, Option<Refusal>) {
    let mut text = Text(Vec::with_capacity(512));
    let method = text.put(parts.method.as_str().as_bytes());
    text.0.push(b' ');
    let target = parts.uri.path_and_query().map_or("*", |target| target.as_str());
    let path_and_query = text.put(target.as_bytes());
    text.0.extend_from_slice(b" HTTP/2.0");
    let end = text.at();
    text.0.extend_from_slice(b"\r\n");
    let consumed = text.at();
    let differs = fields(parts, &mut text);
    text.0.extend_from_slice(b"\r\n");
    let line = RequestLine {
        method,
        target: path_and_query.clone(),
        authority: None,
        path_and_query,
        version: Version::V20,
        start: 0,
        end,
        consumed,
    };
    // As in HTTP/1: upstreams may read others differently.
    let is_method = |byte: u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
    let refusal = if !parts.method.as_str().bytes().all(is_method) {
        Some((400, format!("client sent invalid method: \"{}\"", parts.method)))
    } else if parts.method == Method::CONNECT {
        Some((405, "client sent CONNECT method".to_owned()))
    } else if differs {
        let text = "client sent \":authority\" and \"Host\" headers with different values";
        Some((400, text.to_owned()))
    } else {
        None
    };
    match interpret(Bytes::from(text.0), &line, bounds) {
        Received::Request(request) => (request, refusal),
        Received::Bad { status, text, request } => {
            (request, Some(refusal.unwrap_or((status, text))))
        }
        Received::Closed | Received::TimedOut => {
            unreachable!("a head that is whole is read or refused")
        }
    }
}

/// Writes the field lines; `true` if the two ways to name the host differ.
fn fields(parts: &Parts, text: &mut Text) -> bool {
    let host = parts.headers.get(HOST).map(|host| host.as_bytes());
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    if let Some(authority) = authority {
        text.line(b"host", authority);
    }
    for (name, value) in &parts.headers {
        // Clients may split cookies over fields (RFC 9113, section 8.2.3).
        if name != COOKIE && !(name == HOST && authority.is_some()) {
            text.line(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    cookies(&parts.headers, text);
    matches!((host, authority), (Some(host), Some(authority)) if host != authority)
}

fn cookies(fields: &Fields, text: &mut Text) {
    let mut cookies = fields.get_all(COOKIE).iter();
    let Some(first) = cookies.next() else { return };
    text.0.extend_from_slice(b"cookie: ");
    text.0.extend_from_slice(first.as_bytes());
    for cookie in cookies {
        text.0.extend_from_slice(b"; ");
        text.0.extend_from_slice(cookie.as_bytes());
    }
    text.0.extend_from_slice(b"\r\n");
}

/// A head under construction.
struct Text(Vec<u8>);

impl Text {
    fn at(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn put(&mut self, bytes: &[u8]) -> std::ops::Range<u32> {
        let start = self.at();
        self.0.extend_from_slice(bytes);
        start..self.at()
    }

    fn line(&mut self, name: &[u8], value: &[u8]) {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }
}
