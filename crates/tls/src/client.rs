//! TLS towards upstreams.

use super::chain::{Authorities, Purpose};
use super::commands::Commands;
use super::identity::Identity;
use super::pem::PemFiles;
use super::verifier::ServerVerifier;
use rustls::client::Resumption;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, SupportedProtocolVersion};
use std::path::{Path, PathBuf};
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
        let authorities = self.verify.as_ref().map(|verify| verify.load(files)).transpose()?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.commands.protocols(&self.protocols)?)
            .map_err(|problem| ValueError(problem.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier { authorities }));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let shown = SingleCertAndKey::from(identity.load(files)?);
                builder.with_client_cert_resolver(Arc::new(shown))
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
    fn load(&self, files: &PemFiles) -> Result<Authorities, ValueError> {
        let trusted = files.certificates(&self.trusted, "certificate").map_err(ValueError)?;
        let lists = self.crl.as_ref().map(|crl| files.revocations(crl)).transpose();
        let lists = lists.map_err(ValueError)?;
        let depth = usize::try_from(self.depth).unwrap_or(usize::MAX);
        Authorities::new(trusted, lists.as_deref(), depth, Purpose::Server).map_err(|problem| {
            let shown = self.crl.as_deref().unwrap_or(Path::new("")).display();
            ValueError(format!("cannot load CRL \"{shown}\": {problem}"))
        })
    }
}
