//! Fills: which request makes the response for a key, and which wait for it.
//!
//! | state | next |
//! | --- | --- |
//! | made ([`Claim::Maker`]) | flowing, when the maker lets others read along ([`FillGuard::begin`]) |
//! | made, of a response that each has to ask for | free, as soon as its head is there |
//! | made, flowing | stored, or free if its maker ends without ([`FillGuard`] is dropped) |
//! | free, with waiters | made by one of them, woken in their order; the others sleep on |
//! | overdue (older than the caller's age) | made by the next caller; the old maker's end is ignored |
//! | begun before a purge of its page | as overdue, but readers get all of it |
//!
//! Nothing polls, and a maker that fails wakes one waiter, not all.
//!
//! # Invariants
//! - A request that joins a fill, or takes something from it, checks the purge list first, while the fill holds
//!   its maker's [`Making`]: the purges that apply to it are still in the list.
//! - What an older maker made is never handed to those who wait for a newer one.

use crate::entry::Entry;
use crate::flow::{Flow, Watch};
use crate::key::Key;
use crate::purge_list::{Making, Moment, PurgeList};
use crate::sync::{Mutex, MutexGuard, Notify};
use bytes::Bytes;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
enum Stage {
    Made,
    Flowing(Arc<Flow>),
    Free,
    Stored(Arc<Entry>),
}

#[derive(Debug)]
struct State {
    since: Instant,
    stage: Stage,
    /// Its maker's, once that has begun; kept as long as a waiter may still take something.
    making: Option<Arc<Making>>,
    waiters: usize,
}

impl State {
    /// When its maker began, and what is known of the response's tags.
    fn made(&self) -> (Option<Moment>, &[Bytes]) {
        let head = match &self.stage {
            Stage::Flowing(flow) => &flow.head,
            Stage::Stored(entry) => &entry.head,
            Stage::Made | Stage::Free => {
                return (self.making.as_ref().map(|making| making.moment()), &[]);
            }
        };
        (Some(head.began), &head.tags)
    }

    /// Whether a purge applies to what is being made, as far as that is known.
    fn is_purged(&self, key: &Key, purge_list: &PurgeList) -> bool {
        match &self.stage {
            Stage::Flowing(flow) => purge_list.locked().is_purged_or_changed(key, &flow.head),
            Stage::Stored(entry) => purge_list.locked().is_purged_or_changed(key, &entry.head),
            Stage::Made | Stage::Free => {
                let making = self.making.as_ref();
                making.is_some_and(|making| purge_list.is_purged(key, &[], making.moment()))
            }
        }
    }

    fn free(&mut self) {
        (self.stage, self.making) = (Stage::Free, None);
    }
}

/// A response being made.
#[derive(Debug)]
struct Fill {
    state: Mutex<State>,
    changed: Notify,
}

