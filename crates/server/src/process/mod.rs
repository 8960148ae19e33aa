//! The process: its files, its user, its signals, its worker threads.
//!
//! Way through: load -> bind -> pid file -> drop rights -> workers -> signals until the end.

pub mod daemon;
pub mod pid;
mod rights;
mod signals;
pub mod turn;
pub mod worker;

use crate::config::compiled::{Config, ListenAddress};
use crate::config::load::{Kept, Request, load};
use crate::config::main_core::Workers;
use crate::limits;
use crate::listen::{self, Listener};
use crate::logging::error::{self, Level};
use nix::sys::resource::{Resource, setrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use worker::Command;

/// The running server, as the main thread holds it.
pub struct Server {
    request: Request,
    config: Arc<Config>,
    kept: Kept,
    workers: Vec<WorkerHandle>,
    manager: CacheManager,
}

struct WorkerHandle {
    commands: mpsc::UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
}

/// Runs the server until it is told to end; the configuration was loaded by the caller.
///
/// # Errors
/// One line for the operator: a taken port, a pid file that cannot be written, a missing right.
pub fn run(
    request: Request,
    config: Config,
    mut kept: Kept,
    on_ready: impl FnOnce(),
) -> Result<(), String> {
    let config = Arc::new(config);
    let signals = signals::Signals::install()
        .map_err(|problem| format!("sigaction() failed ({})", error::os_error(&problem)))?;
    kept.zones.clone_from(&config.zones);
    kept.limits.clone_from(&config.limits);
    for warning in &config.warnings {
        error::process(&config, Level::Warn, warning);
    }
    apply_limits(&config)?;
    let count = worker_count(&config);
    let listeners = bind_all(&config, &[], count).inspect_err(|error| {
        error::process(&config, Level::Emerg, error);
    })?;
    let pid = pid::PidFile::write(&pid::path(&config))?;
    rights::drop_to_user(&config, &kept)?;
    let mut server = Server {
        request,
        manager: CacheManager::start(&config),
        config,
        kept,
        workers: Vec::new(),
    };
    server.start_workers(listeners)?;
    error::process(&server.config, Level::Notice, "start worker threads");
    on_ready();
    signals.serve(&mut server);
    listen::remove(server.config.sockets.iter().map(|socket| socket.address.clone()));
    drop(pid);
    Ok(())
}

fn worker_count(config: &Config) -> usize {
    match config.main.worker_processes {
        Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Workers::Count(count) => usize::try_from(count).unwrap_or(1),
    }
}

fn apply_limits(config: &Config) -> Result<(), String> {
    if let Some(files) = config.main.worker_rlimit_nofile {
        if let Err(problem) = setrlimit(Resource::RLIMIT_NOFILE, files, files) {
            let text = format!(
                "setrlimit(RLIMIT_NOFILE, {files}) failed ({}: {})",
                problem as i32,
                problem.desc()
            );
            error::process(config, Level::Alert, &text);
        }
    }
    if let Some(core) = config.main.worker_rlimit_core {
        let _ = setrlimit(Resource::RLIMIT_CORE, core.0, core.0);
    }
    if let Some(folder) = &config.main.working_directory {
        std::env::set_current_dir(&folder.0).map_err(|problem| {
            format!("chdir(\"{}\") failed ({})", folder.0.display(), error::os_error(&problem))
        })?;
    }
    Ok(())
}

type PerWorker = Vec<Vec<(ListenAddress, Listener)>>;

/// Binds every socket of `config` that is not in `old`; one list per worker.
fn bind_all(config: &Config, old: &[ListenAddress], count: usize) -> Result<PerWorker, String> {
    let mut per_worker: PerWorker = (0..count).map(|_| Vec::new()).collect();
    for socket in config.sockets.iter().filter(|socket| !old.contains(&socket.address)) {
        let listeners = match listen::bind(&socket.address, &socket.options, count) {
            Ok(listeners) => listeners,
            Err(problem) if socket.options.is_control => {
                error::process(config, Level::Warn, &format!("no control socket: {problem}"));
                continue;
            }
            Err(problem) => return Err(problem.to_string()),
        };
        for (list, listener) in per_worker.iter_mut().zip(listeners) {
            list.push((socket.address.clone(), listener));
        }
    }
    Ok(per_worker)
}

impl Server {
    fn start_workers(&mut self, listeners: PerWorker) -> Result<(), String> {
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (sender, receiver) = mpsc::unbounded_channel();
            let config = Arc::clone(&self.config);
            let log = Arc::clone(&self.config);
            let thread = std::thread::Builder::new()
                .name(format!("worker {index}"))
                .spawn(move || {
                    rights::of_thread();
                    if let Err(problem) = worker::run(config, listeners, receiver) {
                        error::process(
                            &log,
                            Level::Alert,
                            &format!("worker thread ended: {problem}"),
                        );
                    }
                })
                .map_err(|problem| format!("cannot start a worker thread: {problem}"))?;
            self.workers.push(WorkerHandle { commands: sender, thread });
        }
        Ok(())
    }

    /// Reads the configuration again; the old one stays in use if the new one is refused.
    fn reload(&mut self) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        log(Level::Notice, "signal 1 (SIGHUP) received, reconfiguring");
        let reading = rights::Reading::begin();
        let loaded = load(&self.request, &self.kept);
        drop(reading);
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(problem) => return log(Level::Emerg, &problem.to_string()),
        };
        let config = Arc::new(loaded.config);
        let old: Vec<_> = self.config.sockets.iter().map(|socket| socket.address.clone()).collect();
        let added = match bind_all(&config, &old, self.workers.len()) {
            Ok(added) => added,
            Err(problem) => return log(Level::Emerg, &problem),
        };
        if worker_count(&config) != self.workers.len() {
            log(Level::Warn, "a change of \"worker_processes\" takes effect at the next start");
        }
        for warning in &config.warnings {
            log(Level::Warn, warning);
        }
        for (worker, added) in self.workers.iter().zip(added) {
            let command = Command::Reload { config: Arc::clone(&config), added };
            let _ = worker.commands.send(command);
        }
        let stays = |address: &ListenAddress| config.sockets.iter().any(|s| s.address == *address);
        listen::remove(old.into_iter().filter(|address| !stays(address)));
        self.kept.zones.clone_from(&config.zones);
        self.kept.limits.clone_from(&config.limits);
        self.manager.replace(&config);
        self.config = config;
        error::process(&self.config, Level::Notice, "reconfigured");
    }

    /// Opens the logs again.
    fn reopen(&self) {
        self.tell(|| Command::Flush);
        error::process(&self.config, Level::Notice, "signal 10 (SIGUSR1) received, reopening logs");
        for (path, problem) in self.kept.logs.reopen() {
            let text =
                format!("open() \"{}\" failed ({})", path.display(), error::os_error(&problem));
            error::process(&self.config, Level::Emerg, &text);
        }
    }

    fn tell(&self, command: impl Fn() -> Command) {
        for worker in &self.workers {
            // A worker that ended already is told nothing.
            let _ = worker.commands.send(command());
        }
    }

    fn is_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.is_finished())
    }
}

