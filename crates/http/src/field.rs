//! Names of fields compared, names and values as heads may have them, and lists inside values.

use std::borrow::Cow;
use std::ops::Deref;

/// Whether two names are the same but for the case of ASCII letters: as `eq_ignore_ascii_case` of slices, which looks at
/// each byte, and costs four times as much.
#[inline]
pub fn is_same(name: &[u8], other: &[u8]) -> bool {
    name.len() == other.len() && is_same_text(name, other)
}

/// Whether a field's name is the one that a variable has, with `-` for `_`: as nginx, that stands for both.
#[inline]
pub fn is_of_variable(found: &[u8], name: &[u8]) -> bool {
    let is_same_byte = |(found, wanted): (&u8, &u8)| match found {
        b'_' => *wanted == b'-',
        found => found.eq_ignore_ascii_case(wanted),
    };
    found.len() == name.len() && found.iter().zip(name).all(is_same_byte)
}

/// As [`is_same`], of texts of one length: eight bytes at a time, some of them twice, which is less to do than one after the
/// other. Of a `name` that is written where it is compared hardly anything has to be computed.
#[inline]
fn is_same_text(name: &[u8], other: &[u8]) -> bool {
    match name.len() {
        0..4 => name.eq_ignore_ascii_case(other),
        4..8 => is_same_eight(ends(name), ends(other)),
        8..=16 => {
            is_same_eight(first(name), first(other)) && is_same_eight(last(name), last(other))
        }
        _ => is_same_long(name, other),
    }
}

/// As [`is_same_text`], of more than eight bytes.
#[inline(never)]
fn is_same_long(name: &[u8], other: &[u8]) -> bool {
    let mut eights = name.chunks_exact(8).zip(other.chunks_exact(8));
    eights.all(|(eight, of_other)| is_same_eight(first(eight), first(of_other)))
        && is_same_eight(last(name), last(other))
}

/// The first eight bytes; 0 where there are fewer.
#[inline]
fn first(text: &[u8]) -> u64 {
    text.first_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight))
}

/// The last eight bytes; 0 where there are fewer.
#[inline]
fn last(text: &[u8]) -> u64 {
    text.last_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight))
}

/// The first four bytes and the last four; 0 where there are fewer.
#[inline]
fn ends(text: &[u8]) -> u64 {
    let four = |four: Option<&[u8; 4]>| four.map_or(0, |four| u64::from(u32::from_ne_bytes(*four)));
    four(text.first_chunk()) << 32 | four(text.last_chunk())
}

/// Whether eight bytes differ in the case of letters at most.
#[inline]
fn is_same_eight(one: u64, other: u64) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const CASE: u64 = ONES * 0x20;
    const HIGHEST: u64 = ONES * 0x80;
    let differ = one ^ other;
    if differ & !CASE != 0 {
        return false;
    }
    // The highest bit of each byte that is a letter: from `a` on, and not behind `z`. Nothing is carried from byte to byte.
    let small = one | CASE;
    let low = small & !HIGHEST;
    let from_a = low + ONES * (0x80 - b'a' as u64);
    let behind_z = low + ONES * (0x7f - b'z' as u64);
    let letters = from_a & !behind_z & !small & HIGHEST;
    differ & !(letters >> 2) == 0
}

/// The members of a comma-separated list, trimmed, empty ones left out.
///
/// # Source
/// RFC 9110, section 5.6.1.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// As [`list`], where a comma inside a quoted string parts nothing.
pub fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value
        .split(move |byte| {
            let is_plain = !std::mem::take(&mut is_escaped);
            match byte {
                b'\\' if is_quoted && is_plain => is_escaped = true,
                b'"' if is_plain => is_quoted = !is_quoted,
                _ => {}
            }
            *byte == b',' && !is_quoted
        })
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Whether applications behind a gateway may take `name` for `wanted`, which is in lower case: to CGI and its like `_` is
/// as good as `-` (RFC 3875, section 4.1.18), and PHP makes `_` of `.` and others, too.
#[inline]
pub fn is_alike(name: &[u8], wanted: &[u8]) -> bool {
    name.len() == wanted.len() && is_alike_text(name, wanted)
}

fn is_alike_text(name: &[u8], wanted: &[u8]) -> bool {
    name.iter().zip(wanted).all(|(byte, wanted)| plain(*byte) == plain(*wanted))
}

/// A byte of a name as those compare it that spell names in their own way.
#[inline]
pub fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

/// A name as those read it.
pub fn plain_name(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| plain(*byte)).collect()
}

