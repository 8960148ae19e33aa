//! The server process as the master has it.

use super::adoption::Orphan;
use super::channel::Channel;
use super::message::{self, Answer, Passed};
use super::plan::Plan;
use super::{server, start};
use crate::config::load::Request;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use yorozu_kernel::base::limits;
use yorozu_kernel::logging::error::os_error;

/// A server process, or the thread that stands for one.
pub(super) struct ServerProcess {
    pub serial: u64,
    pub id: u32,
    pub channel: Arc<Channel>,
    body: Body,
    pub started: Instant,
}

enum Body {
    Child(Child),
    Thread(std::thread::JoinHandle<Result<(), String>>),
    /// The child of a master that is gone.
    Adopted,
}

/// What the server of a serial number said; `None`: it is gone.
pub(super) struct Said(pub u64, pub Option<Answer>);

impl ServerProcess {
    /// Starts one of a plan, or a thread in its place.
    ///
    /// # Errors
    /// As the system refuses it.
    pub(super) fn start(
        plan: &Plan,
        request: &Request,
        serial: u64,
        tell: &mpsc::UnboundedSender<Said>,
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
        Orphan { channel, id, .. }: Orphan,
        serial: u64,
        tell: &mpsc::UnboundedSender<Said>,
    ) -> Result<Self, String> {
        Self::new(channel, id, Body::Adopted, serial, tell)
    }

    /// Listens to it on a thread of its own.
    fn new(
        channel: Channel,
        id: u32,
        body: Body,
        serial: u64,
        tell: &mpsc::UnboundedSender<Said>,
    ) -> Result<Self, String> {
        let channel = Arc::new(channel);
        let (hears, tell) = (Arc::clone(&channel), tell.clone());
        let listen = move || {
            loop {
                // A word of another version is no better than none.
                let answer = message::next_answer(&hears).unwrap_or(None);
                let is_gone = answer.is_none();
                if tell.send(Said(serial, answer)).is_err() || is_gone {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("listens to server".to_owned());
        thread.spawn(listen).map_err(|problem| os_error(&problem))?;
        Ok(Self { serial, id, channel, body, started: Instant::now() })
    }

    /// Gives it a configuration.
    ///
    /// # Errors
    /// It is gone, or no descriptor is left.
    pub(super) fn configure(&self, passed: Passed<'_>) -> Result<(), String> {
        message::configure(&self.channel, passed)
            .map_err(|problem| format!("sendmsg() failed ({})", os_error(&problem)))
    }

    /// How it ended, in nginx's words; waits for that.
    pub(super) fn end(self) -> String {
        let id = self.id;
        match self.body {
            Body::Child(mut child) => match child.wait() {
                Ok(status) => format!("{id} {}", end_of(status)),
                Err(problem) => format!("{id} ended ({})", os_error(&problem)),
            },
            Body::Thread(thread) => match thread.join() {
                Ok(Ok(())) => "thread ended".to_owned(),
                Ok(Err(why)) => format!("thread ended: {why}"),
                Err(_) => "thread ended by a panic".to_owned(),
            },
            Body::Adopted => format!("{id} ended"),
        }
    }
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
