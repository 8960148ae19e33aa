//! How a purge is done.
//!
//! The steps of a purge ([`Zone::purge`]), in this order, so that nothing slips between them:
//!
//! | step | what it affects |
//! | --- | --- |
//! | the purge is noted in the list (`purge_list.rs`) | what is still being made or read: it is not stored, nor joined |
//! | the catalog is searched | the keys that the purge matches |
//! | fills are cancelled, entries leave memory or become stale | requests from here on |
//! | files leave the index, their removal is pending | the same |
//! | the journal is written, or the files are removed | the next process |
//!
//! The manager removes the other files (`Tiers::sweep`) and then forgets the purge (`Zone::evict`).

use crate::entry::EntryHead;
use crate::folder::PendingRemoval;
use crate::purge_list::{Making, Moment, Purge, PurgeMode};
use crate::tiers::Tiers;
use crate::zone::Zone;
use crate::{Key, StoreError};
use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

/// Files that a purge removes before it answers; chosen: a millisecond's work.
const REMOVED_AT_ONCE: usize = 32;

impl Zone {
    /// Purges: what began before is not served when this has returned, also after a crash or a power
    /// failure. Blocks. How many stored responses each purge matched, variants counted; one that several
    /// match counts for the first.
    ///
    /// # Errors
    /// The purge could neither be written to the journal, nor all files be removed: it holds for this process, and maybe
    /// not for the next one.
    pub fn purge(&self, purges: &[Purge], mode: PurgeMode) -> Result<Vec<usize>, StoreError> {
        self.purge_but(purges, mode, None)
    }

    /// As [`Zone::purge`], where the page of `spared` is purged because of the answer that it makes: that
    /// may take the page's place, unless another purge applies to it already.
    ///
    /// # Errors
    /// As [`Zone::purge`].
    pub fn purge_but(
        &self,
        purges: &[Purge],
        mode: PurgeMode,
        spared: Option<&Making>,
    ) -> Result<Vec<usize>, StoreError> {
        let folder = &self.tiers.folder;
        let _under_way = folder.begin_purge();
        // First of all: it applies to what is stored from here on.
        let at = folder.purge_list.note(purges, mode, spared);
        let mut counts = vec![0; purges.len()];
        let mut is_known = false;
        let (mut pending, mut counted) = (Vec::new(), HashSet::new());
        for tiers in folder.tiers() {
            tiers.setbacks.forget_all();
            let in_zone = tiers.purge_memory(purges, mode, at);
            let keys: Vec<Key> = in_zone.keys.iter().map(|(_, key)| key.clone()).collect();
            let is_own = Arc::ptr_eq(&tiers, &self.tiers);
            // With its file a page that answers once more would come back after a restart.
            let on_disk = tiers.take_purged(&keys, at, is_own);
            let had_file = |at: usize| on_disk.as_ref().is_some_and(|found| found.had_file[at]);
            for (number, (place, key)) in in_zone.keys.into_iter().enumerate() {
                let was_stored = in_zone.in_memory[number] || had_file(number);
                counts[place] += usize::from(was_stored && counted.insert(key));
            }
            if let Some(found) = on_disk {
                is_known = !found.may_others_be;
                pending.push((tiers, found.pending));
            }
        }
        let files: usize = pending.iter().map(|(_, files)| files.len()).sum();
        let is_noted = match files == 0 && is_known {
            true => Ok(()),
            false => folder.journal.append(purges, at),
        };
        self.tiers.figures.purge(purges, counts.iter().sum());
        // Many files are removed later, by the manager; should it not come to that, the journal tells.
        if is_noted.is_err() || files <= REMOVED_AT_ONCE {
            let mut are_removed = is_known;
            for (tiers, files) in &pending {
                are_removed &= tiers.remove_purged(files);
            }
            if let (Err(why), false) = (is_noted, are_removed && self.sync_names().is_ok()) {
                return Err(StoreError::Purge { why: Box::new(why) });
            }
        }
        Ok(counts)
    }

    /// A request changed the page at its origin: a response to an earlier one, which is being made, is not
    /// stored. `takes_all`: also one whose lifetime the operator said. Not the `spared` one, which is the
    /// answer to that request. What is stored is to be purged after this.
    pub fn changed(&self, key: &Key, takes_all: bool, spared: Option<&Making>) {
        self.tiers.purge_list().changed(key, takes_all, spared);
        self.tiers.setbacks.forget(key);
    }

    /// Has names that files lost outlast a power failure.
    fn sync_names(&self) -> Result<(), StoreError> {
        let unsynced = self.tiers.folder.names().take_unsynced();
        let synced = unsynced.sync(&self.tiers.options.path);
        if synced.is_err() {
            self.tiers.folder.names().give_back(&unsynced);
        }
        synced
    }
}

