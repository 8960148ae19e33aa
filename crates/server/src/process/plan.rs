//! What the master process keeps of a configuration; the rest is the server's.

use super::limits::{self, Limit};
use super::message;
use super::rights::{self, Identity, Wish};
use super::sockets::{self, Wanted};
use super::{handover, pid};
use crate::config::load::{Kept, Request, load_and_keep_texts};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use yorozu_kernel::config::main_core::Workers;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error_log::ErrorLogs;
use yorozu_kernel::logging::file::LogFile;

/// A configuration as the master has it.
#[derive(Debug)]
pub(super) struct Plan {
    /// What was read, as a server process is given it.
    pub texts: OwnedFd,
    pub error_log: ErrorLogs,
    pub sockets: Vec<Wanted>,
    /// Worker threads, each with a socket of its own for each address.
    pub workers: usize,
    /// The server's user, if it is another one.
    pub identity: Option<Identity>,
    pub limits: Vec<Limit>,
    pub pid: PathBuf,
    /// `daemon`
    pub goes_into_background: bool,
    /// Whether the server is a process of its own.
    pub is_apart: bool,
    folders: Vec<PathBuf>,
    /// Keeps the logs open.
    _logs: Vec<Arc<LogFile>>,
}

impl Plan {
    /// Reads the configuration, and opens its logs.
    ///
    /// # Errors
    /// The first fault, as one line for the operator.
    pub(super) fn read(request: &Request, kept: &Kept) -> Result<Self, String> {
        // Those of a configuration that was refused are closed.
        drop(kept.logs.named());
        let loaded = load_and_keep_texts(request, kept).map_err(|problem| problem.to_string())?;
        let (config, texts) = (loaded.0.config, loaded.1);
        let identity = match rights::wish(&config)? {
            Wish::Other(identity) => Some(identity),
            Wish::Same => None,
            Wish::Ignored => {
                if !handover::has_predecessor() {
                    config.error_log.process(
                        Level::Warn,
                        "the \"user\" directive makes sense only if the master process runs with super-user privileges, ignored",
                    );
                }
                None
            }
        };
        let texts = message::sealed(&texts)
            .map_err(|problem| format!("memfd_create() failed ({problem})"))?;
        Ok(Self {
            texts,
            sockets: sockets::wanted(&config),
            workers: worker_count(&config),
            identity,
            limits: limits::of(&config),
            pid: pid::path(&config),
            goes_into_background: config.main().daemon,
            is_apart: config.main().master_process,
            folders: rights::folders(&config),
            _logs: kept.logs.named(),
            error_log: config.error_log,
        })
    }

    /// The user that the server runs as.
    pub(super) fn user(&self) -> u32 {
        let uid = self.identity.as_ref().map_or_else(nix::unistd::geteuid, |identity| identity.uid);
        uid.as_raw()
    }

    /// Makes `next` the present one; the number of workers is the running server's.
    pub(super) fn replace(&mut self, next: Self) {
        *self = Self { workers: self.workers, ..next };
    }

    /// Makes the folders that the server process writes to, and gives them to it.
    pub(super) fn prepare_folders(&self) {
        if let Some(identity) = &self.identity {
            self.folders.iter().for_each(|folder| rights::give_folder(folder, identity));
        }
    }
}

pub(super) fn worker_count(config: &Config) -> usize {
    match config.main().worker_processes {
        Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Workers::Count(count) => usize::try_from(count).unwrap_or(1),
    }
}
