//! Both tiers of one zone, and what is known of them: the memory tier here, the disk tier in `disk.rs`.
//!
//! # Invariants
//! - The locks are taken in this order: names of the folder, purge list, then those of the catalog, the index and
//!   the memory tier, which are held for one call each. Fills, each by itself, come before the purge list as well.
//! - What is in memory is in the catalog; so is each known file whose key is known.
//! - An older entry never takes the place of a newer one.

use crate::Key;
use crate::catalog::Catalog;
use crate::deleted::Sighted;
use crate::disk::DiskOptions;
use crate::entry::{Entry, EntryBody};
use crate::entry_file;
use crate::figures::{Evicted, Figures};
use crate::files;
use crate::fill::Fills;
use crate::folder::Folder;
use crate::index::Index;
use crate::lent::{Account, Share};
use crate::purge_list::{Locked, Moment, PurgeList};
use crate::setbacks::Setbacks;
use crate::sync::AtomicBool;
use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, InMemory> for ByBytes {
    fn weight(&self, key: &Key, kept: &InMemory) -> u64 {
        kept.bytes + key.as_bytes().len() as u64
    }
}

/// An entry with what it weighed when it was put into memory: a weight that changes under the map
/// would spoil its sum.
#[derive(Debug)]
struct InMemory {
    entry: Arc<Entry>,
    bytes: u64,
    /// Of body and forms, as long as it is in the tier.
    _kept: Option<Share>,
}

impl Clone for InMemory {
    /// A copy for a look-up: the one in the tier counts.
    fn clone(&self) -> Self {
        Self { entry: Arc::clone(&self.entry), bytes: self.bytes, _kept: None }
    }
}

/// Notes what is pushed out of memory: if it has no file its name goes, too. What only makes place for a newer self is not.
#[derive(Clone, Default)]
struct PushedOut(Arc<Mutex<HashSet<Key>>>, Arc<Figures>);

impl PushedOut {
    fn take(&self) -> HashSet<Key> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, key: &Key) {
        self.note(key);
        self.1.evict(Evicted::Memory);
    }

    fn note(&self, key: &Key) {
        // A copy: the key may be a slice of all that the entry's head says.
        let key = Key::new(Bytes::copy_from_slice(key.as_bytes()));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }
}

/// One call of the map's.
#[derive(Default)]
struct Call {
    /// What is put into it: it takes the place of its older self, and is out again at once if it has no room at all.
    put: Option<Key>,
    /// How often that was let go.
    own: u32,
    /// Freed after the map's lock was let go.
    freed: Vec<InMemory>,
}

impl Lifecycle<Key, InMemory> for PushedOut {
    type RequestState = Call;

    fn on_evict(&self, call: &mut Self::RequestState, key: Key, kept: InMemory) {
        call.freed.push(kept);
        match call.put.as_ref() == Some(&key) {
            true => call.own += 1,
            false => self.count(&key),
        }
    }
}

/// Open files of one zone: each weighs as much of the memory tier. Chosen far below the usual bound of a process.
const FILES_OPEN_MAX: u64 = 256;

/// Readers may hold this much beside a full memory tier; chosen: what may wait for the disk as well.
pub(crate) const BEYOND_MAX: u64 = 8 * 1024 * 1024;
/// The tier has at least an eighth of its bound.
const HALVED_MAX: u32 = 3;

/// Body size assumed when sizing the memory tier's table; chosen near a small page.
const TYPICAL_ENTRY_BYTES: u64 = 16 * 1024;

