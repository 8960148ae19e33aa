//! A zone's folder: this process's, once, however many zones are opened on it.
//!
//! A reload that changes a zone opens another one on the same folder, while requests of the old
//! configuration still use the old one. What must be one for both is here: the lock that keeps other
//! processes away, the list of purges, the names of the files, and which zone has these.
//!
//! # Invariants
//! - While any zone of this process has the folder, the process has the lock, unless another one had it
//!   before.
//! - Of several zones the newest that has acted on the files has them: older ones give no names and remove
//!   none.
//! - A file gets its name, loses it, and is looked for under the lock of the names, together with what the
//!   index and the catalog say of it.

use crate::StoreError;
use crate::files::{self, failed};
use crate::index::Digest;
use crate::journal::Journal;
use crate::purge_list::{Left, PurgeList};
use crate::sync::{Mutex, MutexGuard};
use crate::tiers::Tiers;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{self, Arc, OnceLock, PoisonError, Weak};

/// Locked by the process whose folder it is.
const LOCK_NAME: &str = "yorozu.lock";

/// The folders of this process, by their real paths.
static OPEN: sync::Mutex<BTreeMap<PathBuf, Weak<Folder>>> = sync::Mutex::new(BTreeMap::new());

/// Folders in which names were lost since they were last brought to the disk: a power failure may bring them
/// back.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    folders: HashSet<PathBuf>,
    is_many: bool,
}

impl Unsynced {
    pub(crate) fn note(&mut self, folder: &Path) {
        /// Of more folders the whole file system is brought to the disk; chosen.
        const FEW: usize = 64;
        if self.is_many || self.folders.contains(folder) {
            return;
        }
        self.folders.insert(folder.to_owned());
        if self.folders.len() > FEW {
            *self = Self { folders: HashSet::new(), is_many: true };
        }
    }

    /// Brings them to the disk. Blocks for long.
    pub(crate) fn sync(&self, root: &Path) -> Result<(), StoreError> {
        if self.is_many {
            return files::sync_all_folders(root).map_err(failed("syncfs()", root));
        }
        for folder in &self.folders {
            match files::sync_folder(folder) {
                // Removed with all that was in it: that is its parent's to say.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                synced => synced.map_err(failed("fsync()", folder))?,
            }
        }
        Ok(())
    }

    fn join(&mut self, other: &Self) {
        self.is_many |= other.is_many;
        other.folders.iter().for_each(|folder| self.note(folder));
    }
}

/// What is known of the names in a folder beside the index.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The zone whose they are.
    owner: u64,
    /// Files that hold no page any more and are to be removed, with their bytes.
    pub(crate) pending: BTreeMap<Digest, u64>,
    pending_bytes: u64,
    /// Files that could not be removed, of which the log has a line.
    pub(crate) stuck: HashSet<Digest>,
    /// The first of those that are not reported yet, and how many more there are.
    problem: Option<(StoreError, usize)>,
    pub(crate) unsynced: Unsynced,
}

impl Names {
    /// Whether the zone may give and take names. From here on no older zone may.
    pub(crate) fn are_of(&mut self, zone: u64) -> bool {
        if zone > self.owner {
            // What the older one had not removed yet is found by the newer one's scan.
            (self.owner, self.pending, self.pending_bytes) = (zone, BTreeMap::new(), 0);
        }
        zone == self.owner
    }

    /// Whether it already may, without taking them from an older zone.
    pub(crate) fn is_owner(&self, zone: u64) -> bool {
        zone == self.owner
    }

    /// The file is removed by the manager.
    pub(crate) fn remove_later(&mut self, digest: Digest, bytes: u64) {
        self.pending_bytes += bytes;
        self.pending_bytes -= self.pending.insert(digest, bytes).unwrap_or(0);
    }

    /// Files that are to be removed, and their bytes.
    pub(crate) fn pending_usage(&self) -> (usize, u64) {
        (self.pending.len(), self.pending_bytes)
    }

    /// A file that was to be removed is gone, or its name is another one's now.
    pub(crate) fn is_settled(&mut self, digest: &Digest) {
        self.pending_bytes -= self.pending.remove(digest).unwrap_or(0);
        self.stuck.remove(digest);
    }

    /// The files whose removal is pending, if none of them can be removed.
    pub(crate) fn all_stuck(&self) -> Option<Vec<Digest>> {
        let is_stuck = |digest: &Digest| self.stuck.contains(digest);
        self.pending.keys().all(is_stuck).then(|| self.pending.keys().copied().collect())
    }

    /// A file cannot be removed: that is said once.
    pub(crate) fn is_stuck(&mut self, digest: &Digest, problem: StoreError) {
        if self.stuck.insert(*digest) {
            match &mut self.problem {
                Some((_, more)) => *more += 1,
                none => *none = Some((problem, 0)),
            }
        }
    }

