//! The server: its configuration, its worker threads, what the master tells it.

use super::cache_manager::CacheManager;
use super::channel::Channel;
use super::limits as process_limits;
use super::message::{self, Answer, Given, Order};
use super::plan::worker_count;
use super::signals::{Signals, Word};
use super::sockets::{self, Sockets, distribute};
use super::worker::{self, Command, Reconfigured};
use super::{adoption, handover};
use crate::config::findings_of;
use crate::config::load::{Kept, Loaded, Request, load_from_texts};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use yorozu_acme::keeper::Keeper;
use yorozu_conf::Tree;
use yorozu_connection::quic::{Switch, link};
use yorozu_gateway::nodes;
use yorozu_kernel::base::beat::{Beat, Busy};
use yorozu_kernel::base::counters::{self, COUNTERS};
use yorozu_kernel::base::{faults, limits, memory, tasks};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_kernel::logging::writer;

/// The server, as its main thread holds it.
struct Server {
    request: Request,
    config: Arc<Config>,
    kept: Kept,
    workers: Vec<WorkerHandle>,
    /// Every socket, for workers that start again, and for a new master.
    sockets: Sockets,
    /// Brings datagrams to the workers that they are for.
    switch: Arc<Switch>,
    /// Where a new master is waited for once the present one is gone.
    adoption: Arc<Mutex<Option<OwnedFd>>>,
    master: Arc<Channel>,
    /// Whether no worker is to be started any more.
    is_ending: bool,
    /// For the ends of workers that were not told to end.
    deaths: mpsc::UnboundedSender<Told>,
    /// How many of those ended soon after their start, one after the other.
    early_deaths: u32,
    /// Findings that the log has.
    said: Arc<Mutex<HashSet<String>>>,
    manager: CacheManager,
    /// Certificates that issuers give.
    keeper: Keeper,
    /// What is done with other nodes.
    nodes: nodes::keeper::Keeper,
    watchdog: Watchdog,
}

/// How its workers are watched.
struct Watchdog {
    /// systemd's `WatchdogSec`.
    interval: Option<Duration>,
    /// Turns that were reported, by worker, and that go on.
    reported: Vec<(usize, Busy)>,
}

struct WorkerHandle {
    /// Its place among the workers.
    index: usize,
    commands: mpsc::UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    started: Instant,
    beat: Arc<Beat>,
}

/// What the main thread is told.
pub(super) enum Told {
    Order(Order),
    /// The master is gone.
    Orphaned,
    /// Another one is there.
    Adopted(Arc<Channel>),
    /// The end of a worker that was not told to end.
    Death {
        thread: std::thread::ThreadId,
        why: String,
    },
    Signal(Word),
}

/// In the words of nginx, for files that the master passed.
const NO_DESCRIPTOR: &str = "recvmsg() failed (24: Too many open files)";

/// Serves as the master at the other end of `channel` says, until it or a signal ends that.
///
/// # Errors
/// One line for the operator, which the master was told already, or which is in the log.
pub(super) fn serve(request: Request, channel: Channel, is_apart: bool) -> Result<(), String> {
    // What this process counts begins now, not when someone looks.
    let _ = counters::begun();
    let master = Arc::new(channel);
    let mut kept = Kept::given();
    let given = loop {
        match message::next_order(&master).map_err(|problem| problem.to_string())? {
            Some(Order::Logs(logs)) => kept.logs.take(logs),
            Some(Order::Configure(given)) => break given,
            Some(Order::Cut(_)) => {
                let _ = message::answer(&master, Answer::Refused(NO_DESCRIPTOR.to_owned()));
                return Err(NO_DESCRIPTOR.to_owned());
            }
            _ => return Ok(()),
        }
    };
    kept.needs_folders = !given.is_replacement;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|problem| problem.to_string())?;
    let signals = match is_apart {
        true => Some(
            Signals::install(&runtime)
                .map_err(|problem| format!("sigaction() failed ({})", error::os_error(&problem)))?,
        ),
        false => None,
    };
    #[expect(clippy::disallowed_methods, reason = "the master's words, and workers that die")]
    let (tell, told) = mpsc::unbounded_channel();
    let began = Server::begin(request, kept, given, Arc::clone(&master), tell.clone());
    let mut server = match began {
        Ok(server) => server,
        Err(why) => {
            let _ = message::answer(&master, Answer::Refused(why.clone()));
            return Err(why);
        }
    };
    let adoption = Arc::clone(&server.adoption);
    let logs = Arc::clone(&server.kept.logs);
    adoption::listen_to_master(Arc::clone(&master), adoption, logs, tell)
        .map_err(|problem| format!("cannot start a thread ({})", error::os_error(&problem)))?;
    faults::stand("start");
    // A master that is gone by now is noticed by who listens to it.
    let _ = message::answer(&master, Answer::Ready);
    let ended = runtime.block_on(server.run(told, signals));
    writer::drain(limits::LOG_DRAIN_TIME);
    server.master.shut();
    ended
}