/// The tiers of one zone.
pub(crate) struct Tiers {
    pub(crate) options: DiskOptions,
    pub(crate) folder: Arc<Folder>,
    /// Its number among the zones of the folder.
    pub(crate) zone: u64,
    memory: Cache<Key, InMemory, ByBytes, DefaultHashBuilder, PushedOut>,
    memory_bytes: u64,
    /// What it may take at present: less where zones share their memory.
    bound: AtomicU64,
    /// How many times the tier's bound is halved.
    halved: AtomicU32,
    /// Bytes of bodies and forms, in the tier or in the hands of readers.
    pub(crate) held: Account,
    /// Those in the tier.
    kept: Account,
    pushed_out: PushedOut,
    /// What an entry weighs whose body is in an open file.
    open_file_bytes: u64,
    pub(crate) catalog: Catalog,
    pub(crate) fills: Arc<Fills>,
    pub(crate) setbacks: Setbacks,
    pub(crate) index: Index,
    pub(crate) figures: Arc<Figures>,
    pub(crate) is_scanned: AtomicBool,
    /// The unit in which the folder's file system gives room.
    pub(crate) block_bytes: u64,
    pub(crate) sighted: Sighted,
    /// What told the folder from others when it was looked at last; 0 for none.
    folder_identity: AtomicU64,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiers").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Keys and tags of what is stored take so much memory for each file there may be; chosen: a key of a hundred bytes with
/// some eight tags. What has longer ones takes the room of several.
const NAMES_OF_FILE: u64 = 512;
/// Until room is made they may be above their bound by this share of it; what comes then has to wait for it. Chosen: the
/// names of what comes in while one page is written.
const NAMES_ABOVE_SHARE: u64 = 4;
/// They may take this share of the memory tier in any case: what is in memory has its names there whether it has a file
/// or not.
const NAMES_SHARE: u64 = 8;

impl Tiers {
    pub(crate) fn new(
        memory_bytes: u64,
        options: DiskOptions,
        folder: Arc<Folder>,
        zone: u64,
    ) -> Self {
        let items = usize::try_from(memory_bytes / TYPICAL_ENTRY_BYTES).unwrap_or(1).max(64);
        let identity = files::identity_at(&options.path).ok().flatten();
        let block_bytes = files::block_bytes(&options.path);
        let (pushed_out, hasher) = (PushedOut::default(), DefaultHashBuilder::default());
        Self {
            options,
            zone,
            memory: Cache::with(items, memory_bytes, ByBytes, hasher, pushed_out.clone()),
            memory_bytes,
            bound: AtomicU64::new(memory_bytes),
            halved: AtomicU32::new(0),
            held: Account::default(),
            kept: Account::default(),
            figures: Arc::clone(&pushed_out.1),
            pushed_out,
            open_file_bytes: memory_bytes / FILES_OPEN_MAX,
            catalog: Catalog::default(),
            fills: Arc::new(Fills::new(Arc::clone(&folder.purge_list))),
            setbacks: Setbacks::default(),
            index: Index::new(),
            is_scanned: AtomicBool::new(false),
            block_bytes,
            sighted: Sighted::default(),
            folder_identity: AtomicU64::new(identity.unwrap_or(0)),
            folder,
        }
    }

    pub(crate) fn purge_list(&self) -> &Arc<PurgeList> {
        &self.folder.purge_list
    }

    /// What tells the folder from others, as it was looked at last.
    pub(crate) fn folder_identity(&self) -> Option<u64> {
        Some(self.folder_identity.load(Ordering::Relaxed)).filter(|identity| *identity != 0)
    }

    pub(crate) fn set_folder_identity(&self, identity: Option<u64>) {
        self.folder_identity.store(identity.unwrap_or(0), Ordering::Relaxed);
    }

    /// A hit of the memory tier; never blocks.
    pub(crate) fn hit(&self, key: &Key) -> Option<Arc<Entry>> {
        self.memory.get(key).map(|kept| kept.entry)
    }

    /// As [`Tiers::hit`], but no use.
    pub(crate) fn in_memory(&self, key: &Key) -> Option<Arc<Entry>> {
        self.memory.peek(key).map(|kept| kept.entry)
    }

    pub(crate) fn is_current(&self, key: &Key, entry: &Arc<Entry>) -> bool {
        self.in_memory(key).is_some_and(|found| Arc::ptr_eq(&found, entry))
    }

    /// Puts an entry into memory; under the lock of the purge list.
    pub(crate) fn keep(&self, key: &Key, entry: Arc<Entry>) {
        let mut call = Call { put: Some(key.clone()), ..Call::default() };
        self.memory.insert_with_lifecycle(key.clone(), self.weighed(entry), &mut call);
        if call.own == 0 || self.memory.contains_key(key) {
            return;
        }
        match call.own {
            // It never was in memory.
            1 => self.pushed_out.note(key),
            _ => self.pushed_out.count(key),
        }
    }

