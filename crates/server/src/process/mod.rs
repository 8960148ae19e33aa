//! The processes: a master that keeps root and serves no client, and a server that serves and has no rights.
//!
//! Way through: the master loads the configuration, binds, writes the pid file, opens logs, makes folders, and starts the
//! server process as `user`; that one is given the texts, logs and sockets over a [`channel`], loads the very same
//! configuration, and starts its worker threads. With `master_process off` the server is a thread of the same process.

mod adoption;
mod cache_manager;
mod channel;
pub mod daemon;
mod given;
pub mod handover;
mod limits;
mod master;
mod message;
pub mod pid;
mod plan;
mod rights;
mod server;
mod server_process;
mod signals;
pub mod sockets;
mod start;
pub mod worker;

pub use given::{give_file, given_file};
pub use master::run;
pub use start::{is_server, run_server};
