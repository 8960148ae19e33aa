//! What is known of the files of a zone: accounting for its bounds, never the truth.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) type Digest = [u8; 16];

/// Parts of the index, so that a look at one part keeps no request waiting for the others; chosen: a
/// million files leave 16,000 in each.
const PARTS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: u64,
    /// Seconds since 1970; of four bytes, for there may be millions.
    last_used: u32,
    /// The number of the making that wrote it; 0: an earlier process's.
    number: u64,
}

/// A file as the eviction sees it; ordered by its last use.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Known {
    pub(crate) last_used: i64,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
}

/// Files by the digest of their key. Trees and not hash tables, for these leave half of their places empty
/// after each growth, and the tables they grew out of behind; no hit of the memory tier looks here.
#[derive(Debug)]
pub(crate) struct Index {
    parts: [Mutex<BTreeMap<Digest, Record>>; PARTS],
    files: AtomicUsize,
    bytes: AtomicU64,
    /// Where the search for old files goes on.
    hand: AtomicUsize,
}

fn seconds(time: i64) -> u32 {
    u32::try_from(time).unwrap_or(if time < 0 { 0 } else { u32::MAX })
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::default()),
            files: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            hand: AtomicUsize::new(0),
        }
    }

    fn part(&self, at: usize) -> MutexGuard<'_, BTreeMap<Digest, Record>> {
        // Each use is one call on the map: a panic elsewhere cannot leave it half changed.
        self.parts[at % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part_of(&self, digest: &Digest) -> MutexGuard<'_, BTreeMap<Digest, Record>> {
        self.part(usize::from(digest[0]))
    }

    /// Files, and their bytes.
    pub(crate) fn usage(&self) -> (usize, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn holds(&self, digest: &Digest) -> bool {
        self.part_of(digest).contains_key(digest)
    }

    pub(crate) fn touch(&self, digest: &Digest, now: i64) {
        if let Some(record) = self.part_of(digest).get_mut(digest) {
            record.last_used = record.last_used.max(seconds(now));
        }
    }

    /// Was the file written by a later making than that of the `number`?
    pub(crate) fn has_newer(&self, digest: &Digest, number: u64) -> bool {
        self.part_of(digest).get(digest).is_some_and(|record| record.number > number)
    }

    /// Notes a file; was another one known under its name?
    pub(crate) fn remember(&self, digest: Digest, bytes: u64, number: u64, now: i64) -> bool {
        let record = Record { bytes, last_used: seconds(now), number };
        let old = self.part_of(&digest).insert(digest, record);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match &old {
            Some(old) => _ = self.bytes.fetch_sub(old.bytes, Ordering::Relaxed),
            None => _ = self.files.fetch_add(1, Ordering::Relaxed),
        }
        old.is_some()
    }

    /// Forgets a file; its bytes, if it was known.
    pub(crate) fn forget(&self, digest: &Digest) -> Option<u64> {
        self.forget_older(digest, u64::MAX)
    }

    /// Forgets a file that a making before that of the `number` wrote; its bytes, if there was one.
    pub(crate) fn forget_older(&self, digest: &Digest, number: u64) -> Option<u64> {
        let mut part = self.part_of(digest);
        part.get(digest).filter(|record| record.number < number)?;
        let old = part.remove(digest)?;
        drop(part);
        self.bytes.fetch_sub(old.bytes, Ordering::Relaxed);
        self.files.fetch_sub(1, Ordering::Relaxed);
        Some(old.bytes)
    }

    /// Forgets all of it.
    pub(crate) fn clear(&self) {
        for at in 0..PARTS {
            let old = std::mem::take(&mut *self.part(at));
            let bytes: u64 = old.values().map(|record| record.bytes).sum();
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.files.fetch_sub(old.len(), Ordering::Relaxed);
        }
    }

    /// Up to `count` files last used before `time`.
    pub(crate) fn unused_since(&self, time: i64, count: usize) -> Vec<Known> {
        let mut found = Vec::new();
        for at in 0..PARTS {
            let part = self.part(at);
            let unused = part.iter().filter(|(_, record)| i64::from(record.last_used) < time);
            found.extend(unused.map(known).take(count - found.len()));
            if found.len() == count {
                break;
            }
        }
        found
    }

    /// The longest unused of some parts of the index, which is close to the longest unused of all: each
    /// call looks at the next parts, where there are any files.
    pub(crate) fn oldest(&self) -> Option<Known> {
        /// Parts looked at; chosen: the oldest of a sixteenth.
        const LOOKED_AT: usize = 4;
        let mut oldest: Option<Known> = None;
        let mut looked = 0;
        for _ in 0..PARTS {
            let part = self.part(self.hand.fetch_add(1, Ordering::Relaxed));
            let Some(found) = part.iter().map(known).min() else { continue };
            oldest = Some(oldest.map_or(found, |oldest| oldest.min(found)));
            looked += 1;
            if looked == LOOKED_AT {
                break;
            }
        }
        oldest
    }
}

fn known((digest, record): (&Digest, &Record)) -> Known {
    Known { last_used: record.last_used.into(), digest: *digest, bytes: record.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_and_the_old_ones_found() {
        let index = Index::new();
        let digest = |number: u8| [number; 16];
        for number in 0..200 {
            index.remember(digest(number), 10, 1, 1000 + i64::from(number));
        }
        assert!(index.remember(digest(7), 30, 2, 1007));
        assert!(index.has_newer(&digest(7), 1) && !index.has_newer(&digest(7), 2));
        assert_eq!(index.forget_older(&digest(7), 2), None);
        assert_eq!(index.usage(), (200, 2020));
        index.forget(&digest(7));
        index.forget(&digest(7));
        assert_eq!(index.usage(), (199, 1990));
        assert_eq!(index.unused_since(1005, 100).len(), 5);
        assert_eq!(index.unused_since(1005, 3).len(), 3);
        index.touch(&digest(0), 5000);
        assert_eq!(index.unused_since(1005, 100).len(), 4);
        assert!(index.oldest().is_some_and(|oldest| oldest.last_used < 1100));
        index.clear();
        assert_eq!((index.usage(), index.oldest()), ((0, 0), None));
    }
}
