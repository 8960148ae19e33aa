//! TLS towards clients, as one `server` block has it.

use crate::tls::client_auth::{Asking, ClientAuth};
use crate::tls::directives::{Conf, Draft, VerifyClient};
use crate::tls::stapling::{Question, Stapled};
use crate::tls::tickets::{self, Circle};
use arc_swap::ArcSwap;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, ProtocolVersion, ServerConfig, SignatureAlgorithm, SupportedProtocolVersion,
};
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_tls::identity::Identity;
use yorozu_tls::kept::Kept;
use yorozu_tls::pem::{self, PemFiles};
use yorozu_tls::{provider, x509};

/// Bytes that a record adds to its content, by rustls's way of counting.
const RECORD_OVERHEAD: usize = 5;
/// Sessions stored for early data where `ssl_session_cache` says nothing; chosen, as nginx's cache without a name.
const EARLY_SESSIONS: usize = 20_480;
/// The largest content of a record (RFC 8446, section 5.1).
const CONTENT_BYTES_MAX: usize = 16 * 1024;

/// One server's TLS.
#[derive(Debug)]
pub struct ServerTls {
    /// `ssl_reject_handshake`
    pub rejects: bool,
    /// How clients prove who they are.
    pub client_auth: Option<Arc<ClientAuth>>,
    /// Whether it speaks TLS 1.3.
    pub has_tls13: bool,
    /// `ssl_early_data`
    pub has_early_data: bool,
    /// `None` without a certificate.
    configs: Option<Configs>,
    /// Certificates that variables name.
    named: Option<Named>,
    /// Those that no variables name.
    certificates: Vec<Stapled>,
    /// Certificates whose state is asked of their responders.
    pub questions: Vec<Arc<Question>>,
}

/// What a connection may speak over TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Speaks {
    Http1,
    Http1Or2,
    /// Over QUIC.
    Http3,
    /// HTTP/0.9 over QUIC.
    Hq,
    Http3OrHq,
}

/// Settings of handshakes, by what may be spoken.
#[derive(Debug)]
struct Configs {
    http1: Arc<ServerConfig>,
    http1_or_2: Arc<ServerConfig>,
    /// `None` without TLS 1.3.
    quic: Option<[Arc<ServerConfig>; 3]>,
}

impl Configs {
    fn of(&self, speaks: Speaks) -> Option<&Arc<ServerConfig>> {
        let quic = self.quic.as_ref();
        match speaks {
            Speaks::Http1 => Some(&self.http1),
            Speaks::Http1Or2 => Some(&self.http1_or_2),
            Speaks::Http3 => quic.map(|[h3, ..]| h3),
            Speaks::Hq => quic.map(|[_, hq, _]| hq),
            Speaks::Http3OrHq => quic.map(|[.., both]| both),
        }
    }
}

/// Certificates that variables name, loaded when a client asks.
#[derive(Debug)]
struct Named {
    pairs: Vec<(Template, Template)>,
    folder: PathBuf,
    passwords: Vec<Vec<u8>>,
    kept: Kept<Arc<CertifiedKey>>,
}

impl ModuleDraft for Draft {
    type Conf = ServerTls;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        Self::inherit(self, outer);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<ServerTls, ValueError> {
        ServerTls::compile(self, at.env)
    }
}

impl ModuleConf for ServerTls {
    fn place() -> &'static Place {
        Draft::place()
    }
}

