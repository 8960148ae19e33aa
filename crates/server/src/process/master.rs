//! The master process: it reads configurations, opens what they need, keeps a server process running, and obeys signals.
//! It serves no byte of any client.

mod succession;

use super::adoption::{self, Orphan};
use super::handover::{self, Inherited};
use super::limits as process_limits;
use super::message::{self, Answer, Passed};
use super::pid::{self, PidFile};
use super::plan::Plan;
use super::server_process::{Said, ServerProcess, WORDS_MAX, Word, pause};
use super::signals::{self, Signals};
use super::sockets::{Sockets, bind_all};
use crate::config::load::{Kept, Request};
use sd_notify::NotifyState;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use yorozu_connection::listen::{self, Listener};
use yorozu_kernel::base::{faults, limits, memory, tasks};
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error::os_error;

/// The master, as its one thread holds it.
struct Master {
    request: Request,
    kept: Kept,
    plan: Plan,
    /// Every socket: they stay open while a server is replaced.
    sockets: Sockets,
    /// Addresses at which connections over QUIC may outlive their `listen`.
    draining: Vec<ListenAddress>,
    /// Leads to the server before this one, for datagrams of its connections.
    link: Option<UnixDatagram>,
    server: Option<ServerProcess>,
    /// How many there were.
    serial: u64,
    /// Told what servers say.
    tell: mpsc::Sender<Said>,
    /// A configuration that the server was given and has not answered.
    asked: Option<Asked>,
    /// Whether the configuration is to be read once more, after that answer.
    reads_again: bool,
    /// What signals said before the first server was ready.
    early_words: Vec<signals::Word>,
    /// Whether the server refused what it was started with.
    has_refused: bool,
    /// When a server that was told to stop is ended.
    kills_at: Option<Instant>,
    /// When a server is started in the place of one that ended.
    restarts_at: Option<Instant>,
    /// How many ended soon after their start, one after the other.
    early_deaths: u32,
    /// The new binary, between SIGUSR2 and its end.
    successor: Option<Child>,
    /// Whether the server process of a new binary goes on without its master, while this one ends.
    has_heir: bool,
    /// Where the pid file of the old binary is, for as long as that runs beside this one.
    predecessor: Option<PathBuf>,
    /// Whether no server is to run while the process stays (SIGWINCH).
    is_resting: bool,
    is_ending: bool,
    pid: PidFile,
    adoption: Option<adoption::Place>,
}

/// A configuration on its way to the server.
struct Asked {
    plan: Plan,
    opened: Sockets,
}

/// Runs the server until it is told to end. `detach` goes into the background, if the configuration wants that: it is
/// called once that was read, and returns whether this process is the one that stays.
///
/// # Errors
/// One line for the operator: a fault of the configuration, a taken port, a pid file that cannot be written.
pub fn run(
    request: Request,
    detach: impl FnOnce(bool) -> Result<bool, String>,
    on_ready: impl FnOnce(),
) -> Result<(), String> {
    let inherited = Inherited::take();
    let kept = Kept::for_master();
    let plan = Plan::read(&request, &kept)?;
    if !detach(plan.goes_into_background)? {
        return Ok(());
    }
    memory::give_back_soon();
    let log = plan.error_log.clone();
    tasks::tell_panics(move |text| log.process(Level::Alert, text));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|problem| os_error(&problem))?;
    let mut signals = Signals::install(&runtime)
        .map_err(|problem| format!("sigaction() failed ({})", os_error(&problem)))?;
    let (tell, mut said) = mpsc::channel(WORDS_MAX);
    let log = plan.error_log.clone();
    let mut master = Master::begin(request, kept, plan, inherited, tell)
        .inspect_err(|problem| log.process(Level::Emerg, problem))?;
    let begun = runtime.block_on(master.wait_for_first(&mut signals, &mut said));
    if let Err(why) = &begun {
        master.log(Level::Emerg, why);
    } else {
        on_ready();
        tell_systemd(&[NotifyState::Ready]);
        runtime.block_on(master.serve(signals, said));
    }
    master.clear_up();
    begun
}

