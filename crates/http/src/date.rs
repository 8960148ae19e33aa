//! HTTP dates: reading all three formats of RFC 9110, section 5.6.7, writing the preferred one.

use std::time::{SystemTime, UNIX_EPOCH};

/// Length of an IMF-fixdate, in bytes.
pub const DATE_BYTES: usize = 29;

/// Seconds since 1970-01-01T00:00:00Z; `None` if the text is not a date.
///
/// Names are read in any case, and a day of the week that is not the date's is overlooked, as nginx
/// does; a zone other than GMT makes it no date (RFC 9110, section 5.6.7).
pub fn parse(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let time = httpdate::parse_http_date(text).ok().or_else(|| parse_leniently(text))?;
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| since.as_secs().try_into().ok())
}

/// As [`parse`], for what a request compares with a response: nothing follows from it but whether the same date was
/// sent before. So what stands behind the time counts for nothing, as in nginx: no zone, or `GMT; length=5` of old
/// clients.
pub fn parse_condition(text: &[u8]) -> Option<i64> {
    parse(text).or_else(|| {
        // The time's second colon; a date without a comma ends with the year.
        let mut colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':').skip(1);
        let (colon, _) = colons.next().filter(|_| text.contains(&b','))?;
        parse(&[text.get(..colon + 3)?, b" GMT"].concat())
    })
}

/// Writes the names as the crate wants them, and tries every day of the week.
fn parse_leniently(text: &str) -> Option<SystemTime> {
    const DAYS: [&str; 7] =
        ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let names_end = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let (day, rest) = text.split_at(names_end);
    let is_known = DAYS
        .iter()
        .any(|known| known.eq_ignore_ascii_case(day) || known[..3].eq_ignore_ascii_case(day));
    if !is_known || !rest.is_ascii() {
        return None;
    }
    let mut rest = rest.to_ascii_lowercase().into_bytes();
    for at in 1..rest.len() {
        if rest[at].is_ascii_lowercase() && !rest[at - 1].is_ascii_alphabetic() {
            rest[at] = rest[at].to_ascii_uppercase();
        }
    }
    let mut rest = String::from_utf8(rest).ok()?;
    if let Some(date) = rest.strip_suffix(" Gmt") {
        rest = format!("{date} GMT");
    }
    let name = |known: &'static str| if day.len() == 3 { &known[..3] } else { known };
    DAYS.iter().find_map(|known| httpdate::parse_http_date(&format!("{}{rest}", name(known))).ok())
}

/// IMF-fixdate (`Sun, 06 Nov 1994 08:49:37 GMT`) of a time in seconds since 1970.
pub fn format(unix_seconds: i64) -> String {
    text(unix_seconds).iter().map(|byte| char::from(*byte)).collect()
}

/// As [`format`], without memory: of each file the answer has one.
pub fn text(unix_seconds: i64) -> [u8; DATE_BYTES] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
    const MONTHS: &[u8; 36] = b"MarAprMayJunJulAugSepOctNovDecJanFeb";
    // Years have four digits.
    const LAST: u64 = 253_402_300_799;
    let seconds = u64::try_from(unix_seconds).unwrap_or(0).min(LAST);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // From the March of 0 on, the day that is added to leap years is the last of one, of four, and of 400.
    let days = day + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let mut put = |at: usize, number: u64| {
        let digit = |number: u64| b'0' + u8::try_from(number % 10).unwrap_or(0);
        (text[at], text[at + 1]) = (digit(number / 10), digit(number));
    };
    put(5, date);
    put(12, year / 100);
    put(14, year);
    put(17, second / 3600);
    put(20, second / 60 % 60);
    put(23, second % 60);
    let name = |names: &[u8], number: u64| {
        let at = usize::try_from(number).unwrap_or(0) * 3;
        [names[at], names[at + 1], names[at + 2]]
    };
    text[..3].copy_from_slice(&name(DAYS, day % 7));
    text[8..11].copy_from_slice(&name(MONTHS, month));
    text
}

/// What nginx says for `expires=max` of a cookie: about the last second that 32 bits hold.
pub const COOKIE_MAX: &str = "Thu, 31-Dec-37 23:55:55 GMT";

/// The same as cookies have it (`Sun, 06-Nov-94 08:49:37 GMT`), which old clients want; beyond 2037 the year has four
/// digits.
pub fn cookie(unix_seconds: i64) -> String {
    let date = format(unix_seconds);
    let (day, month, year, time) = (&date[..7], &date[8..11], &date[12..16], &date[16..]);
    let year = if year > "2037" { year } else { &year[2..] };
    format!("{day}-{month}-{year}{time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_have_a_form_of_their_own() {
        assert_eq!(cookie(784_111_777), "Sun, 06-Nov-94 08:49:37 GMT");
        assert_eq!(cookie(2_145_916_799), "Thu, 31-Dec-37 23:59:59 GMT");
        assert_eq!(cookie(2_145_916_800), "Fri, 01-Jan-2038 00:00:00 GMT");
    }

    #[test]
    fn the_three_formats_name_the_same_second() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "sun, 06 nOV 1994 08:49:37 gMT",
            "Monday, 06-Nov-94 08:49:37 GMT",
            "Tue Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
        for text in [
            "yesterday",
            "Xyz, 06 Nov 1994 08:49:37 GMT",
            "",
            "0",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 AEST",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nov 1994, 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(format(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn a_condition_needs_no_zone() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 GMT; length=5",
            "Sunday, 06-Nov-94 08:49:37; length=5",
            "Sun, 06 Nov 1994 08:49:37:00 AEST",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_condition(text.as_bytes()), Some(784_111_777), "{text}");
        }
        for text in ["", ",", ",::", "Sun, 06 Nov 1994 08:49", "Sun, 06 Nov 1994 08:49:3"] {
            assert_eq!(parse_condition(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn dates_are_those_of_others() {
        const LAST: i64 = 253_402_300_799;
        const YEAR_2104: i64 = 4_228_848_000;
        // Each day at some second of it, and later ones.
        let days = (0..YEAR_2104).step_by(86_399);
        for unix_seconds in days.chain((0..LAST).step_by(97 * 86_399)).chain([LAST]) {
            let since = std::time::Duration::from_secs(unix_seconds.unsigned_abs());
            let wanted = httpdate::fmt_http_date(UNIX_EPOCH + since);
            assert_eq!(text(unix_seconds), wanted.as_bytes(), "{unix_seconds}");
        }
        assert_eq!(format(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(format(-5), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
