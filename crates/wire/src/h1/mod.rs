//! HTTP/1: request heads, field lines and chunked bodies.
//!
//! Positions are offsets into the caller's buffer, so that a head is read without a copy.

mod answer;
mod chunked;

pub use answer::{Answer, AnswerError, AnswerReader};
pub use chunked::{BareLf, Chunked, ChunkedStep};

use crate::eights::{line_break, name_bytes, target_bytes};
use crate::{WireError, target};
use memchr::memchr;
use std::ops::Range;

/// Offsets into the head's bytes.
pub type Span = Range<u32>;

/// HTTP version of a request.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Version {
    /// A request line without version.
    V09,
    /// HTTP/1.0
    V10,
    /// HTTP/1.1, and any later minor version.
    V11,
    /// HTTP/2, whose requests are shown as if they had a line.
    V20,
    /// HTTP/3, as HTTP/2.
    V30,
}

/// A request line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestLine {
    /// The method.
    pub method: Span,
    /// The target as written.
    pub target: Span,
    /// The authority of an absolute-form target.
    pub authority: Option<Span>,
    /// Path and query: the target without scheme and authority; may be empty for absolute-form.
    pub path_and_query: Span,
    /// The version.
    pub version: Version,
    /// Bytes before the line (empty lines a client may send between requests).
    pub start: u32,
    /// The line without its end.
    pub end: u32,
    /// Bytes up to and including the line's end.
    pub consumed: u32,
}

/// One field line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Field {
    /// The name as written.
    pub name: Span,
    /// The value without the spaces around it.
    pub value: Span,
    /// The name holds a byte outside `A-Za-z0-9-` (and `_` where allowed).
    pub is_invalid: bool,
}

/// How names with underscores are seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldRules {
    /// `underscores_in_headers on`
    pub underscores: bool,
}

/// `usize` offsets of a head fit: heads are bounded far below 4 GiB by the connection.
#[inline]
fn span(start: usize, end: usize) -> Span {
    let narrow = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
    narrow(start)..narrow(end)
}

/// The bytes of a span.
#[inline]
pub fn slice<'a>(bytes: &'a [u8], span: &Span) -> &'a [u8] {
    &bytes[range(span)]
}

/// Where the bytes of a span are.
#[inline]
pub fn range(span: &Span) -> Range<usize> {
    span.start as usize..span.end as usize
}

/// Reads a request line; `Ok(None)` if its end has not arrived. Leading CR and LF are skipped.
///
/// # Errors
/// As soon as the bytes at hand cannot become a request line.
///
/// # Source
/// RFC 9112, section 3; as nginx: a bare LF ends it, several spaces part it, no target has control bytes.
pub fn request_line(input: &[u8]) -> Result<Option<RequestLine>, WireError> {
    let start = input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let method_bytes = input[start..].iter().take_while(|byte| is_method_byte(**byte)).count();
    let method = start..start + method_bytes;
    match input.get(method.end) {
        None => return Ok(None),
        Some(b' ') if !method.is_empty() => {}
        Some(_) => return Err(WireError::Method),
    }
    let target_start = skip_spaces(input, method.end);
    let near = target_start + target_bytes(&input[target_start..]);
    let behind = input[near..].iter().take_while(|byte| is_target_byte(**byte)).count();
    let target = target_start..near + behind;
    let Some(after) = input.get(target.end) else {
        // A host may start with a digit, a path may not.
        if &input[method] != b"CONNECT" {
            target::check_start(&input[target])?;
        }
        return Ok(None);
    };
    if target.is_empty() || !matches!(after, b' ' | b'\r' | b'\n') {
        return Err(WireError::RequestLine);
    }
    let (authority, path_and_query) = match &input[method.clone()] {
        b"CONNECT" => (Some(target::authority_form(input, &target)?), target.end..target.end),
        _ => target::split(input, &target)?,
    };
    let Some((version, end, consumed)) = version_and_end(input, target.end)? else {
        return Ok(None);
    };
    if version == Version::V09 && &input[method.clone()] != b"GET" {
        return Err(WireError::RequestLine);
    }
    Ok(Some(RequestLine {
        method: span(method.start, method.end),
        target: span(target.start, target.end),
        authority: authority.map(|a| span(a.start, a.end)),
        path_and_query: span(path_and_query.start, path_and_query.end),
        version,
        start: span(start, start).start,
        end: span(end, end).start,
        consumed: span(consumed, consumed).start,
    }))
}

fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte == b'_' || byte == b'-'
}

fn is_target_byte(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

fn skip_spaces(input: &[u8], from: usize) -> usize {
    from + input[from..].iter().take_while(|byte| **byte == b' ').count()
}

/// Version, end of the line's text, and end of the line.
fn version_and_end(
    input: &[u8],
    from: usize,
) -> Result<Option<(Version, usize, usize)>, WireError> {
    // As nearly all requests have it.
    if input.get(from..).is_some_and(|rest| rest.starts_with(b" HTTP/1.1\r\n")) {
        return Ok(Some((Version::V11, from + 9, from + 11)));
    }
    let at = skip_spaces(input, from);
    match input.get(at) {
        None => return Ok(None),
        Some(b'\r' | b'\n') => {
            return Ok(line_end(input, at)?.map(|consumed| (Version::V09, at, consumed)));
        }
        Some(_) => {}
    }
    const NAME: &[u8] = b"HTTP/";
    let head = &input[at..input.len().min(at + NAME.len())];
    if !NAME.starts_with(head) {
        return Err(WireError::RequestLine);
    }
    let digits = at + NAME.len();
    let length = input.get(digits..).unwrap_or_default();
    let length = length.iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
    let Some(after) = input.get(digits + length) else {
        return version_begun(input.get(digits..).unwrap_or_default()).map(|()| None);
    };
    let version = version(&input[digits..digits + length])?;
    let end = digits + length;
    let line = if *after == b' ' { skip_spaces(input, end) } else { end };
    Ok(line_end(input, line)?.map(|consumed| (version, end, consumed)))
}

/// Refuses what can become no version of HTTP/1.
fn version_begun(text: &[u8]) -> Result<(), WireError> {
    match text {
        [] | [b'1'] | [b'1', b'.'] => Ok(()),
        [b'1', b'.', minor @ ..] if minor.len() <= 2 && !minor.contains(&b'.') => Ok(()),
        [b'2'..=b'9', ..] | [b'1', b'0'..=b'9', ..] => Err(WireError::Version),
        _ => Err(WireError::RequestLine),
    }
}

fn version(text: &[u8]) -> Result<Version, WireError> {
    // The same rules as while it arrives: else a refusal would depend on how the bytes are cut.
    version_begun(text)?;
    match text {
        b"1.0" | b"1.00" => Ok(Version::V10),
        [b'1', b'.', _, ..] => Ok(Version::V11),
        _ => Err(WireError::RequestLine),
    }
}

/// Position after CRLF or LF at `at`; `Ok(None)` if it has not arrived.
fn line_end(input: &[u8], at: usize) -> Result<Option<usize>, WireError> {
    match (input.get(at), input.get(at + 1)) {
        (Some(b'\n'), _) => Ok(Some(at + 1)),
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (None, _) | (Some(b'\r'), None) => Ok(None),
        _ => Err(WireError::RequestLine),
    }
}

/// Position after the empty line that ends the field section starting at `from`, searching from
/// `searched`; `None` if it has not arrived.
pub fn fields_end(input: &[u8], from: usize, searched: usize) -> Option<usize> {
    if input.get(from) == Some(&b'\n') {
        return Some(from + 1);
    }
    if input.get(from..from + 2) == Some(b"\r\n") {
        return Some(from + 2);
    }
    // Step back: the line's end may have arrived in pieces.
    let mut at = searched.saturating_sub(3).max(from);
    while let Some(offset) = memchr(b'\n', input.get(at..)?) {
        let line = at + offset + 1;
        match (input.get(line), input.get(line + 1)) {
            (Some(b'\n'), _) => return Some(line + 1),
            (Some(b'\r'), Some(b'\n')) => return Some(line + 2),
            _ => at = line,
        }
    }
    None
}

/// Reads the field lines of `input[from..to]`, where `to` is what [`fields_end`] gave.
///
/// # Errors
/// [`WireError::FieldLine`] for a NUL, a bare CR, an empty name or a name with control bytes.
///
/// # Source
/// RFC 9112, section 5; as nginx, a line may end with a bare LF, a name without colon has an
/// empty value, and a tab around a value is part of it: readers disagree on a length of `\t5`.
pub fn fields(
    input: &[u8],
    from: usize,
    to: usize,
    rules: FieldRules,
    out: &mut Vec<Field>,
) -> Result<(), WireError> {
    let mut at = from;
    while at < to {
        match next_line(&input[..to], at, rules, |byte| byte == b' ')? {
            Line::Field(field, end) => {
                out.push(field);
                at = end;
            }
            Line::Empty(_) => return Ok(()),
            Line::Partial => return Err(WireError::FieldLine),
        }
    }
    Ok(())
}

/// As [`fields`], of a head whose end was not looked for; returns it. `None` if it is not there, and for what `fields` refuses: the
/// end is not known then.
pub fn fields_at_once(
    input: &[u8],
    from: usize,
    rules: FieldRules,
    out: &mut Vec<Field>,
) -> Option<usize> {
    let mut at = from;
    loop {
        match next_line(input, at, rules, |byte| byte == b' ').ok()? {
            Line::Field(field, end) => {
                out.push(field);
                at = end;
            }
            Line::Empty(end) => return Some(end),
            Line::Partial => return None,
        }
    }
}

/// Reads the field lines that have arrived of a section whose end has not, and judges what has arrived of the next one;
/// returns where that begins.
///
/// # Errors
/// As [`fields`], as soon as the bytes at hand cannot become such lines.
pub fn fields_begun(
    input: &[u8],
    from: usize,
    rules: FieldRules,
    out: &mut Vec<Field>,
) -> Result<usize, WireError> {
    let mut at = from;
    loop {
        match next_line(input, at, rules, |byte| byte == b' ')? {
            Line::Field(field, end) => {
                out.push(field);
                at = end;
            }
            Line::Empty(_) => return Ok(at),
            Line::Partial => break,
        }
    }
    // The first byte of a line's end may be there.
    let rest = &input[at..];
    let line = rest.strip_suffix(b"\r").unwrap_or(rest);
    let kind = |byte: &u8| NAME_BYTES[usize::from(*byte)];
    let name = line.split(|byte| kind(byte) == COLON).next().unwrap_or_default();
    match name.is_empty() && !line.is_empty() || name.iter().any(|byte| kind(byte) & BROKEN != 0) {
        true => Err(WireError::FieldLine),
        false => Ok(at),
    }
}

/// A line of a field section, and the position behind it.
enum Line {
    Field(Field, usize),
    /// The section ends.
    Empty(usize),
    /// Its end has not arrived.
    Partial,
}

/// The line at a position; what `is_around` a value is no part of it.
#[inline]
fn next_line(
    input: &[u8],
    at: usize,
    rules: FieldRules,
    is_around: impl Fn(u8) -> bool,
) -> Result<Line, WireError> {
    let rest = &input[at..];
    match rest {
        [b'\r', b'\n', ..] => return Ok(Line::Empty(at + 2)),
        [b'\n', ..] => return Ok(Line::Empty(at + 1)),
        _ => {}
    }
    // Most names are of bytes that any name may have, up to the colon: no line ends before it.
    let plain = name_bytes(rest);
    let colon = Some(plain).filter(|at| *at > 0 && rest.get(*at) == Some(&b':'));
    let searched = colon.unwrap_or(0);
    // A NUL before the end of a line ends it wrongly.
    let Some(length) = line_break(&rest[searched..]) else { return Ok(Line::Partial) };
    let length = searched + length;
    let end_bytes = match rest[length..] {
        [b'\n', ..] => 1,
        [b'\r', b'\n', ..] => 2,
        [b'\r'] => return Ok(Line::Partial),
        _ => return Err(WireError::FieldLine),
    };
    let end = at + length + end_bytes;
    let line = &rest[..length];
    let Some(colon) = colon else {
        return Ok(Line::Field(unusual_field(line, at, rules, is_around)?, end));
    };
    let field = Field {
        name: span(at, at + colon),
        value: value(line, at, colon + 1, is_around),
        is_invalid: false,
    };
    Ok(Line::Field(field, end))
}

/// Kinds of bytes in a field name, beside those of any name: bits that a whole name is judged by.
const UNDERSCORE: u8 = 1;
const OTHER: u8 = 2;
const BROKEN: u8 = 4;
/// Ends a name.
const COLON: u8 = 8;

/// The kind of each byte.
const NAME_BYTES: [u8; 256] = {
    let mut kinds = [OTHER; 256];
    let mut byte = 0u8;
    loop {
        kinds[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => 0,
            b'_' => UNDERSCORE,
            b':' => COLON,
            0..=b' ' | 0x7f => BROKEN,
            _ => OTHER,
        };
        if byte == u8::MAX {
            break kinds;
        }
        byte += 1;
    }
};

/// A line without its end, NUL and CR; what `is_around` a value is no part of it.
#[inline(never)]
fn unusual_field(
    line: &[u8],
    at: usize,
    rules: FieldRules,
    is_around: impl Fn(u8) -> bool,
) -> Result<Field, WireError> {
    let mut kinds = 0;
    let colon = line.iter().position(|byte| {
        let kind = NAME_BYTES[usize::from(*byte)];
        kinds |= kind;
        kind == COLON
    });
    let name_bytes = colon.unwrap_or(line.len());
    if name_bytes == 0 || kinds & BROKEN != 0 {
        return Err(WireError::FieldLine);
    }
    let is_invalid = kinds & OTHER != 0 || (kinds & UNDERSCORE != 0 && !rules.underscores);
    let value = match colon {
        Some(colon) => value(line, at, colon + 1, is_around),
        // It stands behind the colon that is not there.
        None => span(at + name_bytes + 1, at + name_bytes + 1),
    };
    Ok(Field { name: span(at, at + name_bytes), value, is_invalid })
}

/// The value that begins at a position of a line.
#[inline]
fn value(line: &[u8], at: usize, from: usize, is_around: impl Fn(u8) -> bool) -> Span {
    let value = trimmed(&line[from..], is_around);
    span(at + from + value.start, at + from + value.end)
}

/// The part of a value without what stands around it.
fn trimmed(value: &[u8], is_around: impl Fn(u8) -> bool) -> Range<usize> {
    let start = value.iter().take_while(|byte| is_around(**byte)).count();
    let end = value.iter().rposition(|byte| !is_around(*byte)).map_or(start, |last| last + 1);
    start..end
}

/// The status line of an HTTP upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatusLine {
    /// The version.
    pub version: Version,
    /// 100 to 999.
    pub status: u16,
    /// The reason phrase; may be empty.
    pub reason: Span,
    /// Bytes up to and including the line's end.
    pub consumed: usize,
}

