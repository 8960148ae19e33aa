//! HTTP dates: reading all three formats of RFC 9110, section 5.6.7, writing the preferred one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of an IMF-fixdate, in bytes.
pub const DATE_BYTES: usize = 29;

/// Seconds since 1970-01-01T00:00:00Z; `None` if the text is no date.
pub fn parse(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let time = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| since.as_secs().try_into().ok())
}

/// IMF-fixdate (`Sun, 06 Nov 1994 08:49:37 GMT`) of a time in seconds since 1970.
pub fn format(unix_seconds: i64) -> String {
    httpdate::fmt_http_date(system_time(unix_seconds))
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
    fn the_three_formats_name_the_same_second() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(parse(b"yesterday"), None);
        assert_eq!(format(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(format(-5), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
