//! `Cache-Control` of a response, as far as a shared cache acts on it.

use crate::field;

/// The directives that decide about storing and freshness.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheControl {
    /// `no-cache`, `no-store` or `private`: not to be stored, in nginx's reading.
    pub forbids_store: bool,
    /// `s-maxage`, else `max-age`, in seconds.
    pub max_age: Option<u64>,
    /// `stale-while-revalidate`, in seconds (RFC 5861, section 3).
    pub stale_while_revalidate: Option<u64>,
    /// `stale-if-error`, in seconds (RFC 5861, section 4).
    pub stale_if_error: Option<u64>,
}

impl CacheControl {
    /// Reads one field value; call [`CacheControl::merge`] for further field lines.
    ///
    /// nginx looks for the words anywhere in the value; this reads the members of the list, so
    /// `x-no-cache` forbids nothing.
    pub fn parse(value: &[u8]) -> Self {
        let mut found = Self::default();
        let mut shared_age = None;
        for member in field::list(value) {
            let (name, argument) = split(member);
            if [&b"no-cache"[..], b"no-store", b"private"]
                .iter()
                .any(|n| name.eq_ignore_ascii_case(n))
            {
                found.forbids_store = true;
            } else if name.eq_ignore_ascii_case(b"s-maxage") {
                shared_age = seconds(argument);
            } else if name.eq_ignore_ascii_case(b"max-age") {
                found.max_age = seconds(argument);
            } else if name.eq_ignore_ascii_case(b"stale-while-revalidate") {
                found.stale_while_revalidate = seconds(argument);
            } else if name.eq_ignore_ascii_case(b"stale-if-error") {
                found.stale_if_error = seconds(argument);
            }
        }
        found.max_age = shared_age.or(found.max_age);
        found
    }

    /// Joins what a further field line says.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            forbids_store: self.forbids_store || other.forbids_store,
            max_age: self.max_age.or(other.max_age),
            stale_while_revalidate: self.stale_while_revalidate.or(other.stale_while_revalidate),
            stale_if_error: self.stale_if_error.or(other.stale_if_error),
        }
    }
}

fn split(member: &[u8]) -> (&[u8], &[u8]) {
    match member.iter().position(|byte| *byte == b'=') {
        Some(at) => (member[..at].trim_ascii(), member[at + 1..].trim_ascii()),
        None => (member, b""),
    }
}

/// Delta seconds, quoted or not; a number beyond 2^31 counts as 2^31 (RFC 9111, section 1.2.2).
fn seconds(argument: &[u8]) -> Option<u64> {
    const MAX: u64 = 1 << 31;
    let digits =
        argument.strip_prefix(b"\"").and_then(|a| a.strip_suffix(b"\"")).unwrap_or(argument);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0u64, |value, digit| {
        value.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    Some(value.min(MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_age_wins_and_words_are_whole() {
        let both = CacheControl::parse(b"max-age=10, S-MaxAge=20");
        assert_eq!((both.max_age, both.forbids_store), (Some(20), false));
        assert!(CacheControl::parse(b"max-age=10, private").forbids_store);
        assert!(!CacheControl::parse(b"x-no-cache, max-age=5").forbids_store);
        assert_eq!(CacheControl::parse(b"max-age=\"7\"").max_age, Some(7));
        assert_eq!(CacheControl::parse(b"max-age=99999999999999999999").max_age, Some(1 << 31));
        assert_eq!(CacheControl::parse(b"max-age=-1").max_age, None);
        assert_eq!(CacheControl::parse(b"stale-if-error=3").stale_if_error, Some(3));
    }
}
