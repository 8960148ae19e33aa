//! The disk tier: one file per entry in nginx's `levels` layout, found by name.
//!
//! Everything here blocks; callers are on a thread that may.
//!
//! # Invariants
//! - A file gets its name by `rename` after every byte was written to a temporary one.
//! - The index is accounting for `max_size` and `inactive`, never the truth: a file it does not
//!   know yet is found all the same.

use crate::entry::{Entry, EntryBody, EntryHead, PREFIX_BYTES, decode_forms, encode_form};
use crate::files;
use crate::index::{Digest, Index, Known};
use crate::levels::{Levels, parse_digest};
use crate::lock::Lock;
use crate::pace::{Pace, Steps};
use crate::{Key, StoreError};
use bytes::Bytes;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A walk through the folder.
struct Scan<'a> {
    now: i64,
    is_kept: &'a dyn Fn(&EntryHead) -> bool,
    steps: Steps<'a>,
}

/// Where and how much.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskOptions {
    /// The folder; made when missing.
    pub path: PathBuf,
    /// Folder depth below it.
    pub levels: Levels,
    /// Bound of all files together, in bytes.
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

/// The files of one zone.
pub(crate) struct Disk {
    options: DiskOptions,
    index: Index,
    lock: Mutex<Lock>,
    is_scanned: AtomicBool,
    temporary: AtomicU64,
    /// Held while a file gets its name or loses it, so that what is written again behind a purge or a
    /// newer page cannot take their place.
    names: Mutex<()>,
    gone: Box<Gone>,
    /// Files of purged pages: no page any more, but not removed yet.
    doomed: Mutex<Vec<Doomed>>,
    doomed_files: AtomicUsize,
    doomed_bytes: AtomicU64,
}

/// A file that is to be removed, and its bytes.
type Doomed = (Digest, u64);

/// Told which key has no file any more; `None`: none has.
type Gone = dyn Fn(Option<&Key>) + Send + Sync;

pub(crate) fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { call, path: path.to_owned(), source }
}

impl Disk {
    pub(crate) fn new(options: DiskOptions) -> Result<Self, StoreError> {
        files::make_folder(&options.path).map_err(failed("mkdir()", &options.path))?;
        let lock = Lock::new(&options.path)?;
        Ok(Self {
            options,
            index: Index::new(),
            lock: Mutex::new(lock),
            is_scanned: AtomicBool::new(false),
            temporary: AtomicU64::new(0),
            names: Mutex::default(),
            doomed: Mutex::default(),
            doomed_files: AtomicUsize::new(0),
            doomed_bytes: AtomicU64::new(0),
            gone: Box::new(|_| {}),
        })
    }

    /// Has `gone` told of each key whose file goes.
    pub(crate) fn when_gone(&mut self, gone: impl Fn(Option<&Key>) + Send + Sync + 'static) {
        self.gone = Box::new(gone);
    }

    fn forget(&self, key: &Key) {
        self.index.forget(&key.digest());
        (self.gone)(Some(key));
    }

    /// Has every file been read since the start?
    pub(crate) fn is_scanned(&self) -> bool {
        self.is_scanned.load(Ordering::Acquire)
    }

    /// Is there a file of the key, as far as is known?
    pub(crate) fn holds(&self, key: &Key) -> bool {
        self.index.holds(&key.digest())
    }

    /// Is the folder no other process's?
    pub(crate) fn is_alone(&self) -> bool {
        Lock::is_ours(&self.lock, &self.options.path)
    }

    pub(crate) fn usage(&self) -> (usize, u64) {
        self.index.usage()
    }

    /// May the key's file exist? `false` is certain only once the first scan has ended.
    pub(crate) fn may_hold(&self, key: &Key) -> bool {
        !self.is_scanned.load(Ordering::Acquire) || self.index.holds(&key.digest())
    }

    pub(crate) fn touch(&self, key: &Key, now: i64) {
        self.index.touch(&key.digest(), now);
    }

