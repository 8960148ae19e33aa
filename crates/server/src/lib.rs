//! The server. Modules in the order a request meets them; read top to bottom it is the program.
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

pub mod process;
pub mod tls;

pub mod config;
pub mod faults;
pub mod limits;
pub mod tasks;

pub mod listen;

pub mod connection;

pub mod exchange;

pub mod find_config;

pub mod phases;

pub mod handlers;

pub mod cache;

pub mod filters;

pub mod logging;

pub mod control;

#[cfg(test)]
mod testing;

/// The nginx release whose behaviour is the model; `$nginx_version` and `-V`.
pub const NGINX_VERSION: &str = "1.31.5";
