//! What others delete in a zone's folder: with nginx that is a way to purge, so a page is in memory only as long as its
//! file is there.
//!
//! A hit waits for no disk. It leaves its key, once a second for a page, and the files are looked for behind it.

use crate::files;
use crate::files::failed;
use crate::tiers::Tiers;
use crate::{Key, StoreError};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// Pages that are looked at in one round; chosen: some milliseconds of system calls. Others are with their next hits.
const SIGHTED_MAX: usize = 4096;

/// The pages in memory that had hits since the last round.
#[derive(Debug, Default)]
pub(crate) struct Sighted(Mutex<Vec<Key>>);

impl Sighted {
    pub(crate) fn note(&self, key: Key) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() < SIGHTED_MAX {
            keys.push(key);
        }
    }

    fn take(&self) -> Vec<Key> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Tiers {
    /// Drops what others have deleted: the pages without a file among those that had hits since the last call, or all
    /// that had one, if the folder is not the one that it was. Blocks.
    ///
    /// # Errors
    /// The folder was deleted, or cannot be looked at or made: its files count as there.
    pub(crate) fn drop_deleted(&self) -> Result<(), StoreError> {
        let sighted = self.sighted.take();
        self.check_folder()?;
        sighted.iter().for_each(|key| self.drop_if_deleted(key));
        Ok(())
    }

    /// Drops a page whose file was deleted. One that has none yet stays.
    fn drop_if_deleted(&self, key: &Key) {
        let (digest, path) = (key.digest(), self.path(key));
        if !self.index.holds(&digest) || !matches!(files::identity_at(&path), Ok(None)) {
            return;
        }
        let names = self.folder.names();
        if names.is_owner(self.zone)
            && self.index.holds(&digest)
            && matches!(files::identity_at(&path), Ok(None))
        {
            self.index.forget(&digest);
            self.drop_from_memory(key);
            self.forget_unused(key);
        }
    }

    /// Drops the pages of a folder that was deleted, makes it again where nothing else has, and has it read again: what was
    /// stored since lies in it.
    fn check_folder(&self) -> Result<(), StoreError> {
        let path = &self.options.path;
        let look = || files::identity_at(path).map_err(failed("stat()", path));
        if look()? == self.folder_identity() {
            return Ok(());
        }
        files::make_folder(path).map_err(failed("mkdir()", path))?;
        let found = look()?;
        let _names = self.folder.names();
        for (key, _) in self.all_in_memory() {
            let has_file = || !matches!(files::identity_at(&self.path(&key)), Ok(None));
            if self.index.holds(&key.digest()) && !has_file() {
                self.drop_from_memory(&key);
            }
        }
        self.index.clear();
        self.catalog.with_prefix(b"").iter().for_each(|key| self.forget_unused(key));
        self.is_scanned.store(false, Ordering::Release);
        self.folder.is_another();
        self.set_folder_identity(found);
        Err(StoreError::Vanished { path: path.clone() })
    }
}
