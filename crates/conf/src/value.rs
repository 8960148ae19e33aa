//! Units of values: sizes (`8k`), offsets (`1g`), times (`1h 30m`, `500ms`), switches.

use std::time::Duration;

/// A size in bytes: a number with an optional `k` or `m` of either case.
///
/// # Source
/// nginx, "Configuration file measurement units".
pub fn size(text: &[u8]) -> Option<u64> {
    let (digits, unit) = split_unit(text);
    let factor = match unit {
        b"" => 1,
        b"k" | b"K" => 1 << 10,
        b"m" | b"M" => 1 << 20,
        _ => return None,
    };
    number(digits)?.checked_mul(factor)
}

/// A file offset in bytes: as [`size`], and `g` too.
pub fn offset(text: &[u8]) -> Option<u64> {
    match text.split_last() {
        Some((b'g' | b'G', digits)) => number(digits)?.checked_mul(1 << 30),
        _ => size(text),
    }
}

/// A time: numbers with units `ms s m h d w M y`, largest first, spaces allowed between them; a
/// number without unit counts seconds.
///
/// # Source
/// nginx, "Configuration file measurement units": a month is 30 days, a year 365.
pub fn time(text: &[u8]) -> Option<Duration> {
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut last_rank = usize::MAX;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = number(&rest[..digits])?;
        rest = &rest[digits..];
        let (rank, unit_ms, unit_bytes) = unit(rest)?;
        if rank >= last_rank {
            return None;
        }
        last_rank = rank;
        total_ms = total_ms.checked_add(value.checked_mul(unit_ms)?)?;
        rest = rest[unit_bytes..].trim_ascii_start();
    }
    Some(Duration::from_millis(total_ms))
}

/// As [`time`], for times that are counted in milliseconds: without months and years, as nginx.
pub fn short_time(text: &[u8]) -> Option<Duration> {
    let is_long = text.iter().any(|byte| matches!(byte, b'M' | b'y'));
    time(text).filter(|_| !is_long)
}

/// Rank (larger unit, larger rank), milliseconds and length of the unit at the start of `text`.
fn unit(text: &[u8]) -> Option<(usize, u64, usize)> {
    const DAY_MS: u64 = 86_400_000;
    Some(match text {
        [b'm', b's', ..] => (0, 1, 2),
        [] => (1, 1000, 0),
        [b' ', ..] => (1, 1000, 0),
        [b's', ..] => (1, 1000, 1),
        [b'm', ..] => (2, 60_000, 1),
        [b'h', ..] => (3, 3_600_000, 1),
        [b'd', ..] => (4, DAY_MS, 1),
        [b'w', ..] => (5, 7 * DAY_MS, 1),
        [b'M', ..] => (6, 30 * DAY_MS, 1),
        [b'y', ..] => (7, 365 * DAY_MS, 1),
        _ => return None,
    })
}

/// `on` or `off`, of either case as nginx accepts them.
pub fn switch(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"on") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"off") {
        Some(false)
    } else {
        None
    }
}

/// A plain decimal number.
pub fn number(text: &[u8]) -> Option<u64> {
    /// Up to this many digits are no number that is too large.
    const SURE: usize = 19;
    if text.is_empty() {
        return None;
    }
    if text.len() <= SURE {
        let (mut value, mut is_number) = (0, true);
        for byte in text {
            let digit = byte.wrapping_sub(b'0');
            is_number &= digit < 10;
            value = value * 10 + u64::from(digit & 15);
        }
        return is_number.then_some(value);
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn split_unit(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_offsets() {
        let table: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("8k", Some(8192)),
            ("1M", Some(1 << 20)),
            ("1g", None),
            ("k", None),
            ("", None),
            ("-1", None),
            ("18446744073709551616", None),
            ("18014398509481984k", None),
        ];
        for (text, expected) in table {
            assert_eq!(size(text.as_bytes()), *expected, "{text}");
        }
        assert_eq!(offset(b"2g"), Some(2 << 30));
        assert_eq!(offset(b"5"), Some(5));
    }

    #[test]
    fn times_in_milliseconds_have_neither_months_nor_years() {
        assert_eq!(short_time(b"1w 2d"), time(b"9d"));
        assert_eq!(short_time(b"1m"), Some(Duration::from_secs(60)));
        for text in [&b"1M"[..], b"1y", b"1y 1s", b"x"] {
            assert_eq!(short_time(text), None);
        }
    }

    #[test]
    fn times_add_up_from_the_largest_unit() {
        let table: &[(&str, Option<u64>)] = &[
            ("10", Some(10_000)),
            ("500ms", Some(500)),
            ("1h30m", Some(5_400_000)),
            ("1h 30m", Some(5_400_000)),
            ("1d", Some(86_400_000)),
            ("1M", Some(2_592_000_000)),
            ("1y", Some(31_536_000_000)),
            ("30m1h", None),
            ("1x", None),
            ("", None),
            ("s", None),
        ];
        for (text, expected) in table {
            assert_eq!(time(text.as_bytes()), expected.map(Duration::from_millis), "{text}");
        }
    }
}
