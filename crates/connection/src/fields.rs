//! Fields of HTTP/2 and HTTP/3: from those of a head to a request as the rest of the server knows it, and which ones a
//! response may have.

use crate::head::{Bounds, Received, Refusal, interpret};
use bytes::Bytes;
use std::ops::Range;
use yorozu_http::field;
use yorozu_http::uri::split_authority;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::logging::error::verbatim;
use yorozu_wire::h1::{RequestLine, Version};

/// What is malformed about content of another length than `Content-Length` says (RFC 9113, section 8.1.1; RFC 9114, section 4.1.2).
pub(super) const OTHER_LENGTH: &str = "body of another length than the client said";

/// The fields of a head.
#[derive(Debug, Default)]
pub(super) struct FieldList {
    text: Vec<u8>,
    /// Where each name and its value end.
    ends: Vec<(usize, usize)>,
}

impl FieldList {
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// Appends a field. Whether all are within the bounds, which count names and values, as nginx's.
    pub(super) fn put(&mut self, name: &[u8], value: &[u8], bounds: &Bounds) -> bool {
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len()));
        name.len().max(value.len()) <= bounds.line_bytes_max
            // A name may be empty until it is judged.
            && self.text.len().max(self.ends.len()) <= bounds.head_bytes_max
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut at = 0;
        self.ends.iter().map(move |(name_end, value_end)| {
            let field = (&self.text[at..*name_end], &self.text[*name_end..*value_end]);
            at = *value_end;
            field
        })
    }

    /// Whether they may stand behind a body: none is malformed, or belongs to a head alone.
    pub(super) fn are_trailers(&self) -> bool {
        self.iter().all(|(name, value)| judge(name, value).is_ok())
    }
}

/// A head that is malformed (RFC 9113, section 8.1.1), in the words of the log.
type Malformed = &'static str;

/// What a head says of its request's line.
#[derive(Default)]
struct Line<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
}

impl<'a> Line<'a> {
    fn of(list: &'a FieldList) -> (Self, Option<Malformed>) {
        let (mut line, mut problem, mut has_fields) = (Self::default(), None, false);
        for (name, value) in list.iter() {
            let found = if name.starts_with(b":") {
                match has_fields {
                    true => Err("client sent a pseudo-header field behind others"),
                    false => line.pseudo(name, value),
                }
            } else {
                has_fields = true;
                let is_second = name == b"host" && line.host.replace(value).is_some();
                match is_second {
                    true => Err("client sent duplicate host header"),
                    false => judge(name, value),
                }
            };
            problem = problem.or(found.err());
        }
        (line, problem)
    }

    fn pseudo(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), Malformed> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":path" => &mut self.path,
            b":authority" => &mut self.authority,
            _ => return Err("client sent unknown pseudo-header field"),
        };
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err("client sent duplicate pseudo-header field"),
        }
    }

    fn is_connect(&self) -> bool {
        self.method == Some(b"CONNECT")
    }

    fn judge(&self) -> Result<(), Malformed> {
        // As nginx: what is visible; the rest of the server reads more closely.
        let is_visible = |text: &[u8]| text.iter().all(|byte| *byte > b' ' && *byte != 127);
        let is_scheme = |text: &[u8]| {
            text.first().is_some_and(u8::is_ascii_alphabetic)
                && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
        };
        match self.method {
            None => return Err("client sent no :method header"),
            Some(b"") => return Err("client sent empty :method header"),
            Some(_) => {}
        }
        if self.authority.is_some_and(|authority| !is_visible(authority)) {
            return Err("client sent invalid :authority header");
        }
        if self.is_connect() {
            return Ok(());
        }
        match self.scheme {
            None => return Err("client sent no :scheme header"),
            Some(scheme) if !is_scheme(scheme) => return Err("client sent invalid :scheme header"),
            Some(_) => {}
        }
        match self.path {
            None => Err("client sent no :path header"),
            Some(b"") => Err("client sent empty :path header"),
            Some(path) if path.starts_with(b"/") && is_visible(path) => Ok(()),
            Some(_) => Err("client sent invalid :path header"),
        }
    }
}

