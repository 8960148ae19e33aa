//! `*_ssl_*`: TLS towards the upstream.

use super::Protocol;
use super::family::{Family, FamilyDraft, Spoken, Stamped, family_settings};
use crate::h2;
use bytes::Bytes;
use rustls::ClientConfig;
use rustls::pki_types::{IpAddr, ServerName};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::place::Place;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::ConfPath;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_tls::client::{ClientSettings, Verify};
use yorozu_tls::identity::Identity;
use yorozu_tls::kept::Kept;
use yorozu_tls::pem::{self, PemFiles};
use yorozu_upstream::TlsOptions;

/// What one block says with the prefix of a protocol.
pub type Shared<P> = Stamped<P, Draft>;

/// What the macro declares is public where other modules need it.
#[allow(unreachable_pub)]
mod own {
    use super::family_settings;
    use bytes::Bytes;
    use yorozu_kernel::config::template::Template;
    use yorozu_kernel::config::types::ConfPath;
    use yorozu_tls::commands::Commands;
    use yorozu_tls::kept::CertificateCache;
    use yorozu_tls::names::Protocols;

    family_settings! {
        written Draft;
        /// Certificate presented to the upstream.
        ssl_certificate: Option<Template> = none, ONE;
        /// How many certificates named by variables are kept, and for how long.
        ssl_certificate_cache: CertificateCache = "off", ONE_OR_MORE;
        /// Key of that certificate.
        ssl_certificate_key: Option<Template> = none, ONE;
        /// Ciphers for TLS 1.2, in OpenSSL's notation.
        ssl_ciphers: Bytes = "DEFAULT", ONE;
        /// OpenSSL's own commands: CipherString, Ciphersuites, Groups, MinProtocol, MaxProtocol, Protocol, Options.
        ssl_conf_command: Commands = none, TWO;
        /// Revoked certificates.
        ssl_crl: Option<ConfPath> = none, ONE;
        /// Name that is requested and verified.
        ssl_name: Option<Template> = none, ONE;
        /// Passwords for the key, one per line.
        ssl_password_file: Option<yorozu_tls::pem::PasswordFile> = none, ONE;
        /// TLS versions.
        ssl_protocols: Protocols = "TLSv1.2 TLSv1.3", ONE_OR_MORE;
        /// Whether the name is sent (SNI).
        ssl_server_name: bool = "off", ONE;
        /// Whether sessions are resumed.
        ssl_session_reuse: bool = "on", ONE;
        /// Authorities that the upstream's certificate is verified with.
        ssl_trusted_certificate: Option<ConfPath> = none, ONE;
        /// Whether the upstream's certificate is verified.
        ssl_verify: bool = "off", ONE;
        /// Intermediate certificates allowed.
        ssl_verify_depth: u64 = "1", ONE;
    }
}

pub use own::{Draft, rows};

/// TLS towards the upstream in one location.
#[derive(Clone)]
pub struct Conf {
    /// Loaded, unless variables decide about the certificate; `None` where TLS is not used.
    config: Option<Arc<ClientConfig>>,
    /// The same where HTTP/2 is spoken.
    of_h2: OnceLock<Arc<ClientConfig>>,
    settings: ClientSettings,
    /// Of the directives, for messages.
    prefix: &'static str,
    /// Certificate and key, where variables stand in them.
    identity: Option<(Template, Template)>,
    kept: Arc<Kept<Arc<ClientConfig>>>,
    passwords: Vec<Vec<u8>>,
    folder: PathBuf,
    name: Option<Template>,
    sends_name: bool,
}

impl FamilyDraft for Draft {
    type Conf = Conf;

    fn place(family: &'static Family) -> &'static Place {
        &family.tls
    }

    fn is_used_by(protocol: &dyn Protocol) -> bool {
        protocol.may_use_tls()
    }

    fn inherit(&mut self, outer: &Self) {
        Self::inherit(self, outer);
    }

    fn compile(&self, family: &Family, is_used: bool, env: &Env) -> Result<Conf, ValueError> {
        Conf::load(own::Conf::compile(self, family, env)?, family, is_used, env)
    }
}

/// The settings in a location that have the prefix of a protocol.
pub fn of<P: Spoken>(location: &LocationConf) -> &Conf {
    location.at(&<P as Spoken>::family().tls)
}

impl Conf {
    /// Loads what a location needs.
    ///
    /// # Errors
    /// A file that cannot be used, or one that is missing.
    fn load(own: own::Conf, family: &Family, is_used: bool, env: &Env) -> Result<Self, ValueError> {
        let prefix = family.prefix;
        let path = |path: &Option<ConfPath>| path.as_ref().map(|path| path.0.clone());
        let verify = match path(&own.ssl_trusted_certificate) {
            _ if !own.ssl_verify => None,
            Some(trusted) => {
                Some(Verify { trusted, crl: path(&own.ssl_crl), depth: own.ssl_verify_depth })
            }
            None if is_used => {
                return Err(ValueError(format!(
                    "no {prefix}_ssl_trusted_certificate for {prefix}_ssl_verify"
                )));
            }
            None => None,
        };
        let settings = ClientSettings {
            protocols: own.ssl_protocols.versions.clone(),
            ciphers: String::from_utf8_lossy(&own.ssl_ciphers).into_owned(),
            commands: own.ssl_conf_command.clone(),
            sends_name: own.ssl_server_name,
            reuses_sessions: own.ssl_session_reuse,
            verify,
        };
        let passwords = match own.ssl_password_file.as_ref().map(|file| &file.0) {
            Some(file) if is_used => {
                env.shared::<PemFiles>().passwords(file).map_err(ValueError)?
            }
            _ => Vec::new(),
        };
        let mut conf = Self {
            config: None,
            of_h2: OnceLock::new(),
            settings,
            prefix,
            identity: identity(&own, prefix, is_used)?,
            kept: Arc::new(Kept::new(own.ssl_certificate_cache)),
            passwords,
            folder: env.conf_prefix.clone(),
            name: own.ssl_name,
            sends_name: own.ssl_server_name,
        };
        if is_used {
            conf.prepare(&env.shared::<PemFiles>())?;
        }
        Ok(conf)
    }

