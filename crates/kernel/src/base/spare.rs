//! Buffers and lists that a worker fills again, once nothing that was in them is needed any more.

use bytes::BytesMut;
use std::cell::RefCell;

/// Buffers kept; chosen: more requests than this are hardly answered at the same moment.
const KEPT_MAX: usize = 16;

/// Buffers of one length. What is read out of one shares its memory, so it is used again when that is gone.
#[derive(Debug)]
pub struct Spare {
    /// Room of each, in bytes.
    bytes: usize,
    kept: RefCell<Vec<BytesMut>>,
}

impl Spare {
    pub const fn of(bytes: usize) -> Self {
        Self { bytes, kept: RefCell::new(Vec::new()) }
    }

    /// An empty buffer with room.
    pub fn take(&self) -> BytesMut {
        let mut kept = self.kept.borrow_mut();
        // Its memory from the front, if no one else has a part of it any more.
        let free = kept.iter_mut().rposition(|buffer| buffer.try_reclaim(self.bytes));
        free.map_or_else(|| BytesMut::with_capacity(self.bytes), |at| kept.swap_remove(at))
    }

    /// Keeps what is behind all that was read: that holds the memory.
    pub fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut kept = self.kept.borrow_mut();
        // One that had to grow is not kept.
        let is_usual = (1..=self.bytes).contains(&buffer.capacity());
        if is_usual && kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }
}

/// Lists that a worker fills again.
#[derive(Debug)]
pub struct SpareLists<T>(RefCell<Vec<Vec<T>>>);

impl<T> SpareLists<T> {
    /// None yet.
    pub const fn empty() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// An empty list, with room if one was given back.
    pub fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a list that is not needed any more, unless it grew longer than `longest`.
    pub fn give(&self, mut list: Vec<T>, longest: usize) {
        list.clear();
        let mut kept = self.0.borrow_mut();
        if (1..=longest).contains(&list.capacity()) && kept.len() < KEPT_MAX {
            kept.push(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_nothing_of_it_is_needed() {
        let spare = Spare::of(64);
        let mut buffer = spare.take();
        let at = buffer.as_ptr();
        buffer.extend_from_slice(&[1; 60]);
        let read = buffer.split_to(60).freeze();
        spare.give(buffer);
        let other = spare.take();
        assert!(other.as_ptr() != at && other.capacity() >= 64, "what was read is still needed");
        drop(read);
        let again = spare.take();
        assert!(again.is_empty() && again.as_ptr() == at && again.capacity() >= 64);
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        let spare = Spare::of(64);
        spare.give(BytesMut::with_capacity(65));
        assert!(spare.kept.borrow().is_empty());
    }
}
