//! `proxy_ssl_*`: TLS towards the upstream.

use super::{Pass, Scheme};
use crate::protocol::spoken_by;
use crate::proxy::Destination;
use bytes::Bytes;
use rustls::ClientConfig;
use rustls::pki_types::{IpAddr, ServerName};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, Varies};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::ConfPath;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_tls::client::{ClientSettings, Identity, Verify};
use yorozu_tls::pem::{self, PemFiles};
use yorozu_upstream::TlsOptions;

/// What the macro declares is public where other modules need it.
#[allow(unreachable_pub)]
mod own {
    use bytes::Bytes;
    use yorozu_kernel::config::directive::*;
    use yorozu_kernel::config::template::Template;
    use yorozu_kernel::config::types::ConfPath;
    use yorozu_tls::names::Protocols;

    settings! {
        written;
        /// Certificate shown to the upstream.
        proxy_ssl_certificate: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
        /// Key of that certificate.
        proxy_ssl_certificate_key: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
        /// Ciphers for TLS 1.2, in OpenSSL's notation.
        proxy_ssl_ciphers: Bytes = "DEFAULT", ONE, HTTP_SERVER_LOCATION;
        /// Revoked certificates.
        proxy_ssl_crl: Option<ConfPath> = none, ONE, HTTP_SERVER_LOCATION;
        /// Name that is asked for and verified.
        proxy_ssl_name: Option<Template> = none, ONE, HTTP_SERVER_LOCATION;
        /// Passwords for the key, one a line.
        proxy_ssl_password_file: Option<ConfPath> = none, ONE, HTTP_SERVER_LOCATION;
        /// Versions of TLS.
        proxy_ssl_protocols: Protocols = "TLSv1.2 TLSv1.3", ONE_OR_MORE, HTTP_SERVER_LOCATION;
        /// Whether the name is sent (SNI).
        proxy_ssl_server_name: bool = "off", ONE, HTTP_SERVER_LOCATION;
        /// Whether sessions are resumed.
        proxy_ssl_session_reuse: bool = "on", ONE, HTTP_SERVER_LOCATION;
        /// Certificates of authorities the upstream's certificate is verified with.
        proxy_ssl_trusted_certificate: Option<ConfPath> = none, ONE, HTTP_SERVER_LOCATION;
        /// Whether the upstream's certificate is verified.
        proxy_ssl_verify: bool = "off", ONE, HTTP_SERVER_LOCATION;
        /// Intermediate certificates allowed.
        proxy_ssl_verify_depth: u64 = "1", ONE, HTTP_SERVER_LOCATION;
    }
}

pub use own::{DIRECTIVES, Draft};

/// TLS towards the upstream in one location.
#[derive(Clone)]
pub struct Conf {
    /// Loaded, unless variables decide about the certificate; `None` where TLS is not used.
    config: Option<Arc<ClientConfig>>,
    settings: ClientSettings,
    /// Certificate and key, where variables stand in them.
    identity: Option<(Template, Template)>,
    passwords: Vec<Vec<u8>>,
    folder: PathBuf,
    name: Option<Template>,
    sends_name: bool,
}

impl ModuleDraft for Draft {
    type Conf = Conf;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        Self::inherit(self, outer);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<Conf, ValueError> {
        Conf::compile(self, at.env, is_used(at))
    }

    fn varies(&self, at: &Compiling<'_>) -> Varies {
        Varies::With(is_used(at))
    }
}

impl ModuleConf for Conf {
    fn place() -> &'static Place {
        Draft::place()
    }
}

/// Whether the location may speak TLS.
fn is_used(at: &Compiling<'_>) -> bool {
    spoken_by::<Pass>(&**at.handler).is_some_and(|pass| pass.known_scheme() != Some(Scheme::Http))
}

