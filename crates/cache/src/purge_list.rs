//! The purges that may still apply to something, as Varnish's list of bans, and the responses that are being made.
//!
//! No clock is used. Each response that begins to be made ([`Making`]) and each purge draws the next number of
//! its folder; what has a smaller number than a purge began before it. Numbers of earlier processes are
//! distinguished by their epoch: a random number of each opening of the folder, whose order the journal has.
//!
//! # Invariants
//! - A purge is forgotten only when it is done, no making that began before it is outstanding, and no older
//!   file is left: nothing that it applies to can come any more.
//! - The memory tier and the catalog are changed under the lock of the list ([`PurgeList::locked`]), so that
//!   the check of the list and the change are one step.
//! - What has no number, or one of an unknown epoch, began before every purge.

use crate::Key;
use crate::beyond::Known;
use crate::catalog::host_end;
use crate::entry::EntryHead;
use crate::index::Digest;
use crate::sync::{Mutex, MutexGuard};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

/// What is purged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Purge {
    /// A page, or an address, with all its variants.
    Page(Key),
    /// Every key that begins so.
    Prefix(Bytes),
    /// Every page with this tag. A tag may belong to a host, `HOST NUL TAG`; without the host before the
    /// NUL it means that of every host.
    Tag(Bytes),
    /// Everything.
    All,
}

/// What happens to a purged page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PurgeMode {
    /// It is gone.
    #[default]
    Hard,
    /// It is served stale once more while it is refreshed, if it is in memory; else it is gone.
    Soft,
}

impl Purge {
    /// Whether it is for pages that bear a URL ([`Key::of_url`]). It is done beside the purge of the URL's own keys, and no
    /// purge to count or show.
    pub fn is_beside(&self) -> bool {
        match self {
            Self::Page(key) => Key::url(key.as_bytes()).is_some(),
            Self::Prefix(prefix) => Key::url(prefix).is_some(),
            Self::Tag(_) | Self::All => false,
        }
    }

    /// Whether the purge matches the page.
    pub fn matches(&self, key: &Key, tags: &[Bytes]) -> bool {
        match self {
            Self::Page(page) => {
                key.purged_with().contains(page) || urls(tags).any(|url| url == *page)
            }
            Self::Prefix(prefix) => {
                let begins = |key: &Key| key.as_bytes().starts_with(prefix);
                begins(key) || urls(tags).any(|url| begins(&url))
            }
            Self::Tag(wanted) => tags.iter().any(|tag| {
                let of_every_host = host_end(tag).map(|at| &tag[at..]);
                tag == wanted || of_every_host == Some(&wanted[..])
            }),
            Self::All => true,
        }
    }
}

/// The keys of the URLs that a page with these tags bears.
fn urls(tags: &[Bytes]) -> impl Iterator<Item = Key> {
    tags.iter().filter_map(Key::of_tag)
}

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
/// until it is stored or given up. Purges in between apply to it.
#[derive(Debug)]
pub struct Making {
    purge_list: Arc<PurgeList>,
    moment: Moment,
    /// Of the purges of other machines, before it began.
    pub(crate) known: Option<Known>,
}

impl Making {
    /// What the response's head shall say of its beginning.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Whether it belongs to this list, and to the response whose head says `began`.
    pub(crate) fn is_of(&self, purge_list: &Arc<PurgeList>, began: Moment) -> bool {
        Arc::ptr_eq(&self.purge_list, purge_list) && self.moment == began
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.purge_list.state().outstanding.remove(&self.moment.number);
    }
}

/// A purge of one page, and the making that it spares.
#[derive(Clone, Copy, Debug)]
struct PagePurge {
    at: At,
    except: Option<u64>,
}

impl PagePurge {
    fn applies_to(&self, began: At) -> bool {
        began < self.at && self.except != Some(began.number)
    }
}

/// Pages that a request changed at their origin, of which a response may be under way that shows them as they
/// were. What is stored is purged beside it; no file has anything to do with it.
#[derive(Debug, Default)]
struct Changed {
    /// With `true` also those whose lifetime the operator said.
    pages: HashMap<Key, (PagePurge, bool)>,
    /// Before it any page may have been changed.
    all: Option<At>,
}

