//! What loading a configuration reads and finds, so that another process loads the very same.
//!
//! The master reads as root and keeps the texts; the server process is given them, and opens no file of the
//! configuration itself. Both happen on the thread that loads, below the one door to files (`files`): no directive
//! has to know.

use crate::base::host_names;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Files by path, names of files by pattern, and addresses by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Texts {
    /// What reading gave: the text, or why not.
    pub files: BTreeMap<PathBuf, Result<Bytes, Failure>>,
    /// The paths that a shell pattern stood for.
    pub patterns: BTreeMap<String, Vec<PathBuf>>,
    /// What names of hosts were found to stand for.
    pub hosts: host_names::Found,
}

/// An error of the system's, or another one's words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// The system's number, if it was the system's.
    pub number: Option<i32>,
    /// Its text, if it was not.
    pub text: String,
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Self { number: Some(number), text: String::new() },
            None => Self { number: None, text: error.to_string() },
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure.number {
            Some(number) => Self::from_raw_os_error(number),
            None => Self::other(failure.text),
        }
    }
}

/// What the thread does with what it reads.
enum Mode {
    /// Files are read, and kept.
    Kept(Texts),
    /// No file is read.
    Given(Texts),
}

thread_local! {
    static MODE: RefCell<Option<Mode>> = const { RefCell::new(None) };
}

/// Ends the mode of the thread, however the loading ends.
struct Within;

impl Within {
    fn begin(mode: Mode) -> Self {
        MODE.set(Some(mode));
        Self
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        MODE.set(None);
    }
}

/// Runs `load`, and keeps what it reads.
pub fn keep<T>(load: impl FnOnce() -> T) -> (T, Texts) {
    let within = Within::begin(Mode::Kept(Texts::default()));
    let (loaded, hosts) = host_names::keep(load);
    let texts = MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Kept(texts)) => std::mem::take(texts),
        _ => Texts::default(),
    });
    drop(within);
    (loaded, Texts { hosts, ..texts })
}

/// Runs `load`, which reads `texts` and nothing else.
pub fn give<T>(mut texts: Texts, load: impl FnOnce() -> T) -> T {
    let hosts = std::mem::take(&mut texts.hosts);
    let _within = Within::begin(Mode::Given(texts));
    host_names::give(hosts, load)
}

fn unknown() -> io::Error {
    io::Error::other("not among the files that the master process read")
}

/// The text at `path`, as the thread's mode says.
pub(super) fn file(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<Bytes>,
) -> io::Result<Bytes> {
    let given = MODE.with_borrow(|mode| match mode {
        Some(Mode::Given(texts)) => Some(texts.files.get(path).cloned()),
        _ => None,
    });
    if let Some(given) = given {
        return given.ok_or_else(unknown)?.map_err(io::Error::from);
    }
    let found = read(path);
    MODE.with_borrow_mut(|mode| {
        if let Some(Mode::Kept(texts)) = mode {
            let kept = found.as_ref().map(Clone::clone).map_err(Failure::from);
            texts.files.insert(path.to_owned(), kept);
        }
    });
    found
}

/// The paths that `pattern` stands for, as the thread's mode says.
pub(super) fn pattern(
    pattern: &str,
    find: impl FnOnce(&str) -> io::Result<Vec<PathBuf>>,
) -> io::Result<Vec<PathBuf>> {
    let given = MODE.with_borrow(|mode| match mode {
        Some(Mode::Given(texts)) => Some(texts.patterns.get(pattern).cloned()),
        _ => None,
    });
    if let Some(given) = given {
        return given.ok_or_else(unknown);
    }
    let found = find(pattern)?;
    MODE.with_borrow_mut(|mode| {
        if let Some(Mode::Kept(texts)) = mode {
            texts.patterns.insert(pattern.to_owned(), found.clone());
        }
    });
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::files::{Files, read_file_or_pipe, read_regular};
    use yorozu_conf::Source as _;

    #[test]
    fn what_was_read_is_read_again_without_the_files() {
        let folder = std::env::temp_dir().join(format!("yorozu-texts.{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a.conf");
        std::fs::write(&file, "first").unwrap();
        let files = Files { folder: folder.clone() };
        let pattern = folder.join("*.conf").display().to_string();
        let none = folder.join("none");
        let look = || {
            let names = files.glob(&pattern).unwrap();
            let texts = [&file, &none].map(|path| files.read(path).map_err(|e| e.to_string()));
            let pipe = read_file_or_pipe(&file).unwrap();
            (names, texts, pipe, read_regular(&folder).map_err(|e| e.to_string()))
        };
        let (before, texts) = keep(look);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(give(texts.clone(), look), before);
        let others = give(texts, || read_regular(Path::new("/etc/passwd")));
        assert!(others.unwrap_err().to_string().contains("not among the files"));
        assert!(read_regular(Path::new("/etc/passwd")).is_ok(), "the mode ends with the loading");
    }
}
