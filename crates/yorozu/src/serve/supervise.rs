//! Keeps a site's processes running: PHP-FPM and the server itself. What dies is started again; a signal ends all of it.

use super::watch::Watch;
use crate::signals;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long one that ended at once is left alone before it is started again: doubled each time, up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long processes have to end before they are killed.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long a start may take until the site answers.
const START_MAX: Duration = Duration::from_secs(60);
/// How often what waits is looked at.
const AGAIN: Duration = Duration::from_millis(20);
/// How often processes of PHP are measured.
const MEASURED_EVERY: Duration = Duration::from_secs(60);

/// A process of the site.
pub(super) struct Process {
    name: &'static str,
    command: Vec<OsString>,
    /// Variables that it has beside those of this process.
    environment: Vec<(&'static str, String)>,
    /// The signal that has it read its configuration again.
    reload: Signal,
    child: Option<Child>,
    /// Groups of processes whose first was killed, and which the next start takes over.
    left: Vec<Pid>,
    started: Instant,
    pause: Duration,
}

impl Process {
    /// One that is not started yet. It ends with this process, however that ends: by way of `yorozu child`.
    pub(super) fn new(
        name: &'static str,
        program: &Path,
        args: Vec<OsString>,
        environment: Vec<(&'static str, String)>,
        reload: Signal,
    ) -> Self {
        let own = std::env::current_exe().unwrap_or_else(|_| "yorozu".into());
        let mut command = vec![own.into_os_string(), "child".into()];
        command.push(program.into());
        command.extend(args);
        let (started, pause) = (Instant::now(), PAUSE);
        Self { name, command, environment, reload, child: None, left: Vec::new(), started, pause }
    }

    fn start(&mut self) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("{} was not started: {why}", self.name);
        let (program, args) = self.command.split_first().expect("a program");
        let mut command = Command::new(program);
        // A group of its own: what a terminal sends reaches this process alone, which ends the others in order. Pipes: a log that
        // is opened by name (/dev/stdout) may be a journal's socket, or another user's file.
        command.args(args).stdin(Stdio::null()).process_group(0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || pass_on(out, std::io::stdout()));
        }
        if let Some(out) = child.stderr.take() {
            std::thread::spawn(move || pass_on(out, std::io::stderr()));
        }
        self.started = Instant::now();
        self.child = Some(child);
        Ok(())
    }

    fn id(&self) -> Option<Pid> {
        let id = self.child.as_ref()?.id();
        i32::try_from(id).ok().map(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.id() {
            let _ = kill(id, signal);
        }
    }

    /// Kills what is left of it, its own processes included.
    fn end(&mut self) {
        if let Some(id) = self.id() {
            let _ = killpg(id, Signal::SIGKILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Ends what went on without its first process and was taken over by no other.
    fn end_left(&mut self) {
        let end = Instant::now() + FAREWELL;
        for id in self.left.drain(..) {
            let _ = killpg(id, Signal::SIGQUIT);
            while killpg(id, None).is_ok() && Instant::now() < end {
                std::thread::sleep(AGAIN);
            }
            let _ = killpg(id, Signal::SIGKILL);
        }
    }

    /// How it ended, if it did.
    fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.left.retain(|id| killpg(*id, None).is_ok());
        match self.id() {
            // A server without its master goes on, and the next master takes it over.
            Some(id) if self.name == SERVER && status.signal().is_some() => {
                self.left.push(id);
                self.child = None;
            }
            _ => self.end(),
        }
        Some(status.to_string())
    }
}

/// Passes on what a process says, and goes on to read it where there is no reader any more.
fn pass_on(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let _ = to.write_all(&buffer[..count]);
    }
}

/// What the processes are looked after with.
pub(super) struct Supervisor {
    processes: Vec<Process>,
    signals: SignalFd,
    watch: Option<Watch>,
}

/// What ends a supervision.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Ended {
    /// A signal.
    Asked,
    /// A signal that asks for the configuration to be read again.
    Reload,
    /// A file that is watched was changed.
    Changed(PathBuf),
}

impl Supervisor {
    /// # Errors
    /// Signals cannot be waited for.
    pub(super) fn new(processes: Vec<Process>, watch: Option<Watch>) -> Result<Self, String> {
        let signals = signals::readable(&[
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGQUIT,
            Signal::SIGHUP,
            Signal::SIGCHLD,
        ])?;
        Ok(Self { processes, signals, watch })
    }

