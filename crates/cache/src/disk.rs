//! The disk tier: one file per entry in nginx's `levels` layout, found by name.
//!
//! Everything here blocks; callers are on a thread that may.
//!
//! # Invariants
//! - A file gets its name by `rename` after every byte was written to a temporary one.
//! - The index is accounting for `max_size` and `inactive`, never the truth: a file it does not
//!   know yet is found all the same.

use crate::entry::{Entry, EntryBody, EntryHead, PREFIX_BYTES, decode_forms, encode_form};
use crate::{Key, StoreError};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Digest = [u8; 16];

/// Folder depth: up to three levels of one or two hexadecimal digits each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Levels {
    digits: [u8; 3],
}

impl Levels {
    /// Reads `1:2` and the like.
    pub fn parse(text: &str) -> Option<Self> {
        let mut digits = [0; 3];
        for (count, level) in text.split(':').enumerate() {
            *digits.get_mut(count)? = match level {
                "1" => 1,
                "2" => 2,
                _ => return None,
            };
        }
        Some(Self { digits })
    }

    /// `c/29/b7f54b2df7773722d382f4809d65029c` for levels `1:2`: digits are taken from the end.
    fn path(self, root: &Path, digest: &Digest) -> PathBuf {
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut path = root.to_owned();
        let mut end = name.len();
        for digits in self.digits.into_iter().filter(|digits| *digits > 0) {
            let start = end - usize::from(digits);
            path.push(&name[start..end]);
            end = start;
        }
        path.push(name);
        path
    }

    fn depth(self) -> usize {
        self.digits.iter().filter(|digits| **digits > 0).count()
    }
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
}

#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: u64,
    last_used: i64,
}

/// The files of one zone.
#[derive(Debug)]
pub(crate) struct Disk {
    options: DiskOptions,
    index: Mutex<HashMap<Digest, Record>>,
    index_bytes: AtomicU64,
    is_scanned: AtomicBool,
    temporary: AtomicU64,
    /// Held while a file gets its name or loses it, so that what is written again behind a purge or a
    /// newer page cannot take their place.
    names: Mutex<()>,
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { call, path: path.to_owned(), source }
}

impl Disk {
    pub(crate) fn new(options: DiskOptions) -> Result<Self, StoreError> {
        fs::create_dir_all(&options.path).map_err(failed("mkdir()", &options.path))?;
        Ok(Self {
            options,
            index: Mutex::default(),
            index_bytes: AtomicU64::new(0),
            is_scanned: AtomicBool::new(false),
            temporary: AtomicU64::new(0),
            names: Mutex::default(),
        })
    }