/// What purges found in one zone.
pub(crate) struct Found {
    /// Keys, with the place of the first purge that matches each.
    keys: Vec<(usize, Key)>,
    /// Those of them that were in memory.
    in_memory: Vec<bool>,
}

/// The files of a purge's pages.
struct PurgedFiles {
    /// Whether each key had a file.
    had_file: Vec<bool>,
    pending: Vec<PendingRemoval>,
    /// Whether unknown files may exist, or come back.
    may_others_be: bool,
}

impl Tiers {
    /// Takes what purges at `at` match out of memory, and cancels its fills.
    pub(crate) fn purge_memory(&self, purges: &[Purge], mode: PurgeMode, at: Moment) -> Found {
        let mut seen = HashSet::new();
        let mut keys = Vec::new();
        for (place, purge) in purges.iter().enumerate() {
            let mut found = match purge {
                Purge::Page(page) => self.catalog.of_page(page),
                Purge::Prefix(prefix) => self.catalog.beginning(prefix),
                Purge::Tag(tag) => self.catalog.with_tag(tag),
                Purge::All => self.catalog.with_prefix(b""),
            };
            if let (Purge::Page(page), true) = (purge, found.is_empty()) {
                // Its file may not have been read yet.
                found.push(page.clone());
            }
            found.retain(|key| purges.len() == 1 || seen.insert(key.clone()));
            keys.extend(found.into_iter().map(|key| (place, key)));
        }
        // No request can claim a page meanwhile: each fill is looked up among the purges.
        let last = self.purge_list().locked().together(purges, at);
        self.fills.cancel(|key, tags, began| {
            let is_purged =
                |began| self.purge_list().locked().is_purged_by(&last, key, tags, began);
            began.is_some_and(is_purged)
        });
        let in_memory = keys.iter().map(|(_, key)| match mode {
            PurgeMode::Hard => self.remove_older(&self.purge_list().locked(), key, at),
            PurgeMode::Soft => self.make_stale(key, at),
        });
        Found { in_memory: in_memory.collect(), keys }
    }

    /// Marks a page in memory stale, so that it is served once more while it is refreshed.
    fn make_stale(&self, key: &Key, at: Moment) -> bool {
        let locked = self.purge_list().locked();
        let Some(entry) = self.in_memory(key) else { return false };
        if !locked.is_older(entry.head.began, at) {
            return false;
        }
        let EntryHead { tags, began, must_revalidate, .. } = &entry.head;
        // A hard purge that is being done beside this one may not find the copy.
        if *must_revalidate || locked.is_hard_purged(key, tags, *began) {
            return self.remove_older(&locked, key, at);
        }
        let head = EntryHead { is_purged: true, ..entry.head.clone() };
        let stale = Zone::renewed(&entry, head, entry.last_used());
        self.keep(key, Arc::new(stale));
        true
    }

    /// Takes the files of purged pages out of the accounts: which of the keys had one of before the purge at
    /// `at`, and what is to be removed; `None` if the zone has no say in the folder.
    fn take_purged(&self, keys: &[Key], at: Moment, may_take: bool) -> Option<PurgedFiles> {
        let mut names = self.folder.names();
        if !(names.is_owner(self.zone) || (may_take && names.are_of(self.zone))) {
            return None;
        }
        let number = self.purge_list().own_number(at);
        let is_scanned = self.is_scanned();
        let (mut had_file, mut pending) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            let digest = key.digest();
            let unknown = || {
                let is_unknown = !is_scanned && !self.index.holds(&digest);
                let metadata = is_unknown.then(|| fs::metadata(self.path_of(&digest)).ok())?;
                metadata.map(|metadata| metadata.len())
            };
            let bytes = self.index.forget_older(&digest, number).or_else(unknown);
            had_file.push(bytes.is_some());
            pending.extend(bytes.map(|bytes| PendingRemoval { digest, bytes }));
            self.forget_unused(key);
        }
        // Those of an earlier purge may be in no journal: it could not be written.
        let may_others_be = !is_scanned || !names.unsynced.is_empty() || !names.pending.is_empty();
        pending.iter().for_each(|pending| names.remove_later(*pending));
        Some(PurgedFiles { had_file, pending, may_others_be })
    }

    /// Removes files that were just purged; `false` if any cannot be removed.
    fn remove_purged(&self, files: &[PendingRemoval]) -> bool {
        let mut all = true;
        for pending in files {
            let mut names = self.folder.names();
            if !names.is_owner(self.zone) {
                return false;
            }
            if let Some(pending) = names.take_pending(&pending.digest) {
                all &= self.remove_one_pending(&mut names, pending);
            }
        }
        all
    }
}
