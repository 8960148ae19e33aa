//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/http1.rs"]
mod http1;

libfuzzer_sys::fuzz_target!(|input: &[u8]| http1::check(input));
