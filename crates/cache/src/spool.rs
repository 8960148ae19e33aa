//! Bodies that outgrow memory while they arrive.

use crate::StoreError;
use crate::entry::EntryBody;
use crate::files::{self, failed};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

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
            files::make_folder(folder).map_err(failed("mkdir()", folder))?;
        }
        let file = files::create(&path).map_err(failed("open()", &path))?;
        Ok(Self { file: Arc::new(file), path, bytes: 0 })
    }

    /// Appends to the file.
    ///
    /// # Errors
    /// [`StoreError::Io`], also for a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        files::write(&self.file, bytes).map_err(failed("write()", &self.path))?;
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
