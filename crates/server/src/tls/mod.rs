//! TLS: certificates, keys, and nginx's names for what rustls has.

mod certificate;
mod chain;
pub mod client;
pub mod client_auth;
mod der;
pub mod directives;
mod distinguished_name;
pub mod handshake;
pub mod names;
mod ocsp;
pub mod pem;
mod restated;
mod revocation;
pub mod server;
pub mod session;
mod signature;
pub mod stapling;
pub mod stream;
pub mod tickets;
pub mod x509;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, DigitallySignedStruct};
use std::sync::{Arc, LazyLock};

/// The cryptography behind rustls.
pub fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    &PROVIDER
}

/// Does the peer hold the key of its certificate? By the key alone: the library reads no certificates
/// of X.509's first version, which many home-made ones are.
///
/// # Errors
/// It does not.
pub(crate) fn verify_by_key(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let key = x509::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
    verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
}
