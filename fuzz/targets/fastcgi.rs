//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/fastcgi.rs"]
mod fastcgi;

libfuzzer_sys::fuzz_target!(|input: &[u8]| fastcgi::check(input));
