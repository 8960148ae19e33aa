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
                "The location has no cache, or it is off there. Pages that are the same for all visitors can have one: fastcgi_cache.",
            ),
            Self::Forward(forward) => of_forward(forward),
            Self::NotStored(why) => OF_NOT_STORED[why as usize],
        }
    }
}

fn of_forward(forward: Forward) -> (&'static str, &'static str) {
    match forward {
        Forward::Bypass => (
            "Passed by a rule",
            "*_cache_bypass has a value: most often the visitor is logged in or has left a comment. Or *_cache_bypass_unless_shared has one: a cart, and the page is not stored, or not the same for shoppers. Explain shows which rule.",
        ),
        Forward::Method => (
            "Not a GET or HEAD",
            "Forms and searches by POST are not stored. Nothing to do, unless a page is asked for by POST that need not be.",
        ),
        Forward::UriMiss => (
            "Nothing stored yet",
            "The first visit, or the first after a purge or an eviction. Warm pages that matter; if evictions are many, give the zone more room.",
        ),
        Forward::VaryMiss => (
            "No variant stored yet",
            "The page has Vary, and this visitor's fields had not been seen. Vary by as little as possible, never by User-Agent or Cookie.",
        ),
        Forward::Stale => (
            "Stored, but no longer fresh",
            "The visitor had to wait for the new page. use_stale updating with background_update on answers at once and renews behind it.",
        ),
        Forward::Partial => (
            "A part that was not stored",
            "A range was asked for that the stored part does not hold. Nothing to do for videos that are watched to the end.",
        ),
    }
}

/// Of each [`NotStored`], in their order.
const OF_NOT_STORED: [(&str, &str); NotStored::ALL.len()] = [
    // SetCookie
    (
        "The page sets a cookie",
        "Find the plugin that starts a session for everyone. If the cookie is not needed, hide it and ignore it: *_ignore_headers Set-Cookie.",
    ),
    // Vary
    ("The page varies by everything", "Vary: * is never stored. Find what sends it."),
    // AccelExpires
    (
        "X-Accel-Expires: 0",
        "The application said not to store it. Intended for carts and accounts; find out who says so elsewhere.",
    ),
    // NoStore
    (
        "Cache-Control: no-store",
        "The application said not to store it. WordPress does for visitors who are logged in and for errors; elsewhere a plugin does.",
    ),
    // NoCache
    (
        "Cache-Control: no-cache",
        "The application said not to store it. session_start() of PHP sends it (session.cache_limiter): find the plugin that starts sessions.",
    ),
    // Private
    (
        "Cache-Control: private",
        "The application said that the page is one visitor's. Find out what is personal in it.",
    ),
    // NoLifetime
    (
        "Nothing says for how long",
        "The answer has no lifetime and its status none in *_cache_valid. Errors and redirects need one, too: *_cache_valid 301 404 1m.",
    ),
    // Expired
    (
        "It was stale when it came",
        "Expires or Age of the answer say that it is over. Check the clock and the fields of the application.",
    ),
    // Authorization
    (
        "Asked for with a password",
        "Answers to Authorization are stored only if they say public or s-maxage.",
    ),
    // Forbidden
    ("Not stored by a rule", "*_no_cache has a value for this request. Explain shows which rule."),
    // Partial
    ("A part of the page came", "The upstream answered with a part that was not asked for as one."),
    // MinUses
    ("Not asked for often enough", "*_cache_min_uses wants more requests before a page is stored."),
    // LockTimeout
    (
        "Waited too long for another",
        "Another request was making the page for longer than *_cache_lock_timeout. The page is slow: see the pages that cost most.",
    ),
    // Head
    (
        "A HEAD, and GET has the same key",
        "Put $request_method into the key, or leave it: the next GET stores the page.",
    ),
    // RangeOffset
    (
        "A range far behind the start",
        "*_cache_max_range_offset keeps such answers out of the cache.",
    ),
    // Body
    ("A GET with content", "Such an answer is this client's alone. Nothing to do."),
    // UnknownHeader
    (
        "An unknown header",
        "The request has a header that may change the page, so its response was not shared. The page was made without that header. Name it in cache_ignore_headers if a proxy of yours adds it.",
    ),
    // Split
    (
        "Another page by its headers",
        "The request asks by its headers for another page than its URL's. Such a page is stored from the second request on, and eight at most for a URL.",
    ),
    // Loop
    (
        "A redirect to itself",
        "The page redirects to its own URL. Behind a proxy the application often does not know that it is asked by https.",
    ),
    // Tags
    (
        "Too many tags",
        "The page has more tags than can be kept, so it could not be purged. Send fewer.",
    ),
    // Redirected
    (
        "Another answer led to it",
        "X-Accel-Redirect, or the page of a refusal, under the key of the page that was asked for: hits would skip the check. Give that location a key of its own.",
    ),
    // Permission
    (
        "What the visitor may is not in the key",
        "auth_request_set or a certificate says of the visitor what the upstream is told, and the key does not hold it. Put the variable into the key.",
    ),
    // Cookie
    (
        "The visitor has a cookie of the application",
        "The application has said that its pages may differ by this cookie (X-Accel-Cookies). If none does, have it say so: X-Accel-Cookies: -NAME.",
    ),
    // Undecided
    (
        "A value could not be found out",
        "A regular expression came to no end, or the variables of root named no folder: the client got 500, and the error log says why. Write the expression without nested repetitions.",
    ),
    // DryRun
    (
        "A hit, but for the dry run",
        "*_cache_dry_run is on: the upstream was asked although a stored page would have answered. The error log says where the two differ; if nowhere, take the line out.",
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
