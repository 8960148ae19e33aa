//! What is verified while hands are shaken: that the peer holds its certificate's key, and an upstream's chain.

use super::chain::{Authorities, Refusal};
use super::{host, provider, signature, x509};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use std::io;
use std::sync::Arc;

/// What both of rustls's traits ask for: whether the peer holds the key of its certificate.
macro_rules! signatures {
    () => {
        // Both by the key alone: the library reads no certificates of X.509's first version, which many home-made
        // ones are.

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let key = x509::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
            let is_valid = signature::is_signed_in_handshake(message, signed, &key);
            let valid = is_valid.then(HandshakeSignatureValid::assertion);
            Ok(valid.ok_or(CertificateError::BadSignature)?)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &provider().signature_verification_algorithms;
            let key = x509::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
            verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Why an upstream's certificate is not believed, in nginx's words.
#[derive(Debug, thiserror::Error)]
pub enum Disbelief {
    #[error("upstream SSL certificate verify error: ({}:{})", .0.0, .0.1)]
    Path(Refusal),
    #[error("upstream SSL certificate does not match \"{0}\"")]
    Name(String),
}

impl Disbelief {
    /// Why a handshake failed, if this is why.
    pub fn of(problem: &io::Error) -> Option<&Self> {
        match problem.get_ref()?.downcast_ref()? {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                why.downcast_ref()
            }
            _ => None,
        }
    }
}

impl From<Disbelief> for rustls::Error {
    fn from(why: Disbelief) -> Self {
        CertificateError::Other(OtherError(Arc::new(why))).into()
    }
}

/// Verifies the chain and the name of an upstream, if there is something to verify it by. Without (`*_ssl_verify off`,
/// nginx's default) any certificate is believed.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    pub(super) authorities: Option<Authorities>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let sent = std::iter::once(end_entity).chain(intermediates);
        let sent: Vec<_> = sent.map(|der| CertificateDer::from(&der[..])).collect();
        authorities.verify(&sent, now).map_err(Disbelief::Path)?;
        if !host::is_named(end_entity, server_name) {
            return Err(Disbelief::Name(server_name.to_str().into_owned()).into());
        }
        Ok(ServerCertVerified::assertion())
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
