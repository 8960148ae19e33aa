//! What it checks is a module of its own, which `cargo test -p yorozu-testkit` runs as well.
#![no_main]

#[path = "../../crates/testkit/tests/corpora/proxy_protocol.rs"]
mod proxy_protocol;

libfuzzer_sys::fuzz_target!(|input: &[u8]| proxy_protocol::check(input));
