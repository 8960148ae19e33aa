//! Whose folder a zone's is: two processes that share one remove each other's files.

use crate::StoreError;
use crate::disk::failed;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Locked by the process whose folder it is.
const LOCK_NAME: &str = "yorozu.lock";

/// Folders whose lock this process holds: zones of an old configuration may still be in use beside those of
/// the new one.
static OURS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder's lock.
#[derive(Debug)]
pub(crate) enum Lock {
    /// Held until it is dropped; a process that is killed has it no more.
    Held(#[allow(dead_code, reason = "held, not used")] Flock<File>, PathBuf),
    /// Held by another zone of this process.
    Shared,
    /// Another process has the folder.
    Foreign,
}

impl Lock {
    /// Is the folder no other process's? One that was may have ended since.
    pub(crate) fn is_ours(lock: &Mutex<Self>, folder: &Path) -> bool {
        let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*lock, Self::Foreign) {
            if let Ok(again) = Self::new(folder) {
                *lock = again;
            }
        }
        !matches!(*lock, Self::Foreign)
    }

    pub(crate) fn new(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(LOCK_NAME);
        // To read is enough for a lock; another user may have made the file.
        let file = File::open(&path).or_else(|_| File::create(&path));
        let file = file.map_err(failed("open()", &path))?;
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                ours.push(path.clone());
                Ok(Self::Held(lock, path))
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) if ours.contains(&path) => Ok(Self::Shared),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(Self::Foreign),
            Err((_, error)) => Err(failed("flock()", &path)(error.into())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Self::Held(_, path) = self {
            OURS.lock().unwrap_or_else(PoisonError::into_inner).retain(|ours| ours != path);
        }
    }
}
