//! How long an upstream's answer is fresh, in nginx's order of authority.

use super::directives::IgnoreHeaders;
use super::settings::Conf;
use crate::protocol::codec::Head;
use yorozu_http::cache_control::{self, CacheControl};
use yorozu_http::{date, field};
use yorozu_kernel::exchange::cached::NotStored;

/// Until when an answer is fresh and may be stale. Times are milliseconds since 1970.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Freshness {
    /// When the answer was made, `Age` counted in.
    pub born_at: i64,
    pub fresh_until: i64,
    pub stale_updating_until: i64,
    pub stale_error_until: i64,
    /// Its origin forbids its use once it is not fresh.
    pub must_revalidate: bool,
    /// `X-Accel-Expires` or `*_cache_valid` said it.
    pub is_by_operator: bool,
}

/// When the answer becomes stale. `now` is when it arrived, in milliseconds since 1970; `is_authorized`:
/// the request had `Authorization` and the key does not tell such requests apart.
///
/// `X-Accel-Expires`, then `CDN-Cache-Control`, `Cache-Control` and `Expires`, then `*_cache_valid`, then
/// `*_cache_heuristic`; `X-Accel-Expires-Max` bounds each of them, in seconds.
///
/// # Errors
/// Why it must not be stored.
///
/// # Sources
/// nginx, `fastcgi_cache_valid`; RFC 9111, sections 3 and 4.2; RFC 9213.
pub fn freshness(
    head: &Head,
    conf: &Conf,
    now: i64,
    is_authorized: bool,
) -> Result<Freshness, NotStored> {
    let found = unbounded(head, conf, now, is_authorized)?;
    let is_ignored = conf.ignore_headers.contains(IgnoreHeaders::X_ACCEL_EXPIRES);
    let max = head.field(b"x-accel-expires-max").filter(|_| !is_ignored);
    let Some(until) = max.and_then(|value| accel_expires(value, now)) else { return Ok(found) };
    let until = until.ok_or(NotStored::AccelExpires)?;
    Ok(Freshness {
        fresh_until: found.fresh_until.min(until),
        stale_updating_until: found.stale_updating_until.min(until),
        stale_error_until: found.stale_error_until.min(until),
        ..found
    })
}

fn unbounded(
    head: &Head,
    conf: &Conf,
    now: i64,
    is_authorized: bool,
) -> Result<Freshness, NotStored> {
    let ignored = conf.ignore_headers;
    if !ignored.contains(IgnoreHeaders::SET_COOKIE) && head.field(b"set-cookie").is_some() {
        return Err(NotStored::SetCookie);
    }
    if !ignored.contains(IgnoreHeaders::VARY)
        && head.values(b"vary").any(|value| field::list(value).any(|name| name == b"*"))
    {
        return Err(NotStored::Vary);
    }
    let accel = head
        .field(b"x-accel-expires")
        .filter(|_| !ignored.contains(IgnoreHeaders::X_ACCEL_EXPIRES));
    let control = Control::of(head, conf);
    if let Some(until) = accel.and_then(|value| accel_expires(value, now)) {
        let until = until.ok_or(NotStored::AccelExpires)?;
        // As nginx: an absolute time that is over stores an expired page, for failures to come.
        return Ok(Freshness {
            must_revalidate: false,
            is_by_operator: true,
            ..control.by_field(now, until)
        });
    }
    let found = control.judge(head, conf, now)?;
    let is_shared =
        control.said.shares_authorized() || ignored.contains(IgnoreHeaders::AUTHORIZATION);
    if is_authorized && !is_shared { Err(NotStored::Authorization) } else { Ok(found) }
}

/// `Some(None)`: not to be stored; `None`: malformed, as if absent.
fn accel_expires(value: &[u8], now: i64) -> Option<Option<i64>> {
    let number = |digits: &[u8]| i64::try_from(yorozu_conf::value::number(digits)?).ok();
    match value.strip_prefix(b"@") {
        // As nginx, which has 0 for nothing said.
        Some(absolute) => {
            number(absolute).filter(|at| *at > 0).map(|at| Some(at.saturating_mul(1000)))
        }
        None => number(value).map(|seconds| (seconds > 0).then(|| later(now, Some(seconds)))),
    }
}

fn later(start: i64, seconds: Option<i64>) -> i64 {
    seconds.map_or(0, |seconds| start.saturating_add(seconds.saturating_mul(1000)))
}