impl ServerTls {
    /// # Errors
    /// A file that cannot be used, or settings that do not fit together.
    pub fn compile(draft: &Draft, env: &Env) -> Result<Self, ValueError> {
        let conf = Conf::compile(draft, env)?;
        let pairs = pairs(&conf)?;
        let rejects = conf.ssl_reject_handshake;
        let client_auth = client_auth(&conf, pairs.is_empty(), env)?.map(Arc::new);
        let protocols = conf.ssl_conf_command.protocols(&conf.ssl_protocols.versions)?;
        let is_tls13 =
            |version: &SupportedProtocolVersion| version.version == ProtocolVersion::TLSv1_3;
        let mut tls = Self {
            rejects,
            client_auth,
            has_tls13: protocols.iter().copied().any(is_tls13),
            has_early_data: conf.ssl_early_data,
            configs: None,
            named: None,
            certificates: Vec::new(),
            questions: Vec::new(),
        };
        if pairs.is_empty() {
            return Ok(tls);
        }
        let passwords = match &conf.ssl_password_file {
            Some(file) => env.shared::<PemFiles>().passwords(&file.0).map_err(ValueError)?,
            None => Vec::new(),
        };
        let mut certificates = Vec::new();
        let mut named = Vec::new();
        let staple = staple(&conf, env)?;
        for (certificate, key) in pairs {
            match (certificate.as_literal(), key.as_literal()) {
                (Some(certificate), Some(key)) => {
                    let path = |name: &[u8]| pem::path(&env.conf_prefix, name);
                    let certificate = path(&certificate);
                    let mut loaded = Identity {
                        certificate: certificate.clone(),
                        key: path(&key),
                        passwords: passwords.clone(),
                    }
                    .load(&env.shared::<PemFiles>())?;
                    loaded.ocsp.clone_from(&staple);
                    let stapled: Stapled = Arc::new(ArcSwap::from_pointee(loaded));
                    if conf.ssl_stapling && staple.is_none() {
                        tls.questions.extend(question(&conf, &stapled, &certificate, env)?);
                    }
                    certificates.push(stapled);
                }
                _ => named.push((certificate, key)),
            }
        }
        let circle = tls.circle(&certificates);
        tls.certificates.clone_from(&certificates);
        tls.configs =
            Some(configs(&conf, &tls, Arc::new(Certificates(certificates)), circle, env)?);
        tls.named = (!named.is_empty()).then(|| Named {
            pairs: named,
            folder: env.conf_prefix.clone(),
            passwords,
            kept: Kept::new(conf.ssl_certificate_cache),
        });
        Ok(tls)
    }

    /// Whether it has a certificate to show.
    pub fn has_certificate(&self) -> bool {
        self.named.is_some() || (self.configs.is_some() && !self.rejects)
    }

    /// When the first of its certificates ceases to be valid, in seconds since 1970; of those that no variables name.
    pub fn expiry(&self) -> Option<u64> {
        let ends = self.certificates.iter().filter_map(|certificate| {
            let key = certificate.load();
            Some(x509::validity(key.cert.first()?)?.1.as_secs())
        });
        ends.min()
    }

    /// Settings for a handshake; `exchange` is for the variables in names of certificates.
    ///
    /// # Errors
    /// A certificate that variables name cannot be loaded.
    pub fn config(
        &self,
        speaks: Speaks,
        exchange: impl FnOnce() -> Exchange,
    ) -> Result<Option<Arc<ServerConfig>>, String> {
        let Some(configs) = &self.configs else { return Ok(None) };
        let Some(config) = configs.of(speaks) else { return Ok(None) };
        let Some(named) = &self.named else { return Ok(Some(Arc::clone(config))) };
        let mut exchange = exchange();
        let found = named
            .pairs
            .iter()
            .map(|pair| named.load(pair, &mut exchange).map(|key| Arc::new(ArcSwap::new(key))));
        let found = found.collect::<Result<_, _>>()?;
        let mut config = ServerConfig::clone(config);
        config.cert_resolver = Arc::new(Certificates(found));
        Ok(Some(Arc::new(config)))
    }

    fn circle(&self, certificates: &[Stapled]) -> Circle {
        let loaded: Vec<_> = certificates.iter().map(|key| key.load_full()).collect();
        let chains = loaded.iter().filter_map(|key| key.cert.first());
        let chains = chains.map(|certificate| &certificate[..]);
        let asking = self.client_auth.as_ref().map(|auth| auth.circle());
        tickets::circle(chains.chain(asking.as_ref().map(|circle| &circle[..])))
    }
}

impl Named {
    fn load(
        &self,
        (certificate, key): &(Template, Template),
        exchange: &mut Exchange,
    ) -> Result<Arc<CertifiedKey>, String> {
        let (certificate, key) = (certificate.value(exchange), key.value(exchange));
        let issued = yorozu_acme::of_server(&exchange.conf, exchange.server.0);
        if let Some(issued) = issued.and_then(|issued| issued.if_named(&certificate, &key)) {
            return Ok(issued);
        }
        let name = [&certificate[..], b"\n", &key].concat();
        self.kept.get_or_load(name, || {
            let path = |name: &[u8]| pem::path(&self.folder, name);
            let identity = Identity {
                certificate: path(&certificate),
                key: path(&key),
                passwords: self.passwords.clone(),
            };
            let loaded = identity.load(&PemFiles::default()).map_err(|problem| problem.0)?;
            Ok(Arc::new(loaded))
        })
    }
}