    fn weighed(&self, entry: Arc<Entry>) -> InMemory {
        let of_file = match entry.body {
            EntryBody::Memory(_) => 0,
            EntryBody::File(..) => self.open_file_bytes,
        };
        self.fit();
        let kept = self.kept.share(entry.held_bytes());
        InMemory { bytes: entry.memory_bytes() + of_file, entry, _kept: Some(kept) }
    }

    /// Bytes that readers have of what the tier pushed out, and of what is on its way there.
    pub(crate) fn beyond(&self) -> u64 {
        self.held.bytes().saturating_sub(self.kept.bytes())
    }

    /// Keeps the tier and what is [`Tiers::beyond`] it within the bound: what readers do not let go is room that the
    /// tier has not. By halves, so that the map's own figures, which follow, come back as they were.
    fn fit(&self) {
        let (beyond, bound) = (self.beyond(), self.memory_bound());
        let is_good = |halved: &u32| (bound >> halved) + beyond <= bound + BEYOND_MAX;
        let halved = (0..HALVED_MAX).find(is_good).unwrap_or(HALVED_MAX);
        if self.halved.swap(halved, Ordering::Relaxed) != halved {
            self.memory.set_capacity(bound >> halved);
        }
    }

    /// What the tier may take at present.
    pub(crate) fn memory_bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Gives the tier another bound; what is above it goes.
    pub(crate) fn set_memory_bound(&self, bytes: u64) {
        if self.bound.swap(bytes, Ordering::Relaxed) != bytes {
            self.memory.set_capacity(bytes >> self.halved.load(Ordering::Relaxed));
        }
    }

