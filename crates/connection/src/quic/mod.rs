//! QUIC: sockets, keys and handshakes below HTTP/3.

pub mod directives;

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
        !name.is_empty()
    }),
)];
