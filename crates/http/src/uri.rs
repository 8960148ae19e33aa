//! Request targets: normalising a path as nginx does before it matches locations, and escaping.

use percent_encoding::{
    AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode, percent_encode, percent_encode_byte,
};
use std::borrow::Cow;

/// A target's path after decoding and normalising, and its query as written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Normalized {
    /// Decoded path; always starts with `/`.
    pub path: Vec<u8>,
    /// What follows the first `?`, not decoded; `None` without `?`.
    pub args: Option<Vec<u8>>,
}

/// Why a target is refused with 400.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UriError {
    /// `..` climbs above the root.
    AboveRoot,
    /// `%` not followed by two hexadecimal digits.
    BadEscape,
    /// A NUL byte, escaped or not.
    Nul,
}

/// Decodes `%XX`, resolves `.` and `..`, merges slashes when asked, cuts the fragment.
///
/// # Errors
/// [`UriError`]; nginx answers 400 to each.
pub fn normalize(target: &[u8], merge_slashes: bool) -> Result<Normalized, UriError> {
    normalize_into(Vec::new(), Vec::new, target, merge_slashes)
}

/// As [`normalize`], with the path in a buffer that has room already, and the query in one of `args_room`.
///
/// # Errors
/// As [`normalize`].
pub fn normalize_into(
    mut path: Vec<u8>,
    args_room: impl FnOnce() -> Vec<u8>,
    target: &[u8],
    merge_slashes: bool,
) -> Result<Normalized, UriError> {
    let (raw_path, is_simple) = raw_path(target, merge_slashes);
    let args = match target.get(raw_path.len()) {
        Some(b'?') => target[raw_path.len() + 1..].split(|byte| *byte == b'#').next(),
        _ => None,
    };
    let args = args.map(|args| {
        let mut room = if args.is_empty() { Vec::new() } else { args_room() };
        room.extend_from_slice(args);
        room
    });
    if is_simple {
        path.extend_from_slice(raw_path);
        return Ok(Normalized { path, args });
    }
    let decoded = decode(raw_path)?;
    Ok(Normalized { path: resolve_dots(&decoded, merge_slashes)?, args })
}

/// The path of a target, and whether no segment needs work: there is no escape, and nothing like `//`, `/.`.
fn raw_path(target: &[u8], merge_slashes: bool) -> (&[u8], bool) {
    const MATTERS: [bool; 256] = table(b"?#%\0./");
    let (mut is_simple, mut before) = (true, 0);
    for (at, byte) in target.iter().enumerate() {
        if MATTERS[usize::from(*byte)] {
            let is_behind_slash = before == b'/';
            match byte {
                b'?' | b'#' => return (&target[..at], is_simple),
                b'.' => is_simple &= !is_behind_slash,
                b'/' => is_simple &= !(is_behind_slash && merge_slashes),
                _ => is_simple = false,
            }
        }
        before = *byte;
    }
    (target, is_simple)
}

/// Which bytes are among these.
const fn table(bytes: &[u8]) -> [bool; 256] {
    let (mut table, mut at) = ([false; 256], 0);
    while at < bytes.len() {
        table[bytes[at] as usize] = true;
        at += 1;
    }
    table
}

fn decode(raw: &[u8]) -> Result<Vec<u8>, UriError> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, tail)) = rest.split_first() {
        let (value, next) = if byte == b'%' {
            let (pair, next) = tail.split_first_chunk::<2>().ok_or(UriError::BadEscape)?;
            (hex_pair(*pair).ok_or(UriError::BadEscape)?, next)
        } else {
            (byte, tail)
        };
        if value == 0 {
            return Err(UriError::Nul);
        }
        decoded.push(value);
        rest = next;
    }
    Ok(decoded)
}

