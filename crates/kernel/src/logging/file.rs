//! Log files: opened once per path, opened again on USR1, shared by all workers and loads. The master process opens
//! them; the server process is given them open.

#![expect(clippy::disallowed_methods, reason = "opened at a start and by `reopen`")]

use crate::base::counters::COUNTERS;
use crate::files::is_own_folder;
use crate::logging::memory::Ring;
use crate::logging::writer::{self, Queue};
use arc_swap::ArcSwap;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl};
use nix::unistd::{AccessFlags, access, fchownat};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One log.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: ArcSwap<File>,
    queue: Queue,
}

/// All logs of the process.
#[derive(Debug, Default)]
pub struct LogFiles {
    /// Closed with the last configuration that names them.
    by_path: Mutex<BTreeMap<PathBuf, Weak<LogFile>>>,
    /// Those that were asked for since [`LogFiles::named`] was called last: a configuration may name one and not use it.
    named: Mutex<Vec<Arc<LogFile>>>,
    /// Those in memory, by their size: a reload goes on with them.
    rings: Mutex<BTreeMap<usize, Weak<Ring>>>,
    origin: Origin,
}

/// Where open logs come from.
#[derive(Debug, Default)]
enum Origin {
    /// They are opened, and made.
    #[default]
    Opened,
    /// It is only looked whether they could be opened.
    LookedAt,
    /// The master process opened them: those that no configuration uses yet.
    Given(Mutex<BTreeMap<PathBuf, File>>),
}

fn open(path: &Path, makes: bool) -> io::Result<File> {
    let mut options = File::options();
    // As nginx, whatever the umask: who writes there says what others are thought to have done.
    options.append(true).create(makes).mode(0o644);
    if !path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return options.open(path);
    }
    // A pipe without a reader is a fault, not something to wait for; one with a reader may be full for a while.
    let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

/// Looks whether a file can be written, or made, and does neither.
///
/// # Errors
/// As opening it would give.
pub fn look(path: &Path) -> io::Result<()> {
    match open(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let rights = AccessFlags::W_OK | AccessFlags::X_OK;
            access(folder.unwrap_or(Path::new(".")), rights)?;
        }
        found => drop(found?),
    }
    Ok(())
}

impl LogFile {
    /// Appends whole lines, soon; a log that cannot be written is not worth a request.
    pub fn write(self: &Arc<Self>, lines: &[u8]) {
        self.write_as(lines, || count(lines));
    }

    /// The same in another form; `lines` counts them, should they be lost.
    pub fn write_as(self: &Arc<Self>, bytes: &[u8], lines: impl FnOnce() -> usize) {
        self.put(bytes, lines(), false);
    }

    /// Appends a line that is there when this returns, unless the disk does not respond.
    pub fn write_now(self: &Arc<Self>, line: &[u8]) {
        self.put(line, count(line), true);
    }

    fn put(self: &Arc<Self>, bytes: &[u8], lines: usize, is_urgent: bool) {
        if !writer::put(self, bytes, lines, is_urgent) {
            self.write_directly(bytes, lines);
        }
    }

    /// Appends lines with one call, which may block.
    pub(super) fn write_directly(&self, bytes: &[u8], lines: usize) {
        if (&**self.file.load()).write_all(bytes).is_err() {
            COUNTERS.log_lines_lost.fetch_add(lines as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}

fn count(lines: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', lines).count()
}

impl LogFiles {
    /// Logs of a configuration that is only tested: none is made or written to.
    pub fn for_test() -> Self {
        Self { origin: Origin::LookedAt, ..Self::default() }
    }

    /// Logs of the server process, which the master process opens.
    pub fn given() -> Self {
        Self { origin: Origin::Given(Mutex::default()), ..Self::default() }
    }

    /// Whether a log that could not be opened was reported already, by the master process.
    pub(super) fn are_reported(&self) -> bool {
        matches!(self.origin, Origin::Given(_))
    }

    /// The log at `path`, opened if it is new.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn get(&self, path: &Path) -> io::Result<Arc<LogFile>> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = by_path.get(path).and_then(Weak::upgrade) {
            self.note(&log);
            return Ok(log);
        }
        by_path.retain(|_, log| log.strong_count() > 0);
        let file = match &self.origin {
            Origin::Opened => open(path, true)?,
            Origin::LookedAt => {
                look(path)?;
                File::options().append(true).open("/dev/null")?
            }
            Origin::Given(files) => {
                let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                files.remove(path).ok_or(io::ErrorKind::NotFound)?
            }
        };
        let (file, queue) = (ArcSwap::from_pointee(file), Queue::default());
        let log = Arc::new(LogFile { path: path.to_owned(), file, queue });
        by_path.insert(path.to_owned(), Arc::downgrade(&log));
        self.note(&log);
        Ok(log)
    }

    /// The log in memory of this size; logs of one size are one.
    pub fn ring(&self, bytes: usize) -> Arc<Ring> {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = rings.get(&bytes).and_then(Weak::upgrade) {
            return ring;
        }
        let ring = Arc::new(Ring::new(bytes));
        rings.insert(bytes, Arc::downgrade(&ring));
        ring
    }

    fn note(&self, log: &Arc<LogFile>) {
        // The server process needs those alone that are used.
        if matches!(self.origin, Origin::Opened) {
            self.named.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(log));
        }
    }

    /// Opens every file again, for log rotation; one that cannot be opened keeps its old file.
    /// Returns what failed.
    pub fn reopen(&self) -> Vec<(PathBuf, io::Error)> {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        for log in by_path.values().filter_map(Weak::upgrade) {
            match open(&log.path, true) {
                Ok(file) => log.file.store(Arc::new(file)),
                Err(error) => failed.push((log.path.clone(), error)),
            }
        }
        failed
    }

    /// The logs that were asked for since this was called last: what keeps them open.
    pub fn named(&self) -> Vec<Arc<LogFile>> {
        std::mem::take(&mut *self.named.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All files in use, for the server process. They are lent: ten thousand logs need no second descriptor here.
    pub fn lent(&self) -> Vec<(PathBuf, Arc<File>)> {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let logs = by_path.values().filter_map(Weak::upgrade);
        logs.map(|log| (log.path.clone(), log.file.load_full())).collect()
    }

    /// Takes files that the master process opened: for logs in use at once, for others when a configuration names them.
    pub fn take(&self, given: impl IntoIterator<Item = (PathBuf, File)>) {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, file) in given {
            match (by_path.get(&path).and_then(Weak::upgrade), &self.origin) {
                (Some(log), _) => log.file.store(Arc::new(file)),
                (None, Origin::Given(files)) => {
                    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                    files.insert(path, file);
                }
                (None, _) => {}
            }
        }
    }

    /// Forgets files that were given, and that the configuration which was just loaded does not name.
    pub fn forget_unused(&self) {
        if let Origin::Given(files) = &self.origin {
            files.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Gives every file to `user`, as nginx does when it opens logs again: rotation tools find them as they expect.
    /// Not in folders where another user could have put something else in its place.
    pub fn give_to(&self, user: nix::unistd::Uid) {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let is_safe = |path: &&PathBuf| path.parent().is_some_and(is_own_folder);
        for path in by_path.keys().filter(is_safe) {
            let _ = fchownat(AT_FDCWD, path, Some(user), None, AtFlags::AT_SYMLINK_NOFOLLOW);
        }
    }
}
