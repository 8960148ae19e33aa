//! A zone: both tiers and the fills, shared by all workers, kept over a reload.

use crate::catalog::Catalog;
use crate::disk::{Disk, DiskOptions, body_bytes};
use crate::entry::{Entry, EntryBody, EntryHead};
use crate::fill::{Claim, Fills, Waiter};
use crate::purge::{Depth, Marks, Purge};
use crate::spool::Spool;
use crate::{Key, StoreError};
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// Files known to the accounting.
    pub disk_files: usize,
    /// Bytes of those files.
    pub disk_bytes: u64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, InMemory> for ByBytes {
    fn weight(&self, key: &Key, kept: &InMemory) -> u64 {
        kept.bytes + key.as_bytes().len() as u64
    }
}

/// An entry with what it weighed when it was put into memory: a weight that changes under the map
/// would spoil its sum.
#[derive(Clone, Debug)]
struct InMemory {
    entry: Arc<Entry>,
    bytes: u64,
}

impl InMemory {
    fn new(entry: Arc<Entry>) -> Self {
        Self { bytes: entry.memory_bytes(), entry }
    }
}

/// One `keys_zone`.
pub struct Zone {
    options: ZoneOptions,
    memory: Arc<Memory>,
    uses: Cache<Key, u64>,
    disk: Disk,
    fills: Arc<Fills>,
    catalog: Arc<Catalog>,
    marks: Marks,
    purging: Mutex<()>,
    purges: UnderWay,
}

type Memory = Cache<Key, InMemory, ByBytes>;

/// How many purges are being done.
#[derive(Debug, Default)]
struct UnderWay(Mutex<usize>);

impl UnderWay {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> OnePurge<'_> {
        *self.count() += 1;
        OnePurge(self)
    }

    /// Does `work` before another one begins, unless one is being done.
    fn if_none(&self, work: impl FnOnce()) {
        let count = self.count();
        if *count == 0 {
            work();
        }
    }
}

/// A purge, while it is being done.
struct OnePurge<'a>(&'a UnderWay);

impl Drop for OnePurge<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
    }
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A body above this share of the memory tier stays on disk: one page must not push out eight.
const MEMORY_SHARE: u64 = 8;
/// Body size assumed when sizing the memory tier's table; chosen near a small page.
const TYPICAL_ENTRY_BYTES: u64 = 16 * 1024;
/// Files that a purge removes before it answers; chosen: a millisecond's work.
const REMOVED_AT_ONCE: usize = 32;
/// Keys counted for `min_uses` at once.
const USES_MAX: usize = 16 * 1024;