/// The byte that two hexadecimal digits say.
pub fn hex_pair([high, low]: [u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

fn resolve_dots(path: &[u8], merge_slashes: bool) -> Result<Vec<u8>, UriError> {
    let mut resolved: Vec<u8> = Vec::with_capacity(path.len());
    let mut segments =
        path.strip_prefix(b"/").unwrap_or(path).split(|byte| *byte == b'/').peekable();
    resolved.push(b'/');
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." => {}
            b".." => {
                resolved.pop();
                let parent = resolved.iter().rposition(|byte| *byte == b'/');
                resolved.truncate(parent.ok_or(UriError::AboveRoot)? + 1);
            }
            b"" if merge_slashes || is_last => {}
            _ => {
                resolved.extend_from_slice(segment);
                if !is_last {
                    resolved.push(b'/');
                }
            }
        }
    }
    Ok(resolved)
}

/// Reads a target that a page or an application names: only `%XX` is decoded, slashes and single dots stay as they are.
/// `None` if it is not a path, holds a NUL byte, or a `..` segment before or behind the decoding.
///
/// # Source
/// nginx, `ngx_http_parse_unsafe_uri`; as there, a path need not begin with a slash.
pub fn parse_unsafe(target: &[u8]) -> Option<Normalized> {
    let (raw, args) = match target.iter().position(|byte| *byte == b'?') {
        Some(at) => (&target[..at], Some(target[at + 1..].to_vec())),
        None => (target, None),
    };
    let path = if raw.contains(&b'%') { unescape_unsafe(raw) } else { raw.to_vec() };
    let is_unsafe = |path: &[u8]| {
        path.contains(&0) || path.split(|byte| *byte == b'/').any(|segment| segment == b"..")
    };
    let is_path = !path.is_empty() && !is_unsafe(raw) && !is_unsafe(&path);
    is_path.then_some(Normalized { path, args })
}

/// Decodes `%XX` as nginx's `ngx_unescape_uri`: of a broken escape the digits that are none stay, if they come first.
pub fn unescape_unsafe(raw: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        match rest.next() {
            None => {}
            Some(high) if !high.is_ascii_hexdigit() => decoded.push(*high),
            Some(high) => decoded.extend(rest.next().and_then(|low| hex_pair([*high, *low]))),
        }
    }
    decoded
}

/// Decodes `%XX` leniently: a broken escape stays as it is. For rewrite and `alias` results.
pub fn unescape(raw: &[u8]) -> Vec<u8> {
    percent_decode(raw).collect()
}

/// Decodes what needs no escape in a URL, up to and including a decoded `?`; the rest stays.
///
/// For redirects made by `rewrite`, as nginx does it: control bytes, spaces, `%` and non-ASCII bytes
/// stay escaped.
pub fn unescape_redirect(raw: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut index = 0;
    while index < raw.len() {
        let pair = raw.get(index + 1..index + 3).and_then(|pair| pair.try_into().ok());
        match (raw[index], pair.and_then(hex_pair)) {
            (b'%', Some(b'?')) => {
                decoded.push(b'?');
                decoded.extend_from_slice(&raw[index + 3..]);
                return decoded;
            }
            (b'%', Some(byte)) if byte > b'%' && byte < 0x7f => {
                decoded.push(byte);
                index += 3;
            }
            (b'?', _) => {
                decoded.extend_from_slice(&raw[index..]);
                return decoded;
            }
            (byte, _) => {
                decoded.push(byte);
                index += 1;
            }
        }
    }
    decoded
}

/// What is escaped, by use; nginx's `NGX_ESCAPE_*` sets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Escape {
    /// A path sent on or in `Location`: space, `#`, `%`, `?`, control and non-ASCII bytes.
    Path,
    /// An argument value: also `&`, `+` and `;`.
    Args,
    /// A name that is one part of a link: all but letters, digits, `-`, `.`, `_` and `~`.
    Component,
    /// A part of a URL, as the module set-misc has it.
    SetMisc,
    /// A link in HTML.
    Html,
    /// A key in memcached's text protocol: control bytes, space and `%`.
    Memcached,
}

