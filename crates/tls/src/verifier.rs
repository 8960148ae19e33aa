//! What is verified while hands are shaken: that the peer holds its certificate's key, and an upstream's chain.

use super::{provider, x509};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use std::sync::Arc;

/// What both of rustls's traits ask for: whether the peer holds the key of its certificate.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &provider().signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &provider().signature_verification_algorithms;
            if self.has_chain() {
                return verify_tls13_signature(message, certificate, signature, algorithms);
            }
            // By the key alone: the library reads no certificates of X.509's first version, which many
            // home-made ones are.
            let key = x509::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
            verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Verifies the chain of an upstream, if there is something to verify it by. Without (`*_ssl_verify off`, nginx's
/// default) any certificate is believed.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// And how many intermediate certificates it may use.
    pub(super) chain: Option<(Arc<WebPkiServerVerifier>, u64)>,
}

impl ServerVerifier {
    fn has_chain(&self) -> bool {
        self.chain.is_some()
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((chain, depth)) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // rustls finds the chain and does not tell its length: those sent bound it.
        let sent = usize::try_from(*depth).unwrap_or(usize::MAX).min(intermediates.len());
        let intermediates = &intermediates[..sent];
        chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    signatures!();
}

/// Asks clients for a certificate and believes any, or none: chains are verified after the handshake
/// ([`super::chain`]).
#[derive(Debug)]
pub struct AnyClient {
    /// Helps clients with several certificates to choose.
    pub hints: Arc<[DistinguishedName]>,
}

impl AnyClient {
    fn has_chain(&self) -> bool {
        false
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}