/// Tells systemd how the service stands, if it wants to know (`Type=notify`).
fn tell_systemd(state: &[NotifyState<'_>]) {
    // A failure could be reported only the same way.
    let _ = sd_notify::notify(state);
}

impl Master {
    fn begin(
        request: Request,
        kept: Kept,
        plan: Plan,
        inherited: Inherited,
        tell: mpsc::Sender<Said>,
    ) -> Result<Self, String> {
        let mut inherited = inherited;
        let mut orphan = find_orphan(&plan);
        if let Some(orphan) = &mut orphan {
            let sockets = std::mem::take(&mut orphan.sockets).into_iter();
            let sockets = sockets.filter_map(|socket| handover::of_descriptor(socket).ok());
            inherited = inherited.join(sockets.collect());
        }
        let sockets = bind_all(&plan.sockets, &[], plan.workers, &mut inherited, &plan.error_log)?;
        let link = inherited.link.take();
        drop(inherited);
        let pid = PidFile::write(&plan.pid)?;
        let adoption = if plan.is_apart { open_adoption(&plan.pid, &plan) } else { None };
        let beside = pid::oldbin(&plan.pid);
        let mut master = Self {
            request,
            kept,
            plan,
            sockets,
            draining: Vec::new(),
            link,
            server: None,
            serial: 0,
            tell,
            asked: None,
            reads_again: false,
            early_words: Vec::new(),
            has_refused: false,
            kills_at: None,
            restarts_at: None,
            early_deaths: 0,
            successor: None,
            has_heir: false,
            predecessor: Some(beside.clone()).filter(|_| handover::has_predecessor()),
            is_resting: false,
            is_ending: false,
            pid,
            adoption,
        };
        match orphan {
            Some(orphan) if orphan.is_same && orphan.sender.user == master.plan.user() => {
                master.adopt(orphan)?;
            }
            Some(orphan) => {
                let text = format!(
                    "the server process {} has no master, and is of another version or user: it finishes, and another one begins",
                    orphan.sender.id
                );
                master.log(Level::Notice, &text);
                master.start_server()?;
                let _ = message::end(&orphan.channel, true);
            }
            None => master.start_server()?,
        }
        if !handover::is_upgrade() {
            // Of two binaries whose masters were both killed.
            master.dismiss(adoption::reach(&beside));
        }
        Ok(master)
    }

    fn log(&self, level: Level, text: &str) {
        self.plan.error_log.process(level, text);
    }

    // --- the server process ----------------------------------------------------------------------

    /// Starts a server process, and gives it the configuration.
    fn start_server(&mut self) -> Result<(), String> {
        self.serial += 1;
        self.has_refused = false;
        let begun = ServerProcess::start(&self.plan, &self.request, self.serial, &self.tell)?;
        self.server = Some(begun);
        // What it writes to may have been lost with what ended the one before.
        self.plan.prepare_folders();
        self.configure(&self.plan, self.sockets.iter(), self.serial > 1)
    }

    /// Takes over a server whose master is gone.
    fn adopt(&mut self, orphan: Orphan) -> Result<(), String> {
        let text = format!("the server process {} has no master: taken over", orphan.sender.id);
        self.log(Level::Notice, &text);
        self.serial += 1;
        self.server = Some(ServerProcess::adopt(orphan, self.serial, &self.tell)?);
        self.plan.prepare_folders();
        self.configure(&self.plan, self.sockets.iter(), false)
    }

    /// Gives the server a configuration.
    fn configure<'a>(
        &'a self,
        plan: &'a Plan,
        sockets: impl Iterator<Item = &'a (ListenAddress, Listener)>,
        is_replacement: bool,
    ) -> Result<(), String> {
        let Some(server) = &self.server else { return Ok(()) };
        server.configure(Passed {
            texts: &plan.texts,
            logs: self.kept.logs.lent(),
            sockets: sockets.map(|(_, socket)| socket.as_fd()).collect(),
            adoption: self.adoption.as_ref().map(|adoption| &adoption.socket),
            link: self.link.as_ref().filter(|_| handover::has_predecessor()),
            has_predecessor: handover::has_predecessor(),
            is_replacement,
        })
    }

    /// Waits until the first server is ready; what signals say meanwhile is obeyed then, but for an end, which is one. A server that
    /// ends before that may have served: it is replaced, until one too many has ended.
    async fn wait_for_first(
        &mut self,
        signals: &mut Signals,
        said: &mut mpsc::Receiver<Said>,
    ) -> Result<(), String> {
        loop {
            tokio::select! {
                word = signals.next() => match word {
                    signals::Word::Quit | signals::Word::Stop(_) => {
                        self.obey(word);
                        return Ok(());
                    }
                    word => self.early_words.push(word),
                },
                Some(Said(_, word)) = said.recv() => match word {
                    Word::Answer(Answer::Ready) => return Ok(()),
                    Word::Answer(Answer::Refused(why)) => return Err(why),
                    Word::Answer(_) => {}
                    Word::Ended(how) => {
                        self.early_deaths += 1;
                        if !pause(self.early_deaths).is_zero() {
                            return Err(format!("the server process {how}"));
                        }
                        self.log(Level::Alert, &format!("server process {how}"));
                        self.start_another()?;
                    }
                },
            }
        }
    }

    /// The server has ended: another one is started, unless none is to run.
    fn replace_server(&mut self, how: &str) {
        let lived = self.server.take().map(|server| server.started.elapsed());
        if self.is_ending || self.is_resting {
            return self.log(Level::Notice, &format!("server process {how}"));
        }
        self.log(Level::Alert, &format!("server process {how}"));
        // The next one is started by what is read now.
        if std::mem::take(&mut self.reads_again) {
            self.asked = None;
            self.reload();
        } else if self.asked.take().is_some() {
            let text = "the server process ended while it took the new configuration: the old one stays in use";
            self.log(Level::Emerg, text);
        }
        let is_early = lived.is_none_or(|lived| lived < limits::RESTART_INTERVAL);
        self.early_deaths = if is_early { self.early_deaths.saturating_add(1) } else { 0 };
        let pause = pause(self.early_deaths);
        if !pause.is_zero() {
            let text = format!(
                "server processes end soon after their start: the next one is started in {} ms",
                pause.as_millis()
            );
            self.log(Level::Alert, &text);
        }
        self.restarts_at = Some(Instant::now() + pause);
    }

    fn restart(&mut self) {
        self.restarts_at = None;
        if self.is_ending || self.is_resting || self.server.is_some() {
            return;
        }
        if let Err(problem) = self.start_another() {
            self.log(Level::Alert, &problem);
            self.restarts_at = Some(Instant::now() + limits::RESTART_PAUSE_MAX);
        }
    }

    /// Starts a server process in the place of one that ended.
    fn start_another(&mut self) -> Result<(), String> {
        self.start_server()?;
        let id = self.server.as_ref().map_or(0, |server| server.id);
        self.log(Level::Notice, &format!("start server process {id}"));
        Ok(())
    }

    /// Removes what has a name.
    fn clear_up(&self) {
        // As nginx: another process that has the sockets goes on with them.
        if self.successor.is_none() && !self.has_heir && !handover::has_predecessor() {
            listen::remove(self.addresses());
        }
        self.adoption.iter().for_each(adoption::Place::remove);
    }

    // --- what is said ----------------------------------------------------------------------------

    async fn serve(&mut self, mut signals: Signals, mut said: mpsc::Receiver<Said>) {
        for word in std::mem::take(&mut self.early_words) {
            self.obey(word);
        }
        // A child's end has no event of its own.
        let mut look = tokio::time::interval(Duration::from_millis(20));
        while self.is_resting || !self.is_ending || self.server.is_some() {
            let (restart, kill) = (at(self.restarts_at), at(self.kills_at));
            tokio::select! {
                word = signals.next() => {
                    if tasks::guard(|| self.obey(word)).is_err() {
                        self.log(Level::Alert, "a signal's handling ended by a panic");
                    }
                }
                Some(Said(serial, word)) = said.recv() => {
                    match word {
                        _ if self.server.as_ref().is_none_or(|server| server.serial != serial) => {}
                        Word::Answer(answer) => self.hear(answer),
                        Word::Ended(how) => self.replace_server(&how),
                    }
                }
                () = restart => self.restart(),
                () = kill => {
                    self.kills_at = None;
                    self.server.iter().for_each(ServerProcess::kill);
                }
                _ = look.tick(), if self.successor.is_some() || self.predecessor.is_some() => {
                    self.look_after_successor();
                    self.look_after_predecessor();
                }
            }
        }
        self.log(Level::Notice, "exit");
    }

    fn hear(&mut self, answer: Answer) {
        match (answer, self.asked.take()) {
            (Answer::Alive, asked) => {
                self.asked = asked;
                return tell_systemd(&[NotifyState::Watchdog]);
            }
            (Answer::Ready, Some(asked)) => self.take_over(asked),
            (Answer::Refused(why), Some(_)) => self.log(Level::Emerg, &why),
            // Of one that was started again: what it was given is the present plan.
            (Answer::Ready | Answer::Here { .. }, None) => return,
            // It ends, and another one is started.
            (Answer::Refused(why), None) => {
                if !std::mem::replace(&mut self.has_refused, true) {
                    self.log(Level::Emerg, &why);
                }
                return;
            }
            (Answer::Here { .. }, asked) => {
                self.asked = asked;
                return;
            }
        }
        tell_systemd(&[NotifyState::Ready]);
        if std::mem::take(&mut self.reads_again) {
            self.reload();
        }
    }

    fn obey(&mut self, word: signals::Word) {
        use signals::Word;
        faults::point("signal");
        match word {
            // As nginx: a process that rests behind a new binary takes up work as it was.
            Word::Reload if self.is_resting && self.successor.is_some() => self.wake(),
            Word::Reload => {
                self.log(Level::Notice, "signal 1 (SIGHUP) received, reconfiguring");
                if self.is_resting {
                    self.reads_again = true;
                    return self.wake();
                }
                self.reload();
            }
            Word::Reopen => self.reopen(),
            Word::Quit => {
                self.log(Level::Notice, "signal 3 (SIGQUIT) received, shutting down");
                self.end(true);
            }
            Word::Stop(signal) => {
                self.log(Level::Notice, &format!("signal {signal} received, exiting"));
                self.end(false);
            }
            Word::Upgrade => self.upgrade(),
            Word::Rest => {
                let text = "signal 28 (SIGWINCH) received, gracefully shutting down the workers";
                self.log(Level::Notice, text);
                self.rest();
            }
        }
    }

    // --- a reload --------------------------------------------------------------------------------

    /// Reads the configuration again; the old one stays in use if the new one is refused.
    fn reload(&mut self) {
        // As nginx: one that ends opens nothing any more.
        if self.is_ending {
            return;
        }
        if self.asked.is_some() {
            self.reads_again = true;
            return;
        }
        if let Ok(time) = NotifyState::monotonic_usec_now() {
            tell_systemd(&[NotifyState::Reloading, time]);
        }
        if let Err(problem) = self.ask() {
            self.log(Level::Emerg, &problem);
            tell_systemd(&[NotifyState::Ready]);
        }
    }

    /// Opens what a configuration that was read again needs, and gives it to the server.
    fn ask(&mut self) -> Result<(), String> {
        let plan = Plan::read(&self.request, &self.kept);
        memory::give_back_soon();
        let mut plan = plan?;
        if plan.pid != self.plan.pid {
            pid::look(&plan.pid)?;
        }
        if plan.identity != self.plan.identity {
            self.log(Level::Warn, "a change of \"user\" takes effect at the next start");
            plan.identity.clone_from(&self.plan.identity);
        }
        let old: Vec<_> = self.addresses().collect();
        let mut none = Inherited::default();
        none.draining.clone_from(&self.draining);
        let workers = self.plan.workers;
        let opened = bind_all(&plan.sockets, &old, workers, &mut none, &self.plan.error_log)?;
        plan.prepare_folders();
        if self.server.is_none() {
            // The next one is started by it.
            self.take_over(Asked { plan, opened });
            tell_systemd(&[NotifyState::Ready]);
            return Ok(());
        }
        self.configure(&plan, opened.iter().chain(&self.sockets), false)?;
        self.asked = Some(Asked { plan, opened });
        Ok(())
    }

    fn addresses(&self) -> impl Iterator<Item = ListenAddress> {
        self.plan.sockets.iter().map(|socket| socket.address.clone())
    }

    /// The server serves by a configuration: it is the present one.
    fn take_over(&mut self, Asked { plan, opened }: Asked) {
        let stays = |address: &ListenAddress| plan.sockets.iter().any(|s| s.address == *address);
        listen::remove(self.addresses().filter(|address| !stays(address)));
        let goes =
            |address: &ListenAddress| matches!(address, ListenAddress::Udp(_)) && !stays(address);
        let going: Vec<_> = self.addresses().filter(goes).collect();
        self.draining.retain(|address| !stays(address) && !going.contains(address));
        self.draining.extend(going);
        // One that was told to end meanwhile has closed its own.
        if !self.is_ending {
            self.sockets.extend(opened);
        }
        self.sockets.retain(|(address, _)| stays(address));
        // One that was taken over sets its own.
        if let Some(server) = self.server.as_ref().filter(|server| !server.is_adopted) {
            process_limits::set(&plan.limits, server.id);
        }
        if plan.pid != self.plan.pid {
            self.move_pid(&plan.pid);
        }
        self.plan.replace(plan);
        let log = self.plan.error_log.clone();
        tasks::tell_panics(move |text| log.process(Level::Alert, text));
    }

    /// Opens the logs again, as root, and gives them to the server.
    fn reopen(&self) {
        self.log(Level::Notice, "signal 10 (SIGUSR1) received, reopening logs");
        for (path, problem) in self.kept.logs.reopen() {
            let text = format!("open() \"{}\" failed ({})", path.display(), os_error(&problem));
            self.log(Level::Emerg, &text);
        }
        if let Some(identity) = &self.plan.identity {
            self.kept.logs.give_to(identity.uid);
        }
        let Some(server) = &self.server else { return };
        if let Err(problem) = server.reopen(&self.kept.logs.lent()) {
            self.log(Level::Alert, &problem);
        }
    }

    /// No connection is taken any more. Where another binary's master is there the service goes on.
    fn end(&mut self, is_graceful: bool) {
        if self.successor.is_none() && !handover::has_predecessor() {
            tell_systemd(&[NotifyState::Stopping]);
        }
        self.is_ending = true;
        self.is_resting = false;
        self.sockets.clear();
        self.tell_end(is_graceful);
    }

    fn tell_end(&mut self, is_graceful: bool) {
        self.server.iter().for_each(|server| server.tell_end(is_graceful));
        self.kills_at = (!is_graceful).then(|| Instant::now() + limits::STOP_PATIENCE);
    }
}

/// Returns at a time, or never.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// A server process without a master, if there is one where this configuration's would be.
fn find_orphan(plan: &Plan) -> Option<Orphan> {
    if plan.is_apart && !handover::is_upgrade() { adoption::find(&plan.pid) } else { None }
}

fn open_adoption(pid: &Path, plan: &Plan) -> Option<adoption::Place> {
    let opened = adoption::Place::open(pid).inspect_err(|problem| {
        let text = format!(
            "no socket beside the pid file ({}): should this process die, no other one can take its server over",
            os_error(problem)
        );
        plan.error_log.process(Level::Warn, &text);
    });
    opened.ok()
}
