//! What `cache_purge_bus` says.

use super::lane::Server;
use super::message::is_name;
use super::target::{Target, host_of};
use super::tier::TierSpec;
use std::path::PathBuf;
use std::time::Duration;
use yorozu_conf::value;
use yorozu_kernel::config::directive::*;
use yorozu_tls::pem::PemFiles;
use yorozu_upstream::RingKind;

/// How long a purge waits for Redis unless `timeout=` says otherwise; chosen.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How long a start waits for what the other nodes purged unless `start_timeout=` says otherwise; chosen.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Shortest secret, in bytes; as that of `cache_purge_api`.
const SECRET_BYTES_MIN: usize = 16;

/// The bus, as it is written.
#[derive(Clone, PartialEq)]
pub(super) struct Spec {
    pub target: Target,
    pub stream: String,
    pub node: String,
    pub secret: Option<Vec<u8>>,
    /// How long a purge waits for the other nodes.
    pub wait: Option<Duration>,
    pub timeout: Duration,
    pub start_timeout: Duration,
    /// Authorities that Redis' certificate is verified by; without it the system's.
    pub authorities: Option<PathBuf>,
}

/// Without what is secret.
impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { target, stream, node, .. } = self;
        write!(f, "{target:?} {stream} {node}")
    }
}

impl Spec {
    /// # Errors
    /// What is wrong with the directive.
    pub(super) fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let invalid = |text: String| ValueError(format!("\"{}\" directive: {text}", args.name));
        let (target, mut parameters) = Target::parse(&args.text(0)).map_err(invalid)?;
        let words = args.words.iter().skip(1);
        parameters.extend(words.map(|word| String::from_utf8_lossy(word).into_owned()));
        let node = hostname();
        let mut spec = Self {
            target,
            stream: "yorozu".to_owned(),
            node,
            secret: None,
            wait: None,
            timeout: TIMEOUT,
            start_timeout: START_TIMEOUT,
            authorities: None,
        };
        for parameter in &parameters {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if value.is_empty() {
                return Err(args.invalid_parameter(parameter.as_bytes()));
            }
            spec.set(args, name, value)?;
        }
        if !is_name(&spec.node) {
            let text = format!("the node \"{}\" needs a name: node=NAME", spec.node);
            return Err(invalid(text));
        }
        Ok(spec)
    }

    fn set(&mut self, args: &Args<'_>, name: &str, text: &str) -> Result<(), ValueError> {
        let invalid = || args.invalid_parameter(format!("{name}={text}").as_bytes());
        let time = || value::time(text.as_bytes()).ok_or_else(invalid);
        let file = || {
            let path = args.env.conf_prefix.join(text);
            let files = args.env.shared::<PemFiles>().clone();
            let bytes = files.bytes(&path, name).map_err(ValueError)?;
            Ok::<_, ValueError>(bytes.trim_ascii().to_vec())
        };
        match name {
            "stream" if is_name(text) => self.stream = text.to_owned(),
            "node" if is_name(text) => self.node = text.to_owned(),
            "secret" => {
                let secret = file()?;
                if secret.len() < SECRET_BYTES_MIN {
                    let text = format!(
                        "the secret has {} bytes, {SECRET_BYTES_MIN} are needed",
                        secret.len()
                    );
                    return Err(ValueError(text));
                }
                self.secret = Some(secret);
            }
            "password" => self.target.password = file()?,
            "wait" => self.wait = Some(time()?),
            "timeout" => self.timeout = time()?,
            "start_timeout" => self.start_timeout = time()?,
            "ca" => self.authorities = Some(args.env.conf_prefix.join(text)),
            _ => return Err(invalid()),
        }
        Ok(())
    }
}

/// How long a page of the shared tier is waited for unless `timeout=` says otherwise; as documented.
const PAGE_TIMEOUT: Duration = Duration::from_millis(20);
/// Largest page there unless `max_object=` says otherwise; what memory takes.
const OBJECT_MAX: u64 = 256 * 1024;
/// How long one node makes a page for all unless `lease=` says otherwise; as `cache_lock_age`.
const LEASE: Duration = Duration::from_secs(5);
const MEMCACHED_PORT: u16 = 11211;

/// Reads `shared=URL`: the tier, and the authorities that its server is verified by.
///
/// # Errors
/// What is wrong with it.
pub(super) fn tier(args: &Args<'_>, url: &str) -> Result<(TierSpec, Option<PathBuf>), ValueError> {
    // Without the URL, which may have a password.
    let invalid = |text: String| ValueError(format!("\"{}\" shared=: {text}", args.name));
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let servers = match place.strip_prefix("memcached://") {
        Some(hosts) => {
            let hosts = hosts.split(',').map(|host| host_of(host, MEMCACHED_PORT));
            let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
            hosts.into_iter().map(Server::Memcached).collect()
        }
        None => vec![Server::Redis(Target::parse(place).map_err(invalid)?.0)],
    };
    let mut spec = TierSpec {
        servers,
        ring: RingKind::Consistent,
        timeout: PAGE_TIMEOUT,
        object_max: OBJECT_MAX,
        lease: Some(LEASE),
    };
    let is_memcached = matches!(spec.servers[..], [Server::Memcached(_), ..]);
    let mut authorities = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let broken = || args.invalid_parameter(parameter.as_bytes());
        let (name, text) = parameter.split_once('=').ok_or_else(broken)?;
        let time = || value::time(text.as_bytes()).filter(|time| !time.is_zero());
        match name {
            "timeout" => spec.timeout = time().ok_or_else(broken)?,
            "lease" if text == "off" => spec.lease = None,
            "lease" => spec.lease = Some(time().ok_or_else(broken)?),
            "max_object" => spec.object_max = value::size(text.as_bytes()).ok_or_else(broken)?,
            "hash" if is_memcached => {
                spec.ring = match text {
                    "consistent" => RingKind::Consistent,
                    "ketama" => RingKind::Ketama,
                    _ => return Err(broken()),
                };
            }
            "ca" => authorities = Some(args.env.conf_prefix.join(text)),
            _ => return Err(broken()),
        }
    }
    Ok((spec, authorities))
}

/// The machine's name.
fn hostname() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().to_lowercase()
}
