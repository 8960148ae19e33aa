//! `*_cache_early_refresh`: pages that are requested often are refreshed before they expire.

use yorozu_cache::Entry;
use yorozu_kernel::config::directive::*;

/// `off | on | factor`: how eagerly; 1 with `on`.
///
/// Each hit draws a number; the chance that it begins a refresh grows the nearer the expiry is, and
/// with the time the page took to make, so that a page asked for often is ready before it expires, and
/// one that is hardly asked for is not made in vain.
///
/// # Source
/// Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede Prevention (2015): a hit
/// refreshes if `now + made_in * factor * -ln(random)` lies behind the expiry.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarlyRefresh(Option<f64>);

impl EarlyRefresh {
    /// Whether this hit begins a refresh; `now` in milliseconds since 1970.
    pub fn is_due(self, entry: &Entry, now: i64) -> bool {
        self.is_due_with(entry, now, fastrand::f64)
    }

    fn is_due_with(self, entry: &Entry, now: i64, random: impl FnOnce() -> f64) -> bool {
        /// `-ln` of the smallest number drawn: before that many times `made_in` nothing is drawn.
        const LONGEST: f64 = 37.0;
        let Some(factor) = self.0 else { return false };
        let head = &entry.head;
        let left = i32::try_from(head.fresh_until - now).map_or(f64::MAX, f64::from);
        let step = f64::from(head.made_in.max(1)) * factor;
        left < step * LONGEST && step * -random().max(f64::EPSILON).ln() >= left
    }
}

impl Setting for EarlyRefresh {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            b"on" => Ok(Self(Some(1.0))),
            _ => {
                let text = args.text(0);
                let factor = text.parse::<f64>().ok().filter(|f| (0.1..=100.0).contains(f));
                let expected = "expected \"off\", \"on\" or a factor from 0.1 to 100";
                factor
                    .map(|factor| Self(Some(factor)))
                    .ok_or_else(|| ValueError(format!("invalid value \"{text}\", {expected}")))
            }
        }
    }
}

/// `*_cache_heuristic off | percent%`: how much of the time for which a page had not changed it counts
/// as fresh, where nothing else says it (RFC 9111, section 4.2.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Heuristic(Option<i64>);

impl Heuristic {
    pub fn percent(self) -> Option<i64> {
        self.0
    }
}

impl Setting for Heuristic {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        if text == "off" {
            return Ok(Self(None));
        }
        let number = text.strip_suffix('%').and_then(|digits| digits.parse::<u8>().ok());
        number
            .filter(|percent| (1..=100).contains(percent))
            .map(|percent| Self(Some(percent.into())))
            .ok_or_else(|| {
                let expected = "expected \"off\" or a share from 1% to 100%";
                ValueError(format!("invalid value \"{text}\", {expected}"))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_cache::{EntryBody, EntryHead, Held};

    #[test]
    fn the_chance_grows_toward_the_expiry() {
        let head = EntryHead { fresh_until: 10_000, made_in: 100, ..EntryHead::default() };
        let entry = Entry::new(head, EntryBody::Memory(Held::default()), 0);
        let on = EarlyRefresh(Some(1.0));
        // Drawn in even steps: the share that refreshes is the chance.
        let chance = |now| {
            (1..1000).filter(|n| on.is_due_with(&entry, now, || f64::from(*n) / 1000.0)).count()
        };
        assert_eq!(chance(5000), 0);
        assert!((360..=370).contains(&chance(9900)), "e^-1, {}", chance(9900));
        assert!((600..=610).contains(&chance(9950)), "e^-0.5, {}", chance(9950));
        assert!(chance(9999) > 980);
        assert!(!EarlyRefresh(None).is_due(&entry, 9999));
    }
}
