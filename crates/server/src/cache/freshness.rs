//! How long an upstream's answer is fresh, in nginx's order of authority.

use crate::handlers::gateway::directives::IgnoreHeaders;
use crate::handlers::gateway::{Conf, Head};
use yorozu_http::cache_control::CacheControl;
use yorozu_http::{date, field};

/// Until when an answer is fresh and may be stale. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Freshness {
    pub fresh_until: i64,
    pub stale_updating_until: i64,
    pub stale_error_until: i64,
}

/// When the answer becomes stale; `None` if it must not be stored.
///
/// `X-Accel-Expires`, then `Cache-Control`, then `Expires`, then `*_cache_valid`.
///
/// # Source
/// nginx, `fastcgi_cache_valid`.
pub fn freshness(head: &Head, conf: &Conf, now: i64) -> Option<Freshness> {
    let ignored = conf.ignore_headers;
    let values = |name: &'static [u8]| {
        head.fields.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| &v[..])
    };
    if !ignored.has(IgnoreHeaders::SET_COOKIE) && values(b"set-cookie").next().is_some() {
        return None;
    }
    if !ignored.has(IgnoreHeaders::VARY)
        && values(b"vary").any(|value| field::list(value).any(|name| name == b"*"))
    {
        return None;
    }
    let control = if ignored.has(IgnoreHeaders::CACHE_CONTROL) {
        CacheControl::default()
    } else {
        values(b"cache-control")
            .map(CacheControl::parse)
            .fold(CacheControl::default(), CacheControl::merge)
    };
    let accel = if ignored.has(IgnoreHeaders::X_ACCEL_EXPIRES) {
        None
    } else {
        values(b"x-accel-expires").next()
    };
    let from = |seconds: Option<u64>, start: i64| {
        seconds
            .map_or(0, |seconds| start.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX)))
    };
    // As nginx: an absolute time that is over stores an expired page, for failures to come.
    let is_absolute = accel.is_some_and(|value| value.starts_with(b"@"));
    let until = match accel.and_then(|value| accel_expires(value, now)) {
        Some(until) => until?,
        None => {
            if control.forbids_store {
                return None;
            }
            match control.max_age {
                Some(0) => return None,
                Some(age) => from(Some(age), now),
                None => expires_or_valid(head, conf, now, values(b"expires").next())?,
            }
        }
    };
    (until > now || is_absolute).then(|| Freshness {
        fresh_until: until,
        stale_updating_until: from(control.stale_while_revalidate, until),
        stale_error_until: from(control.stale_if_error, until),
    })
}

/// `Some(None)`: not to be stored; `None`: malformed, as if absent.
fn accel_expires(value: &[u8], now: i64) -> Option<Option<i64>> {
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<i64>().ok();
    match value.strip_prefix(b"@") {
        Some(absolute) => number(absolute).map(Some),
        None => number(value).map(|seconds| (seconds > 0).then(|| now.saturating_add(seconds))),
    }
}

fn expires_or_valid(head: &Head, conf: &Conf, now: i64, expires: Option<&[u8]>) -> Option<i64> {
    if let Some(expires) = expires.filter(|_| !conf.ignore_headers.has(IgnoreHeaders::EXPIRES)) {
        // As nginx: a date that cannot be read, or lies in the past, forbids storing.
        return date::parse(expires).filter(|until| *until > now);
    }
    let lifetime = conf.cache_valid.lifetime(head.status)?;
    let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
    Some(now.saturating_add(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn until(conf: &str, status: u16, fields: &[(&str, &str)]) -> Option<i64> {
        let text = format!("http {{ server {{ location / {{ {conf} }} }} }}");
        let config = crate::testing::config(&text);
        let location = config.locations.iter().find(|location| &location.name[..] == b"/").unwrap();
        let fields = fields
            .iter()
            .map(|(n, v)| {
                (Bytes::copy_from_slice(n.as_bytes()), Bytes::copy_from_slice(v.as_bytes()))
            })
            .collect();
        let head = Head { status, reason: None, fields: std::rc::Rc::new(fields) };
        freshness(&head, &location.fastcgi.gateway, 1000).map(|found| found.fresh_until)
    }

    #[test]
    fn the_lifetime_comes_from_the_strongest_authority() {
        const VALID: &str = "fastcgi_cache_valid 200 302 1h; fastcgi_cache_valid 301 1d; fastcgi_cache_valid any 1m;";
        type Row<'a> = (u16, &'a [(&'a str, &'a str)], Option<i64>);
        let table: &[Row<'_>] = &[
            (200, &[], Some(4600)),
            (301, &[], Some(87_400)),
            (404, &[], Some(1060)),
            (200, &[("Cache-Control", "max-age=5")], Some(1005)),
            (200, &[("cache-control", "max-age=5, s-maxage=7")], Some(1007)),
            (200, &[("Cache-Control", "max-age=0")], None),
            (200, &[("Cache-Control", "private")], None),
            (200, &[("Cache-Control", "no-cache"), ("X-Accel-Expires", "9")], Some(1009)),
            (200, &[("X-Accel-Expires", "0")], None),
            (200, &[("X-Accel-Expires", "@1500")], Some(1500)),
            (200, &[("X-Accel-Expires", "@900")], Some(900)),
            (200, &[("Expires", "Thu, 01 Jan 1970 00:20:00 GMT")], Some(1200)),
            (200, &[("Expires", "Thu, 01 Jan 1970 00:10:00 GMT")], None),
            (200, &[("Expires", "0")], None),
            (200, &[("Set-Cookie", "a=b")], None),
            (200, &[("Vary", "Accept, *")], None),
            (200, &[("Vary", "Accept")], Some(4600)),
        ];
        for (status, fields, expected) in table {
            assert_eq!(until(VALID, *status, fields), *expected, "{status} {fields:?}");
        }
        assert_eq!(until("", 200, &[]), None);
        let ignoring =
            "fastcgi_cache_valid 1m; fastcgi_ignore_headers Set-Cookie Cache-Control Expires;";
        let fields = [("Set-Cookie", "a"), ("Cache-Control", "private"), ("Expires", "0")];
        assert_eq!(until(ignoring, 200, &fields), Some(1060));
    }
}
