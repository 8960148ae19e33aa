//! Targets and cookies that this server and an application may read in different ways: a key of `$uri`, `$arg_page` or
//! `$cookie_lang` holds what is read here, and the page is made of what is read there.
//!
//! Here a path is decoded, its dots are resolved and its slashes merged; the first of several arguments or cookies of
//! one name counts, names have no case and no escapes. An application may see the path as it was sent, take the last of several,
//! and decode names. PHP has `_` for ` ` and `.` in them, and ends them at `[`.

use bytes::Bytes;
use std::collections::HashMap;
use yorozu_http::field::{Name, Value};
use yorozu_http::uri::{Escape, escape_into, hex_pair, normalize, unescape, with_args};
use yorozu_kernel::exchange::request::Request;

/// Most arguments, and most cookies, that are looked into.
const LOOKED_AT: usize = 32;

/// A piece of a request in another form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Said {
    Arguments(Bytes),
    Cookies(Bytes),
}

impl Said {
    /// Says it in the place of what the request says.
    pub fn put(&self, request: &mut Request) {
        match self {
            Self::Arguments(args) => {
                let target = with_args(request.split_target().0, args);
                request.set_target(&target);
            }
            Self::Cookies(cookies) => {
                request.retain_fields(|name| !name.eq_ignore_ascii_case(b"cookie"));
                if !cookies.is_empty() {
                    request.add_field(Name::COOKIE, &Value::new(cookies));
                }
            }
        }
    }
}

/// Arguments, or cookies, that may be read in two ways.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ambiguous {
    /// What the request says without them.
    pub without: Said,
    /// For each, what is said with that one before all others, under its plain name: here it is the one that counts then.
    /// `None`: they are too many.
    pub firsts: Option<Vec<Said>>,
}

/// The targets that most clients would send for the path that the request's is read as here, if its own is not as good as one of
/// them to any application.
pub(super) fn respelled(request: &Request) -> Vec<Bytes> {
    let (path, args) = request.split_target();
    let has_signs = memchr::memchr2(b'%', b'#', request.target()).is_some();
    if !has_signs && !has_odd_segments(path) {
        return Vec::new();
    }
    let own = plainly(path);
    let mut found: Vec<Bytes> = Vec::new();
    for merges in [true, false] {
        let Ok(normal) = normalize(request.target(), merges) else { continue };
        let own_args = normal.args.unwrap_or_default();
        let mut plain = Vec::new();
        escape_into(&mut plain, &normal.path, Escape::Path);
        if plainly(&plain) != own || own_args != args {
            found.push(with_args(&plain, &own_args).into());
        }
        if normal.path.contains(&b'?') {
            // One that was escaped begins the arguments of another page with the same key.
            found.push(with_args(&normal.path, &own_args).into());
        }
    }
    found.dedup();
    found
}

/// Whether slashes or dots of a path are not kept as they are.
fn has_odd_segments(path: &[u8]) -> bool {
    path.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
}

/// A path in a form that is the same for all those that no application tells apart: what need not be escaped is not (RFC 3986,
/// section 6.2.2). Slashes, and what ends a path, are not the same escaped.
fn plainly(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        let decoded = match rest {
            [b'%', high, low, ..] => hex_pair([*high, *low]),
            _ => None,
        };
        rest = if decoded.is_some() { &behind[2..] } else { behind };
        match decoded {
            Some(decoded @ (b'/' | b'?' | b'#' | b'%' | 0)) => plain.extend([b'%', decoded]),
            decoded => plain.push(decoded.unwrap_or(byte)),
        }
    }
    plain
}

/// One of several arguments or cookies.
struct Item<'r> {
    whole: &'r [u8],
    name: &'r [u8],
    value: &'r [u8],
    /// The name as an application may read it, in lower case.
    read: Vec<u8>,
    /// Whether here it is no item of its own.
    is_hidden: bool,
}

impl<'r> Item<'r> {
    fn new(whole: &'r [u8], is_hidden: bool) -> Self {
        // Other white space belongs to the name here, and to nothing elsewhere.
        let spaces = whole.iter().take_while(|byte| **byte == b' ').count();
        let trimmed = &whole[spaces..];
        let end = trimmed.iter().position(|byte| *byte == b'=').unwrap_or(trimmed.len());
        let (name, value) = trimmed.split_at(end);
        let value = value.get(1..).unwrap_or_default();
        Self { whole: trimmed, name, value, read: read_name(name), is_hidden }
    }
}

/// A name as applications may read it.
fn read_name(name: &[u8]) -> Vec<u8> {
    let spaced = name.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte });
    let decoded = unescape(&spaced.collect::<Vec<_>>());
    // As C's isspace().
    let is_space = |byte: &&u8| byte.is_ascii_whitespace() || **byte == 0x0b;
    let name = &decoded[decoded.iter().take_while(is_space).count()..];
    let end = name.iter().position(|byte| matches!(byte, b'[' | 0)).unwrap_or(name.len());
    let plain = |byte: &u8| match byte {
        b' ' | b'.' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    name[..end].iter().map(plain).collect()
}

/// Arguments of the target that an application may read in another way.
pub(super) fn arguments(request: &Request) -> Option<Ambiguous> {
    let (_, args) = request.split_target();
    if args.is_empty() {
        return None;
    }
    let mut items = Vec::new();
    for written in args.split(|byte| *byte == b'&') {
        let pieces = written.split(|byte| *byte == b';').enumerate();
        items.extend(pieces.map(|(at, piece)| Item::new(piece, at > 0)));
    }
    ambiguous(&items, |pieces| Said::Arguments(pieces.join(&b"&"[..]).into()))
}

