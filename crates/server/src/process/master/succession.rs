//! A new binary beside the old one (SIGUSR2), a master that rests meanwhile (SIGWINCH), and what is left of either when its
//! master is killed.
//!
//! Of two masters, the one that lives is the one that serves: a server process that the other one left behind is told to
//! end. No purge and no reload would ever reach it.

use super::super::{adoption, handover};
use super::{Master, tell_systemd};
use sd_notify::NotifyState;
use std::path::Path;
use yorozu_kernel::logging::error::{Level, os_error};

impl Master {
    /// Starts a new binary beside this one (SIGUSR2).
    pub(super) fn upgrade(&mut self) {
        if self.successor.is_some() || handover::has_predecessor() {
            let text = "the changing binary signal is ignored: you should shutdown or terminate before either old or new binary's process";
            return self.log(Level::Notice, text);
        }
        self.log(Level::Notice, "signal 12 (SIGUSR2) received, changing binary");
        if let Err(problem) = self.pid.step_aside() {
            let text = format!("rename() of the pid file failed ({})", os_error(&problem));
            self.log(Level::Warn, &text);
        }
        self.adoption.iter_mut().for_each(|place| place.follow(self.pid.path()));
        match handover::start(&self.sockets) {
            Ok((successor, link)) => {
                if let (Some(link), Some(server)) = (link, &self.server) {
                    // One that takes no orders has no connections for long.
                    let _ = server.succeed(&link.into());
                }
                let id = successor.id();
                self.log(Level::Notice, &format!("start new binary process {id}"));
                tell_systemd(&[NotifyState::MainPid(id)]);
                self.successor = Some(successor);
            }
            Err(problem) => {
                self.log(Level::Alert, &format!("execve() failed ({})", os_error(&problem)));
                self.step_back();
            }
        }
    }

    /// The pid file has its name again, and what lies beside it.
    fn step_back(&mut self) {
        if let Err(problem) = self.pid.step_back() {
            let text = format!("rename() of the pid file failed ({})", os_error(&problem));
            self.log(Level::Alert, &text);
        }
        self.adoption.iter_mut().for_each(|place| place.follow(self.pid.path()));
    }

    /// Looks whether the new binary has ended; then this one goes on alone.
    pub(super) fn look_after_successor(&mut self) {
        let Some(successor) = &mut self.successor else { return };
        let Ok(Some(status)) = successor.try_wait() else { return };
        let text = format!("new binary process {} ended ({status})", successor.id());
        self.log(Level::Notice, &text);
        let reached = adoption::reach(&self.plan.pid);
        self.successor = None;
        if self.is_ending {
            // What it left behind goes on, and has the names of sockets and of its own place.
            self.has_heir = reached.is_some();
            return;
        }
        // Before its place is this one's again.
        self.dismiss(reached);
        self.step_back();
        tell_systemd(&[NotifyState::MainPid(std::process::id())]);
        self.wake();
    }

    /// Ends the server, and waits for what comes (SIGWINCH): a new binary serves in the meantime.
    pub(super) fn rest(&mut self) {
        self.is_resting = true;
        self.tell_end(true);
    }

    /// Starts a server again after a [`Master::rest`].
    pub(super) fn wake(&mut self) {
        if !std::mem::take(&mut self.is_resting) {
            return;
        }
        // One that still finishes what it had does so without a master.
        self.server = None;
        // It does not take a configuration that it was given any more.
        let was_asked = self.asked.take().is_some();
        if std::mem::take(&mut self.reads_again) || was_asked {
            self.reload();
        }
        self.restart();
    }

    /// Looks whether the old binary has ended, of which nothing is to be left then.
    pub(super) fn look_after_predecessor(&mut self) {
        if handover::has_predecessor() {
            return;
        }
        if let Some(pid) = self.predecessor.take() {
            self.dismiss(adoption::reach(&pid));
        }
    }

    /// Tells a server process whose master is gone to end, once its requests are answered.
    pub(super) fn dismiss(&self, reached: Option<adoption::Reached>) {
        let Some(reached) = reached else { return };
        let log = self.plan.error_log.clone();
        let done = reached.dismiss(move |id| {
            let text = format!(
                "the server process {id} has no master, and another one serves: it finishes"
            );
            log.process(Level::Notice, &text);
        });
        if let Err(problem) = done {
            self.log(Level::Alert, &format!("cannot start a thread ({})", os_error(&problem)));
        }
    }

    // --- the pid file ----------------------------------------------------------------------------

    /// A reload names another pid file: it is written, and the place beside it goes with it.
    pub(super) fn move_pid(&mut self, path: &Path) {
        if let Err(problem) = self.pid.move_to(path) {
            return self.log(Level::Emerg, &problem);
        }
        if !self.plan.is_apart {
            return;
        }
        let old = self.adoption.take();
        self.adoption = super::open_adoption(self.pid.path(), &self.plan);
        if let (Some(place), Some(server)) = (&self.adoption, &self.server) {
            // One that takes no orders is replaced soon.
            let _ = server.wait_at(&place.socket);
        }
        old.iter().for_each(adoption::Place::remove);
    }
}
