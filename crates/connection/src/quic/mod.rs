//! QUIC: sockets, keys and handshakes below HTTP/3.
//!
//! | file | what it has |
//! | --- | --- |
//! | `endpoint.rs` | a worker's end of an address: clients that come, and the bounds that they are told |
//! | `socket.rs` | datagrams, in and out |
//! | `ids.rs`, `switch.rs` | which endpoint a datagram is for, and how it gets there |
//! | `link.rs` | two processes at the same sockets, while a new binary takes over |
//! | `alarm.rs` | when a connection has to be looked at again |
//! | `paths.rs` | where a client is, after it moved |
//! | `crypto.rs` | TLS inside of QUIC, by the name that a client asks for |
//! | `keys.rs`, `tokens.rs` | what tokens and resets are made with |
//!
//! Packets, losses and congestion are the quinn library's (docs/decisions/0028-http3.md).

mod alarm;
mod crypto;
pub mod directives;
mod endpoint;
mod ids;
mod keys;
pub mod link;
mod paths;
mod socket;
mod switch;
mod tokens;

pub use endpoint::{Endpoint, Opening};
pub(crate) use paths::Paths;
pub use quinn::Incoming;
pub use switch::Switch;

use crate::tls::session::{self, Session};
use directives::{DIRECTIVES, Draft, OTHERS};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_v3", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

const VARIABLES: &[Row] = &[(
    "http3",
    Variable::Builtin(|ex, out| {
        let name: &[u8] = match session::of(&ex.client).map(Session::alpn) {
            Some(b"h3") => b"h3",
            Some(b"hq-interop") => b"hq",
            _ => b"",
        };
        out.extend_from_slice(name);
        true
    }),
)];
