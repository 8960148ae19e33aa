//! TLS: certificates, keys, and nginx's names for what rustls has.

pub mod client;
pub mod client_auth;
pub mod directives;
pub mod handshake;
pub mod names;
pub mod pem;
pub mod server;
pub mod session;
pub mod stream;
pub mod tickets;
pub mod x509;

use rustls::crypto::CryptoProvider;
use std::sync::{Arc, LazyLock};

/// The cryptography behind rustls.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}