/// Tells the master why this process cannot serve.
pub(super) fn refuse(master: &Channel, why: &str) {
    // A configuration is on its way: the answer is to that.
    while let Ok(Some(Order::Logs(_))) = message::next_order(master) {}
    let _ = message::answer(master, Answer::Refused(why.to_owned()));
}

/// Has panics, of whatever thread, written to the log of `config`.
fn log_panics(config: &Config) {
    let log = config.error_log.clone();
    tasks::tell_panics(move |text| log.process(Level::Alert, text));
}

impl Server {
    fn begin(
        request: Request,
        mut kept: Kept,
        given: Given,
        master: Arc<Channel>,
        deaths: mpsc::UnboundedSender<Told>,
    ) -> Result<Self, String> {
        let loaded = load_from_texts(&request, &kept, &given.texts);
        let Loaded { config, tree } = loaded.map_err(|problem| problem.to_string())?;
        let config = config.put_to_use();
        memory::give_back_soon();
        process_limits::set_own(&config);
        log_panics(&config);
        kept.zones.clone_from(&config.zones);
        // A reload is refused instead: the configuration before it stays.
        kept.needs_folders = true;
        kept.shared = config.shared.survivors();
        kept.logs.forget_unused();
        for (name, zone) in &config.zones {
            if let Some(fault) = zone.fault() {
                let text = format!("the cache zone \"{name}\" stores nothing: {fault}");
                error::process(&config, Level::Crit, &text);
            }
        }
        for warning in &config.warnings {
            error::process(&config, Level::Warn, warning);
        }
        if let Some(folder) = &config.main().working_directory {
            std::env::set_current_dir(&folder.0).map_err(|problem| {
                format!("chdir(\"{}\") failed ({})", folder.0.display(), error::os_error(&problem))
            })?;
        }
        let mut server = Self {
            request,
            manager: CacheManager::default(),
            keeper: Keeper::default(),
            nodes: nodes::keeper::Keeper::default(),
            config,
            kept,
            workers: Vec::new(),
            sockets: of_descriptors(given.sockets)?,
            switch: Arc::default(),
            adoption: Arc::new(Mutex::new(given.adoption)),
            master,
            is_ending: false,
            deaths,
            early_deaths: 0,
            said: Arc::default(),
            watchdog: Watchdog::new(),
        };
        server.manager.watch(&server.config, given.has_predecessor);
        server.keeper.watch(&server.config);
        // Before the first connection: what is answered then is of after it.
        server.nodes.watch(&server.config);
        let failed = |problem| format!("cannot start a thread ({})", error::os_error(&problem));
        let lead = given.link.map(|link| link::Lead::new(&server.switch, link.into()));
        let lead = lead.transpose().map_err(failed)?;
        writer::start().map_err(failed)?;
        server.start_workers()?;
        lead.map_or(Ok(()), link::Lead::begin).map_err(failed)?;
        error::process(&server.config, Level::Notice, "start worker threads");
        server.note_findings(tree);
        Ok(server)
    }

