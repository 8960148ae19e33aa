//! Contents of small files, kept in memory as long as the file is what it was.
//!
//! A file is looked at for each turn of the event loop, and not opened and read for each request. Its
//! content is taken for the same while device, inode, length and both times are: every write to a
//! file, or its replacement, changes one of them. Times are as coarse as the system's clock, so that a file
//! is only kept when its last change is older than that (git has the same rule for its index).

use bytes::Bytes;
use foldhash::fast::RandomState;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use std::cell::RefCell;
use std::os::unix::fs::FileExt as _;
use yorozu_kernel::base::{limits, turn};
use yorozu_kernel::files::open::{self, Identity, Kind, Opened};

#[derive(Clone)]
struct ByBytes;

impl quick_cache::Weighter<Identity, Bytes> for ByBytes {
    fn weight(&self, _: &Identity, content: &Bytes) -> u64 {
        content.len() as u64 + limits::SMALL_FILE_OVERHEAD
    }
}

type Kept = Cache<Identity, Bytes, ByBytes, RandomState>;

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::new(Cache::with(
        limits::SMALL_FILES,
        limits::SMALL_FILES_BYTES,
        ByBytes,
        RandomState::default(),
        DefaultLifecycle::default(),
    ));
}

/// The content of the file at `path`, if it is known, and when it was modified, in seconds since 1970.
pub(super) fn known(path: &[u8]) -> Option<(Bytes, i64)> {
    let seen = open::seen(path)?;
    if seen.kind != Kind::File || seen.identity.bytes > limits::FILE_CHUNK_BYTES as u64 {
        return None;
    }
    let content = KEPT.with_borrow(|kept| kept.get(&seen.identity).cloned())?;
    Some((content, seen.identity.modified.0))
}

/// The content of a file that was opened just now, if it is a small one that may be kept.
pub(super) fn read(opened: &Opened) -> Option<Bytes> {
    let identity = opened.identity;
    let length = usize::try_from(identity.bytes).ok()?;
    let changed = identity.modified.0.max(identity.changed.0);
    let is_settled = turn::unix_seconds() - changed > limits::SMALL_FILE_SETTLED_SECONDS;
    if !opened.is_file || length > limits::FILE_CHUNK_BYTES || !is_settled {
        return None;
    }
    let mut content = vec![0; length];
    opened.file.read_exact_at(&mut content, 0).ok()?;
    let content = Bytes::from(content);
    KEPT.with_borrow_mut(|kept| kept.insert(identity, content.clone()));
    Some(content)
}
