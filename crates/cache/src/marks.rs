//! Which purges may still meet something, and who may still come with something from before them.
//!
//! Time has no part in it. Each beginning of a making ([`Making`]) and each purge draws the next number of
//! its folder; what has a smaller number than a purge began before it. Numbers of earlier processes are told
//! apart by their epoch: a random number of each opening of the folder, whose order the journal has.
//!
//! # Invariants
//! - A mark is forgotten only when no making that began before it is outstanding, no file of before it is
//!   left, and its purge is done: nothing it means can come any more.
//! - What changes the memory tier or the catalog does so under the lock of the marks ([`Marks::locked`]), so
//!   that a look at the marks and the change are one.
//! - What has no number, or one of an unknown epoch, began before every purge.

use crate::Key;
use crate::catalog::host_end;
use crate::entry::EntryHead;
use crate::index::Digest;
use crate::purge::{Purge, PurgeMode};
use crate::sync::{Mutex, MutexGuard};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

/// When something began: the epoch of its process, and a number in it. The default began before everything.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Moment {
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// A moment among those of other epochs: the place of its epoch in the journal, 0 if it has none, the
/// greatest for the own one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct At {
    rank: usize,
    number: u64,
}

/// A response is being made or read: held from right before its upstream is asked, or its file is read,
/// until it is stored or given up. Purges in between meet it.
#[derive(Debug)]
pub struct Making {
    marks: Arc<Marks>,
    moment: Moment,
}

impl Making {
    /// What the response's head shall say of its beginning.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Is it of a folder's marks, and that of the response whose head says `began`?
    pub(crate) fn is_of(&self, marks: &Arc<Marks>, began: Moment) -> bool {
        Arc::ptr_eq(&self.marks, marks) && self.moment == began
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.marks.state().outstanding.remove(&self.moment.number);
    }
}

/// A page's mark, and the making that it does not mean.
#[derive(Clone, Copy, Debug)]
struct PageMark {
    at: At,
    except: Option<u64>,
}

impl PageMark {
    fn meets(&self, began: At) -> bool {
        began < self.at && self.except != Some(began.number)
    }
}

/// Pages that a request changed at their origin, of which a response may be under way that shows them as they
/// were. What is stored is purged beside it; no file has anything to do with it.
#[derive(Debug, Default)]
struct Changed {
    /// With `true` also those whose lifetime the operator said.
    pages: HashMap<Key, (PageMark, bool)>,
    /// Before it any page may have been changed.
    all: Option<At>,
}

impl Changed {
    fn note(&mut self, key: &Key, mark: PageMark, takes_all: bool) {
        /// Pages that are told apart; chosen: anybody may bring them.
        const PAGES_MAX: usize = 1024;
        if self.pages.len() >= PAGES_MAX {
            let last = self.pages.drain().map(|(_, (mark, _))| mark.at).max();
            self.all = last.max(self.all);
        }
        let (last, has_all) = self.pages.entry(key.clone()).or_insert((mark, takes_all));
        (*last, *has_all) = (mark, *has_all || takes_all);
    }

    fn meet(&self, key: &Key, is_by_operator: bool, began: At) -> bool {
        let is_met = |key: &Key| {
            let found = self.pages.get(key);
            found.is_some_and(|(mark, takes_all)| {
                (*takes_all || !is_by_operator) && mark.meets(began)
            })
        };
        let is_met_with_all = !is_by_operator && self.all.is_some_and(|all| began < all);
        is_met_with_all || is_met(key) || is_met(&key.page())
    }

    fn forget(&mut self, is_kept: impl Fn(At) -> bool) {
        self.pages.retain(|_, (mark, _)| is_kept(mark.at));
        self.all = self.all.filter(|at| is_kept(*at));
    }
}

/// The last purge of each kind and name.
#[derive(Debug, Default)]
pub(crate) struct Last {
    pages: HashMap<Key, PageMark>,
    prefixes: HashMap<Bytes, At>,
    tags: HashMap<Bytes, At>,
    all: Option<At>,
    /// Files that a purge met and that could not be removed yet.
    files: HashMap<Digest, At>,
}