impl Changed {
    fn note(&mut self, key: &Key, purge: PagePurge, takes_all: bool) {
        /// Pages noted one by one; chosen: any client can add one.
        const PAGES_MAX: usize = 1024;
        if self.pages.len() >= PAGES_MAX {
            let last = self.pages.drain().map(|(_, (purge, _))| purge.at).max();
            self.all = last.max(self.all);
        }
        let (last, has_all) = self.pages.entry(key.clone()).or_insert((purge, takes_all));
        (*last, *has_all) = (purge, *has_all || takes_all);
    }

    fn applies_to(&self, key: &Key, tags: &[Bytes], is_by_operator: bool, began: At) -> bool {
        let is_changed = |key: &Key| {
            let found = self.pages.get(key);
            found.is_some_and(|(purge, takes_all)| {
                (*takes_all || !is_by_operator) && purge.applies_to(began)
            })
        };
        let is_any_changed = !is_by_operator && self.all.is_some_and(|all| began < all);
        is_any_changed
            || key.purged_with().iter().any(is_changed)
            || urls(tags).any(|url| is_changed(&url))
    }

    fn forget(&mut self, is_kept: impl Fn(At) -> bool) {
        self.pages.retain(|_, (purge, _)| is_kept(purge.at));
        self.all = self.all.filter(|at| is_kept(*at));
    }
}

/// The last purge of each kind and name.
#[derive(Debug, Default)]
pub(crate) struct Last {
    pages: HashMap<Key, PagePurge>,
    prefixes: HashMap<Bytes, At>,
    tags: HashMap<Bytes, At>,
    all: Option<At>,
    /// Files of purged pages that could not be removed yet.
    files: HashMap<Digest, At>,
}

impl Last {
    fn note(&mut self, purge: &Purge, at: At, except: Option<u64>) {
        let last = match purge {
            Purge::Page(key) => {
                let purge = PagePurge { at, except };
                let last = self.pages.entry(key.clone()).or_insert(purge);
                if at >= last.at {
                    *last = purge;
                }
                return;
            }
            Purge::Prefix(prefix) => self.prefixes.entry(prefix.clone()).or_insert(at),
            Purge::Tag(tag) => self.tags.entry(tag.clone()).or_insert(at),
            Purge::All => self.all.get_or_insert(at),
        };
        *last = at.max(*last);
        if *purge == Purge::All {
            // It includes every earlier one.
            self.forget(|earlier| earlier >= at);
        }
    }

    /// Whether a purge that matches the page came after it began.
    fn applies_to(&self, key: &Key, tags: &[Bytes], began: At) -> bool {
        let is_later = |purge: Option<&At>| purge.is_some_and(|at| began < *at);
        let is_page = |key: &Key| self.pages.get(key).is_some_and(|purge| purge.applies_to(began));
        is_later(self.all.as_ref())
            || key.purged_with().iter().any(is_page)
            || urls(tags).any(|url| is_page(&url))
            || tags.iter().any(|tag| {
                let of_every_host = host_end(tag).and_then(|at| self.tags.get(&tag[at..]));
                is_later(self.tags.get(tag)) || is_later(of_every_host)
            })
            || self.prefixes.iter().any(|(prefix, at)| {
                let begins = |key: &Key| key.as_bytes().starts_with(prefix);
                began < *at && (begins(key) || urls(tags).any(|url| begins(&url)))
            })
            || (!self.files.is_empty() && is_later(self.files.get(&key.digest())))
    }

    /// Forgets the purges, not the files, that are not kept.
    fn forget(&mut self, is_kept: impl Fn(At) -> bool) {
        self.pages.retain(|_, purge| is_kept(purge.at));
        self.prefixes.retain(|_, at| is_kept(*at));
        self.tags.retain(|_, at| is_kept(*at));
        self.all = self.all.filter(|at| is_kept(*at));
    }

    /// Every purge after `at`.
    fn after(&self, at: At) -> impl Iterator<Item = (Purge, At)> + '_ {
        let pages = self.pages.iter().map(|(key, purge)| (Purge::Page(key.clone()), purge.at));
        let prefixes = self.prefixes.iter().map(|(p, at)| (Purge::Prefix(p.clone()), *at));
        let tags = self.tags.iter().map(|(tag, at)| (Purge::Tag(tag.clone()), *at));
        let all = self.all.iter().map(|at| (Purge::All, *at));
        pages.chain(prefixes).chain(tags).chain(all).filter(move |(_, later)| *later > at)
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
    /// Apart from `hard`: a page purged softly may be renewed, unless a hard purge applies to it as well.
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

