//! What is known of the files of a zone: accounting for its bounds, never the truth.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) type Digest = [u8; 16];

/// Parts of the index, so that a look at one part keeps no request waiting for the others; chosen: a
/// million files leave 16,000 in each.
const PARTS: usize = 64;

/// One file of this many is among those that are found together as the longest unused; chosen: a walk through a
/// million files is for 15,000 that go.
const SHARE: usize = 64;

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
    number: u64,
}

/// Files by the digest of their key. Trees and not hash tables, for these leave half of their places empty
/// after each growth, and the tables they grew out of behind; no hit of the memory tier looks here.
#[derive(Debug)]
pub(crate) struct Index {
    parts: [Mutex<BTreeMap<Digest, Record>>; PARTS],
    files: AtomicUsize,
    bytes: AtomicU64,
    /// The next to go, the longest unused last; what was used since is no longer one of them.
    oldest: Mutex<Vec<Known>>,
    /// How many records were looked at in search of old files.
    walked: AtomicUsize,
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
            oldest: Mutex::default(),
            walked: AtomicUsize::new(0),
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

    /// Whether the file was written by a later making than that of the `number`.
    pub(crate) fn has_newer(&self, digest: &Digest, number: u64) -> bool {
        self.part_of(digest).get(digest).is_some_and(|record| record.number > number)
    }

    /// Notes a file; returns whether another one was known under its name.
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

    /// The parts of the index, one after the other.
    pub(crate) fn parts() -> std::ops::Range<usize> {
        0..PARTS
    }

    /// The files of one part that were last used before `time`, and when the longest unused of the others was.
    pub(crate) fn unused_since(&self, at: usize, time: i64) -> (Vec<Known>, Option<i64>) {
        let part = self.part(at);
        self.walked.fetch_add(part.len(), Ordering::Relaxed);
        let (mut unused, mut next) = (Vec::new(), None);
        for record in part.iter() {
            let last_used = i64::from(record.1.last_used);
            match last_used < time {
                true => unused.push(known(record)),
                false => next = Some(next.map_or(last_used, |next: i64| next.min(last_used))),
            }
        }
        (unused, next)
    }

    /// Whether the file was neither used nor written again since.
    pub(crate) fn is_current(&self, file: &Known) -> bool {
        self.part_of(&file.digest).get(&file.digest).is_some_and(|record| {
            i64::from(record.last_used) == file.last_used && record.number == file.number
        })
    }

    /// The longest unused file. The index is walked for many of them at once: for each that goes some
    /// [`SHARE`] are looked at, however many there are.
    pub(crate) fn oldest(&self) -> Option<Known> {
        let mut oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 {
            while let Some(file) = oldest.pop() {
                if self.is_current(&file) {
                    return Some(file);
                }
            }
            *oldest = self.find_oldest();
        }
        None
    }

    /// A share of the files, the longest unused one last.
    fn find_oldest(&self) -> Vec<Known> {
        let count = (self.files.load(Ordering::Relaxed) / SHARE).max(SHARE);
        let mut found = BinaryHeap::with_capacity(count + 1);
        for at in Self::parts() {
            let part = self.part(at);
            self.walked.fetch_add(part.len(), Ordering::Relaxed);
            for file in part.iter().map(known) {
                if found.len() < count || found.peek().is_some_and(|latest| file < *latest) {
                    found.push(file);
                    if found.len() > count {
                        found.pop();
                    }
                }
            }
        }
        let mut found = found.into_sorted_vec();
        found.reverse();
        found
    }
}

fn known((digest, record): (&Digest, &Record)) -> Known {
    Known { last_used: record.last_used.into(), digest: *digest, number: record.number }
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
        let unused =
            || Index::parts().map(|at| index.unused_since(at, 1005).0.len()).sum::<usize>();
        assert_eq!(unused(), 5);
        index.touch(&digest(0), 5000);
        assert_eq!(unused(), 4);
        assert!(index.oldest().is_some_and(|oldest| oldest.last_used < 1100));
        index.clear();
        assert_eq!((index.usage(), index.oldest()), ((0, 0), None));
    }
    fn spread(number: u32) -> Digest {
        // As a checksum is.
        let mut digest = [0; 16];
        for (at, bytes) in digest.chunks_mut(4).enumerate() {
            let salt = u32::try_from(at).unwrap();
            bytes.copy_from_slice(
                &crc32fast::hash(&[number, salt].map(u32::to_le_bytes).concat()).to_le_bytes(),
            );
        }
        digest
    }

    #[test]
    fn the_longest_unused_go_first_and_cost_little_however_many_there_are() {
        for files in [1_000_u32, 100_000] {
            let index = Index::new();
            for number in 0..files {
                index.remember(spread(number), 10, 1, i64::from(number));
            }
            // A tenth goes, one for each that comes, while others are used again and some written again.
            let gone = files / 10;
            let mut latest = 0;
            for step in 0..gone {
                let oldest = index.oldest().unwrap();
                assert!(index.is_current(&oldest));
                index.forget(&oldest.digest);
                latest = latest.max(oldest.last_used);
                index.touch(&spread(2 * gone + step), i64::from(files + step));
                index.remember(spread(files + step), 10, 1, i64::from(files + step));
            }
            let walked = index.walked.load(Ordering::Relaxed);
            let per_file = walked / usize::try_from(gone).unwrap();
            assert!(per_file <= 2 * SHARE, "{per_file} records for each of {gone}");
            assert_eq!(latest, i64::from(gone - 1), "in the order of their last use");
        }
    }

    #[test]
    fn what_is_used_or_written_meanwhile_is_not_the_oldest_any_more() {
        let index = Index::new();
        for number in 0..10 {
            index.remember(spread(number), 10, 1, i64::from(number));
        }
        assert_eq!(index.oldest().map(|known| known.digest), Some(spread(0)));
        index.touch(&spread(1), 100);
        index.remember(spread(2), 10, 2, 2);
        index.forget(&spread(3));
        assert_eq!(index.oldest().map(|known| known.digest), Some(spread(4)));
        let mut left: Vec<_> = std::iter::from_fn(|| {
            let oldest = index.oldest()?;
            index.forget(&oldest.digest).map(|_| oldest.digest)
        })
        .collect();
        // The first and the fourth were only looked at; the third counts as the file it is now.
        assert_eq!(left.len(), 9);
        assert_eq!(left.pop(), Some(spread(1)));
        assert!(index.oldest().is_none());
    }
}