/// Certificates with the keys in the same place.
fn pairs(conf: &Conf) -> Result<Vec<(Template, Template)>, ValueError> {
    let (certificates, keys) = (&conf.ssl_certificate, &conf.ssl_certificate_key);
    if let Some(lonely) = certificates.get(keys.len()) {
        let name = lonely.as_literal().unwrap_or_default();
        return Err(ValueError(format!(
            "no \"ssl_certificate_key\" is defined for certificate \"{}\"",
            String::from_utf8_lossy(&name)
        )));
    }
    Ok(certificates.iter().cloned().zip(keys.iter().cloned()).collect())
}

fn client_auth(conf: &Conf, is_bare: bool, env: &Env) -> Result<Option<ClientAuth>, ValueError> {
    let asking = match conf.ssl_verify_client {
        VerifyClient::Off => return Ok(None),
        VerifyClient::On => Asking::Must,
        VerifyClient::Optional => Asking::May,
        VerifyClient::OptionalNoCa => Asking::MayBySelf,
    };
    let path =
        |path: &Option<yorozu_kernel::config::types::ConfPath>| path.as_ref().map(|p| p.0.clone());
    let named = path(&conf.ssl_client_certificate);
    let trusted = path(&conf.ssl_trusted_certificate);
    let is_lacking = named.is_none() && trusted.is_none() && asking != Asking::MayBySelf;
    // A server without a certificate shows none.
    if is_lacking && !is_bare {
        return Err(ValueError::new("no ssl_client_certificate for ssl_verify_client"));
    }
    let crl = path(&conf.ssl_crl);
    let depth = usize::try_from(conf.ssl_verify_depth).unwrap_or(usize::MAX);
    let found = ClientAuth::load(
        asking,
        named.as_deref(),
        trusted.as_deref(),
        crl.as_deref(),
        depth,
        &env.shared::<PemFiles>().clone(),
    );
    let found = found.map_err(ValueError)?;
    found.warnings().for_each(|text| env.warn(text));
    Ok(Some(found))
}

/// What is to be asked about a certificate, if it has a responder.
fn question(
    conf: &Conf,
    stapled: &Stapled,
    path: &std::path::Path,
    env: &Env,
) -> Result<Option<Arc<Question>>, ValueError> {
    let trusted = match &conf.ssl_trusted_certificate {
        Some(trusted) => {
            env.shared::<PemFiles>().certificates(&trusted.0, "certificate").map_err(ValueError)?
        }
        None => Vec::new(),
    };
    let url = conf.ssl_stapling_responder.as_ref().map(|url| String::from_utf8_lossy(url));
    match Question::new(stapled, &trusted, url.as_deref()) {
        Ok(question) => Ok(Some(Arc::new(question))),
        Err(why) => {
            let shown = pem::shown(path);
            env.warn(format!("\"ssl_stapling\" ignored, {why} for certificate \"{shown}\""));
            Ok(None)
        }
    }
}

/// The OCSP answer to send with the certificate.
fn staple(conf: &Conf, env: &Env) -> Result<Option<Vec<u8>>, ValueError> {
    if !conf.ssl_stapling {
        return Ok(None);
    }
    let Some(file) = &conf.ssl_stapling_file else { return Ok(None) };
    let answer = env.shared::<PemFiles>().bytes(&file.0, "OCSP response").map_err(ValueError)?;
    Ok(Some(answer.to_vec()))
}

fn configs(
    conf: &Conf,
    tls: &ServerTls,
    certificates: Arc<Certificates>,
    circle: Circle,
    env: &Env,
) -> Result<Configs, ValueError> {
    let ciphers = String::from_utf8_lossy(&conf.ssl_ciphers);
    let commands = &conf.ssl_conf_command;
    let provider = commands.provider(&ciphers, Some(&conf.ssl_ecdh_curve))?;
    let whole = |problem: rustls::Error| ValueError(problem.to_string());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&commands.protocols(&conf.ssl_protocols.versions)?)
        .map_err(whole)?;
    let builder = match &tls.client_auth {
        Some(auth) => builder.with_client_cert_verifier(auth.handshake_verifier()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certificates);
    config.ignore_client_order = commands.prefers_server(conf.ssl_prefer_server_ciphers);
    config.max_fragment_size =
        Some(conf.ssl_buffer_size.bytes().clamp(32, CONTENT_BYTES_MAX) + RECORD_OVERHEAD);
    let mut quic = config.clone();
    resumption(conf, &mut config, circle, env)?;
    match conf.ssl_early_data {
        true => early_data(conf, &mut quic, circle, env),
        false => quic = config.clone(),
    }
    let with_alpn = |config: &ServerConfig, names: &[&str]| {
        let mut config = config.clone();
        config.alpn_protocols = alpn(names);
        Arc::new(config)
    };
    let of_quic = |names: &[&str]| with_alpn(&quic, names);
    Ok(Configs {
        http1: with_alpn(&config, &["http/1.1", "http/1.0", "http/0.9"]),
        http1_or_2: with_alpn(&config, &["h2", "http/1.1", "http/1.0", "http/0.9"]),
        quic: tls
            .has_tls13
            .then(|| [of_quic(&["h3"]), of_quic(&["hq-interop"]), of_quic(&["h3", "hq-interop"])]),
    })
}