/// Judges a field that is not the line's (RFC 9113, sections 8.2.1 and 8.2.2); names as nginx does.
fn judge(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    let is_invalid =
        |byte: &u8| *byte <= b' ' || matches!(byte, b':' | 127..) || byte.is_ascii_uppercase();
    if name.is_empty() || name.iter().any(is_invalid) {
        return Err("client sent invalid header name");
    }
    if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        return Err("client sent header with invalid value");
    }
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            Err("client sent header field of HTTP/1")
        }
        b"te" if value != b"trailers" => Err("client sent invalid \"TE\" header"),
        _ => Ok(()),
    }
}

/// A head that was read.
pub(super) struct Read {
    /// As if it had come as lines.
    pub(super) request: Request,
    /// Why it is refused, if it is.
    pub(super) refusal: Option<Refusal>,
    /// Whether its stream ends with an error for it.
    pub(super) is_malformed: bool,
}

/// Reads a head of HTTP/2 or HTTP/3.
pub(super) fn read(list: &FieldList, version: Version, bounds: &Bounds) -> Read {
    let (line, problem) = Line::of(list);
    let problem = problem.or(line.judge().err());
    let mut text = Text(Vec::with_capacity(list.text.len() + 64 + 4 * list.ends.len()));
    let is_plain =
        |text: &&[u8]| !text.is_empty() && text.iter().all(|byte| *byte > b' ' && *byte != 127);
    let method = text.put(line.method.filter(is_plain).unwrap_or(b"-"));
    text.0.push(b' ');
    let path_and_query = text.put(line.path.filter(is_plain).unwrap_or(b"*"));
    text.0.extend_from_slice(if version == Version::V30 { b" HTTP/3.0" } else { b" HTTP/2.0" });
    let end = text.at();
    text.0.extend_from_slice(b"\r\n");
    let consumed = text.at();
    let request_line = RequestLine {
        method,
        target: path_and_query.clone(),
        authority: None,
        path_and_query,
        version,
        start: 0,
        end,
        consumed,
    };
    if let Some(problem) = problem {
        // Its line is enough for the log.
        text.0.extend_from_slice(b"\r\n");
        let mut request = Request::unread(Bytes::from(text.0));
        crate::head::fill_line(&mut request, &request_line);
        // Its server is that of the host it names, as far as that can be read.
        if let Some((host, port)) = line.authority.or(line.host).and_then(split_authority) {
            let port = Bytes::copy_from_slice(port.unwrap_or_default());
            (request.host, request.port) = (Bytes::from(host.into_owned()), port);
        }
        return Read { request, refusal: Some((400, problem.to_owned())), is_malformed: true };
    }
    let has_cookies = fields(list, &line, &mut text);
    text.0.extend_from_slice(b"\r\n");
    let refusal = refused(&line);
    // As nginx 1.31: cookies are not counted, nor is an authority that comes as a pseudo-header field.
    let is_uncounted = [has_cookies, line.authority.is_some() && line.host.is_none()];
    let uncounted = is_uncounted.into_iter().map(usize::from).sum();
    let bounds = Bounds { fields_max: bounds.fields_max.saturating_add(uncounted), ..*bounds };
    let (request, refusal) = match interpret(Bytes::from(text.0), &request_line, None, &bounds) {
        Received::Request(request) => (request, refusal),
        Received::Bad { status, text, request } => {
            (request, Some(refusal.unwrap_or((status, text))))
        }
        Received::Partial => {
            unreachable!("a head that is whole is read or refused")
        }
    };
    Read { request, refusal, is_malformed: false }
}

/// What is well formed, and not answered.
fn refused(line: &Line<'_>) -> Option<Refusal> {
    let method = line.method.unwrap_or_default();
    // As in HTTP/1: upstreams may read others differently.
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
    if !method.iter().all(is_method) {
        let method = verbatim(method);
        return Some((400, format!("client sent invalid method: \"{method}\"")));
    }
    if line.is_connect() {
        return Some((405, "client sent CONNECT method".to_owned()));
    }
    match (line.host, line.authority) {
        (Some(host), Some(authority)) if host != authority => {
            let text = "client sent \":authority\" and \"Host\" headers with different values";
            Some((400, text.to_owned()))
        }
        _ => None,
    }
}

