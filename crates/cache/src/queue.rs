//! Entries that wait for the disk, bounded by their bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of entries that wait for the disk, of one zone; chosen: some thousand small pages. Of a disk that does not keep
/// up, more of them would be memory alone.
pub const WAITING_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Entries of one zone that wait for the disk.
#[derive(Debug, Default)]
pub(crate) struct Queue(Arc<State>);

#[derive(Debug, Default)]
struct State {
    bytes: AtomicU64,
    refused: AtomicU64,
    is_reported: AtomicBool,
}

/// A place of one entry, given up when it was written.
#[derive(Debug)]
pub struct Place {
    state: Arc<State>,
    bytes: u64,
}

/// Too many wait: the entry is kept in memory alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refused {
    /// The first one since none waited.
    pub is_first: bool,
}

impl Queue {
    pub(crate) fn enter(&self, bytes: u64) -> Result<Place, Refused> {
        let State { bytes: waiting, refused, is_reported } = &*self.0;
        let next =
            |waiting: u64| waiting.checked_add(bytes).filter(|all| *all <= WAITING_BYTES_MAX);
        if waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
            return Ok(Place { state: Arc::clone(&self.0), bytes });
        }
        refused.fetch_add(1, Ordering::Relaxed);
        Err(Refused { is_first: !is_reported.swap(true, Ordering::Relaxed) })
    }

    /// Bytes that wait, and entries that were refused.
    pub(crate) fn usage(&self) -> (u64, u64) {
        (self.0.bytes.load(Ordering::Relaxed), self.0.refused.load(Ordering::Relaxed))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.state.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if before == self.bytes && self.state.is_reported.load(Ordering::Relaxed) {
            self.state.is_reported.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_reported_once() {
        let queue = Queue::default();
        let half = WAITING_BYTES_MAX / 2;
        let (first, second) = (queue.enter(half).unwrap(), queue.enter(half).unwrap());
        assert!(queue.enter(1).unwrap_err().is_first);
        assert!(!queue.enter(1).unwrap_err().is_first);
        drop(first);
        let third = queue.enter(half).unwrap();
        assert!(!queue.enter(half).unwrap_err().is_first, "some wait still");
        drop((second, third));
        assert_eq!(queue.usage(), (0, 3));
        let _all = queue.enter(WAITING_BYTES_MAX).unwrap();
        assert!(queue.enter(1).unwrap_err().is_first);
    }
}
