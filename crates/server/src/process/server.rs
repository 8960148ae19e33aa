//! The server: its configuration, its worker threads, what the master tells it.

use super::cache_manager::CacheManager;
use super::channel::Channel;
use super::message::{self, Answer, Given, Order};
use super::plan::worker_count;
use super::signals::{Signals, Word};
use super::sockets::{self, Sockets, distribute};
use super::worker::{self, Command};
use super::{adoption, handover};
use crate::config::load::{Kept, Loaded, Request, load_from_texts};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use yorozu_kernel::base::{faults, limits, tasks};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};

/// The server, as its main thread holds it.
struct Server {
    request: Request,
    config: Arc<Config>,
    kept: Kept,
    workers: Vec<WorkerHandle>,
    /// Every socket, for workers that start again, and for a new master.
    sockets: Sockets,
    /// Where a new master is waited for once the present one is gone.
    adoption: Arc<Mutex<Option<OwnedFd>>>,
    master: Arc<Channel>,
    /// Whether no worker is to be started any more.
    is_ending: bool,
    /// Told by workers that end though nobody told them to.
    deaths: mpsc::UnboundedSender<Told>,
    /// How many of those ended soon after their start, one after the other.
    early_deaths: u32,
    manager: CacheManager,
}

struct WorkerHandle {
    /// Its place among the workers.
    index: usize,
    commands: mpsc::UnboundedSender<Command>,
    thread: std::thread::JoinHandle<()>,
    started: Instant,
}

/// What the main thread is told.
pub(super) enum Told {
    Order(Order),
    /// The master is gone.
    Orphaned,
    /// Another one is there.
    Adopted(Arc<Channel>),
    /// The end of a worker that nobody asked for.
    Death {
        thread: std::thread::ThreadId,
        why: String,
    },
    Signal(Word),
}

/// Serves as the master at the other end of `channel` says, until it or a signal ends that.
///
/// # Errors
/// One line for the operator, which the master was told already, or which is in the log.
pub(super) fn serve(request: Request, channel: Channel, is_apart: bool) -> Result<(), String> {
    let master = Arc::new(channel);
    let order = message::next_order(&master).map_err(|problem| problem.to_string())?;
    let Some(Order::Configure(given)) = order else { return Ok(()) };
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
    let began = Server::begin(request, given, Arc::clone(&master), tell.clone());
    let mut server = match began {
        Ok(server) => server,
        Err(why) => {
            let _ = message::answer(&master, Answer::Refused(why.clone()));
            return Err(why);
        }
    };
    let adoption = Arc::clone(&server.adoption);
    adoption::listen_to_master(Arc::clone(&master), adoption, tell)
        .map_err(|problem| format!("cannot start a thread ({})", error::os_error(&problem)))?;
    // A master that is gone by now is noticed by who listens to it.
    let _ = message::answer(&master, Answer::Ready);
    let ended = runtime.block_on(server.run(told, signals));
    server.master.shut();
    ended
}

/// Has panics, of whatever thread, written to the log of `config`.
fn log_panics(config: &Config) {
    let log = config.error_log.clone();
    tasks::tell_panics(move |text| log.process(Level::Alert, text));
}

impl Server {
    fn begin(
        request: Request,
        given: Given,
        master: Arc<Channel>,
        deaths: mpsc::UnboundedSender<Told>,
    ) -> Result<Self, String> {
        let mut kept = Kept::given();
        kept.logs.take(given.logs);
        let loaded = load_from_texts(&request, &kept, &given.texts);
        let config = loaded.map_err(|problem| problem.to_string())?.config.put_to_use();
        log_panics(&config);
        kept.zones.clone_from(&config.zones);
        kept.shared = config.shared.survivors();
        kept.logs.forget_unused();
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
            config,
            kept,
            workers: Vec::new(),
            sockets: of_descriptors(given.sockets)?,
            adoption: Arc::new(Mutex::new(given.adoption)),
            master,
            is_ending: false,
            deaths,
            early_deaths: 0,
        };
        server.manager.watch(&server.config, given.has_predecessor);
        server.start_workers()?;
        error::process(&server.config, Level::Notice, "start worker threads");
        Ok(server)
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
            let told = tokio::select! {
                Some(told) = told.recv() => told,
                word = next_word(&mut signals) => Told::Signal(word),
                _ = look.tick(), if self.is_ending => continue,
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
            Told::Order(Order::Reopen(logs)) => {
                self.tell(|| Command::Flush);
                self.kept.logs.take(logs);
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
                let answer = Answer::Here { version, id: std::process::id(), sockets };
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
        self.kept.logs.take(given.logs);
        let loaded = load_from_texts(&self.request, &self.kept, &given.texts);
        self.kept.logs.forget_unused();
        let Loaded { config, .. } = loaded.map_err(|problem| problem.to_string())?;
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
        for (worker, added) in self.workers.iter().zip(added) {
            let command = Command::Reload { config: Arc::clone(&config), added };
            let _ = worker.commands.send(command);
        }
        self.sockets.extend(opened);
        self.sockets.retain(|(address, _)| config.sockets.iter().any(|s| s.address == *address));
        if let Some(adoption) = given.adoption {
            *self.adoption.lock().unwrap_or_else(PoisonError::into_inner) = Some(adoption);
        }
        self.kept.zones.clone_from(&config.zones);
        self.kept.shared = config.shared.survivors();
        self.manager.watch(&config, given.has_predecessor);
        log_panics(&config);
        self.config = config;
        error::process(&self.config, Level::Notice, "reconfigured");
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
        // Not for longer than the worker uses it.
        let (config, deaths) = (Arc::clone(&self.config), self.deaths.clone());
        let work = move || {
            let run = || worker::run(config, listeners, receiver);
            if let Err(why) = tasks::guard(run).unwrap_or_else(|panicked| Err(panicked.to_string()))
            {
                // Nobody listens any more when the process ends.
                let _ = deaths.send(Told::Death { thread: std::thread::current().id(), why });
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
        log("worker thread started again");
        Ok(())
    }

    /// No connection is taken any more.
    fn end(&mut self, command: impl Fn() -> Command) {
        self.is_ending = true;
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
