//! The server process as the master has it.

#![expect(clippy::disallowed_methods, reason = "of a thread that serves no client")]

use super::adoption::Orphan;
use super::channel::Channel;
use super::message::{self, Answer, LentLogs, Passed};
use super::plan::Plan;
use super::{server, start};
use crate::config::load::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use yorozu_kernel::base::limits;
use yorozu_kernel::logging::error::os_error;

/// A server process, or the thread that stands for one. A thread of the master's listens to it until it has ended.
pub(super) struct ServerProcess {
    pub serial: u64,
    pub id: u32,
    pub started: Instant,
    pub is_adopted: bool,
    channel: Arc<Channel>,
    /// To end it by; `None` for a thread, and where the kernel has none (before Linux 5.3).
    process: Option<Arc<OwnedFd>>,
}

enum Body {
    Child(Child),
    Thread(JoinHandle<Result<(), String>>),
    /// The child of a master that is gone.
    Adopted,
}

/// What the server of a serial number said.
pub(super) struct Said(pub u64, pub Word);

pub(super) enum Word {
    Answer(Answer),
    /// It has ended: how, in nginx's words.
    Ended(String),
}

/// Words that may wait: a server that says more waits itself.
pub(super) const WORDS_MAX: usize = 16;
/// How long a server may live that has closed its channel; chosen.
const ENDING: Duration = Duration::from_secs(1);

impl ServerProcess {
    /// Starts one of a plan, or a thread in its place.
    ///
    /// # Errors
    /// As the system refuses it.
    pub(super) fn start(
        plan: &Plan,
        request: &Request,
        serial: u64,
        tell: &mpsc::Sender<Said>,
    ) -> Result<Self, String> {
        let (ours, theirs) = Channel::pair()
            .map_err(|problem| format!("socketpair() failed ({})", os_error(&problem)))?;
        let (id, body) = if plan.is_apart {
            let child = start::start(plan, theirs)?;
            (child.id(), Body::Child(child))
        } else {
            let request = request.clone();
            let thread = std::thread::Builder::new().name("server".to_owned());
            let thread = thread.spawn(move || server::serve(request, theirs, false));
            (std::process::id(), Body::Thread(thread.map_err(|problem| os_error(&problem))?))
        };
        Self::new(ours, id, body, serial, tell)
    }

    /// One whose master is gone.
    ///
    /// # Errors
    /// As the system refuses it.
    pub(super) fn adopt(
        Orphan { channel, sender, .. }: Orphan,
        serial: u64,
        tell: &mpsc::Sender<Said>,
    ) -> Result<Self, String> {
        Self::new(channel, sender.id, Body::Adopted, serial, tell)
    }

    fn new(
        channel: Channel,
        id: u32,
        body: Body,
        serial: u64,
        tell: &mpsc::Sender<Said>,
    ) -> Result<Self, String> {
        let channel = Arc::new(channel);
        let is_process = !matches!(body, Body::Thread(_));
        let process = if is_process { pidfd(id).map(Arc::new) } else { None };
        let is_adopted = matches!(body, Body::Adopted);
        let (hears, tell, of_it) = (Arc::clone(&channel), tell.clone(), process.clone());
        let listen = move || {
            // A word of another version is no better than none.
            while let Ok(Some(answer)) = message::next_answer(&hears) {
                if tell.blocking_send(Said(serial, Word::Answer(answer))).is_err() {
                    break;
                }
            }
            hears.shut();
            let how = end_of_body(body, id, of_it.as_deref());
            let _ = tell.blocking_send(Said(serial, Word::Ended(how)));
        };
        let thread = std::thread::Builder::new().name("listens to server".to_owned());
        thread.spawn(listen).map_err(|problem| os_error(&problem))?;
        Ok(Self { serial, id, channel, process, is_adopted, started: Instant::now() })
    }

    /// Gives it a configuration.
    ///
    /// # Errors
    /// It is gone or takes nothing, or no descriptor is left.
    pub(super) fn configure(&self, passed: Passed<'_>) -> Result<(), String> {
        message::configure(&self.channel, passed).map_err(|problem| {
            format!("the server process takes no orders ({})", os_error(&problem))
        })
    }