impl Last {
    fn note(&mut self, purge: &Purge, at: At, except: Option<u64>) {
        let last = match purge {
            Purge::Page(key) => {
                let mark = PageMark { at, except };
                let last = self.pages.entry(key.clone()).or_insert(mark);
                if at >= last.at {
                    *last = mark;
                }
                return;
            }
            Purge::Prefix(prefix) => self.prefixes.entry(prefix.clone()).or_insert(at),
            Purge::Tag(tag) => self.tags.entry(tag.clone()).or_insert(at),
            Purge::All => self.all.get_or_insert(at),
        };
        *last = at.max(*last);
        if *purge == Purge::All {
            // It means whatever an earlier one means.
            self.forget(|mark| mark >= at);
        }
    }

    /// Was a purge that means the page after it began?
    fn meet(&self, key: &Key, tags: &[Bytes], began: At) -> bool {
        let is_met = |mark: Option<&At>| mark.is_some_and(|mark| began < *mark);
        let is_page_met = |key: &Key| self.pages.get(key).is_some_and(|mark| mark.meets(began));
        is_met(self.all.as_ref())
            || is_page_met(key)
            || is_page_met(&key.page())
            || tags.iter().any(|tag| {
                let of_every_host = host_end(tag).and_then(|at| self.tags.get(&tag[at..]));
                is_met(self.tags.get(tag)) || is_met(of_every_host)
            })
            || self
                .prefixes
                .iter()
                .any(|(prefix, mark)| began < *mark && key.as_bytes().starts_with(prefix))
            || (!self.files.is_empty() && is_met(self.files.get(&key.digest())))
    }

    /// Forgets the purges, not the files, that are not kept.
    fn forget(&mut self, is_kept: impl Fn(At) -> bool) {
        self.pages.retain(|_, mark| is_kept(mark.at));
        self.prefixes.retain(|_, at| is_kept(*at));
        self.tags.retain(|_, at| is_kept(*at));
        self.all = self.all.filter(|at| is_kept(*at));
    }

    /// Every mark after `at`.
    fn after(&self, at: At) -> impl Iterator<Item = (Purge, At)> + '_ {
        let pages = self.pages.iter().map(|(key, mark)| (Purge::Page(key.clone()), mark.at));
        let prefixes = self.prefixes.iter().map(|(p, at)| (Purge::Prefix(p.clone()), *at));
        let tags = self.tags.iter().map(|(tag, at)| (Purge::Tag(tag.clone()), *at));
        let all = self.all.iter().map(|at| (Purge::All, *at));
        pages.chain(prefixes).chain(tags).chain(all).filter(move |(_, mark)| *mark > at)
    }
}

#[derive(Debug, Default)]
struct State {
    /// The epochs of earlier processes, in their order.
    epochs: Vec<u64>,
    /// The last number drawn.
    number: u64,
    outstanding: BTreeSet<u64>,
    hard: Last,
    /// Pages that a soft purge met are told apart from others, not from those that a hard one met as well.
    soft: Last,
    changed: Changed,
}

impl State {
    fn draw(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn at(&self, own: u64, moment: Moment) -> At {
        let rank = if moment.epoch == own {
            usize::MAX
        } else {
            self.epochs.iter().position(|epoch| *epoch == moment.epoch).map_or(0, |at| at + 1)
        };
        At { rank, number: moment.number }
    }

    /// The number of the making that a purge of its page spares: none that another one met.
    fn spares(&self, own: u64, key: &Key, spared: Option<&Making>) -> Option<u64> {
        let moment = spared?.moment;
        let began = self.at(own, moment);
        let is_met = self.hard.meet(key, &[], began)
            || self.soft.meet(key, &[], began)
            || self.changed.meet(key, false, began);
        (!is_met).then_some(moment.number)
    }

    fn adopt(&mut self, own: u64, left: Left) {
        for epoch in left.epochs {
            if epoch != own && !self.epochs.contains(&epoch) {
                self.epochs.push(epoch);
            }
        }
        for (purge, moment) in left.purges {
            let at = self.at(own, moment);
            self.hard.note(&purge, at, None);
        }
        for (digest, moment) in left.files {
            let at = self.at(own, moment);
            self.hard.files.insert(digest, at);
        }
    }
}

/// The purges of a folder.
#[derive(Debug)]
pub(crate) struct Marks {
    epoch: u64,
    state: Mutex<State>,
}

/// What an earlier process left in the journal.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// In their order.
    pub(crate) epochs: Vec<u64>,
    pub(crate) purges: Vec<(Purge, Moment)>,
    pub(crate) files: Vec<(Digest, Moment)>,
}

