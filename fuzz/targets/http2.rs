//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/http2.rs"]
mod http2;

libfuzzer_sys::fuzz_target!(|input: &[u8]| http2::check(input));
