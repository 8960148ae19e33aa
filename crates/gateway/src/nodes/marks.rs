//! The last purges by their places in the stream: whether a page that another node made is older than one of them.
//!
//! A page says how much its node had read of the stream when it began to be made. A purge behind that may have changed it.

use super::message::Purged;
use super::place::Id;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use yorozu_cache::{Key, Purge, PurgeMode};

/// Purges that are remembered; chosen: of what is older than all of them no page is taken.
const MARKS_MAX: usize = 4096;

/// Those of one entry, in one zone.
#[derive(Debug)]
struct Mark {
    id: Id,
    zone: String,
    purges: Arc<[Purge]>,
}

impl Mark {
    fn matches(&self, zone: &str, key: &Key, tags: &[Bytes]) -> bool {
        self.zone == zone && self.purges.iter().any(|purge| purge.matches(key, tags))
    }
}

/// The purges that pages are compared with.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// What is older than this is not known; `None`: nothing is.
    floor: Option<Id>,
    /// By their places.
    marks: VecDeque<Mark>,
    /// Purges in them.
    count: usize,
}

/// Purges of this node that have no place yet, by a number. A bus that replaces another one goes on with them: what a request
/// of before a reload purges applies to pages that come after it.
#[derive(Debug, Default)]
pub(super) struct Outstanding(Mutex<(u64, HashMap<u64, Mark>)>);

impl Outstanding {
    fn marks(&self) -> MutexGuard<'_, (u64, HashMap<u64, Mark>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node is about to purge this: from here on no older page is taken. The number is for [`Outstanding::forget`].
    pub(super) fn foresee(&self, purged: Purged) -> u64 {
        let mut marks = self.marks();
        marks.0 += 1;
        let (number, id) = (marks.0, Id::default());
        marks.1.insert(number, Mark { id, zone: purged.zone, purges: purged.purges });
        number
    }

    /// A purge that was foreseen has its place by now, and was noted there.
    pub(super) fn forget(&self, number: u64) {
        self.marks().1.remove(&number);
    }

    /// Whether one of them applies to a page.
    pub(super) fn has(&self, zone: &str, key: &Key, tags: &[Bytes]) -> bool {
        self.marks().1.values().any(|mark| mark.matches(zone, key, tags))
    }
}

impl Marks {
    pub(super) fn is_known(&self) -> bool {
        self.floor.is_some()
    }

    /// What began before `floor` is not known any more.
    pub(super) fn begin(&mut self, floor: Id) {
        self.floor = self.floor.max(Some(floor));
    }

    /// The entry at `id` purged this.
    pub(super) fn note(&mut self, id: Id, purged: Purged) {
        let behind = self.marks.iter().rev().take_while(|mark| mark.id > id).count();
        self.count += purged.purges.len();
        let mark = Mark { id, zone: purged.zone, purges: purged.purges };
        self.marks.insert(self.marks.len() - behind, mark);
        while self.count > MARKS_MAX {
            let Some(oldest) = self.marks.pop_front() else { return };
            self.count -= oldest.purges.len();
            self.begin(oldest.id);
        }
    }

    /// As [`Marks::note`], where the same may be noted many times at one place.
    pub(super) fn note_once(&mut self, id: Id, zone: &str, purge: Purge) {
        let is_same = |mark: &Mark| mark.zone == zone && *mark.purges == [purge.clone()];
        if !self.marks.iter().rev().take_while(|mark| mark.id >= id).any(is_same) {
            let purges = [purge].into();
            self.note(id, Purged { zone: zone.to_owned(), mode: PurgeMode::Hard, purges });
        }
    }

    /// Whether a page may be older than a purge, if it began to be made when `known` had been read.
    pub(super) fn is_older(&self, zone: &str, key: &Key, tags: &[Bytes], known: Id) -> bool {
        self.floor.is_none_or(|floor| known < floor)
            || self
                .marks
                .iter()
                .rev()
                .take_while(|mark| mark.id > known)
                .any(|mark| mark.matches(zone, key, tags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purged(purge: Purge) -> Purged {
        Purged { zone: "z".to_owned(), mode: PurgeMode::Hard, purges: [purge].into() }
    }

    fn key(text: &'static str) -> Key {
        Key::new(Bytes::from_static(text.as_bytes()))
    }

    fn is_old(marks: &Marks, text: &'static str, known: u64) -> bool {
        marks.is_older("z", &key(text), &[Bytes::from_static(b"h\0t")], Id(known, 0))
    }

    #[test]
    fn pages_from_before_a_purge_are_old() {
        let mut marks = Marks::default();
        assert!(is_old(&marks, "a", 9), "nothing is known");
        marks.begin(Id(1, 0));
        assert!(is_old(&marks, "a", 0) && !is_old(&marks, "a", 1));
        marks.note(Id(7, 0), purged(Purge::Tag(Bytes::from_static(b"\0t"))));
        marks.note(Id(5, 0), purged(Purge::Page(key("a"))));
        assert!(is_old(&marks, "b", 6) && !is_old(&marks, "b", 7));
        assert!(!marks.is_older("z", &key("b"), &[], Id(1, 0)));
        assert!(marks.is_older("z", &key("a"), &[], Id(4, 0)));
        assert!(!marks.is_older("z", &key("a"), &[], Id(5, 0)));
        assert!(!marks.is_older("y", &key("a"), &[], Id(1, 0)), "another zone");
    }

    #[test]
    fn what_is_noted_once_is_noted_once() {
        let mut marks = Marks::default();
        marks.begin(Id(1, 0));
        for _ in 0..3 {
            marks.note_once(Id(1, 1), "z", Purge::Page(key("a")));
        }
        assert_eq!(marks.count, 1);
        assert!(is_old(&marks, "a", 1) && !is_old(&marks, "b", 1) && !is_old(&marks, "a", 2));
    }

    #[test]
    fn a_purge_counts_before_it_has_a_place() {
        let outstanding = Outstanding::default();
        let number = outstanding.foresee(purged(Purge::All));
        assert!(outstanding.has("z", &key("a"), &[]) && !outstanding.has("y", &key("a"), &[]));
        outstanding.forget(number);
        assert!(!outstanding.has("z", &key("a"), &[]));
    }

    #[test]
    fn what_is_forgotten_is_not_known() {
        let mut marks = Marks::default();
        marks.begin(Id(0, 0));
        for number in 1..=MARKS_MAX as u64 + 5 {
            marks.note(Id(number, 0), purged(Purge::Page(key("x"))));
        }
        assert_eq!(marks.floor, Some(Id(5, 0)));
        assert!(is_old(&marks, "a", 4) && !is_old(&marks, "a", 5));
    }
}
