//! What the cache does with a request, as values: the server acts on them and `yorozu cache explain` prints them, so that
//! the two cannot differ. Neither a clock nor a zone is asked here.
//!
//! | what is known | what is decided |
//! | --- | --- |
//! | what is stored, the time | [`Decision`]: whether it answers |
//! | that it is expired and may go on answering, and what came of claiming it | [`Step`]: which request renews it, which gets it stale |
//! | that nothing is stored, how often that was asked for | [`Missing`]: which request makes it |

use super::settings::Conf;
use crate::protocol::fault::Conditions;
use std::ops::Range;
use yorozu_cache::EntryHead;

/// What a stored response is to a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It answers.
    Hit,
    /// These of its bytes do, which are a part of the page.
    Part(Range<u64>),
    /// The upstream is asked: it is a part that does not hold what is asked for. The rest of the page alone, if it
    /// `completes` that.
    Beyond { completes: bool },
    /// It is expired, and goes on answering while it is renewed.
    Renewed(Renewal),
    /// The upstream is asked: it is expired, and does not answer.
    Expired(NoStale),
}

/// Which request renews an expired page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Renewal {
    /// A request that the server makes itself.
    Background,
    /// The first that asks for it.
    FirstAsking,
}

/// Why an expired page does not answer while it is renewed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoStale {
    /// Its origin forbids it.
    MustRevalidate,
    /// Neither `*_cache_use_stale updating` nor the page itself allows it.
    NotAllowed,
}

/// What a request asks of a stored part.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AskedOfPart {
    /// Those bytes of it that answer the request, if it holds all that is asked for.
    pub covered: Option<Range<u64>>,
    pub wants_all: bool,
    /// Whether it is short enough to be read into memory.
    pub is_short: bool,
}

impl Decision {
    /// What a stored page is to a request at `now`, in milliseconds since 1970.
    pub fn of_page(head: &EntryHead, conf: &Conf, now: i64) -> Self {
        if head.is_fresh(now) {
            return Self::Hit;
        }
        // A soft purge lets it answer once more, whatever the configuration says of stale pages; but no longer than it would
        // have been fresh, however often its renewal fails.
        let may_answer = (head.is_purged && now < head.fresh_until)
            || (conf.cache_use_stale.has(Conditions::UPDATING) && !head.must_revalidate)
            || now < head.stale_updating_until;
        match may_answer {
            true if conf.cache_background_update || head.is_purged => {
                Self::Renewed(Renewal::Background)
            }
            true => Self::Renewed(Renewal::FirstAsking),
            false if head.must_revalidate => Self::Expired(NoStale::MustRevalidate),
            false => Self::Expired(NoStale::NotAllowed),
        }
    }

    /// What a stored part is to a request.
    pub fn of_part(head: &EntryHead, conf: &Conf, now: i64, asked: AskedOfPart) -> Self {
        let is_fresh = head.is_fresh(now);
        match asked.covered {
            Some(range) if is_fresh => Self::Part(range),
            _ => {
                let is_start = head.part.as_ref().is_some_and(|part| part.first == 0);
                let may_be_joined = is_fresh && is_start && asked.is_short && asked.wants_all;
                Self::Beyond { completes: may_be_joined && conf.cache_complete_partial }
            }
        }
    }
}

/// What came of claiming a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Claiming {
    /// This request makes it.
    Maker,
    /// Another one does.
    Taken,
    /// None does; the answer to this request is unlikely to be stored.
    Barred,
}

/// What a request does about an expired page that goes on answering.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// It is answered with the stored page, which another one renews.
    Updating,
    /// It is answered with the stored page, which is renewed in the background.
    Refreshing,
    /// The same, by a request without what stands against storing the answer; if there is none, [`Step::Alone`].
    RefreshingClean,
    /// It asks the upstream, and renews the page.
    Making,
    /// It asks the upstream for itself.
    Alone,
}

impl Renewal {
    pub fn step(self, claiming: Claiming) -> Step {
        match (claiming, self) {
            (Claiming::Taken, _) => Step::Updating,
            (Claiming::Maker, Self::Background) => Step::Refreshing,
            (Claiming::Maker, Self::FirstAsking) => Step::Making,
            (Claiming::Barred, Self::Background) => Step::RefreshingClean,
            (Claiming::Barred, Self::FirstAsking) => Step::Alone,
        }
    }
}

/// What happens to a request for which nothing is stored, or a part that does not answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// The page was not asked for often enough to be stored. As nginx: there is no status at all before it is.
    TooFewUses,
    /// It asks for a range that begins far in the page, which is not stored for it (`*_cache_max_range_offset`).
    RangeBeyond,
    /// It makes the page, or waits for the request that does (`*_cache_lock`).
    InLine,
    /// It makes the page, beside others.
    Beside,
}

impl Missing {
    /// `uses`: how often the page was asked for, this time included; `is_partial`: a part of it is stored.
    pub fn of(conf: &Conf, uses: u64, is_partial: bool, is_range_beyond: bool) -> Self {
        if uses < conf.cache_min_uses {
            Self::TooFewUses
        } else if is_range_beyond {
            Self::RangeBeyond
        } else if conf.cache_lock && !conf.cache_dry_run && !is_partial {
            Self::InLine
        } else {
            Self::Beside
        }
    }
}
