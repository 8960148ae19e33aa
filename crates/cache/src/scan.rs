//! The walk through a zone's folder after a start: what lies there comes into the accounts.

use crate::Key;
use crate::entry_file::{Head, Opened};
use crate::files;
use crate::folder::is_foreign_temporary;
use crate::index::Digest;
use crate::levels::parse_digest;
use crate::pace::Steps;
use crate::tiers::Tiers;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A walk through the folder.
struct Scan<'a> {
    now: i64,
    steps: Steps<'a>,
}

impl Tiers {
    /// Walks the folder once, for the accounting, while it `is_wanted`. Removes temporary files that dead
    /// processes left, and purged responses.
    pub(crate) fn scan(&self, now: i64, is_wanted: &dyn Fn() -> bool) {
        // From here on no older zone of the process changes anything.
        let is_own = self.folder.names().are_of(self.zone);
        if self.is_scanned() || !is_own {
            return;
        }
        self.folder.note_ended(&self.options.path);
        let mut scan = Scan { now, steps: Steps::new(self.options.loader, is_wanted) };
        if self.scan_folder(&self.options.path, self.options.levels.depth(), &mut scan) {
            self.is_scanned.store(true, Ordering::Release);
        }
    }

    /// `false` if it was ended early, or could not be done.
    fn scan_folder(&self, folder: &Path, depth: usize, scan: &mut Scan<'_>) -> bool {
        let items = match files::read_folder(folder) {
            Ok(items) => items,
            // A folder that vanishes during the scan, or may not be read, has nothing to account for.
            Err(error) => return !is_passing(&error),
        };
        for item in items {
            let Ok(item) = item else { return false };
            let (path, name) = (item.path(), item.file_name());
            let Some(name) = name.to_str() else { continue };
            let Ok(metadata) = item.metadata() else { continue };
            if metadata.is_dir() {
                if depth > 0 && !self.scan_folder(&path, depth - 1, scan) {
                    return false;
                }
                continue;
            }
            if is_foreign_temporary(name, self.purge_list().epoch()) {
                // One that takes over while the folder is read has others.
                if self.folder.has_ended(name) {
                    let _ = fs::remove_file(&path);
                }
            } else if let (0, Some(digest)) = (depth, parse_digest(name)) {
                if self.index.holds(&digest) {
                    continue;
                }
                let bytes = self.on_disk(metadata.len());
                if !self.scan_file(&path, digest, bytes, scan.now) {
                    return false;
                }
            } else {
                continue;
            }
            if !scan.steps.next() {
                return false;
            }
        }
        true
    }

    /// Accounts for a file, which takes `bytes` of the disk; `false` if that could not be done.
    pub(crate) fn scan_file(&self, path: &Path, digest: Digest, bytes: u64, now: i64) -> bool {
        if self.index.holds(&digest) {
            return true;
        }
        let found = Opened::new(path).and_then(|opened| opened.head().map(|head| (opened, head)));
        let mut names = self.folder.names();
        if self.index.holds(&digest) || !names.are_of(self.zone) {
            return true;
        }
        let head = match found {
            Ok((opened, head)) if opened.is_at(path) => head,
            // It was removed, or replaced by one that is known.
            Ok(_) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(error) if is_passing(&error) => return false,
            Err(_) => {
                // It may become readable, when the purges that apply to it are forgotten.
                names.remove_later(digest, bytes);
                return true;
            }
        };
        let head = match head {
            Head::Whole(head) => *head,
            Head::Outdated => {
                names.remove_later(digest, bytes);
                return true;
            }
            Head::Damaged => {
                // That is said when it is asked for; until then it has its bytes.
                self.index.remember(digest, bytes, 0, now);
                return true;
            }
        };
        let key = Key::new(head.key.clone());
        let mut is_kept = false;
        self.purge_list().unless_purged(&key, &head, |_| {
            self.catalog.add(&key, &head.tags);
            is_kept = true;
        });
        if is_kept {
            self.index.remember(digest, bytes, self.purge_list().own_number(head.began), now);
        } else {
            // Purged before anything had read it.
            names.remove_later(digest, bytes);
        }
        true
    }
}

/// Whether the error may pass: a process has a limit of open files, and of memory.
fn is_passing(error: &io::Error) -> bool {
    use nix::libc::{EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM};
    error.raw_os_error().is_some_and(|code| [EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM].contains(&code))
}
