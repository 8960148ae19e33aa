//! Purges: what is removed, and how it stays removed.
//!
//! What the catalog knows is removed at once, from both tiers. What it does not know - files not yet read
//! after a start, and pages being made - meets the purge's mark: a page that was begun before the
//! purge is not stored, and not brought into memory. Marks lie in a file too, until every file is known. Where
//! many pages are purged their files are known to nobody from then on, and are removed by the manager; the marks
//! are kept for as long.

use crate::catalog::host_end;
use crate::{Key, StoreError};
use bytes::Bytes;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is purged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Purge {
    /// A page with all its variants.
    Page(Key),
    /// Every key that begins so.
    Prefix(Bytes),
    /// Every page with this tag. A tag may belong to a host, `HOST NUL TAG`; without the host before the
    /// NUL it means that of every host.
    Tag(Bytes),
    /// Everything.
    All,
}

/// What becomes of a purged page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Depth {
    /// It is gone.
    #[default]
    Hard,
    /// It answers once more while it is made anew, if it is in memory; else it is gone.
    Soft,
}

/// A purge as a line of a file: `milliseconds kind bytes-in-hexadecimal.`
fn line(purge: &Purge, at: i64) -> String {
    let (kind, bytes) = match purge {
        Purge::Page(key) => ("page", key.as_bytes()),
        Purge::Prefix(prefix) => ("prefix", &prefix[..]),
        Purge::Tag(tag) => ("tag", &tag[..]),
        Purge::All => ("all", &b""[..]),
    };
    let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{at} {kind} {bytes}.\n")
}

/// Reads a line; `None` for one that is torn.
fn parse(line: &str) -> Option<(Purge, i64)> {
    let mut words = line.strip_suffix('.')?.splitn(3, ' ');
    let at = words.next()?.parse().ok()?;
    let (kind, digits) = (words.next()?, words.next()?);
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes = Bytes::from(pairs.collect::<Option<Vec<u8>>>()?);
    let purge = match kind {
        "page" => Purge::Page(Key::primary(bytes)),
        "prefix" => Purge::Prefix(bytes),
        "tag" => Purge::Tag(bytes),
        "all" => Purge::All,
        _ => return None,
    };
    Some((purge, at))
}

/// When each purge was last; milliseconds since 1970.
#[derive(Debug, Default)]
struct Times {
    pages: HashMap<Key, i64>,
    prefixes: HashMap<Bytes, i64>,
    tags: HashMap<Bytes, i64>,
    all: Option<i64>,
}

impl Times {
    fn note(&mut self, purge: &Purge, at: i64) {
        let time = match purge {
            Purge::Page(key) => self.pages.entry(key.clone()).or_insert(at),
            Purge::Prefix(prefix) => self.prefixes.entry(prefix.clone()).or_insert(at),
            Purge::Tag(tag) => self.tags.entry(tag.clone()).or_insert(at),
            Purge::All => self.all.get_or_insert(at),
        };
        *time = at.max(*time);
    }

    /// Was a purge that means the page not before it was `begun`?
    fn meet(&self, key: &Key, tags: &[Bytes], begun: i64) -> bool {
        let is_met = |time: Option<&i64>| time.is_some_and(|at| begun <= *at);
        is_met(self.all.as_ref())
            || is_met(self.pages.get(key))
            || is_met(self.pages.get(&key.page()))
            || tags.iter().any(|tag| {
                let of_every_host = host_end(tag).and_then(|at| self.tags.get(&tag[at..]));
                is_met(self.tags.get(tag)) || is_met(of_every_host)
            })
            || self
                .prefixes
                .iter()
                .any(|(prefix, at)| begun <= *at && key.as_bytes().starts_with(prefix))
    }

    fn retain(&mut self, is_kept: impl Fn(i64) -> bool) {
        self.pages.retain(|_, at| is_kept(*at));
        self.prefixes.retain(|_, at| is_kept(*at));
        self.tags.retain(|_, at| is_kept(*at));
        self.all = self.all.filter(|at| is_kept(*at));
    }
}

/// The purges of a zone that something may still meet.
#[derive(Debug)]
pub(crate) struct Marks {
    times: Mutex<Times>,
    path: PathBuf,
}