/// Keeps the cache zones within their bounds, on a thread of its own.
struct CacheManager {
    current: Arc<AtomicBool>,
}

impl CacheManager {
    fn start(config: &Arc<Config>) -> Self {
        let current = Arc::new(AtomicBool::new(true));
        if !config.zones.is_empty() {
            let (config, current) = (Arc::clone(config), Arc::clone(&current));
            let manager = std::thread::Builder::new().name("cache manager".to_owned());
            // Without the thread the zones still work; they are only not trimmed.
            let _ = manager.spawn(move || {
                rights::of_thread();
                manage(&config, &current);
            });
        }
        Self { current }
    }

    fn replace(&mut self, config: &Arc<Config>) {
        self.current.store(false, Ordering::Relaxed);
        *self = Self::start(config);
    }
}

/// Notices a system clock that is set back: stored pages from its future are made anew then.
struct Clock {
    wall: SystemTime,
    steady: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// What to say about it; once for each step back.
    fn check(&mut self) -> Option<String> {
        /// Smaller steps are adjustments.
        const SLACK: Duration = Duration::from_secs(2);
        let expected = self.wall + self.steady.elapsed();
        *self = Self::new();
        let back = expected.duration_since(self.wall).ok().filter(|back| *back > SLACK)?;
        let seconds = back.as_secs();
        Some(format!(
            "the system clock was set back by {seconds} s: pages stored in its future count as expired"
        ))
    }
}

fn manage(config: &Config, is_current: &AtomicBool) {
    let now = || crate::exchange::unix_seconds(SystemTime::now());
    let is_wanted = || is_current.load(Ordering::Relaxed);
    for (name, zone) in &config.zones {
        if !zone.is_alone() {
            let folder = zone.options().disk.path.display();
            let text = format!(
                "cache folder \"{folder}\" of zone \"{name}\" is used by another process: give each its own"
            );
            error::process(config, Level::Warn, &text);
        }
        zone.scan(now(), &is_wanted);
    }
    let mut clock = Clock::new();
    while is_wanted() {
        if let Some(text) = clock.check() {
            error::process(config, Level::Warn, &text);
        }
        for zone in config.zones.values() {
            if let Err(problem) = zone.evict(now(), &is_wanted) {
                error::process(config, Level::Crit, &problem.to_string());
            }
        }
        // Short naps, so that a replaced manager ends soon.
        let mut left = limits::CACHE_MANAGER_PAUSE;
        while !left.is_zero() && is_current.load(Ordering::Relaxed) {
            let nap = left.min(Duration::from_secs(1));
            std::thread::sleep(nap);
            left -= nap;
        }
    }
}
