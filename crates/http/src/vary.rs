//! Selecting fields: when two requests select the same variant of a response.
//!
//! # Source
//! RFC 9111, section 4.1.

use crate::field;
use crate::negotiation::quality;

/// Fields that are negotiated by, or are lists of words by their definition: spaces around commas, and members of nothing,
/// say nothing.
const LISTS: [&[u8]; 6] = [
    b"accept",
    b"accept-charset",
    b"accept-encoding",
    b"accept-language",
    b"access-control-request-headers",
    b"te",
];

/// Appends a request field's lines so that two requests select the same variant if the same bytes are appended. Nothing is
/// appended for a field that is not there, which no value is equal to.
///
/// Lines are joined as RFC 9110, section 5.3, has it. Of [`LISTS`] the members count; `Accept-Language` and
/// `Accept-Encoding` have no case, and with `is_language_unordered` languages of one weight stand in the alphabet's order.
/// Of any other field every byte counts, since an application may read the value as it is. Only where it is a list of words
/// and of nothing else, the spaces around its commas do not.
pub fn append_selecting<'a>(
    name: &[u8],
    lines: impl Iterator<Item = &'a [u8]>,
    is_language_unordered: bool,
    out: &mut Vec<u8>,
) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    // It is there, if only with nothing in it.
    out.push(b'=');
    let is = |known: &[u8]| field::is_same(known, name);
    if !LISTS.iter().any(|known| is(known)) {
        return append_exact(lines, if is(b"cookie") { b"; " } else { b", " }, out);
    }
    let start = out.len();
    let mut members: Vec<&[u8]> = lines.flat_map(field::members).collect();
    if is_language_unordered && is(b"accept-language") {
        members.sort_by_cached_key(|member| {
            let (tag, weight) = language(member);
            (std::cmp::Reverse(weight), tag.to_ascii_lowercase())
        });
    }
    for member in members {
        out.extend_from_slice(member);
        out.push(b',');
    }
    if is(b"accept-language") || is(b"accept-encoding") {
        out[start..].make_ascii_lowercase();
    }
}

/// Appends the lines as one; spaces around the commas of a list of tokens go.
fn append_exact<'a>(lines: impl Iterator<Item = &'a [u8]>, separator: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    for (at, line) in lines.enumerate() {
        if at > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(line);
    }
    let value = &out[start..];
    let is_spaced = value.contains(&b',') && value.contains(&b' ');
    if is_spaced && value.split(|byte| *byte == b',').all(|word| field::is_token(word.trim_ascii()))
    {
        let mut kept = start;
        for at in start..out.len() {
            if !matches!(out[at], b' ' | b'\t') {
                out[kept] = out[at];
                kept += 1;
            }
        }
        out.truncate(kept);
    }
}

/// A language and its weight in thousandths.
fn language(member: &[u8]) -> (&[u8], u16) {
    let tag = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    (tag, quality(member))
}

/// Whether `content_language` is what `accept_language` prefers.
///
/// # Source
/// RFC 4647, section 3.3.1: `de` matches `de-AT`.
pub fn is_preferred_language(accept_language: &[u8], content_language: &[u8]) -> bool {
    let languages = field::list(accept_language).map(language);
    // The first of those with the highest weight.
    let best = languages.min_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    let Some((wanted, 1..)) = best else { return false };
    let is_single = field::list(content_language).count() == 1;
    let head = content_language.trim_ascii().split_at_checked(wanted.len());
    is_single
        && head.is_some_and(|(head, rest)| {
            head.eq_ignore_ascii_case(wanted) && (rest.is_empty() || rest.starts_with(b"-"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selecting(name: &str, lines: &[&str], is_unordered: bool) -> String {
        let mut out = Vec::new();
        let lines = lines.iter().map(|line| line.as_bytes());
        append_selecting(name.as_bytes(), lines, is_unordered, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_and_spaces_between_words_do_not_tell_requests_apart() {
        assert_eq!(selecting("Foo", &["1, 2"], false), selecting("foo", &["1", "2"], false));
        assert_eq!(selecting("Foo", &["1,2"], false), selecting("foo", &["1 ,  2"], false));
        assert_eq!(selecting("Accept", &["a/b"], false), selecting("accept", &[", a/b,"], false));
        let cookies = |lines: &[&str]| selecting("Cookie", lines, false);
        assert_eq!(cookies(&["a=1; b=2"]), cookies(&["a=1", "b=2"]));
    }

    #[test]
    fn every_other_byte_does() {
        let values: [&[&str]; 22] = [
            &[],
            &[""],
            &[","],
            &["a"],
            &["A"],
            &["a,"],
            &["a, "],
            &[",a"],
            &["a,,b"],
            &["a, ,b"],
            &["a,b"],
            &["a b"],
            &["a  b"],
            &["ab"],
            &["a;b"],
            &["a; b"],
            &["Foo (a,b)"],
            &["Foo(a,b)"],
            &["Foo (a, b)"],
            &["\"a,b\""],
            &["\"a, b\""],
            &["a, b c"],
        ];
        for name in ["X-V", "Cookie", "Authorization", "User-Agent"] {
            for (at, one) in values.iter().enumerate() {
                for other in &values[at + 1..] {
                    let (one, other) = (selecting(name, one, false), selecting(name, other, false));
                    assert_ne!(one, other, "{name}");
                }
            }
        }
        for name in ["Accept", "Accept-Language"] {
            assert_ne!(selecting(name, &[], false), selecting(name, &[""], false), "{name}");
        }
    }

    #[test]
    fn codings_have_no_case_and_keep_their_order() {
        let select = |value: &str| selecting("Accept-Encoding", &[value], true);
        assert_eq!(select("GZIP, br"), select("gzip, BR"));
        assert_ne!(select("gzip, br"), select("br, gzip"));
    }

    #[test]
    fn a_language_is_preferred_by_whole_subtags() {
        for (content, is_preferred) in [("de", true), ("de-AT", true), ("deu", false), ("d", false)]
        {
            assert_eq!(is_preferred_language(b"en;q=0.5, de", content.as_bytes()), is_preferred);
        }
    }

    #[test]
    fn languages_have_no_case_and_an_order_unless_it_is_given_up() {
        let select =
            |value: &str, is_unordered| selecting("Accept-Language", &[value], is_unordered);
        assert_eq!(select("EN, de", false), select("en,DE", false));
        assert_ne!(select("en, de", false), select("de, en", false));
        assert_eq!(select("en, de", true), select("de, en", true));
        assert_ne!(select("en, de;q=0.5", true), select("de, en;q=0.5", true));
    }

    #[test]
    fn the_best_language_is_met_by_its_dialects() {
        assert!(is_preferred_language(b"fr;q=0.5, de;q=1.0", b"de"));
        assert!(is_preferred_language(b"de", b"de-AT"));
        assert!(!is_preferred_language(b"de-AT", b"de"));
        assert!(!is_preferred_language(b"fr, de;q=0.9", b"de"));
        assert!(!is_preferred_language(b"de", b"de, fr"));
        assert!(!is_preferred_language(b"de;q=0", b"de"));
    }
}
