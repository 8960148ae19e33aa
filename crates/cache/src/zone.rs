//! A zone: both tiers and the fills, shared by all workers, kept over a reload.

use crate::beyond::Beyond;
use crate::budget::Need;
use crate::disk::DiskOptions;
use crate::entry::{Entry, EntryBody, EntryHead};
use crate::entry_file::body_bytes;
use crate::figures::Figures;
use crate::fill::{Claim, Waiter};
use crate::flow::Filling;
use crate::folder::Folder;
use crate::hottest::{self, Hottest};
use crate::index::Digest;
use crate::lent::{Account, Held};
use crate::purge_list::{Locked, Making};
use crate::queue::{Place, Queue, Refused};
use crate::setbacks::Setbacks;
use crate::spool::Spool;
use crate::tiers::{BEYOND_MAX, Tiers};
use crate::turns::Turns;
use crate::{Key, StoreError};
use bytes::Bytes;
use quick_cache::sync::Cache;
use std::any::Any;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::{Duration, Instant};

/// What a zone is made from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ZoneOptions {
    /// Bound of the memory tier, in bytes.
    pub memory_bytes: u64,
    /// The disk tier.
    pub disk: DiskOptions,
}

/// How full a zone is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZoneUsage {
    /// Entries in the memory tier.
    pub memory_entries: usize,
    /// Bytes in the memory tier.
    pub memory_bytes: u64,
    /// Their bound at present.
    pub memory_bound: u64,
    /// Files known to the accounting.
    pub disk_files: usize,
    /// Bytes of those files.
    pub disk_bytes: u64,
    /// Bytes that keys and tags of both tiers take.
    pub names_bytes: u64,
    /// Their bound.
    pub names_bytes_max: u64,
    /// Bytes of entries that wait for the disk.
    pub waiting_bytes: u64,
    /// Entries that were not written since the start, as too many waited.
    pub unwritten: u64,
}

/// One `keys_zone`.
pub struct Zone {
    options: ZoneOptions,
    /// By digest: a key may be as long as a request.
    uses: Cache<Digest, u64>,
    lent: Account,
    /// Bytes of bodies that arrive.
    arriving: Account,
    queue: Queue,
    turns: Turns,
    hottest: Hottest,
    pub(crate) tiers: Arc<Tiers>,
    /// What its user keeps with it.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(crate) beyond: RwLock<Option<Arc<dyn Beyond>>>,
    /// Why its folder cannot be used.
    fault: Option<StoreError>,
}

/// What the housekeeping of a zone did.
#[derive(Debug, Default)]
pub struct Housekeeping {
    /// Files that went.
    pub removed: usize,
    /// When the next one is unused for too long, as far as is known now.
    pub due: Option<i64>,
    /// What did not work; the rest was done all the same.
    pub problems: Vec<StoreError>,
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A body above this share of the memory tier stays on disk: one page must not push out eight.
const MEMORY_SHARE: u64 = 8;
/// A longer body is not kept in memory, but answered from its file: a slow reader holds no more than this of a page
/// that was pushed out. Chosen above nearly all pages; what is longer is sent as well from the system's cache of files.
pub const BODY_IN_MEMORY_MAX: u64 = 256 * 1024;
/// As long as readers hold much that memory pushed out, a longer body is answered from its file as well; chosen: about
/// what a stream or connection takes besides.
const BODY_WHILE_HELD_MAX: u64 = 16 * 1024;
/// That much may be held however small the memory tier is; chosen.
const BEYOND_MIN: u64 = 4 * 1024 * 1024;
/// Keys counted for `min_uses` at once.
const USES_MAX: usize = 16 * 1024;

impl Zone {
    /// Opens a zone; the folder is made when missing, and read only when something is looked up.
    ///
    /// # Errors
    /// The folder cannot be made, or what it says of purges cannot be read.
    pub fn open(options: ZoneOptions) -> Result<Self, StoreError> {
        let folder = Folder::open(&options.disk.path)?;
        Ok(Self::on(&folder, options))
    }

    /// The zone of a configuration that is only tested: it makes nothing on the disk.
    ///
    /// # Errors
    /// The folder could not be made, or written to.
    pub fn look(options: ZoneOptions) -> Result<Self, StoreError> {
        let folder = Folder::look(&options.disk.path)?;
        Ok(Self::on(&folder, options))
    }

    fn on(folder: &Arc<Folder>, options: ZoneOptions) -> Self {
        let tiers = folder.join(|number| {
            Tiers::new(options.memory_bytes, options.disk.clone(), Arc::clone(folder), number)
        });
        Self {
            uses: Cache::new(USES_MAX),
            lent: Account::default(),
            arriving: Account::default(),
            queue: Queue::default(),
            turns: Turns::default(),
            hottest: Hottest::default(),
            tiers,
            kept: OnceLock::new(),
            beyond: RwLock::default(),
            fault: None,
            options,
        }
    }

    /// A zone whose folder cannot be used: nothing is to be stored in it or looked for. A purge of it fails, as what is
    /// in the folder may come back with it.
    pub fn without_folder(options: ZoneOptions, fault: StoreError) -> Self {
        let folder = Folder::without_files(&options.disk.path);
        Self { fault: Some(fault), ..Self::on(&folder, options) }
    }

    /// Why nothing is stored in it, if that is so.
    pub fn fault(&self) -> Option<&StoreError> {
        self.fault.as_ref()
    }

    /// What the zone was made from; a reload keeps a zone whose options did not change.
    pub fn options(&self) -> &ZoneOptions {
        &self.options
    }

    /// Largest body the memory tier takes: a small one while readers hold much of what it pushed out.
    pub fn memory_body_max(&self) -> u64 {
        self.max_beside(self.tiers.beyond())
    }

    /// The largest body in memory while this many bytes are there beside the tier's.
    fn max_beside(&self, beside: u64) -> u64 {
        let is_much = beside > self.share().clamp(BEYOND_MIN, BEYOND_MAX);
        self.share().min(if is_much { BODY_WHILE_HELD_MAX } else { BODY_IN_MEMORY_MAX })
    }

    /// A body begins to arrive that is to be stored; `announced`: its length, if the origin said it.
    pub fn filling(&self, head: EntryHead, announced: Option<u64>) -> Filling {
        Filling::new(head, announced, &self.arriving)
    }

    /// Most bytes that are in memory of a body which arrives: few while many others do, of clients or upstreams that take
    /// their time.
    pub fn arriving_max(&self) -> u64 {
        self.memory_body_max().min(self.max_beside(self.arriving.bytes()))
    }

    /// Bytes of a page for the memory tier, counted as long as they are held.
    pub fn hold(&self, bytes: Bytes) -> Held {
        self.tiers.held.hold(bytes)
    }

    /// Most bytes of one page that are in memory for a while, or as another coding of its body.
    pub fn share(&self) -> u64 {
        self.options.memory_bytes / MEMORY_SHARE
    }

    /// Largest body that is stored at all.
    pub fn body_max(&self) -> Option<u64> {
        self.options.disk.max_size
    }

    /// Looks into the memory tier; never blocks.
    pub fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        self.tiers.hit(key)
    }

    /// A form of a body for a reader: of long ones no more than one page's share is held by all readers.
    pub fn lend(&self, form: &Held) -> Option<Bytes> {
        match form.len() as u64 > BODY_IN_MEMORY_MAX {
            true => self.lent.lend(form, self.share()),
            false => Some(form.bytes()),
        }
    }

    /// Whether the disk tier may hold the key; `false` saves a trip to a thread that may block.
    pub fn may_be_on_disk(&self, key: &Key) -> bool {
        self.tiers.may_hold(key)
    }

    /// The keys under which a page and its variants are stored; `None` while there may be others, in files that
    /// were not read yet.
    pub fn stored_of(&self, page: &Key) -> Option<Vec<Key>> {
        self.tiers.is_scanned().then(|| self.tiers.catalog.of_page(page))
    }

    /// Begins the making of a response: to be held from right before its upstream is asked until it is
    /// stored or given up.
    pub fn begin(&self) -> Making {
        let known = self.known();
        self.tiers.purge_list().begin().with_known(known)
    }

    /// As [`Zone::begin`], for one that builds on an entry found in memory. `None`: it is not there any more.
    pub fn begin_from(&self, key: &Key, entry: &Arc<Entry>) -> Option<Making> {
        let known = self.known();
        let mut locked = self.tiers.purge_list().locked();
        let EntryHead { tags, began, is_purged, .. } = &entry.head;
        let is_out = match is_purged {
            // Softly: it may be renewed.
            true => locked.is_hard_purged(key, tags, *began),
            false => locked.is_purged(key, tags, *began),
        };
        let is_good = !is_out && self.tiers.is_current(key, entry);
        is_good.then(|| self.tiers.purge_list().begin_under(&mut locked).with_known(known))
    }

