//! What starts the server: the process, its ends and successors, gateways, sockets, rights, races.
//!
//! `cargo test -p yorozu --test server handover` runs the tests whose names contain "handover". All are one program, so that
//! the server is linked once: no test may change what belongs to the process, such as its environment, umask or working
//! folder.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod clocks;
mod configuration;
mod control;
mod files;
mod gateway;
mod generations;
mod handover;
mod lingering;
mod master;
mod names;
mod process;
mod purges;
mod quic;
mod rights;
mod shared;
mod slow_clients;
mod supervision;
mod zones;
