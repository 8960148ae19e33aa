//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/cache_file.rs"]
mod cache_file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| cache_file::check(input));
