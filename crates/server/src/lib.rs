//! The server as a whole: which modules there are, in which order a request meets them, how a configuration becomes one,
//! the process and its workers.
//!
//! ```text
//! client -> listen -> connection -> Exchange
//!   -> phases: server_rewrite > find_config > rewrite > access > try_files > content
//!                              .-- static_file | return | status
//!                              |   cache (policy) <-> yorozu-cache: memory, disk
//!                              |       | miss, expired, bypass
//!                              |       v
//!                              |   gateway: fastcgi -> yorozu-upstream -> origin
//!                              v       v
//!   <- connection <- filters: not_modified > headers > gzip > range <- Response
//!   -> logging (after the last byte; always, also on failure)
//! ```

#![expect(
    missing_docs,
    reason = "public only for the binary and the tests; fields say what they are"
)]

pub mod config;
pub mod console;
pub mod control;
mod cron;
mod engine;
pub mod filters;
pub mod handlers;
mod live;
pub mod modules;
pub mod phases;
pub mod process;

pub use yorozu_acme::authority;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
