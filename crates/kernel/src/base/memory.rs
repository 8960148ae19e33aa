//! Memory that was freed, and the system.

use super::limits;

/// Has the allocator give back to the system what has been free for a while. It does so when a large piece goes: without,
/// on an idle server, never.
pub fn give_back() {
    let mut piece = Vec::<u8>::new();
    let _ = piece.try_reserve_exact(limits::LARGE_PIECE_BYTES);
    drop(std::hint::black_box(piece));
}

/// As [`give_back`], once the allocator takes what was freed just now for unused.
#[expect(clippy::disallowed_methods, reason = "of a thread that serves no client")]
pub fn give_back_soon() {
    let thread = std::thread::Builder::new().name("gives memory back".to_owned());
    // Without it, what is free stays until the next pulse.
    let _ = thread.spawn(|| {
        std::thread::sleep(limits::UNUSED_AFTER);
        give_back();
    });
}
