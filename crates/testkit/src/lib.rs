//! For tests only: servers on free ports, a scripted FastCGI origin, a raw client, `.case` files.
//!
//! A case is read by [`case::parse`] and run by [`case::run`] against any [`server::Kind`]: yorozu,
//! and Debian's nginx as the oracle.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

pub mod case;
pub mod client;
pub mod origin;
pub mod server;
