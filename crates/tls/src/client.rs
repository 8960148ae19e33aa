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
        let depth = usize::try_from(self.depth).unwrap_or(usize::MAX);
        Authorities::load(trusted, self.crl.as_deref(), depth, Purpose::Server, files)
            .map_err(ValueError)
    }
}

/// The system's authorities, where distributions have them.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where this system has its authorities.
pub fn system_authorities(files: &PemFiles) -> Option<&'static Path> {
    let mut paths = SYSTEM_AUTHORITIES.iter().map(Path::new);
    paths.find(|path| files.certificates(path, "certificate").is_ok())
}

/// What a client of ours asks with that no gateway's directives describe; `trusted`: what the server is verified by, if
/// it is.
pub fn settings(trusted: Option<&Path>) -> ClientSettings {
    /// Intermediate certificates; above what any authority uses.
    const DEPTH: u64 = 5;
    ClientSettings {
        protocols: vec![&rustls::version::TLS12, &rustls::version::TLS13],
        ciphers: "DEFAULT".to_owned(),
        commands: Commands::default(),
        sends_name: true,
        reuses_sessions: false,
        verify: trusted.map(|path| Verify { trusted: path.to_owned(), crl: None, depth: DEPTH }),
    }
}

/// TLS towards a server that is believed if these authorities vouch for it, or else the system's. On a system without
/// any no server is.
///
/// # Errors
/// A file that cannot be used.
pub fn believing(
    trusted: Option<&Path>,
    files: &PemFiles,
) -> Result<Arc<ClientConfig>, ValueError> {
    match trusted.or_else(|| system_authorities(files)) {
        Some(path) => settings(Some(path)).config(None, files),
        None => {
            let builder = ClientConfig::builder_with_provider(Arc::clone(crate::provider()));
            let builder = builder.with_safe_default_protocol_versions();
            let builder = builder.map_err(|problem| ValueError(problem.to_string()))?;
            let none = rustls::RootCertStore::empty();
            Ok(Arc::new(builder.with_root_certificates(none).with_no_client_auth()))
        }
    }
}
