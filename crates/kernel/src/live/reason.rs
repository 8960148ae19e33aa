//! Why a request was not answered from the cache: one reason for each, of a closed list.

use crate::base::tally::Tally;
use crate::exchange::Exchange;
use crate::exchange::cached::{Forward, NotStored};
use std::sync::LazyLock;

/// Why an upstream was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// No cache was asked.
    Uncached,
    /// It was asked, and this kept it from answering.
    Forward(Forward),
    /// The same, and the answer was not stored: so it will be for the next request.
    NotStored(NotStored),
}

/// How many there are.
pub const COUNT: usize = 1 + Forward::ALL.len() + NotStored::ALL.len();

impl Reason {
    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        let forward = Forward::ALL.into_iter().map(Self::Forward);
        let not_stored = NotStored::ALL.into_iter().map(Self::NotStored);
        std::iter::once(Self::Uncached).chain(forward).chain(not_stored)
    }

    /// That of a request that is over; `None`: the cache answered, or no upstream was meant to.
    pub fn of(exchange: &Exchange) -> Option<Self> {
        let report = &exchange.cache_report;
        match report.forward {
            _ if report.is_hit => None,
            Some(_) if report.not_stored.is_some_and(NotStored::bypasses) => {
                report.not_stored.map(Self::NotStored)
            }
            // Whatever its answer says, such a request would not have got a stored one.
            Some(forward @ (Forward::Bypass | Forward::Method)) => Some(Self::Forward(forward)),
            Some(forward) => {
                Some(report.not_stored.map_or(Self::Forward(forward), Self::NotStored))
            }
            None => (!exchange.attempts.is_empty()).then_some(Self::Uncached),
        }
    }

    /// The words of `Cache-Status`, but for one that stands for two things there.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncached => "uncached",
            Self::Forward(Forward::Partial) => "partial-miss",
            Self::Forward(forward) => forward.name(),
            Self::NotStored(why) => why.name(),
        }
    }

    /// Whether the answer is of a kind that is never stored, so that no cache could have had it. More visits, or a page that is
    /// made faster, change the rest.
    pub fn is_unstorable(self) -> bool {
        match self {
            Self::NotStored(why) => {
                !matches!(why, NotStored::MinUses | NotStored::LockTimeout | NotStored::DryRun)
            }
            Self::Uncached | Self::Forward(_) => false,
        }
    }

    pub fn number(self) -> usize {
        match self {
            Self::Uncached => 0,
            Self::Forward(forward) => 1 + forward as usize,
            Self::NotStored(why) => 1 + Forward::ALL.len() + why as usize,
        }
    }

    /// What it means, and what to do about it.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Uncached => (
                "No cache here",
                "This location has no cache, or it is switched off. If its pages are the same for every visitor, give it one: fastcgi_cache.",
            ),
            Self::Forward(forward) => of_forward(forward),
            Self::NotStored(why) => OF_NOT_STORED[why as usize],
        }
    }
}

fn of_forward(forward: Forward) -> (&'static str, &'static str) {
    match forward {
        Forward::Bypass => (
            "Bypassed by a rule",
            "*_cache_bypass is set, usually because the visitor is logged in or has left a comment. Or *_cache_bypass_unless_shared is: the visitor has a cart, and the page is not stored or differs for shoppers. Explain shows which rule.",
        ),
        Forward::Method => (
            "Not a GET or HEAD",
            "Responses to POST are not stored. Nothing to do, unless a page is requested by POST for no reason.",
        ),
        Forward::UriMiss => (
            "Nothing stored yet",
            "The first request, or the first after a purge or an eviction. Warm the pages that matter; if many pages are evicted, give the zone more room.",
        ),
        Forward::VaryMiss => (
            "No variant stored yet",
            "The page has Vary, and no earlier request had the same headers. Vary by as little as possible, never by User-Agent or Cookie.",
        ),
        Forward::Stale => (
            "Stored, but expired",
            "The visitor had to wait for a new page. With use_stale updating and background_update on, visitors get the old page at once while it is refreshed.",
        ),
        Forward::Partial => (
            "A part that was not stored",
            "The client asked for a range that the stored part does not cover. Nothing to do for videos that are watched to the end.",
        ),
    }
}

