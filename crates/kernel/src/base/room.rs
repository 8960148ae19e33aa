//! Whether the workers have room for more connections.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Workers that have none.
static FULL: AtomicUsize = AtomicUsize::new(0);

/// A worker has no room, until this is dropped.
#[derive(Debug)]
pub struct Full(());

impl Full {
    #[expect(clippy::new_without_default, reason = "it counts")]
    pub fn new() -> Self {
        FULL.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        FULL.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether some worker takes no more connections: what this process asks of itself may wait for itself then.
#[inline]
pub fn is_full() -> bool {
    FULL.load(Ordering::Relaxed) > 0
}