    /// What is to be said about files that could not be removed.
    pub(crate) fn take_problem(&mut self) -> Option<StoreError> {
        let (first, more) = self.problem.take()?;
        Some(match more {
            0 => first,
            more => StoreError::Stuck { first: Box::new(first), more },
        })
    }

    /// The names may be on the disk: notes what is lost from here on alone.
    pub(crate) fn take_unsynced(&mut self) -> Unsynced {
        std::mem::take(&mut self.unsynced)
    }

    /// They are not on the disk after all.
    pub(crate) fn give_back(&mut self, unsynced: &Unsynced) {
        self.unsynced.join(unsynced);
    }
}

/// One folder with the zones of this process on it.
#[derive(Debug)]
pub(crate) struct Folder {
    lock: Mutex<Option<Flock<File>>>,
    lock_path: PathBuf,
    pub(crate) purge_list: Arc<PurgeList>,
    pub(crate) journal: Journal,
    names: Mutex<Names>,
    /// How many purges are being done.
    purges: Mutex<usize>,
    zones: Mutex<Zones>,
    temporary: AtomicU64,
    /// The processes whose temporary files were there when this one first read the folder as its only user: they
    /// have ended.
    ended: OnceLock<HashSet<String>>,
}

#[derive(Debug, Default)]
struct Zones {
    last: u64,
    tiers: Vec<Weak<Tiers>>,
}

/// A purge, while it is being done.
pub(crate) struct OnePurge<'a>(&'a Mutex<usize>);

impl Drop for OnePurge<'_> {
    fn drop(&mut self) {
        *locked(self.0) -= 1;
    }
}

/// Each use of these leaves them whole: a panic elsewhere cannot leave them half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Folder {
    /// The folder at `path`, made when missing.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>, StoreError> {
        files::make_folder(path).map_err(failed("mkdir()", path))?;
        let real = path.canonicalize().map_err(failed("realpath()", path))?;
        // As [`locked`].
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, folder| folder.strong_count() > 0);
        if let Some(folder) = open.get(&real).and_then(Weak::upgrade) {
            return Ok(folder);
        }
        let lock = try_lock(&path.join(LOCK_NAME))?;
        let (journal, left) = Journal::open(path)?;
        let folder = Self::new(path, lock, journal, left);
        open.insert(real, Arc::downgrade(&folder));
        Ok(folder)
    }

    /// The folder as one that is only looked at: nothing is made in it, and it need not be there yet.
    ///
    /// # Errors
    /// It could not be made, or written to.
    pub(crate) fn look(path: &Path) -> Result<Arc<Self>, StoreError> {
        let existing = path.ancestors().find(|folder| folder.symlink_metadata().is_ok());
        let existing = existing.filter(|folder| !folder.as_os_str().is_empty());
        let existing = existing.unwrap_or(Path::new("."));
        if !existing.is_dir() {
            return Err(failed("mkdir()", path)(Errno::ENOTDIR.into()));
        }
        let writable = access(existing, AccessFlags::W_OK | AccessFlags::X_OK);
        writable.map_err(|errno| failed("mkdir()", path)(errno.into()))?;
        Ok(Self::without_files(path))
    }

    /// The folder as one that nothing is read from.
    pub(crate) fn without_files(path: &Path) -> Arc<Self> {
        Self::new(path, None, Journal::without_file(path), Left::default())
    }

    fn new(path: &Path, lock: Option<Flock<File>>, journal: Journal, left: Left) -> Arc<Self> {
        Arc::new(Self {
            lock: Mutex::new(lock),
            lock_path: path.join(LOCK_NAME),
            purge_list: PurgeList::new(left),
            journal,
            names: Mutex::default(),
            purges: Mutex::default(),
            zones: Mutex::default(),
            temporary: AtomicU64::new(0),
            ended: OnceLock::new(),
        })
    }

    /// Joins a zone, under a number above those of all before it.
    pub(crate) fn join(&self, zone: impl FnOnce(u64) -> Tiers) -> Arc<Tiers> {
        let mut zones = locked(&self.zones);
        zones.last += 1;
        let tiers = Arc::new(zone(zones.last));
        zones.tiers.retain(|tiers| tiers.strong_count() > 0);
        zones.tiers.push(Arc::downgrade(&tiers));
        tiers
    }

    /// The zones on the folder.
    pub(crate) fn tiers(&self) -> Vec<Arc<Tiers>> {
        locked(&self.zones).tiers.iter().filter_map(Weak::upgrade).collect()
    }

    /// The name of a new temporary file.
    pub(crate) fn temporary_name(&self) -> String {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        format!("{}{number}", temporary_prefix(self.purge_list.epoch()))
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        locked(&self.names)
    }

    /// Whether no other process uses it; a process that did may have ended since.
    pub(crate) fn is_alone(&self) -> bool {
        let mut lock = locked(&self.lock);
        if lock.is_none() {
            *lock = try_lock(&self.lock_path).unwrap_or_default();
            if lock.is_some() && self.adopt().is_err() {
                // What it purged is not known: later, again.
                *lock = None;
            }
        }
        lock.is_some()
    }

    /// It was deleted and made again: its lock is another file's, and so is the journal, if there is one.
    pub(crate) fn is_another(&self) {
        *locked(&self.lock) = try_lock(&self.lock_path).unwrap_or_default();
        self.journal.is_another();
    }

    /// Notes, before the folder is read, which processes left temporary files in it. A process that comes later,
    /// and shares the folder for a while, may still use its files.
    pub(crate) fn note_ended(&self, path: &Path) {
        if self.ended.get().is_some() || !self.is_alone() {
            return;
        }
        if let Ok(items) = files::read_folder(path) {
            let names = items.flatten().filter_map(|item| item.file_name().into_string().ok());
            let _ = self.ended.set(names.filter_map(|name| process_of(&name)).collect());
        }
    }

    /// Whether the temporary file was left by a process that has ended.
    pub(crate) fn has_ended(&self, name: &str) -> bool {
        let ended = self.ended.get();
        ended.is_some_and(|ended| process_of(name).is_some_and(|process| ended.contains(&process)))
    }

    /// Takes over the purges of the process that had the folder until now.
    fn adopt(&self) -> Result<(), StoreError> {
        self.purge_list.adopt(self.journal.read(self.purge_list.epoch())?);
        self.tiers().iter().for_each(|tier| tier.drop_purged());
        Ok(())
    }

    pub(crate) fn begin_purge(&self) -> OnePurge<'_> {
        *locked(&self.purges) += 1;
        OnePurge(&self.purges)
    }

    /// What `look` finds while no purge is being done; `None` if one is.
    pub(crate) fn between_purges<T>(&self, look: impl FnOnce() -> Option<T>) -> Option<T> {
        let count = locked(&self.purges);
        if *count == 0 { look() } else { None }
    }
}

