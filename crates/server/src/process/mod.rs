//! The process: its files, its user, its signals, its worker threads.
//!
//! Way through: load -> bind -> pid file -> drop rights -> workers -> signals until the end.

pub mod daemon;
pub mod handover;
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
use handover::Inherited;
use nix::sys::resource::{Resource, setrlimit};
use sd_notify::NotifyState;
use std::process::Child;
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
    /// Those that rested and finish what they had: nothing new is for them.
    ending: Vec<WorkerHandle>,
    /// Every socket, for a new binary and for workers that start again.
    sockets: Vec<(ListenAddress, Listener)>,
    /// The new binary, between SIGUSR2 and its end.
    successor: Option<Child>,
    /// Have the workers ended, and the process stays (SIGWINCH)?
    is_resting: bool,
    pid: pid::PidFile,
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
    let mut inherited = Inherited::take();
    let sockets = bind_all(&config, &[], count, &mut inherited).inspect_err(|error| {
        error::process(&config, Level::Emerg, error);
    })?;
    drop(inherited);
    let pid = pid::PidFile::write(&pid::path(&config))?;
    rights::drop_to_user(&config, &kept)?;
    let mut server = Server {
        request,
        manager: CacheManager::start(&config),
        config,
        kept,
        workers: Vec::new(),
        ending: Vec::new(),
        sockets,
        successor: None,
        is_resting: false,
        pid,
    };
    server.start_workers()?;
    error::process(&server.config, Level::Notice, "start worker threads");
    on_ready();
    tell_systemd(&[NotifyState::Ready]);
    signals.serve(&mut server);
    // As nginx: another process that has the sockets goes on with them.
    if server.successor.is_none() && !handover::has_predecessor() {
        listen::remove(server.config.sockets.iter().map(|socket| socket.address.clone()));
    }
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

/// Opens every socket of `config` that is not in `old`, for `count` workers; those that were handed over are open.
fn bind_all(
    config: &Config,
    old: &[ListenAddress],
    count: usize,
    inherited: &mut Inherited,
) -> Result<Vec<(ListenAddress, Listener)>, String> {
    let mut opened = Vec::new();
    let mut wanted = Vec::new();
    for socket in config.sockets.iter().filter(|socket| !old.contains(&socket.address)) {
        let claimed = inherited.claim(&socket.address);
        if claimed.is_empty() {
            wanted.push(socket);
        }
        opened.extend(claimed.into_iter().map(|listener| (socket.address.clone(), listener)));
    }
    // Before any is opened: our own are no obstacle to each other, `*:80` and `127.0.0.1:80` can be together.
    for socket in wanted.iter().filter(|socket| !overlaps(&socket.address, old)) {
        listen::check(&socket.address, &socket.options).map_err(|problem| problem.to_string())?;
    }
    // In particular before in general: while only `*:80` is there, it is given what `127.0.0.1:80` is for.
    wanted.sort_by_key(|socket| is_general(&socket.address));
    for socket in wanted {
        match listen::bind(&socket.address, &socket.options, count) {
            Ok(listeners) => {
                opened.extend(listeners.into_iter().map(|it| (socket.address.clone(), it)));
            }
            Err(problem) if socket.options.is_control => {
                error::process(config, Level::Warn, &format!("no control socket: {problem}"));
            }
            Err(problem) => return Err(problem.to_string()),
        }
    }
    Ok(opened)
}

/// Does it stand for all addresses of the machine?
fn is_general(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(address) if address.ip().is_unspecified())
}

/// Has one of `others` the same port on all addresses, or is this such a one?
fn overlaps(address: &ListenAddress, others: &[ListenAddress]) -> bool {
    let ListenAddress::Tcp(address) = address else { return false };
    others.iter().any(|other| match other {
        ListenAddress::Tcp(other) => {
            other.port() == address.port()
                && (other.ip().is_unspecified() || address.ip().is_unspecified())
        }
        ListenAddress::Unix(_) => false,
    })
}

/// Copies of `sockets` for each of `count` workers: every worker hears of each address, and every socket is heard.
fn distribute(
    sockets: &[(ListenAddress, Listener)],
    count: usize,
) -> std::io::Result<Vec<Vec<(ListenAddress, Listener)>>> {
    let mut addresses: Vec<&ListenAddress> = sockets.iter().map(|(address, _)| address).collect();
    addresses.sort_unstable_by_key(|address| address.to_string());
    addresses.dedup();
    let mut per_worker: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for address in addresses {
        let of_it: Vec<_> = sockets.iter().filter(|(at, _)| at == address).collect();
        for place in 0..of_it.len().max(count) {
            let (_, listener) = of_it[place % of_it.len()];
            per_worker[place % count].push((address.clone(), listener.try_clone()?));
        }
    }
    Ok(per_worker)
}