impl Zone {
    /// Opens a zone; the folder is made when missing, and read only when something is looked up.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(options: ZoneOptions) -> Result<Self, StoreError> {
        let items =
            usize::try_from(options.memory_bytes / TYPICAL_ENTRY_BYTES).unwrap_or(1).max(64);
        let memory = Arc::new(Cache::with_weighter(items, options.memory_bytes, ByBytes));
        let catalog = Arc::new(Catalog::default());
        let (kept, listed) = (Arc::clone(&memory), Arc::clone(&catalog));
        let mut disk = Disk::new(options.disk.clone())?;
        disk.when_gone(move |key| match key {
            Some(key) if kept.peek(key).is_none() => listed.remove(key.as_bytes()),
            Some(_) => {}
            None => listed.retain(|key| kept.peek(key).is_some()),
        });
        Ok(Self {
            memory,
            uses: Cache::new(USES_MAX),
            fills: Arc::default(),
            marks: Marks::open(&options.disk.path),
            purging: Mutex::default(),
            purges: UnderWay::default(),
            catalog,
            disk,
            options,
        })
    }

    /// What the zone was made from; a reload keeps a zone whose options did not change.
    pub fn options(&self) -> &ZoneOptions {
        &self.options
    }

    /// Largest body the memory tier takes.
    pub fn memory_body_max(&self) -> u64 {
        self.options.memory_bytes / MEMORY_SHARE
    }

    /// Looks into the memory tier; never blocks.
    pub fn peek(&self, key: &Key) -> Option<Arc<Entry>> {
        self.memory.get(key).map(|kept| kept.entry)
    }

    /// Could the disk tier hold the key? `false` spares a trip to a thread that may block.
    pub fn may_be_on_disk(&self, key: &Key) -> bool {
        self.disk.may_hold(key)
    }

    /// Looks into the disk tier and brings what it finds into memory. Blocks.
    ///
    /// # Errors
    /// A file that is there but unreadable or damaged; count it as a miss.
    pub fn load(&self, key: &Key, now: i64) -> Result<Option<Arc<Entry>>, StoreError> {
        let Some(entry) = self.disk.read(key, self.memory_body_max(), now)? else {
            return Ok(None);
        };
        let mut entry = Arc::new(entry);
        let (tags, begun) = (entry.head.tags.clone(), entry.head.begun_at());
        let is_there = self.marks.unless_met(key, &tags, begun, || {
            self.catalog.add(key, &tags);
            match self.memory.peek(key) {
                // One that was made while the file was read.
                Some(kept) if kept.entry.head.stored_at >= entry.head.stored_at => {
                    entry = kept.entry;
                }
                _ => self.memory.insert(key.clone(), InMemory::new(Arc::clone(&entry))),
            }
        });
        if !is_there {
            self.disk.remove(key)?;
        }
        Ok(is_there.then_some(entry))
    }

    /// Puts an entry into the memory tier; from here on it is a hit. `false`: a purge met it since its
    /// making had `begun`, in milliseconds since 1970.
    pub fn insert(&self, key: &Key, entry: Arc<Entry>, begun: i64) -> bool {
        let tags = entry.head.tags.clone();
        self.marks.unless_met(key, &tags, begun, || {
            self.catalog.add(key, &tags);
            self.memory.insert(key.clone(), InMemory::new(entry));
        })
    }

    fn is_current(&self, key: &Key, entry: &Arc<Entry>) -> bool {
        self.memory.peek(key).is_some_and(|found| Arc::ptr_eq(&found.entry, entry))
    }

    /// Weighs an entry again after one of [`Entry::forms`] was made.
    pub fn reweigh(&self, key: &Key, entry: &Arc<Entry>) {
        let head = &entry.head;
        self.marks.unless_met(key, &head.tags, head.begun_at(), || {
            if self.is_current(key, entry) {
                self.memory.insert(key.clone(), InMemory::new(Arc::clone(entry)));
            }
        });
    }

    /// Writes an entry again with the forms it has now, unless another has taken its place or it was
    /// removed. Blocks.
    ///
    /// # Errors
    /// A full disk and the like; what was written before stays.
    pub fn rewrite(&self, key: &Key, entry: &Arc<Entry>, now: i64) -> Result<(), StoreError> {
        self.disk.write(key, entry, now, || {
            let is_wanted = self.is_current(key, entry) && !entry.head.is_purged;
            if is_wanted {
                self.catalog.add(key, &entry.head.tags);
            }
            is_wanted
        })
    }

    /// Writes an entry to the disk tier, unless a purge met it since its making had `begun`, or a newer
    /// one took its place. Blocks.
    ///
    /// # Errors
    /// A full disk and the like; the memory tier keeps the entry.
    pub fn write(
        &self,
        key: &Key,
        entry: &Arc<Entry>,
        now: i64,
        begun: i64,
    ) -> Result<(), StoreError> {
        self.disk.write(key, entry, now, || {
            let is_newest = self.memory.peek(key).is_none_or(|found| {
                Arc::ptr_eq(&found.entry, entry)
                    || found.entry.head.stored_at <= entry.head.stored_at
            });
            let tags = &entry.head.tags;
            let is_wanted = is_newest && !self.marks.meet(key, tags, begun);
            if is_wanted {
                self.catalog.add(key, tags);
            }
            is_wanted
        })
    }

    /// A temporary file for a body that outgrows memory. Blocks.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn spool(&self) -> Result<Spool, StoreError> {
        Spool::create(self.disk.temporary_path())
    }

    /// Purges, at a time in milliseconds since 1970: what was begun before it is not served when this has
    /// returned, also after a crash. Blocks. How many stored responses it met, variants counted.
    ///
    /// # Errors
    /// A file that cannot be removed, or the note that it shall be.
    pub fn purge(&self, purge: &Purge, depth: Depth, at: i64) -> Result<usize, StoreError> {
        let _under_way = self.purges.begin();
        // First of all: what is stored from here on meets it.
        self.marks.note(purge, at);
        let is_marked = !self.disk.is_scanned();
        if is_marked {
            self.marks.write(purge, at)?;
        }
        let keys = match purge {
            Purge::Page(page) => {
                let mut keys = self.catalog.of_page(page);
                if keys.is_empty() && self.disk.may_hold(page) {
                    // Its file may not have been read yet.
                    keys.push(page.clone());
                }
                keys
            }
            Purge::Prefix(prefix) => self.catalog.with_prefix(prefix),
            Purge::Tag(tag) => self.catalog.with_tag(tag),
            Purge::All => self.catalog.with_prefix(b""),
        };
        // Many files are removed later, by the manager; should it not come to that, the mark tells.
        let is_later =
            keys.len() > REMOVED_AT_ONCE && (is_marked || self.marks.write(purge, at).is_ok());
        self.fills.cancel(|key| match purge {
            Purge::Page(page) => key.page() == *page,
            Purge::Prefix(prefix) => key.as_bytes().starts_with(prefix),
            Purge::Tag(_) => keys.contains(key),
            Purge::All => true,
        });
        // From memory first: files that still lie there meet the mark.
        let were_there = {
            // A soft purge takes out and puts in: a hard one must not come between.
            let _alone = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
            let were_there = keys.iter().map(|key| match depth {
                Depth::Hard => self.memory.remove(key).is_some(),
                Depth::Soft => self.make_stale(key),
            });
            were_there.collect::<Vec<bool>>()
        };
        let mut count = 0;
        for (key, was_there) in keys.iter().zip(were_there) {
            // With its file a stale page would come back after a restart.
            let had_file = if is_later { self.disk.doom(key) } else { self.disk.remove(key)? };
            count += usize::from(was_there || had_file);
            if self.memory.peek(key).is_none() {
                self.catalog.remove(key.as_bytes());
            }
        }
        Ok(count)
    }

    /// Lets a page in memory answer once more while it is made anew.
    fn make_stale(&self, key: &Key) -> bool {
        let Some(kept) = self.memory.peek(key) else { return false };
        if kept.entry.head.must_revalidate {
            return self.memory.remove(key).is_some();
        }
        let head = EntryHead { is_purged: true, ..kept.entry.head.clone() };
        let stale = Self::renewed(&kept.entry, head, kept.entry.last_used());
        self.memory.insert(key.clone(), InMemory::new(Arc::new(stale)));
        true
    }

    /// Waits for the response with others, if somebody makes it, without ever being the one who does.
    pub fn join(&self, key: &Key) -> Option<Waiter> {
        self.fills.join(key)
    }

    /// Claims the making of the response for `key`; an older claim than `age_max` is taken over.
    pub fn claim(&self, key: &Key, now: Instant, age_max: Duration) -> Claim {
        self.fills.claim(key, now, age_max)
    }

    /// Is a response for `key` being made?
    pub fn is_claimed(&self, key: &Key) -> bool {
        self.fills.is_claimed(key)
    }

    /// Counts one request for a key that is not stored; the count so far, this one included.
    pub fn count_use(&self, key: &Key) -> u64 {
        let uses = self.uses.get(key).unwrap_or(0) + 1;
        self.uses.insert(key.clone(), uses);
        uses
    }

    /// Is the folder no other process's? Two that share one remove each other's files and keep pages the
    /// other one removed; what they serve is whole all the same.
    pub fn is_alone(&self) -> bool {
        self.disk.is_alone()
    }

    /// Reads the folder once for the accounting, while it `is_wanted`. Blocks, for long in a large
    /// folder.
    pub fn scan(&self, now: i64, is_wanted: &dyn Fn() -> bool) {
        let all = self.disk.scan(now, is_wanted, &|head| {
            let key = Key::primary(head.key.clone());
            let is_kept = !self.marks.meet(&key, &head.tags, head.begun_at());
            if is_kept {
                self.catalog.add(&key, &head.tags);
            }
            is_kept
        });
        if all {
            self.forget_marks();
        }
    }

    /// Keeps the zone within `inactive`, `max_size` and `min_free`, while it `is_wanted`. Blocks.
    ///
    /// # Errors
    /// A file that cannot be removed, or the folder is gone.
    pub fn evict(&self, now: i64, is_wanted: &dyn Fn() -> bool) -> Result<usize, StoreError> {
        let inactive = self.options.disk.inactive;
        self.disk.sweep(is_wanted)?;
        self.forget_marks();
        if self.disk.is_scanned() && !self.disk.has_doomed() {
            self.marks.expire(now.saturating_mul(1000));
        }
        // Uses in memory are not written through; carry them over before judging the files.
        for (key, kept) in self.memory.iter() {
            let last_used = kept.entry.last_used();
            self.disk.touch(&key, last_used);
            if now - last_used > inactive {
                self.memory.remove(&key);
            }
        }
        self.prune();
        self.disk.evict(now, is_wanted)
    }

    /// Removes the marks' file once no file of a purged page is left.
    fn forget_marks(&self) {
        self.purges.if_none(|| {
            if self.disk.is_scanned() && !self.disk.has_doomed() {
                self.marks.all_files_are_known();
            }
        });
    }

    /// Takes out of the catalog what is in neither tier: pages whose file could not be written.
    fn prune(&self) {
        /// So many are not worth the walk.
        const SLACK: usize = 1000;
        let (files, _) = self.disk.usage();
        if self.catalog.len() > files + self.memory.len() + SLACK {
            self.catalog.retain(|key| self.memory.peek(key).is_some() || self.disk.holds(key));
        }
    }

    /// Where the key's file lies, if there is one.
    pub fn path(&self, key: &Key) -> std::path::PathBuf {
        self.disk.path(key)
    }

    /// Heads of up to `limit` stored responses whose key begins with `prefix`. Blocks: files are read.
    pub fn list(&self, prefix: &[u8], limit: usize) -> Vec<EntryHead> {
        let mut found: Vec<EntryHead> = Vec::new();
        for (key, kept) in self.memory.iter() {
            if found.len() < limit && key.as_bytes().starts_with(prefix) {
                found.push(kept.entry.head.clone());
            }
        }
        let known: std::collections::HashSet<_> =
            found.iter().map(|head| head.key.clone()).collect();
        self.disk.heads(|head| {
            if head.key.starts_with(prefix) && !known.contains(&head.key) && found.len() < limit {
                found.push(head);
            }
            found.len() < limit
        });
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    /// How full the zone is.
    pub fn usage(&self) -> ZoneUsage {
        let (disk_files, disk_bytes) = self.disk.usage();
        ZoneUsage {
            memory_entries: self.memory.len(),
            memory_bytes: self.memory.weight(),
            disk_files,
            disk_bytes,
        }
    }

    /// A copy of `entry` with another head: after a successful revalidation.
    ///
    /// # Errors
    /// The body lies in a file that cannot be opened again.
    pub fn renewed(entry: &Entry, head: EntryHead, now: i64) -> Entry {
        let renewed = Entry::new(head, entry.body.clone(), now);
        for (form, old) in renewed.forms.iter().zip(&entry.forms) {
            if let Some((effort, bytes)) = old.made() {
                form.keep(*effort, bytes.clone());
            }
        }
        renewed
    }

    /// The body in memory, read from its file if it lies there. Blocks in that case.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn body(entry: &Entry) -> std::io::Result<Bytes> {
        body_bytes(&entry.body, entry.head.body_bytes)
    }

    /// Fills in length and checksum of a body in memory.
    pub fn seal(head: EntryHead, body: Bytes, now: i64) -> Entry {
        let head =
            EntryHead { body_bytes: body.len() as u64, body_crc: crc32fast::hash(&body), ..head };
        Entry::new(head, EntryBody::Memory(body), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::Levels;
    use crate::pace::Pace;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// When pages of these tests are begun.
    const BEGUN: i64 = 1000;

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
        Key::primary(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn entry(text: &str, body: &[u8]) -> Arc<Entry> {
        let head = EntryHead {
            key: key(text).as_bytes().to_vec().into(),
            status: 200,
            ..EntryHead::default()
        };
        Arc::new(Zone::seal(head, Bytes::copy_from_slice(body), 0))
    }

    fn read(zone: &Zone, text: &str) -> Option<Bytes> {
        zone.load(&key(text), 0).unwrap().map(|entry| Zone::body(&entry).unwrap())
    }

    #[test]
    fn entries_survive_the_process_without_a_scan() {
        let folder = Folder::new();
        folder.zone().write(&key("a"), &entry("a", b"page"), 0, BEGUN).unwrap();
        let next = folder.zone();
        assert!(next.peek(&key("a")).is_none());
        assert_eq!(read(&next, "a").as_deref(), Some(&b"page"[..]));
        assert!(next.peek(&key("a")).is_some());
        assert_eq!(read(&next, "b"), None);
    }

    #[test]
    fn a_damaged_file_is_a_miss_and_goes() {
        let folder = Folder::new();
        let zone = folder.zone();
        zone.write(&key("a"), &entry("a", b"page"), 0, BEGUN).unwrap();
        let [file] = &folder.files()[..] else { panic!("one file") };
        let whole = fs::read(file).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(file, &damaged).unwrap();
            assert!(zone.load(&key("a"), 0).is_err(), "byte {at}");
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
        let page = entry("a", b"page");
        zone.insert(&key("a"), Arc::clone(&page), BEGUN);
        zone.write(&key("a"), &page, 0, BEGUN).unwrap();
        page.forms[2].keep(5, Bytes::from_static(b"zipped"));
        assert!(page.forms[0].claim() && !page.forms[0].claim() && !page.forms[2].claim());
        zone.rewrite(&key("a"), &page, 0).unwrap();
        let found = folder.zone().load(&key("a"), 0).unwrap().unwrap();
        assert_eq!(found.forms[2].made(), Some(&(5, Bytes::from_static(b"zipped"))));
        assert!(found.forms[0].made().is_none());
        let [file] = &folder.files()[..] else { panic!("one file") };
        let whole = fs::read(file).unwrap();
        assert_eq!(zone.usage().disk_bytes, whole.len() as u64);
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
        let old = entry("a", b"old");
        zone.insert(&key("a"), Arc::clone(&old), BEGUN);
        zone.write(&key("a"), &old, 0, BEGUN).unwrap();
        let new = entry("a", b"new");
        zone.insert(&key("a"), Arc::clone(&new), BEGUN);
        zone.write(&key("a"), &new, 0, BEGUN).unwrap();
        zone.rewrite(&key("a"), &old, 0).unwrap();
        assert_eq!(read(&folder.zone(), "a").as_deref(), Some(&b"new"[..]));
        zone.purge(&Purge::Page(key("a")), Depth::Hard, BEGUN).unwrap();
        zone.rewrite(&key("a"), &new, 0).unwrap();
        assert_eq!(folder.files().len(), 0);
    }

    #[test]
    fn files_of_many_purged_pages_go_later_and_never_come_back() {
        let folder = Folder::new();
        let tag = Bytes::from_static(b"h\0all");
        let put = |zone: &Zone, number: usize, begun: i64| {
            let key = key(&format!("k{number}"));
            let head = EntryHead {
                key: Bytes::copy_from_slice(key.as_bytes()),
                stored_at: begun,
                tags: vec![tag.clone()],
                ..EntryHead::default()
            };
            let entry = Arc::new(Zone::seal(head, Bytes::from_static(b"x"), 0));
            zone.insert(&key, Arc::clone(&entry), begun);
            zone.write(&key, &entry, 0, begun).unwrap();
        };
        let zone = folder.zone();
        zone.scan(0, &|| true);
        (0..100).for_each(|number| put(&zone, number, BEGUN));
        let purge = Purge::Tag(tag.clone());
        assert_eq!(zone.purge(&purge, Depth::Hard, BEGUN + 1).unwrap(), 100);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (0, 100));
        assert!(zone.load(&key("k7"), 1).unwrap().is_none());
        // One of them is made anew before its old file is removed.
        put(&zone, 8, BEGUN + 5);
        assert!(folder.0.join("yorozu.purges").exists());
        drop(zone);
        // The process ends before the files are removed.
        let zone = folder.zone();
        assert!(zone.load(&key("k9"), 1).unwrap().is_none());
        assert!(zone.load(&key("k8"), 1).unwrap().is_some());
        zone.scan(0, &|| true);
        assert_eq!(folder.files().len(), 1);
        // And once more, with the manager.
        (0..100).for_each(|number| put(&zone, number, BEGUN + 6));
        zone.purge(&purge, Depth::Hard, BEGUN + 7).unwrap();
        put(&zone, 8, BEGUN + 9);
        zone.evict(0, &|| true).unwrap();
        assert_eq!((zone.usage().disk_files, folder.files().len()), (1, 1));
        assert!(!folder.0.join("yorozu.purges").exists());
        assert_eq!(zone.load(&key("k8"), 1).unwrap().unwrap().head.stored_at, BEGUN + 9);
    }

    #[test]
    fn a_large_body_stays_in_its_file_and_is_verified() {
        let folder = Folder::new();
        let zone = folder.zone();
        let large = vec![b'x'; usize::try_from(zone.memory_body_max()).unwrap() + 1];
        let mut spool = zone.spool().unwrap();
        spool.write(&large).unwrap();
        let body = spool.into_body();
        let head = EntryHead {
            key: Bytes::from_static(b"a"),
            body_bytes: large.len() as u64,
            body_crc: crc32fast::hash(&large),
            ..EntryHead::default()
        };
        zone.write(&key("a"), &Arc::new(Entry::new(head, body, 0)), 0, BEGUN).unwrap();
        assert_eq!(folder.files().len(), 1, "no temporary file is left");
        let found = zone.load(&key("a"), 0).unwrap().unwrap();
        assert!(matches!(found.body, EntryBody::File(..)));
        assert_eq!(Zone::body(&found).unwrap(), large);
    }

    #[test]
    fn memory_is_counted_though_entries_grow() {
        let folder = Folder::new();
        let zone = folder.zone();
        let first = entry("a", b"page");
        zone.insert(&key("a"), Arc::clone(&first), BEGUN);
        let alone = zone.usage().memory_bytes;
        first.forms[0].keep(1, Bytes::from_static(&[0; 100]));
        zone.reweigh(&key("a"), &first);
        assert_eq!(zone.usage().memory_bytes, alone + 100);
        let second = entry("a", b"page");
        zone.insert(&key("a"), Arc::clone(&second), BEGUN);
        second.forms[0].keep(1, Bytes::from_static(&[0; 100]));
        zone.purge(&Purge::Page(key("a")), Depth::Hard, BEGUN).unwrap();
        assert_eq!(zone.usage().memory_bytes, 0);
    }

    #[test]
    fn the_folder_may_vanish_under_us() {
        let folder = Folder::new();
        let zone = folder.zone();
        fs::remove_dir_all(&folder.0).unwrap();
        zone.write(&key("a"), &entry("a", b"page"), 0, BEGUN).unwrap();
        assert!(read(&zone, "a").is_some());
    }

    #[test]
    fn unused_and_surplus_files_go_oldest_first() {
        let folder = Folder::new();
        let mut options = folder.options();
        options.disk.max_size = Some(600);
        let zone = Zone::open(options).unwrap();
        for (time, text) in ["a", "b", "c", "d"].iter().enumerate() {
            let now = i64::try_from(time).unwrap();
            zone.write(&key(text), &entry(text, &[b'x'; 100]), now, BEGUN).unwrap();
            assert!(zone.usage().disk_bytes <= 600, "never above its size");
        }
        assert!(zone.usage().disk_files >= 2);
        assert!(read(&zone, "a").is_none() && read(&zone, "d").is_some());
        zone.evict(10_000, &|| true).unwrap();
        assert_eq!((zone.usage().disk_files, folder.files().len()), (0, 0));
        assert!(zone.peek(&key("d")).is_none());
    }

    #[test]
    fn a_scan_accounts_and_clears_what_a_killed_process_left() {
        let folder = Folder::new();
        folder.zone().write(&key("a"), &entry("a", b"page"), 0, BEGUN).unwrap();
        fs::write(folder.0.join("tmp.1.7"), b"torn").unwrap();
        let zone = folder.zone();
        assert!(zone.may_be_on_disk(&key("b")));
        zone.scan(5, &|| true);
        assert_eq!((zone.usage().disk_files, folder.files().len()), (1, 1));
        assert!(zone.may_be_on_disk(&key("a")) && !zone.may_be_on_disk(&key("b")));
    }

    #[test]
    fn the_memory_tier_keeps_to_its_bytes() {
        let folder = Folder::new();
        let zone = folder.zone();
        for number in 0..200 {
            let text = format!("k{number}");
            zone.insert(&key(&text), entry(&text, &[b'x'; 16 * 1024]), BEGUN);
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
    /// requests for pages that nobody asks for again.
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
            zone.insert(&key(&text(0)), entry(&text(0), &body), BEGUN);
            zone.usage().memory_bytes
        };
        let room = usize::try_from(zone.options().memory_bytes / page_bytes).unwrap();
        let trace = trace(5000, 60_000);
        let mut hits = 0;
        for number in &trace {
            let key = key(&text(*number));
            match zone.peek(&key) {
                Some(_) => hits += 1,
                None => _ = zone.insert(&key, entry(&text(*number), &body), BEGUN),
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