    /// Looks into the disk tier and brings what it finds into memory. Blocks. The making is that of a
    /// response that builds on the entry.
    ///
    /// # Errors
    /// A file that is there but unreadable or damaged; count it as a miss.
    pub fn load(&self, key: &Key, now: i64) -> Result<Option<(Arc<Entry>, Making)>, StoreError> {
        let making = self.begin();
        let entry = self.tiers.load(key, self.memory_body_max(), now)?;
        Ok(entry.map(|entry| (entry, making)))
    }

    /// Puts an entry into the memory tier; from here on it is a hit. Where keys and tags of other pages take all their room
    /// it is one only when it was written. `false`: it was purged since its
    /// `making` began, or there is a newer one.
    pub fn insert(&self, key: &Key, entry: &Arc<Entry>, making: &Making) -> bool {
        let is_own = making.is_of(self.tiers.purge_list(), entry.head.began);
        debug_assert!(is_own, "the making of another response");
        let put = |locked: &Locked<'_>| self.tiers.put_made(locked, key, entry);
        self.tiers.purge_list().unless_purged_or_changed(key, &entry.head, put)
    }

    /// A place among those who wait for the disk, to be held until the entry is written.
    ///
    /// # Errors
    /// There is none: a disk that does not keep up gets fewer pages, and memory does not grow.
    pub fn queue(&self, entry: &Entry) -> Result<Place, Refused> {
        self.queue.enter(entry.memory_bytes())
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Whether its disk does not answer.
    pub fn is_hung(&self) -> bool {
        self.turns.is_hung()
    }

    /// Weighs an entry again after one of [`Entry::forms`] was made.
    pub fn reweigh(&self, key: &Key, entry: &Arc<Entry>) {
        self.tiers.reweigh(key, entry);
    }

    /// Writes an entry again with the forms it has now, unless another has taken its place or it was
    /// removed. Blocks.
    ///
    /// # Errors
    /// A full disk and the like; what was written before stays.
    pub fn rewrite(&self, key: &Key, entry: &Arc<Entry>, now: i64) -> Result<(), StoreError> {
        let is_wanted = |_: &Locked<'_>| self.tiers.is_current(key, entry);
        if entry.head.is_purged {
            return Ok(());
        }
        self.tell_again(key, entry);
        self.tiers.write(key, entry, now, is_wanted)?;
        if let EntryBody::File(..) = entry.body {
            self.tiers.move_to_name(key, entry);
        }
        Ok(())
    }

    /// Writes an entry to the disk tier, unless it was purged since its `making` began, or a newer one took
    /// its place. Blocks.
    ///
    /// # Errors
    /// A full disk and the like; the memory tier keeps the entry if its body is there.
    pub fn write(
        &self,
        key: &Key,
        entry: &Arc<Entry>,
        now: i64,
        making: &Making,
    ) -> Result<(), StoreError> {
        let is_own = making.is_of(self.tiers.purge_list(), entry.head.began);
        debug_assert!(is_own, "the making of another response");
        let written = self.tiers.write(key, entry, now, |_| true);
        if let EntryBody::File(..) = entry.body {
            // The file it was collected in has no name: it would take its room a second time.
            self.tiers.move_to_name(key, entry);
        }
        written
    }

    /// A temporary file for a body that outgrows memory. Blocks.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn spool(&self) -> Result<Spool, StoreError> {
        Spool::create(self.tiers.temporary_path())
    }

    /// Waits for the response with others, if it is being made, without ever becoming its maker.
    pub fn join(&self, key: &Key) -> Option<Waiter> {
        self.tiers.fills.join(key)
    }

    /// Claims the making of the response for `key`; an older claim than `age_max` is taken over, and
    /// one that a purge applies to.
    pub fn claim(&self, key: &Key, now: Instant, age_max: Duration) -> Claim {
        self.tiers.fills.claim(key, now, age_max)
    }

    /// Whether a response for `key` is being made.
    pub fn is_claimed(&self, key: &Key) -> bool {
        self.tiers.fills.is_claimed(key)
    }

    /// What went wrong lately.
    pub fn setbacks(&self) -> &Setbacks {
        &self.tiers.setbacks
    }

    /// How many requests for a key that is not stored were counted.
    pub fn uses(&self, key: &Key) -> u64 {
        self.uses.get(&key.digest()).unwrap_or(0)
    }

    /// Counts one; the count so far, this one included.
    pub fn count_use(&self, key: &Key) -> u64 {
        let digest = key.digest();
        let uses = self.uses.get(&digest).unwrap_or(0) + 1;
        self.uses.insert(digest, uses);
        uses
    }

    /// Whether an address with a secondary key is stored, or its page has fewer than `max` of them.
    pub fn has_room_for(&self, address: &Key, max: usize) -> bool {
        self.tiers.catalog.has_room_for(address, max)
    }

    /// Whether no other process uses the folder. Two that share one remove each other's files and keep pages that
    /// the other removed; what they serve is still whole.
    pub fn is_alone(&self) -> bool {
        self.tiers.folder.is_alone()
    }

    /// Reads the folder for the accounting, while it `is_wanted`, unless that was done. What an earlier call
    /// read before it ended is passed over. Before that the pages that memory had when the zone was open last are
    /// brought there. Blocks, for long in a large folder.
    pub fn scan(&self, now: i64, is_wanted: &dyn Fn() -> bool) {
        if !self.tiers.is_scanned() {
            self.warm_up(now, is_wanted);
        }
        self.tiers.scan(now, is_wanted);
    }

    fn warm_up(&self, now: i64, is_wanted: &dyn Fn() -> bool) {
        for key in hottest::read(&self.tiers) {
            let usage = self.usage();
            // The rest is for what visitors ask for meanwhile.
            if !is_wanted() || usage.memory_bytes > usage.memory_bound / 10 * 9 {
                return;
            }
            if self.peek(&key).is_none() {
                // One that cannot be read is a miss when it is asked for, and told then.
                let _ = self.tiers.load(&key, self.memory_body_max(), now);
            }
        }
    }

    /// What the memory tier takes, and may take.
    pub fn memory_need(&self) -> Need {
        let (_, used) = self.tiers.memory_usage();
        Need { used, bound: self.tiers.memory_bound(), max: self.options.memory_bytes }
    }

    /// Gives the memory tier another bound; what is above it is pushed out.
    pub fn set_memory_bound(&self, bytes: u64) {
        self.tiers.set_memory_bound(bytes);
    }

    /// Notes that a page in memory had a hit, the first one in this second.
    pub fn sighted(&self, key: Key) {
        self.tiers.sighted.note(key);
    }

    /// Drops the pages whose files others have deleted, if they had hits since the last call. Blocks.
    ///
    /// # Errors
    /// The whole folder was deleted, or cannot be looked at or made.
    pub fn drop_deleted(&self) -> Result<(), StoreError> {
        self.tiers.drop_deleted()
    }

    /// Keeps the zone within `inactive`, `max_size` and `min_free`, while it `is_wanted`, and removes the
    /// files of purged pages. Blocks.
    pub fn evict(&self, now: i64, is_wanted: &dyn Fn() -> bool) -> Housekeeping {
        let mut kept = Housekeeping::default();
        let tiers = &self.tiers;
        if !tiers.folder.names().are_of(tiers.zone) {
            return kept;
        }
        tiers.sweep(self.options.disk.manager, is_wanted);
        kept.problems.extend(self.forget_purges().err());
        // Uses in memory are not written through; carry them over before judging the files.
        for (key, entry) in tiers.all_in_memory() {
            tiers.index.touch(&key.digest(), entry.last_used());
        }
        tiers.remove_unused_since(now - self.options.disk.inactive);
        tiers.forget_pushed_out();
        self.prune();
        (kept.removed, kept.due) = tiers.trim(now, is_wanted);
        kept.problems.extend(self.hottest.write(tiers).err());
        kept.problems.extend(tiers.folder.names().take_problem());
        kept
    }

