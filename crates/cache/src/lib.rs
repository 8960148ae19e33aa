//! The response store: a memory tier over a disk tier, and the locks that keep one maker per key.
//!
//! Way through: [`Zone::peek`] (memory, never blocks) -> [`Zone::load`] (disk) -> the caller fetches
//! under a [`Fill`] and a [`Making`] -> [`Zone::insert`] (memory at once, [`Zone::write`] behind it).
//!
//! | life of an entry | where | who may read it |
//! | --- | --- | --- |
//! | being made | caller's buffers, key claimed by a [`FillGuard`] | none |
//! | in memory | memory tier, file not yet renamed | every worker |
//! | stored | memory tier and disk tier | every worker, and the next process |
//! | on disk | disk tier | every worker, after [`Zone::load`] verified it |
//! | removed | nowhere | those who still hold the `Arc` |
//!
//! # Invariants
//! - An entry is immutable; a newer one replaces it whole.
//! - A file carries its final name only after every byte was written; it is served only if its
//!   lengths and checksums fit.
//! - Both tiers are bounded in bytes.
//! - What began before a purge is not served to a request that comes after it, and never takes a newer entry's place;
//!   the order is that of numbers, not of clocks.
//! - Policy (freshness, bypass, what may be stored) is the caller's.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test begins at some time"))]

mod beyond;
mod budget;
mod catalog;
mod deleted;
mod disk;
mod entry;
mod entry_file;
mod figures;
mod files;
mod fill;
mod flow;
mod folder;
mod hottest;
mod index;
mod journal;
mod key;
mod lent;
mod levels;
mod notes;
mod pace;
mod purge;
mod purge_list;
mod queue;
mod scan;
mod setbacks;
mod spool;
mod sync;
mod tiers;
mod turns;
mod zone;
#[cfg(test)]
mod zone_faults;

pub use beyond::{Beyond, Known};
pub use budget::{Need, bounds};
pub use disk::DiskOptions;
pub use entry::{Entry, EntryBody, EntryHead, FORMS, Form, HEAD_BYTES_MAX, Length, Part};
pub use figures::{Evicted, Figures, PURGE_KINDS};
pub use fill::{Claim, FillGuard, Waiter, Woken};
pub use flow::{Broken, Filling, Flow, Follower, Piece, Watch};
pub use key::{Key, VariantId};
pub use lent::{Account, Held};
pub use levels::Levels;
pub use pace::Pace;
pub use purge_list::{Making, Moment, Purge, PurgeMode};
pub use queue::{Place, Refused, WAITING_BYTES_MAX};
pub use setbacks::Setbacks;
pub use spool::Spool;
pub use turns::{on_disk, on_disk_behind};
pub use zone::{BODY_IN_MEMORY_MAX, Housekeeping, Zone, ZoneOptions, ZoneUsage};

/// Why the disk tier could not do what was asked. The memory tier goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A system call failed.
    #[error("{call} \"{path}\" failed ({})", yorozu_conf::os_error(source))]
    Io {
        /// The call, as nginx prints it: `open()`.
        call: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The folder was removed while it was used.
    #[error("cache folder \"{path}\" was removed: its pages are dropped, and it is created again")]
    Vanished {
        /// The folder.
        path: std::path::PathBuf,
    },
    /// Several files cannot be removed; they are tried again.
    #[error("{first}, and {more} more files cannot be removed")]
    Stuck {
        /// Why the first one cannot.
        first: Box<StoreError>,
        /// The others.
        more: usize,
    },
    /// A purge holds for this process, and may not outlast it.
    #[error("purged pages may be back after a restart: {why}")]
    Purge {
        /// Why it is not on the disk.
        why: Box<StoreError>,
    },
    /// A file is not what was written: cut short, bits flipped, or of another program.
    #[error("cache file \"{path}\" is damaged ({what}), removing it")]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// Which check failed.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_reported_in_nginxs_words() {
        let (path, source) = ("/cache/a".into(), std::io::Error::from_raw_os_error(28));
        let problem = StoreError::Io { call: "write()", path, source };
        let text = "write() \"/cache/a\" failed (28: No space left on device)";
        assert_eq!(problem.to_string(), text);
    }
}