impl Fill {
    fn new(now: Instant) -> Arc<Self> {
        let state = State { since: now, stage: Stage::Made, making: None, waiters: 0 };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each use leaves the state whole: a panic elsewhere cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fills of one zone.
#[derive(Debug)]
pub(crate) struct Fills {
    purge_list: Arc<PurgeList>,
    under_way: Mutex<UnderWay>,
}

/// Answer to a claim.
#[derive(Debug)]
pub enum Claim {
    /// The caller makes the response.
    Maker(FillGuard),
    /// Another request does.
    Taken(Waiter),
}

/// What a waiter is woken for.
#[derive(Debug)]
pub enum Woken {
    /// The response has begun and can be read along.
    Flowing(Arc<Flow>),
    /// It is stored.
    Stored(Arc<Entry>),
    /// Its maker ended without it, or it was purged: claim it.
    Free,
}

/// A place among those who wait for a response.
#[derive(Debug)]
pub struct Waiter {
    fills: Arc<Fills>,
    key: Key,
    fill: Arc<Fill>,
}

impl Waiter {
    /// Returns when there is something to do.
    ///
    /// # Cancel safety
    /// Dropping the future hands a turn it was woken for to the next waiter.
    pub async fn woken(&self) -> Woken {
        loop {
            let mut changed = std::pin::pin!(self.fill.changed.notified());
            changed.as_mut().enable();
            if let Some(woken) = self.look() {
                return woken;
            }
            changed.await;
        }
    }
}

impl Waiter {
    fn look(&self) -> Option<Woken> {
        let state = self.fill.state();
        match &state.stage {
            Stage::Made => None,
            Stage::Free => Some(Woken::Free),
            _ if state.is_purged(&self.key, &self.fills.purge_list) => Some(Woken::Free),
            Stage::Flowing(flow) => Some(Woken::Flowing(Arc::clone(flow))),
            Stage::Stored(entry) => Some(Woken::Stored(Arc::clone(entry))),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut under_way = self.fills.lock();
        let mut state = self.fill.state();
        state.waiters -= 1;
        let is_free = matches!(state.stage, Stage::Free);
        let is_last = state.waiters == 0;
        drop(state);
        if is_free && is_last {
            forget(&mut under_way, &self.key, &self.fill);
        } else if is_free {
            // It may have been the one whose turn it was.
            self.fill.changed.notify_one();
        }
    }
}

/// Keeps the claim of a maker; dropped without [`FillGuard::stored`], the next waiter makes it.
#[derive(Debug)]
pub struct FillGuard {
    fills: Arc<Fills>,
    key: Key,
    fill: Arc<Fill>,
    is_stored: bool,
    /// Over the same response, which is made again.
    watch: Option<Watch>,
    /// Of its user's.
    held: Option<Box<dyn Any + Send + Sync>>,
}

impl FillGuard {
    /// Keeps a value as long as the claim.
    pub fn hold(&mut self, value: impl Any + Send + Sync) {
        self.held = Some(Box::new(value));
    }

    /// Has those who read along with what the watch is over go on in what is made here.
    pub fn make_again(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Its maker begins here.
    pub fn started(&self, making: &Arc<Making>) {
        self.fill.state().making = Some(Arc::clone(making));
    }

    /// Lets waiters read along from here on. `None`, and the claim is free: each of them has to ask for its own.
    #[must_use]
    pub fn begin(mut self, flow: &Arc<Flow>) -> Option<Self> {
        if !flow.head.may_answer_others() {
            return None;
        }
        if let Some(watch) = self.watch.take() {
            watch.made_again(flow);
        }
        self.fill.state().stage = Stage::Flowing(Arc::clone(flow));
        self.fill.changed.notify_waiters();
        Some(self)
    }

    /// The response is whole and stored: all waiters get it.
    pub fn stored(mut self, entry: Arc<Entry>) {
        if let Some(watch) = self.watch.take().filter(|_| entry.head.may_answer_others()) {
            watch.stored_again(&entry);
        }
        let mut under_way = self.fills.lock();
        self.fill.state().stage = Stage::Stored(entry);
        forget(&mut under_way, &self.key, &self.fill);
        self.is_stored = true;
        drop(under_way);
        self.fill.changed.notify_waiters();
    }
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        if self.is_stored {
            return;
        }
        let mut under_way = self.fills.lock();
        let is_current = under_way.get(&self.key).is_some_and(|fill| Arc::ptr_eq(fill, &self.fill));
        let mut state = self.fill.state();
        state.free();
        let has_waiters = state.waiters > 0;
        drop(state);
        if !has_waiters {
            forget(&mut under_way, &self.key, &self.fill);
        }
        drop(under_way);
        if is_current {
            self.fill.changed.notify_one();
        } else {
            // Another maker took over: those who still wait here shall wait for it.
            self.fill.changed.notify_waiters();
        }
    }
}

type UnderWay = HashMap<Key, Arc<Fill>>;

/// Takes `fill` out, unless another one has its place.
fn forget(under_way: &mut UnderWay, key: &Key, fill: &Arc<Fill>) {
    if under_way.get(key).is_some_and(|found| Arc::ptr_eq(found, fill)) {
        under_way.remove(key);
    }
}

impl Fills {
    pub(crate) fn new(purge_list: Arc<PurgeList>) -> Self {
        Self { purge_list, under_way: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // A panic while the map was held cannot leave it half changed: each use is one call.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among the waiters for the response, if it is being made; the caller never becomes its maker.
    pub(crate) fn join(self: &Arc<Self>, key: &Key) -> Option<Waiter> {
        let under_way = self.lock();
        let fill = Arc::clone(under_way.get(key)?);
        let mut state = fill.state();
        if matches!(state.stage, Stage::Free) || state.is_purged(key, &self.purge_list) {
            return None;
        }
        state.waiters += 1;
        drop(state);
        Some(Waiter { fills: Arc::clone(self), key: key.clone(), fill })
    }

    pub(crate) fn claim(self: &Arc<Self>, key: &Key, now: Instant, age_max: Duration) -> Claim {
        let mut under_way = self.lock();
        let fill = match under_way.entry(key.clone()) {
            Slot::Vacant(slot) => Arc::clone(slot.insert(Fill::new(now))),
            Slot::Occupied(mut slot) => {
                let mut state = slot.get().state();
                let is_overdue = now.saturating_duration_since(state.since) >= age_max;
                match state.stage {
                    Stage::Free => {
                        (state.since, state.stage) = (now, Stage::Made);
                        drop(state);
                        Arc::clone(slot.get())
                    }
                    _ if is_overdue || state.is_purged(key, &self.purge_list) => {
                        drop(state);
                        slot.insert(Fill::new(now));
                        Arc::clone(slot.get())
                    }
                    _ => {
                        state.waiters += 1;
                        drop(state);
                        let (fills, fill) = (Arc::clone(self), Arc::clone(slot.get()));
                        return Claim::Taken(Waiter { fills, key: key.clone(), fill });
                    }
                }
            }
        };
        let fills = Arc::clone(self);
        let key = key.clone();
        Claim::Maker(FillGuard { fills, key, fill, is_stored: false, watch: None, held: None })
    }

    /// Cancels the fills that are `is_purged`, a function of the key, the tags as far as they are known, and
    /// when the maker began: those who wait have the page made again at once.
    pub(crate) fn cancel(&self, is_purged: impl Fn(&Key, &[Bytes], Option<Moment>) -> bool) {
        let mut cancelled = Vec::new();
        self.lock().retain(|key, fill| {
            let mut state = fill.state();
            let (began, tags) = state.made();
            let is_kept = !is_purged(key, tags, began);
            if !is_kept {
                // The making stays: its maker may yet hand something to those who wait here.
                state.stage = Stage::Free;
                cancelled.push(Arc::clone(fill));
            }
            is_kept
        });
        for fill in cancelled {
            fill.changed.notify_waiters();
        }
    }

    pub(crate) fn is_claimed(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|fill| !matches!(fill.state().stage, Stage::Free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{EntryBody, EntryHead};
    use crate::flow::{Broken, Filling, Piece};
    use crate::purge_list::{Left, Purge, PurgeMode};
    use crate::{Account, Held};

    fn fills() -> Arc<Fills> {
        Arc::new(Fills::new(PurgeList::new(Left::default())))
    }

    fn key() -> Key {
        Key::new(Bytes::from_static(b"k"))
    }

    fn maker(fills: &Arc<Fills>) -> FillGuard {
        match fills.claim(&key(), Instant::now(), Duration::MAX) {
            Claim::Maker(guard) => guard,
            Claim::Taken(_) => panic!("it is taken"),
        }
    }

    fn waiter(fills: &Arc<Fills>) -> Waiter {
        match fills.claim(&key(), Instant::now(), Duration::MAX) {
            Claim::Maker(_) => panic!("it is free"),
            Claim::Taken(waiter) => waiter,
        }
    }

    fn entry() -> Arc<Entry> {
        Arc::new(Entry::new(head(), EntryBody::Memory(Held::default()), 0))
    }

    /// Of a response that is fresh for a second.
    fn head() -> EntryHead {
        EntryHead { fresh_until: 1000, ..EntryHead::default() }
    }

    #[test]
    fn one_maker_at_a_time_until_it_ends_or_is_overdue() {
        let fills = fills();
        let (now, age) = (Instant::now(), Duration::from_secs(5));
        let Claim::Maker(first) = fills.claim(&key(), now, age) else { panic!("free key") };
        assert!(matches!(fills.claim(&key(), now, age), Claim::Taken(_)));
        let later = now + age;
        let Claim::Maker(second) = fills.claim(&key(), later, age) else { panic!("overdue") };
        drop(first); // the overdue maker's end does not free the second one's claim
        assert!(fills.is_claimed(&key()));
        drop(second);
        assert!(!fills.is_claimed(&key()));
        assert!(fills.lock().is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn all_wake_for_what_is_stored_and_one_for_a_failure() {
        let fills = fills();
        let guard = maker(&fills);
        let waiters = [waiter(&fills), waiter(&fills), waiter(&fills)];
        let mut sleeping: Vec<_> = waiters.iter().map(|waiter| Box::pin(waiter.woken())).collect();
        assert!(sleeping.iter_mut().all(|sleeper| is_asleep(sleeper.as_mut())));
        drop(guard);
        let Woken::Free = sleeping.remove(0).await else { panic!("it failed") };
        let guard = maker(&fills);
        let mut others = sleeping.iter_mut();
        assert!(others.all(|sleeper| is_asleep(sleeper.as_mut())), "the others sleep on");
        guard.stored(entry());
        for sleeper in sleeping {
            assert!(matches!(sleeper.await, Woken::Stored(_)));
        }
        drop(waiters);
        assert!(fills.lock().is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_turn_is_not_lost_with_the_one_who_had_it() {
        let fills = fills();
        let guard = maker(&fills);
        let (first, second) = (waiter(&fills), waiter(&fills));
        let mut sleeping = Box::pin(second.woken());
        assert!(is_asleep(sleeping.as_mut()));
        drop(guard);
        drop(first); // gave up just as its turn came
        assert!(matches!(sleeping.await, Woken::Free));
        drop(second);
        assert!(fills.lock().is_empty());
    }

    fn is_asleep(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_pending()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_body_is_read_along_and_a_broken_one_ends_broken() {
        let fills = fills();
        let guard = maker(&fills);
        let waiter = waiter(&fills);
        let filling =
            Filling::new(EntryHead { status: 200, ..head() }, Some(6), &Account::default());
        let guard = guard.begin(filling.flow());
        filling.push(&Bytes::from_static(b"abc"));
        let Woken::Flowing(flow) = waiter.woken().await else { panic!("it flows") };
        let mut reader = flow.follow().unwrap();
        let next = reader.next().await;
        assert!(matches!(next, Ok(Some(Piece::Memory(bytes))) if &bytes[..] == b"abc"));
        assert!(reader.is_waiting());
        let end = async { drop((filling, guard)) };
        let (next, ()) = tokio::join!(reader.next(), end);
        assert!(matches!(next, Err(Broken)));
        assert!(matches!(waiter.woken().await, Woken::Free));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_reads_along_with_a_purged_response_gets_all_of_it() {
        let fills = fills();
        let (guard, waiter) = (maker(&fills), waiter(&fills));
        let filling = Filling::new(head(), None, &Account::default());
        let guard = guard.begin(filling.flow());
        let Woken::Flowing(flow) = waiter.woken().await else { panic!("it flows") };
        fills.cancel(|_, _, _| true);
        filling.push(&Bytes::from_static(b"abc"));
        drop(guard);
        filling.end();
        let mut reader = flow.follow().unwrap();
        assert!(matches!(reader.next().await, Ok(Some(Piece::Memory(_)))));
        assert!(matches!(reader.next().await, Ok(None)));
        assert!(matches!(waiter.woken().await, Woken::Free));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_each_has_to_ask_for_is_read_along_by_nobody() {
        let fills = fills();
        let (guard, waiter) = (maker(&fills), waiter(&fills));
        let filling = Filling::new(EntryHead::default(), None, &Account::default());
        assert!(guard.begin(filling.flow()).is_none());
        assert!(matches!(waiter.woken().await, Woken::Free));
        assert!(fills.join(&key()).is_none());
        drop(maker(&fills));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nobody_joins_what_a_purge_met() {
        for purge in [Purge::Tag("t".into()), Purge::Page(key()), Purge::Prefix("k".into())] {
            let fills = fills();
            let guard = maker(&fills);
            let making = Arc::new(fills.purge_list.begin());
            guard.started(&making);
            let early = waiter(&fills);
            fills.purge_list.note(std::slice::from_ref(&purge), PurgeMode::Hard, None);
            // The tags are not known yet: those who come now wait, and learn it with the head.
            let later = matches!(purge, Purge::Tag(_)).then(|| waiter(&fills));
            let head = EntryHead { began: making.moment(), tags: vec!["t".into()], ..head() };
            let filling = Filling::new(head, None, &Account::default());
            let guard = guard.begin(filling.flow()).unwrap();
            if let Some(later) = &later {
                assert!(matches!(later.woken().await, Woken::Free), "{purge:?}");
            }
            assert!(matches!(early.woken().await, Woken::Free));
            assert!(fills.join(&key()).is_none());
            let again = maker(&fills);
            again.started(&Arc::new(fills.purge_list.begin()));
            let follower = waiter(&fills);
            // What the older maker made is not for those who wait for the newer one.
            guard.stored(entry());
            let mut sleeping = Box::pin(follower.woken());
            assert!(is_asleep(sleeping.as_mut()));
            again.stored(entry());
        }
    }
}