    /// An entry that was written takes its body from the file of its name; one that was not, and whose body is not
    /// in memory, is forgotten.
    pub(crate) fn move_to_name(&self, key: &Key, entry: &Arc<Entry>) {
        let named = entry_file::named_body(&self.path(key), &entry.head);
        let _locked = self.purge_list().locked();
        if !self.is_current(key, entry) {
            return;
        }
        match named {
            None => drop(self.memory.remove(key)),
            Some(body) => {
                let moved = entry.with(entry.head.clone(), body, entry.last_used());
                self.keep(key, Arc::new(moved));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept.bytes()
    }

    /// Entries in memory, and their bytes.
    pub(crate) fn memory_usage(&self) -> (usize, u64) {
        (self.memory.len(), self.memory.weight())
    }

    pub(crate) fn all_in_memory(&self) -> impl Iterator<Item = (Key, Arc<Entry>)> + '_ {
        self.memory.iter().map(|(key, kept)| (key, kept.entry))
    }

    /// Puts an entry that was read from its file and not purged into memory, unless that or the disk has a
    /// newer one.
    pub(crate) fn put_read(&self, locked: &Locked<'_>, key: &Key, entry: &Arc<Entry>) {
        if !self.has_newer(locked, key, entry) {
            // The file has its names in any case.
            self.catalog.add(key, &entry.head.tags);
            self.keep(key, Arc::clone(entry));
        }
    }

    /// Puts an entry that was made and not purged into memory, if its names have room. `false`: memory or the
    /// disk has a newer one.
    pub(crate) fn put_made(&self, locked: &Locked<'_>, key: &Key, entry: &Arc<Entry>) -> bool {
        let is_newest = !self.has_newer(locked, key, entry);
        if is_newest && self.add_names(key, entry) {
            self.keep(key, Arc::clone(entry));
        } else if is_newest && self.memory.remove(key).is_some() {
            self.pushed_out.note(key);
        }
        is_newest
    }

    fn has_newer(&self, locked: &Locked<'_>, key: &Key, entry: &Entry) -> bool {
        let began = entry.head.began;
        self.index.has_newer(&key.digest(), self.purge_list().own_number(began))
            || self.in_memory(key).is_some_and(|old| locked.is_older(began, old.head.began))
    }

    /// Notes key and tags of what is stored from here on; `false`: there is no room for them.
    fn add_names(&self, key: &Key, entry: &Entry) -> bool {
        let max = self.names_max();
        self.catalog.add_within(max + max / NAMES_ABOVE_SHARE, key, &entry.head.tags)
    }

    /// Whether the entry's file may get its name, as far as the memory tier and the catalog's room go. If so, the
    /// catalog has it from here on.
    pub(crate) fn may_be_named(&self, locked: &Locked<'_>, key: &Key, entry: &Entry) -> bool {
        let began = entry.head.began;
        let found = self.in_memory(key);
        if found.as_ref().is_some_and(|found| locked.is_older(began, found.head.began)) {
            return false;
        }
        if found.is_some_and(|found| locked.is_older(found.head.began, began)) {
            // It came when this one had been pushed out of memory and was not written yet.
            self.memory.remove(key);
        }
        self.add_names(key, entry)
    }

    /// Weighs an entry again.
    pub(crate) fn reweigh(&self, key: &Key, entry: &Arc<Entry>) {
        let _locked = self.purge_list().locked();
        if self.is_current(key, entry) {
            self.keep(key, Arc::clone(entry));
        }
    }

    /// Forgets the key's name if neither tier has it; under the lock of the names.
    pub(crate) fn forget_unused(&self, key: &Key) {
        let _locked = self.purge_list().locked();
        if self.memory.peek(key).is_none() && !self.index.holds(&key.digest()) {
            self.catalog.remove(key.as_bytes());
        }
    }

    /// Whether the keys and tags of what is stored take more memory than they may.
    pub(crate) fn are_names_above(&self) -> bool {
        self.catalog.bytes() > self.names_max()
    }

    /// What they may take, down to which room is made at each write.
    pub(crate) fn names_max(&self) -> u64 {
        let of_files = self.options.files_max as u64 * NAMES_OF_FILE;
        of_files.max(self.memory_bytes / NAMES_SHARE)
    }

    pub(crate) fn drop_from_memory(&self, key: &Key) {
        let _locked = self.purge_list().locked();
        self.memory.remove(key);
    }

    /// Forgets the names of what memory pushed out and the disk does not have. Blocks: that is done under the lock of
    /// the folder's names, and not where it is pushed out, on an event loop.
    pub(crate) fn forget_pushed_out(&self) {
        let pushed_out = self.pushed_out.take();
        if !pushed_out.is_empty() {
            let _names = self.folder.names();
            pushed_out.iter().for_each(|key| self.forget_unused(key));
        }
    }

    /// Makes room for names where no file is left that could go for them: by what is in memory alone, the longest unused
    /// first. Blocks.
    pub(crate) fn make_room_in_memory(&self) {
        if !self.are_names_above() {
            return;
        }
        let has_file = |key: &Key| self.index.holds(&key.digest());
        let mut alone: Vec<_> = self.all_in_memory().filter(|(key, _)| !has_file(key)).collect();
        alone.sort_by_key(|(_, entry)| entry.last_used());
        for (key, _) in alone {
            if !self.are_names_above() {
                break;
            }
            let _names = self.folder.names();
            self.drop_from_memory(&key);
            self.forget_unused(&key);
            self.figures.evict(Evicted::Names);
        }
    }

    /// Forgets what is not used any more from memory.
    pub(crate) fn remove_unused_since(&self, time: i64) {
        for (key, entry) in self.all_in_memory() {
            if entry.last_used() < time {
                self.memory.remove(&key);
            }
        }
    }

    /// Removes the key's entry from memory, if it began before `at`; whether there was one.
    pub(crate) fn remove_older(&self, locked: &Locked<'_>, key: &Key, at: Moment) -> bool {
        let is_older = |kept: &InMemory| locked.is_older(kept.entry.head.began, at);
        self.memory.remove_if(key, is_older).is_some()
    }

    /// Takes out of memory all that was purged.
    pub(crate) fn drop_purged(&self) {
        for (key, entry) in self.all_in_memory() {
            let locked = self.purge_list().locked();
            if locked.is_purged(&key, &entry.head.tags, entry.head.began) {
                self.memory.remove(&key);
            }
        }
    }
}
