//! Small files of others in a zone's folder: what must be lost, or copied, together with its pages. The folder's
//! scan passes over them.

use crate::files::{self, failed};
use crate::{StoreError, Zone};
use std::io;
use std::path::PathBuf;

impl Zone {
    fn note(&self, name: &str) -> PathBuf {
        self.options().disk.path.join(name)
    }

    /// What the note of this name says; `None` if there is none. Blocks.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn read_note(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.note(name);
        match files::read_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(failed("read()", &path)),
        }
    }

    /// Writes a note in the place of the one before, whole or not at all. A power failure may take it back, or empty it.
    /// Blocks.
    ///
    /// # Errors
    /// As the system says; the one before stays.
    pub fn replace_note(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let (path, new) = (self.note(name), self.note(&format!("{name}.new")));
        files::replace(&path, &new, bytes, false)
    }

    /// Adds to the end of a note; it outlasts a power failure when this returns. Blocks.
    ///
    /// # Errors
    /// As the system says; a part may be written.
    pub fn append_note(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.note(name);
        let is_new = !path.exists();
        files::append(&path, bytes, true).map_err(failed("write()", &path))?;
        match is_new {
            true => files::sync_folder(&self.options().disk.path).map_err(failed("fsync()", &path)),
            false => Ok(()),
        }
    }

    /// Removes a note, if it is there. Blocks.
    ///
    /// # Errors
    /// As the system says.
    pub fn remove_note(&self, name: &str) -> Result<(), StoreError> {
        files::remove_if_there(&self.note(name))
    }
}
