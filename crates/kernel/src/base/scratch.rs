//! Buffers for texts that are looked at and forgotten: a worker uses them again.

use bytes::Bytes;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// Buffers kept; chosen: few texts are needed at a time, but for the heads of a batch.
const KEPT_MAX: usize = 32;
/// Room of a new buffer, and the least of one that is kept: a shorter one would have to grow.
const BYTES_MIN: usize = 256;
/// A buffer that grew beyond this is not kept.
const BYTES_MAX: usize = 4096;

/// Not dropped: what has nothing to drop at the end of its thread is at hand without asking whether it still is. Workers end
/// with their process.
type Buffer = ManuallyDrop<Vec<u8>>;

const NONE: Buffer = ManuallyDrop::new(Vec::new());

struct Kept {
    count: Cell<usize>,
    /// The first `count` of them; the others are empty.
    buffers: [Cell<Buffer>; KEPT_MAX],
}

thread_local! {
    static KEPT: Kept = const {
        Kept { count: Cell::new(0), buffers: [const { Cell::new(NONE) }; KEPT_MAX] }
    };
}

/// A buffer, given back when it is dropped. The default has no room.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u8>);

impl Scratch {
    /// An empty one.
    #[inline]
    pub fn take() -> Self {
        Self(KEPT.with(|kept| {
            let Some(last) = kept.count.get().checked_sub(1) else {
                return Vec::with_capacity(BYTES_MIN);
            };
            kept.count.set(last);
            ManuallyDrop::into_inner(kept.buffers[last].replace(NONE))
        }))
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        if !(BYTES_MIN..=BYTES_MAX).contains(&self.0.capacity()) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        KEPT.with(|kept| {
            let count = kept.count.get();
            if let Some(place) = kept.buffers.get(count) {
                place.set(ManuallyDrop::new(buffer));
                kept.count.set(count + 1);
            }
        });
    }
}

impl From<Vec<u8>> for Scratch {
    /// A buffer that is not needed any more is given back.
    fn from(buffer: Vec<u8>) -> Self {
        Self(buffer)
    }
}

impl From<Scratch> for Vec<u8> {
    fn from(mut scratch: Scratch) -> Self {
        std::mem::take(&mut scratch.0)
    }
}

impl AsRef<[u8]> for Scratch {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Scratch> for Bytes {
    /// Without a copy: the buffer is given back when the bytes are not needed any more.
    fn from(text: Scratch) -> Self {
        Self::from_owner(text)
    }
}

impl Deref for Scratch {
    type Target = Vec<u8>;
    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Scratch {
    #[inline]
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
        assert_eq!(KEPT.with(|kept| kept.count.get()), 0);
    }
}
