//! Bytes looked for eight at a time: what a head consists of is mostly shorter than it takes to call a search.

/// One in each byte.
const ONES: u64 = u64::from_ne_bytes([1; 8]);
/// The highest bit of each byte.
const HIGHEST: u64 = ONES * 0x80;

/// Eight bytes, the first of them lowest, and those behind them.
#[inline]
fn split(text: &[u8]) -> Option<(u64, &[u8])> {
    let (eight, behind) = text.split_first_chunk()?;
    Some((u64::from_le_bytes(*eight), behind))
}

/// Which byte the lowest of these bits belongs to.
#[inline]
fn first(found: u64) -> usize {
    found.trailing_zeros() as usize / 8
}

/// The highest bits of bytes below `limit`, which is 128 at most. The first of them is one; what is above it may be borrowed.
#[inline]
fn below(eight: u64, limit: u8) -> u64 {
    eight.wrapping_sub(ONES * u64::from(limit)) & !eight & HIGHEST
}

/// The highest bits of letters, digits and hyphens. Nothing is carried from byte to byte.
#[inline]
fn of_names(eight: u64) -> u64 {
    // From `low` on, and not behind `high`.
    let between = |seven: u64, low: u8, high: u8| {
        (seven + ONES * u64::from(0x80 - low)) & !(seven + ONES * u64::from(0x7f - high))
    };
    let seven = eight & !HIGHEST;
    let letters = between(seven | (ONES * 0x20), b'a', b'z');
    let digits = between(seven, b'0', b'9');
    let hyphens = !((seven ^ (ONES * u64::from(b'-'))) + ONES * 0x7f);
    (letters | digits | hyphens) & !eight & HIGHEST
}

/// How many bytes at the beginning are letters, digits or hyphens; fewer, where the text ends soon behind them.
#[inline]
pub(crate) fn name_bytes(text: &[u8]) -> usize {
    let mut rest = text;
    while let Some((eight, behind)) = split(rest) {
        let others = !of_names(eight) & HIGHEST;
        if others != 0 {
            return text.len() - rest.len() + first(others);
        }
        rest = behind;
    }
    text.len() - rest.len()
}

/// How many bytes at the beginning are neither spaces nor control bytes; fewer, where the text ends soon behind them.
#[inline]
pub(crate) fn target_bytes(text: &[u8]) -> usize {
    let mut rest = text;
    while let Some((eight, behind)) = split(rest) {
        let found = below(eight, b' ' + 1) | below(eight ^ (ONES * 0x7f), 1);
        if found != 0 {
            return text.len() - rest.len() + first(found);
        }
        rest = behind;
    }
    text.len() - rest.len()
}

/// How far it is worth while without a search made for long texts; chosen.
const NEAR: usize = 64;

/// Where the first CR, LF or NUL stands.
#[inline]
pub(crate) fn line_break(text: &[u8]) -> Option<usize> {
    let mut rest = &text[..text.len().min(NEAR)];
    while let Some((eight, behind)) = split(rest) {
        let found = below(eight, 16);
        if found != 0 {
            let at = first(found);
            if matches!(rest[at], b'\r' | b'\n' | 0) {
                return Some(text.len().min(NEAR) - rest.len() + at);
            }
            break;
        }
        rest = behind;
    }
    let at = text.len().min(NEAR) - rest.len();
    memchr::memchr3(b'\r', b'\n', b'\0', &text[at..]).map(|offset| at + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of each length with each byte at each place.
    fn texts(usual: u8, mut judge: impl FnMut(&[u8])) {
        for length in 0..20 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut text = vec![usual; length];
                    text[at] = byte;
                    judge(&text);
                    // What follows it decides nothing.
                    text[at + 1..].iter_mut().for_each(|other| *other = byte.wrapping_add(1));
                    judge(&text);
                }
            }
        }
    }

    /// Whether a count is that of one byte after the other, or less because the end is near.
    fn is_count(found: usize, text: &[u8], is_wanted: impl Fn(u8) -> bool) -> bool {
        let count = text.iter().take_while(|byte| is_wanted(**byte)).count();
        found == count || (found < count && text.len() - found < 8)
    }

    #[test]
    fn names_and_targets_end_where_they_do_byte_by_byte() {
        texts(b'x', |text| {
            let of_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            assert!(is_count(name_bytes(text), text, of_names), "{text:?}");
            let of_targets = |byte: u8| byte > b' ' && byte != 0x7f;
            assert!(is_count(target_bytes(text), text, of_targets), "{text:?}");
        });
    }

    #[test]
    fn lines_end_where_they_do_byte_by_byte() {
        let of_lines = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
        for usual in [b'x', b'\t', 0xff] {
            texts(usual, |text| {
                assert_eq!(line_break(text), text.iter().position(of_lines), "{text:?}");
            });
        }
        let long = [&[b'x'; 3 * NEAR][..], b"\n"].concat();
        (0..=long.len()).for_each(|at| {
            let text = &long[at..];
            assert_eq!(line_break(text), text.iter().position(of_lines));
        });
    }
}