    /// Forgets the purges that apply to nothing any more: all files are known, those of purged
    /// pages are removed for good, and no making from before them is outstanding.
    fn forget_purges(&self) -> Result<(), StoreError> {
        let (tiers, folder) = (&self.tiers, &self.tiers.folder);
        if !folder.is_alone() {
            return Ok(());
        }
        let is_there = folder.journal.is_there();
        let found = folder.between_purges(|| {
            let mut names = folder.names();
            let (upto, stuck) = (folder.purge_list.now(), names.all_stuck()?);
            let is_due = tiers.is_scanned()
                && names.is_owner(tiers.zone)
                && (is_there || !stuck.is_empty() || folder.purge_list.has_old(upto, &stuck));
            let is_in_journal = is_there || !stuck.is_empty();
            is_due.then(|| (upto, stuck, is_in_journal.then(|| names.take_unsynced())))
        });
        let Some((upto, stuck, unsynced)) = found else { return Ok(()) };
        if let Some(unsynced) = unsynced {
            if let Err(problem) = unsynced.sync(&self.options.disk.path) {
                folder.names().give_back(&unsynced);
                return Err(problem);
            }
            if folder.purge_list.has_old(upto, &stuck) || stuck.is_empty() {
                folder.journal.replace(|| folder.purge_list.after(upto, &stuck))?;
            }
        }
        folder.purge_list.forget(upto, &stuck);
        Ok(())
    }

    /// Takes out of the catalog what is in neither tier: pages whose file could not be written.
    fn prune(&self) {
        /// This many are not worth the walk.
        const SLACK: usize = 1000;
        let (tiers, usage) = (&self.tiers, self.usage());
        if tiers.catalog.len() > usage.disk_files + usage.memory_entries + SLACK {
            for key in tiers.catalog.with_prefix(b"") {
                let _names = tiers.folder.names();
                tiers.forget_unused(&key);
            }
        }
    }

    /// Where the key's file lies, if there is one.
    pub fn path(&self, key: &Key) -> std::path::PathBuf {
        self.tiers.path(key)
    }

    /// Heads of up to `limit` stored responses whose key begins with `prefix`. Blocks: files are read.
    pub fn list(&self, prefix: &[u8], limit: usize) -> Vec<EntryHead> {
        let mut found: Vec<EntryHead> = Vec::new();
        for (key, entry) in self.tiers.all_in_memory() {
            if found.len() < limit && key.as_bytes().starts_with(prefix) {
                found.push(entry.head.clone());
            }
        }
        let known: HashSet<_> = found.iter().map(|head| head.key.clone()).collect();
        self.tiers.heads(|head| {
            if head.key.starts_with(prefix) && !known.contains(&head.key) && found.len() < limit {
                found.push(head);
            }
            found.len() < limit
        });
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    /// Keeps a value of its user's with the zone, if it has none yet.
    pub fn keep<T: Any + Send + Sync>(&self, value: T) {
        self.kept.get_or_init(|| Box::new(value));
    }

    /// The value that is kept, if it is of this type.
    pub fn kept<T: Any>(&self) -> Option<&T> {
        self.kept.get()?.downcast_ref()
    }

    /// Whether every file has been read since the start.
    pub fn is_scanned(&self) -> bool {
        self.tiers.is_scanned()
    }

    /// What it has counted.
    pub fn figures(&self) -> &Figures {
        &self.tiers.figures
    }

    /// How full the zone is.
    pub fn usage(&self) -> ZoneUsage {
        let (disk_files, disk_bytes) = self.tiers.index.usage();
        let (memory_entries, memory_bytes) = self.tiers.memory_usage();
        let (waiting_bytes, unwritten) = self.queue.usage();
        ZoneUsage {
            memory_entries,
            memory_bytes,
            memory_bound: self.tiers.memory_bound(),
            disk_files,
            disk_bytes,
            names_bytes: self.tiers.catalog.bytes(),
            names_bytes_max: self.tiers.names_max(),
            waiting_bytes,
            unwritten,
        }
    }

    /// A copy of `entry` with another head: after a successful revalidation.
    pub fn renewed(entry: &Entry, head: EntryHead, now: i64) -> Entry {
        entry.with(head, entry.body.clone(), now)
    }

    /// The body in memory, read from its file if it lies there. Blocks in that case.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn body(entry: &Entry) -> std::io::Result<Bytes> {
        body_bytes(&entry.body, entry.head.body_bytes)
    }