    /// The number of the making that a purge of its page spares; `None` if another purge applies to it.
    fn spares(&self, own: u64, key: &Key, spared: Option<&Making>) -> Option<u64> {
        let moment = spared?.moment;
        let began = self.at(own, moment);
        let is_purged = self.hard.applies_to(key, &[], began)
            || self.soft.applies_to(key, &[], began)
            || self.changed.applies_to(key, &[], false, began);
        (!is_purged).then_some(moment.number)
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

/// The purges of a folder that may still apply to something.
#[derive(Debug)]
pub(crate) struct PurgeList {
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

/// The list under its lock: for questions, and changes that depend on the answer.
pub(crate) struct Locked<'a> {
    epoch: u64,
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    fn at(&self, moment: Moment) -> At {
        self.state.at(self.epoch, moment)
    }

    /// Whether a purge applies to what began then.
    pub(crate) fn is_purged(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        let began = self.at(began);
        self.state.hard.applies_to(key, tags, began) || self.state.soft.applies_to(key, tags, began)
    }

    /// Whether a purge, or a change of the page at its origin, applies to the response with this head.
    pub(crate) fn is_purged_or_changed(&self, key: &Key, head: &EntryHead) -> bool {
        let changed = &self.state.changed;
        self.is_purged(key, &head.tags, head.began)
            || changed.applies_to(key, &head.tags, head.is_by_operator, self.at(head.began))
    }

    /// As [`Locked::is_purged`], by hard purges alone.
    pub(crate) fn is_hard_purged(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        self.state.hard.applies_to(key, tags, self.at(began))
    }

    /// Purges of one moment, to be looked up.
    pub(crate) fn together(&self, purges: &[Purge], moment: Moment) -> Last {
        let (mut last, at) = (Last::default(), self.at(moment));
        purges.iter().for_each(|purge| last.note(purge, at, None));
        last
    }

    /// Whether one of these purges applies to what began then.
    pub(crate) fn is_purged_by(
        &self,
        last: &Last,
        key: &Key,
        tags: &[Bytes],
        began: Moment,
    ) -> bool {
        last.applies_to(key, tags, self.at(began))
    }

    /// Whether `one` began before the `other`.
    pub(crate) fn is_older(&self, one: Moment, other: Moment) -> bool {
        self.at(one) < self.at(other)
    }
}

impl PurgeList {
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

    /// As [`PurgeList::begin`], in one with what else is done under the lock.
    pub(crate) fn begin_under(self: &Arc<Self>, locked: &mut Locked<'_>) -> Making {
        let number = locked.state.draw();
        locked.state.outstanding.insert(number);
        let moment = Moment { epoch: self.epoch, number };
        Making { purge_list: Arc::clone(self), moment, known: None }
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
        state.changed.note(key, PagePurge { at, except }, takes_all);
    }

    /// Calls `take`, unless the response, of which there is a file, was purged: a later purge finds what it took. A page
    /// that changed is purged beside that.
    pub(crate) fn unless_purged(
        &self,
        key: &Key,
        head: &EntryHead,
        take: impl FnOnce(&Locked<'_>),
    ) {
        let locked = self.locked();
        if !locked.is_purged(key, &head.tags, head.began) {
            take(&locked);
        }
    }

    /// Calls `store`, unless the response was purged or its page changed: a later purge finds it stored.
    pub(crate) fn unless_purged_or_changed(
        &self,
        key: &Key,
        head: &EntryHead,
        store: impl FnOnce(&Locked<'_>) -> bool,
    ) -> bool {
        let locked = self.locked();
        !locked.is_purged_or_changed(key, head) && store(&locked)
    }

    /// Whether a purge applies to what began then.
    pub(crate) fn is_purged(&self, key: &Key, tags: &[Bytes], began: Moment) -> bool {
        self.locked().is_purged(key, tags, began)
    }

    /// The number of what began in this process; 0 of anything else.
    pub(crate) fn own_number(&self, moment: Moment) -> u64 {
        if moment.epoch == self.epoch { moment.number } else { 0 }
    }

    /// Whether there is a purge up to `upto`, or another file than the `stuck` ones.
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
        let purges = state.hard.after(at).chain(state.soft.after(at));
        let purges: Vec<_> = purges.map(|(purge, at)| (purge, own(at))).collect();
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
        let is_kept = |at| {
            let is_awaited = first.is_some_and(|first| At { number: first, ..upto } < at);
            at > upto || is_awaited
        };
        state.hard.forget(is_kept);
        state.soft.forget(is_kept);
        state.changed.forget(is_kept);
        state.hard.files = stuck.iter().map(|digest| (*digest, upto)).collect();
    }

    /// Whether it has no purge.
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
                let purge_list = PurgeList::new(Left::default());
                let before = purge_list.begin();
                purge_list.note(std::slice::from_ref(&purge), mode, None);
                let after = purge_list.begin();
                for key in [key(), key().variant(&[1; 16])] {
                    assert!(purge_list.is_purged(&key, &tags, before.moment()), "{purge:?}");
                    assert!(purge_list.is_purged(&key, &tags, Moment::default()), "{purge:?}");
                    assert!(!purge_list.is_purged(&key, &tags, after.moment()), "{purge:?}");
                }
                let other = Key::new(Bytes::from_static(b"sit"));
                assert_eq!(purge_list.is_purged(&other, &[], before.moment()), purge == Purge::All);
            }
        }
    }