/// Of each [`NotStored`], in their order.
const OF_NOT_STORED: [(&str, &str); NotStored::ALL.len()] = [
    // SetCookie
    (
        "The page sets a cookie",
        "Find the plugin that starts a session for every visitor. If the cookie is not needed, ignore and hide it: *_ignore_headers Set-Cookie.",
    ),
    // Vary
    ("The page varies by everything", "Vary: * is never stored. Find what sends it."),
    // AccelExpires
    (
        "X-Accel-Expires: 0",
        "The application forbids storing it, as it should for carts and accounts. Elsewhere, find out what sends this header.",
    ),
    // NoStore
    (
        "Cache-Control: no-store",
        "The application forbids storing it. WordPress does so for logged-in visitors and for errors; anywhere else it is a plugin.",
    ),
    // NoCache
    (
        "Cache-Control: no-cache",
        "The application forbids storing it. PHP's session_start() sends this header (session.cache_limiter): find the plugin that starts sessions.",
    ),
    // Private
    (
        "Cache-Control: private",
        "The application marks the page as personal. Find out what on it is.",
    ),
    // NoLifetime
    (
        "No cache lifetime set",
        "Neither the response nor *_cache_valid sets a lifetime for this status. Errors and redirects need one, too: *_cache_valid 301 404 1m.",
    ),
    // Expired
    (
        "Already expired on arrival",
        "By its Expires or Age, the response was no longer fresh. Check the clock, and the headers that the application sends.",
    ),
    // Authorization
    (
        "Requested with a password",
        "Responses to requests with Authorization are stored only if they say public or s-maxage.",
    ),
    // Forbidden
    ("Not stored by a rule", "*_no_cache is set for this request. Explain shows which rule."),
    // Partial
    (
        "Only part of the page came",
        "The upstream sent a part although the whole page was requested.",
    ),
    // MinUses
    (
        "Not requested often enough",
        "*_cache_min_uses requires more requests before a page is stored.",
    ),
    // LockTimeout
    (
        "Waited too long for another request",
        "Another request took longer than *_cache_lock_timeout to get the page. The page is slow: see the most expensive pages.",
    ),
    // Head
    (
        "A HEAD request with the key of a GET",
        "Add $request_method to the key, or leave it: the next GET stores the page.",
    ),
    // RangeOffset
    ("A range beyond the limit", "*_cache_max_range_offset keeps such responses out of the cache."),
    // Body
    (
        "A GET with a body",
        "The response may depend on the body, so it is not shared. Nothing to do.",
    ),
    // UnknownHeader
    (
        "An unknown header",
        "The request has a header that may change the page, so its response was not shared; other visitors get a page made without that header. If your own proxy adds it, name it in cache_ignore_headers.",
    ),
    // Split
    (
        "Headers that select another page",
        "Headers of the request ask for a page other than its URL's. Such a page is stored from the second request on, at most eight per URL.",
    ),
    // Loop
    (
        "A redirect to itself",
        "The page redirects to its own URL. Behind a proxy, the application often does not know that the visitor uses https.",
    ),
    // Tags
    (
        "Too many tags",
        "The page has more tags than can be kept, so it could not be purged by them. Send fewer.",
    ),
    // Redirected
    (
        "Reached by an internal redirect",
        "X-Accel-Redirect or an error page led here under the key of the requested page: hits would skip the check. Give this location a key of its own.",
    ),
    // Permission
    (
        "Cache key ignores the visitor's permissions",
        "The upstream receives visitor data, from auth_request_set or a certificate, that is missing from the cache key. Add that variable to the key.",
    ),
    // Cookie
    (
        "A cookie of the application",
        "The application says that pages may differ by this cookie (X-Accel-Cookies). If none does, have it send X-Accel-Cookies: -NAME.",
    ),
    // Undecided
    (
        "A value could not be evaluated",
        "A regular expression did not finish, or the variables of root named no folder: the client got 500, and the error log says why. Avoid nested repetitions in the expression.",
    ),
    // DryRun
    (
        "A hit, except for the dry run",
        "*_cache_dry_run is on: the upstream answered although a stored page could have. The error log says where the two differ; if nowhere, remove the directive.",
    ),
];

static TALLY: LazyLock<&'static Tally> = LazyLock::new(|| Tally::leaked(COUNT));

/// Counts a request that was no hit.
pub fn count(why: Reason) {
    TALLY.with(|cells| cells.add(why.number(), 1));
}

/// Requests by reason, in the order of [`Reason::all`].
pub fn sums() -> Vec<u64> {
    TALLY.sums()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_reason_has_its_number_and_its_own_words() {
        let (mut names, mut titles) = (HashSet::new(), HashSet::new());
        assert_eq!(Reason::all().count(), COUNT);
        for (number, reason) in Reason::all().enumerate() {
            assert_eq!(reason.number(), number);
            let (title, advice) = reason.words();
            assert!(titles.insert(title) && advice.ends_with('.'), "{title}: {advice}");
            assert!(names.insert(reason.name()), "{}", reason.name());
        }
    }

    #[test]
    fn each_reason_has_words_in_the_plugin_and_in_the_manual() {
        let plugin =
            include_str!("../../../../wordpress/yorozu/includes/class-reasons.php").lines();
        let plugin: Vec<_> = plugin.filter_map(|line| line.split_once("=> array( __( ")).collect();
        let reasons = include_str!("../../../../docs/console.md").split_once("## Reasons").unwrap();
        for reason in Reason::all() {
            let name = reason.name();
            let quoted = format!("'{name}'");
            assert!(plugin.iter().any(|(key, _)| key.trim() == quoted), "the plugin: {name}");
            let quoted = format!("`{name}`");
            assert!(reasons.1.contains(&quoted), "docs/console.md: {name}");
        }
    }
}