    /// Fills in length and checksum of a body in memory.
    pub fn seal(&self, head: EntryHead, body: Bytes, now: i64) -> Entry {
        let head =
            EntryHead { body_bytes: body.len() as u64, body_crc: crc32fast::hash(&body), ..head };
        Entry::new(head, EntryBody::Memory(self.hold(body)), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Taken;
    use crate::entry_file::{Content, Opened};
    use crate::figures::Evicted;
    use crate::levels::Levels;
    use crate::pace::Pace;
    use crate::purge_list::{Purge, PurgeMode};
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Of the file systems on which temporary folders lie.
    const BLOCK: u64 = 4096;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            Self(std::env::temp_dir().join(format!("yorozu-zone.{}.{number}", std::process::id())))
        }
        fn zone(&self) -> Zone {
            Zone::open(self.options()).unwrap()
        }
        fn options(&self) -> ZoneOptions {
            let disk = DiskOptions {
                path: self.0.clone(),
                levels: Levels::parse("1:2").unwrap(),
                max_size: None,
                min_free: None,
                files_max: 1000,
                inactive: 600,
                loader: Pace::default(),
                manager: Pace::default(),
            };
            ZoneOptions { memory_bytes: 1 << 20, disk }
        }
        fn journal(&self) -> PathBuf {
            self.0.join("yorozu.purges")
        }
        /// The bodies of what lies in it: of what the next process finds.
        fn bodies(&self) -> Vec<String> {
            let after_head = |file: &PathBuf| {
                let bytes = fs::read(file).unwrap();
                let head_bytes = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                String::from_utf8(bytes[16 + usize::try_from(head_bytes).unwrap()..].to_vec())
            };
            self.files().iter().map(|file| after_head(file).unwrap()).collect()
        }
        fn files(&self) -> Vec<PathBuf> {
            fn walk(folder: &std::path::Path, out: &mut Vec<PathBuf>) {
                for item in fs::read_dir(folder).unwrap().flatten() {
                    if item.path().is_dir() {
                        walk(&item.path(), out);
                    } else if !item.file_name().to_string_lossy().starts_with("yorozu.") {
                        out.push(item.path());
                    }
                }
            }
            let mut out = Vec::new();
            walk(&self.0, &mut out);
            out
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn key(text: &str) -> Key {
        Key::new(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// A page with a tag that all pages of these tests have.
    fn make(zone: &Zone, text: &str, body: &[u8]) -> (Making, Arc<Entry>) {
        let making = zone.begin();
        let head = EntryHead {
            key: key(text).as_bytes().to_vec().into(),
            status: 200,
            began: making.moment(),
            tags: vec![Bytes::from_static(b"h\0all")],
            ..EntryHead::default()
        };
        let entry = Arc::new(zone.seal(head, Bytes::copy_from_slice(body), 0));
        (making, entry)
    }

    fn put(zone: &Zone, text: &str, body: &[u8]) -> Arc<Entry> {
        let (making, entry) = make(zone, text, body);
        assert!(zone.insert(&key(text), &entry, &making));
        entry
    }

    fn write(zone: &Zone, text: &str, body: &[u8], now: i64) {
        let (making, entry) = make(zone, text, body);
        zone.write(&key(text), &entry, now, &making).unwrap();
    }

    fn store(zone: &Zone, text: &str, body: &[u8]) -> Arc<Entry> {
        let (making, entry) = make(zone, text, body);
        assert!(zone.insert(&key(text), &entry, &making));
        zone.write(&key(text), &entry, 0, &making).unwrap();
        entry
    }

    fn purge(zone: &Zone, purge: Purge, mode: PurgeMode) -> usize {
        zone.purge(&[purge], mode).unwrap()[0]
    }

    fn form(entry: &Entry, place: usize) -> Option<(u8, Bytes)> {
        entry.forms[place].made().map(|(effort, kept)| (*effort, kept.bytes()))
    }

    fn page(text: &str) -> Purge {
        Purge::Page(key(text))
    }

    fn all() -> Purge {
        Purge::Tag(Bytes::from_static(b"h\0all"))
    }

    fn load(zone: &Zone, text: &str) -> Option<Arc<Entry>> {
        zone.load(&key(text), 0).unwrap().map(|(entry, _)| entry)
    }

    fn read(zone: &Zone, text: &str) -> Option<Bytes> {
        load(zone, text).map(|entry| Zone::body(&entry).unwrap())
    }

    #[test]
    fn entries_survive_the_process_without_a_scan() {
        let folder = Folder::new();
        write(&folder.zone(), "a", b"page", 0);
        let next = folder.zone();
        assert!(next.peek(&key("a")).is_none());
        assert_eq!(read(&next, "a").as_deref(), Some(&b"page"[..]));
        assert!(next.peek(&key("a")).is_some());
        assert_eq!(read(&next, "b"), None);
    }

    #[test]
    fn a_change_at_the_origin_hides_no_file() {
        let folder = Folder::new();
        write(&folder.zone(), "a", b"read", 0);
        write(&folder.zone(), "b", b"scanned", 0);
        let zone = folder.zone();
        // Changes are noted while anything is being made.
        let (making, late) = make(&zone, "a", b"as it was");
        ["a", "b"].iter().for_each(|page| zone.changed(&key(page), true, None));
        assert_eq!(read(&zone, "a").as_deref(), Some(&b"read"[..]));
        zone.scan(0, &|| true);
        assert_eq!(zone.stored_of(&key("b")), Some(vec![key("b")]));
        assert_eq!(read(&zone, "b").as_deref(), Some(&b"scanned"[..]));
        assert!(!zone.insert(&key("a"), &late, &making), "it began before the change");
        assert_eq!(purge(&zone, page("a"), PurgeMode::Hard), 1);
    }

    #[test]
    fn what_is_pushed_out_of_memory_without_a_file_has_no_name_any_more() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        // The memory tier has room for a few hundred; too many wait for the disk.
        (0..5000).for_each(|number| drop(put(&zone, &format!("k{number}"), b"page")));
        assert!(zone.usage().memory_entries < 1500);
        store(&zone, "stored", b"page");
        let (named, usage) = (zone.tiers.catalog.len(), zone.usage());
        assert!(named <= usage.memory_entries + usage.disk_files, "{named} names of {usage:?}");
        assert_eq!(purge(&zone, page("stored"), PurgeMode::Hard), 1);
    }

    #[test]
    fn names_and_tags_are_bounded() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.files_max = 100;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        // An eighth of the memory tier is more than the room of a hundred files.
        let bound = 128 * 1024;
        let long = |number: u64| format!("{number}{}", "k".repeat(6000));
        for number in 0..90 {
            store(&zone, &long(number), b"page");
            let bytes = zone.tiers.catalog.bytes();
            assert!(bytes <= bound + 7000, "{bytes} after {number}");
        }
        let (files, named) = (zone.usage().disk_files, zone.tiers.catalog.len());
        assert!((15..25).contains(&files) && named <= files + 1, "{files} files, {named} names");
        assert!(read(&zone, &long(89)).is_some() && read(&zone, &long(0)).is_none());
        // One page with very many tags takes the room of many, and no more pages go than it needs.
        let making = zone.begin();
        let tags = (0..100).map(|number| format!("h\0tag-{number}").into()).collect();
        let (key, began) = (key("tagged"), making.moment());
        let head =
            EntryHead { key: key.as_bytes().to_vec().into(), began, tags, ..EntryHead::default() };
        let entry = Arc::new(zone.seal(head, Bytes::from_static(b"page"), 0));
        assert!(zone.insert(&key, &entry, &making));
        zone.write(&key, &entry, 0, &making).unwrap();
        assert!(zone.tiers.catalog.bytes() <= bound + 7000);
        assert!(read(&zone, "tagged").is_some() && zone.usage().disk_files > 1);
    }

    fn tagged(zone: &Zone, number: usize, tags: usize) -> (Key, Making, Arc<Entry>) {
        let making = zone.begin();
        let key = key(&format!("k{number}"));
        let head = EntryHead {
            key: key.as_bytes().to_vec().into(),
            began: making.moment(),
            tags: (0..tags).map(|tag| format!("h\0tag-{number}-{tag}").into()).collect(),
            ..EntryHead::default()
        };
        // Used in the order of their numbers.
        let used = i64::try_from(number).unwrap();
        let entry = Arc::new(zone.seal(head, Bytes::from_static(b"page"), used));
        (key, making, entry)
    }

    #[test]
    fn names_and_tags_are_bounded_though_the_disk_does_not_keep_up() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.files_max = 100;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        let (bound, of_a_page) = (128 * 1024, 100 * 470 + 100);
        for number in 0..200 {
            let (key, making, entry) = tagged(&zone, number, 100);
            assert!(zone.insert(&key, &entry, &making));
            let bytes = zone.usage().names_bytes;
            assert!(bytes <= bound / 4 * 5 + of_a_page, "{bytes} after {number}");
        }
        assert_eq!((zone.usage().names_bytes_max, zone.usage().disk_files), (bound, 0));
        // What is written gets its room from what is in memory alone, the longest unused of it.
        let (key, making, entry) = tagged(&zone, 200, 100);
        assert!(zone.insert(&key, &entry, &making));
        assert!(zone.peek(&key).is_none());
        zone.write(&key, &entry, 0, &making).unwrap();
        assert!(zone.usage().names_bytes <= bound + of_a_page);
        assert!(load(&zone, "k200").is_some() && zone.peek(&tagged(&zone, 0, 0).0).is_none());
        // A page that is made again keeps its names, a new one has room.
        for number in [200, 201] {
            let (key, making, entry) = tagged(&zone, number, 10);
            assert!(zone.insert(&key, &entry, &making));
            assert!(zone.tiers.is_current(&key, &entry), "{number}");
        }
    }

    #[test]
    fn a_page_whose_new_tags_have_no_room_is_not_answered_by_its_old_copy() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.files_max = 100;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        put(&zone, "k0", b"old");
        (1..10).for_each(|number| {
            let (key, making, entry) = tagged(&zone, number, 100);
            zone.insert(&key, &entry, &making);
        });
        let (key, making, entry) = tagged(&zone, 0, 3);
        assert!(zone.insert(&key, &entry, &making));
        assert!(zone.peek(&key).is_none());
        // Its own names are free for it.
        zone.write(&key, &entry, 0, &making).unwrap();
        assert!(load(&zone, "k0").is_some_and(|found| found.head.tags.len() == 3));
        assert_eq!(purge(&zone, Purge::Tag("h\0tag-0-2".into()), PurgeMode::Hard), 1);
    }

