//! Buffers for texts that are looked at and forgotten: a worker uses them again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Buffers kept; chosen: few texts are needed at a time.
const KEPT_MAX: usize = 8;
/// A buffer that grew beyond this is not kept.
const BYTES_MAX: usize = 4096;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer, given back when it is dropped.
pub struct Scratch(Vec<u8>);

impl Scratch {
    pub fn take() -> Self {
        Self(KEPT.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < KEPT_MAX && buffer.capacity() <= BYTES_MAX {
                kept.push(buffer);
            }
        });
    }
}

impl Deref for Scratch {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_none_is_shared() {
        let (mut one, other) = (Scratch::take(), Scratch::take());
        one.extend_from_slice(b"text");
        let at = one.as_ptr();
        assert!(other.is_empty());
        drop(other);
        drop(one);
        let again = Scratch::take();
        assert!(again.is_empty() && again.as_ptr() == at);
        let mut large = Scratch::take();
        large.resize(BYTES_MAX + 1, 0);
        drop(large);
        assert_eq!(KEPT.with_borrow(Vec::len), 0);
    }
}
