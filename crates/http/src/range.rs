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
/// RFC 9110, section 14.1.2; as nginx, malformed ranges give 416, more ranges than allowed or
/// ranges longer together than the representation give the whole.
pub fn parse(value: &[u8], length: u64, parts_max: usize) -> Wanted {
    const UNIT: &[u8] = b"bytes=";
    let Some((unit, specs)) = value.split_at_checked(UNIT.len()) else { return Wanted::Whole };
    if !unit.eq_ignore_ascii_case(UNIT) || parts_max == 0 {
        return Wanted::Whole;
    }
    let mut parts = Vec::new();
    for spec in specs.split(|byte| *byte == b',') {
        match part(spec.trim_ascii(), length) {
            Err(()) => return Wanted::Unsatisfiable,
            Ok(None) => {}
            Ok(Some(_)) if parts.len() == parts_max => return Wanted::Whole,
            Ok(Some(range)) => parts.push(range),
        }
    }
    if parts.is_empty() {
        return Wanted::Unsatisfiable;
    }
    let total: u64 = parts.iter().map(|range| range.end - range.start).sum();
    if total > length { Wanted::Whole } else { Wanted::Parts(parts) }
}

/// One range; `Ok(None)` if it is well-formed but lies outside.
fn part(spec: &[u8], length: u64) -> Result<Option<Range<u64>>, ()> {
    let dash = spec.iter().position(|byte| *byte == b'-').ok_or(())?;
    let (first, last) = (spec[..dash].trim_ascii(), spec[dash + 1..].trim_ascii());
    let range = if first.is_empty() {
        let suffix = position(last)?;
        length.saturating_sub(suffix)..length
    } else {
        let start = position(first)?;
        let end =
            if last.is_empty() { length } else { position(last)?.saturating_add(1).min(length) };
        start..end
    };
    Ok((range.start < range.end).then_some(range))
}

fn position(digits: &[u8]) -> Result<u64, ()> {
    if digits.is_empty() {
        return Err(());
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0')).ok_or(())?;
        value.checked_mul(10).and_then(|value| value.checked_add(digit)).ok_or(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<u64>) -> Wanted {
        Wanted::Parts(std::iter::once(range).collect())
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
    fn more_ranges_than_allowed_give_the_whole() {
        assert_eq!(parse(b"bytes=0-0,1-1", 10, 1), Wanted::Whole);
        assert_eq!(parse(b"bytes=0-0", 10, 0), Wanted::Whole);
    }
}
