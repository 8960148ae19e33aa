//! Files by path: what is there, and open ones kept as `open_file_cache` says.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: names are looked up where the request is, what was found is remembered"
)]

use super::links::Links;
use crate::base::turn::{self, unix_seconds_of};
use crate::config::http_core::Conf;
use foldhash::fast::RandomState;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::hash::BuildHasher as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a path names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    File,
    Folder,
    Other,
}

impl Kind {
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.is_file() {
            Self::File
        } else if metadata.is_dir() {
            Self::Folder
        } else {
            Self::Other
        }
    }
}

/// What a path names, as far as it shows that a file is still the same.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    device: u64,
    inode: u64,
    pub bytes: u64,
    /// Seconds since 1970, and nanoseconds.
    pub modified: (i64, i64),
    /// As above; no call can set this one.
    pub changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What was at a path when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub identity: Identity,
}

/// An open file with what a response says about it.
#[derive(Clone, Debug)]
pub struct Opened {
    pub file: Arc<File>,
    pub identity: Identity,
    pub bytes: u64,
    /// Seconds since 1970.
    pub modified: i64,
    pub is_file: bool,
    pub is_folder: bool,
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// What is there, symbolic links followed.
///
/// # Errors
/// As the system says; a path with NUL is invalid.
pub fn metadata(path: &[u8]) -> io::Result<Metadata> {
    std::fs::metadata(as_path(path))
}

/// What was found at a path in a turn.
struct Place {
    turn: u64,
    path: Vec<u8>,
    found: Result<Seen, Errno>,
}

impl Default for Place {
    fn default() -> Self {
        Self { turn: 0, path: Vec::new(), found: Err(Errno::ENOENT) }
    }
}

/// Places for what a turn learns about paths, a power of two; chosen: a turn looks at fewer. Each holds what fell on it last.
const PLACES: usize = 256;
/// Longer paths are asked for each time; chosen.
const PLACE_BYTES: usize = 512;

thread_local! {
    /// What this turn's requests learned about paths.
    static SEEN: RefCell<(RandomState, Vec<Place>)> = RefCell::default();
}

/// What `path` names; `None` if nothing, or nothing we may see. Asked of the system once a turn.
pub fn kind(path: &[u8]) -> Option<Kind> {
    seen(path).map(|seen| seen.kind)
}

/// As [`kind`], with more of it.
pub fn seen(path: &[u8]) -> Option<Seen> {
    look(path).ok()
}

/// As [`seen`].
///
/// # Errors
/// As the system says.
pub fn look(path: &[u8]) -> Result<Seen, Errno> {
    let turn = turn::number();
    if turn == turn::NONE || path.len() > PLACE_BYTES {
        return look_now(path);
    }
    SEEN.with_borrow_mut(|(state, places)| {
        if places.is_empty() {
            places.resize_with(PLACES, Place::default);
        }
        let place = usize::try_from(state.hash_one(path) % PLACES as u64).unwrap_or(0);
        let place = &mut places[place];
        if place.turn != turn || place.path != path {
            place.found = look_now(path);
            place.turn = turn;
            place.path.clear();
            place.path.extend_from_slice(path);
        }
        place.found
    })
}

fn look_now(path: &[u8]) -> Result<Seen, Errno> {
    let errno = |problem: io::Error| problem.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw);
    let metadata = metadata(path).map_err(errno)?;
    Ok(Seen { kind: Kind::of(&metadata), identity: Identity::of(&metadata) })
}

/// Whether any user may execute it.
pub fn is_executable(path: &[u8]) -> bool {
    metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o100 != 0)
}

struct Cached {
    links: Links,
    opened: Result<Opened, i32>,
    checked: Instant,
    used: Instant,
    uses: u64,
}

thread_local! {
    static OPEN: RefCell<HashMap<Vec<u8>, Cached>> = RefCell::default();
}

/// Opens `path` for reading, or takes it from the open files this worker keeps.
///
/// # Errors
/// As the system says; with `open_file_cache_errors` a kept answer.
pub fn open(path: &[u8], links: Links, conf: &Conf) -> io::Result<Opened> {
    let Some((max, inactive)) = conf.open_file_cache.0 else { return open_now(path, links) };
    let now = Instant::now();
    OPEN.with_borrow_mut(|files| {
        if let Some(cached) = files.get_mut(path) {
            let is_used = cached.uses >= conf.open_file_cache_min_uses && cached.links == links;
            cached.used = now;
            cached.uses += 1;
            if is_used && now.duration_since(cached.checked) < conf.open_file_cache_valid.0 {
                return cached.opened.clone().map_err(io::Error::from_raw_os_error);
            }
        }
        let opened = open_now(path, links);
        let kept = match &opened {
            Ok(opened) => Some(Ok(opened.clone())),
            Err(error) => error.raw_os_error().filter(|_| conf.open_file_cache_errors).map(Err),
        };
        let Some(kept) = kept else {
            files.remove(path);
            return opened;
        };
        let uses = files.get(path).map_or(1, |cached| cached.uses);
        if !files.contains_key(path) && files.len() as u64 >= max {
            evict(files, now, inactive);
        }
        let kept = Cached { links, opened: kept, checked: now, used: now, uses };
        files.insert(path.to_vec(), kept);
        opened
    })
}

/// Drops what is unused too long; if nothing is, the longest unused.
fn evict(files: &mut HashMap<Vec<u8>, Cached>, now: Instant, inactive: Duration) {
    let before = files.len();
    files.retain(|_, cached| now.duration_since(cached.used) < inactive);
    if files.len() == before {
        let oldest =
            files.iter().min_by_key(|(_, cached)| cached.used).map(|(path, _)| path.clone());
        if let Some(oldest) = oldest {
            files.remove(&oldest);
        }
    }
}

fn open_now(path: &[u8], links: Links) -> io::Result<Opened> {
    // Not to block on a FIFO below the root.
    let file = links.open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())?;
    let metadata = file.metadata()?;
    Ok(Opened {
        identity: Identity::of(&metadata),
        bytes: metadata.len(),
        modified: metadata.modified().map(unix_seconds_of).unwrap_or(0),
        is_file: metadata.is_file(),
        is_folder: metadata.is_dir(),
        file: Arc::new(file),
    })
}

/// The status for a file that cannot be had.
pub fn status_of(error: &io::Error) -> u16 {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::EINVAL) => 404,
        Some(Errno::EACCES | Errno::ELOOP | Errno::EPERM) => 403,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_is_asked_for_once_a_turn() {
        let path = std::env::temp_dir().join(format!("yorozu-seen.{}", std::process::id()));
        let bytes = path.as_os_str().as_bytes();
        let work = async {
            assert_eq!(kind(bytes), None);
            std::fs::write(&path, "text").unwrap();
            assert_eq!(kind(bytes), None, "this is known of the turn");
            tokio::task::yield_now().await;
            kind(bytes)
        };
        let found = turn::run(work, || {}).await;
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, Some(Kind::File));
    }
}