const HTML: AsciiSet = with(CONTROLS.add(b' '), b"#%\"'<>\\^`{|}");
const PATH: AsciiSet = with(CONTROLS.add(b' '), b"#%?\"<>\\^`{|}");
const ARGS: AsciiSet = with(PATH, b"&+;");
const COMPONENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const SET_MISC: AsciiSet = with(CONTROLS.add(b' '), b"\"#%&+/:;<=>?[\\]^{}");

const fn with(set: AsciiSet, more: &[u8]) -> AsciiSet {
    match more {
        [] => set,
        [first, rest @ ..] => with(set.add(*first), rest),
    }
}

/// Appends `text` to `out`, escaping what `escape` names.
pub fn escape_into(out: &mut Vec<u8>, text: &[u8], escape: Escape) {
    let set = match escape {
        Escape::Path => &PATH,
        Escape::Args => &ARGS,
        Escape::Component => &COMPONENT,
        Escape::SetMisc => &SET_MISC,
        Escape::Html => &HTML,
        Escape::Memcached => {
            // An `AsciiSet` has all bytes that are not ASCII; here they stay.
            return text.iter().for_each(|byte| match byte {
                0..=b' ' | b'%' | 0x7f => out.extend(percent_encode_byte(*byte).as_bytes()),
                _ => out.push(*byte),
            });
        }
    };
    percent_encode(text, set).for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

/// Escapes what would end the target of a request line, in what stands at `at` and behind it.
pub fn escape_breaks(out: &mut Vec<u8>, at: usize) {
    let is_break = |byte: u8| byte <= b' ' || byte == 0x7f;
    if !out[at..].iter().fold(false, |has_break, byte| has_break | is_break(*byte)) {
        return;
    }
    for byte in out.split_off(at) {
        match is_break(byte) {
            true => out.extend_from_slice(percent_encode_byte(byte).as_bytes()),
            false => out.push(byte),
        }
    }
}

/// A path with the arguments of its query, if there are any.
pub fn with_args(path: &[u8], args: &[u8]) -> Vec<u8> {
    let mark: &[u8] = if args.is_empty() { b"" } else { b"?" };
    [path, mark, args].concat()
}

/// A host, and the port behind it.
pub type Authority<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// A host as `server_name` compares it: lower case, port and trailing dot cut off.
///
/// `None` if it cannot be a host (nginx answers 400). Returns the host and the port as written.
///
/// # Source
/// RFC 3986, section 3.2.2; as nginx, an address in brackets is not read, and no label but the last is empty.
pub fn split_authority(authority: &[u8]) -> Option<Authority<'_>> {
    let (host, rest, kinds) = match authority.strip_prefix(b"[") {
        Some(address) => {
            let end = address.iter().position(|byte| *byte == b']')?;
            if !address[..end].iter().all(|byte| host_kind(*byte) & OF_HOST != 0 || *byte == b':') {
                return None;
            }
            let kinds = address[..end].iter().fold(0, |kinds, byte| kinds | host_kind(*byte));
            let (host, rest) = authority.split_at(end + 2);
            (host, rest, kinds)
        }
        None => {
            let mut kinds = 0;
            let end = authority.iter().position(|byte| {
                let kind = host_kind(*byte);
                kinds |= kind;
                kind == 0
            });
            let (host, rest) = authority.split_at(end.unwrap_or(authority.len()));
            (host, rest, kinds)
        }
    };
    let port = match rest {
        [] => None,
        [b':', port @ ..] if is_port(port) => Some(port),
        _ => return None,
    };
    // Before the dot at its end is cut off, or "a.." would be another host.
    if kinds & DOT != 0 && host.windows(2).any(|pair| pair == b"..") {
        return None;
    }
    let host = host.strip_suffix(b".").unwrap_or(host);
    let host = match kinds & LARGE != 0 {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    };
    (!host.is_empty()).then_some((host, port))
}