    /// Starts each process when the one before answers. `answers` is asked by the process's name.
    ///
    /// # Errors
    /// One of them ended, or does not answer.
    pub(super) fn start(&mut self, mut answers: impl FnMut(&str) -> bool) -> Result<bool, String> {
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            process.start()?;
            let end = Instant::now() + START_MAX;
            loop {
                let process = &mut self.processes[at];
                if let Some(how) = process.ended() {
                    return Err(format!("{} ended at once ({how})", process.name));
                }
                if answers(process.name) {
                    break;
                }
                if Instant::now() > end {
                    return Err(format!("{} does not answer", process.name));
                }
                if self.wait(AGAIN) == Some(Ended::Asked) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Waits so long at most; what a signal asks for.
    fn wait(&mut self, longest: Duration) -> Option<Ended> {
        let timeout = Timespec::try_from(longest).ok();
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        polled.extend(self.watch.as_ref().map(|watch| PollFd::new(watch, PollFlags::IN)));
        let _ = poll(&mut polled, timeout.as_ref());
        let mut asked = self.watch.as_mut().and_then(Watch::changed).map(Ended::Changed);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match i32::try_from(signal.ssi_signo)
                .ok()
                .and_then(|number| Signal::try_from(number).ok())
            {
                Some(Signal::SIGCHLD) | None => {}
                Some(Signal::SIGHUP) if asked != Some(Ended::Asked) => asked = Some(Ended::Reload),
                Some(Signal::SIGHUP) => {}
                Some(_) => asked = Some(Ended::Asked),
            }
        }
        asked
    }

    /// Looks after the processes until a signal asks for something. `measure` is called with the process of PHP now and then.
    pub(super) fn run(&mut self, mut measure: impl FnMut(Pid)) -> Ended {
        let mut measured = Instant::now();
        loop {
            let mut longest = MEASURED_EVERY;
            for process in &mut self.processes {
                longest = longest.min(look_after(process));
            }
            if measured.elapsed() >= MEASURED_EVERY {
                measured = Instant::now();
                self.measure(&mut measure);
            }
            if let Some(ended) = self.wait(longest.max(AGAIN)) {
                self.measure(&mut measure);
                return ended;
            }
        }
    }

    fn measure(&self, measure: &mut impl FnMut(Pid)) {
        if let Some(id) = self.processes.iter().find(|it| it.name == PHP).and_then(Process::id) {
            measure(id);
        }
    }

    /// Has each read its configuration again.
    pub(super) fn reload(&self) {
        for process in &self.processes {
            process.signal(process.reload);
        }
    }
}

/// The name of PHP-FPM among the processes.
pub(super) const PHP: &str = "PHP-FPM";
/// The name of the server among the processes.
pub(super) const SERVER: &str = "the server";

/// Starts one again that ended; how long there is nothing to do.
fn look_after(process: &mut Process) -> Duration {
    if let Some(how) = process.ended() {
        let was_well = process.started.elapsed() >= PAUSE_MAX;
        process.pause = if was_well { PAUSE } else { (process.pause * 2).min(PAUSE_MAX) };
        process.started = Instant::now();
        say!(
            "yorozu: [alert] {} ended ({how}): it is started again in {} s",
            process.name,
            process.pause.as_secs()
        );
    }
    if process.child.is_some() {
        return PAUSE_MAX;
    }
    let left = process.pause.saturating_sub(process.started.elapsed());
    if left.is_zero() {
        match process.start() {
            Ok(()) => say!("yorozu: [notice] {} is started again", process.name),
            Err(why) => {
                process.started = Instant::now();
                say!("yorozu: [alert] {why}");
            }
        }
        return PAUSE_MAX;
    }
    left
}

impl Drop for Supervisor {
    /// Ends all of them, the last that was started first: PHP is there as long as the server has requests for it.
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            // What has begun is finished, by the server and by PHP.
            process.signal(Signal::SIGQUIT);
            let end = Instant::now() + FAREWELL;
            while process.child.is_some() && process.ended().is_none() && Instant::now() < end {
                std::thread::sleep(AGAIN);
            }
            process.end();
            process.end_left();
        }
    }
}

/// Becomes the program, which is ended when the process that started this one ends, however it does.
///
/// # Errors
/// There is no such program.
pub(crate) fn become_child(command: &[OsString]) -> Result<(), String> {
    let (program, args) = command.split_first().ok_or("\"child\" needs a program")?;
    let parent = std::os::unix::process::parent_id();
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if std::os::unix::process::parent_id() != parent {
        return Ok(());
    }
    // The parent waits for these by their file, and has them blocked.
    let _ = SigSet::all().thread_unblock();
    let why = Command::new(program).args(args).exec();
    Err(format!("{}: {why}", program.to_string_lossy()))
}

/// What a process of PHP has for itself, in KB: of those that a PHP-FPM started, the largest.
pub(super) fn largest_child(of: Pid) -> Option<u64> {
    let is_child = |stat: &str| {
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&of.to_string())
    };
    let folders = std::fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let children = folders.filter(|folder| {
        std::fs::read_to_string(folder.join("stat")).is_ok_and(|stat| is_child(&stat))
    });
    let own = |folder: std::path::PathBuf| {
        let text = std::fs::read_to_string(folder.join("smaps_rollup")).ok()?;
        let lines = text.lines().filter(|line| line.starts_with("Private_"));
        let sizes = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Some(sizes.sum::<u64>())
    };
    children.filter_map(own).max()
}

/// Opens a file that says which process serves a site; while it is open, no other can.
///
/// # Errors
/// The text of who does.
pub(super) fn lock(path: &Path) -> Result<nix::fcntl::Flock<File>, String> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = opened.map_err(|why| format!("open() \"{}\" failed ({why})", path.display()))?;
    let mut said = String::new();
    let _ = file.read_to_string(&mut said);
    let kind = nix::fcntl::FlockArg::LockExclusiveNonblock;
    nix::fcntl::Flock::lock(file, kind).map_err(|_| said.trim().to_owned())
}