    /// Has a thread log what `-t` warns of, each line once: a container and a supervisor show the log, and never run `-t`. Nothing
    /// waits for that, or for the disk with the sites' folders, which it looks into.
    fn note_findings(&self, tree: Tree) {
        let (config, said) = (Arc::clone(&self.config), Arc::clone(&self.said));
        let work = move || {
            for text in findings_of(&tree, &config).iter().map(ToString::to_string) {
                let is_new =
                    said.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone());
                if is_new {
                    error::process(&config, Level::Warn, &text);
                }
            }
        };
        if let Err(problem) = std::thread::Builder::new().name("findings".to_owned()).spawn(work) {
            let text = format!("cannot start a thread ({})", error::os_error(&problem));
            error::process(&self.config, Level::Alert, &text);
        }
    }

    /// Obeys until the workers have ended.
    async fn run(
        &mut self,
        mut told: mpsc::UnboundedReceiver<Told>,
        mut signals: Option<Signals>,
    ) -> Result<(), String> {
        // A thread's end has no event of its own.
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while !self.is_ending || !self.is_ended() {
            let pause = self.watchdog_pause();
            let told = tokio::select! {
                Some(told) = told.recv() => told,
                word = next_word(&mut signals) => Told::Signal(word),
                _ = look.tick(), if self.is_ending => continue,
                () = sleep_or_never(pause) => {
                    self.watch_workers();
                    continue;
                }
            };
            if let Told::Death { thread, why } = told {
                let replaced = self.replace(thread, &why).await;
                replaced.inspect_err(|why| error::process(&self.config, Level::Emerg, why))?;
                continue;
            }
            if tasks::guard(|| self.obey(told)).is_err() {
                error::process(&self.config, Level::Alert, "an order's handling ended by a panic");
            }
        }
        error::process(&self.config, Level::Notice, "exit");
        Ok(())
    }

    fn obey(&mut self, told: Told) {
        let log = |level, text: &str| error::process(&self.config, level, text);
        match told {
            Told::Order(Order::Configure(given)) => self.reload(given),
            // These have been obeyed where they arrived.
            Told::Order(Order::Logs(_) | Order::WaitAt(_)) => {}
            Told::Order(Order::Cut(true)) => {
                let _ = message::answer(&self.master, Answer::Refused(NO_DESCRIPTOR.to_owned()));
            }
            Told::Order(Order::Cut(false)) => log(Level::Alert, NO_DESCRIPTOR),
            Told::Order(Order::Reopen) => self.tell(|| Command::Flush),
            Told::Order(Order::Succeed(link)) => {
                if let Err(problem) = link::follow(&self.switch, link.into()) {
                    let text = format!("cannot start a thread ({})", error::os_error(&problem));
                    log(Level::Alert, &text);
                }
            }
            Told::Order(Order::Quit) => self.end(|| Command::Quit),
            Told::Order(Order::Stop) => self.end(|| Command::Stop),
            // Of the others the master process says what they mean.
            Told::Signal(Word::Quit | Word::Rest) => {
                log(Level::Notice, "gracefully shutting down");
                self.end(|| Command::Quit);
            }
            Told::Signal(Word::Stop(_)) => {
                log(Level::Notice, "exiting");
                self.end(|| Command::Stop);
            }
            Told::Signal(Word::Reload | Word::Reopen | Word::Upgrade) => {}
            Told::Orphaned if self.is_ending => {}
            Told::Orphaned => log(
                Level::Alert,
                "the master process is gone: this server goes on without it; start another master, which takes over",
            ),
            Told::Adopted(master) => {
                log(Level::Notice, "another master process is there");
                self.master = master;
                let version = adoption::VERSION.to_owned();
                let sockets = sockets::copies(&self.sockets).unwrap_or_default();
                let answer = Answer::Here { version, sockets };
                let _ = message::answer(&self.master, answer);
            }
            Told::Death { .. } => {}
        }
    }

    /// Serves by another configuration; the old one stays in use if the new one is refused.
    fn reload(&mut self, given: Given) {
        let replaced = tasks::guard(|| self.replace_config(given)).unwrap_or_else(|_| {
            Err("reading the configuration ended by a panic, the old one stays in use".to_owned())
        });
        let answer = match replaced {
            Ok(()) => Answer::Ready,
            Err(why) => Answer::Refused(why),
        };
        // A master that is gone by now is noticed by who listens to it.
        let _ = message::answer(&self.master, answer);
    }

    fn replace_config(&mut self, given: Given) -> Result<(), String> {
        faults::point("reload");
        if let Some(adoption) = given.adoption {
            // Also if the configuration is refused: the place of the one before has no name any more.
            *self.adoption.lock().unwrap_or_else(PoisonError::into_inner) = Some(adoption);
        }
        let loaded = load_from_texts(&self.request, &self.kept, &given.texts);
        memory::give_back_soon();
        self.kept.logs.forget_unused();
        let Loaded { config, tree } = loaded.map_err(|problem| problem.to_string())?;
        if self.is_ending {
            // It is for the next server process, if there is one: this one opens nothing any more.
            return Ok(());
        }
        let config = config.put_to_use();
        let log = |level, text: &str| error::process(&config, level, text);
        let old: Vec<_> = self.config.sockets.iter().map(|socket| socket.address.clone()).collect();
        let count = self.workers.len();
        let mut opened = of_descriptors(given.sockets)?;
        opened.retain(|(address, _)| !old.contains(address));
        let added = distribute(&opened, count)?;
        if worker_count(&config) != count {
            log(Level::Warn, "a change of \"worker_processes\" takes effect at the next start");
        }
        for warning in &config.warnings {
            log(Level::Warn, warning);
        }
        // Before a worker shows one.
        self.keeper.watch(&config);
        self.nodes.watch(&config);
        let told = Arc::new(Reconfigured(Arc::clone(&config)));
        for (worker, added) in self.workers.iter().zip(added) {
            let command = Command::Reload { config: Arc::clone(&told), added };
            let _ = worker.commands.send(command);
        }
        self.sockets.extend(opened);
        self.sockets.retain(|(address, _)| config.sockets.iter().any(|s| s.address == *address));
        self.kept.zones.clone_from(&config.zones);
        self.kept.shared = config.shared.survivors();
        self.manager.watch(&config, given.has_predecessor);
        process_limits::set_own(&config);
        log_panics(&config);
        self.config = config;
        self.note_findings(tree);
        Ok(())
    }

    fn start_workers(&mut self) -> Result<(), String> {
        let count = worker_count(&self.config);
        for (index, listeners) in distribute(&self.sockets, count)?.into_iter().enumerate() {
            let worker = self.start_worker(index, listeners)?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn start_worker(&self, index: usize, listeners: Sockets) -> Result<WorkerHandle, String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the main thread's words to a worker: one for each signal"
        )]
        let (commands, receiver) = mpsc::unbounded_channel();
        let beat = Arc::new(Beat::default());
        let noted = Arc::clone(&beat);
        // Not for longer than the worker uses it.
        let (config, deaths) = (Arc::clone(&self.config), self.deaths.clone());
        let switch = Arc::clone(&self.switch);
        let work = move || {
            let run = || worker::run(config, switch, noted, listeners, receiver);
            if let Err(why) = tasks::guard(run).unwrap_or_else(|panicked| Err(panicked.to_string()))
            {
                // When the process ends the other side is gone.
                let _ = deaths.send(Told::Death { thread: std::thread::current().id(), why });
            }
        };
        let thread = std::thread::Builder::new().name(format!("worker {index}"));
        let thread = thread.spawn(work).map_err(|problem| {
            format!("cannot start a worker thread ({})", error::os_error(&problem))
        })?;
        Ok(WorkerHandle { index, commands, thread, started: Instant::now(), beat })
    }

    /// Starts a worker in the place of one that died.
    ///
    /// # Errors
    /// None lives, and those that are started do not for long: the process had better end, and be started again.
    async fn replace(&mut self, thread: std::thread::ThreadId, why: &str) -> Result<(), String> {
        let log = |text: &str| error::process(&self.config, Level::Alert, text);
        log(&format!("worker thread ended: {why}"));
        let is_it = |worker: &WorkerHandle| worker.thread.thread().id() == thread;
        let Some(place) = self.workers.iter().position(is_it) else { return Ok(()) };
        if self.is_ending {
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
        let mut lists = distribute(&self.sockets, self.workers.len())?;
        self.workers[place] = self.start_worker(index, lists.swap_remove(index))?;
        COUNTERS.workers_respawned.fetch_add(1, Ordering::Relaxed);
        log("worker thread started again");
        Ok(())
    }

    /// How long the workers are not looked at.
    fn watchdog_pause(&self) -> Option<Duration> {
        let limit = self.config.main().worker_watchdog;
        let limit = (!limit.is_zero()).then(|| limit / 4);
        let interval = self.watchdog.interval.map(|interval| interval / 4);
        limit.into_iter().chain(interval).min()
    }

    /// Reports workers that stand, and tells systemd while none does.
    fn watch_workers(&mut self) {
        let limit = self.config.main().worker_watchdog;
        let log = |text: &str| error::process(&self.config, Level::Alert, text);
        for worker in &self.workers {
            let index = worker.index;
            let busy = worker.beat.busy(limit).filter(|_| !limit.is_zero());
            let place = self.watchdog.reported.iter().position(|(of, _)| *of == index);
            let before = place.map(|place| self.watchdog.reported[place].1);
            if before.map(|before| before.began) == busy.map(|busy| busy.began) {
                continue;
            }
            if let Some(place) = place {
                self.watchdog.reported.swap_remove(place);
                log(&format!("worker {index} responds again"));
            }
            if let Some(busy) = busy {
                self.watchdog.reported.push((index, busy));
                log(&format!(
                    "worker {index} has been stuck for {} s {}",
                    busy.time.as_secs(),
                    place_of(busy)
                ));
            }
        }
        let Some(interval) = self.watchdog.interval else { return };
        let stands = |worker: &WorkerHandle| worker.beat.busy(interval / 2).is_some();
        if !self.workers.iter().any(stands) {
            // A master that is gone by now is noticed by who listens to it.
            let _ = message::answer(&self.master, Answer::Alive);
        }
    }

    /// No connection is taken any more.
    fn end(&mut self, command: impl Fn() -> Command) {
        self.is_ending = true;
        // A server that goes on can order then.
        self.keeper.stop();
        self.sockets.clear();
        self.tell(command);
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

impl Watchdog {
    fn new() -> Self {
        // Set for the master: it is its child that stands or turns.
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        Self { interval: micros.map(Duration::from_micros), reported: Vec::new() }
    }
}

/// What a worker that stands is at: its connection's number in the logs, and how the system has its thread.
fn place_of(busy: Busy) -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "of the kernel's files, once for a worker that stands"
    )]
    let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", busy.thread));
    let status = status.unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("").trim();
    match busy.connection {
        0 => format!("in work of its own (thread {}, state {state})", busy.thread),
        number => format!("at connection *{number} (thread {}, state {state})", busy.thread),
    }
}

async fn sleep_or_never(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// The next signal's word; where another part of the process hears signals, never.
async fn next_word(signals: &mut Option<Signals>) -> Word {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

fn of_descriptors(sockets: Vec<OwnedFd>) -> Result<Sockets, String> {
    let sockets = sockets.into_iter().map(handover::of_descriptor);
    sockets.collect::<Result<_, _>>().map_err(|problem| {
        format!(
            "a socket that the master process passed is of no use ({})",
            error::os_error(&problem)
        )
    })
}
