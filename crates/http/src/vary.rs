//! Selecting fields: when two requests select the same variant of a response.
//!
//! # Source
//! RFC 9111, section 4.1.

use crate::field;
use crate::negotiation::quality;

/// Appends a request field's lines in a form in which equal meanings are equal bytes.
///
/// Lines are joined, spaces around commas and empty members go. Values of `Accept-Language` and
/// `Accept-Encoding` lose their case. `Cookie` and `Authorization` stay as they are. With
/// `is_language_unordered` languages of one weight stand in the alphabet's order.
pub fn append_selecting<'a>(
    name: &[u8],
    lines: impl Iterator<Item = &'a [u8]>,
    is_language_unordered: bool,
    out: &mut Vec<u8>,
) {
    let is = |known: &[u8]| known.eq_ignore_ascii_case(name);
    if is(b"cookie") || is(b"authorization") {
        for line in lines {
            out.extend_from_slice(line);
            out.push(b',');
        }
        return;
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
    fn spaces_and_lines_do_not_tell_requests_apart() {
        assert_eq!(selecting("Foo", &["1, 2"], false), selecting("foo", &["1", " 2,"], false));
        assert_ne!(selecting("Foo", &["A"], false), selecting("Foo", &["a"], false));
        assert_ne!(selecting("Cookie", &["a=1, b"], false), selecting("Cookie", &["a=1,b"], false));
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
