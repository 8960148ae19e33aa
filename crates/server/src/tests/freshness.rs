//! How long a page may be stored.

use bytes::Bytes;
use yorozu_gateway::cache::freshness::*;
use yorozu_gateway::cache::settings;
use yorozu_gateway::protocol::codec::Head;
use yorozu_kernel::exchange::cached::NotStored;

/// Seconds at which the answer arrives.
const NOW: i64 = 1000;

type Fields<'a> = &'a [(&'a str, &'a str)];

fn judged(
    conf: &str,
    status: u16,
    fields: Fields<'_>,
    is_authorized: bool,
) -> Result<Freshness, NotStored> {
    let text = format!("http {{ server {{ location / {{ {conf} }} }} }}");
    let config = crate::testing::config(&text);
    let location = config.locations.iter().find(|location| &location.name[..] == b"/").unwrap();
    let fields: Vec<_> = fields
        .iter()
        .map(|(n, v)| (Bytes::copy_from_slice(n.as_bytes()), Bytes::copy_from_slice(v.as_bytes())))
        .collect();
    let head = Head { status, reason: None, fields: fields.into() };
    let conf = settings::with_prefix(location, &yorozu_gateway::fastcgi::FAMILY);
    freshness(&head, conf, NOW * 1000, is_authorized)
}

fn until(conf: &str, status: u16, fields: Fields<'_>) -> Option<i64> {
    judged(conf, status, fields, false).ok().map(|found| found.fresh_until / 1000)
}

const VALID: &str =
    "fastcgi_cache_valid 200 302 1h; fastcgi_cache_valid 301 1d; fastcgi_cache_valid any 1m;";