/// Asks and changes under the lock of the marks.
pub(crate) struct Locked<'a> {
    epoch: u64,
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    fn at(&self, moment: Moment) -> At {
        self.state.at(self.epoch, moment)
    }

    /// Did a purge meet what began then?
    pub(crate) fn meet(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        let began = self.at(began);
        self.state.hard.meet(key, tags, began) || self.state.soft.meet(key, tags, began)
    }

    /// Did a purge, or a change of the page at its origin, meet the response with this head?
    pub(crate) fn meet_response(&self, key: &Key, head: &EntryHead) -> bool {
        let changed = &self.state.changed;
        self.meet(key, &head.tags, head.began)
            || changed.meet(key, head.is_by_operator, self.at(head.began))
    }

    /// Did a hard purge?
    pub(crate) fn meet_hard(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        self.state.hard.meet(key, tags, self.at(began))
    }

    /// Did `one` begin before the `other`?
    pub(crate) fn is_older(&self, one: Moment, other: Moment) -> bool {
        self.at(one) < self.at(other)
    }
}

impl Marks {
    /// Takes over what earlier processes left.
    pub(crate) fn new(left: Left) -> Arc<Self> {
        let mut state = State::default();
        let epoch = fastrand::u64(1..);
        state.adopt(epoch, left);
        Arc::new(Self { epoch, state: Mutex::new(state) })
    }

    /// Takes over what a process left that had the folder until now.
    pub(crate) fn adopt(&self, left: Left) {
        self.state().adopt(self.epoch, left);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each use leaves it whole: a panic elsewhere cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of this opening of the folder.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Nothing changes in the memory tier and the catalog, and no purge is noted, while it is held.
    pub(crate) fn locked(&self) -> Locked<'_> {
        Locked { epoch: self.epoch, state: self.state() }
    }

    /// A response begins to be made or read here.
    pub(crate) fn begin(self: &Arc<Self>) -> Making {
        self.begin_under(&mut self.locked())
    }

    /// As [`Marks::begin`], in one with what else is done under the lock.
    pub(crate) fn begin_under(self: &Arc<Self>, locked: &mut Locked<'_>) -> Making {
        let number = locked.state.draw();
        locked.state.outstanding.insert(number);
        Making { marks: Arc::clone(self), moment: Moment { epoch: self.epoch, number } }
    }

    /// Notes purges: what began before is not stored from here on, but for the `spared` one where a page is
    /// meant.
    pub(crate) fn note(
        &self,
        purges: &[Purge],
        mode: PurgeMode,
        spared: Option<&Making>,
    ) -> Moment {
        let mut state = self.state();
        let moment = Moment { epoch: self.epoch, number: state.draw() };
        let at = state.at(self.epoch, moment);
        for purge in purges {
            let except = match purge {
                Purge::Page(key) => state.spares(self.epoch, key, spared),
                _ => None,
            };
            let last = if mode == PurgeMode::Hard { &mut state.hard } else { &mut state.soft };
            last.note(purge, at, except);
        }
        moment
    }