    #[test]
    fn a_change_of_a_page_applies_to_what_is_being_made_of_it() {
        let purge_list = PurgeList::new(Left::default());
        purge_list.changed(&key(), true, None);
        assert!(purge_list.is_empty(), "nothing is being made");
        let (before, own) = (purge_list.begin(), purge_list.begin());
        let head = |making: &Making, is_by_operator| EntryHead {
            began: making.moment(),
            is_by_operator,
            ..EntryHead::default()
        };
        let is_changed = |key: &Key, making: &Making, is_by_operator| {
            purge_list.locked().is_purged_or_changed(key, &head(making, is_by_operator))
        };
        let other = Key::new(Bytes::from_static(b"site/b"));
        purge_list.changed(&key(), false, Some(&own));
        for key in [key(), key().variant(&[1; 16])] {
            assert!(is_changed(&key, &before, false) && !is_changed(&key, &before, true));
            assert!(!is_changed(&key, &own, false), "it made the change");
        }
        assert!(!is_changed(&other, &before, false));
        purge_list.changed(&key(), true, Some(&own));
        assert!(is_changed(&key(), &before, true) && !is_changed(&key(), &own, true));
        assert!(!is_changed(&key(), &purge_list.begin(), false), "it came later");
        for number in 0..3000_u32 {
            purge_list.changed(&Key::new(number.to_be_bytes().to_vec().into()), false, None);
        }
        assert!(is_changed(&other, &before, false) && !is_changed(&other, &before, true));
        assert!(purge_list.has_old(purge_list.now(), &[]));
        drop((before, own));
        purge_list.forget(purge_list.now(), &[]);
        assert!(purge_list.is_empty() && !purge_list.has_old(purge_list.now(), &[]));
    }

    #[test]
    fn epochs_are_in_their_order_and_an_unknown_one_is_before_all() {
        let at = |epoch, number| Moment { epoch, number };
        let left = Left {
            epochs: vec![7, 5, 9],
            purges: vec![(Purge::Page(key()), at(5, 10))],
            files: vec![(key().digest(), at(5, 4))],
        };
        let purge_list = PurgeList::new(left);
        for (moment, is_purged) in [
            (at(1, 99), true),
            (at(7, 99), true),
            (at(5, 9), true),
            (at(5, 10), false),
            (at(9, 1), false),
            (purge_list.begin().moment(), false),
        ] {
            assert_eq!(purge_list.is_purged(&key(), &[], moment), is_purged, "{moment:?}");
        }
    }

    #[test]
    fn a_purge_is_kept_for_the_oldest_making_and_for_purges_that_follow() {
        let purge_list = PurgeList::new(Left::default());
        let (first, page) = (purge_list.begin(), [Purge::Page(key())]);
        purge_list.note(&page, PurgeMode::Hard, None);
        let second = purge_list.begin();
        let upto = purge_list.now();
        purge_list.note(&[Purge::All], PurgeMode::Soft, None);
        purge_list.forget(upto, &[]);
        assert!(purge_list.locked().is_hard_purged(&key(), &[], first.moment()));
        drop(first);
        purge_list.forget(upto, &[]);
        assert!(!purge_list.locked().is_hard_purged(&key(), &[], Moment::default()));
        assert!(purge_list.is_purged(&key(), &[], second.moment()));
        purge_list.forget(purge_list.now(), &[]);
        assert!(!purge_list.is_empty(), "one from before is outstanding");
        drop(second);
        purge_list.forget(purge_list.now(), &[]);
        assert!(purge_list.is_empty());
    }
}