/// Whether a text is a token (RFC 9110, section 5.6.2).
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// The name of a field: a token, so that it cannot be more than a name.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Of a client's cookies (RFC 6265, section 5.4).
    pub const COOKIE: Name<'static> = Name(b"Cookie");
    /// Of the program that asks (RFC 9110, section 10.1.5).
    pub const USER_AGENT: Name<'static> = Name(b"User-Agent");
    /// Of the scheme that a client spoke to a proxy.
    pub const X_FORWARDED_PROTO: Name<'static> = Name(b"X-Forwarded-Proto");

    /// `None` if it is no token.
    pub fn new(text: &'a [u8]) -> Option<Self> {
        is_token(text).then_some(Self(text))
    }
}

impl Deref for Name<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// The value of a field: without CR, LF and NUL, so that it cannot be more than its line (RFC 9110, section 5.5).
#[derive(Clone, Debug)]
pub struct Value<'a>(Cow<'a, [u8]>);

impl<'a> Value<'a> {
    /// `None` if the text would end the line.
    #[inline]
    pub fn unbroken(text: &'a [u8]) -> Option<Self> {
        (!has_break(text)).then_some(Self(Cow::Borrowed(text)))
    }

    /// Takes any text; spaces take the place of what would end the line.
    #[inline]
    pub fn new(text: &'a [u8]) -> Self {
        Self::unbroken(text).unwrap_or_else(|| {
            let mut text = text.to_vec();
            keep_on_line(&mut text);
            Self(Cow::Owned(text))
        })
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Makes a [`Value`] of a text where it stands.
#[inline]
pub fn keep_on_line(text: &mut [u8]) {
    if has_break(text) {
        text.iter_mut().filter(|byte| is_break(byte)).for_each(|byte| *byte = b' ');
    }
}

fn is_break(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

/// Whether a CR, LF or NUL stands in a value: written as it is, it would be more than one line, or none.
#[inline]
fn has_break(value: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // Whether one of eight bytes is below 16: the highest bit of a byte is borrowed where its upper half is 0.
    let low_bytes = |eight| {
        let upper = u64::from_ne_bytes(eight) & (ONES * 0xf0);
        upper.wrapping_sub(ONES) & !upper & (ONES * 0x80)
    };
    let (mut rest, mut borrowed) = (value, 0);
    while let Some((eight, behind)) = rest.split_first_chunk() {
        borrowed |= low_bytes(*eight);
        rest = behind;
    }
    match value.last_chunk() {
        // Some of them once more, which is less to do than one after the other.
        Some(last) => borrowed |= low_bytes(*last),
        None => return value.iter().any(is_break),
    }
    borrowed != 0 && value.iter().any(is_break)
}

/// Whether the list holds `token`, compared without case.
pub fn list_has(value: &[u8], token: &[u8]) -> bool {
    list(value).any(|member| is_same(member, token))
}

/// First position of `needle` in `haystack`, compared without case.
pub fn find_ignore_case(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window.eq_ignore_ascii_case(needle))
}

/// The value of one cookie in a `Cookie` field.
///
/// nginx compares names without case, takes the first match, and looks for it behind semicolons and the spaces there. A
/// name without a value is passed over with the pair that follows it.
pub fn cookie<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    fn behind_spaces(text: &[u8]) -> &[u8] {
        let spaces = text.iter().take_while(|byte| **byte == b' ').count();
        &text[spaces..]
    }
    let pair_end = |text: &[u8]| text.iter().position(|byte| *byte == b';');
    let mut rest = field;
    loop {
        if let Some((found, behind)) = rest.split_at_checked(name.len()) {
            if is_same(found, name) {
                rest = behind_spaces(behind);
                let (next, behind) = rest.split_first()?;
                if *next == b'=' {
                    let value = behind_spaces(behind);
                    return Some(&value[..pair_end(value).unwrap_or(value.len())]);
                }
                rest = behind;
            }
        }
        rest = behind_spaces(&rest[pair_end(rest)? + 1..]);
    }
}

/// The value of one argument of a query, not decoded; names compare without case.
pub fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|byte| *byte == b'&').find_map(|pair| {
        let (found, rest) = pair.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b"=")?;
        is_same(found, name).then_some(value)
    })
}

