//! What loading a configuration reads and finds, so that another process loads the very same.
//!
//! The master reads as root and keeps the texts; the server process is given them, and opens no file of the
//! configuration itself. Both happen on the thread that loads, below the one door to files (`files`): no directive
//! has to know. Names of hosts are looked up by the master alone, too: the server process begins the same however the name
//! servers are by then.

use bytes::Bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

/// Files by path, names of files by pattern, and addresses by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Texts {
    /// What reading gave: the text, or why not.
    pub files: BTreeMap<PathBuf, Result<Bytes, Failure>>,
    /// The paths that a shell pattern stood for.
    pub patterns: BTreeMap<String, Vec<PathBuf>>,
    /// The addresses of names of hosts, with port 0; none where the name was not found.
    pub hosts: BTreeMap<String, Vec<SocketAddr>>,
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
    /// Files are read and names looked up, and both kept.
    Kept(Texts),
    /// No file is read, and no name looked up.
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
    let loaded = load();
    let texts = MODE.with_borrow_mut(|mode| match mode {
        Some(Mode::Kept(texts)) => std::mem::take(texts),
        _ => Texts::default(),
    });
    drop(within);
    (loaded, texts)
}

/// Runs `load`, which reads `texts` and nothing else.
pub fn give<T>(texts: Texts, load: impl FnOnce() -> T) -> T {
    let _within = Within::begin(Mode::Given(texts));
    load()
}

/// What `texts` says, where the thread is given some.
fn given<T>(look: impl FnOnce(&Texts) -> T) -> Option<T> {
    MODE.with_borrow(|mode| match mode {
        Some(Mode::Given(texts)) => Some(look(texts)),
        _ => None,
    })
}

/// Notes in what the thread keeps, where it keeps something.
fn note(note: impl FnOnce(&mut Texts)) {
    MODE.with_borrow_mut(|mode| {
        if let Some(Mode::Kept(texts)) = mode {
            note(texts);
        }
    });
}

fn unknown() -> io::Error {
    io::Error::other("not among the files that the master process read")
}

/// The text at `path`, as the thread's mode says.
pub(crate) fn file(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<Bytes>,
) -> io::Result<Bytes> {
    if let Some(given) = given(|texts| texts.files.get(path).cloned()) {
        return given.ok_or_else(unknown)?.map_err(io::Error::from);
    }
    let found = read(path);
    note(|texts| {
        let kept = found.as_ref().map(Clone::clone).map_err(Failure::from);
        texts.files.insert(path.to_owned(), kept);
    });
    found
}

/// The paths that `pattern` stands for, as the thread's mode says.
pub(crate) fn pattern(
    pattern: &str,
    find: impl FnOnce(&str) -> io::Result<Vec<PathBuf>>,
) -> io::Result<Vec<PathBuf>> {
    if let Some(given) = given(|texts| texts.patterns.get(pattern).cloned()) {
        return given.ok_or_else(unknown);
    }
    let found = find(pattern)?;
    note(|texts| drop(texts.patterns.insert(pattern.to_owned(), found.clone())));
    Ok(found)
}

/// The system's addresses of a host's name, as the thread's mode says; none if it is not found. Blocks.
pub fn host(name: &str, port: u16) -> Vec<SocketAddr> {
    let look_up = || (name, 0).to_socket_addrs().into_iter().flatten().collect();
    let mut addresses: Vec<_> =
        given(|texts| texts.hosts.get(name).cloned().unwrap_or_default()).unwrap_or_else(look_up);
    note(|texts| drop(texts.hosts.insert(name.to_owned(), addresses.clone())));
    addresses.iter_mut().for_each(|address| address.set_port(port));
    addresses
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;
    use crate::base::address::resolve;
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

    #[test]
    fn a_name_that_was_found_is_not_looked_up_again() {
        let (before, found) = keep(|| resolve("localhost:81", 80));
        assert_eq!(found.hosts.keys().collect::<Vec<_>>(), ["localhost"]);
        assert_eq!(give(found, || resolve("localhost:81", 80)), before);
        // No name server knows this one (RFC 6761).
        let address: SocketAddr = "192.0.2.7:0".parse().unwrap();
        let hosts = [("gone.invalid".to_owned(), vec![address])].into();
        let known = Texts { hosts, ..Texts::default() };
        let again = give(known, || (resolve("gone.invalid", 80), resolve("localhost", 80)));
        assert_eq!(again, (Ok(vec!["192.0.2.7:80".parse().unwrap()]), Err("host not found")));
        assert!(resolve("localhost", 80).is_ok(), "the mode ends with the loading");
    }
}