/// Kinds of bytes that may stand in a name as they are, and in an address in brackets.
const OF_HOST: u8 = 1;
const LARGE: u8 = 2;
const DOT: u8 = 4;
/// In a name only.
const PERCENT: u8 = 8;

/// 0 for bytes that may not.
fn host_kind(byte: u8) -> u8 {
    const KINDS: [u8; 256] = {
        let is = table(b"-._~!$&'()*+,;=");
        let (mut kinds, mut byte) = ([0; 256], 0u8);
        while byte < u8::MAX {
            kinds[byte as usize] = match byte {
                b'.' => OF_HOST | DOT,
                b'A'..=b'Z' => OF_HOST | LARGE,
                b'%' => PERCENT,
                _ if is[byte as usize] || byte.is_ascii_alphanumeric() => OF_HOST,
                _ => 0,
            };
            byte += 1;
        }
        kinds
    };
    KINDS[usize::from(byte)]
}

/// Whether it is a number that a port can have, or nothing.
fn is_port(text: &[u8]) -> bool {
    let digits = &text[text.iter().take_while(|byte| **byte == b'0').count()..];
    let number = std::str::from_utf8(digits).unwrap_or("-");
    digits.is_empty()
        || (number.bytes().all(|byte| byte.is_ascii_digit()) && number.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(target: &str) -> Result<String, UriError> {
        normalize(target.as_bytes(), true).map(|n| String::from_utf8_lossy(&n.path).into_owned())
    }

    #[test]
    fn paths_are_decoded_and_resolved() {
        let table = [
            ("/a//b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/%61%2Fb", "/a/b"),
            ("/a%2e%2e", "/a.."),
            ("/.a/..b/c.", "/.a/..b/c."),
            ("/a/%2e%2e/b", "/b"),
            ("/a?b=//../", "/a"),
            ("/a#b", "/a"),
            ("/", "/"),
            ("/a/../b/", "/b/"),
        ];
        for (target, expected) in table {
            assert_eq!(path(target).unwrap(), expected, "{target}");
        }
    }

    #[test]
    fn targets_that_climb_or_break_are_refused() {
        assert_eq!(path("/.."), Err(UriError::AboveRoot));
        assert_eq!(path("/a/../../b"), Err(UriError::AboveRoot));
        assert_eq!(path("/%2e%2e/x"), Err(UriError::AboveRoot));
        assert_eq!(path("/%zz"), Err(UriError::BadEscape));
        assert_eq!(path("/%1"), Err(UriError::BadEscape));
        assert_eq!(path("/%00"), Err(UriError::Nul));
    }

    #[test]
    fn targets_of_applications_are_decoded_and_nothing_else() {
        type Parts<'a> = Option<(&'a str, Option<&'a str>)>;
        let table: &[(&str, Parts<'_>)] = &[
            ("/a", Some(("/a", None))),
            ("//a//b/", Some(("//a//b/", None))),
            ("/./a/.", Some(("/./a/.", None))),
            ("/a%20b%2fc", Some(("/a b/c", None))),
            ("/a#b", Some(("/a#b", None))),
            ("/a?b?c%20/../", Some(("/a", Some("b?c%20/../")))),
            ("/a%3fb", Some(("/a?b", None))),
            ("/a?", Some(("/a", Some("")))),
            ("/%zz%4z%", Some(("/zz", None))),
            ("/...", Some(("/...", None))),
            ("/..a/b..", Some(("/..a/b..", None))),
            ("", None),
            ("?a", None),
            ("a", Some(("a", None))),
            ("a?b", Some(("a", Some("b")))),
            ("../a", None),
            ("/..", None),
            ("/a/../b", None),
            ("/a/..?b", None),
            ("/%2e%2e/b", None),
            ("/a%2f..", None),
            ("/a\0", None),
            ("/a%00", None),
            ("http://a/b", Some(("http://a/b", None))),
        ];
        for (target, expected) in table {
            let found = parse_unsafe(target.as_bytes());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let found = found.map(|n| (text(&n.path), n.args.map(|args| text(&args))));
            let expected = expected.map(|(path, args)| (path.to_owned(), args.map(str::to_owned)));
            assert_eq!(found, expected, "{target}");
        }
    }

    #[test]
    fn slashes_stay_when_not_merged() {
        let kept = normalize(b"//a//b", false).unwrap();
        assert_eq!(kept.path, b"//a//b");
    }

    #[test]
    fn args_are_what_follows_the_first_question_mark() {
        let both = normalize(b"/a?b?c=%20", true).unwrap();
        assert_eq!(both.args.as_deref(), Some(&b"b?c=%20"[..]));
        assert_eq!(normalize(b"/a?", true).unwrap().args.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn authorities_are_split_and_lowered() {
        type Split<'a> = Option<(&'a str, Option<&'a str>)>;
        let table: &[(&str, Split<'_>)] = &[
            ("Example.COM", Some(("example.com", None))),
            ("a.b.:8080", Some(("a.b", Some("8080")))),
            ("[::1]:80", Some(("[::1]", Some("80")))),
            ("a:", Some(("a", Some("")))),
            ("a:0000080", Some(("a", Some("0000080")))),
            ("a:65535", Some(("a", Some("65535")))),
            ("a_b~!$&'()*+,;=%41", Some(("a_b~!$&'()*+,;=%41", None))),
            ("[v1.FE80::a+b]", Some(("[v1.fe80::a+b]", None))),
            ("a:65536", None),
            ("a:x", None),
            ("a:+1", None),
            ("a:80:80", None),
            (":80", None),
            ("a@b", None),
            ("a[b", None),
            ("a]", None),
            ("\u{e9}", None),
            ("a/b", None),
            ("a..b", None),
            ("a..", None),
            ("..", None),
            (".", None),
            ("", None),
            ("[::1", None),
            ("[::1]a", None),
            ("[::1].", None),
            ("[a..b]", None),
            ("[fe80::1%25eth0]", None),
            ("a b", None),
        ];
        for (text, expected) in table {
            let found = split_authority(text.as_bytes());
            let found = found.as_ref().map(|(host, port)| {
                (std::str::from_utf8(host).unwrap(), port.map(|p| std::str::from_utf8(p).unwrap()))
            });
            assert_eq!(found, *expected, "{text}");
        }
    }

    #[test]
    fn each_use_has_its_set_of_escaped_bytes() {
        for (escape, marks) in [
            (Escape::Path, "\"#%<>?\\^`{|}"),
            (Escape::Args, "\"#%&+;<>?\\^`{|}"),
            (Escape::Component, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}"),
            (Escape::Html, "\"#%'<>\\^`{|}"),
            (Escape::Memcached, "%"),
        ] {
            for byte in 0..=255 {
                let mut out = Vec::new();
                escape_into(&mut out, &[byte], escape);
                let is_escaped = match byte {
                    0..=b' ' | 0x7f => true,
                    0x80.. => escape != Escape::Memcached,
                    _ => marks.as_bytes().contains(&byte),
                };
                let expected = if is_escaped { format!("%{byte:02X}").into() } else { vec![byte] };
                assert_eq!(out, expected, "{escape:?}");
            }
        }
    }

    #[test]
    fn escaping_leaves_only_what_may_stand() {
        let mut out = Vec::new();
        escape_into(&mut out, b"/a b?c%d\xe3", Escape::Path);
        assert_eq!(out, b"/a%20b%3Fc%25d%E3");
        assert_eq!(unescape(b"/a%20b%zz%"), b"/a b%zz%");
        assert_eq!(unescape_redirect(b"http%3A%2F%2Fa%0D%0Ab%3Fc%3D"), b"http://a%0D%0Ab?c%3D");
    }
}