#[test]
fn the_lifetime_comes_from_the_strongest_authority() {
    let table: &[(u16, Fields<'_>, Option<i64>)] = &[
        (200, &[], Some(4600)),
        (301, &[], Some(87_400)),
        (404, &[], Some(1060)),
        (200, &[("Cache-Control", "max-age=5")], Some(1005)),
        (200, &[("cache-control", "max-age=5, s-maxage=7")], Some(1007)),
        (200, &[("cache-control", "max-age=9"), ("Cache-Control", "s-maxage=7")], Some(1007)),
        (200, &[("Cache-Control", "max-age=0")], None),
        (200, &[("Cache-Control", "private")], None),
        (200, &[("Cache-Control", "no-cache"), ("X-Accel-Expires", "9")], Some(1009)),
        (200, &[("X-Accel-Expires", "0")], None),
        (200, &[("X-Accel-Expires", "@1500")], Some(1500)),
        (200, &[("X-Accel-Expires", "@900")], Some(900)),
        // No numbers to nginx, and so nothing that was said.
        (200, &[("X-Accel-Expires", "@0")], Some(4600)),
        (200, &[("X-Accel-Expires", "@-9"), ("Cache-Control", "max-age=5")], Some(1005)),
        (200, &[("X-Accel-Expires", "-9")], Some(4600)),
        (200, &[("X-Accel-Expires", "+9"), ("Cache-Control", "no-cache")], None),
        (200, &[("X-Accel-Expires-Max", "9")], Some(1009)),
        (200, &[("X-Accel-Expires-Max", "90000000")], Some(4600)),
        (200, &[("X-Accel-Expires-Max", "0")], None),
        (200, &[("X-Accel-Expires-Max", "9"), ("X-Accel-Expires", "5")], Some(1005)),
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
    // About one request, if they do not say how long they are valid.
    for status in [400, 401, 406, 407, 408, 413, 421, 422, 425, 426, 499] {
        assert_eq!(until(VALID, status, &[]), None, "{status}");
        assert_eq!(until(VALID, status, &[("Cache-Control", "max-age=9")]), Some(1009));
    }
    // Whatever they say; unless the operator names them.
    for status in [428, 429, 431, 511] {
        assert_eq!(until(VALID, status, &[("Cache-Control", "public, max-age=9")]), None);
        assert_eq!(until(VALID, status, &[("Expires", "Thu, 01 Jan 1970 00:20:00 GMT")]), None);
        assert_eq!(until(VALID, status, &[("X-Accel-Expires", "9")]), Some(1009));
        let named = format!("fastcgi_cache_valid {status} 5s;");
        assert_eq!(until(&named, status, &[("Cache-Control", "max-age=9")]), Some(1005));
        assert_eq!(until(&named, status, &[("Cache-Control", "private")]), None);
    }
    // Not well-formed, but it says how long it may be kept: the operator's hour is no more than that.
    for said in ["public max-age=0", "public; max-age=0", "public s-maxage=0", "public max-age"] {
        assert_eq!(until(VALID, 200, &[("Cache-Control", said)]), None, "{said}");
    }
    assert_eq!(until(VALID, 200, &[("Cache-Control", "public; max-age=7")]), Some(1007));
    assert_eq!(until("", 200, &[]), None);
    let ignoring =
        "fastcgi_cache_valid 1m; fastcgi_ignore_headers Set-Cookie Cache-Control Expires;";
    let fields = [("Set-Cookie", "a"), ("Cache-Control", "private"), ("Expires", "0")];
    assert_eq!(until(ignoring, 200, &fields), Some(1060));
}

#[test]
fn fields_of_the_standard_count_as_it_says() {
    const SENT: (&str, &str) = ("Date", "Thu, 01 Jan 1970 00:10:00 GMT");
    const EXPIRES: (&str, &str) = ("Expires", "Thu, 01 Jan 1970 00:10:20 GMT");
    let table: &[(u16, Fields<'_>, Result<i64, NotStored>)] = &[
        (200, &[("Cache-Control", "max-age=60"), ("Age", "20")], Ok(1040)),
        (200, &[("Cache-Control", "max-age=60"), ("Age", "70")], Err(NotStored::Expired)),
        // It was made long ago, or by a clock that is fast.
        (200, &[EXPIRES, SENT], Err(NotStored::Expired)),
        (200, &[("Expires", "Thu, 01 Jan 1970 00:16:50 GMT"), SENT], Ok(1010)),
        (
            200,
            &[
                ("Expires", "Thu, 01 Jan 1970 00:20:20 GMT"),
                ("Date", "Thu, 01 Jan 1970 00:20:00 GMT"),
            ],
            Ok(1020),
        ),
        (200, &[("Cache-Control", "public max-age=9")], Ok(1009)),
        (200, &[("Cache-Control", "max-age=9 public")], Err(NotStored::NoLifetime)),
        (200, &[("Cache-Control", "no-cache=\"Set-Cookie\", max-age=9")], Err(NotStored::NoCache)),
        (200, &[("Cache-Control", "private=\"x\", max-age=9")], Err(NotStored::Private)),
        (
            200,
            &[
                ("Cache-Control", "max-age=9"),
                ("Cache-Control", "x=\"a"),
                ("Cache-Control", "private"),
            ],
            Err(NotStored::Private),
        ),
        (
            200,
            &[("Vary", "a"), ("Vary", "b,*"), ("Cache-Control", "max-age=9")],
            Err(NotStored::Vary),
        ),
        (200, &[EXPIRES, SENT, ("Age", "25")], Err(NotStored::Expired)),
        (200, &[("CDN-Cache-Control", "max-age=9"), EXPIRES], Ok(1009)),
        (200, &[("CDN-Cache-Control", "max-age=9"), ("Cache-Control", "no-store")], Ok(1009)),
        (
            200,
            &[("CDN-Cache-Control", "no-store"), ("Cache-Control", "max-age=9")],
            Err(NotStored::NoStore),
        ),
        (
            200,
            &[("CDN-Cache-Control", "max-age=9, &"), ("Cache-Control", "private")],
            Err(NotStored::Private),
        ),
        (200, &[("Cache-Control", "no-store, must-understand, max-age=9")], Ok(1009)),
        (
            599,
            &[("Cache-Control", "no-store, must-understand, max-age=9")],
            Err(NotStored::NoStore),
        ),
        (200, &[("Cache-Control", "no-cache"), ("ETag", "\"a\"")], Err(NotStored::NoCache)),
    ];
    for (status, fields, expected) in table {
        let found = judged("", *status, fields, false).map(|found| found.fresh_until / 1000);
        assert_eq!(found, *expected, "{status} {fields:?}");
    }
    let validated = "fastcgi_cache_revalidate on;";
    let fields = [("Cache-Control", "no-cache"), ("ETag", "\"a\"")];
    let found = judged(validated, 200, &fields, false).unwrap();
    assert!(found.fresh_until <= NOW * 1000 && found.must_revalidate);
}

#[test]
fn stale_answers_are_forbidden_by_the_origin_and_not_where_the_operator_spoke() {
    let found = |fields: Fields<'_>| judged(VALID, 200, fields, false).unwrap();
    assert!(found(&[("Cache-Control", "max-age=9, must-revalidate")]).must_revalidate);
    assert!(found(&[("Cache-Control", "s-maxage=9")]).must_revalidate);
    assert!(!found(&[("Cache-Control", "must-revalidate")]).must_revalidate);
    let both = found(&[("Cache-Control", "s-maxage=9, stale-while-revalidate=5")]);
    // As nginx, it covers an upstream that does not answer, too.
    assert_eq!((both.stale_updating_until, both.stale_error_until), (1_014_000, 1_014_000));
    let never =
        found(&[("Cache-Control", "max-age=9, stale-while-revalidate=5, stale-if-error=0")]);
    assert_eq!((never.stale_updating_until, never.stale_error_until), (1_014_000, 0));
    let strict =
        found(&[("Cache-Control", "max-age=9, proxy-revalidate, stale-while-revalidate=5")]);
    assert_eq!(strict.stale_updating_until, 0);
}

#[test]
fn what_was_asked_with_credentials_is_stored_only_if_it_is_for_all() {
    let stored = |conf: &str, fields: Fields<'_>| judged(conf, 200, fields, true).is_ok();
    assert!(!stored(VALID, &[]));
    assert!(!stored(VALID, &[("Cache-Control", "max-age=9")]));
    assert!(stored("", &[("Cache-Control", "max-age=9, public")]));
    assert!(stored("", &[("Cache-Control", "max-age=9, must-revalidate")]));
    assert!(stored("", &[("Cache-Control", "s-maxage=9")]));
    assert!(stored("", &[("X-Accel-Expires", "9")]));
    assert!(stored("fastcgi_cache_valid 1m; fastcgi_ignore_headers Authorization;", &[]));
}

#[test]
fn guesses_are_made_only_when_asked_for_and_from_a_date() {
    const GUESS: &str = "fastcgi_cache_heuristic 10%;";
    let changed = ("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_eq!(until("", 200, &[changed]), None);
    assert_eq!(until(GUESS, 200, &[changed]), Some(1100));
    assert_eq!(until(GUESS, 200, &[]), None);
    assert_eq!(until(GUESS, 503, &[changed]), None);
    assert_eq!(until(GUESS, 599, &[changed, ("Cache-Control", "public")]), Some(1100));
}
