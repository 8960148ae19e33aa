//! Logs whose paths have variables: opened for each line, or kept open by `open_log_file_cache`.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: a path of variables is opened for its line"
)]

use bytes::Bytes;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_conf::value;
use yorozu_kernel::base::turn;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::path::append_document_root;
use yorozu_kernel::logging::error::{self, Level};

/// `open_log_file_cache`
#[derive(Clone, Debug)]
pub struct OpenFiles(Option<Arc<Cache>>);

/// Files that are kept open, the same for all workers.
#[derive(Debug)]
struct Cache {
    max: usize,
    inactive: Duration,
    min_uses: u64,
    valid: Duration,
    files: Mutex<HashMap<PathBuf, Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// Once it was used `min_uses` times.
    file: Option<Arc<File>>,
    /// How it was opened.
    links: Links,
    uses: u64,
    used: Instant,
    /// When the path was last seen to lead to the file.
    seen: Instant,
}

impl Setting for OpenFiles {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (mut max, mut min_uses) = (None, 1);
        let (mut inactive, mut valid) = (Duration::from_secs(10), Duration::from_secs(60));
        // As nginx: it holds wherever it stands.
        let is_off = |word: &Bytes| &word[..] == b"off";
        for word in args.words.iter().filter(|word| !is_off(word)) {
            let text = String::from_utf8_lossy(word);
            let refuse =
                || ValueError(format!("invalid \"open_log_file_cache\" parameter \"{text}\""));
            let (name, argument) = text.split_once('=').ok_or_else(refuse)?;
            let number = || value::number(argument.as_bytes());
            let time = || value::time(argument.as_bytes());
            match name {
                "max" => max = Some(number().filter(|max| *max > 0).ok_or_else(refuse)?),
                "min_uses" => min_uses = number().ok_or_else(refuse)?,
                "inactive" => inactive = time().ok_or_else(refuse)?,
                "valid" => valid = time().ok_or_else(refuse)?,
                _ => return Err(refuse()),
            }
        }
        if args.words.iter().any(is_off) {
            return Ok(Self(None));
        }
        let missing = || ValueError::new("\"open_log_file_cache\" must have \"max\" parameter");
        let max = usize::try_from(max.ok_or_else(missing)?).unwrap_or(usize::MAX);
        Ok(Self(Some(Arc::new(Cache { max, inactive, min_uses, valid, files: Mutex::default() }))))
    }
}

/// A log whose path has variables.
#[derive(Clone, Debug)]
pub(super) struct NamedFile {
    path: Template,
    /// What the path lies below if it is relative.
    prefix: PathBuf,
    /// Parts `..` that the configuration has in it.
    climbs: usize,
}

fn climbs(path: &Path) -> usize {
    path.components().filter(|part| *part == Component::ParentDir).count()
}

impl NamedFile {
    pub(super) fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let path = Template::compile(args.word(0), args.env)?;
        let prefix = args.env.prefix.clone();
        let written = path.with(b"x");
        let climbs = climbs(&prefix.join(OsStr::from_bytes(&written)));
        Ok(Self { path, prefix, climbs })
    }

    /// Writes a line into the file that it is for this request.
    pub(super) fn write(&self, exchange: &mut Exchange, open_files: &OpenFiles, line: &[u8]) {
        let path = self.path.value(exchange);
        let path = self.prefix.join(OsStr::from_bytes(&path));
        // Parts of a request may be in it: they shall not climb out of the folder.
        let is_climbing = climbs(&path) != self.climbs;
        if !is_climbing && !has_root(exchange) {
            return;
        }
        let links = Links::of(exchange, path.as_os_str().as_bytes());
        let written = match is_climbing {
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => open_files.open(&path, links).and_then(|file| (&*file).write_all(line)),
        };
        if let Err(problem) = written {
            let (call, why) = (links.call(), error::os_error(&problem));
            let text = format!("{call} \"{}\" failed ({why})", error::path_text(&path));
            error::request(exchange, Level::Crit, &text);
        }
    }
}

/// Whether the folder of the request's files is there: as nginx, names that clients make up get no logs.
fn has_root(exchange: &mut Exchange) -> bool {
    let mut root = Vec::new();
    append_document_root(exchange, &mut root);
    let found = fs::metadata(OsStr::from_bytes(&root));
    let problem = match found {
        Ok(found) if found.is_dir() => return true,
        Ok(_) => io::ErrorKind::NotADirectory.into(),
        Err(problem) => problem,
    };
    let root = error::verbatim(&root);
    let text = format!("testing \"{root}\" existence failed ({})", error::os_error(&problem));
    error::request(exchange, Level::Error, &text);
    false
}