/// Tells systemd how the service stands, if it wants to know (`Type=notify`).
fn tell_systemd(state: &[NotifyState<'_>]) {
    // Nobody is there to be told of a failure.
    let _ = sd_notify::notify(state);
}

impl Server {
    fn start_workers(&mut self) -> Result<(), String> {
        let count = worker_count(&self.config);
        let lists = distribute(&self.sockets, count)
            .map_err(|problem| format!("dup() failed ({})", error::os_error(&problem)))?;
        for (index, listeners) in lists.into_iter().enumerate() {
            #[expect(
                clippy::disallowed_methods,
                reason = "the main process's words to a worker: one for each signal"
            )]
            let (sender, receiver) = mpsc::unbounded_channel();
            let config = Arc::clone(&self.config);
            // Not the configuration: it would live as long as the thread.
            let log = self.config.error_log.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker {index}"))
                .spawn(move || {
                    rights::of_thread();
                    if let Err(problem) = worker::run(config, listeners, receiver) {
                        log.process(Level::Alert, &format!("worker thread ended: {problem}"));
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
        if let Ok(time) = NotifyState::monotonic_usec_now() {
            tell_systemd(&[NotifyState::Reloading, time]);
        }
        self.read_again();
        tell_systemd(&[NotifyState::Ready]);
    }

    fn read_again(&mut self) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        let reading = rights::Reading::begin();
        let loaded = load(&self.request, &self.kept);
        drop(reading);
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(problem) => return log(Level::Emerg, &problem.to_string()),
        };
        let config = Arc::new(loaded.config);
        let old: Vec<_> = self.config.sockets.iter().map(|socket| socket.address.clone()).collect();
        let count = self.workers.len();
        let opened = bind_all(&config, &old, count, &mut Inherited::default());
        let lists = opened.and_then(|opened| match distribute(&opened, count) {
            Ok(lists) => Ok((opened, lists)),
            Err(problem) => Err(format!("dup() failed ({})", error::os_error(&problem))),
        });
        let (opened, added) = match lists {
            Ok(lists) => lists,
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
        self.sockets.extend(opened);
        self.sockets.retain(|(address, _)| stays(address));
        self.kept.zones.clone_from(&config.zones);
        self.kept.limits.clone_from(&config.limits);
        self.manager.replace(&config);
        self.config = config;
        error::process(&self.config, Level::Notice, "reconfigured");
    }

    /// Starts a new binary beside this one (SIGUSR2).
    fn upgrade(&mut self) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        if self.successor.is_some() || handover::has_predecessor() {
            let text = "the changing binary signal is ignored: you should shutdown or terminate before either old or new binary's process";
            return log(Level::Notice, text);
        }
        log(Level::Notice, "signal 12 (SIGUSR2) received, changing binary");
        if let Err(problem) = self.pid.step_aside() {
            log(
                Level::Warn,
                &format!("rename() of the pid file failed ({})", error::os_error(&problem)),
            );
        }
        match handover::start(&self.sockets) {
            Ok(successor) => {
                log(Level::Notice, &format!("start new binary process {}", successor.id()));
                tell_systemd(&[NotifyState::MainPid(successor.id())]);
                self.successor = Some(successor);
            }
            Err(problem) => {
                log(Level::Alert, &format!("execve() failed ({})", error::os_error(&problem)));
                let _ = self.pid.step_back();
            }
        }
    }

    /// Looks whether the new binary has ended; then this one goes on alone.
    fn look_after_successor(&mut self) {
        let Some(successor) = &mut self.successor else { return };
        let Ok(Some(status)) = successor.try_wait() else { return };
        let text = format!("new binary process {} ended ({status})", successor.id());
        error::process(&self.config, Level::Notice, &text);
        self.successor = None;
        if let Err(problem) = self.pid.step_back() {
            let text = format!("rename() of the pid file failed ({})", error::os_error(&problem));
            error::process(&self.config, Level::Alert, &text);
        }
        tell_systemd(&[NotifyState::MainPid(std::process::id())]);
        self.wake();
    }

    /// Ends the workers, and waits for what comes (SIGWINCH): a new binary serves in the meantime.
    fn rest(&mut self) {
        self.is_resting = true;
        self.tell(|| Command::Quit);
    }

    /// Starts workers again after a [`Server::rest`].
    fn wake(&mut self) {
        if !std::mem::take(&mut self.is_resting) {
            return;
        }
        self.ending.append(&mut self.workers);
        self.ending.retain(|worker| !worker.thread.is_finished());
        if let Err(problem) = self.start_workers() {
            error::process(&self.config, Level::Alert, &problem);
        }
    }

    /// No connection is taken any more.
    fn end(&mut self, command: impl Fn() -> Command) {
        tell_systemd(&[NotifyState::Stopping]);
        self.is_resting = false;
        self.sockets.clear();
        self.tell(command);
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
        for worker in self.workers.iter().chain(&self.ending) {
            // A worker that ended already is told nothing.
            let _ = worker.commands.send(command());
        }
    }

    fn is_ended(&self) -> bool {
        let mut workers = self.workers.iter().chain(&self.ending);
        workers.all(|worker| worker.thread.is_finished())
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
        if !zone.is_alone() && !handover::has_predecessor() {
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
            for problem in zone.evict(now(), &is_wanted).problems {
                error::process(config, Level::Crit, &problem.to_string());
            }
        }
        // Short naps, so that a replaced manager ends soon.
        let mut left = limits::CACHE_MANAGER_PAUSE;
        while !left.is_zero() && is_current.load(Ordering::Relaxed) {
            let nap = left.min(Duration::from_secs(1));
            #[expect(clippy::disallowed_methods, reason = "the thread of the cache manager")]
            std::thread::sleep(nap);
            left -= nap;
        }
    }
}
