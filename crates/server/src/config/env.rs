//! What a load of the configuration collects on its way: names of variables, log files, formats,
//! cache zones, warnings.

use crate::config::template::Template;
use crate::exchange::variables::{Definition, VariableNames};
use crate::filters::charset::map::Tables;
use crate::handlers::upstream::resolve::Names;
use crate::logging::access::FormatTable;
use crate::logging::file::LogFiles;
use crate::phases::Limits;
use crate::tls::pem::PemFiles;
use crate::tls::tickets::Sessions;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use yorozu_cache::ZoneOptions;
use yorozu_upstream::{Balance, Group, Loads, PeerOptions, PoolLimits};

/// A `*_cache_path` line.
#[derive(Clone, Debug)]
pub struct CacheZone {
    pub options: ZoneOptions,
}

/// The load under way. Interior mutability, because every setter may name a variable.
pub struct Env {
    /// `-p`; relative paths of files the server writes or serves.
    pub prefix: PathBuf,
    /// The folder of the main configuration file; relative paths of includes.
    pub conf_prefix: PathBuf,
    /// Names of variables seen so far.
    pub variables: RefCell<VariableNames>,
    /// What defines them: `map`, `set`, named captures.
    pub definitions: RefCell<Vec<Definition>>,
    /// Log files by path; survives a reload.
    pub logs: Arc<LogFiles>,
    /// `log_format`s.
    pub formats: RefCell<FormatTable>,
    /// Cache zones by name.
    pub zones: RefCell<BTreeMap<String, CacheZone>>,
    /// `limit_req_zone`s and `limit_conn_zone`s by name.
    pub limits: RefCell<Limits>,
    /// `charset_map`s.
    pub charsets: RefCell<Tables>,
    /// `upstream` blocks, and groups made of addresses written in `*_pass`.
    pub upstreams: RefCell<BTreeMap<String, Arc<Upstream>>>,
    /// Lines for `-t` and the error log that do not refuse the configuration.
    pub warnings: RefCell<Vec<String>>,
    /// Does a `*_bind … transparent` need the right to it?
    pub is_transparent: Cell<bool>,
    /// Resumable sessions; survive a reload.
    pub sessions: Arc<Sessions>,
    /// What peers have under way; survives a reload.
    pub loads: Arc<Loads>,
    /// Certificates and keys read so far.
    pub pem: PemFiles,
    /// Directives that are accepted and have no effect, each once, for `-t`.
    pub notes: RefCell<BTreeMap<String, String>>,
}

/// A group of peers with what its block says around it.
#[derive(Debug)]
pub struct Upstream {
    pub group: Arc<Group>,
    /// Is it written as an `upstream` block?
    pub is_block: bool,
    /// How idle connections are kept, if they are.
    pub keepalive: Option<Keepalive>,
    /// The key of `hash`.
    pub hash_key: Option<Template>,
    /// Servers whose names are resolved while the server runs.
    pub names: Option<Names>,
}

impl Upstream {
    /// A group that is written nowhere: the address of a `*_pass`.
    pub fn implicit(name: String, peers: Vec<PeerOptions>) -> Arc<Self> {
        let group = Arc::new(Group::new(name, peers, Balance::RoundRobin, &Arc::default()));
        Arc::new(Self { group, is_block: false, keepalive: None, hash_key: None, names: None })
    }
}

/// `keepalive` and its relatives.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    pub limits: PoolLimits,
    /// Is a connection kept for the location that opened it?
    pub is_local: bool,
    /// Connections to each peer that are open before a request needs them.
    pub ready: usize,
}

impl Env {
    pub fn new(prefix: PathBuf, conf_prefix: PathBuf, logs: Arc<LogFiles>) -> Self {
        Self {
            prefix,
            conf_prefix,
            variables: RefCell::default(),
            definitions: RefCell::default(),
            logs,
            formats: RefCell::default(),
            zones: RefCell::default(),
            limits: RefCell::default(),
            charsets: RefCell::default(),
            upstreams: RefCell::default(),
            warnings: RefCell::default(),
            is_transparent: Cell::new(false),
            sessions: Arc::default(),
            loads: Arc::default(),
            pem: PemFiles::default(),
            notes: RefCell::default(),
        }
    }

    /// A path of a file the server writes or serves.
    pub fn prefix_path(&self, path: &str) -> PathBuf {
        join(&self.prefix, path)
    }

    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
}

/// `path` below `base`, unless it is absolute.
pub fn join(base: &Path, path: &str) -> PathBuf {
    base.join(path)
}
