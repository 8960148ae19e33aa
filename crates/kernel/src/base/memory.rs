//! Memory that was freed, and the system.

use super::limits;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has the allocator give back to the system what has been free for a while. It does so when a large piece goes: without,
/// on an idle server, never.
pub fn give_back() {
    let mut piece = Vec::<u8>::new();
    let _ = piece.try_reserve_exact(limits::LARGE_PIECE_BYTES);
    drop(std::hint::black_box(piece));
}

/// As [`give_back`], once the allocator takes what was freed just now for unused. One that is due already is as good, but
/// for what the last of many reloads leaves, which the next pulse gives back.
#[expect(clippy::disallowed_methods, reason = "of a thread that serves no client")]
pub fn give_back_soon() {
    static IS_DUE: AtomicBool = AtomicBool::new(false);
    if IS_DUE.swap(true, Ordering::Relaxed) {
        return;
    }
    let wait = || {
        std::thread::sleep(limits::UNUSED_AFTER);
        IS_DUE.store(false, Ordering::Relaxed);
        give_back();
    };
    let thread = std::thread::Builder::new().name("gives memory back".to_owned());
    if thread.spawn(wait).is_err() {
        // What is free stays until the next pulse.
        IS_DUE.store(false, Ordering::Relaxed);
    }
}