const TEMPORARY_PREFIX: &str = "tmp.";

/// What the names of temporary files begin with. Process ids come again, and in a container are always the
/// same.
fn temporary_prefix(epoch: u64) -> String {
    format!("{TEMPORARY_PREFIX}{epoch:016x}.")
}

pub(crate) fn is_foreign_temporary(name: &str, epoch: u64) -> bool {
    name.starts_with(TEMPORARY_PREFIX) && !name.starts_with(&temporary_prefix(epoch))
}

/// The process whose temporary file has this name, in the format of any version.
fn process_of(name: &str) -> Option<String> {
    name.strip_prefix(TEMPORARY_PREFIX)?.split('.').next().map(str::to_owned)
}

/// The folder's lock; `None` if another process has it.
fn try_lock(path: &Path) -> Result<Option<Flock<File>>, StoreError> {
    // To read is enough for a lock; another user may have made the file.
    let file = File::open(path).or_else(|_| {
        File::options().write(true).create(true).truncate(true).mode(0o644).open(path)
    });
    let file = file.map_err(failed("open()", path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(failed("flock()", path)(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use crate::levels::Levels;
    use crate::pace::Pace;
    use crate::{DiskOptions, Zone, ZoneOptions};
    use std::fs;

    #[test]
    fn temporary_files_of_who_comes_while_the_folder_is_read_stay() {
        let path = std::env::temp_dir().join(format!("yorozu-folder.{}", std::process::id()));
        let pace = Pace { files: 1, sleep: std::time::Duration::ZERO, ..Pace::default() };
        let disk = DiskOptions {
            path: path.clone(),
            levels: Levels::parse("1").unwrap(),
            max_size: None,
            min_free: None,
            files_max: 10,
            inactive: 600,
            loader: pace,
            manager: pace,
        };
        let zone = Zone::open(ZoneOptions { memory_bytes: 1 << 20, disk }).unwrap();
        let left = ["tmp.00000000000000aa.1", "tmp.123.1"].map(|name| path.join(name));
        let used = path.join("tmp.00000000000000bb.1");
        left.iter().for_each(|file| fs::write(file, b"left").unwrap());
        // It is interrupted, as by a reload; meanwhile another process begins to take over.
        zone.scan(0, &|| false);
        fs::write(&used, b"used").unwrap();
        zone.scan(0, &|| true);
        assert!(left.iter().all(|file| !file.exists()) && used.exists());
        drop(zone);
        fs::remove_dir_all(path).unwrap();
    }
}
