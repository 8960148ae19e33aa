//! The file of the purge list, in the zone's folder: what the next process must know of purges whose files may
//! still be there.
//!
//! ```text
//! epoch EPOCH CRC                                       a process opened the folder
//! purge EPOCH NUMBER page|prefix|tag|all:BYTES CRC      it purged; bytes in hexadecimal
//! file EPOCH NUMBER DIGEST CRC                          a purged file that could not be removed
//! ```
//! Epochs stand in the order of the openings. A line that is torn is passed over; a purge of a kind that is not known, of a
//! later version of this program, counts as one of everything. The file is appended to, one write and one `fdatasync` for all
//! purges that wait, and is written again, or removed, when purges are forgotten.
//!
//! # Invariants
//! - What is not in the file any more is not needed: the epoch of an entry that is not listed is older than
//!   every purge in it, or that entry counts as if.
//! - A line is never joined to a torn one: each write begins with a line feed.

use crate::files::{self, failed};
use crate::index::Digest;
use crate::levels::parse_digest;
use crate::purge_list::{Left, Moment, Purge};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{Key, StoreError};
use base16ct::lower;
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// Its name.
const NAME: &str = "yorozu.purges";
/// The name under which it is written again.
const NEW_NAME: &str = "yorozu.purges.new";

fn bytes_of(digits: &str) -> Option<Bytes> {
    lower::decode_vec(digits).ok().map(Bytes::from)
}

fn summed(text: &str) -> String {
    format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
}

fn epoch_line(epoch: u64) -> String {
    summed(&format!("epoch {epoch:016x}"))
}

impl Purge {
    /// As a word: `page:HEX`, `prefix:HEX`, `tag:HEX` or `all:`, bytes in hexadecimal.
    pub fn to_word(&self) -> String {
        let (kind, bytes) = match self {
            Self::Page(key) => ("page", key.as_bytes()),
            Self::Prefix(prefix) => ("prefix", &prefix[..]),
            Self::Tag(tag) => ("tag", &tag[..]),
            Self::All => ("all", &b""[..]),
        };
        format!("{kind}:{}", lower::encode_string(bytes))
    }

    /// What [`Purge::to_word`] wrote; `None` for any other word.
    pub fn of_word(word: &str) -> Option<Self> {
        let (kind, digits) = word.split_once(':')?;
        let bytes = bytes_of(digits)?;
        match kind {
            "page" => Some(Self::Page(Key::new(bytes))),
            "prefix" => Some(Self::Prefix(bytes)),
            "tag" => Some(Self::Tag(bytes)),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

fn purge_line(purge: &Purge, Moment { epoch, number }: Moment) -> String {
    summed(&format!("purge {epoch:016x} {number} {}", purge.to_word()))
}

fn file_line(digest: &Digest, Moment { epoch, number }: Moment) -> String {
    summed(&format!("file {epoch:016x} {number} {}", lower::encode_string(digest)))
}

/// Reads a line into `left`; `None` for one that is torn.
fn read_line(line: &str, left: &mut Left) -> Option<()> {
    let (text, crc) = line.rsplit_once(' ')?;
    if crc.len() != 8 || u32::from_str_radix(crc, 16).ok()? != crc32fast::hash(text.as_bytes()) {
        return None;
    }
    let mut words = text.split(' ');
    let kind = words.next()?;
    let epoch = u64::from_str_radix(words.next()?, 16).ok()?;
    if !left.epochs.contains(&epoch) {
        left.epochs.push(epoch);
    }
    let mut moment = || Some(Moment { epoch, number: words.next()?.parse().ok()? });
    match kind {
        "purge" => {
            let moment = moment()?;
            left.purges.push((Purge::of_word(words.next()?).unwrap_or(Purge::All), moment));
        }
        "file" => {
            let moment = moment()?;
            left.files.push((parse_digest(words.next()?)?, moment));
        }
        _ => {}
    }
    Some(())
}

fn lines(bytes: &[u8]) -> Left {
    let mut left = Left::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(line) = std::str::from_utf8(line) {
            let _ = read_line(line, &mut left);
        }
    }
    left
}

#[derive(Debug, Default)]
struct State {
    /// Whether the file may hold a line.
    is_there: bool,
    /// Whether its name outlasts a power failure.
    is_named: bool,
    has_epoch: bool,
    /// Lines that the next write takes.
    waiting: String,
    /// That write: whether it succeeded.
    next: Arc<AtomicBool>,
    /// Whether the one before it is under way.
    is_writing: bool,
}

/// A write to the journal, until it ends, however it does.
struct Writing<'a>(&'a Journal);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.state().is_writing = false;
        self.0.written.notify_all();
    }
}

