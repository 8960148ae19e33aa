//! What a configuration is made from beside its text: the command line, and what goes on from the one before.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_cache::Zone;
use yorozu_kernel::config::shared::SharedSet;
use yorozu_kernel::logging::file::LogFiles;
use yorozu_upstream::Loads;

/// What the command line says about the configuration.
#[derive(Clone, Debug)]
pub struct Request {
    /// `-p`
    pub prefix: PathBuf,
    /// `-c`, made absolute against the prefix.
    pub file: PathBuf,
    /// `-g`
    pub global: Option<String>,
    /// `-e`
    pub error_log: Option<PathBuf>,
}

/// What outlives a configuration: open logs, cache zones, TLS sessions, requests under way.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub logs: Arc<LogFiles>,
    pub zones: BTreeMap<String, Arc<Zone>>,
    /// What survives of what the modules share.
    pub shared: SharedSet,
    pub loads: Arc<Loads>,
    /// Whether cache zones are only looked at: the server process opens them.
    pub(super) looks_at_zones: bool,
    /// Whether a cache folder that cannot be used is a fault of the configuration. It is none where a server process
    /// is replaced: the sites are to go on.
    pub needs_folders: bool,
}

impl Kept {
    /// For a configuration that is not to be served.
    pub fn for_test() -> Self {
        Self { logs: Arc::new(LogFiles::for_test()), looks_at_zones: true, ..Self::default() }
    }

    /// For the master process, which opens logs and serves nothing.
    pub fn for_master() -> Self {
        Self { looks_at_zones: true, ..Self::default() }
    }

    /// For the server process, which the master process gives what is open.
    pub fn given() -> Self {
        Self { logs: Arc::new(LogFiles::given()), needs_folders: true, ..Self::default() }
    }
}
