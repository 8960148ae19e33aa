//! The `Range` field: which bytes of a representation are wanted.

use std::ops::Range;

/// What a `Range` field asks of a representation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wanted {
    /// The field is absent in effect: malformed, of another unit, or wanting more than the whole.
    Whole,
    /// These ranges, in the order asked; each is non-empty and within the representation.
    Parts(Vec<Range<u64>>),
    /// Syntactically fine, but no range lies within the representation: 416.
    Unsatisfiable,
}

/// Reads a `Range` value against a representation of `length` bytes; at most `parts_max` ranges.
///
/// # Source
/// RFC 9110, section 14.1.2; as nginx (`ngx_http_range_parse`), malformed ranges give 416, more ranges than
/// allowed, ranges longer together than the representation, or any of an empty one from its start, the whole.
pub fn parse(value: &[u8], length: u64, parts_max: usize) -> Wanted {
    const UNIT: &[u8] = b"bytes=";
    let Some((unit, specs)) = value.split_at_checked(UNIT.len()) else { return Wanted::Whole };
    if !unit.eq_ignore_ascii_case(UNIT) || specs.is_empty() || parts_max == 0 {
        return Wanted::Whole;
    }
    let mut parts = Vec::new();
    for spec in specs.split(|byte| *byte == b',') {
        let Some(range) = part(spec, length) else { return Wanted::Unsatisfiable };
        match range.is_empty() {
            true if range.start == 0 => return Wanted::Whole,
            true => {}
            false if parts.len() == parts_max => return Wanted::Whole,
            false => parts.push(range),
        }
    }
    if parts.is_empty() {
        return Wanted::Unsatisfiable;
    }
    let total: u64 = parts.iter().map(|range| range.end - range.start).sum();
    if total > length { Wanted::Whole } else { Wanted::Parts(parts) }
}

/// One range, empty if it lies outside; `None` if it is malformed.
fn part(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let spec = unindented(spec);
    if let Some(suffix) = spec.strip_prefix(b"-") {
        let (suffix, rest) = position(suffix)?;
        return unindented(rest).is_empty().then(|| length.saturating_sub(suffix)..length);
    }
    let (start, rest) = position(spec)?;
    let rest = unindented(unindented(rest).strip_prefix(b"-")?);
    if rest.is_empty() {
        return Some(start..length);
    }
    let (last, rest) = position(rest)?;
    unindented(rest).is_empty().then(|| start..last.saturating_add(1).min(length))
}

/// Without the spaces before it; a tab is none.
fn unindented(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|byte| **byte == b' ').count()..]
}

/// Digits, up to the largest offset of a file, and what follows them.
fn position(text: &[u8]) -> Option<(u64, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(count);
    let digits = std::str::from_utf8(digits).ok()?;
    Some((digits.parse().ok().filter(|value| i64::try_from(*value).is_ok())?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<u64>) -> Wanted {
        Wanted::Parts(std::iter::once(range).collect())
    }

    #[test]
    fn where_no_range_is_allowed_none_is_judged() {
        for value in ["bytes=0-0", "bytes=10-", "bytes=x-"] {
            assert_eq!(parse(value.as_bytes(), 10, 0), Wanted::Whole, "{value}");
        }
    }

    #[test]
    fn ranges_are_cut_at_the_end_and_kept_in_order() {
        let table = [
            ("bytes=0-0", one(0..1)),
            ("bytes=2-", one(2..10)),
            ("bytes=-3", one(7..10)),
            ("bytes=-30", one(0..10)),
            ("bytes=8-99", one(8..10)),
            ("bytes=5-6, 0-1", Wanted::Parts(vec![5..7, 0..2])),
            ("Bytes=1-1", one(1..2)),
            ("lines=1-1", Wanted::Whole),
            ("bytes=0-8,1-9", Wanted::Whole),
            ("bytes=9-8", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=x-", Wanted::Unsatisfiable),
            ("bytes=18446744073709551616-", Wanted::Unsatisfiable),
            ("bytes=0-9223372036854775807", one(0..10)),
            ("bytes=0-9223372036854775808", Wanted::Unsatisfiable),
            ("bytes=0-1,9223372036854775808-", Wanted::Unsatisfiable),
            ("bytes=", Wanted::Whole),
            ("bytes", Wanted::Whole),
            ("bytes= ", Wanted::Unsatisfiable),
            ("bytes=,", Wanted::Unsatisfiable),
            ("bytes=0-1,", Wanted::Unsatisfiable),
            ("bytes=,0-1", Wanted::Unsatisfiable),
            ("bytes=-", Wanted::Unsatisfiable),
            ("bytes=--1", Wanted::Unsatisfiable),
            ("bytes=- 1", Wanted::Unsatisfiable),
            ("bytes=+1-2", Wanted::Unsatisfiable),
            ("bytes= 0 - 1 , 3-4 ", Wanted::Parts(vec![0..2, 3..5])),
            ("bytes=\t0-1", Wanted::Unsatisfiable),
            ("bytes=0-1;", Wanted::Unsatisfiable),
        ];
        for (value, expected) in table {
            assert_eq!(parse(value.as_bytes(), 10, usize::MAX), expected, "{value}");
        }
    }

    #[test]
    fn range_past_the_end_is_unsatisfiable() {
        // RFC 9110, section 14.1.2: the first position lies at or beyond the end.
        assert_eq!(parse(b"bytes=9-", 10, 9), one(9..10));
        assert_eq!(parse(b"bytes=10-", 10, 9), Wanted::Unsatisfiable);
    }

    #[test]
    fn of_an_empty_representation_the_start_is_the_whole() {
        for value in ["bytes=0-", "bytes=0-5", "bytes=-5"] {
            assert_eq!(parse(value.as_bytes(), 0, 9), Wanted::Whole, "{value}");
        }
        assert_eq!(parse(b"bytes=1-", 0, 9), Wanted::Unsatisfiable);
    }

    #[test]
    fn more_ranges_than_allowed_give_the_whole() {
        assert_eq!(parse(b"bytes=0-0,1-1", 10, 1), Wanted::Whole);
        assert_eq!(parse(b"bytes=0-0", 10, 0), Wanted::Whole);
    }
}
