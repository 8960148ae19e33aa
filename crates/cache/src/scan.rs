//! The walk through a zone's folder after a start: what lies there comes into the accounts.

use crate::Key;
use crate::entry_file::Opened;
use crate::files;
use crate::folder::{Doomed, is_foreign_temporary};
use crate::index::Digest;
use crate::levels::parse_digest;
use crate::pace::Steps;
use crate::tiers::Tiers;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A walk through the folder.
struct Scan<'a> {
    now: i64,
    steps: Steps<'a>,
}

impl Tiers {
    /// Walks the folder once, for the accounting, while it `is_wanted`. Removes temporary files that dead
    /// processes left, and stored responses that a purge met.
    pub(crate) fn scan(&self, now: i64, is_wanted: &dyn Fn() -> bool) {
        // From here on no older zone of the process changes anything.
        let is_own = self.folder.names().are_of(self.zone);
        if self.is_scanned() || !is_own {
            return;
        }
        let mut scan = Scan { now, steps: Steps::new(self.options.loader, is_wanted) };
        if self.scan_folder(&self.options.path, self.options.levels.depth(), &mut scan) {
            self.is_scanned.store(true, Ordering::Release);
        }
    }

    /// `false` if it was ended early.
    fn scan_folder(&self, folder: &Path, depth: usize, scan: &mut Scan<'_>) -> bool {
        // A folder that vanishes under the scan has nothing to account for.
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (item.path(), item.file_name());
            let Some(name) = name.to_str() else { continue };
            let Ok(metadata) = item.metadata() else { continue };
            if metadata.is_dir() {
                if depth > 0 && !self.scan_folder(&path, depth - 1, scan) {
                    return false;
                }
                continue;
            }
            if is_foreign_temporary(name, self.marks().epoch()) {
                // Of a process that lives and shares the folder it may be in use.
                if self.folder.is_alone() {
                    let _ = fs::remove_file(&path);
                }
            } else if let (0, Some(digest)) = (depth, parse_digest(name)) {
                self.scan_file(&path, digest, metadata.len(), scan.now);
            }
            if !scan.steps.next() {
                return false;
            }
        }
        true
    }

    fn scan_file(&self, path: &Path, digest: Digest, bytes: u64, now: i64) {
        if self.index.holds(&digest) {
            return;
        }
        let opened = Opened::new(path).ok();
        let is_outdated = opened.as_ref().is_some_and(Opened::is_outdated);
        let head = opened.as_ref().and_then(Opened::head);
        let mut names = self.folder.names();
        let has_name = opened.as_ref().is_none_or(|opened| opened.is_at(path));
        if self.index.holds(&digest) || !has_name || !names.are_of(self.zone) {
            return;
        }
        let Some(head) = head else {
            // Whatever cannot be read: it is damaged when it is asked for, and has its bytes until then.
            if !is_outdated || files::remove(path).is_err() {
                self.index.remember(digest, bytes, 0, now);
            }
            return;
        };
        let key = Key::primary(head.key);
        let is_kept = self.marks().unless_met(&key, &head.tags, head.began, |_| {
            self.catalog.add(&key, &head.tags);
            true
        });
        if is_kept {
            self.index.remember(digest, bytes, self.marks().own_number(head.began), now);
        } else {
            // Purged, though nobody had read it yet.
            names.doom(Doomed { digest, bytes });
        }
    }
}