    /// Whether variables name the certificate.
    pub fn is_spelled(&self) -> bool {
        self.config.is_none()
    }

    /// The same connection for HTTP/2, which the peer is asked for (RFC 7301).
    pub fn for_h2(&self, options: TlsOptions) -> TlsOptions {
        let TlsOptions { config, name } = options;
        let asking = || {
            let mut config = ClientConfig::clone(&config);
            config.alpn_protocols = vec![h2::ALPN.to_vec()];
            Arc::new(config)
        };
        let is_fixed = self.config.as_ref().is_some_and(|fixed| Arc::ptr_eq(fixed, &config));
        let config = if is_fixed { Arc::clone(self.of_h2.get_or_init(asking)) } else { asking() };
        TlsOptions { config, name }
    }

    fn prepare(&mut self, files: &PemFiles) -> Result<(), ValueError> {
        let literal = |template: &Template| template.as_literal();
        self.config = match &self.identity {
            None => Some(self.settings.config(None, files)?),
            Some((certificate, key)) => match (literal(certificate), literal(key)) {
                (Some(certificate), Some(key)) => {
                    let identity = self.loaded(&certificate, &key);
                    Some(self.settings.config(identity.as_ref(), files)?)
                }
                _ => None,
            },
        };
        Ok(())
    }

    /// The files, below the configuration's folder; `None` if the certificate's name is empty.
    fn loaded(&self, certificate: &[u8], key: &[u8]) -> Option<Identity> {
        let path = |name: &[u8]| pem::path(&self.folder, name);
        (!certificate.is_empty()).then(|| Identity {
            certificate: path(certificate),
            key: path(key),
            passwords: self.passwords.clone(),
        })
    }
}

fn identity(
    own: &own::Conf,
    prefix: &str,
    is_used: bool,
) -> Result<Option<(Template, Template)>, ValueError> {
    match (&own.ssl_certificate, &own.ssl_certificate_key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate.clone(), key.clone()))),
        (Some(certificate), None) if is_used => {
            let shown = certificate.as_literal().unwrap_or_default();
            Err(ValueError(format!(
                "no \"{prefix}_ssl_certificate_key\" is defined for certificate \"{}\"",
                String::from_utf8_lossy(&shown)
            )))
        }
        _ => Ok(None),
    }
}

/// How the connection for this exchange is encrypted; `host` is the name in the address.
///
/// # Errors
/// The status the client gets: a certificate that variables name cannot be loaded, or the name
/// cannot be sent.
pub fn options(exchange: &mut Exchange, conf: &Conf, host: &Bytes) -> Result<TlsOptions, u16> {
    let name = match &conf.name {
        Some(name) => name.value(exchange),
        None => host.clone(),
    };
    let config = match (&conf.config, &conf.identity) {
        (Some(config), _) => Arc::clone(config),
        (None, None) => return Err(500),
        (None, Some((certificate, key))) => {
            let (certificate, key) = (certificate.value(exchange), key.value(exchange));
            let load = || {
                let identity = conf.loaded(&certificate, &key);
                conf.settings.config(identity.as_ref(), &PemFiles::default())
            };
            let name = [&certificate[..], b"\n", &key].concat();
            conf.kept.get_or_load(name, load).map_err(|problem| {
                error::request(exchange, Level::Error, &problem.0);
                500u16
            })?
        }
    };
    let name = server_name(&name, conf).ok_or_else(|| {
        let name = error::verbatim(&name);
        let text = format!("\"{name}\" is not a server name in \"{}_ssl_name\"", conf.prefix);
        error::request(exchange, Level::Error, &text);
        502u16
    })?;
    Ok(TlsOptions { config, name })
}

/// How connections of a location are encrypted, where no variable decides; `host` as for [`options`].
pub fn fixed_options(conf: &Conf, host: &Bytes) -> Option<TlsOptions> {
    let name = match &conf.name {
        Some(name) => name.as_literal()?,
        None => host.clone(),
    };
    Some(TlsOptions { config: Arc::clone(conf.config.as_ref()?), name: server_name(&name, conf)? })
}

/// The name without its port. Where it is neither sent nor verified, any will do.
fn server_name(name: &Bytes, conf: &Conf) -> Option<ServerName<'static>> {
    let text = std::str::from_utf8(name).ok()?;
    let host = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => text,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let any = ServerName::IpAddress(IpAddr::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST)));
    match ServerName::try_from(host) {
        Ok(name) => Some(name),
        Err(_) if !conf.sends_name && conf.settings.verify.is_none() => Some(any),
        Err(_) => None,
    }
}
