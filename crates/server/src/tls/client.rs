//! TLS towards upstreams.

use super::names::cipher_suites;
use super::pem::PemFiles;
use super::provider;
use crate::config::directive::ValueError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
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
    pub fn config(
        &self,
        identity: Option<&Identity>,
        files: &PemFiles,
    ) -> Result<Arc<ClientConfig>, ValueError> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: cipher_suites(&self.ciphers, provider())?,
            ..CryptoProvider::clone(provider())
        });
        let chain =
            self.verify.as_ref().map(|verify| verify.chain(&provider, files)).transpose()?;
        let verifier = Verifier { chain, algorithms: provider.signature_verification_algorithms };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.protocols)
            .map_err(|problem| ValueError(problem.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = files.certificates(&identity.certificate, "certificate");
                let key = files.key(&identity.key, &identity.passwords);
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
    /// The verifier, and how many intermediate certificates it may use.
    fn chain(
        &self,
        provider: &Arc<CryptoProvider>,
        files: &PemFiles,
    ) -> Result<(Arc<WebPkiServerVerifier>, u64), ValueError> {
        let mut roots = RootCertStore::empty();
        let trusted = files.certificates(&self.trusted, "certificate").map_err(ValueError)?;
        roots.add_parsable_certificates(trusted);
        let mut builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        if let Some(crl) = &self.crl {
            builder = builder.with_crls(files.revocations(crl).map_err(ValueError)?);
        }
        let verifier = builder.build().map_err(|problem| {
            ValueError(format!("cannot verify with \"{}\": {problem}", self.trusted.display()))
        })?;
        Ok((verifier, self.depth))
    }
}

/// Verifies that the peer holds the key of its certificate, and the chain if there is one to verify
/// it by. Without (`*_ssl_verify off`, nginx's default) any certificate is believed.
#[derive(Debug)]
struct Verifier {
    chain: Option<(Arc<WebPkiServerVerifier>, u64)>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
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

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.chain.is_none() {
            return super::verify_by_key(message, cert, dss, &self.algorithms);
        }
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