/// Writes the field lines. Whether one of them is of cookies.
fn fields(list: &FieldList, line: &Line<'_>, text: &mut Text) -> bool {
    if let Some(authority) = line.authority {
        text.line(b"host", authority);
    }
    let mut cookies = 0;
    for (name, value) in list.iter().filter(|(name, _)| !name.starts_with(b":")) {
        if name == b"cookie" {
            cookies += 1;
        } else if name != b"host" || line.authority.is_none() {
            text.line(name, value);
        }
    }
    let has_cookies = cookies > 0;
    if has_cookies {
        // Clients may split them over fields (RFC 9113, section 8.2.3).
        text.0.extend_from_slice(b"cookie: ");
        for (_, value) in list.iter().filter(|(name, _)| *name == b"cookie") {
            text.0.extend_from_slice(value);
            cookies -= 1;
            text.0.extend_from_slice(if cookies > 0 { b"; " } else { b"\r\n" });
        }
    }
    has_cookies
}

/// A head under construction.
struct Text(Vec<u8>);

impl Text {
    fn at(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn put(&mut self, bytes: &[u8]) -> Range<u32> {
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

/// Whether a response may have a field of this name (RFC 9113, section 8.2.2; RFC 9114, section 4.2).
pub(super) fn may_send(name: &[u8]) -> bool {
    !is_of_connection(name) && name.iter().all(|byte| IS_OF_NAME[usize::from(*byte)])
}

/// Bytes of tokens (RFC 9110, section 5.6.2).
const IS_OF_NAME: [bool; 256] = {
    let (mut table, mut byte) = ([false; 256], 0);
    while byte < 128 {
        // Visible, but for those that part something.
        table[byte] = matches!(byte as u8, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// Fields that HTTP/2 and HTTP/3 forbid.
fn is_of_connection(name: &[u8]) -> bool {
    let is = |known: &[u8]| field::is_same(known, name);
    // By length first: most names are none of these.
    match name.len() {
        2 => is(b"te"),
        7 => is(b"upgrade"),
        10 => is(b"connection") || is(b"keep-alive"),
        16 => is(b"proxy-connection"),
        17 => is(b"transfer-encoding"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

    fn read_of<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Read {
        let bounds = Bounds { fields_max: 10, drops_invalid: true, ..Bounds::NONE };
        let mut list = FieldList::default();
        for (name, value) in fields {
            list.put(name.as_bytes(), value.as_bytes(), &bounds);
        }
        read(&list, Version::V20, &bounds)
    }

    /// Why a head of these pseudo-fields is refused.
    fn refusal(method: &str, scheme: &str) -> Option<String> {
        let [_, _, path, authority] = LINE;
        let read = read_of([(":method", method), (":scheme", scheme), path, authority]);
        assert!(!read.request.method_span.is_empty(), "it has a line, whatever is wrong with it");
        read.refusal.map(|(_, text)| text)
    }

    #[test]
    fn methods_and_schemes_have_their_bytes() {
        for scheme in ["http", "https", "H", "a+b-c.1"] {
            assert_eq!(refusal("GET", scheme), None, "{scheme}");
        }
        for scheme in ["", "1http", "+", "h ttp", "h:", "h\u{e9}"] {
            let text = refusal("GET", scheme);
            assert_eq!(text.as_deref(), Some("client sent invalid :scheme header"), "{scheme}");
        }
        let text = refusal("", "http");
        assert_eq!(text.as_deref(), Some("client sent empty :method header"));
    }
    #[test]
    fn none_of_many_fields_is_lost() {
        let read_with = |field, count| {
            read_of(LINE.into_iter().chain([field].repeat(count)).chain([("x-after", "1")]))
        };
        // Pieces of a cookie, and what is passed over.
        for field in [("cookie", "a"), ("x_y", "1")] {
            for count in [0, 1, 9, 10, 11, 12, 13, 14, 15, 16, 17, 100, 70_000] {
                let read = read_with(field, count);
                assert_eq!(read.refusal, None, "{field:?} {count}");
                assert_eq!(read.request.field(b"x-after"), Some(&b"1"[..]), "{field:?} {count}");
            }
        }
        assert_eq!(read_with(("x", "1"), 9).refusal, None);
        for count in [10, 11, 100, 70_000] {
            let text = read_with(("x", "1"), count).refusal.map(|(_, text)| text);
            assert_eq!(text.as_deref(), Some("client sent too many header lines"), "{count}");
        }
    }
}
