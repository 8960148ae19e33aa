//! Fills: who is making the response for a key, and who waits for it.
//!
//! | state | next |
//! | --- | --- |
//! | claimed ([`Claim::Maker`]) | ended, when its [`FillGuard`] is dropped |
//! | awaited ([`Claim::Taken`]) | the waiter looks into the store again, or gives up by its own clock |
//! | overdue (older than the caller's age) | claimed by the next caller; the old maker's end is ignored |

use crate::key::Key;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A response being made.
#[derive(Debug)]
pub struct Fill {
    since: Instant,
    ended: watch::Sender<bool>,
}

impl Fill {
    /// Returns when the maker has ended, whatever the outcome.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) {
        let mut receiver = self.ended.subscribe();
        // The sender lives in `self`, so the channel cannot close under us.
        let _ = receiver.wait_for(|ended| *ended).await;
    }
}

/// The fills of one zone.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    under_way: Mutex<HashMap<Key, Arc<Fill>>>,
}

/// Answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// The caller makes the response.
    Maker(FillGuard),
    /// Somebody else does.
    Taken(Arc<Fill>),
}

/// Keeps the claim; dropping it wakes the waiters.
#[derive(Debug)]
pub struct FillGuard {
    fills: Arc<Fills>,
    key: Key,
    fill: Arc<Fill>,
}

impl Fills {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Fill>>> {
        // A panic while the map was held cannot leave it half changed: each use is one call.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn claim(self: &Arc<Self>, key: &Key, now: Instant, age_max: Duration) -> Claim {
        let mut under_way = self.lock();
        let fill = || Arc::new(Fill { since: now, ended: watch::Sender::new(false) });
        let fill = match under_way.entry(key.clone()) {
            Slot::Vacant(slot) => Arc::clone(slot.insert(fill())),
            Slot::Occupied(mut slot) => {
                if now.saturating_duration_since(slot.get().since) < age_max {
                    return Claim::Taken(Arc::clone(slot.get()));
                }
                slot.insert(fill());
                Arc::clone(slot.get())
            }
        };
        Claim::Maker(FillGuard { fills: Arc::clone(self), key: key.clone(), fill })
    }

    pub(crate) fn is_claimed(&self, key: &Key) -> bool {
        self.lock().contains_key(key)
    }
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        let mut under_way = self.fills.lock();
        if under_way.get(&self.key).is_some_and(|fill| Arc::ptr_eq(fill, &self.fill)) {
            under_way.remove(&self.key);
        }
        drop(under_way);
        self.fill.ended.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn key() -> Key {
        Key::primary(Bytes::from_static(b"k"))
    }

    #[test]
    fn one_maker_at_a_time_until_it_ends_or_is_overdue() {
        let fills = Arc::new(Fills::default());
        let (now, age) = (Instant::now(), Duration::from_secs(5));
        let Claim::Maker(first) = fills.claim(&key(), now, age) else { panic!("free key") };
        assert!(matches!(fills.claim(&key(), now, age), Claim::Taken(_)));
        let later = now + age;
        let Claim::Maker(second) = fills.claim(&key(), later, age) else { panic!("overdue") };
        drop(first); // the overdue maker's end does not free the second one's claim
        assert!(fills.is_claimed(&key()));
        drop(second);
        assert!(!fills.is_claimed(&key()));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn waiters_wake_when_the_maker_ends() {
        let fills = Arc::new(Fills::default());
        let now = Instant::now();
        let Claim::Maker(guard) = fills.claim(&key(), now, Duration::MAX) else { panic!() };
        let Claim::Taken(fill) = fills.claim(&key(), now, Duration::MAX) else { panic!() };
        let (_, ()) = tokio::join!(fill.ended(), async { drop(guard) });
        fill.ended().await; // and those who come late do not wait at all
    }
}