/// Sessions that can begin with early data: they are stored, and taken out when they are taken up again, so that what
/// was sent with one is answered once.
fn early_data(conf: &Conf, config: &mut ServerConfig, circle: Circle, env: &Env) {
    let (name, count) = conf.ssl_session_cache.stored().unwrap_or(("early data", EARLY_SESSIONS));
    config.send_tls13_tickets = 1;
    let sessions = env.shared::<tickets::SessionStore>().sessions();
    config.session_storage = sessions.store(name, count, circle, conf.ssl_session_timeout.0);
    // All or nothing (RFC 9001, section 4.6.1).
    config.max_early_data_size = u32::MAX;
}

fn alpn(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_bytes().to_vec()).collect()
}

fn resumption(
    conf: &Conf,
    config: &mut ServerConfig,
    circle: Circle,
    env: &Env,
) -> Result<(), ValueError> {
    // One each time: clients take the newest, or the same again.
    config.send_tls13_tickets = 1;
    let timeout = conf.ssl_session_timeout.0;
    let sessions = env.shared::<tickets::SessionStore>().sessions();
    let stored = conf.ssl_session_cache.stored();
    config.session_storage = match stored {
        None => Arc::new(NoServerSessionStorage {}),
        Some((name, count)) => sessions.store(name, count, circle, timeout),
    };
    if !conf.ssl_conf_command.has_tickets(conf.ssl_session_tickets) {
        if stored.is_none() {
            config.send_tls13_tickets = 0;
        }
        return Ok(());
    }
    config.ticketer = if conf.ssl_session_ticket_key.is_empty() {
        sessions.tickets(circle, timeout).map_err(|problem| ValueError(problem.to_string()))?
    } else {
        let read = |path: &yorozu_kernel::config::types::ConfPath| {
            env.shared::<PemFiles>().bytes(&path.0, "session ticket key")
        };
        let files: Result<Vec<_>, _> = conf.ssl_session_ticket_key.iter().map(read).collect();
        tickets::from_files(&files.map_err(ValueError)?, circle, timeout).map_err(
            |(index, length)| {
                ValueError(format!(
                    "\"{}\" must be 48 or 80 bytes, it has {length}",
                    conf.ssl_session_ticket_key[index].0.display()
                ))
            },
        )?
    };
    Ok(())
}

/// The certificates of a server: one per kind of key.
#[derive(Debug)]
struct Certificates(Vec<Stapled>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let fits = |key: &Arc<CertifiedKey>| {
            key.key.choose_scheme(hello.signature_schemes()).is_some()
                && has_suite_for(hello.cipher_suites(), key.key.algorithm())
        };
        // As OpenSSL: ECDSA, which costs least, before RSA.
        let is_ecdsa = |key: &Arc<CertifiedKey>| key.key.algorithm() == SignatureAlgorithm::ECDSA;
        let fitting = || self.0.iter().map(|key| key.load_full()).filter(fits);
        let found = fitting().find(is_ecdsa).or_else(|| fitting().next());
        found.or_else(|| self.0.first().map(|key| key.load_full()))
    }
}

/// Whether the client offers a cipher that such a key can be used with; those of TLS 1.3 take any.
fn has_suite_for(offered: &[CipherSuite], algorithm: SignatureAlgorithm) -> bool {
    provider().cipher_suites.iter().filter(|suite| offered.contains(&suite.suite())).any(|suite| {
        suite.version().version == ProtocolVersion::TLSv1_3
            || suite.usable_for_signature_algorithm(algorithm)
    })
}