    /// Notes that a request changed a page at its origin: what is being made of it is not stored, but for the
    /// `spared` one, and unless the operator said its lifetime and the request does not take all.
    pub(crate) fn changed(&self, key: &Key, takes_all: bool, spared: Option<&Making>) {
        let mut state = self.state();
        let own = spared.map(|making| making.moment.number);
        if state.outstanding.iter().all(|number| Some(*number) == own) {
            return;
        }
        let except = state.spares(self.epoch, key, spared);
        let moment = Moment { epoch: self.epoch, number: state.draw() };
        let at = state.at(self.epoch, moment);
        state.changed.note(key, PageMark { at, except }, takes_all);
    }

    /// Does `store`, unless a purge met the response: one that follows finds it stored.
    pub(crate) fn unless_met(
        &self,
        key: &Key,
        head: &EntryHead,
        store: impl FnOnce(&Locked<'_>) -> bool,
    ) -> bool {
        let locked = self.locked();
        !locked.meet_response(key, head) && store(&locked)
    }

    /// Did a purge meet what began then?
    pub(crate) fn meet(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        self.locked().meet(key, tags, began)
    }

    /// The number of what began in this process; 0 of anything else.
    pub(crate) fn own_number(&self, moment: Moment) -> u64 {
        if moment.epoch == self.epoch { moment.number } else { 0 }
    }

    /// Is there a purge up to `upto`, or another file than the `stuck` ones?
    pub(crate) fn has_old(&self, upto: Moment, stuck: &[Digest]) -> bool {
        let state = self.state();
        let at = state.at(self.epoch, upto);
        let all = At { rank: 0, number: 0 };
        let count = |at| state.hard.after(at).count() + state.soft.after(at).count();
        let files = &state.hard.files;
        !state.changed.pages.is_empty()
            || state.changed.all.is_some()
            || count(all) > count(at)
            || files.len() != stuck.len()
            || !stuck.iter().all(|digest| files.contains_key(digest))
    }

    /// The present: what is noted later has a later moment.
    pub(crate) fn now(&self) -> Moment {
        Moment { epoch: self.epoch, number: self.state().number }
    }

    /// What the journal has to say when no file of before `upto` is left but `stuck` ones; `None` if that is
    /// nothing.
    pub(crate) fn after(&self, upto: Moment, stuck: &[Digest]) -> Option<Left> {
        let state = self.state();
        let at = state.at(self.epoch, upto);
        let own = |at: At| Moment { epoch: self.epoch, number: at.number };
        let marks = state.hard.after(at).chain(state.soft.after(at));
        let purges: Vec<_> = marks.map(|(purge, at)| (purge, own(at))).collect();
        let files: Vec<_> = stuck.iter().map(|digest| (*digest, upto)).collect();
        let is_empty = purges.is_empty() && files.is_empty();
        (!is_empty).then(|| Left { epochs: vec![self.epoch], purges, files })
    }

    /// Forgets purges up to `upto`, before which no file is left but `stuck` ones, unless a making from
    /// before them is outstanding.
    pub(crate) fn forget(&self, upto: Moment, stuck: &[Digest]) {
        let mut state = self.state();
        let upto = state.at(self.epoch, upto);
        let first = state.outstanding.first().copied();
        let is_kept = |mark| {
            let is_awaited = first.is_some_and(|first| At { number: first, ..upto } < mark);
            mark > upto || is_awaited
        };
        state.hard.forget(is_kept);
        state.soft.forget(is_kept);
        state.changed.forget(is_kept);
        state.hard.files = stuck.iter().map(|digest| (*digest, upto)).collect();
    }

    /// Is there no mark?
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        let all = At { rank: 0, number: 0 };
        state.hard.after(all).chain(state.soft.after(all)).count() == 0
            && state.hard.files.is_empty()
            && state.changed.pages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(Bytes::from_static(b"site/a"))
    }

