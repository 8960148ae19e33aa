//! For tests only: servers on free ports, a scripted origin, clients for every form, `.case` files.
//!
//! A case is read by [`case::parse`] and run by [`run::run`] against any [`server::Kind`]: yorozu,
//! and Debian's nginx as the oracle. Many are run by [`shared::seated`], on few servers.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

pub mod case;
mod check;
pub mod client;
pub mod clock;
pub mod form;
pub mod h2;
pub mod h3;
pub mod origin;
mod quoted;
pub mod request;
pub mod run;
mod seat;
pub mod server;
pub mod shared;
pub mod tls;
mod words;