fn signed(seconds: Option<u64>) -> Option<i64> {
    seconds.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// What standard fields say.
struct Control {
    said: CacheControl,
    /// A field for caches like this one says it: `Expires` does not count then.
    is_targeted: bool,
}

impl Control {
    fn of(head: &Head, conf: &Conf) -> Self {
        if conf.ignore_headers.contains(IgnoreHeaders::CACHE_CONTROL) {
            return Self { said: CacheControl::default(), is_targeted: false };
        }
        let lines = |name| head.values(name).map(|value| &value[..]);
        match CacheControl::parse_targeted(lines(b"cdn-cache-control")) {
            Some(said) => Self { said, is_targeted: true },
            None => Self { said: CacheControl::parse(lines(b"cache-control")), is_targeted: false },
        }
    }

    fn judge(&self, head: &Head, conf: &Conf, now: i64) -> Result<Freshness, NotStored> {
        let said = &self.said;
        if said.private {
            return Err(NotStored::Private);
        }
        if said.no_store && !(said.must_understand && is_understood(head.status)) {
            return Err(NotStored::NoStore);
        }
        let age = cache_control::age(head.field(b"age").map(|value| &value[..]));
        let born_at = now.saturating_sub(later(0, signed(Some(age))));
        if said.no_cache {
            // With a validator it can be asked for at each use (RFC 9111, section 5.2.2.4).
            let may_ask = conf.cache_revalidate && head.status == 200 && has_validator(head);
            return if may_ask {
                Ok(self.by_field(born_at, born_at))
            } else {
                Err(NotStored::NoCache)
            };
        }
        if is_never_stored(head.status) {
            // Unless the operator names it.
            return match conf.cache_valid.lifetime(head.status) {
                Some(_) => self.by_configuration(head, conf, now, born_at),
                None => Err(NotStored::NoLifetime),
            };
        }
        let expires = head
            .field(b"expires")
            .filter(|_| !self.is_targeted && !conf.ignore_headers.contains(IgnoreHeaders::EXPIRES));
        let until = match (said.lifetime(), expires) {
            (Some(0), _) => return Err(NotStored::NoLifetime),
            (Some(lifetime), _) => later(born_at, signed(Some(lifetime))),
            // As nginx: a date that cannot be read, or lies in the past, forbids storing.
            (None, Some(expires)) => {
                let until = date::parse(expires).ok_or(NotStored::Expired)?;
                // What was made long ago is as old as its `Date` says (RFC 9111, section 4.2.3).
                later(born_at, Some(until - sent_at(head, now))).min(until.saturating_mul(1000))
            }
            (None, None) => return self.by_configuration(head, conf, now, born_at),
        };
        if until > now { Ok(self.by_field(born_at, until)) } else { Err(NotStored::Expired) }
    }

    fn by_field(&self, born_at: i64, fresh_until: i64) -> Freshness {
        let said = &self.said;
        // `s-maxage` forbids stale answers but for those that are allowed beside it.
        let is_strict = said.must_revalidate || said.proxy_revalidate || said.no_cache;
        let window = |seconds: Option<u64>| {
            later(fresh_until, signed(seconds.filter(|_| !is_strict)).filter(|s| *s > 0))
        };
        Freshness {
            born_at,
            fresh_until,
            stale_updating_until: window(said.stale_while_revalidate),
            // As nginx: what may be stale while it is renewed may be so where that fails.
            stale_error_until: window(said.stale_if_error.or(said.stale_while_revalidate)),
            must_revalidate: said.forbids_stale(),
            is_by_operator: false,
        }
    }

    /// No field says it: the configuration does.
    fn by_configuration(
        &self,
        head: &Head,
        conf: &Conf,
        now: i64,
        born_at: i64,
    ) -> Result<Freshness, NotStored> {
        if let Some(lifetime) = conf.cache_valid.lifetime(head.status) {
            let until = later(now, signed(Some(lifetime.as_secs())));
            let found = Freshness {
                must_revalidate: false,
                is_by_operator: true,
                ..self.by_field(born_at, until)
            };
            return if until > now { Ok(found) } else { Err(NotStored::NoLifetime) };
        }
        let until = later(born_at, Some(self.heuristic(head, conf, now)));
        if until > now { Ok(self.by_field(born_at, until)) } else { Err(NotStored::NoLifetime) }
    }

    /// Seconds guessed from how long the page had not changed (RFC 9111, section 4.2.2).
    fn heuristic(&self, head: &Head, conf: &Conf, now: i64) -> i64 {
        /// Longest guess; chosen: a day, as Apache's default.
        const SECONDS_MAX: i64 = 24 * 3600;
        let may_guess = is_heuristically_cacheable(head.status) || self.said.public;
        let modified = head.field(b"last-modified").and_then(|value| date::parse(value));
        match (modified, conf.cache_heuristic.percent()) {
            (Some(modified), Some(percent)) if may_guess => {
                let unchanged = sent_at(head, now) - modified;
                (unchanged.saturating_mul(percent) / 100).clamp(0, SECONDS_MAX)
            }
            _ => 0,
        }
    }
}

/// `Date`, or when it arrived; in seconds.
fn sent_at(head: &Head, now: i64) -> i64 {
    head.field(b"date").and_then(|value| date::parse(value)).unwrap_or(now / 1000)
}

/// Statuses that say how one client asked, or where it is: whatever the answer says, it is not for others (RFC 6585, sections 3
/// to 6).
fn is_never_stored(status: u16) -> bool {
    matches!(status, 428 | 429 | 431 | 511)
}

fn has_validator(head: &Head) -> bool {
    head.field(b"etag").is_some()
        || head.field(b"last-modified").is_some_and(|value| date::parse(value).is_some())
}

/// Statuses whose caching rules are known here (RFC 9111, section 5.2.2.3).
fn is_understood(status: u16) -> bool {
    let is_known = !yorozu_http::status::reason(status).is_empty();
    (is_known || is_heuristically_cacheable(status)) && status != 206 && status != 304
}

/// RFC 9110, section 15.1.
fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}