    fn index(&self) -> MutexGuard<'_, HashMap<Digest, Record>> {
        // Each use is one call on the map: a panic elsewhere cannot leave it half changed.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn usage(&self) -> (usize, u64) {
        (self.index().len(), self.index_bytes.load(Ordering::Relaxed))
    }

    /// May the key's file exist? `false` is certain only once the first scan has ended.
    pub(crate) fn may_hold(&self, key: &Key) -> bool {
        !self.is_scanned.load(Ordering::Acquire) || self.index().contains_key(&key.digest())
    }

    pub(crate) fn touch(&self, key: &Key, now: i64) {
        if let Some(record) = self.index().get_mut(&key.digest()) {
            record.last_used = record.last_used.max(now);
        }
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
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.forget(&digest);
                return Ok(None);
            }
            Err(error) => return Err(failed("open()", &path)(error)),
        };
        match self.decode(&mut file, &path, key, memory_max, now) {
            Err(error @ StoreError::Damaged { .. }) => {
                let _ = fs::remove_file(&path);
                self.forget(&digest);
                Err(error)
            }
            other => other,
        }
    }

    fn decode(
        &self,
        file: &mut File,
        path: &Path,
        key: &Key,
        memory_max: u64,
        now: i64,
    ) -> Result<Option<Entry>, StoreError> {
        let damaged = |what| StoreError::Damaged { path: path.to_owned(), what };
        let mut prefix = [0; PREFIX_BYTES];
        file.read_exact(&mut prefix).map_err(|_| damaged("shorter than its prefix"))?;
        let (head_bytes, crc) =
            EntryHead::prefix(&prefix).ok_or_else(|| damaged("unknown format"))?;
        let mut head = vec![0; head_bytes];
        file.read_exact(&mut head).map_err(|_| damaged("shorter than its head"))?;
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
            file.read_to_end(&mut body).map_err(failed("read()", path))?;
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
            if crc_of_rest(file).map_err(failed("read()", path))? != head.body_crc {
                return Err(damaged("body checksum"));
            }
            let file = file.try_clone().map_err(failed("dup()", path))?;
            EntryBody::File(Arc::new(file), body_at)
        };
        self.remember(key.digest(), file_bytes, now);
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
            make_folders(&path)?;
            let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_current() {
                return Ok(None);
            }
            fs::rename(&temporary, &path).map_err(failed("rename()", &path))?;
            self.remember(digest, bytes, now);
            Ok(Some(()))
        });
        if !matches!(written, Ok(Some(()))) {
            let _ = fs::remove_file(&temporary);
        }
        written.map(|_| ())
    }

    /// A name of its own inside the cache's folder, so that `rename` never crosses file systems.
    pub(crate) fn temporary_path(&self) -> PathBuf {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        self.options.path.join(format!("{TEMPORARY_PREFIX}{}.{number}", std::process::id()))
    }

    pub(crate) fn remove(&self, key: &Key) -> Result<bool, StoreError> {
        self.remove_digest(&key.digest())
    }

    fn remove_digest(&self, digest: &Digest) -> Result<bool, StoreError> {
        let _names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        self.forget(digest);
        let path = self.options.levels.path(&self.options.path, digest);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("unlink()", &path)(error)),
        }
    }

    fn remember(&self, digest: Digest, bytes: u64, now: i64) {
        let mut index = self.index();
        let old = index.insert(digest, Record { bytes, last_used: now });
        self.index_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.index_bytes.fetch_sub(old.map_or(0, |old| old.bytes), Ordering::Relaxed);
    }

    fn forget(&self, digest: &Digest) {
        let old = self.index().remove(digest);
        self.index_bytes.fetch_sub(old.map_or(0, |old| old.bytes), Ordering::Relaxed);
    }

    /// Walks the folder once, for the accounting; removes temporary files other processes left.
    pub(crate) fn scan(&self, now: i64) {
        self.scan_folder(&self.options.path, self.options.levels.depth(), now);
        self.is_scanned.store(true, Ordering::Release);
    }

    fn scan_folder(&self, folder: &Path, depth: usize, now: i64) {
        // A folder that vanishes under the scan has nothing to account for.
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (item.path(), item.file_name());
            let Some(name) = name.to_str() else { continue };
            let Ok(metadata) = item.metadata() else { continue };
            if metadata.is_dir() {
                if depth > 0 {
                    self.scan_folder(&path, depth - 1, now);
                }
            } else if is_foreign_temporary(name) {
                let _ = fs::remove_file(&path);
            } else if let (0, Some(digest)) = (depth, parse_digest(name)) {
                let is_known = self.index().contains_key(&digest);
                if !is_known {
                    self.remember(digest, metadata.len(), now);
                }
            }
        }
    }

    /// Removes what is unused too long, then the longest unused above the bounds.
    /// Returns how many files went, and calls `gone` with each one's digest.
    pub(crate) fn evict(
        &self,
        now: i64,
        mut gone: impl FnMut(&Digest),
    ) -> Result<usize, StoreError> {
        let mut by_age: Vec<(i64, Digest, u64)> = {
            let index = self.index();
            index.iter().map(|(digest, record)| (record.last_used, *digest, record.bytes)).collect()
        };
        by_age.sort_unstable();
        let mut left = by_age.len();
        let mut bytes = self.index_bytes.load(Ordering::Relaxed);
        let mut removed = 0;
        for (last_used, digest, file_bytes) in by_age {
            let is_unused = now - last_used > self.options.inactive;
            let is_above = left > self.options.files_max
                || self.options.max_size.is_some_and(|max| bytes > max)
                || self.is_disk_tight();
            if !is_unused && !is_above {
                break;
            }
            self.remove_digest(&digest)?;
            gone(&digest);
            (left, bytes, removed) = (left - 1, bytes.saturating_sub(file_bytes), removed + 1);
        }
        Ok(removed)
    }

    fn is_disk_tight(&self) -> bool {
        let Some(min_free) = self.options.min_free else { return false };
        nix::sys::statvfs::statvfs(&self.options.path)
            .is_ok_and(|stat| stat.blocks_available() * stat.fragment_size() < min_free)
    }
}

