//! `Cache-Control` and its relatives in a response, as far as a shared cache acts on them.
//!
//! # Sources
//! RFC 9111, sections 4.2 and 5; RFC 5861; RFC 9213.

use crate::field;
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// The directives that decide about storing, freshness and stale answers. Times are seconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheControl {
    /// Not to be stored, unless [`CacheControl::must_understand`] lifts it.
    pub no_store: bool,
    /// Not to be used without asking the origin; with field names too, as a cache may treat it.
    pub no_cache: bool,
    /// Not for shared caches; with field names too.
    pub private: bool,
    /// May be stored where it otherwise might not.
    pub public: bool,
    /// Not to be used stale.
    pub must_revalidate: bool,
    /// Not to be used stale by shared caches.
    pub proxy_revalidate: bool,
    /// To be stored if the status is understood, even with `no-store`.
    pub must_understand: bool,
    /// `max-age`; 0 for one that cannot be read.
    pub max_age: Option<u64>,
    /// `s-maxage`; 0 for one that cannot be read.
    pub s_maxage: Option<u64>,
    /// `stale-while-revalidate` (RFC 5861, section 3).
    pub stale_while_revalidate: Option<u64>,
    /// `stale-if-error` (RFC 5861, section 4).
    pub stale_if_error: Option<u64>,
}

/// Longest time a directive can say; longer ones count as this (RFC 9111, section 1.2.2).
const SECONDS_MAX: u64 = 1 << 31;

impl CacheControl {
    /// Reads the field's lines, in order.
    ///
    /// nginx looks for the words anywhere in the value; this reads the members of the list, so
    /// `x-no-cache` forbids nothing. Of a repeated directive the first one counts (RFC 9111,
    /// section 4.2.1).
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut found = Self::default();
        for member in lines.into_iter().flat_map(field::members) {
            let (name, argument) = split(member);
            found.note(&name.to_ascii_lowercase(), || seconds(argument));
            if !is_well_formed(name, argument) {
                found.note_words(member);
            }
        }
        found
    }

    /// Notes what a member that breaks the grammar may be meant to forbid, or to bound: `private; max-age=0` is a common slip.
    fn note_words(&mut self, member: &[u8]) {
        const BOUNDS: [&[u8]; 7] = [
            b"no-store",
            b"no-cache",
            b"private",
            b"must-revalidate",
            b"proxy-revalidate",
            b"max-age",
            b"s-maxage",
        ];
        for words in member.split(|byte| !is_of_word(*byte) && *byte != b'=') {
            let mut words = words.split(|byte| *byte == b'=').peekable();
            while let Some(word) = words.next() {
                let word = word.to_ascii_lowercase();
                if BOUNDS.contains(&&word[..]) {
                    self.note(&word, || words.peek().and_then(|digits| delta_seconds(digits)));
                }
            }
        }
    }

    /// Reads a targeted field (`CDN-Cache-Control`), a dictionary of structured values. `None`: it is
    /// absent, empty or malformed, and another field decides (RFC 9213, section 2.1).
    pub fn parse_targeted<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let lines: Vec<&[u8]> = lines.into_iter().collect();
        let text = lines.join(&b", "[..]);
        let members: Dictionary = Parser::new(&text).parse().ok()?;
        if members.is_empty() {
            return None;
        }
        let mut found = Self::default();
        for (name, member) in &members {
            let ListEntry::Item(item) = member else { continue };
            match &item.bare_item {
                BareItem::Boolean(true) => found.note(name.as_str().as_bytes(), || None),
                BareItem::Integer(seconds) => {
                    let seconds = u64::try_from(i64::from(*seconds)).unwrap_or(0);
                    found.note(name.as_str().as_bytes(), || Some(seconds.min(SECONDS_MAX)));
                }
                // Of another type: ignored (RFC 9213, section 2.1).
                _ => {}
            }
        }
        Some(found)
    }

    fn note(&mut self, name: &[u8], seconds: impl FnOnce() -> Option<u64>) {
        // What cannot be read is stale at once: the safe side (RFC 9111, section 4.2.1).
        let lifetime = |kept: &mut Option<u64>, said: Option<u64>| {
            kept.get_or_insert(said.unwrap_or(0));
        };
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"max-age" => lifetime(&mut self.max_age, seconds()),
            b"s-maxage" => lifetime(&mut self.s_maxage, seconds()),
            b"stale-while-revalidate" => {
                self.stale_while_revalidate = self.stale_while_revalidate.or_else(seconds);
            }
            b"stale-if-error" => self.stale_if_error = self.stale_if_error.or_else(seconds),
            _ => {}
        }
    }

    /// How long a shared cache may call it fresh: `s-maxage`, else `max-age`.
    pub fn lifetime(&self) -> Option<u64> {
        self.s_maxage.or(self.max_age)
    }

    /// Whether it forbids a shared cache to use the response stale, as `s-maxage` does too (RFC 9111,
    /// section 5.2.2.10).
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage.is_some()
    }

    /// Whether it allows an answer to a request with `Authorization` to be shared (RFC 9111, section
    /// 3.5).
    pub fn shares_authorized(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage.is_some()
    }
}

fn split(member: &[u8]) -> (&[u8], &[u8]) {
    match member.iter().position(|byte| *byte == b'=') {
        Some(at) => (member[..at].trim_ascii(), member[at + 1..].trim_ascii()),
        None => (member, b""),
    }
}