/// Reads a status line; `Ok(None)` if its end has not arrived.
///
/// # Errors
/// [`WireError::UpstreamStatus`] as soon as the bytes at hand cannot become one.
///
/// # Source
/// RFC 9112, section 4; as nginx, several spaces before the status, and the reason may be missing.
pub fn status_line(input: &[u8]) -> Result<Option<StatusLine>, WireError> {
    const NAME: &[u8] = b"HTTP/";
    if let Some(line) = usual_status_line(input) {
        return Ok(Some(line));
    }
    let broken = WireError::UpstreamStatus;
    let start = &input[..input.len().min(NAME.len())];
    if !NAME.starts_with(start) {
        return Err(broken);
    }
    let Some(end) = memchr(b'\n', input) else { return Ok(None) };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let digits =
        line[NAME.len()..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
    let version_end = NAME.len() + digits;
    let version = version(&line[NAME.len()..version_end]).map_err(|_| broken)?;
    let status_start = skip_spaces(line, version_end);
    let status_end = status_start + 3;
    let digits = line.get(status_start..status_end).filter(|_| status_start > version_end);
    let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit)).ok_or(broken)?;
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    if status < 100 || !matches!(line.get(status_end), None | Some(b' ')) {
        return Err(broken);
    }
    let reason_start = skip_spaces(line, status_end);
    let reason = span(reason_start, line.len());
    Ok(Some(StatusLine { version, status, reason, consumed: end + 1 }))
}

