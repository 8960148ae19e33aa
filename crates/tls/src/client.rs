//! TLS towards upstreams.

use super::commands::Commands;
use super::pem::PemFiles;
use super::verifier::ServerVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_kernel::config::directive::ValueError;

/// What the `*_ssl_*` directives of a gateway say.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub protocols: Vec<&'static SupportedProtocolVersion>,
    /// In OpenSSL's notation.
    pub ciphers: String,
    pub commands: Commands,
    /// Whether the peer's name is sent (SNI).
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
        let provider = self.commands.provider(&self.ciphers, None)?;
        let chain =
            self.verify.as_ref().map(|verify| verify.chain(&provider, files)).transpose()?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.commands.protocols(&self.protocols)?)
            .map_err(|problem| ValueError(problem.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier { chain }));
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