impl Conf {
    /// Loads what a location needs.
    ///
    /// # Errors
    /// A file that cannot be used, or one that is missing.
    fn compile(draft: &Draft, env: &Env, is_used: bool) -> Result<Self, ValueError> {
        let own = own::Conf::compile(draft, env)?;
        let path = |path: &Option<ConfPath>| path.as_ref().map(|path| path.0.clone());
        let verify = match path(&own.proxy_ssl_trusted_certificate) {
            _ if !own.proxy_ssl_verify => None,
            Some(trusted) => Some(Verify {
                trusted,
                crl: path(&own.proxy_ssl_crl),
                depth: own.proxy_ssl_verify_depth,
            }),
            None if is_used => {
                return Err(ValueError::new(
                    "no proxy_ssl_trusted_certificate for proxy_ssl_verify",
                ));
            }
            None => None,
        };
        let settings = ClientSettings {
            protocols: own.proxy_ssl_protocols.0.clone(),
            ciphers: String::from_utf8_lossy(&own.proxy_ssl_ciphers).into_owned(),
            sends_name: own.proxy_ssl_server_name,
            reuses_sessions: own.proxy_ssl_session_reuse,
            verify,
        };
        let passwords = match path(&own.proxy_ssl_password_file) {
            Some(file) if is_used => {
                env.shared::<PemFiles>().passwords(&file).map_err(ValueError)?
            }
            _ => Vec::new(),
        };
        let mut conf = Self {
            config: None,
            settings,
            identity: identity(&own, is_used)?,
            passwords,
            folder: env.conf_prefix.clone(),
            name: own.proxy_ssl_name.clone(),
            sends_name: own.proxy_ssl_server_name,
        };
        if is_used {
            conf.load(&env.shared::<PemFiles>())?;
        }
        Ok(conf)
    }

    /// Whether variables name the certificate.
    pub(super) fn is_spelled(&self) -> bool {
        self.config.is_none()
    }

    fn load(&mut self, files: &PemFiles) -> Result<(), ValueError> {
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

fn identity(own: &own::Conf, is_used: bool) -> Result<Option<(Template, Template)>, ValueError> {
    match (&own.proxy_ssl_certificate, &own.proxy_ssl_certificate_key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate.clone(), key.clone()))),
        (Some(certificate), None) if is_used => {
            let shown = certificate.as_literal().unwrap_or_default();
            Err(ValueError(format!(
                "no \"proxy_ssl_certificate_key\" is defined for certificate \"{}\"",
                String::from_utf8_lossy(&shown)
            )))
        }
        _ => Ok(None),
    }
}

/// How the connection for this exchange is encrypted.
///
/// # Errors
/// The status the client gets: a certificate that variables name cannot be loaded, or the name
/// cannot be sent.
pub(super) fn options(exchange: &mut Exchange, conf: &Conf) -> Result<TlsOptions, u16> {
    let name = match &conf.name {
        Some(name) => name.value(exchange),
        None => exchange
            .pass
            .of::<Rc<Destination>>()
            .map(|proxy| proxy.host.clone())
            .unwrap_or_default(),
    };
    let config = match (&conf.config, &conf.identity) {
        (Some(config), _) => Arc::clone(config),
        (None, None) => return Err(500),
        (None, Some((certificate, key))) => {
            let (certificate, key) = (certificate.value(exchange), key.value(exchange));
            let identity = conf.loaded(&certificate, &key);
            conf.settings.config(identity.as_ref(), &PemFiles::default()).map_err(|problem| {
                error::request(exchange, Level::Error, &problem.0);
                500u16
            })?
        }
    };
    let name = server_name(&name, conf).ok_or_else(|| {
        let name = String::from_utf8_lossy(&name);
        let text = format!("\"{name}\" is not a server name in \"proxy_ssl_name\"");
        error::request(exchange, Level::Error, &text);
        502u16
    })?;
    Ok(TlsOptions { config, name })
}

/// How connections of a location are encrypted, where no variable decides.
pub fn client_options(pass: &Pass, conf: &Conf) -> Option<TlsOptions> {
    let Pass::Fixed { destination, .. } = pass else { return None };
    let name = match &conf.name {
        Some(name) => name.as_literal()?,
        None => destination.host.clone(),
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