/// Whether a byte is one of a directive's name; tokens may have others, as quotes, which are meant for something else here.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether a directive is a word, and its argument, if there is one, a token or a string (RFC 9111, section 5.2).
fn is_well_formed(name: &[u8], argument: &[u8]) -> bool {
    let is_string = argument.len() >= 2 && argument.starts_with(b"\"") && argument.ends_with(b"\"");
    let is_one = |string: &[u8]| {
        let mut is_escaped = false;
        string.iter().all(|byte| {
            let was_escaped = std::mem::take(&mut is_escaped);
            is_escaped = *byte == b'\\' && !was_escaped;
            *byte != b'"' || was_escaped
        }) && !is_escaped
    };
    !name.is_empty()
        && name.iter().all(|byte| is_of_word(*byte))
        && (argument.is_empty()
            || field::is_token(argument)
            || (is_string && is_one(&argument[1..argument.len() - 1])))
}

/// Delta seconds, quoted or not.
fn seconds(argument: &[u8]) -> Option<u64> {
    let digits =
        argument.strip_prefix(b"\"").and_then(|a| a.strip_suffix(b"\"")).unwrap_or(argument);
    delta_seconds(digits)
}

/// `1*DIGIT`; a number beyond 2^31 counts as 2^31 (RFC 9111, section 1.2.2).
fn delta_seconds(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0u64, |value, digit| {
        value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    Some(value.min(SECONDS_MAX))
}

/// `Age` in seconds: the first member of its first line; 0 for one that cannot be read (RFC 9111,
/// section 5.1).
pub fn age(line: Option<&[u8]>) -> u64 {
    line.and_then(|line| field::list(line).next()).and_then(delta_seconds).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CacheControl {
        CacheControl::parse([line.as_bytes()])
    }

    #[test]
    fn shared_age_wins_and_words_are_whole() {
        let both = parse("max-age=10, S-MaxAge=20");
        assert_eq!((both.lifetime(), both.private), (Some(20), false));
        let lines = CacheControl::parse([&b"max-age=3600"[..], b"s-maxage=1"]);
        assert_eq!(lines.lifetime(), Some(1));
        assert!(parse("max-age=10, private").private);
        assert!(!parse("x-no-cache, max-age=5").no_cache);
        assert!(parse("No-Cache=\"a, max-age=1\"").no_cache);
        assert_eq!(parse("no-cache=\"a, max-age=1\"").max_age, None);
        assert_eq!(parse("max-age=\"7\"").max_age, Some(7));
        assert_eq!(parse("max-age=99999999999999999999").max_age, Some(1 << 31));
        assert_eq!(parse("max-age=-1").max_age, Some(0));
        assert_eq!(parse("max-age=3, max-age=9").max_age, Some(3));
        assert_eq!(parse("stale-if-error=3").stale_if_error, Some(3));
    }

    #[test]
    fn each_directive_that_forbids_stale_or_shares_authorized_does_so_alone() {
        let table = [
            ("must-revalidate", true, true),
            ("proxy-revalidate", true, false),
            ("no-cache", true, false),
            ("s-maxage=1", true, true),
            ("public", false, true),
            ("max-age=1", false, false),
        ];
        for (line, forbids_stale, shares_authorized) in table {
            let found = parse(line);
            assert_eq!(found.forbids_stale(), forbids_stale, "{line}");
            assert_eq!(found.shares_authorized(), shares_authorized, "{line}");
        }
        assert_eq!(parse("stale-if-error=").stale_if_error, None);
    }

    #[test]
    fn what_breaks_the_grammar_forbids_what_it_names() {
        for line in [
            "private; max-age=3",
            "private;max-age=3",
            "max-age=3;private",
            "private max-age=3",
            "\"private\"",
            "x=\"a, private",
            "x=\"a\" private",
            "public, 'Private'",
            "x=\"a\\\", private",
        ] {
            assert!(parse(line).private, "{line}");
        }
        assert!(parse("no-store;").no_store && parse("no-cache;no-store").no_store);
        let lifetimes = [
            ("public max-age=5", Some(5)),
            ("public; max-age=0", Some(0)),
            ("public s-maxage=5, max-age=9", Some(5)),
            ("public max-age", Some(0)),
            ("public max-age = 5", Some(0)),
            ("public max-age=x", Some(0)),
            ("public max-age=3 max-age=9", Some(3)),
            ("x=\"max-age=5\"", None),
        ];
        for (line, expected) in lifetimes {
            assert_eq!(parse(line).lifetime(), expected, "{line}");
        }
        assert!(parse("public; must-revalidate").must_revalidate);
        assert!(parse("no-cache; must-revalidate").no_cache);
        for line in
            ["x=\"private\"", "x=private", "x-private", "not-private;x", "x=\"\\\"private\""]
        {
            assert!(!parse(line).private, "{line}");
        }
    }

    #[test]
    fn targeted_fields_are_structured_or_ignored() {
        let parse = |line: &str| CacheControl::parse_targeted([line.as_bytes()]);
        assert_eq!(parse("max-age=5, foo=bar").and_then(|c| c.max_age), Some(5));
        assert_eq!(parse("max-age=99999999999").and_then(|c| c.max_age), Some(1 << 31));
        assert_eq!(parse("max-age=5, max-age=7").and_then(|c| c.max_age), Some(7));
        assert!(parse("private").is_some_and(|c| c.private));
        assert!(parse("private=?0, a").is_some_and(|c| !c.private));
        assert_eq!(parse("max-age=\"5\"").map(|c| c.max_age), Some(None));
        assert_eq!(parse("max-age=5, &&&"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn age_is_the_first_member() {
        let table = [
            ("7200", 7200),
            ("7200, 0", 7200),
            ("0, 7200", 0),
            ("abc", 0),
            ("-7200", 0),
            ("7200.0", 0),
            ("2147483649", 1 << 31),
            ("", 0),
        ];
        for (line, expected) in table {
            assert_eq!(age(Some(line.as_bytes())), expected, "{line}");
        }
        assert_eq!(age(None), 0);
    }
}