/// One that is as nearly all answers have it.
fn usual_status_line(input: &[u8]) -> Option<StatusLine> {
    let (digits, rest) = input.strip_prefix(b"HTTP/1.1 ")?.split_first_chunk::<4>()?;
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' '] = *digits else { return None };
    let status = [a, b, c].iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let length = line_break(rest)?;
    if rest.starts_with(b" ") || !rest[length..].starts_with(b"\r\n") {
        return None;
    }
    let start = input.len() - rest.len();
    let (reason, consumed) = (span(start, start + length), start + length + 2);
    Some(StatusLine { version: Version::V11, status, reason, consumed })
}

/// Reads the head a CGI program or HTTP upstream wrote: field lines up to an empty line.
///
/// Returns the fields and the position of the body; `Ok(None)` if the end has not arrived.
///
/// # Errors
/// [`WireError::UpstreamHead`] for a line that is not a field line.
pub fn upstream_fields(
    input: &[u8],
    from: usize,
) -> Result<Option<(Vec<Field>, usize)>, WireError> {
    let mut out = Vec::new();
    Ok(upstream_fields_into(input, from, &mut out)?.map(|end| (out, end)))
}

/// As [`upstream_fields`], into a list that has room already.
///
/// # Errors
/// As [`upstream_fields`].
pub fn upstream_fields_into(
    input: &[u8],
    from: usize,
    out: &mut Vec<Field>,
) -> Result<Option<usize>, WireError> {
    if let Ok(end) = upstream_lines(input, from, out) {
        return Ok(end);
    }
    // What is broken is judged when all of the head is there.
    if fields_end(input, from, from).is_none() {
        return Ok(None);
    }
    out.clear();
    let behind = behind_status_lines(input, from);
    let end = upstream_lines(input, behind, out).ok().filter(|_| behind > from);
    end.ok_or(WireError::UpstreamHead)
}

