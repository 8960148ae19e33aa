//! The process: its files, its user, its signals, its worker threads.
//!
//! Way through: load -> bind -> pid file -> drop rights -> workers -> signals until the end.

mod cache_manager;
pub mod daemon;
pub mod handover;
pub mod pid;
mod rights;
mod signals;
pub mod worker;

use crate::config::load::{Kept, Request, load};
use cache_manager::CacheManager;
use handover::Inherited;
use nix::sys::resource::{Resource, setrlimit};
use sd_notify::NotifyState;
use std::process::Child;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use worker::Command;
use yorozu_connection::listen::{self, Listener};
use yorozu_kernel::base::{faults, limits, tasks};
use yorozu_kernel::config::main_core::Workers;
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};

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
    /// Whether no worker is to be started any more.
    is_ending: bool,
    /// Told by workers that end though nobody told them to.
    deaths: mpsc::UnboundedSender<Death>,
    /// How many of those ended soon after their start, one after the other.
    early_deaths: u32,
    /// Whether the workers have ended while the process stays (SIGWINCH).
    is_resting: bool,
    pid: pid::PidFile,
    manager: CacheManager,
}

type Sockets = Vec<(ListenAddress, Listener)>;

struct WorkerHandle {
    /// Its place among the workers.
    index: usize,
    commands: mpsc::UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    started: Instant,
}

/// The end of a worker that nobody asked for.
struct Death {
    thread: std::thread::ThreadId,
    why: String,
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
    let config = config.put_to_use();
    log_panics(&config);
    let signals = signals::Signals::install()
        .map_err(|problem| format!("sigaction() failed ({})", error::os_error(&problem)))?;
    kept.zones.clone_from(&config.zones);
    kept.shared = config.shared.survivors();
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
    #[expect(clippy::disallowed_methods, reason = "one for each worker that dies")]
    let (deaths, died) = mpsc::unbounded_channel();
    let mut server = Server {
        request,
        manager: CacheManager::default(),
        config,
        kept,
        workers: Vec::new(),
        ending: Vec::new(),
        sockets,
        successor: None,
        is_ending: false,
        deaths,
        early_deaths: 0,
        is_resting: false,
        pid,
    };
    server.manager.watch(&server.config);
    server.start_workers()?;
    error::process(&server.config, Level::Notice, "start worker threads");
    on_ready();
    tell_systemd(&[NotifyState::Ready]);
    signals.serve(&mut server, died).inspect_err(|problem| {
        error::process(&server.config, Level::Emerg, problem);
    })?;
    // As nginx: another process that has the sockets goes on with them.
    if server.successor.is_none() && !handover::has_predecessor() {
        listen::remove(server.config.sockets.iter().map(|socket| socket.address.clone()));
    }
    Ok(())
}

/// Has panics, of whatever thread, written to the log of `config`.
fn log_panics(config: &Config) {
    let log = config.error_log.clone();
    tasks::tell_panics(move |text| log.process(Level::Alert, text));
}

fn worker_count(config: &Config) -> usize {
    match config.main().worker_processes {
        Workers::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Workers::Count(count) => usize::try_from(count).unwrap_or(1),
    }
}

