//! Names that lines of different modules share: folders, zones of shared memory, pools of threads.

use super::value_error::ValueError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use yorozu_conf::{ConfError, Position};

/// The names of a configuration.
#[derive(Debug, Default)]
pub struct Named {
    folders: BTreeMap<PathBuf, Folder>,
    /// By name, the directive that it belongs to and its size; 0 where none was said yet.
    zones: BTreeMap<String, (String, u64)>,
    pools: Vec<String>,
    asked_pools: Vec<(String, Position)>,
}

/// A folder that the server writes into.
#[derive(Debug)]
struct Folder {
    is_cache: bool,
    levels: Vec<u64>,
    at: Position,
}

impl Named {
    /// Notes a folder for temporary files, which several lines may name, or the folder of a cache, which no other line may.
    ///
    /// # Errors
    /// As nginx's.
    pub fn folder(
        &mut self,
        path: &Path,
        is_cache: bool,
        levels: Vec<u64>,
        at: &Position,
    ) -> Result<(), ValueError> {
        let shown = path.display();
        let Some(other) = self.folders.get(path) else {
            self.folders.insert(path.to_owned(), Folder { is_cache, levels, at: at.clone() });
            return Ok(());
        };
        if is_cache || other.is_cache {
            let text = format!("the same path name \"{shown}\" used in {} and", other.at);
            return Err(ValueError(text));
        }
        if other.levels != levels {
            return Err(ValueError(format!(
                "the same path name \"{shown}\" in {} has the different levels than",
                other.at
            )));
        }
        Ok(())
    }

    /// Notes a zone of shared memory, though threads share everything without it: two modules may not have one of the same
    /// name, and it has one size.
    ///
    /// # Errors
    /// As nginx's.
    pub fn zone(&mut self, name: &str, of: &str, bytes: u64) -> Result<(), ValueError> {
        let (owner, known) =
            self.zones.entry(name.to_owned()).or_insert_with(|| (of.to_owned(), 0));
        if owner != of {
            return Err(ValueError(format!(
                "the shared memory zone \"{name}\" is already declared for a different use"
            )));
        }
        if bytes != 0 && *known != 0 && *known != bytes {
            return Err(ValueError(format!(
                "the size {bytes} of shared memory zone \"{name}\" conflicts with already declared size {known}"
            )));
        }
        *known = bytes.max(*known);
        Ok(())
    }

    /// A zone that some line of a directive names without a size, and no line with one.
    pub fn zone_without_size(&self, of: &str) -> Option<&str> {
        let mut zones = self.zones.iter();
        zones.find(|(_, (owner, bytes))| owner == of && *bytes == 0).map(|(name, _)| &**name)
    }

    /// Notes a `thread_pool`.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn pool(&mut self, name: String) -> Result<(), ValueError> {
        if self.pools.contains(&name) {
            return Err(ValueError(format!("duplicate thread pool \"{name}\"")));
        }
        self.pools.push(name);
        Ok(())
    }

    /// Notes that a line names a pool, which may be defined behind it.
    pub fn ask_pool(&mut self, name: String, at: Position) {
        self.asked_pools.push((name, at));
    }

    /// Checks that the pools that lines name are defined, or the one that always is.
    ///
    /// # Errors
    /// One is not.
    pub fn check_pools(&self) -> Result<(), ConfError> {
        let is_unknown = |name: &String| name != "default" && !self.pools.contains(name);
        match self.asked_pools.iter().find(|(name, _)| is_unknown(name)) {
            Some((name, at)) => Err(ValueError(format!("unknown thread pool \"{name}\"")).at(at)),
            None => Ok(()),
        }
    }
}
