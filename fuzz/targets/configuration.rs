//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/configuration.rs"]
mod configuration;

libfuzzer_sys::fuzz_target!(|input: &[u8]| configuration::check(input));