fn apply_limits(config: &Config) -> Result<(), String> {
    if let Some(files) = config.main().worker_rlimit_nofile {
        if let Err(problem) = setrlimit(Resource::RLIMIT_NOFILE, files, files) {
            let text = format!(
                "setrlimit(RLIMIT_NOFILE, {files}) failed ({}: {})",
                problem as i32,
                problem.desc()
            );
            error::process(config, Level::Alert, &text);
        }
    }
    if let Some(core) = config.main().worker_rlimit_core {
        let _ = setrlimit(Resource::RLIMIT_CORE, core.0, core.0);
    }
    if let Some(folder) = &config.main().working_directory {
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
    // The control socket first: whoever reaches the site can ask about it. Then in particular before in general:
    // while only `*:80` is there, it is given what `127.0.0.1:80` is for.
    wanted.sort_by_key(|socket| (!socket.options.is_control, is_general(&socket.address)));
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
    // There is nobody to report a failure to.
    let _ = sd_notify::notify(state);
}

impl Server {
    fn start_workers(&mut self) -> Result<(), String> {
        let count = worker_count(&self.config);
        let lists = distribute(&self.sockets, count)
            .map_err(|problem| format!("dup() failed ({})", error::os_error(&problem)))?;
        for (index, listeners) in lists.into_iter().enumerate() {
            let worker = self.start_worker(index, listeners)?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn start_worker(&self, index: usize, listeners: Sockets) -> Result<WorkerHandle, String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the main process's words to a worker: one for each signal"
        )]
        let (commands, receiver) = mpsc::unbounded_channel();
        // Not for longer than the worker uses it.
        let (config, deaths) = (Arc::clone(&self.config), self.deaths.clone());
        let work = move || {
            let run = || {
                rights::of_thread();
                worker::run(config, listeners, receiver)
            };
            if let Err(why) = tasks::guard(run).unwrap_or_else(|panicked| Err(panicked.to_string()))
            {
                // Nobody listens any more when the process ends.
                let _ = deaths.send(Death { thread: std::thread::current().id(), why });
            }
        };
        let thread = std::thread::Builder::new().name(format!("worker {index}"));
        let thread = thread.spawn(work).map_err(|problem| {
            format!("cannot start a worker thread ({})", error::os_error(&problem))
        })?;
        Ok(WorkerHandle { index, commands, thread, started: Instant::now() })
    }

    /// Starts a worker in the place of one that died.
    ///
    /// # Errors
    /// None lives, and those that are started do not for long: the process had better end, and be started again.
    async fn replace(&mut self, death: &Death) -> Result<(), String> {
        let log = |text: &str| error::process(&self.config, Level::Alert, text);
        log(&format!("worker thread ended: {}", death.why));
        let is_it = |worker: &WorkerHandle| worker.thread.thread().id() == death.thread;
        let Some(place) = self.workers.iter().position(is_it) else { return Ok(()) };
        if self.is_ending || self.is_resting {
            return Ok(());
        }
        let WorkerHandle { index, started, .. } = self.workers[place];
        let is_old = |started: Instant| started.elapsed() >= limits::RESTART_INTERVAL;
        self.early_deaths = if is_old(started) { 0 } else { self.early_deaths + 1 };
        if self.early_deaths > limits::RESTARTS_MAX {
            let lives = |worker: &WorkerHandle| is_old(worker.started) && !is_it(worker);
            if !self.workers.iter().any(|worker| lives(worker) && !worker.thread.is_finished()) {
                return Err("workers end as soon as they are started".to_owned());
            }
        }
        if self.early_deaths > 0 {
            tokio::time::sleep(limits::RESTART_PAUSE).await;
        }
        let lists = distribute(&self.sockets, self.workers.len());
        let mut lists =
            lists.map_err(|problem| format!("dup() failed ({})", error::os_error(&problem)))?;
        self.workers[place] = self.start_worker(index, lists.swap_remove(index))?;
        log("worker thread started again");
        Ok(())
    }

    /// Reads the configuration again; the old one stays in use if the new one is refused.
    fn reload(&mut self) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        log(Level::Notice, "signal 1 (SIGHUP) received, reconfiguring");
        if let Ok(time) = NotifyState::monotonic_usec_now() {
            tell_systemd(&[NotifyState::Reloading, time]);
        }
        if tasks::guard(|| self.replace_config()).is_err() {
            let text = "reading the configuration ended by a panic, the old one stays in use";
            error::process(&self.config, Level::Emerg, text);
        }
        tell_systemd(&[NotifyState::Ready]);
    }

    fn replace_config(&mut self) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        let reading = rights::Reading::begin();
        faults::point("reload");
        let loaded = load(&self.request, &self.kept);
        drop(reading);
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(problem) => return log(Level::Emerg, &problem.to_string()),
        };
        let config = loaded.config.put_to_use();
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
        self.kept.shared = config.shared.survivors();
        self.manager.watch(&config);
        log_panics(&config);
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
        self.is_ending = true;
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
