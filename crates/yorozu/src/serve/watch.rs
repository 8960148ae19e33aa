//! Files of an application while it is written: what changes them makes its pages old.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is changed together is: an editor writes a file by two or three steps, a checkout many files.
const SETTLED: Duration = Duration::from_millis(100);
/// How often it is waited for that: signals are not heard meanwhile, and something may change all the time.
const ROUNDS_MAX: usize = 10;
/// Folders that are watched; the system has a bound of its own (`fs.inotify.max_user_watches`).
const FOLDERS_MAX: usize = 8192;
/// Folders of others' code and of what an application writes while it runs.
const PASSED_OVER: [&str; 11] = [
    "cache",
    "files",
    "log",
    "logs",
    "node_modules",
    "sessions",
    "storage",
    "tmp",
    "uploads",
    "var",
    "vendor",
];
/// Ends of names of what is written by people: scripts, templates, texts, settings.
const SOURCES: [&str; 22] = [
    "conf", "css", "env", "htm", "html", "inc", "ini", "js", "json", "latte", "md", "module",
    "neon", "php", "phtml", "theme", "tpl", "twig", "txt", "xml", "yaml", "yml",
];

/// The folders that are watched.
pub(super) struct Watch {
    inotify: Inotify,
    folders: HashMap<WatchDescriptor, PathBuf>,
    is_full: bool,
}

impl Watch {
    /// Watches folders, and what is below them.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn of<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Self, String> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC);
        let inotify = inotify.map_err(|why| format!("inotify_init1() failed ({why})"))?;
        let mut watch = Self { inotify, folders: HashMap::new(), is_full: false };
        for folder in folders {
            watch.add(folder);
        }
        Ok(watch)
    }

    fn add(&mut self, folder: &Path) {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_ONLYDIR;
        if self.folders.len() >= FOLDERS_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                say!(
                    "yorozu: [warn] \"{}\" and others are not watched: {FOLDERS_MAX} folders are",
                    folder.display()
                );
            }
            return;
        }
        match self.inotify.add_watch(folder, flags) {
            Ok(descriptor) => self.folders.insert(descriptor, folder.to_owned()),
            Err(why) => {
                say!("yorozu: [warn] \"{}\" is not watched: {why}", folder.display());
                return;
            }
        };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && !is_passed_over(&entry.file_name()) {
                self.add(&entry.path());
            }
        }
    }

    /// A file that was changed, if one was, once nothing changes any more.
    pub(super) fn changed(&mut self) -> Option<PathBuf> {
        let mut changed = None;
        for _ in 0..ROUNDS_MAX {
            let Ok(events) = self.inotify.read_events() else { break };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.folders.remove(&event.wd);
                }
                let folder = self.folders.get(&event.wd).cloned();
                let (Some(folder), Some(name)) = (folder, event.name) else { continue };
                let path = folder.join(&name);
                let is_folder = event.mask.contains(AddWatchFlags::IN_ISDIR);
                if is_folder && path.is_dir() && !is_passed_over(&name) {
                    self.add(&path);
                }
                if is_folder || is_source(&name) {
                    changed = Some(path);
                }
            }
            std::thread::sleep(SETTLED);
        }
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

fn is_passed_over(folder: &OsStr) -> bool {
    let name = folder.to_string_lossy();
    name.starts_with('.') || PASSED_OVER.contains(&&*name)
}

fn is_source(file: &OsStr) -> bool {
    let name = file.to_string_lossy();
    let end = name.rsplit('.').next().unwrap_or_default();
    SOURCES.contains(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_told_from_what_applications_do() {
        for (name, is) in [
            ("index.php", true),
            ("page.html.twig", true),
            (".env", true),
            ("services.yaml", true),
            ("debug.log", false),
            ("database.sqlite-wal", false),
            ("4913", false),
        ] {
            assert_eq!(is_source(OsStr::new(name)), is, "{name}");
        }
        assert!(is_passed_over(OsStr::new(".git")) && !is_passed_over(OsStr::new("src")));
    }
}
