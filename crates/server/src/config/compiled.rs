//! The configuration as the server uses it: immutable, shared by all workers in an `Arc`.

use super::env::Upstream;
use super::regex::Regex;
use super::{http_core, main_core};
use crate::connection::h2;
use crate::exchange::variables::Computed;
use crate::filters::charset::map::Tables;
use crate::filters::compress::{brotli, gunzip, gzip, precompressed, zstd};
use crate::filters::{addition, charset, headers, slice, ssi, sub, userid};
use crate::find_config::{self, hosts::Hosts};
use crate::handlers::gateway::{self, Protocol};
use crate::handlers::{Handler, autoindex, dav, fastcgi, index, memcached, proxy, random_index};
use crate::logging::access as access_log;
use crate::logging::error::{ErrorLogs, Level};
use crate::phases::rewrite::Instruction;
use crate::phases::{
    Limits, access, auth_basic, auth_request, browser, limit_conn, limit_req, mirror, realip,
    referer, rewrite, secure_link,
};
use crate::tasks::Generation;
use crate::tls::server::ServerTls;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use yorozu_cache::Zone;
use yorozu_conf::Position;

/// Position of a location in [`Config::locations`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocationId(pub u32);

/// Position of a server in [`Config::servers`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerId(pub u32);

/// Where to listen.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Options of a listening socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListenOptions {
    pub backlog: Option<i32>,
    pub receive_bytes: Option<usize>,
    pub send_bytes: Option<usize>,
    pub deferred: bool,
    pub ipv6only: Option<bool>,
    pub keepalive: Option<bool>,
    /// The control socket: only its owner may open it, and the server runs without it, too.
    pub is_control: bool,
    /// Any socket option was written: two such lines for one address are refused.
    pub is_set: bool,
}

/// One `listen` line.
#[derive(Clone, Debug)]
pub struct Listen {
    pub address: ListenAddress,
    pub options: ListenOptions,
    pub is_default: bool,
    /// `ssl`
    pub is_tls: bool,
    /// `http2`
    pub http2: bool,
    /// `proxy_protocol`
    pub is_proxied: bool,
}

/// One name of a `server_name` line.
#[derive(Clone, Debug)]
pub enum ServerName {
    /// A name, with `*.` or a leading dot in front, or `.*` at its end.
    Text(String),
    /// With the text as written, `~` included.
    Regex(Regex, String),
}

impl ServerName {
    /// Can a client ask for it? `_` and the like only say that a server has no name.
    pub fn is_real(&self) -> bool {
        match self {
            Self::Text(text) => text.bytes().any(|byte| byte.is_ascii_alphanumeric()),
            Self::Regex(..) => true,
        }
    }
}

/// One listening socket and the servers behind it.
#[derive(Debug)]
pub struct Socket {
    pub address: ListenAddress,
    pub options: ListenOptions,
    pub default_server: ServerId,
    /// Do its clients speak TLS?
    pub is_tls: bool,
    /// May they speak HTTP/2, whatever their server says?
    pub http2: bool,
    /// Does each connection begin with the PROXY protocol?
    pub is_proxied: bool,
    pub hosts: Hosts<ServerId>,
    /// Do its servers differ in which names of fields they take?
    pub has_field_rules: bool,
}

/// A `server` block.
#[derive(Debug)]
pub struct ServerConf {
    pub names: Vec<ServerName>,
    /// What the block says for requests no location takes.
    pub conf: LocationId,
    pub script: Vec<Instruction>,
    pub locations: LocationSet,
    pub tls: ServerTls,
}

impl ServerConf {
    /// The primary name.
    pub fn name(&self) -> &str {
        match self.names.first() {
            Some(ServerName::Text(text)) => text.strip_prefix('.').unwrap_or(text),
            Some(ServerName::Regex(_, text)) => text,
            None => "",
        }
    }
}

/// The locations of one level.
#[derive(Debug, Default)]
pub struct LocationSet {
    pub exact: HashMap<Bytes, LocationId>,
    /// Longest first.
    pub prefixes: Vec<(Bytes, LocationId)>,
    /// In the order written.
    pub regexes: Vec<(Regex, LocationId)>,
    pub named: HashMap<Bytes, LocationId>,
}

/// What holds in one location (or server, or `if`).
pub struct LocationConf {
    pub id: LocationId,
    /// Where its block begins.
    pub at: Position,
    /// The location's prefix, or the source of its regex.
    pub name: Bytes,
    pub is_exact: bool,
    pub is_regex: bool,
    pub no_regex: bool,
    pub is_named: bool,
    pub locations: LocationSet,
    pub script: Vec<Instruction>,
    pub handler: Handler,
    pub error_log: ErrorLogs,
    /// Methods `limit_except` lets pass, and the conf for the others.
    pub limit_except: Option<(Vec<Bytes>, LocationId)>,

