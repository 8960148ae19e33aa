//! Numbers that groups draw, and digests of addresses.

use std::sync::Arc;

/// An address by its MD5, in hexadecimal digits.
pub(crate) fn digest(text: &str) -> Arc<str> {
    use md5::Digest as _;
    let digits =
        md5::Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    digits.into()
}

/// An unpredictable number: keys that the standard library draws for hash tables.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

/// The output step of the splitmix64 generator, its upper half.
pub(crate) fn mix(state: u64) -> u32 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from((mixed ^ (mixed >> 31)) >> 32).expect("32 bits")
}