/// Fields that say how a message is carried, or are needed before its content (RFC 9110, section 6.5.1).
pub fn is_of_head(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [
        b"content-length",
        b"content-encoding",
        b"content-type",
        b"content-range",
        b"host",
        b"trailer",
    ];
    NAMES.iter().any(|known| is_same(known, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_behind_semicolons_and_ends_at_one() {
        let of = |text: &'static str| cookie(text.as_bytes(), b"sid");
        for text in ["sid=m", "a=1; sid=m", "a=1;sid=m", ";; sid=m; b=2", "a=1;SID = m", "sid"] {
            let found = (text != "sid").then_some(&b"m"[..]);
            assert_eq!(of(text), found, "{text}");
        }
        assert_eq!(of("sid=a,b ; c"), Some(&b"a,b "[..]));
        assert_eq!(of("sid=;sid=m"), Some(&b""[..]));
        for text in ["xsid=m; a=sid", "a=1,sid=m", "a=1;\tsid=m", "sid;sid=m", "sid ;sid=m", ""] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of("sid;a;sid=m"), Some(&b"m"[..]));
    }

    #[test]
    fn cookies_and_arguments_are_found_by_whole_name() {
        assert_eq!(cookie(b"a=1; bc=2; c=3", b"c"), Some(&b"3"[..]));
        assert_eq!(cookie(b"a=1", b"A"), Some(&b"1"[..]));
        assert_eq!(cookie(b"ab=1", b"a"), None);
        assert_eq!(argument(b"x=1&yy=2&y=3", b"y"), Some(&b"3"[..]));
        assert_eq!(argument(b"x", b"x"), None);
        assert_eq!(argument(b"", b"x"), None);
    }

    #[test]
    fn names_are_the_same_as_byte_by_byte() {
        for length in 0..20usize {
            let name: Vec<u8> = b"Last-Modified_{x}[y]@Z".iter().copied().take(length).collect();
            assert!(is_same(&name, &name.to_ascii_lowercase()));
            assert!(!is_same(&name, &[&name[..], b"a"].concat()));
            assert!(!is_same(&vec![b'a'; length], &vec![b'a'; length + 1]));
            for at in 0..length {
                let all = (0..=255).flat_map(|one| [0, 1, 0x20, 0x80].map(|bit| (one, one ^ bit)));
                for (one, other) in all {
                    let (mut left, mut right) = (name.clone(), name.to_ascii_uppercase());
                    (left[at], right[at]) = (one, other);
                    assert_eq!(is_same(&left, &right), left.eq_ignore_ascii_case(&right));
                }
            }
        }
    }

    #[test]
    fn a_variable_has_dashes_for_underscores() {
        for name in ["x-forwarded-for", "X_Forwarded_For", "X-FORWARDED_FOR"] {
            assert!(is_of_variable(name.as_bytes(), b"x-forwarded-for"), "{name}");
        }
        for name in ["x-forwarded-for2", "x-forwarded", "x-forwarded-foo", "x.forwarded.for", ""] {
            assert!(!is_of_variable(name.as_bytes(), b"x-forwarded-for"), "{name}");
        }
    }

    #[test]
    fn names_are_alike_to_applications() {
        for name in ["x-v", "X-V", "X_V", "x.v"] {
            assert!(is_alike(name.as_bytes(), b"x-v"), "{name}");
            assert!(is_alike(name.as_bytes(), b"X_V"), "{name}");
        }
        for name in ["xv", "x-w", "x-v-", "x1v", ""] {
            assert!(!is_alike(name.as_bytes(), b"x-v"), "{name}");
        }
    }

    #[test]
    fn a_break_is_found_wherever_it_stands() {
        for length in 0..40 {
            let plain: Vec<u8> =
                (0u8..=255).cycle().filter(|b| !b"\r\n\0".contains(b)).take(length).collect();
            assert!(!has_break(&plain), "{length}");
            for at in 0..length {
                for byte in *b"\r\n\0" {
                    let mut broken = plain.clone();
                    broken[at] = byte;
                    assert!(has_break(&broken), "{length} {at}");
                    broken[at] = b' ';
                    let spaced = broken.clone();
                    broken[at] = byte;
                    assert_eq!(*Value::new(&broken), *spaced, "{length} {at}");
                }
            }
        }
    }

    #[test]
    fn quoted_commas_part_nothing() {
        let found: Vec<&[u8]> = members(br#"a="b,\",c" , d"#).collect();
        assert_eq!(found, [&br#"a="b,\",c""#[..], b"d"]);
    }

    #[test]
    fn lists_are_trimmed_and_compared_without_case() {
        assert!(list_has(b"keep-alive , Close", b"close"));
        assert!(!list_has(b"closed", b"close"));
        assert_eq!(find_ignore_case(b"Mozilla MSIE 6", b"msie "), Some(8));
    }
}