/// The journal of a folder.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    state: Mutex<State>,
    written: Condvar,
}

impl Journal {
    /// Opens the journal, and what it has.
    ///
    /// # Errors
    /// It is there and cannot be read: purged pages might come back.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Left), StoreError> {
        let journal = Self::without_file(folder);
        let left = journal.read(0)?;
        Ok((journal, left))
    }

    /// A journal whose file is not looked for.
    pub(crate) fn without_file(folder: &Path) -> Self {
        let state = Mutex::new(State::default());
        Self { folder: folder.to_owned(), state, written: Condvar::new() }
    }

    /// What it holds, also of another process that had the folder until now; `epoch`: the own one.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub(crate) fn read(&self, epoch: u64) -> Result<Left, StoreError> {
        let path = self.folder.join(NAME);
        let mut state = self.at_rest();
        let bytes = match files::read_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.map_err(failed("read()", &path))?),
        };
        let left = bytes.as_deref().map(lines).unwrap_or_default();
        // The process that made it may have ended before its name was durable.
        (state.is_there, state.is_named) = (bytes.is_some(), false);
        state.has_epoch = left.epochs.contains(&epoch);
        Ok(left)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each use leaves it whole: a panic elsewhere cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state while nothing is being written, and with nothing written as long as it is held.
    fn at_rest(&self) -> MutexGuard<'_, State> {
        self.rest(self.state())
    }

    fn rest<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.is_writing {
            state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Has purges outlast the process, and a power failure: they are on the disk when this returns. Those that come while
    /// one write is under way are in the next one together.
    ///
    /// # Errors
    /// They may not be: a full disk and the like.
    pub(crate) fn append(&self, purges: &[Purge], at: Moment) -> Result<(), StoreError> {
        let mut state = self.state();
        state.waiting.extend(purges.iter().map(|purge| purge_line(purge, at)));
        let own = Arc::clone(&state.next);
        let mut state = self.rest(state);
        if !Arc::ptr_eq(&own, &state.next) {
            // Another purge has taken its lines along.
            drop(state);
            return match own.load(Ordering::Acquire) {
                true => Ok(()),
                false => self.append(purges, at),
            };
        }
        let epoch = if state.has_epoch { String::new() } else { epoch_line(at.epoch) };
        let text = format!("\n{epoch}{}", std::mem::take(&mut state.waiting));
        let is_named = state.is_named;
        state.next = Arc::default();
        (state.is_there, state.is_writing) = (true, true);
        drop(state);
        let _writing = Writing(self);
        self.write(&text, is_named)?;
        own.store(true, Ordering::Release);
        let mut state = self.state();
        (state.is_named, state.has_epoch) = (true, true);
        Ok(())
    }

    fn write(&self, text: &str, is_named: bool) -> Result<(), StoreError> {
        let path = self.folder.join(NAME);
        files::append(&path, text.as_bytes(), true).map_err(failed("write()", &path))?;
        match is_named {
            true => Ok(()),
            false => files::sync_folder(&self.folder).map_err(failed("fsync()", &self.folder)),
        }
    }

    /// Before the first file of this process: the purges of earlier ones do not apply to it. Should that not
    /// be possible, its files count as older than those purges after the next start.
    pub(crate) fn tell_epoch(&self, epoch: u64) {
        let is_due = |state: &State| state.is_there && !state.has_epoch;
        if !is_due(&self.state()) {
            return;
        }
        let mut state = self.at_rest();
        if is_due(&state) {
            let text = format!("\n{}", epoch_line(epoch));
            let path = self.folder.join(NAME);
            state.has_epoch = files::append(&path, text.as_bytes(), false).is_ok();
        }
    }

    /// The folder is another one: what it holds was appended since, if there is anything.
    pub(crate) fn is_another(&self) {
        let mut state = self.at_rest();
        (state.is_named, state.has_epoch) = (false, false);
    }

    /// Whether there is anything in it.
    pub(crate) fn is_there(&self) -> bool {
        self.state().is_there
    }

    /// Writes it again with what is left, which is determined under its lock: nothing is appended
    /// meanwhile.
    ///
    /// # Errors
    /// The old file stays, which has more.
    pub(crate) fn replace(&self, left: impl FnOnce() -> Option<Left>) -> Result<(), StoreError> {
        let mut state = self.at_rest();
        let (path, new) = (self.folder.join(NAME), self.folder.join(NEW_NAME));
        let Some(left) = left() else {
            files::remove_if_there(&path)?;
            (state.is_there, state.is_named, state.has_epoch) = (false, false, false);
            return Ok(());
        };
        let mut text: String = left.epochs.iter().map(|epoch| epoch_line(*epoch)).collect();
        text.extend(left.purges.iter().map(|(purge, at)| purge_line(purge, *at)));
        text.extend(left.files.iter().map(|(digest, at)| file_line(digest, *at)));
        files::replace(&path, &new, text.as_bytes(), true)?;
        (state.is_named, state.has_epoch) = (false, true);
        files::sync_folder(&self.folder).map_err(failed("fsync()", &self.folder))?;
        state.is_named = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::faults::{self, Fault};

    #[test]
    fn lines_are_read_back_and_torn_ones_are_not() {
        let at = Moment { epoch: 0xabc, number: 17 };
        for purge in [
            Purge::Page(Key::new(Bytes::from_static(b"http\x00 \xff/"))),
            Purge::Prefix(Bytes::from_static(b"a b")),
            Purge::Tag(Bytes::from_static(b"h\0post-1")),
            Purge::All,
        ] {
            let line = purge_line(&purge, at);
            let left = lines(line.as_bytes());
            assert_eq!((left.epochs, left.purges), (vec![0xabc], vec![(purge, at)]));
            for end in 0..line.len() - 1 {
                assert!(lines(&line.as_bytes()[..end]).purges.is_empty(), "{}", &line[..end]);
            }
        }
        let left = lines(file_line(&[7; 16], at).as_bytes());
        assert_eq!(left.files, [([7; 16], at)]);
    }

    #[test]
    fn a_name_that_is_not_durable_is_made_so_with_the_next_purge() {
        let folder = std::env::temp_dir().join(format!("yorozu-journal.{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let journal = Journal::without_file(&folder);
        let append = |nth| {
            faults::plan(nth, Fault::Once(nix::libc::EIO));
            let appended = journal.append(&[Purge::All], Moment { epoch: 1, number: 1 });
            (faults::clear(), appended.is_ok())
        };
        // To open, to write and to sync the file come first; the folder is next.
        assert_eq!(append(1), (true, false));
        assert_eq!(append(3), (true, false));
        assert_eq!(append(3), (true, false));
        assert_eq!(append(9), (false, true));
        assert_eq!(append(3), (false, true), "it is");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn purges_that_wait_for_a_write_are_in_the_next_one_together() {
        let folder = std::env::temp_dir().join(format!("yorozu-together.{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let journal = Journal::without_file(&folder);
        let purge = |number: u64| {
            let page = Purge::Page(Key::new(number.to_string().into()));
            journal.append(&[page], Moment { epoch: 1, number })
        };
        let waits = |count: usize| {
            while journal.state().waiting.matches('\n').count() < count {
                std::thread::yield_now();
            }
        };
        for is_broken in [false, true] {
            // As long as this is held a write is under way.
            journal.state().is_writing = true;
            let writing = Writing(&journal);
            std::thread::scope(|scope| {
                let purges: Vec<_> =
                    (0..8).map(|number| scope.spawn(move || purge(number))).collect();
                waits(8);
                if is_broken {
                    std::fs::remove_dir_all(&folder).unwrap();
                }
                drop(writing);
                for one in purges {
                    assert_eq!(one.join().unwrap().is_err(), is_broken);
                }
            });
            if !is_broken {
                let text = std::fs::read_to_string(folder.join(NAME)).unwrap();
                // Each write begins with an empty line.
                assert_eq!((text.matches("\n\n").count(), &text[..1]), (0, "\n"));
                assert_eq!(lines(text.as_bytes()).purges.len(), 8);
            }
        }
        assert_eq!(journal.state().waiting, "");
    }

    #[test]
    fn a_purge_of_a_later_version_s_kind_is_one_of_everything() {
        let line = summed("purge 0000000000000001 7 later:00");
        let at = Moment { epoch: 1, number: 7 };
        assert_eq!(lines(line.as_bytes()).purges, [(Purge::All, at)]);
    }

    #[test]
    fn epochs_keep_their_order() {
        let text = [
            epoch_line(5),
            epoch_line(3),
            purge_line(&Purge::All, Moment { epoch: 3, number: 1 }),
            epoch_line(4),
        ];
        assert_eq!(lines(text.concat().as_bytes()).epochs, [5, 3, 4]);
        assert!(lines(b"1795384910803 all .\n").epochs.is_empty(), "of an older version");
    }
}