/// The file of the marks, in the zone's folder.
const NAME: &str = "yorozu.purges";
/// How long a mark waits for pages being made, in milliseconds; chosen above what that may take.
const KEPT: i64 = 900_000;

impl Marks {
    /// Takes over what an earlier process left.
    pub(crate) fn open(folder: &Path) -> Self {
        let path = folder.join(NAME);
        let mut text = String::new();
        if let Ok(mut file) = File::open(&path) {
            let _ = file.read_to_string(&mut text);
        }
        let mut times = Times::default();
        for (purge, at) in text.lines().filter_map(parse) {
            times.note(&purge, at);
        }
        Self { times: Mutex::new(times), path }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        // Each use is one call: a panic elsewhere cannot leave it half changed.
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a purge: what was begun before it is not stored from here on.
    pub(crate) fn note(&self, purge: &Purge, at: i64) {
        self.times().note(purge, at);
    }

    /// Writes a purge into the file, for as long as there are files that it concerns.
    ///
    /// # Errors
    /// The file cannot be written: a crash before those are removed would bring the pages back.
    pub(crate) fn write(&self, purge: &Purge, at: i64) -> Result<(), StoreError> {
        let write = || {
            let mut options = File::options();
            let mut file = options.create(true).append(true).mode(0o600).open(&self.path)?;
            file.write_all(line(purge, at).as_bytes())
        };
        let path = self.path.clone();
        write().map_err(|source| StoreError::Io { call: "write()", path, source })
    }

    /// Does `store`, unless a purge meets the page meanwhile: one that follows finds it stored.
    pub(crate) fn unless_met(
        &self,
        key: &Key,
        tags: &[Bytes],
        begun: i64,
        store: impl FnOnce(),
    ) -> bool {
        let times = self.times();
        let is_wanted = !times.meet(key, tags, begun);
        if is_wanted {
            store();
        }
        is_wanted
    }

    /// Does a purge meet a page that was `begun` then?
    pub(crate) fn meet(&self, key: &Key, tags: &[Bytes], begun: i64) -> bool {
        self.times().meet(key, tags, begun)
    }

    /// Every file has been read, and those of purged pages are removed: only pages being made may meet a mark from
    /// here on.
    pub(crate) fn all_files_are_known(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Forgets what nothing can meet any more.
    pub(crate) fn expire(&self, now: i64) {
        self.times().retain(|at| now - at < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_and_torn_lines_are_not() {
        for purge in [
            Purge::Page(Key::primary(Bytes::from_static(b"http\x00 \xff/"))),
            Purge::Prefix(Bytes::from_static(b"a b")),
            Purge::Tag(Bytes::from_static(b"post-1")),
            Purge::All,
        ] {
            let line = line(&purge, 17);
            let line = line.trim_end();
            assert_eq!(parse(line), Some((purge, 17)));
            for end in 0..line.len() {
                assert_eq!(parse(&line[..end]), None, "{}", &line[..end]);
            }
        }
    }

    #[test]
    fn what_was_begun_before_is_met_and_what_came_after_is_not() {
        let (key, tags) = (Key::primary(Bytes::from_static(b"site/a")), [Bytes::from_static(b"t")]);
        let meets = |purge: Purge, begun| {
            let mut times = Times::default();
            times.note(&purge, 1000);
            times.meet(&key.variant(&[1; 16]), &tags, begun)
        };
        for purge in [
            Purge::Tag(Bytes::from_static(b"t")),
            Purge::Page(key.clone()),
            Purge::Prefix(Bytes::from_static(b"site/")),
            Purge::All,
        ] {
            assert!(meets(purge.clone(), 1000) && !meets(purge, 1001));
        }
        assert!(!meets(Purge::Tag(Bytes::from_static(b"u")), 900));
        let mut times = Times::default();
        times.note(&Purge::Tag(Bytes::from_static(b"\0t")), 1000);
        let of_host = [Bytes::from_static(b"host\0t")];
        assert!(times.meet(&key, &of_host, 900) && !times.meet(&key, &tags, 900));
        assert!(!meets(Purge::Page(Key::primary(Bytes::from_static(b"site"))), 900));
    }
}
