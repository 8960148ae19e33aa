//! Bytes that are in memory for their readers, whether the page stays stored or not.

use bytes::Bytes;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes are held.
#[derive(Debug, Default)]
pub struct Account(Arc<AtomicU64>);

/// This many of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: u64,
    held: Arc<AtomicU64>,
}

impl Share {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts this many from here on.
    pub(crate) fn set(&mut self, bytes: u64) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.held.fetch_add(more, Ordering::Relaxed),
            None => self.held.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Lent {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body in memory, or another coding of it: counted until its last reader lets it go. A page has no others.
#[derive(Clone, Debug, Default)]
pub struct Held(Bytes);

impl Held {
    /// A part of them: it holds all.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        Self(self.0.slice(range))
    }

    /// For a reader.
    pub fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Account {
    /// How many there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts some more.
    pub(crate) fn share(&self, bytes: u64) -> Share {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Share { bytes, held: Arc::clone(&self.0) }
    }

    /// Counts bytes as long as they are held.
    pub fn hold(&self, bytes: Bytes) -> Held {
        if bytes.is_empty() {
            return Held(bytes);
        }
        let share = self.share(bytes.len() as u64);
        Held(Bytes::from_owner(Lent { bytes, _share: share }))
    }

    /// The same bytes, counted until the last reader lets them go; `None` if that would be more than `max`.
    pub(crate) fn lend(&self, bytes: &Held, max: u64) -> Option<Bytes> {
        let more = bytes.len() as u64;
        let next = |held: u64| held.checked_add(more).filter(|held| *held <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let share = Share { bytes: more, held: Arc::clone(&self.0) };
        Some(Bytes::from_owner(Lent { bytes: bytes.bytes(), _share: share }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_readers_hold_is_bounded_until_they_let_it_go() {
        let (account, bytes) = (Account::default(), Held(Bytes::from_static(b"0123456789")));
        let first = account.lend(&bytes, 25).unwrap();
        let second = account.lend(&bytes, 25).unwrap().slice(3..4);
        assert!(account.lend(&bytes, 25).is_none());
        drop(first);
        assert_eq!(account.lend(&bytes, 25), Some(bytes.bytes()));
        drop(second);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn what_is_held_counts_once_and_as_long_as_a_part_of_it_is_read() {
        let account = Account::default();
        let held = account.hold(Bytes::from_static(b"0123456789"));
        let (part, reader) = (held.slice(2..4), held.bytes());
        assert_eq!((account.bytes(), &part[..]), (10, &b"23"[..]));
        drop((held, reader));
        let last = part.bytes();
        drop(part);
        assert_eq!(account.bytes(), 10);
        drop(last);
        assert_eq!(account.bytes(), 0);
    }
}