const TEMPORARY_PREFIX: &str = "tmp.";

fn is_foreign_temporary(name: &str) -> bool {
    let own = format!("{TEMPORARY_PREFIX}{}.", std::process::id());
    name.starts_with(TEMPORARY_PREFIX) && !name.starts_with(&own)
}

fn parse_digest(name: &str) -> Option<Digest> {
    let mut digest = [0; 16];
    if name.len() != 32 || !name.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

fn make_folders(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(failed("mkdir()", folder))
}

/// Writes a whole entry; its length.
fn write_file(path: &Path, entry: &Entry) -> Result<u64, StoreError> {
    if let Some(folder) = path.parent() {
        // The folder may have been removed by hand while we run.
        fs::create_dir_all(folder).map_err(failed("mkdir()", folder))?;
    }
    let mut file = File::create_new(path).map_err(failed("open()", path))?;
    let write =
        |mut file: &File, bytes: &[u8]| file.write_all(bytes).map_err(failed("write()", path));
    let head = entry.head.encode();
    write(&file, &head)?;
    let mut length = head.len() as u64 + entry.head.body_bytes;
    match &entry.body {
        EntryBody::Memory(bytes) => write(&file, bytes)?,
        EntryBody::File(source, offset) => {
            copy_from(source, *offset, &mut file).map_err(failed("write()", path))?;
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

fn copy_from(source: &File, offset: u64, target: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = offset;
    loop {
        let count = source.read_at(&mut buffer, at)?;
        if count == 0 {
            return Ok(());
        }
        target.write_all(&buffer[..count])?;
        at += count as u64;
    }
}

fn crc_of_rest(file: &mut File) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 * 1024];
    let start = file.stream_position()?;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            file.seek(io::SeekFrom::Start(start))?;
            return Ok(hasher.finalize());
        }
        hasher.update(&buffer[..count]);
    }
}

/// A body being collected that outgrew memory: written to a temporary file as it arrives.
#[derive(Debug)]
pub struct Spool {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
}

impl Spool {
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("mkdir()", folder))?;
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed("open()", &path))?;
        Ok(Self { file: Arc::new(file), path, bytes: 0 })
    }

    /// Appends to the file.
    ///
    /// # Errors
    /// [`StoreError::Io`], also for a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        (&*self.file).write_all(bytes).map_err(failed("write()", &self.path))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// The file, from whose start the body lies in it.
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// The bytes as a body, readable though the temporary name is gone.
    pub fn into_body(self) -> EntryBody {
        EntryBody::File(self.file(), 0)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_nginx_lays_them() {
        // The example of nginx's documentation of proxy_cache_path.
        let digest = parse_digest("b7f54b2df7773722d382f4809d65029c").unwrap();
        let path = |levels: &str| {
            let levels = Levels::parse(levels).unwrap();
            levels.path(Path::new("/c"), &digest).display().to_string()
        };
        assert_eq!(path("1:2"), "/c/c/29/b7f54b2df7773722d382f4809d65029c");
        assert_eq!(path("2:1:2"), "/c/9c/2/50/b7f54b2df7773722d382f4809d65029c");
        let flat = Levels::default().path(Path::new("/c"), &digest);
        assert_eq!(flat, Path::new("/c/b7f54b2df7773722d382f4809d65029c"));
        assert_eq!(Levels::parse("3"), None);
        assert_eq!(Levels::parse("1:1:1:1"), None);
    }
}
