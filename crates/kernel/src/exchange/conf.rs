//! The configuration as the server uses it: immutable, shared by all workers in an `Arc`.

use crate::base::tasks::Generation;
use crate::config::place::{Compiled, ModuleConf, Place};
use crate::config::reads::Reads;
use crate::config::servers::{LocationId, LocationSet, ServerConf, ServerId, Socket};
use crate::config::shared::SharedSet;
use crate::exchange::client::Client;
use crate::exchange::engine::Engine;
use crate::exchange::handler::{Bound, Handler};
use crate::exchange::variables::{Computed, Variable};
use crate::find_config::memo::Memo;
use crate::logging::error_log::ErrorLogs;
use crate::logging::level::Level;
use bytes::Bytes;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use yorozu_cache::Zone;
use yorozu_conf::Position;

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
    pub handler: Arc<dyn Handler>,
    pub error_log: ErrorLogs,
    /// Methods `limit_except` lets pass, and the conf for the others.
    pub limit_except: Option<(Vec<Bytes>, LocationId)>,
    /// The modules' settings.
    pub settings: Compiled,
    /// A share of those of nginx's core module once more, found without looking: most that is done asks for them.
    pub core: Box<dyn Any + Send + Sync>,
    /// Of the response filters.
    pub filters: Bound,
    /// Of those that the response to a subrequest passes: it becomes a part of another one.
    pub filters_within: Bound,
    /// Of the parts of the phases.
    pub phases: Bound,
}

impl LocationConf {
    /// A module's settings.
    pub fn of<C: ModuleConf>(&self) -> &C {
        self.settings.at(C::place())
    }

    /// The settings at a place, where several modules have settings of one type.
    pub fn at<C: Any>(&self, place: &Place) -> &C {
        self.settings.at(place)
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
    /// How requests are answered.
    pub engine: &'static Engine,
    /// What the main block says about each module.
    pub settings: Compiled,
    /// The main `error_log`.
    pub error_log: ErrorLogs,
    pub prefix: PathBuf,
    pub sockets: Vec<Socket>,
    pub servers: Vec<ServerConf>,
    pub locations: Vec<LocationConf>,
    /// What each location reads of requests, by its id.
    pub reads: Vec<Reads>,
    /// By slot of the variable.
    pub computed: Vec<Option<Box<dyn Computed>>>,
    /// By slot, what it stands for where nothing filled it.
    pub own_values: Vec<Option<Variable>>,
    pub variable_names: Vec<String>,
    /// Whether anything refers to a response's own fields (`$sent_http_*`).
    pub has_sent: bool,
    pub zones: BTreeMap<String, Arc<Zone>>,
    /// What the modules have once.
    pub shared: SharedSet,
    pub hostname: String,
    /// Some `*_bind` is transparent.
    pub is_transparent: bool,
    /// Whether requests are counted for metrics.
    pub is_counted: bool,
    /// For the error log at start.
    pub warnings: Vec<String>,
    /// For `-t`: what is accepted and has no effect.
    pub notes: Vec<String>,
    /// While the server uses it.
    pub in_use: Option<InUse>,
}

impl Config {
    /// The socket that a client came through. Its place is not enough: it is noted for the newest configuration, beside which
    /// requests of earlier ones go on.
    pub fn socket(&self, client: &Client) -> &Socket {
        let is_its = |socket: &&Socket| socket.address == client.address;
        let noted = self.sockets.get(client.listen.get()).filter(is_its);
        let found = noted.or_else(|| self.sockets.iter().find(is_its));
        // A configuration is used for clients of its own sockets.
        found.unwrap_or(&self.sockets[0])
    }
}

/// Says in the log when a configuration is gone: its last request has ended, and all that was kept going for it.
#[derive(Debug)]
pub struct InUse {
    /// 1 is the one of the start.
    number: u64,
    since: SystemTime,
    log: ErrorLogs,
}

impl InUse {
    fn new(log: &ErrorLogs) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { number, since: SystemTime::now(), log: log.clone() }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// When it was put to use.
    pub fn since(&self) -> SystemTime {
        self.since
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

    #[inline]
    pub fn server(&self, id: ServerId) -> &ServerConf {
        &self.servers[id.0 as usize]
    }

    #[inline]
    pub fn location(&self, id: LocationId) -> &LocationConf {
        &self.locations[id.0 as usize]
    }

    /// What a location reads of requests; `None` in a configuration that was made without a text.
    pub fn reads_of(&self, id: LocationId) -> Option<&Reads> {
        self.reads.get(id.0 as usize)
    }

    /// Each location of a server, nested ones included.
    pub fn locations_of(&self, id: ServerId) -> &[LocationConf] {
        &self.locations[self.server(id).everywhere.clone()]
    }

    /// The name of a cache zone of this configuration.
    pub fn zone_name(&self, zone: &Arc<Zone>) -> Option<&str> {
        let (name, _) = self.zones.iter().find(|(_, other)| Arc::ptr_eq(other, zone))?;
        Some(name)
    }

    /// A module's settings in the main block.
    pub fn of_main<C: ModuleConf>(&self) -> &C {
        self.settings.at(C::place())
    }

    /// A module's settings in a server, outside of its locations.
    pub fn of_server<C: ModuleConf>(&self, id: ServerId) -> &C {
        self.location(self.server(id).conf).of()
    }
}

/// One worker's handle on a configuration: a plain counter per request instead of a shared one.
#[derive(Debug)]
pub struct WorkerConf {
    pub config: Arc<Config>,
    /// What this worker keeps going for it.
    pub tasks: Generation,
    /// Called when nothing holds it any more.
    released: fn(),
    /// Where this worker's last paths belong.
    pub locations_found: Memo,
}

impl WorkerConf {
    pub fn new(config: Arc<Config>, released: fn()) -> Self {
        let locations_found = Memo::default();
        Self { config, tasks: Generation::default(), released, locations_found }
    }
}

impl Drop for WorkerConf {
    fn drop(&mut self) {
        (self.released)();
    }
}

impl Deref for WorkerConf {
    type Target = Config;

    #[inline]
    fn deref(&self) -> &Config {
        &self.config
    }
}