    /// Reads and verifies the key's file; bodies above `memory_max` stay in the file.
    ///
    /// # Errors
    /// A damaged file is removed and reported; a missing one is `Ok(None)`.
    pub(crate) fn read(
        &self,
        key: &Key,
        memory_max: u64,
        now: i64,
    ) -> Result<Option<Entry>, StoreError> {
        let digest = key.digest();
        let path = self.options.levels.path(&self.options.path, &digest);
        let file = match files::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.forget(key);
                return Ok(None);
            }
            Err(error) => return Err(failed("open()", &path)(error)),
        };
        match self.decode(&file, &path, key, memory_max, now) {
            Err(error @ StoreError::Damaged { .. }) => {
                let _ = fs::remove_file(&path);
                self.forget(key);
                Err(error)
            }
            other => other,
        }
    }

    fn decode(
        &self,
        file: &File,
        path: &Path,
        key: &Key,
        memory_max: u64,
        now: i64,
    ) -> Result<Option<Entry>, StoreError> {
        let damaged = |what| StoreError::Damaged { path: path.to_owned(), what };
        let mut prefix = [0; PREFIX_BYTES];
        let read = |buffer: &mut [u8], what| {
            files::read_exact(file, buffer).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged(what),
                _ => failed("read()", path)(error),
            })
        };
        read(&mut prefix, "shorter than its prefix")?;
        let (head_bytes, crc) =
            EntryHead::prefix(&prefix).ok_or_else(|| damaged("unknown format"))?;
        let mut head = vec![0; head_bytes];
        read(&mut head, "shorter than its head")?;
        let head = EntryHead::decode(&head, crc).ok_or_else(|| damaged("head checksum"))?;
        if head.key != key.as_bytes() {
            return Ok(None);
        }
        let body_at = (PREFIX_BYTES + head_bytes) as u64;
        let file_bytes = file.metadata().map_err(failed("fstat()", path))?.len();
        let rest_bytes = file_bytes.checked_sub(body_at + head.body_bytes);
        let rest_bytes = rest_bytes.ok_or_else(|| damaged("length"))?;
        let mut forms = Bytes::new();
        let body = if head.body_bytes <= memory_max {
            let room = usize::try_from(file_bytes - body_at).unwrap_or(0);
            let mut body = Vec::with_capacity(room);
            files::read_to_end(file, &mut body).map_err(failed("read()", path))?;
            let mut body = Bytes::from(body);
            let body_bytes = usize::try_from(head.body_bytes).unwrap_or(usize::MAX);
            if body.len() < body_bytes {
                return Err(damaged("length"));
            }
            forms = body.split_off(body_bytes);
            if crc32fast::hash(&body) != head.body_crc {
                return Err(damaged("body checksum"));
            }
            EntryBody::Memory(body)
        } else if rest_bytes > 0 {
            return Err(damaged("length"));
        } else {
            if crc_from(file, body_at).map_err(failed("read()", path))? != head.body_crc {
                return Err(damaged("body checksum"));
            }
            let file = file.try_clone().map_err(failed("dup()", path))?;
            EntryBody::File(Arc::new(file), body_at)
        };
        self.index.remember(key.digest(), file_bytes, now);
        let entry = Entry::new(head, body, now);
        decode_forms(forms, &entry).ok_or_else(|| damaged("another coding of the body"))?;
        Ok(Some(entry))
    }

    /// Writes an entry, if it `is_current` once all is written; readers see the old file or the new
    /// one, never a mixture.
    pub(crate) fn write(
        &self,
        key: &Key,
        entry: &Entry,
        now: i64,
        is_current: impl FnOnce() -> bool,
    ) -> Result<(), StoreError> {
        let digest = key.digest();
        let path = self.options.levels.path(&self.options.path, &digest);
        let temporary = self.temporary_path();
        let written = write_file(&temporary, entry).and_then(|bytes| {
            if !self.make_room(&digest, bytes)? {
                return Ok(None);
            }
            make_folders(&path)?;
            let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_current() {
                return Ok(None);
            }
            files::rename(&temporary, &path).map_err(failed("rename()", &path))?;
            self.index.remember(digest, bytes, now);
            Ok(Some(()))
        });
        if !matches!(written, Ok(Some(()))) {
            let _ = fs::remove_file(&temporary);
        }
        written.map(|_| ())
    }

    /// Removes what is longest unused until a file of `bytes` fits the bounds; `false` if it never does.
    fn make_room(&self, digest: &Digest, bytes: u64) -> Result<bool, StoreError> {
        if self.options.max_size.is_some_and(|max| bytes > max) {
            return Ok(false);
        }
        while self.is_above(bytes, usize::from(!self.index.holds(digest))) {
            if self.remove_doomed()? {
                continue;
            }
            let Some(oldest) = self.index.oldest() else { break };
            self.remove_oldest(&oldest.digest)?;
        }
        Ok(true)
    }

    /// Would so much more be above the bounds?
    fn is_above(&self, more_bytes: u64, more_files: usize) -> bool {
        let (files, bytes) = self.index.usage();
        let files = files + self.doomed_files.load(Ordering::Relaxed);
        let bytes = bytes + self.doomed_bytes.load(Ordering::Relaxed);
        files + more_files > self.options.files_max
            || self.options.max_size.is_some_and(|max| bytes + more_bytes > max)
    }

    /// A name of its own inside the cache's folder, so that `rename` never crosses file systems.
    pub(crate) fn temporary_path(&self) -> PathBuf {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        self.options.path.join(format!("{TEMPORARY_PREFIX}{}.{number}", std::process::id()))
    }

    pub(crate) fn remove(&self, key: &Key) -> Result<bool, StoreError> {
        let removed = self.remove_digest(&key.digest());
        (self.gone)(Some(key));
        removed
    }

    fn doomed(&self) -> MutexGuard<'_, Vec<Doomed>> {
        self.doomed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a purged page's file out of the accounts, to be removed later: until then the purge's mark keeps it
    /// from being served. Was there one?
    pub(crate) fn doom(&self, key: &Key) -> bool {
        let digest = key.digest();
        let found = self.index.forget(&digest);
        if let Some(bytes) = found {
            self.doomed().push((digest, bytes));
            self.doomed_files.fetch_add(1, Ordering::Relaxed);
            self.doomed_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        (self.gone)(Some(key));
        found.is_some()
    }

    /// Removes one file of a purged page; `false` if there is none.
    fn remove_doomed(&self) -> Result<bool, StoreError> {
        let Some((digest, bytes)) = self.doomed().pop() else { return Ok(false) };
        let removed = {
            let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            // A page that was stored since has the name now.
            match self.index.holds(&digest) {
                true => Ok(false),
                false => self.unlink(&digest),
            }
        };
        if let Err(problem) = removed {
            // Not forgotten, so that its mark is kept as long as it.
            self.doomed().push((digest, bytes));
            return Err(problem);
        }
        self.doomed_files.fetch_sub(1, Ordering::Relaxed);
        self.doomed_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Removes the files of purged pages at the manager's pace, while it `is_wanted`.
    pub(crate) fn sweep(&self, is_wanted: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let mut steps = Steps::new(self.options.manager, is_wanted);
        while self.remove_doomed()? && steps.next() {}
        Ok(())
    }

    /// Are files of purged pages left?
    pub(crate) fn has_doomed(&self) -> bool {
        self.doomed_files.load(Ordering::Relaxed) > 0
    }

    /// Removes a file of which only the name is known; whose it is, its head says.
    fn remove_oldest(&self, digest: &Digest) -> Result<(), StoreError> {
        let head = read_head(&self.options.levels.path(&self.options.path, digest));
        self.remove_digest(digest)?;
        if let Some(head) = head {
            (self.gone)(Some(&Key::primary(head.key)));
        }
        Ok(())
    }

    fn remove_digest(&self, digest: &Digest) -> Result<bool, StoreError> {
        let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        self.index.forget(digest);
        self.unlink(digest)
    }

    fn unlink(&self, digest: &Digest) -> Result<bool, StoreError> {
        let path = self.options.levels.path(&self.options.path, digest);
        match files::remove(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("unlink()", &path)(error)),
        }
    }

    /// Walks the folder once, for the accounting, while it `is_wanted`. Removes temporary files that dead
    /// processes left, and stored responses that are not kept. `true` once all files are known.
    pub(crate) fn scan(
        &self,
        now: i64,
        is_wanted: &dyn Fn() -> bool,
        is_kept: &dyn Fn(&EntryHead) -> bool,
    ) -> bool {
        if self.is_scanned() {
            return true;
        }
        let mut scan = Scan { now, is_kept, steps: Steps::new(self.options.loader, is_wanted) };
        let folder = self.options.path.clone();
        if !self.scan_folder(&folder, self.options.levels.depth(), &mut scan) {
            return false;
        }
        self.is_scanned.store(true, Ordering::Release);
        true
    }

    /// `false` if it was ended early.
    fn scan_folder(&self, folder: &Path, depth: usize, scan: &mut Scan<'_>) -> bool {
        // A folder that vanishes under the scan has nothing to account for.
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (item.path(), item.file_name());
            let Some(name) = name.to_str() else { continue };
            let Ok(metadata) = item.metadata() else { continue };
            if metadata.is_dir() {
                if depth > 0 && !self.scan_folder(&path, depth - 1, scan) {
                    return false;
                }
                continue;
            }
            if is_foreign_temporary(name) {
                // Of a process that lives and shares the folder it may be in use.
                if self.is_alone() {
                    let _ = fs::remove_file(&path);
                }
            } else if let (0, Some(digest)) = (depth, parse_digest(name)) {
                self.scan_file(&path, digest, metadata.len(), scan);
            }
            if !scan.steps.next() {
                return false;
            }
        }
        true
    }

    /// Where the key's file lies, if there is one.
    pub(crate) fn path(&self, key: &Key) -> PathBuf {
        self.options.levels.path(&self.options.path, &key.digest())
    }

    /// The heads of all files, until `wants_more` is false.
    pub(crate) fn heads(&self, mut wants_more: impl FnMut(EntryHead) -> bool) {
        self.heads_below(&self.options.path, &mut wants_more);
    }

    fn heads_below(&self, folder: &Path, wants_more: &mut impl FnMut(EntryHead) -> bool) -> bool {
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = item.path();
            let goes_on = if path.is_dir() {
                self.heads_below(&path, wants_more)
            } else {
                let is_entry = item.file_name().to_str().is_some_and(|n| parse_digest(n).is_some());
                let head = is_entry.then(|| read_head(&path)).flatten();
                head.is_none_or(&mut *wants_more)
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    fn scan_file(&self, path: &Path, digest: Digest, bytes: u64, scan: &Scan<'_>) {
        if self.index.holds(&digest) {
            return;
        }
        // Whatever cannot be read: it is damaged when it is asked for, and has its bytes until then.
        if read_head(path).is_none_or(|head| (scan.is_kept)(&head)) {
            self.index.remember(digest, bytes, scan.now);
        } else {
            // Purged, though nobody had read it yet.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes what is unused too long, then the longest unused above the bounds. Returns how many files
    /// went; ends early when it `is_wanted` no more.
    pub(crate) fn evict(
        &self,
        now: i64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<usize, StoreError> {
        self.check_folder()?;
        let mut steps = Steps::new(self.options.manager, is_wanted);
        let mut removed = 0;
        loop {
            let unused = self.index.unused_since(now - self.options.inactive, steps.pace.files);
            let count = unused.len();
            for Known { digest, .. } in unused {
                self.remove_oldest(&digest)?;
                removed += 1;
                if !steps.next() {
                    return Ok(removed);
                }
            }
            if count < steps.pace.files {
                break;
            }
        }
        while self.is_above(0, 0) || self.is_disk_tight() {
            let Some(oldest) = self.index.oldest() else { break };
            self.remove_oldest(&oldest.digest)?;
            removed += 1;
            if !steps.next() {
                break;
            }
        }
        Ok(removed)
    }

    /// Makes the folder again if somebody removed it.
    fn check_folder(&self) -> Result<(), StoreError> {
        let path = &self.options.path;
        if path.exists() {
            return Ok(());
        }
        self.index.clear();
        (self.gone)(None);
        files::make_folder(path).map_err(failed("mkdir()", path))?;
        Err(StoreError::Vanished { path: path.clone() })
    }

    fn is_disk_tight(&self) -> bool {
        let Some(min_free) = self.options.min_free else { return false };
        nix::sys::statvfs::statvfs(&self.options.path)
            .is_ok_and(|stat| stat.blocks_available() * stat.fragment_size() < min_free)
    }
}

const TEMPORARY_PREFIX: &str = "tmp.";
/// The head of an entry's file; `None` if it is damaged or gone.
fn read_head(path: &Path) -> Option<EntryHead> {
    let file = files::open(path).ok()?;
    let mut prefix = [0; PREFIX_BYTES];
    files::read_exact(&file, &mut prefix).ok()?;
    let (head_bytes, crc) = EntryHead::prefix(&prefix)?;
    let mut head = vec![0; head_bytes];
    files::read_exact(&file, &mut head).ok()?;
    EntryHead::decode(&head, crc)
}

fn is_foreign_temporary(name: &str) -> bool {
    let own = format!("{TEMPORARY_PREFIX}{}.", std::process::id());
    name.starts_with(TEMPORARY_PREFIX) && !name.starts_with(&own)
}

fn make_folders(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    files::make_folder(folder).map_err(failed("mkdir()", folder))
}

/// Writes a whole entry; its length.
fn write_file(path: &Path, entry: &Entry) -> Result<u64, StoreError> {
    if let Some(folder) = path.parent() {
        // The folder may have been removed by hand while we run.
        files::make_folder(folder).map_err(failed("mkdir()", folder))?;
    }
    let file = files::create(path).map_err(failed("open()", path))?;
    let write =
        |file: &File, bytes: &[u8]| files::write(file, bytes).map_err(failed("write()", path));
    let head = entry.head.encode();
    write(&file, &head)?;
    let mut length = head.len() as u64 + entry.head.body_bytes;
    match &entry.body {
        EntryBody::Memory(bytes) => write(&file, bytes)?,
        EntryBody::File(source, offset) => {
            copy_from(source, *offset, &file).map_err(failed("write()", path))?;
            return Ok(length);
        }
    }
    for (place, form) in entry.forms.iter().enumerate() {
        let Some(made) = form.made() else { continue };
        let head = encode_form(place, made);
        write(&file, &head)?;
        write(&file, &made.1)?;
        length += (head.len() + made.1.len()) as u64;
    }
    Ok(length)
}

fn copy_from(source: &File, offset: u64, target: &File) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = offset;
    loop {
        let count = files::read_at(source, &mut buffer, at)?;
        if count == 0 {
            return Ok(());
        }
        files::write(target, &buffer[..count])?;
        at += count as u64;
    }
}

fn crc_from(file: &File, offset: u64) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut at = offset;
    loop {
        let count = files::read_at(file, &mut buffer, at)?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buffer[..count]);
        at += count as u64;
    }
}

/// The bytes of a small body, from wherever it is.
pub(crate) fn body_bytes(body: &EntryBody, length: u64) -> io::Result<Bytes> {
    match body {
        EntryBody::Memory(bytes) => Ok(bytes.clone()),
        EntryBody::File(file, offset) => {
            let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(&mut bytes, *offset)?;
            Ok(bytes.into())
        }
    }
}