/// Where the status lines end that stand in the place of fields: some upstreams say theirs twice, or where no one asks for it.
///
/// # Source
/// nginx, `ngx_http_parse_header_line`.
fn behind_status_lines(input: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Ok(Some(line)) = status_line(&input[at..]) {
        at += line.consumed;
    }
    at
}

/// Reads lines up to an empty one; the position behind that, `Ok(None)` if it has not arrived.
fn upstream_lines(
    input: &[u8],
    from: usize,
    out: &mut Vec<Field>,
) -> Result<Option<usize>, WireError> {
    let rules = FieldRules { underscores: true };
    // RFC 9112, section 5.1: tabs may stand there, and no other program reads this head.
    let is_around = |byte| matches!(byte, b' ' | b'\t');
    let mut at = from;
    loop {
        match next_line(input, at, rules, is_around)? {
            Line::Field(field, end) => {
                out.push(field);
                at = end;
            }
            Line::Empty(end) => return Ok(Some(end)),
            Line::Partial => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chunked::chunk_size;
    use super::*;

    fn line(text: &str) -> Result<Option<(String, String, Version)>, WireError> {
        let bytes = text.as_bytes();
        let text = |span: &Span| String::from_utf8_lossy(slice(bytes, span)).into_owned();
        request_line(bytes)
            .map(|line| line.map(|l| (text(&l.method), text(&l.path_and_query), l.version)))
    }

    #[test]
    fn a_status_line_may_stand_before_the_fields() {
        let names = |text: &str| {
            let read = upstream_fields(text.as_bytes(), 0)?;
            Ok(read.map(|(fields, end)| {
                let name = |field: &Field| {
                    String::from_utf8_lossy(slice(text.as_bytes(), &field.name)).into_owned()
                };
                (fields.iter().map(name).collect::<Vec<_>>().join(" "), text[end..].to_owned())
            }))
        };
        let found = |names: &str| Ok(Some((names.to_owned(), "rest".to_owned())));
        assert_eq!(names("A: b\r\nC: d\r\n\r\nrest"), found("A C"));
        assert_eq!(names("HTTP/1.1 202 A\r\nA: b\r\n\r\nrest"), found("A"));
        assert_eq!(names(&"HTTP/1.1 200 OK\n".repeat(3)), Ok(None));
        assert_eq!(names("HTTP/1.0 200\nHTTP/1.1 200 OK\r\n\r\nrest"), found(""));
        let broken = [
            "HTTP/1.1 2xx A\r\nA: b\r\n\r\n",
            "A: b\r\nHTTP/1.1 202 A\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA b\r\n\r\n",
            "HTTPS/1.1 200 OK\r\n\r\n",
        ];
        for text in broken {
            assert_eq!(names(text), Err(WireError::UpstreamHead), "{text}");
        }
    }

    #[test]
    fn request_lines_are_read_in_every_accepted_form() {
        let table = [
            ("GET / HTTP/1.1\r\n", ("GET", "/", Version::V11)),
            ("GET / HTTP/1.0\n", ("GET", "/", Version::V10)),
            ("\r\nPOST  /a?b  HTTP/1.1  \r\n", ("POST", "/a?b", Version::V11)),
            ("GET /\r\n", ("GET", "/", Version::V09)),
            ("GET http://a.b:80/c HTTP/1.1\r\n", ("GET", "/c", Version::V11)),
            ("GET http://a.b?c HTTP/1.1\r\n", ("GET", "?c", Version::V11)),
            ("CONNECT a.b:443 HTTP/1.1\r\n", ("CONNECT", "", Version::V11)),
            ("M-SEARCH_X / HTTP/1.99\r\n", ("M-SEARCH_X", "/", Version::V11)),
        ];
        for (text, (method, path, version)) in table {
            let found = line(text).unwrap().unwrap();
            assert_eq!(found, (method.to_owned(), path.to_owned(), version), "{text:?}");
        }
    }

    #[test]
    fn a_target_is_judged_before_its_line_has_ended() {
        for begun in ["GET 1", "GET a:b", "GET /a\x7f", "GET /a\x01"] {
            assert_eq!(line(begun), Err(WireError::RequestLine), "{begun:?}");
        }
        for begun in ["GET /", "GET http:", "GET http://a", "CONNECT 1", "CONNECT a.b"] {
            assert_eq!(line(begun), Ok(None), "{begun:?}");
        }
    }

    #[test]
    fn connect_names_a_host_and_a_port() {
        for target in [":443", "a.b:", "a.b:x", "a/b:443", "a.b"] {
            let text = format!("CONNECT {target} HTTP/1.1\r\n");
            assert_eq!(line(&text), Err(WireError::RequestLine), "{text:?}");
        }
    }

    #[test]
    fn status_lines_are_read() {
        let read = |text: &str| {
            let line = status_line(text.as_bytes())?;
            Ok(line.map(|line| {
                let reason = String::from_utf8_lossy(slice(text.as_bytes(), &line.reason));
                (line.version, line.status, reason.into_owned())
            }))
        };
        let broken = Err(WireError::UpstreamStatus);
        assert_eq!(read("HTTP/1.1 200 OK\r\n"), Ok(Some((Version::V11, 200, "OK".into()))));
        for text in ["HTTP/1.1 200 OK\n", "HTTP/1.1  200  OK\r\n", "HTTP/1.1 200  OK\r\n"] {
            assert_eq!(read(text), Ok(Some((Version::V11, 200, "OK".into()))), "{text:?}");
        }
        assert_eq!(read("HTTP/1.1 404 \r\n"), Ok(Some((Version::V11, 404, String::new()))));
        assert_eq!(read("HTTP/1.1 200 O\tK\r\n"), Ok(Some((Version::V11, 200, "O\tK".into()))));
        assert_eq!(read("HTTP/1.0  404\n"), Ok(Some((Version::V10, 404, String::new()))));
        assert_eq!(read("HTTP/1.1 103 Early Hi"), Ok(None));
        assert_eq!(read("HT"), Ok(None));
        for text in ["<html>", "HTTP/1.1 20 OK\n", "HTTP/1.1 2000 OK\n", "HTTP/1.1200 OK\n"] {
            assert_eq!(read(text), broken, "{text}");
        }
        assert_eq!(read("HTTP/1.1 099 OK\n"), broken);
    }

    #[test]
    fn every_prefix_of_a_request_line_is_partial() {
        let text = "GET http://a.b/c HTTP/1.1\r\n";
        for end in 0..text.len() {
            assert_eq!(line(&text[..end]), Ok(None), "{:?}", &text[..end]);
        }
    }

    #[test]
    fn broken_request_lines_are_refused() {
        let table = [
            ("get / HTTP/1.1\r\n", WireError::Method),
            (" GET / HTTP/1.1\r\n", WireError::Method),
            ("\x16\x03\x01", WireError::Method),
            ("GET * HTTP/1.1\r\n", WireError::RequestLine),
            ("GET a HTTP/1.1\r\n", WireError::RequestLine),
            ("GET /\x01 HTTP/1.1\r\n", WireError::RequestLine),
            ("GET /\t HTTP/1.1\r\n", WireError::RequestLine),
            ("GET /a b HTTP/1.1\r\n", WireError::RequestLine),
            ("GET / HTTP/1.1\rX\n", WireError::RequestLine),
            ("GET / HTTX/1.1\r\n", WireError::RequestLine),
            ("GET / HTTP/01.1\r\n", WireError::RequestLine),
            ("GET / HTTP/1.\r\n", WireError::RequestLine),
            ("POST /\r\n", WireError::RequestLine),
            ("GET http:///a HTTP/1.1\r\n", WireError::RequestLine),
            ("CONNECT / HTTP/1.1\r\n", WireError::RequestLine),
            ("CONNECT a.b HTTP/1.1\r\n", WireError::RequestLine),
            ("GET / HTTP/2.0\r\n", WireError::Version),
        ];
        for (text, expected) in table {
            assert_eq!(line(text), Err(expected), "{text:?}");
        }
    }

    fn parsed(text: &str) -> Result<Vec<(String, String, bool)>, WireError> {
        let bytes = text.as_bytes();
        let end = fields_end(bytes, 0, 0).expect("complete");
        let mut out = Vec::new();
        fields(bytes, 0, end, FieldRules::default(), &mut out)?;
        let text = |span: &Span| String::from_utf8_lossy(slice(bytes, span)).into_owned();
        Ok(out.iter().map(|f| (text(&f.name), text(&f.value), f.is_invalid)).collect())
    }

    #[test]
    fn fields_are_trimmed_and_odd_names_are_marked() {
        let found =
            parsed("Host: a\r\nX:  b  \nTab:\t b \t \nc_d:1\nEmpty:\r\nNo-Colon\r\nQ!:2\r\n\r\n")
                .unwrap();
        let expected = [
            ("Host", "a", false),
            ("X", "b", false),
            ("Tab", "\t b \t", false),
            ("c_d", "1", true),
            ("Empty", "", false),
            ("No-Colon", "", false),
            ("Q!", "2", true),
        ];
        let expected: Vec<_> =
            expected.iter().map(|(n, v, i)| ((*n).to_owned(), (*v).to_owned(), *i)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn fields_that_two_readers_could_disagree_on_are_refused() {
        for text in [
            "A : b\r\n\r\n",
            ": b\r\n\r\n",
            " A: b\r\n\r\n",
            "A: b\r\n c\r\n\r\n",
            "A: b\0\r\n\r\n",
            "A: b\rc\r\n\r\n",
            "\x7f: b\r\n\r\n",
        ] {
            assert_eq!(parsed(text), Err(WireError::FieldLine), "{text:?}");
        }
    }

    #[test]
    fn fields_read_at_once_are_those_behind_whose_end_was_looked_for() {
        let heads = [
            "\r\n",
            "\nbody",
            "Host: a.example\r\nX-Long-Name_1: v\r\nA:b\nC:\td \r\n\r\nGET / HTTP/1.1\r\n",
            "No-Colon\r\nA:\r\nAccept: text/html, */*; q=0.8\r\n\r\n",
        ];
        let both = |head: &[u8]| {
            let (mut at_once, mut after) = (Vec::new(), Vec::new());
            let rules = FieldRules::default();
            let found = fields_at_once(head, 0, rules, &mut at_once).map(|end| (end, at_once));
            let end = fields_end(head, 0, 0);
            let read = end.map(|end| fields(head, 0, end, rules, &mut after).map(|()| end));
            let wanted = read.and_then(Result::ok).map(|end| (end, after));
            assert_eq!(found, wanted, "{:?}", String::from_utf8_lossy(head));
            found.is_some()
        };
        let mut count = 0;
        for head in heads {
            for at in 0..head.len() {
                count += usize::from(both(&head.as_bytes()[..at]));
                for byte in *b"\0\t\n\r :_x\x7f\xff" {
                    let mut changed = head.as_bytes().to_vec();
                    changed[at] = byte;
                    count += usize::from(both(&changed));
                }
            }
            assert!(both(head.as_bytes()));
        }
        assert!(count > 300, "{count}");
    }

    #[test]
    fn the_end_of_fields_is_found_though_it_arrives_in_pieces() {
        let text = b"A: b\r\nC: d\r\n\r\nrest";
        for cut in 0..14 {
            assert_eq!(fields_end(&text[..cut], 0, 0), None, "{cut}");
            assert_eq!(fields_end(text, 0, cut), Some(14), "{cut}");
        }
        assert_eq!(fields_end(b"\r\n", 0, 0), Some(2));
        assert_eq!(fields_end(b"A: b\n\n", 0, 0), Some(6));
    }

    fn dechunk(input: &[u8], piece: usize, lf: BareLf) -> Result<(Vec<u8>, usize), WireError> {
        let (mut chunked, mut body, mut used) = (Chunked::new(lf), Vec::new(), 0);
        let mut end = 0;
        while !chunked.is_done() {
            end = (end + piece).min(input.len());
            loop {
                match chunked.next(&input[used..end])? {
                    ChunkedStep::Data(range) => {
                        body.extend_from_slice(&input[used + range.start..used + range.end]);
                        used += range.end;
                    }
                    ChunkedStep::Done(bytes) => {
                        used += bytes;
                        break;
                    }
                    ChunkedStep::Partial(bytes) => {
                        used += bytes;
                        break;
                    }
                }
            }
            if end == input.len() && !chunked.is_done() {
                return Err(WireError::Chunk);
            }
        }
        Ok((body, used))
    }

    #[test]
    fn chunks_are_joined_whatever_the_pieces() {
        let input = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: r\r\n\r\nNEXT";
        for piece in 1..input.len() {
            let (body, used) = dechunk(input, piece, BareLf::Refuse).unwrap();
            assert_eq!((&body[..], used), (&b"abc0123456789"[..], input.len() - 4), "{piece}");
        }
    }

    #[test]
    fn trailers_are_bounded_together() {
        let body = |lines: usize| format!("0\r\n{}\r\n", "T: 34567\r\n".repeat(lines)).into_bytes();
        // Lines of eight bytes, 8,192 at most.
        assert!(dechunk(&body(1024), 4096, BareLf::Refuse).is_ok());
        assert_eq!(dechunk(&body(1025), 4096, BareLf::Refuse), Err(WireError::Chunk));
    }

    #[test]
    fn an_upstreams_values_are_trimmed_of_tabs() {
        let head = b"Content-Length:\t 5 \t\r\nX:\t\r\n\r\n";
        let (fields, _) = upstream_fields(head, 0).unwrap().unwrap();
        let values: Vec<_> = fields.iter().map(|field| slice(head, &field.value)).collect();
        assert_eq!(values, [&b"5"[..], b""]);
    }

    #[test]
    fn chunk_sizes_are_read_strictly() {
        let table: &[(&str, Option<u64>)] = &[
            ("5", Some(5)),
            ("aF", Some(0xaf)),
            ("0", Some(0)),
            ("000", Some(0)),
            ("00000000000000000005", Some(5)),
            ("5 ", Some(5)),
            ("5\t", Some(5)),
            ("5 \t;a=b", Some(5)),
            ("5;a=\"b c\"", Some(5)),
            ("5;", Some(5)),
            ("fffffffffffffff", Some((1 << 60) - 1)),
            ("1000000000000000", None),
            ("ffffffffffffffff", None),
            ("10000000000000005", None),
            ("", None),
            (" 5", None),
            ("\t5", None),
            ("+5", None),
            ("-5", None),
            ("0x5", None),
            ("5h", None),
            ("5 5", None),
            ("5,5", None),
            ("5_0", None),
            ("5.0", None),
            ("5\x0c", None),
            ("5\x0b", None),
            ("5\0", None),
            ("5;\0", None),
            ("5;a\x0b", None),
            ("5\x7f", None),
            ("5\u{a0}", None),
            ("5 a", None),
        ];
        for (line, expected) in table {
            assert_eq!(chunk_size(line.as_bytes()).ok(), *expected, "{line:?}");
        }
    }

    #[test]
    fn chunked_framing_is_strict() {
        for text in [
            "g\r\n",
            "\r\n",
            "\n3\r\nabc\r\n0\r\n\r\n",
            "3\r\nabcX\r\n0\r\n\r\n",
            "3\r\nabc\r\n\r\n0\r\n\r\n",
            "3\r\r\nabc\r\n0\r\n\r\n",
            "3;a\rb\r\nabc\r\n0\r\n\r\n",
            "3\r\nabc\r0\r\n\r\n",
            "3\r\nabc0\r\n\r\n",
            "1000000000000000\r\n",
            "3\nabc\n0\n\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabc\r\n0\n\r\n",
            "3\r\nabc\r\n0\r\n\n",
            "3\r\nabc\r\n0\r\nT: a\rb\r\n\r\n",
            "3\r\nabc\r\n0\r\n",
            "3\r\nabc\r\n",
        ] {
            assert!(dechunk(text.as_bytes(), 64, BareLf::Refuse).is_err(), "{text:?}");
            assert!(dechunk(text.as_bytes(), 1, BareLf::Refuse).is_err(), "{text:?}");
        }
        assert!(dechunk(b"3\nabc\n0\n\n", 64, BareLf::Accept).is_ok());
    }
}