    #[test]
    fn a_damaged_file_is_a_miss_and_goes() {
        let folder = Folder::new();
        let zone = folder.zone();
        write(&zone, "a", b"page", 0);
        let [file] = &folder.files()[..] else { panic!("one file") };
        let whole = fs::read(file).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x01;
            fs::write(file, &damaged).unwrap();
            // The digit of the format's version: no damage, and no page of ours.
            let is_other_version = at == 7;
            assert_eq!(zone.load(&key("a"), 0).is_ok(), is_other_version, "byte {at}");
            assert!(!file.exists());
            fs::write(file, &whole[..at]).unwrap();
            assert!(zone.load(&key("a"), 0).is_err(), "cut at {at}");
        }
        fs::write(file, &whole).unwrap();
        assert!(read(&zone, "a").is_some());
    }

    #[test]
    fn forms_are_found_again_and_a_damaged_one_is_refused() {
        let folder = Folder::new();
        let zone = folder.zone();
        let page = store(&zone, "a", b"page");
        page.forms[2].keep(5, zone.hold(Bytes::from_static(b"zipped")));
        assert!(page.forms[0].claim() && !page.forms[0].claim() && !page.forms[2].claim());
        zone.rewrite(&key("a"), &page, 0).unwrap();
        drop(zone);
        let zone = folder.zone();
        let found = load(&zone, "a").unwrap();
        assert_eq!(form(&found, 2), Some((5, Bytes::from_static(b"zipped"))));
        assert!(found.forms[0].made().is_none());
        let [file] = &folder.files()[..] else { panic!("one file") };
        let whole = fs::read(file).unwrap();
        assert_eq!(zone.usage().disk_bytes, zone.tiers.on_disk(whole.len() as u64));
        let body_end = whole.len() - 6 - 18;
        for at in body_end..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(file, &damaged).unwrap();
            assert!(zone.load(&key("a"), 0).is_err(), "byte {at}");
            if at > body_end {
                fs::write(file, &whole[..at]).unwrap();
                assert!(zone.load(&key("a"), 0).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn what_is_written_again_brings_nothing_back() {
        let folder = Folder::new();
        let zone = folder.zone();
        let old = store(&zone, "a", b"old");
        let new = store(&zone, "a", b"new");
        zone.rewrite(&key("a"), &old, 0).unwrap();
        assert_eq!(folder.bodies(), ["new"]);
        purge(&zone, page("a"), PurgeMode::Hard);
        zone.rewrite(&key("a"), &new, 0).unwrap();
        zone.scan(0, &|| true);
        zone.evict(0, &|| true);
        assert_eq!(folder.files().len(), 0);
    }

    #[test]
    fn files_of_many_purged_pages_go_later_and_never_come_back() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        (0..100).for_each(|number| drop(store(&zone, &format!("k{number}"), b"old")));
        assert_eq!(purge(&zone, all(), PurgeMode::Hard), 100);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (0, 100));
        assert!(load(&zone, "k7").is_none());
        // One of them is made again before its old file is removed.
        store(&zone, "k8", b"new");
        assert!(folder.journal().exists());
        drop(zone);
        // The process ends before the files are removed.
        let zone = folder.zone();
        assert!(load(&zone, "k9").is_none());
        assert_eq!(read(&zone, "k8").as_deref(), Some(&b"new"[..]));
        zone.scan(0, &|| true);
        zone.evict(0, &|| true);
        assert_eq!(folder.files().len(), 1);
        // And once more, with the manager.
        (0..100).for_each(|number| drop(store(&zone, &format!("k{number}"), b"old")));
        purge(&zone, all(), PurgeMode::Hard);
        store(&zone, "k8", b"new");
        assert!(zone.evict(0, &|| true).problems.is_empty());
        assert_eq!((zone.usage().disk_files, folder.files().len()), (1, 1));
        assert!(!folder.journal().exists() && zone.tiers.purge_list().is_empty());
        assert_eq!(read(&zone, "k8").as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_mark_is_kept_for_a_maker_of_before_and_no_longer() {
        let (folder, purges) =
            (Folder::new(), [page("a"), all(), Purge::Prefix("a".into()), Purge::All]);
        let zone = folder.zone();
        zone.scan(0, &|| true);
        for one in purges {
            let (making, entry) = make(&zone, "a", b"old");
            purge(&zone, one.clone(), PurgeMode::Hard);
            zone.evict(0, &|| true);
            assert!(!zone.tiers.purge_list().is_empty(), "{one:?}");
            assert!(!zone.insert(&key("a"), &entry, &making), "{one:?}");
            zone.write(&key("a"), &entry, 0, &making).unwrap();
            assert_eq!(folder.files().len(), 0, "{one:?}");
            drop(making);
            zone.evict(0, &|| true);
            assert!(zone.tiers.purge_list().is_empty(), "{one:?}");
            store(&zone, "a", b"new");
            assert_eq!(read(&zone, "a").as_deref(), Some(&b"new"[..]));
            purge(&zone, page("a"), PurgeMode::Hard);
        }
    }

    #[test]
    fn an_older_maker_never_replaces_a_newer_page() {
        let folder = Folder::new();
        let zone = folder.zone();
        let (making, old) = make(&zone, "a", b"old");
        store(&zone, "a", b"new");
        assert!(!zone.insert(&key("a"), &old, &making));
        zone.write(&key("a"), &old, 0, &making).unwrap();
        assert_eq!(folder.bodies(), ["new"]);
        // Nor when the newer one is on the disk alone.
        zone.evict(0, &|| true);
        zone.tiers.remove_unused_since(i64::MAX);
        assert!(zone.peek(&key("a")).is_none());
        assert!(!zone.insert(&key("a"), &old, &making));
        zone.write(&key("a"), &old, 0, &making).unwrap();
        assert_eq!(folder.bodies(), ["new"]);
    }

    #[test]
    fn what_builds_on_a_purged_page_is_not_stored() {
        let folder = Folder::new();
        let zone = folder.zone();
        for mode in [PurgeMode::Hard, PurgeMode::Soft] {
            let base = store(&zone, "a", b"old");
            let making = zone.begin_from(&key("a"), &base).unwrap();
            let head = EntryHead { began: making.moment(), ..base.head.clone() };
            let renewed = Arc::new(Zone::renewed(&base, head, 0));
            purge(&zone, all(), mode);
            assert!(!zone.insert(&key("a"), &renewed, &making), "{mode:?}");
            assert!(zone.begin_from(&key("a"), &base).is_none());
            // What answers once more may be renewed.
            let stale = zone.peek(&key("a"));
            assert_eq!(stale.is_some(), mode == PurgeMode::Soft);
            assert!(stale.is_none_or(|stale| zone.begin_from(&key("a"), &stale).is_some()));
        }
    }

    #[test]
    fn the_answer_that_purges_its_page_may_take_its_place() {
        let folder = Folder::new();
        let zone = folder.zone();
        for (is_purged_before, purged) in [(false, page("a")), (true, page("a")), (true, all())] {
            store(&zone, "a", b"old");
            let (other, late) = make(&zone, "a", b"late");
            let (making, answer) = make(&zone, "a", b"answer");
            if is_purged_before {
                purge(&zone, purged, PurgeMode::Hard);
            }
            let counts = zone.purge_but(&[page("a")], PurgeMode::Hard, Some(&making)).unwrap();
            assert_eq!(counts, [usize::from(!is_purged_before)]);
            assert!(!zone.insert(&key("a"), &late, &other));
            assert_eq!(zone.insert(&key("a"), &answer, &making), !is_purged_before);
        }
    }

    #[test]
    fn what_memory_had_is_there_first_after_a_start() {
        let folder = Folder::new();
        let zone = folder.zone();
        for name in ["a", "b", "c"] {
            store(&zone, name, b"page");
        }
        zone.evict(0, &|| true);
        assert_eq!(purge(&zone, page("b"), PurgeMode::Hard), 1);
        drop(zone);
        let zone = Zone::open(folder.options()).unwrap();
        assert!(zone.peek(&key("a")).is_none());
        zone.scan(0, &|| true);
        let there = ["a", "b", "c"].map(|name| zone.peek(&key(name)).is_some());
        assert_eq!(there, [true, false, true], "a purged page is a hint to nothing");
        drop(zone);
        std::fs::write(folder.options().disk.path.join("yorozu.hottest"), [7; 70]).unwrap();
        let zone = Zone::open(folder.options()).unwrap();
        zone.scan(0, &|| true);
        assert!(zone.peek(&key("a")).is_none() && load(&zone, "a").is_some());
    }

    #[test]
    fn zones_on_one_folder_share_purges_and_the_newest_has_the_files() {
        let folder = Folder::new();
        let old = folder.zone();
        store(&old, "a", b"page");
        store(&old, "b", b"page");
        let (making, late) = make(&old, "c", b"late");
        let mut options = folder.options();
        options.disk.inactive = 60;
        let new = Zone::open(options).unwrap();
        // A zone that was opened in vain changes nothing.
        store(&old, "c", b"page");
        assert_eq!(folder.files().len(), 3);
        new.scan(0, &|| true);
        assert_eq!(new.usage().disk_files, 3);
        store(&old, "d", b"page");
        assert_eq!(folder.files().len(), 3, "the old one writes no more");
        assert_eq!(purge(&new, page("a"), PurgeMode::Hard), 1);
        assert!(old.peek(&key("a")).is_none() && load(&old, "a").is_none());
        assert_eq!(purge(&old, page("b"), PurgeMode::Hard), 1);
        new.evict(0, &|| true);
        assert_eq!((new.usage().disk_files, folder.files().len()), (1, 1));
        purge(&new, page("c"), PurgeMode::Hard);
        assert!(!old.insert(&key("c"), &late, &making));
        drop(old);
        assert!(new.is_alone());
    }

    #[test]
    fn a_round_says_when_the_next_page_is_unused_for_too_long() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.inactive = 60;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        assert_eq!(zone.evict(0, &|| true).due, None);
        write(&zone, "a", b"page", 3);
        write(&zone, "b", b"page", 8);
        let round = |now| {
            let kept = zone.evict(now, &|| true);
            (kept.removed, kept.due)
        };
        assert_eq!(round(10), (0, Some(64)));
        assert_eq!(round(63), (0, Some(64)));
        assert_eq!(round(64), (1, Some(69)));
        assert_eq!(round(69), (1, None));
    }

    #[test]
    fn purges_before_and_after_a_restart_are_told_apart_without_a_clock() {
        let folder = Folder::new();
        let zone = folder.zone();
        ["a", "b", "c"].iter().for_each(|text| drop(store(&zone, text, b"first")));
        // Not scanned: the purge is in the journal.
        purge(&zone, page("a"), PurgeMode::Hard);
        store(&zone, "a", b"second");
        drop(zone);
        let zone = folder.zone();
        assert_eq!(read(&zone, "a").as_deref(), Some(&b"second"[..]));
        zone.purge(&[page("a"), page("b")], PurgeMode::Hard).unwrap();
        store(&zone, "b", b"third");
        drop(zone);
        let zone = folder.zone();
        let bodies = ["a", "b", "c"].map(|text| read(&zone, text));
        assert_eq!(bodies, [None, Some("third".into()), Some("first".into())]);
        zone.scan(0, &|| true);
        zone.evict(0, &|| true);
        assert!(!folder.journal().exists());
        assert_eq!(purge(&zone, Purge::All, PurgeMode::Hard), 2);
    }

    #[test]
    fn a_torn_line_costs_no_other_one() {
        let folder = Folder::new();
        let zone = folder.zone();
        ["a", "b", "c"].iter().for_each(|text| drop(store(&zone, text, b"page")));
        drop(zone);
        let zone = folder.zone();
        // Without the files being removed, as if the process ended right behind the write.
        let append = |purge| {
            zone.tiers
                .folder
                .journal
                .append(&[purge], zone.tiers.purge_list().note(&[], PurgeMode::Hard, None))
        };
        append(page("a")).unwrap();
        let mut torn = fs::read(folder.journal()).unwrap();
        torn.truncate(torn.len() - 3);
        torn.extend(b"\xff\0\xff");
        fs::write(folder.journal(), &torn).unwrap();
        append(page("b")).unwrap();
        drop(zone);
        let zone = folder.zone();
        assert_eq!(["a", "b", "c"].map(|text| read(&zone, text).is_some()), [true, false, true]);
    }

    #[test]
    fn files_of_other_versions_are_silently_gone() {
        let folder = Folder::new();
        ["a", "b"].iter().for_each(|text| write(&folder.zone(), text, b"page", 0));
        for file in folder.files() {
            let mut bytes = fs::read(&file).unwrap();
            bytes[7] = b'4';
            fs::write(&file, bytes).unwrap();
        }
        fs::write(folder.journal(), "99999999999999 all .\n").unwrap();
        let zone = folder.zone();
        assert!(load(&zone, "a").is_none());
        zone.scan(0, &|| true);
        zone.evict(0, &|| true);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (0, 0));
        store(&zone, "a", b"page");
        assert!(load(&zone, "a").is_some(), "a line of an old journal says nothing");
    }

    #[test]
    fn a_file_that_vanishes_under_the_scan_is_not_known() {
        let folder = Folder::new();
        let zone = folder.zone();
        write(&zone, "a", b"page", 0);
        let (path, digest) = (zone.path(&key("a")), key("a").digest());
        // It is pending removal when the scan comes to it, and removed when the scan opens it.
        let hidden = path.with_extension("hidden");
        fs::rename(&path, &hidden).unwrap();
        zone.tiers.index.forget(&digest);
        assert!(zone.tiers.scan_file(&path, digest, 4, 0));
        assert!(!zone.tiers.index.holds(&digest));
        fs::rename(&hidden, &path).unwrap();
        crate::files::faults::plan(0, crate::files::faults::Fault::Once(nix::libc::EMFILE));
        assert!(!zone.tiers.scan_file(&path, digest, 4, 0), "it is to be done once more");
        crate::files::faults::clear();
        assert!(zone.tiers.scan_file(&path, digest, 4, 0) && zone.tiers.index.holds(&digest));
    }

    #[test]
    fn a_slow_reader_brings_no_purged_page_back() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        write(&zone, "a", b"old", 0);
        let path = zone.path(&key("a"));
        let opened = Opened::new(&path).unwrap();
        let Ok(Content::Entry(read)) =
            opened.read(&path, &key("a"), (1000, &Account::default()), 0)
        else {
            panic!()
        };
        purge(&zone, page("a"), PurgeMode::Hard);
        zone.evict(0, &|| true);
        assert!(zone.tiers.purge_list().is_empty());
        let taken = zone.tiers.take_in(&key("a"), &path, &opened, &Arc::new(*read), 0);
        assert!(matches!(taken, Taken::Replaced) && zone.peek(&key("a")).is_none());
    }

    #[test]
    fn a_soft_purge_saves_nothing_from_a_hard_one_beside_it() {
        let folder = Folder::new();
        let zone = folder.zone();
        store(&zone, "a", b"old");
        let (tiers, purge_list) = (&zone.tiers, zone.tiers.purge_list());
        let hard = purge_list.note(&[page("a")], PurgeMode::Hard, None);
        let soft = purge_list.note(&[page("a")], PurgeMode::Soft, None);
        tiers.purge_memory(&[page("a")], PurgeMode::Soft, soft);
        assert!(zone.peek(&key("a")).is_none());
        tiers.purge_memory(&[page("a")], PurgeMode::Hard, hard);
        // The other way round.
        store(&zone, "a", b"old");
        let soft = purge_list.note(&[page("a")], PurgeMode::Soft, None);
        tiers.purge_memory(&[page("a")], PurgeMode::Soft, soft);
        assert!(zone.peek(&key("a")).is_some());
        let hard = purge_list.note(&[page("a")], PurgeMode::Hard, None);
        tiers.purge_memory(&[page("a")], PurgeMode::Hard, hard);
        assert!(zone.peek(&key("a")).is_none());
    }

    #[test]
    fn a_file_that_stays_ends_nothing() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.max_size = Some(8 * BLOCK);
        options.disk.inactive = 5;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        let texts: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
        texts[..6].iter().for_each(|text| drop(store(&zone, text, b"page")));
        // A folder with something in it in the file's place cannot be unlinked.
        let stuck = zone.path(&key("k0"));
        fs::remove_file(&stuck).unwrap();
        fs::create_dir_all(stuck.join("in")).unwrap();
        assert_eq!(purge(&zone, page("k0"), PurgeMode::Hard), 1);
        let reported = zone.evict(1, &|| true).problems;
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(zone.evict(2, &|| true).problems.is_empty(), "it is said once");
        // Neither a bound nor `inactive` waits for it, and its purge alone is kept.
        purge(&zone, page("k1"), PurgeMode::Hard);
        texts.iter().skip(1).for_each(|text| write(&zone, text, &[b'x'; 100], 3));
        assert!(zone.usage().disk_bytes <= 8 * BLOCK && zone.usage().disk_files > 3);
        zone.evict(100, &|| true);
        assert_eq!(zone.usage().disk_files, 0);
        let journal = fs::read_to_string(folder.journal()).unwrap();
        assert_eq!(journal.matches("purge ").count(), 0, "{journal}");
        assert_eq!(journal.matches("file ").count(), 1, "{journal}");
        // It can be removed at last.
        fs::remove_dir_all(&stuck).unwrap();
        zone.evict(101, &|| true);
        assert!(!folder.journal().exists() && zone.tiers.purge_list().is_empty());
    }

    #[test]
    fn a_purge_that_is_nowhere_on_the_disk_is_none_the_next_time_either() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        store(&zone, "a", b"page");
        // Neither can be written or unlinked: a folder is in their place.
        let file = zone.path(&key("a"));
        fs::remove_file(&file).unwrap();
        for path in [&file, &folder.journal()] {
            fs::create_dir_all(path.join("in")).unwrap();
        }
        for round in 1..3 {
            let problem = zone.purge(&[page("a")], PurgeMode::Hard).unwrap_err().to_string();
            assert!(problem.starts_with("purged pages may be back"), "{problem}");
            assert!(!zone.evict(round, &|| true).problems.is_empty());
        }
        fs::remove_dir_all(folder.journal()).unwrap();
        fs::remove_dir_all(&file).unwrap();
        assert_eq!(purge(&zone, page("a"), PurgeMode::Hard), 0);
        zone.evict(9, &|| true);
        assert!(!folder.journal().exists() && zone.tiers.purge_list().is_empty());
    }

    #[test]
    fn a_large_body_stays_in_its_file_and_is_verified() {
        let folder = Folder::new();
        let zone = folder.zone();
        let large = vec![b'x'; usize::try_from(zone.memory_body_max()).unwrap() + 1];
        let mut spool = zone.spool().unwrap();
        spool.write(&large).unwrap();
        let body = spool.into_body();
        let making = zone.begin();
        let head = EntryHead {
            key: Bytes::from_static(b"a"),
            began: making.moment(),
            body_bytes: large.len() as u64,
            body_crc: crc32fast::hash(&large),
            ..EntryHead::default()
        };
        let entry = Arc::new(Entry::new(head, body, 0));
        assert!(zone.insert(&key("a"), &entry, &making));
        zone.write(&key("a"), &entry, 0, &making).unwrap();
        assert_eq!(folder.files().len(), 1, "no temporary file is left");
        // The file of its name is the one it is read from: the other one has no name and no other holder.
        let moved = zone.peek(&key("a")).unwrap();
        let EntryBody::File(file, _) = &moved.body else { panic!("it is in memory") };
        let links =
            |file: &fs::File| std::os::unix::fs::MetadataExt::nlink(&file.metadata().unwrap());
        assert_eq!((links(file), Zone::body(&moved).unwrap()), (1, large.clone().into()));
        // With another coding.
        assert!(moved.forms[1].claim());
        moved.forms[1].keep(4, zone.hold(Bytes::from_static(b"coded")));
        zone.rewrite(&key("a"), &moved, 0).unwrap();
        let kept = (4, Bytes::from_static(b"coded"));
        for found in [zone.peek(&key("a")).unwrap(), load(&folder.zone(), "a").unwrap()] {
            let EntryBody::File(file, _) = &found.body else { panic!("it is in memory") };
            assert_eq!((links(file), form(&found, 1)), (1, Some(kept.clone())));
            assert_eq!(Zone::body(&found).unwrap(), large);
        }
    }

    #[test]
    fn what_can_be_written_nowhere_is_forgotten_with_its_temporary_file() {
        let folder = Folder::new();
        let zone = folder.zone();
        let mut spool = zone.spool().unwrap();
        spool.write(b"large").unwrap();
        let making = zone.begin();
        let head = EntryHead {
            key: Bytes::from_static(b"a"),
            began: making.moment(),
            body_bytes: 5,
            ..EntryHead::default()
        };
        let entry = Arc::new(Entry::new(head, spool.into_body(), 0));
        assert!(zone.insert(&key("a"), &entry, &making));
        crate::files::faults::plan(1, crate::files::faults::Fault::Short);
        assert!(zone.write(&key("a"), &entry, 0, &making).is_err());
        assert!(zone.peek(&key("a")).is_none() && folder.files().is_empty());
    }

    #[test]
    fn what_readers_do_not_let_go_is_room_that_memory_has_not() {
        let folder = Folder::new();
        let zone = Zone::open(ZoneOptions { memory_bytes: 32 << 20, ..folder.options() }).unwrap();
        let body = vec![b'x'; 200_000];
        let text = |number: usize| format!("k{number}");
        let mut readers = Vec::new();
        for number in 0..400 {
            let entry = store(&zone, &text(number), &body[..]);
            let EntryBody::Memory(held) = &entry.body else { panic!("it is in memory") };
            readers.push(held.bytes());
        }
        assert_eq!(zone.tiers.held.bytes(), 400 * 200_000, "all of it is held");
        assert!(zone.usage().memory_bytes <= 4 << 20, "{:?}", zone.usage());
        assert_eq!(zone.memory_body_max(), BODY_WHILE_HELD_MAX);
        let gone = (0..400).map(text).find(|text| zone.peek(&key(text)).is_none()).unwrap();
        assert!(matches!(load(&zone, &gone).unwrap().body, EntryBody::File(..)));
        drop(readers);
        assert_eq!(zone.memory_body_max(), BODY_IN_MEMORY_MAX);
        (0..400).for_each(|number| drop(store(&zone, &text(number), &body[..])));
        assert!(zone.usage().memory_bytes > 30 << 20, "{:?}", zone.usage());
        assert_eq!(zone.tiers.held.bytes(), zone.tiers.kept_bytes());
    }

    #[test]
    fn open_files_are_bounded_whatever_fits_memory() {
        let folder = Folder::new();
        let zone = folder.zone();
        let file = Arc::new(fs::File::open("/dev/null").unwrap());
        for number in 0..2000 {
            let making = zone.begin();
            let text = Bytes::from(format!("k{number}"));
            let head =
                EntryHead { key: text.clone(), began: making.moment(), ..EntryHead::default() };
            let entry = Arc::new(Entry::new(head, EntryBody::File(Arc::clone(&file), 0), 0));
            zone.insert(&Key::new(text), &entry, &making);
        }
        let open = Arc::strong_count(&file) - 1;
        assert!(open <= 256, "{open}");
    }

    #[test]
    fn memory_is_counted_though_entries_grow() {
        let folder = Folder::new();
        let zone = folder.zone();
        let first = put(&zone, "a", b"page");
        let alone = zone.usage().memory_bytes;
        first.forms[0].keep(1, zone.hold(Bytes::from_static(&[0; 100])));
        zone.reweigh(&key("a"), &first);
        assert_eq!(zone.usage().memory_bytes, alone + 100);
        let second = put(&zone, "a", b"page");
        second.forms[0].keep(1, zone.hold(Bytes::from_static(&[0; 100])));
        purge(&zone, page("a"), PurgeMode::Hard);
        assert_eq!(zone.usage().memory_bytes, 0);
    }

    #[test]
    fn the_folder_may_vanish_under_us() {
        let folder = Folder::new();
        let zone = folder.zone();
        fs::remove_dir_all(&folder.0).unwrap();
        write(&zone, "a", b"page", 0);
        assert!(read(&zone, "a").is_some());
    }

    #[test]
    fn unused_and_surplus_files_go_oldest_first() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.max_size = Some(2 * BLOCK);
        let zone = Zone::open(options).unwrap();
        for (time, text) in ["a", "b", "c", "d"].iter().enumerate() {
            let now = i64::try_from(time).unwrap();
            write(&zone, text, &[b'x'; 100], now);
            assert!(zone.usage().disk_bytes <= 2 * BLOCK, "never above its size");
        }
        assert!(zone.usage().disk_files >= 2);
        assert!(read(&zone, "a").is_none() && read(&zone, "d").is_some());
        assert!(zone.evict(10_000, &|| true).problems.is_empty());
        assert_eq!((zone.usage().disk_files, folder.files().len()), (0, 0));
        assert!(zone.peek(&key("d")).is_none());
    }

    #[test]
    fn evictions_are_counted_by_their_cause_and_purges_by_their_kind() {
        let folder = Folder::new();
        let mut options = folder.options();
        (options.disk.max_size, options.disk.files_max) = (Some(3 * BLOCK), 3);
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        let evicted = |why: Evicted| zone.figures().evicted()[why as usize];
        (0..4).for_each(|time| write(&zone, &format!("k{time}"), b"x", time));
        assert_eq!((evicted(Evicted::Keys), evicted(Evicted::MaxSize)), (1, 0));
        write(&zone, "large", &[b'x'; 9000], 5);
        assert!(evicted(Evicted::MaxSize) > 0);
        zone.evict(10_000, &|| true);
        assert_eq!((evicted(Evicted::Inactive), zone.usage().disk_files), (1, 0));
        store(&zone, "a", b"page");
        purge(&zone, page("a"), PurgeMode::Hard);
        purge(&zone, all(), PurgeMode::Soft);
        assert_eq!((zone.figures().purges(), zone.figures().purged()), ([1, 0, 1, 0], 1));
        (0..200).for_each(|number| drop(put(&zone, &format!("{number}"), &[b'x'; 16 * 1024])));
        assert!(evicted(Evicted::Memory) > 100);
    }

    #[test]
    fn a_page_that_takes_the_place_of_its_older_self_pushes_nothing_out() {
        let folder = Folder::new();
        let zone = folder.zone();
        let evicted = || zone.figures().evicted()[Evicted::Memory as usize];
        (0..20).for_each(|_| drop(store(&zone, "a", b"page")));
        let last = store(&zone, "a", &[b'x'; 1000]);
        last.forms[0].keep(1, zone.hold(Bytes::from_static(&[0; 100])));
        zone.reweigh(&key("a"), &last);
        purge(&zone, page("a"), PurgeMode::Soft);
        assert_eq!((zone.usage().memory_entries, evicted()), (1, 0));
        // What does not fit at all leaves no room for its older self, and has not been in memory.
        (0..3).for_each(|_| drop(put(&zone, "a", &[b'x'; 1 << 20])));
        assert_eq!((zone.usage().memory_entries, evicted()), (0, 1));
    }

    #[test]
    fn a_scan_accounts_and_clears_what_a_killed_process_left() {
        let folder = Folder::new();
        write(&folder.zone(), "a", b"page", 0);
        fs::write(folder.0.join("tmp.1.7"), b"torn").unwrap();
        let zone = folder.zone();
        assert!(zone.may_be_on_disk(&key("b")));
        zone.scan(5, &|| true);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (1, 1));
        assert!(zone.may_be_on_disk(&key("a")) && !zone.may_be_on_disk(&key("b")));
    }

    #[test]
    fn pages_whose_files_others_delete_are_gone_with_the_next_hit() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        ["a", "b"].iter().for_each(|text| drop(store(&zone, text, b"page")));
        put(&zone, "waits", b"page");
        let look = || {
            ["a", "b", "waits"].iter().for_each(|text| zone.sighted(key(text)));
            zone.drop_deleted()
        };
        look().unwrap();
        assert_eq!(zone.usage().memory_entries, 3);
        fs::remove_file(zone.path(&key("a"))).unwrap();
        look().unwrap();
        let is_hit = |text| zone.peek(&key(text)).is_some();
        assert_eq!((is_hit("a"), is_hit("b"), is_hit("waits")), (false, true, true));
        assert_eq!((zone.usage().disk_files, zone.tiers.catalog.len()), (1, 2));
        // The whole folder, while something else is stored in it.
        fs::remove_dir_all(&folder.0).unwrap();
        store(&zone, "c", b"page");
        assert!(matches!(look(), Err(StoreError::Vanished { .. })));
        assert_eq!((is_hit("b"), is_hit("c"), is_hit("waits")), (false, true, true));
        look().unwrap();
        zone.scan(0, &|| true);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (1, 1));
        assert!(zone.is_alone());
        // Again, and nothing else makes it.
        fs::remove_dir_all(&folder.0).unwrap();
        assert!(matches!(look(), Err(StoreError::Vanished { .. })));
        assert_eq!((is_hit("c"), zone.usage().disk_files), (false, 0));
        assert_eq!(purge(&zone, all(), PurgeMode::Hard), 1);
        assert!(folder.0.is_dir());
    }

    #[test]
    fn a_scan_goes_on_where_it_was_interrupted() {
        let folder = Folder::new();
        let mut options = folder.options();
        // One file a step.
        options.disk.loader = Pace { files: 1, sleep: Duration::ZERO, threshold: Duration::MAX };
        let zone = Zone::open(options.clone()).unwrap();
        (0..20).for_each(|number| write(&zone, &format!("k{number}"), b"page", 0));
        drop(zone);
        let zone = Zone::open(options).unwrap();
        for scans in 1..=20 {
            zone.scan(5, &|| false);
            assert_eq!(zone.usage().disk_files, scans);
        }
        assert!(zone.may_be_on_disk(&key("b")));
        zone.scan(5, &|| false);
        assert!(!zone.may_be_on_disk(&key("b")), "it has come to the end");
    }

    #[test]
    fn a_store_beside_a_reader_of_the_old_file_is_accounted_once() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.scan(0, &|| true);
        write(&zone, "a", b"old", 0);
        let (path, digest) = (zone.path(&key("a")), key("a").digest());
        let opened = Opened::new(&path).unwrap();
        let Ok(Content::Entry(read)) =
            opened.read(&path, &key("a"), (1000, &Account::default()), 0)
        else {
            panic!()
        };
        // A reader of the old file ends after the new one got its name.
        write(&zone, "a", &[b'x'; 500], 0);
        let bytes = zone.tiers.on_disk(fs::metadata(&path).unwrap().len());
        let taken = zone.tiers.take_in(&key("a"), &path, &opened, &Arc::new(*read), 0);
        assert!(matches!(taken, Taken::Replaced));
        assert_eq!((zone.usage().disk_files, zone.usage().disk_bytes), (1, bytes));
        // One that found no file ends after there was one.
        let hidden = path.with_extension("hidden");
        fs::rename(&path, &hidden).unwrap();
        assert!(Opened::new(&path).is_err());
        fs::rename(&hidden, &path).unwrap();
        zone.tiers.forget_missing(&key("a"), &path);
        assert_eq!((zone.usage().disk_files, zone.usage().disk_bytes), (1, bytes));
        assert!(zone.tiers.index.holds(&digest) && zone.tiers.catalog.len() == 1);
        assert_eq!(purge(&zone, all(), PurgeMode::Hard), 1);
        // And where there is none in truth.
        write(&zone, "a", b"page", 0);
        fs::remove_file(&path).unwrap();
        assert!(load(&zone, "a").is_none());
        let usage = zone.usage();
        assert_eq!((usage.disk_files, usage.disk_bytes, zone.tiers.catalog.len()), (0, 0, 0));
    }

    #[test]
    fn readers_writers_and_purges_at_once_leave_the_accounts_right() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.memory_bytes = 4096;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        let rounds = 400_usize;
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let zone = &zone;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let text = format!("k{}", (round * 7 + thread) % 5);
                        match (thread, round % 10) {
                            (0, 0) => drop(zone.purge(&[page(&text)], PurgeMode::Hard)),
                            (0 | 1, _) => write(zone, &text, &vec![b'x'; round * 3], 0),
                            _ => drop(zone.load(&key(&text), 0)),
                        }
                    }
                });
            }
        });
        zone.evict(0, &|| true);
        let files = folder.files();
        let length = |file: &PathBuf| fs::metadata(file).unwrap().len();
        let bytes: u64 = files.iter().map(|file| zone.tiers.on_disk(length(file))).sum();
        assert_eq!((zone.usage().disk_files, zone.usage().disk_bytes), (files.len(), bytes));
        let has_file = |number: &usize| zone.path(&key(&format!("k{number}"))).exists();
        assert_eq!(zone.tiers.catalog.with_tag(b"h\0all").len(), (0..5).filter(has_file).count());
    }

    #[test]
    fn a_stored_file_that_stays_is_counted_and_tried_again() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.max_size = Some(8 * BLOCK);
        options.disk.inactive = 100;
        let zone = Zone::open(options).unwrap();
        zone.scan(0, &|| true);
        write(&zone, "k0", &[b'x'; 100], 0);
        let stuck = zone.path(&key("k0"));
        let (bytes, content) = (zone.usage().disk_bytes, fs::read(&stuck).unwrap());
        fs::remove_file(&stuck).unwrap();
        fs::create_dir_all(stuck.join("in")).unwrap();
        // It is the oldest, and the first that stores want to go.
        for number in 1..40 {
            write(&zone, &format!("k{number}"), &[b'x'; 100], number);
            assert!(zone.usage().disk_bytes <= 8 * BLOCK, "{:?}", zone.usage());
        }
        assert!(zone.tiers.index.holds(&key("k0").digest()), "it has its bytes still");
        assert_eq!(zone.evict(40, &|| true).problems.len(), 1);
        // Unused for long, as all the others: these go.
        assert!(zone.evict(500, &|| true).problems.is_empty(), "it is said once");
        assert_eq!((zone.usage().disk_files, zone.usage().disk_bytes), (1, bytes));
        fs::remove_dir_all(&stuck).unwrap();
        fs::write(&stuck, content).unwrap();
        assert!(zone.evict(1000, &|| true).problems.is_empty());
        assert_eq!((zone.usage().disk_files, stuck.exists()), (0, false));
    }

    #[test]
    fn the_memory_tier_keeps_to_its_bytes() {
        let folder = Folder::new();
        let zone = folder.zone();
        for number in 0..200 {
            let text = format!("k{number}");
            put(&zone, &text, &[b'x'; 16 * 1024]);
        }
        let usage = zone.usage();
        assert!(usage.memory_bytes <= 1 << 20 && usage.memory_entries > 30, "{usage:?}");
    }

    /// Numbers from 0 to 1, the same in each run.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            f64::from(u32::try_from(self.0 >> 32).unwrap()) / f64::from(u32::MAX)
        }
    }

    /// Requests for `pages` pages whose popularity follows Zipf's law, and between them, a third of all,
    /// requests for pages that are asked for only once.
    fn trace(pages: u32, requests: u32) -> Vec<u32> {
        let mut sums = vec![0.0];
        for rank in 1..=pages {
            sums.push(sums.last().unwrap() + 1.0 / f64::from(rank).powf(0.9));
        }
        let (mut draw, total) = (Draw(88_172_645_463_325_252), *sums.last().unwrap());
        let page = |number: u32, draw: &mut Draw| {
            if draw.next() < 1.0 / 3.0 {
                return pages + number;
            }
            let wanted = draw.next() * total;
            u32::try_from(sums.partition_point(|sum| *sum < wanted)).unwrap()
        };
        (0..requests).map(|number| page(number, &mut draw)).collect()
    }

    #[test]
    fn pages_asked_for_once_do_not_push_out_those_asked_for_often() {
        let (folder, body) = (Folder::new(), [b'x'; 1024]);
        let zone = folder.zone();
        let text = |number: u32| format!("http://GETsite/{number:08}");
        let page_bytes = {
            put(&zone, &text(0), &body);
            zone.usage().memory_bytes
        };
        let room = usize::try_from(zone.options().memory_bytes / page_bytes).unwrap();
        let trace = trace(5000, 60_000);
        let mut hits = 0;
        for number in &trace {
            let key = key(&text(*number));
            match zone.peek(&key) {
                Some(_) => hits += 1,
                None => drop(put(&zone, &text(*number), &body)),
            }
        }
        // The least recently used first, in the same room.
        let (mut lru, mut lru_hits) = (std::collections::VecDeque::new(), 0);
        for number in &trace {
            match lru.iter().position(|kept| kept == number) {
                Some(at) => {
                    lru_hits += 1;
                    lru.remove(at);
                }
                None if lru.len() == room => _ = lru.pop_front(),
                None => {}
            }
            lru.push_back(*number);
        }
        assert!(zone.usage().memory_bytes <= zone.options().memory_bytes);
        println!("{hits} hits, {lru_hits} with LRU, of {}, room for {room}", trace.len());
        assert!(hits * 100 > lru_hits * 110, "{hits} hits, {lru_hits} with LRU");
    }
}
