//! Servers behind us: groups of peers, which one is next, connections and their pools.
//!
//! Way through: [`Group::select`] -> [`Pool::take`] or [`Connection::open`] -> the caller speaks its
//! protocol -> [`Pool::put`] or drop -> [`Lease::succeeded`] or [`Lease::failed`].
//!
//! | life of a pooled connection | next |
//! | --- | --- |
//! | open | in use |
//! | in use | idle, if the caller puts it back whole; else closed |
//! | idle | in use, or closed by age, by count, or because the peer closed it |
//!
//! # Invariants
//! - A [`Group`] is shared by all workers; a [`Pool`] belongs to one.
//! - Times are arguments: what reads a clock, the [`Resolver`] above all, says why (`clippy.toml`).
//! - What a [`Resolver`] found belongs to one worker.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test begins at some time"))]

mod balance;
mod connection;
mod dns;
mod figures;
mod gauge;
mod group;
mod last_known;
mod loads;
mod numbers;
mod pool;
mod records;
mod resolver;
mod ring;
mod sync;
mod times;
mod tls;
mod unix;

pub use balance::{Balance, LeastTime, Selector};
pub use connection::{Connection, PeerAddress, SocketOptions};
pub use figures::PeerFigures;
pub use gauge::{Gauge, Taken};
pub use group::{Group, Lease, Peer, PeerOptions, Tried};
pub use loads::Loads;
pub use pool::{Kept, KeptFor, Pool, PoolLimits};
pub use records::Records;
pub use resolver::{Offered, Place, ResolveFault, Resolved, Resolver};
pub use ring::{Ring, RingKind};
pub use tls::{Tls, TlsOptions};
pub use unix::UnixSocket;
