//! Large bytes that are in memory for their readers, whatever becomes of the page.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes readers hold.
#[derive(Debug, Default)]
pub(crate) struct Account(Arc<AtomicU64>);

struct Lent {
    bytes: Bytes,
    held: Arc<AtomicU64>,
}

impl Account {
    /// The same bytes, counted until the last reader lets them go; `None` if that would be more than `max`.
    pub(crate) fn lend(&self, bytes: &Bytes, max: u64) -> Option<Bytes> {
        let more = bytes.len() as u64;
        let next = |held: u64| held.checked_add(more).filter(|held| *held <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let lent = Lent { bytes: bytes.clone(), held: Arc::clone(&self.0) };
        Some(Bytes::from_owner(lent))
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_readers_hold_is_bounded_until_they_let_it_go() {
        let (account, bytes) = (Account::default(), Bytes::from_static(b"0123456789"));
        let first = account.lend(&bytes, 25).unwrap();
        let second = account.lend(&bytes, 25).unwrap().slice(3..4);
        assert!(account.lend(&bytes, 25).is_none());
        drop(first);
        assert_eq!(account.lend(&bytes, 25).as_ref(), Some(&bytes));
        drop(second);
        assert_eq!(account.0.load(Ordering::Relaxed), 0);
    }
}
