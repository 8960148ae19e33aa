//! What went wrong lately, by key: a response that could not be stored, and refreshes that failed. For a while no request waits
//! for a page of the one kind, and an upstream is not asked again for the other. Both end with what is stored, and with a purge.

use crate::index::Digest;
use crate::key::Key;
use quick_cache::sync::Cache;
use std::time::{Duration, Instant};

/// Keys that are remembered at once; chosen.
const KEYS_MAX: usize = 16 * 1024;
/// How long a page is taken for one that cannot be stored; chosen.
const UNSTORABLE: Duration = Duration::from_secs(10);
/// How long nothing is asked after the second failure in a row, and at most; it doubles with each. One alone may be an accident.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Failures so close to each other are those of requests that were under way together.
const TOGETHER: Duration = Duration::from_millis(20);

/// What is remembered of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Setback {
    /// Since when its page cannot be stored.
    unstorable: Option<Instant>,
    /// When the last refresh failed, how many in a row did, and how.
    failed: Option<(Instant, u32, u16)>,
}

impl Setback {
    fn paused_until(&self) -> Option<Instant> {
        let (at, count, _) = self.failed?;
        let doublings = count.checked_sub(2)?;
        let pause = PAUSE.0.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        Some(at + pause.min(PAUSE.1))
    }
}

/// The setbacks of a zone.
pub struct Setbacks(Cache<Digest, Setback>);

impl Default for Setbacks {
    fn default() -> Self {
        Self(Cache::new(KEYS_MAX))
    }
}

impl Setbacks {
    fn get(&self, key: &Key) -> Option<Setback> {
        if self.0.is_empty() { None } else { self.0.get(&key.digest()) }
    }

    /// Notes that a response for `key` said that it is not to be stored.
    pub fn note_unstorable(&self, key: &Key, now: Instant) {
        let known = self.get(key).unwrap_or_default();
        self.0.insert(key.digest(), Setback { unstorable: Some(now), ..known });
    }

    /// Whether the last response for `key`, not long ago, was not to be stored.
    pub fn is_unstorable(&self, key: &Key, now: Instant) -> bool {
        let since = self.get(key).and_then(|known| known.unstorable);
        since.is_some_and(|since| now.saturating_duration_since(since) < UNSTORABLE)
    }

    /// Notes that the page of `key` could not be refreshed; `how` is the caller's to understand.
    pub fn note_failure(&self, key: &Key, how: u16, now: Instant) {
        let known = self.get(key).unwrap_or_default();
        let count = match known.failed {
            Some((at, _, _)) if now.saturating_duration_since(at) < TOGETHER => return,
            Some((_, count, _)) => count.saturating_add(1),
            None => 1,
        };
        self.0.insert(key.digest(), Setback { failed: Some((now, count, how)), ..known });
    }

    /// How the refresh of the page failed, if it is not to be tried again yet.
    pub fn paused(&self, key: &Key, now: Instant) -> Option<u16> {
        let known = self.get(key)?;
        let (_, _, how) =
            known.failed.filter(|_| known.paused_until().is_some_and(|end| now < end))?;
        Some(how)
    }

    /// A response for `key` is stored.
    pub fn forget(&self, key: &Key) {
        if !self.0.is_empty() {
            self.0.remove(&key.digest());
        }
    }

    /// Something was purged.
    pub(crate) fn forget_all(&self) {
        if !self.0.is_empty() {
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Key {
        Key::new(text.into())
    }

    #[test]
    fn a_page_that_cannot_be_stored_is_one_for_a_while_or_until_one_is_stored() {
        let (setbacks, now, a) = (Setbacks::default(), Instant::now(), key("a"));
        setbacks.note_unstorable(&a, now);
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(setbacks.is_unstorable(&a, later(9)) && !setbacks.is_unstorable(&a, later(10)));
        assert!(!setbacks.is_unstorable(&key("b"), now) && setbacks.paused(&a, now).is_none());
        setbacks.forget(&a);
        assert!(!setbacks.is_unstorable(&a, now));
        setbacks.note_unstorable(&a, now);
        setbacks.forget_all();
        assert!(!setbacks.is_unstorable(&a, now));
    }

    #[test]
    fn pauses_begin_with_the_second_failure_in_a_row_and_double_up_to_a_bound() {
        let (setbacks, mut now, a) = (Setbacks::default(), Instant::now(), key("a"));
        let seconds = Duration::from_secs;
        setbacks.note_failure(&a, 7, now);
        // Of a request that was under way at the same time.
        setbacks.note_failure(&a, 8, now);
        assert_eq!(setbacks.paused(&a, now), None);
        for pause in [1, 2, 4, 8, 10, 10] {
            now += seconds(10);
            setbacks.note_failure(&a, 7, now);
            let just_before = now + seconds(pause) - Duration::from_millis(1);
            assert_eq!(setbacks.paused(&a, just_before), Some(7), "{pause}");
            assert_eq!(setbacks.paused(&a, now + seconds(pause)), None, "{pause}");
        }
        for _ in 0..100 {
            now += seconds(10);
            setbacks.note_failure(&a, 7, now);
        }
        assert_eq!(setbacks.paused(&a, now + seconds(9)), Some(7));
        setbacks.note_unstorable(&a, now);
        assert!(setbacks.paused(&a, now).is_some() && setbacks.is_unstorable(&a, now));
        setbacks.forget(&a);
        assert_eq!(setbacks.paused(&a, now), None);
    }
}
