//! Purges that Redis has not taken yet, for the next process: the file `yorozu.bus.queue` beside the pages of their zone.
//!
//! Lines as in the stream. A file is removed when all of them were sent; who dies before that sends them again.

use super::message::Purged;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use yorozu_cache::{StoreError, Zone};

const NAME: &str = "yorozu.bus.queue";

/// What waits in the folder of a zone, as lines. Blocks.
///
/// # Errors
/// There is a file that cannot be read.
pub(super) fn read(zone: &Zone) -> Result<String, StoreError> {
    let bytes = zone.read_note(NAME)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The folders that have such a file.
#[derive(Debug, Default)]
pub(super) struct OnDisk(Vec<PathBuf>);

fn folder(zone: &Zone) -> &Path {
    &zone.options().disk.path
}

impl OnDisk {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn note(&mut self, zone: &Zone) {
        if !self.0.iter().any(|path| path == folder(zone)) {
            self.0.push(folder(zone).to_owned());
        }
    }

    /// Adds a purge. Blocks.
    ///
    /// # Errors
    /// It may not outlast the process.
    pub(super) fn append(&mut self, zone: &Zone, purged: &Purged) -> Result<(), StoreError> {
        self.note(zone);
        // Never joined to a torn line.
        zone.append_note(NAME, format!("\n{}", purged.to_lines()).as_bytes())
    }

    /// Puts a purge in the place of all before. Blocks.
    ///
    /// # Errors
    /// Those of before stay.
    pub(super) fn replace(&mut self, zone: &Zone, purged: &Purged) -> Result<(), StoreError> {
        self.note(zone);
        zone.replace_note(NAME, purged.to_lines().as_bytes())
    }

    /// Removes the files of these zones. Blocks.
    ///
    /// # Errors
    /// One of them stays, and is sent again by the next process.
    pub(super) fn clear(&mut self, zones: &[(String, Arc<Zone>)]) -> Result<(), StoreError> {
        let paths = std::mem::take(&mut self.0);
        let mut have_it =
            zones.iter().filter(|(_, zone)| paths.iter().any(|it| it == folder(zone)));
        have_it.try_for_each(|(_, zone)| zone.remove_note(NAME))
    }
}
