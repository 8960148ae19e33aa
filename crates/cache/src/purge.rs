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
//! | the journal is written | the next process |
//!
//! The manager removes the files (`Tiers::sweep`) and then forgets the purge (`Zone::evict`). Only where the journal cannot
//! be written (a full disk) a purge removes its files itself.

use crate::entry::EntryHead;
use crate::pace::Pace;
use crate::purge_list::{Making, Moment, Purge, PurgeMode};
use crate::tiers::Tiers;
use crate::zone::Zone;
use crate::{Key, StoreError};
use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

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
        let (mut owner, mut counted) = (None, HashSet::new());
        for tiers in folder.tiers() {
            tiers.setbacks.forget_all();
            let in_zone = tiers.purge_memory(purges, mode, at);
            let keys: Vec<Key> = in_zone.keys.iter().map(|(_, key)| key.clone()).collect();
            let is_own = Arc::ptr_eq(&tiers, &self.tiers);
            // With its file a page that answers once more would come back after a restart.
            let on_disk = tiers.take_purged(&keys, at, is_own);
            let had_file = |at: usize| on_disk.as_ref().is_some_and(|had_file| had_file[at]);
            for (number, (place, key)) in in_zone.keys.into_iter().enumerate() {
                let was_stored = in_zone.in_memory[number] || had_file(number);
                counts[place] += usize::from(was_stored && counted.insert(key));
            }
            if on_disk.is_some() {
                owner = Some(tiers);
            }
        }
        self.tiers.figures.purge(purges, counts.iter().sum());
        if let Err(why) = folder.journal.append(purges, at) {
            let are_gone = owner.is_some_and(|tiers| {
                // Also those of earlier purges: they may be in no journal either.
                tiers.is_scanned() && tiers.sweep(Pace::AT_ONCE, &|| true)
            });
            if !are_gone || self.sync_names().is_err() {
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

    /// Takes the files of purged pages out of the accounts, to be removed: which of the keys had one of before the purge
    /// at `at`; `None` if the zone has no say in the folder.
    fn take_purged(&self, keys: &[Key], at: Moment, may_take: bool) -> Option<Vec<bool>> {
        let mut names = self.folder.names();
        if !(names.is_owner(self.zone) || (may_take && names.are_of(self.zone))) {
            return None;
        }
        let number = self.purge_list().own_number(at);
        let is_scanned = self.is_scanned();
        let mut take = |key: &Key| {
            let digest = key.digest();
            let is_unknown =
                !is_scanned && !self.index.holds(&digest) && !names.pending.contains_key(&digest);
            let unknown = || {
                let metadata = is_unknown.then(|| fs::metadata(self.path_of(&digest)).ok())?;
                metadata.map(|metadata| metadata.len())
            };
            let bytes = self.index.forget_older(&digest, number).or_else(unknown);
            if let Some(bytes) = bytes {
                names.remove_later(digest, bytes);
            }
            self.forget_unused(key);
            bytes.is_some()
        };
        Some(keys.iter().map(&mut take).collect())
    }
}
