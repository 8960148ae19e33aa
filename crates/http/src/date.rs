//! HTTP dates: reading all three formats of RFC 9110, section 5.6.7, writing the preferred one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    httpdate::fmt_http_date(system_time(unix_seconds))
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

fn system_time(unix_seconds: i64) -> SystemTime {
    // The crate formats years up to 9999 only.
    const LAST: u64 = 253_402_300_799;
    let seconds = u64::try_from(unix_seconds).unwrap_or(0).min(LAST);
    UNIX_EPOCH + Duration::from_secs(seconds)
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
        assert_eq!(format(-5), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
