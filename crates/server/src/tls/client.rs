//! TLS towards upstreams.

use super::names::cipher_suites;
use super::{pem, provider};
use crate::config::directive::ValueError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use std::path::PathBuf;
use std::sync::Arc;

/// What the `*_ssl_*` directives of a gateway say.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub protocols: Vec<&'static SupportedProtocolVersion>,
    /// In OpenSSL's notation.
    pub ciphers: String,
    /// Is the peer's name sent (SNI)?
    pub sends_name: bool,
    pub reuses_sessions: bool,
    /// How the peer's certificate is verified, if it is.
    pub verify: Option<Verify>,
}

/// How the peer's certificate is verified.
#[derive(Clone, Debug)]
pub struct Verify {
    pub trusted: PathBuf,
    pub crl: Option<PathBuf>,
    /// Intermediate certificates allowed between the peer's and a trusted one.
    pub depth: u64,
}

/// The certificate and key shown to the peer, and the passwords the key is tried with.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub passwords: Vec<Vec<u8>>,
}

impl ClientSettings {
    /// Loads everything.
    ///
    /// # Errors
    /// A file that cannot be used, or a cipher list without a usable cipher.
    pub fn config(&self, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, ValueError> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: cipher_suites(&self.ciphers, provider())?,
            ..CryptoProvider::clone(provider())
        });
        let verifier: Arc<dyn ServerCertVerifier> = match &self.verify {
            None => Arc::new(Unverified(Arc::clone(&provider))),
            Some(verify) => verify.verifier(&provider)?,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.protocols)
            .map_err(|problem| ValueError(problem.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = pem::certificates(&identity.certificate, "certificate");
                let key = pem::key(&identity.key, &identity.passwords);
                builder
                    .with_client_auth_cert(chain.map_err(ValueError)?, key.map_err(ValueError)?)
                    .map_err(|problem| {
                        let shown = identity.key.display();
                        ValueError(format!("cannot use certificate key \"{shown}\": {problem}"))
                    })?
            }
        };
        config.enable_sni = self.sends_name;
        if !self.reuses_sessions {
            config.resumption = Resumption::disabled();
        }
        Ok(Arc::new(config))
    }
}

impl Verify {
    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, ValueError> {
        let mut roots = RootCertStore::empty();
        let trusted = pem::certificates(&self.trusted, "certificate").map_err(ValueError)?;
        roots.add_parsable_certificates(trusted);
        let mut builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        if let Some(crl) = &self.crl {
            builder = builder.with_crls(pem::revocations(crl).map_err(ValueError)?);
        }
        let verifier = builder.build().map_err(|problem| {
            ValueError(format!("cannot verify with \"{}\": {problem}", self.trusted.display()))
        })?;
        Ok(Arc::new(Verified { verifier, depth: self.depth }))
    }
}

/// Verifies the chain, and how long it is.
#[derive(Debug)]
struct Verified {
    verifier: Arc<WebPkiServerVerifier>,
    depth: u64,
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // rustls finds the chain and does not tell its length: those sent bound it.
        let sent = usize::try_from(self.depth).unwrap_or(usize::MAX).min(intermediates.len());
        self.verifier.verify_server_cert(
            end_entity,
            &intermediates[..sent],
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// `*_ssl_verify off`, nginx's default: whoever holds the key of the certificate shown is believed.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