    #[test]
    fn what_began_before_is_met_and_what_came_after_is_not() {
        let tags = [Bytes::from_static(b"t"), Bytes::from_static(b"host\0u")];
        for mode in [PurgeMode::Hard, PurgeMode::Soft] {
            for purge in [
                Purge::Tag(Bytes::from_static(b"t")),
                Purge::Tag(Bytes::from_static(b"\0u")),
                Purge::Page(key()),
                Purge::Prefix(Bytes::from_static(b"site/")),
                Purge::All,
            ] {
                let marks = Marks::new(Left::default());
                let before = marks.begin();
                marks.note(std::slice::from_ref(&purge), mode, None);
                let after = marks.begin();
                for key in [key(), key().variant(&[1; 16])] {
                    assert!(marks.meet(&key, &tags, before.moment()), "{purge:?}");
                    assert!(marks.meet(&key, &tags, Moment::default()), "{purge:?}");
                    assert!(!marks.meet(&key, &tags, after.moment()), "{purge:?}");
                }
                let other = Key::new(Bytes::from_static(b"sit"));
                assert_eq!(marks.meet(&other, &[], before.moment()), purge == Purge::All);
            }
        }
    }

    #[test]
    fn a_change_of_a_page_meets_what_is_being_made_of_it() {
        let marks = Marks::new(Left::default());
        marks.changed(&key(), true, None);
        assert!(marks.is_empty(), "nothing is being made");
        let (before, own) = (marks.begin(), marks.begin());
        let head = |making: &Making, is_by_operator| EntryHead {
            began: making.moment(),
            is_by_operator,
            ..EntryHead::default()
        };
        let is_met = |key: &Key, making: &Making, is_by_operator| {
            marks.locked().meet_response(key, &head(making, is_by_operator))
        };
        let other = Key::new(Bytes::from_static(b"site/b"));
        marks.changed(&key(), false, Some(&own));
        for key in [key(), key().variant(&[1; 16])] {
            assert!(is_met(&key, &before, false) && !is_met(&key, &before, true));
            assert!(!is_met(&key, &own, false), "it made the change");
        }
        assert!(!is_met(&other, &before, false));
        marks.changed(&key(), true, Some(&own));
        assert!(is_met(&key(), &before, true) && !is_met(&key(), &own, true));
        assert!(!is_met(&key(), &marks.begin(), false), "it came later");
        for number in 0..3000_u32 {
            marks.changed(&Key::new(number.to_be_bytes().to_vec().into()), false, None);
        }
        assert!(is_met(&other, &before, false) && !is_met(&other, &before, true));
        assert!(marks.has_old(marks.now(), &[]));
        drop((before, own));
        marks.forget(marks.now(), &[]);
        assert!(marks.is_empty() && !marks.has_old(marks.now(), &[]));
    }

    #[test]
    fn epochs_are_in_their_order_and_an_unknown_one_is_before_all() {
        let at = |epoch, number| Moment { epoch, number };
        let left = Left {
            epochs: vec![7, 5, 9],
            purges: vec![(Purge::Page(key()), at(5, 10))],
            files: vec![(key().digest(), at(5, 4))],
        };
        let marks = Marks::new(left);
        for (moment, is_met) in [
            (at(1, 99), true),
            (at(7, 99), true),
            (at(5, 9), true),
            (at(5, 10), false),
            (at(9, 1), false),
            (marks.begin().moment(), false),
        ] {
            assert_eq!(marks.meet(&key(), &[], moment), is_met, "{moment:?}");
        }
    }

    #[test]
    fn a_mark_waits_for_the_oldest_making_and_for_purges_that_follow() {
        let marks = Marks::new(Left::default());
        let (first, page) = (marks.begin(), [Purge::Page(key())]);
        marks.note(&page, PurgeMode::Hard, None);
        let second = marks.begin();
        let upto = marks.now();
        marks.note(&[Purge::All], PurgeMode::Soft, None);
        marks.forget(upto, &[]);
        assert!(marks.locked().meet_hard(&key(), &[], first.moment()));
        drop(first);
        marks.forget(upto, &[]);
        assert!(!marks.locked().meet_hard(&key(), &[], Moment::default()));
        assert!(marks.meet(&key(), &[], second.moment()));
        marks.forget(marks.now(), &[]);
        assert!(!marks.is_empty(), "one from before is outstanding");
        drop(second);
        marks.forget(marks.now(), &[]);
        assert!(marks.is_empty());
    }
}