fn open(path: &Path, links: Links) -> io::Result<Arc<File>> {
    // Without O_NONBLOCK a FIFO that no one reads would stop the worker.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK;
    let mode = Mode::from_bits_truncate(0o644);
    links.open(path.as_os_str().as_bytes(), flags, mode).map(Arc::new)
}

impl OpenFiles {
    fn open(&self, path: &Path, links: Links) -> io::Result<Arc<File>> {
        match &self.0 {
            Some(cache) => cache.open(path, links),
            None => open(path, links),
        }
    }
}

/// A kept file, and whether it was seen to be that of its path not long ago.
struct Found {
    file: Arc<File>,
    is_fresh: bool,
}

impl Cache {
    /// No other worker waits for a path that makes this one wait.
    fn open(&self, path: &Path, links: Links) -> io::Result<Arc<File>> {
        let now = turn::instant();
        let file = match self.found(path, links, now) {
            Some(found) if found.is_fresh => return Ok(found.file),
            Some(found) if leads_to(path, &found.file) => found.file,
            _ => open(path, links)?,
        };
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = files.get_mut(path) {
            kept.seen = now;
            kept.links = links;
            kept.file = (kept.uses >= self.min_uses).then(|| Arc::clone(&file));
        }
        Ok(file)
    }

    /// Counts a use.
    fn found(&self, path: &Path, links: Links, now: Instant) -> Option<Found> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = files.get_mut(path) else {
            self.make_room(&mut files, now);
            files
                .insert(path.to_owned(), Kept { file: None, links, uses: 1, used: now, seen: now });
            return None;
        };
        let is_used = now.saturating_duration_since(kept.used) < self.inactive;
        kept.uses = if is_used { kept.uses + 1 } else { 1 };
        kept.used = now;
        let file = Arc::clone(kept.file.as_ref().filter(|_| is_used && kept.links == links)?);
        let is_fresh = now.saturating_duration_since(kept.seen) < self.valid;
        Some(Found { file, is_fresh })
    }

    /// Drops what is unused and, where there are still too many, what is longest unused.
    fn make_room(&self, files: &mut HashMap<PathBuf, Kept>, now: Instant) {
        if files.len() < self.max {
            return;
        }
        files.retain(|_, kept| now.saturating_duration_since(kept.used) < self.inactive);
        while files.len() >= self.max {
            let oldest = files.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else { return };
            files.remove(&oldest);
        }
    }
}

/// Whether a path still leads to a file that was opened by it: another program may have moved it away.
fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let by_path = fs::metadata(path).map(identity);
    by_path.is_ok_and(|one| file.metadata().map(identity).is_ok_and(|other| one == other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOWED: Links = Links::FOLLOWED;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("yorozu-logs-{name}.{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn cache(max: usize, min_uses: u64, valid: Duration) -> Cache {
        let inactive = Duration::from_secs(60);
        Cache { max, inactive, min_uses, valid, files: Mutex::default() }
    }

    #[test]
    fn a_file_stays_open_until_others_need_its_place() {
        let folder = folder("room");
        let path = |name: &str| folder.join(name);
        let cache = cache(2, 2, Duration::from_secs(60));
        let is_kept = |name: &str| {
            let one = cache.open(&path(name), FOLLOWED).unwrap();
            Arc::ptr_eq(&one, &cache.open(&path(name), FOLLOWED).unwrap())
        };
        assert!(!is_kept("a"), "the second use is the first that is kept");
        assert!(is_kept("a"));
        assert!(!is_kept("b"));
        assert!(is_kept("b") && is_kept("a"));
        assert!(!is_kept("c"));
        assert_eq!(cache.files.lock().unwrap().len(), 2);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_again_when_it_is_looked_at() {
        let folder = folder("moved");
        let path = folder.join("log");
        for (valid, is_noticed) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
            let cache = cache(2, 1, valid);
            (&*cache.open(&path, FOLLOWED).unwrap()).write_all(b"one\n").unwrap();
            fs::rename(&path, folder.join("old")).unwrap();
            (&*cache.open(&path, FOLLOWED).unwrap()).write_all(b"two\n").unwrap();
            assert_eq!(path.exists(), is_noticed);
            let _ = fs::remove_file(&path);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
