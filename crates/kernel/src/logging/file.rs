//! Log files: opened once per path, opened again on USR1, shared by all workers and loads.

#![expect(clippy::disallowed_methods, reason = "opened at a start and by `reopen`")]

use arc_swap::ArcSwap;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{AccessFlags, access};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One log.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: ArcSwap<File>,
}

/// All logs of the process.
#[derive(Debug, Default)]
pub struct LogFiles {
    /// Closed with the last configuration that names them.
    by_path: Mutex<BTreeMap<PathBuf, Weak<LogFile>>>,
    /// Whether it is only looked whether they could be opened.
    is_test: bool,
}

fn open(path: &Path, makes: bool) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(makes);
    if !path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return options.open(path);
    }
    // A pipe without a reader is a fault, not something to wait for; one with a reader may be full for a while.
    let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

/// A file that stands for one which can be opened, or made.
fn look(path: &Path) -> io::Result<File> {
    match open(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let rights = AccessFlags::W_OK | AccessFlags::X_OK;
            access(folder.unwrap_or(Path::new(".")), rights)?;
        }
        found => drop(found?),
    }
    File::options().append(true).open("/dev/null")
}

impl LogFile {
    /// Appends whole lines with one call; a log that cannot be written is not worth a request.
    pub fn write(&self, lines: &[u8]) {
        let _ = (&**self.file.load()).write_all(lines);
    }
}

impl LogFiles {
    /// Logs of a configuration that is only tested: none is made or written to.
    pub fn for_test() -> Self {
        Self { is_test: true, ..Self::default() }
    }

    /// The log at `path`, opened if it is new.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn get(&self, path: &Path) -> io::Result<Arc<LogFile>> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = by_path.get(path).and_then(Weak::upgrade) {
            return Ok(log);
        }
        by_path.retain(|_, log| log.strong_count() > 0);
        let file = if self.is_test { look(path)? } else { open(path, true)? };
        let log = Arc::new(LogFile { path: path.to_owned(), file: ArcSwap::from_pointee(file) });
        by_path.insert(path.to_owned(), Arc::downgrade(&log));
        Ok(log)
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

    /// Gives every file to `user`, so that it can be opened again after the change of user.
    pub fn give_to(&self, user: nix::unistd::Uid) {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        for path in by_path.keys() {
            let _ = nix::unistd::chown(path, Some(user), None);
        }
    }
}
