//! The time as texts, formatted once a second per worker.

use crate::base::{turn, zone};
use jiff::Timestamp;
use std::cell::RefCell;
use std::rc::Rc;

/// One second in every notation the server writes.
#[derive(Debug)]
pub struct Texts {
    unix_seconds: i64,
    /// `Sun, 06 Nov 1994 08:49:37 GMT`
    pub http: String,
    /// `06/Nov/1994:08:49:37 +0000`
    pub local: String,
    /// `1994-11-06T08:49:37+00:00`
    pub iso8601: String,
    /// `1994/11/06 08:49:37`
    pub error: String,
    /// `Nov  6 08:49:37`
    pub syslog: String,
}

thread_local! {
    static CURRENT: RefCell<Rc<Texts>> = RefCell::new(Rc::new(Texts::at(0)));
}

/// The present second.
pub fn now() -> Rc<Texts> {
    let seconds = turn::unix_seconds();
    CURRENT.with_borrow_mut(|current| {
        if current.unix_seconds != seconds {
            *current = Rc::new(Texts::at(seconds));
        }
        Rc::clone(current)
    })
}

/// A time of day as this machine's clocks show it, `08:49:37`.
pub fn time_of_day(unix_seconds: i64) -> String {
    let timestamp = Timestamp::from_second(unix_seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = timestamp.to_zoned(zone::local());
    format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second())
}

impl Texts {
    fn at(unix_seconds: i64) -> Self {
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let timestamp = Timestamp::from_second(unix_seconds).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = timestamp.to_zoned(zone::local());
        let offset = time.offset().seconds();
        let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs() / 60);
        let month = usize::try_from(time.month() - 1).unwrap_or(0);
        Self {
            unix_seconds,
            http: yorozu_http::date::format(unix_seconds),
            local: format!(
                "{:02}/{}/{}:{:02}:{:02}:{:02} {sign}{:02}{:02}",
                time.day(),
                MONTHS[month],
                time.year(),
                time.hour(),
                time.minute(),
                time.second(),
                minutes / 60,
                minutes % 60,
            ),
            iso8601: format!(
                "{}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}:{:02}",
                time.year(),
                time.month(),
                time.day(),
                time.hour(),
                time.minute(),
                time.second(),
                minutes / 60,
                minutes % 60,
            ),
            syslog: format!(
                "{} {:2} {:02}:{:02}:{:02}",
                MONTHS[month],
                time.day(),
                time.hour(),
                time.minute(),
                time.second(),
            ),
            error: format!(
                "{}/{:02}/{:02} {:02}:{:02}:{:02}",
                time.year(),
                time.month(),
                time.day(),
                time.hour(),
                time.minute(),
                time.second(),
            ),
        }
    }
}
