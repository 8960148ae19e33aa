//! Which sockets, servers and locations a configuration has.

use super::hosts::Hosts;
use super::prefixes::Prefixes;
use super::regex::Regex;
use super::regex_set::RegexSet;
use crate::base::tally::Tally;
use bytes::Bytes;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Position of a location in the configuration's locations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocationId(pub u32);

/// Position of a server in the configuration's servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerId(pub u32);

/// Where to listen.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    /// For QUIC.
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `so_keepalive`: whether the system asks silent clients if they are still there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Probes {
    Off,
    /// When, how often and how many times is the system's.
    Usual,
    /// Seconds before the first question and between two, and how many there are; what is not said is the system's.
    Timed {
        idle: Option<u64>,
        interval: Option<u64>,
        count: Option<u32>,
    },
}

/// Options of a listening socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListenOptions {
    pub backlog: Option<i32>,
    pub receive_bytes: Option<usize>,
    pub send_bytes: Option<usize>,
    pub deferred: bool,
    pub ipv6only: Option<bool>,
    pub keepalive: Option<Probes>,
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
    /// Whether a client can ask for it: `_` and the like only say that a server has no name.
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
    /// Whether its clients speak TLS; with QUIC they always do.
    pub is_tls: bool,
    /// Whether they may speak HTTP/2, whatever their server says.
    pub http2: bool,
    /// Whether each connection begins with the PROXY protocol.
    pub is_proxied: bool,
    pub hosts: Hosts<ServerId>,
    /// Whether its servers differ in which names of fields they take.
    pub has_field_rules: bool,
}

/// A `server` block.
#[derive(Debug)]
pub struct ServerConf {
    pub names: Vec<ServerName>,
    /// What the block says for requests no location takes.
    pub conf: LocationId,
    pub locations: LocationSet,
    /// Positions of `conf` and of every location of the block, nested ones included.
    pub everywhere: Range<usize>,
    /// Counters of what caches answered here: those of all servers with its name, found when the first one is counted.
    pub cache_tally: OnceLock<&'static Tally>,
}

impl ServerConf {
    /// Whether clients can ask for it by a name.
    pub fn has_names(&self) -> bool {
        self.names.iter().any(ServerName::is_real)
    }

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
    /// Those of them that end in a slash.
    pub exact_folders: Prefixes<LocationId>,
    pub prefixes: Prefixes<LocationId>,
    /// In the order written.
    pub regexes: Vec<(Regex, LocationId)>,
    pub regex_set: RegexSet,
    pub named: HashMap<Bytes, LocationId>,
}
