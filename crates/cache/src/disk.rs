//! The disk tier: one file per entry in nginx's `levels` layout, found by name.
//!
//! Everything here blocks; callers are on a thread that may.
//!
//! # Invariants
//! - A file gets its name by `rename` after every byte was written to a temporary one.
//! - A name is in one of three states: absent, stored (the index has it), or pending removal (its page was
//!   purged). It goes from one to another under the lock of the names, in one with the check of the purge
//!   list that allows it: a store either is found by a purge or finds the purge in the list.
//! - While removals are pending, the purges that apply to these files stay in the list, and a file is served
//!   only if it still has its name when the list is checked: no purged file is served, however long its
//!   reading takes.
//! - The index is accounting for `max_size` and `inactive`, never the truth: a file it does not
//!   know yet is found all the same.
//! - A file that cannot be removed keeps nothing else from being done.

use crate::entry::{Entry, EntryHead};
use crate::entry_file::{self, Content, Opened};
use crate::figures::Evicted;
use crate::files::{self, failed};
use crate::folder::Names;
use crate::index::{Digest, Index, Known};
use crate::levels::{Levels, parse_digest};
use crate::pace::{Pace, Steps};
use crate::purge_list::Locked;
use crate::tiers::Tiers;
use crate::{Key, StoreError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where and how much.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskOptions {
    /// The folder; made when missing.
    pub path: PathBuf,
    /// Folder depth below it.
    pub levels: Levels,
    /// Bound of all files together, in bytes of the blocks that they take.
    pub max_size: Option<u64>,
    /// Free bytes the file system shall keep.
    pub min_free: Option<u64>,
    /// Most files; the counterpart of nginx's `keys_zone` size.
    pub files_max: usize,
    /// Seconds without use after which a file goes.
    pub inactive: i64,
    /// How the folder is read after a start.
    pub loader: Pace,
    /// How files are removed.
    pub manager: Pace,
}

/// Files that could not be removed, after which room is made no further.
const REFUSED_MAX: usize = 8;
/// Files that go for the names of one that comes; more go with the next.
const GONE_FOR_NAMES_MAX: usize = 64;

impl Tiers {
    /// Whether every file has been read since the start.
    pub(crate) fn is_scanned(&self) -> bool {
        self.is_scanned.load(Ordering::Acquire)
    }

    /// Whether the key's file may exist; after the first scan `false` is certain.
    pub(crate) fn may_hold(&self, key: &Key) -> bool {
        !self.is_scanned() || self.index.holds(&key.digest())
    }

    /// Where the key's file lies, if there is one.
    pub(crate) fn path(&self, key: &Key) -> PathBuf {
        self.path_of(&key.digest())
    }

    pub(crate) fn path_of(&self, digest: &Digest) -> PathBuf {
        self.options.levels.path(&self.options.path, digest)
    }

    /// What a file of this length takes on the disk: whole blocks, as nginx counts.
    pub(crate) fn on_disk(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.block_bytes)
    }

    /// An unused name inside the cache's folder, so that `rename` never crosses file systems.
    pub(crate) fn temporary_path(&self) -> PathBuf {
        self.options.path.join(self.folder.temporary_name())
    }

    /// Reads and verifies the key's file, and brings it into memory; bodies above `memory_max` stay in the
    /// file.
    ///
    /// # Errors
    /// A damaged file is removed and reported; a missing one is `Ok(None)`.
    pub(crate) fn load(
        &self,
        key: &Key,
        memory_max: u64,
        now: i64,
    ) -> Result<Option<Arc<Entry>>, StoreError> {
        /// A file that is replaced each time it is read; chosen.
        const TIMES: usize = 3;
        self.forget_pushed_out();
        let path = self.path(key);
        for _ in 0..TIMES {
            let opened = match Opened::new(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.forget_missing(key, &path);
                    return Ok(None);
                }
                opened => opened.map_err(failed("open()", &path))?,
            };
            match opened.read(&path, key, (memory_max, &self.held), now) {
                Ok(Content::Entry(entry)) => {
                    match self.take_in(key, &path, &opened, &(*entry).into(), now) {
                        Taken::In(entry) => return Ok(Some(entry)),
                        Taken::Purged => return Ok(None),
                        Taken::Replaced => {}
                    }
                }
                Ok(Content::OtherKey) => return Ok(None),
                Ok(Content::Outdated) => {
                    self.discard(key, &path, &opened);
                    return Ok(None);
                }
                Err(error) => {
                    if matches!(error, StoreError::Damaged { .. }) {
                        self.figures.evict(Evicted::Damaged);
                        self.discard(key, &path, &opened);
                    }
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// An entry that was read: into memory and the accounts, unless it was purged.
    pub(crate) fn take_in(
        &self,
        key: &Key,
        path: &Path,
        opened: &Opened,
        entry: &Arc<Entry>,
        now: i64,
    ) -> Taken {
        let (digest, began) = (key.digest(), entry.head.began);
        let mut names = self.folder.names();
        if !opened.is_at(path) {
            // If a purge removed it, the list may have forgotten that purge by now.
            return Taken::Replaced;
        }
        let is_owner = names.are_of(self.zone);
        let mut found = None;
        self.purge_list().unless_purged(key, &entry.head, |locked| {
            let newer = self.in_memory(key).filter(|old| !locked.is_older(old.head.began, began));
            if newer.is_none() {
                self.put_read(locked, key, entry);
            }
            found = Some(newer.unwrap_or_else(|| Arc::clone(entry)));
        });
        let is_unknown = is_owner && !self.index.holds(&digest);
        match found {
            Some(found) => {
                if is_unknown {
                    let number = self.purge_list().own_number(began);
                    self.index.remember(digest, self.on_disk(opened.bytes), number, now);
                }
                Taken::In(found)
            }
            None => {
                // What the index holds, the purge itself is about to remove.
                if is_unknown {
                    let _ = self.unlink(&mut names, path);
                }
                Taken::Purged
            }
        }
    }

    /// Removes a file that is not valid, if it still has the name.
    fn discard(&self, key: &Key, path: &Path, opened: &Opened) {
        let mut names = self.folder.names();
        if names.are_of(self.zone) && opened.is_at(path) && self.unlink(&mut names, path).is_ok() {
            self.index.forget(&key.digest());
            self.forget_unused(key);
        }
    }

    /// The key has no file, unless it got one since that was looked for.
    pub(crate) fn forget_missing(&self, key: &Key, path: &Path) {
        let digest = key.digest();
        if self.index.holds(&digest) {
            let _names = self.folder.names();
            if matches!(files::identity_at(path), Ok(None)) {
                self.index.forget(&digest);
                self.forget_unused(key);
            }
        }
    }

    /// Writes an entry, unless it was purged, there is a newer one, or it is not wanted once all is
    /// written; readers see the old file or the new one, never a mixture.
    pub(crate) fn write(
        &self,
        key: &Key,
        entry: &Entry,
        now: i64,
        is_wanted: impl FnOnce(&Locked<'_>) -> bool,
    ) -> Result<(), StoreError> {
        self.forget_pushed_out();
        let temporary = self.temporary_path();
        let written = entry_file::write(&temporary, entry).and_then(|bytes| {
            let (digest, bytes) = (key.digest(), self.on_disk(bytes));
            if !self.make_room(&digest, bytes, now) {
                return Ok(false);
            }
            let path = self.path_of(&digest);
            let folder = path.parent().unwrap_or(&path);
            files::make_folder(folder).map_err(failed("mkdir()", folder))?;
            self.folder.journal.tell_epoch(self.purge_list().epoch());
            self.name(key, entry, &temporary, &path, (bytes, now), is_wanted)
        });
        if !matches!(written, Ok(true)) {
            let _ = fs::remove_file(&temporary);
        }
        written.map(|_| ())
    }

    /// Gives a file of `bytes` the name of its key; `false` if it may not have it.
    fn name(
        &self,
        key: &Key,
        entry: &Entry,
        temporary: &Path,
        path: &Path,
        (bytes, now): (u64, i64),
        is_wanted: impl FnOnce(&Locked<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let (digest, number) = (key.digest(), self.purge_list().own_number(entry.head.began));
        let mut names = self.folder.names();
        if !names.are_of(self.zone) || self.index.has_newer(&digest, number) {
            return Ok(false);
        }
        let is_named = self.purge_list().unless_purged_or_changed(key, &entry.head, |locked| {
            is_wanted(locked) && self.may_be_named(locked, key, entry)
        });
        if !is_named {
            self.forget_unused(key);
            return Ok(false);
        }
        if let Err(problem) = files::rename(temporary, path) {
            self.forget_unused(key);
            return Err(failed("rename()", path)(problem));
        }
        let took_place = self.index.remember(digest, bytes, number, now);
        if took_place || !self.is_scanned() || !names.pending.is_empty() {
            // The file that had the name before would be back after a power failure.
            names.unsynced.note(path.parent().unwrap_or(path));
        }
        Ok(true)
    }

    /// Removes what is longest unused until a file of `bytes` fits the bounds, or the files that are left
    /// cannot be removed; `false` if it never fits.
    fn make_room(&self, digest: &Digest, bytes: u64, now: i64) -> bool {
        if self.options.max_size.is_some_and(|max| bytes > max) {
            return false;
        }
        let (mut refused, mut tried) = (0, 0);
        while refused < REFUSED_MAX {
            let for_names = || (tried < GONE_FOR_NAMES_MAX).then(|| self.names_above()).flatten();
            let why = self.above(bytes, !self.index.holds(digest)).or_else(for_names);
            let Some(why) = why else { break };
            tried += 1;
            let is_removed = match self.remove_next_pending(refused) {
                Some(is_removed) => is_removed,
                None => match self.index.oldest() {
                    Some(oldest) => self.remove_known(&oldest, now, why),
                    None => {
                        self.make_room_in_memory();
                        break;
                    }
                },
            };
            refused += usize::from(!is_removed);
        }
        true
    }

    /// The bound that would be exceeded with this much more.
    fn above(&self, more_bytes: u64, is_one_more: bool) -> Option<Evicted> {
        let (files, bytes) = self.index.usage();
        let (pending_files, pending_bytes) = self.folder.names().pending_usage();
        if files + pending_files + usize::from(is_one_more) > self.options.files_max {
            return Some(Evicted::Keys);
        }
        let is_large = |max: &u64| bytes + pending_bytes + more_bytes > *max;
        self.options.max_size.filter(is_large).map(|_| Evicted::MaxSize)
    }

    fn names_above(&self) -> Option<Evicted> {
        self.are_names_above().then_some(Evicted::Names)
    }

    /// Removes a file whose removal is pending, unless another file has its name now; `false` if it cannot be removed.
    fn remove_pending(&self, names: &mut Names, digest: &Digest) -> bool {
        let removed = match self.index.holds(digest) || !names.pending.contains_key(digest) {
            true => Ok(()),
            false => self.unlink(names, &self.path_of(digest)),
        };
        let is_gone = removed.is_ok();
        match removed {
            Ok(()) => names.is_settled(digest),
            Err(problem) => names.is_stuck(digest, problem),
        }
        is_gone
    }

    /// Removes one file of a purged page, if there is one that may be removed and none was `refused`; `false` if it
    /// cannot be.
    fn remove_next_pending(&self, refused: usize) -> Option<bool> {
        let mut names = self.folder.names();
        if refused > 0 || !names.are_of(self.zone) {
            return None;
        }
        let digest = *names.pending.keys().find(|digest| !names.stuck.contains(*digest))?;
        Some(self.remove_pending(&mut names, &digest))
    }

    /// Removes the files of purged pages at the manager's pace, while it `is_wanted`: each is tried once. Whether all are
    /// gone.
    pub(crate) fn sweep(&self, pace: Pace, is_wanted: &dyn Fn() -> bool) -> bool {
        let mut steps = Steps::new(pace, is_wanted);
        let digests: Vec<Digest> = self.folder.names().pending.keys().copied().collect();
        let mut are_gone = true;
        for digest in digests {
            let mut names = self.folder.names();
            if !names.are_of(self.zone) {
                return false;
            }
            are_gone &= self.remove_pending(&mut names, &digest);
            drop(names);
            if !steps.next() {
                return false;
            }
        }
        are_gone
    }

    /// Removes a file known only by name; its head names the key. `false` if it is not
    /// removed: used meanwhile, or it cannot be; then it counts as used now.
    fn remove_known(&self, known: &Known, now: i64, why: Evicted) -> bool {
        let digest = &known.digest;
        let path = self.path_of(digest);
        let head = entry_file::head_at(&path);
        let mut names = self.folder.names();
        if !names.are_of(self.zone) || !self.index.is_current(known) {
            return false;
        }
        let is_removed = match self.unlink(&mut names, &path) {
            Ok(()) => {
                self.figures.evict(why);
                self.index.forget(digest).is_some() | names.stuck.remove(digest) | true
            }
            Err(problem) => {
                names.is_stuck(digest, problem);
                self.index.touch(digest, now.saturating_add(1));
                false
            }
        };
        if let Some(head) = head {
            let key = Key::new(head.key);
            if is_removed && self.are_names_above() {
                // It goes for its names, which what is in memory has, too.
                self.drop_from_memory(&key);
            }
            self.forget_unused(&key);
        }
        is_removed
    }

    /// Removes a file, under the lock of the names.
    fn unlink(&self, names: &mut Names, path: &Path) -> Result<(), StoreError> {
        match files::remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                names.unsynced.note(path.parent().unwrap_or(path));
                removed.map_err(failed("unlink()", path))
            }
        }
    }

    /// Removes what is unused too long, then the longest unused above the bounds. Returns how many files
    /// went, and when the next will be unused too long; ends early when it `is_wanted` no more.
    pub(crate) fn trim(&self, now: i64, is_wanted: &dyn Fn() -> bool) -> (usize, Option<i64>) {
        let mut steps = Steps::new(self.options.manager, is_wanted);
        let (mut removed, mut due) = (0, None);
        for part in Index::parts() {
            let (unused, next) = self.index.unused_since(part, now - self.options.inactive);
            // A second later than `inactive`: the file was used at any moment of its last one.
            let next = next.map(|last_used| last_used + self.options.inactive + 1);
            due = due.min(next).or(due).or(next);
            for unused in unused {
                // One that cannot be removed is looked at again after as long.
                removed += usize::from(self.remove_known(&unused, now, Evicted::Inactive));
                if !steps.next() {
                    return (removed, None);
                }
            }
        }
        let mut refused = 0;
        while refused < REFUSED_MAX {
            let above = self.above(0, false).or_else(|| self.names_above());
            let tight = || self.is_disk_tight().then_some(Evicted::MinFree);
            let Some(why) = above.or_else(tight) else { break };
            let Some(oldest) = self.index.oldest() else {
                self.make_room_in_memory();
                break;
            };
            let is_removed = self.remove_known(&oldest, now, why);
            removed += usize::from(is_removed);
            refused += usize::from(!is_removed);
            if !steps.next() {
                break;
            }
        }
        (removed, due)
    }

    fn is_disk_tight(&self) -> bool {
        let Some(min_free) = self.options.min_free else { return false };
        nix::sys::statvfs::statvfs(&self.options.path)
            .is_ok_and(|stat| stat.blocks_available() * stat.fragment_size() < min_free)
    }

    /// The heads of all files, until `wants_more` is false.
    pub(crate) fn heads(&self, mut wants_more: impl FnMut(EntryHead) -> bool) {
        heads_below(&self.options.path, &mut wants_more);
    }
}

/// The outcome for an entry that was read.
pub(crate) enum Taken {
    In(Arc<Entry>),
    /// It was purged.
    Purged,
    /// Its file has lost its name meanwhile.
    Replaced,
}

fn heads_below(folder: &Path, wants_more: &mut impl FnMut(EntryHead) -> bool) -> bool {
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = item.path();
        let goes_on = if path.is_dir() {
            heads_below(&path, wants_more)
        } else {
            let is_entry = item.file_name().to_str().is_some_and(|n| parse_digest(n).is_some());
            let head = is_entry.then(|| entry_file::head_at(&path)).flatten();
            head.is_none_or(&mut *wants_more)
        };
        if !goes_on {
            return false;
        }
    }
    true
}