/// Cookies that an application may read in another way.
pub(super) fn cookies(request: &Request) -> Option<Ambiguous> {
    let mut all = Vec::new();
    if !request.append_cookies(&mut all) {
        return None;
    }
    let pieces = all.split(|byte| *byte == b';');
    let items: Vec<_> = pieces.map(|piece| Item::new(piece, false)).collect();
    ambiguous(&items, |pieces| Said::Cookies(pieces.join(&b"; "[..]).into()))
}

/// Those items that are not the first of their name, or whose name is written in another way than it is read.
fn ambiguous<'r>(items: &[Item<'r>], said: impl Fn(Vec<&[u8]>) -> Said) -> Option<Ambiguous> {
    let mut first: HashMap<&[u8], &Item<'_>> = HashMap::new();
    let (mut odd, mut others) = (Vec::new(), Vec::new());
    for item in items {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let is_name = !item.read.is_empty() && item.read.iter().all(is_word);
        let is_first = !is_name || {
            let before = *first.entry(&item.read).or_insert(item);
            std::ptr::eq(before, item) || before.whole == item.whole
        };
        let is_plain = !is_name || (!item.is_hidden && item.name.eq_ignore_ascii_case(&item.read));
        if is_first && is_plain {
            others.push(item.whole);
        } else {
            odd.push(item);
        }
    }
    let before = |item: &&Item<'_>| {
        let plain = [&item.read[..], b"=", item.value].concat();
        said([&[&plain[..]], &others[..]].concat())
    };
    (!odd.is_empty()).then(|| Ambiguous {
        firsts: (odd.len() <= LOOKED_AT).then(|| odd.iter().map(before).collect()),
        without: said(others.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, cookie: &str) -> Request {
        let mut request = Request::unread(Bytes::new());
        request.set_target(target.as_bytes());
        if !cookie.is_empty() {
            request.add_field(Name::COOKIE, &Value::new(cookie.as_bytes()));
        }
        request
    }

    #[test]
    fn paths_that_applications_may_tell_apart_are_not_as_good_as_each_other() {
        let table: [(&str, &[&str]); 16] = [
            ("/a/b?c", &[]),
            ("/caf%c3%a9", &[]),
            ("/%7euser/c%2B%2B", &[]),
            ("/a%20b", &[]),
            ("/100%25", &[]),
            ("/a/", &[]),
            ("//a?x", &["/a?x"]),
            ("/a//", &["/a/"]),
            ("/a/./b", &["/a/b"]),
            ("/x/../a", &["/a"]),
            ("/x/%2e%2e/a", &["/a"]),
            ("/a%2fb", &["/a/b"]),
            ("/a%2Fb?c", &["/a/b?c"]),
            ("/a%3Fb", &["/a?b"]),
            ("/a%23b", &[]),
            ("/a/.b", &[]),
        ];
        for (target, expected) in table {
            let found = respelled(&request(target, ""));
            assert_eq!(found, expected, "{target}");
        }
    }

    /// What is said without the ambiguous ones, and with each of them first.
    type Forms<'a> = Option<(&'a str, &'a [&'a str])>;

    fn check(found: Option<&Ambiguous>, expected: Forms<'_>, said: fn(Bytes) -> Said, text: &str) {
        let of = |text: &str| said(Bytes::copy_from_slice(text.as_bytes()));
        let expected = expected.map(|(without, firsts)| Ambiguous {
            without: of(without),
            firsts: Some(firsts.iter().map(|first| of(first)).collect()),
        });
        assert_eq!(found, expected.as_ref(), "{text}");
    }

    #[test]
    fn arguments_are_ambiguous_that_come_again_or_are_written_otherwise() {
        let table: [(&str, Forms<'_>); 14] = [
            ("/a?b=1&c=2", None),
            ("/a?B=1", None),
            ("/a?b=1&b=1", None),
            ("/a?b=1&b=2", Some(("b=1", &["b=2&b=1"]))),
            ("/a?b=1&B=2", Some(("b=1", &["b=2&b=1"]))),
            ("/a?b=1&b=2&b=3", Some(("b=1", &["b=2&b=1", "b=3&b=1"]))),
            ("/a?b=1&b", Some(("b=1", &["b=&b=1"]))),
            ("/a?%62=1", Some(("", &["b=1"]))),
            ("/a?b.c=1", Some(("", &["b_c=1"]))),
            ("/a?b[]=1", Some(("", &["b=1"]))),
            ("/a?c=1;b=2", Some(("c=1", &["b=2&c=1"]))),
            ("/a?%26=1&=2", None),
            ("/a?+b=1", Some(("", &["b=1"]))),
            ("/a?b%00c=1", Some(("", &["b=1"]))),
        ];
        for (target, expected) in table {
            check(arguments(&request(target, "")).as_ref(), expected, Said::Arguments, target);
        }
        let many = (0..40).map(|at| format!("b={at}&")).collect::<String>();
        let found = arguments(&request(&format!("/a?{many}"), "")).unwrap();
        assert_eq!(found.firsts, None);
    }

    #[test]
    fn so_are_cookies() {
        let table: [(&str, Forms<'_>); 8] = [
            ("a=1; b=2", None),
            ("A=1", None),
            ("a=; a=2", Some(("a=", &["a=2; a="]))),
            ("A=1;a=2", Some(("A=1", &["a=2; A=1"]))),
            ("c=1;  \ta=1", Some(("c=1", &["a=1; c=1"]))),
            ("c=1;\u{b}a=1", Some(("c=1", &["a=1; c=1"]))),
            ("a.b=1", Some(("", &["a_b=1"]))),
            ("c=1; a b[x]=1", Some(("c=1", &["a_b=1; c=1"]))),
        ];
        for (cookie, expected) in table {
            check(cookies(&request("/", cookie)).as_ref(), expected, Said::Cookies, cookie);
        }
    }
}
