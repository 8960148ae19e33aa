//! TLS: certificates, keys, and nginx's names for what rustls has.

pub mod client;
pub mod names;
pub mod pem;

use rustls::crypto::CryptoProvider;
use std::sync::{Arc, LazyLock};

/// The cryptography behind rustls.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}
