//! TLS: certificates, keys, and nginx's names for what rustls has.

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

mod certificate;
pub mod chain;
pub mod ciphers;
pub mod client;
pub mod commands;
mod der;
mod distinguished_name;
pub mod host;
pub mod identity;
pub mod kept;
mod locked;
pub mod names;
pub mod ocsp;
pub mod pem;
mod restated;
mod revocation;
pub mod signature;
pub mod verifier;
pub mod x509;

use rustls::crypto::CryptoProvider;
use std::sync::{Arc, LazyLock};

/// The cryptography behind rustls.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}