    /// Has it write to other logs.
    ///
    /// # Errors
    /// As [`ServerProcess::configure`].
    pub(super) fn reopen(&self, logs: &LentLogs) -> Result<(), String> {
        message::reopen(&self.channel, logs).map_err(|problem| {
            format!("the server process takes no orders ({})", os_error(&problem))
        })
    }

    /// Tells it that another one will read its UDP sockets, and over what that one says so.
    ///
    /// # Errors
    /// As [`ServerProcess::configure`].
    pub(super) fn succeed(&self, link: &OwnedFd) -> Result<(), String> {
        message::succeed(&self.channel, link).map_err(|problem| {
            format!("the server process takes no orders ({})", os_error(&problem))
        })
    }

    /// Tells it where another master comes, should this one be gone.
    ///
    /// # Errors
    /// As [`ServerProcess::configure`].
    pub(super) fn wait_at(&self, place: &OwnedFd) -> Result<(), String> {
        message::wait_at(&self.channel, place).map_err(|problem| {
            format!("the server process takes no orders ({})", os_error(&problem))
        })
    }

    /// Tells it to end; a server process that takes no orders is sent a signal.
    pub(super) fn tell_end(&self, is_graceful: bool) {
        if message::end(&self.channel, is_graceful).is_err() {
            self.signal(if is_graceful { Signal::QUIT } else { Signal::TERM });
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            // One that is gone says so.
            let _ = pidfd_send_signal(&**process, signal);
        }
    }
}

fn pidfd(id: u32) -> Option<OwnedFd> {
    let id = Pid::from_raw(i32::try_from(id).ok()?)?;
    pidfd_open(id, PidfdFlags::empty()).ok()
}

/// Waits for the end of what closed its channel, and brings it about if that takes long; how it ended, in nginx's words.
fn end_of_body(body: Body, id: u32, process: Option<&OwnedFd>) -> String {
    let end = Instant::now() + ENDING;
    let is_late = || {
        std::thread::sleep(Duration::from_millis(1));
        Instant::now() > end
    };
    match body {
        Body::Child(mut child) => {
            while matches!(child.try_wait(), Ok(None)) && !is_late() {}
            // It may have ended: then nothing is done.
            let _ = child.kill();
            match child.wait() {
                Ok(status) => format!("{id} {}", end_of(status)),
                Err(problem) => format!("{id} ended ({})", os_error(&problem)),
            }
        }
        Body::Thread(thread) => match thread.join() {
            Ok(Ok(())) => "thread ended".to_owned(),
            Ok(Err(why)) => format!("thread ended: {why}"),
            Err(_) => "thread ended by a panic".to_owned(),
        },
        Body::Adopted => {
            let Some(process) = process else { return format!("{id} ended") };
            let runs = || pidfd_has_not_ended(process);
            while runs() && !is_late() {}
            if runs() {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            format!("{id} ended")
        }
    }
}

/// Whether the process of a descriptor runs: the descriptor can be read from once it has ended.
fn pidfd_has_not_ended(process: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut wanted, Some(&Timespec::default())), Ok(0))
}

/// nginx's words for the end of a process.
fn end_of(status: ExitStatus) -> String {
    let core = if status.core_dumped() { " (core dumped)" } else { "" };
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("exited on signal {signal}{core}"),
        (None, code) => format!("exited with code {}", code.unwrap_or_default()),
    }
}

/// The pause before the next server process is started, after this many in a row that ended soon after their start.
pub(super) fn pause(early_deaths: u32) -> Duration {
    /// This many are replaced at once; chosen.
    const AT_ONCE: u32 = 3;
    match early_deaths.checked_sub(AT_ONCE + 1) {
        None => Duration::ZERO,
        Some(more) => {
            let factor = 2_u32.saturating_pow(more);
            limits::RESTART_PAUSE.saturating_mul(factor).min(limits::RESTART_PAUSE_MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_and_has_an_end() {
        let pauses = [0, 1, 3, 4, 5, 6, 10, 11, 100].map(|deaths| pause(deaths).as_millis());
        assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 6400, 10_000, 10_000]);
    }
}
