//! TLS towards clients: what servers say, handshakes, sessions, stapled answers.

pub mod client_auth;
pub mod directives;
mod figures;
pub mod handshake;
pub mod server;
pub mod session;
pub mod stapling;
pub mod stream;
pub mod tickets;

use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::shared::SharedType;
use yorozu_tls::pem;

/// The module.
pub const MODULE: Module =
    Module::new("http_ssl", || [directives::DIRECTIVES, directives::OTHERS].concat())
        .with(&[silent::<directives::Draft>])
        .sharing(&[SharedType::of::<tickets::SessionStore>(), SharedType::of::<pem::PemFiles>()])
        .computing(session::VARIABLES)
        .showing(figures::report, figures::SECTIONS);