    pub http_core: http_core::Conf,
    pub access: access::Conf,
    pub auth_basic: auth_basic::Conf,
    pub auth_request: auth_request::Conf,
    pub limit_conn: limit_conn::Conf,
    pub limit_req: limit_req::Conf,
    pub referer: referer::Conf,
    pub secure_link: secure_link::Conf,
    pub autoindex: autoindex::Conf,
    pub fastcgi: fastcgi::Conf,
    pub http2: h2::Conf,
    pub gzip: gzip::Conf,
    pub brotli: brotli::Conf,
    pub zstd: zstd::Conf,
    pub gunzip: gunzip::Conf,
    pub precompressed: precompressed::Conf,
    pub charset: charset::Conf,
    pub dav: dav::Conf,
    pub slice: slice::Conf,
    pub userid: userid::Conf,
    pub random_index: random_index::Conf,
    pub browser: browser::Conf,
    pub mirror: mirror::Conf,
    pub ssi: ssi::Conf,
    pub addition: addition::Conf,
    pub sub: sub::Conf,
    pub headers: headers::Conf,
    pub index: index::Conf,
    pub memcached: memcached::Conf,
    pub memcached_gateway: gateway::Conf,
    pub proxy: proxy::Conf,
    pub log: access_log::Conf,
    pub rewrite: rewrite::Conf,
    pub realip: realip::Conf,
}

impl LocationConf {
    /// The settings of the gateway its handler speaks through.
    pub fn gateway(&self) -> &gateway::Conf {
        match &self.handler {
            Handler::Gateway(Protocol::Fastcgi(_)) => &self.fastcgi.gateway,
            Handler::Gateway(Protocol::Proxy(_)) => &self.proxy.gateway,
            Handler::Gateway(Protocol::Memcached(_)) => &self.memcached_gateway,
            Handler::Files | Handler::EmptyGif | Handler::StubStatus | Handler::Control(_) => {
                &self.fastcgi.gateway
            }
        }
    }

    /// The settings of every gateway, with the prefix of its directives.
    pub fn gateways(&self) -> [(&'static str, &gateway::Conf); 2] {
        [("proxy", &self.proxy.gateway), ("fastcgi", &self.fastcgi.gateway)]
    }
}

impl std::fmt::Debug for LocationConf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocationConf").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A whole configuration.
#[derive(Debug)]
pub struct Config {
    pub main: main_core::Conf,
    /// The main `error_log`.
    pub error_log: ErrorLogs,
    pub prefix: PathBuf,
    pub sockets: Vec<Socket>,
    pub servers: Vec<ServerConf>,
    pub locations: Vec<LocationConf>,
    /// By slot of the variable.
    pub computed: Vec<Option<Box<dyn Computed>>>,
    pub variable_names: Vec<String>,
    /// Does anything speak of an answer's own fields (`$sent_http_*`)?
    pub has_sent: bool,
    pub zones: BTreeMap<String, Arc<Zone>>,
    pub limits: Limits,
    /// `charset_map`s.
    pub charsets: Tables,
    pub upstreams: BTreeMap<String, Arc<Upstream>>,
    pub hostname: String,
    /// Some `*_bind` is transparent.
    pub is_transparent: bool,
    /// For the error log at start.
    pub warnings: Vec<String>,
    /// For `-t`: what is accepted and has no effect.
    pub notes: Vec<String>,
    /// While the server uses it.
    pub in_use: Option<InUse>,
}

/// Says in the log when a configuration is gone: its last request has ended, and all that was kept going for it.
#[derive(Debug)]
pub struct InUse {
    /// 1 is the one of the start.
    number: u64,
    log: ErrorLogs,
}

impl InUse {
    fn new(log: &ErrorLogs) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self { number: NUMBER.fetch_add(1, Ordering::Relaxed), log: log.clone() }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.log.process(Level::Notice, &format!("configuration {} released", self.number));
    }
}

impl Config {
    /// Hands it to the server.
    pub fn put_to_use(mut self) -> Arc<Self> {
        self.in_use = Some(InUse::new(&self.error_log));
        Arc::new(self)
    }

    pub fn server(&self, id: ServerId) -> &ServerConf {
        &self.servers[id.0 as usize]
    }

    pub fn location(&self, id: LocationId) -> &LocationConf {
        &self.locations[id.0 as usize]
    }
}

/// One worker's handle on a configuration: a plain counter per request instead of a shared one.
#[derive(Debug)]
pub struct WorkerConf {
    pub config: Arc<Config>,
    /// What this worker keeps going for it.
    pub tasks: Generation,
    /// Where this worker's last paths belong.
    pub locations_found: find_config::Memo,
}

impl WorkerConf {
    pub fn new(config: Arc<Config>) -> Self {
        Self { config, tasks: Generation::default(), locations_found: find_config::Memo::default() }
    }
}

impl Drop for WorkerConf {
    fn drop(&mut self) {
        // Lines that wait keep their logs open.
        access_log::flush_all();
    }
}

impl Deref for WorkerConf {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}
