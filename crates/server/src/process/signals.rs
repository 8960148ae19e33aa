//! Signals: HUP reload, USR1 reopen logs, USR2 start a new binary, WINCH let it serve, QUIT finish, TERM and INT stop.

use super::worker::Command;
use super::{Death, Server};
use std::io;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use yorozu_kernel::base::{faults, tasks};
use yorozu_kernel::logging::error::{self, Level};

/// The handlers. Installed before anybody can know the process: a signal that comes while it
/// starts is served as soon as it runs, instead of ending it.
pub(super) struct Signals {
    runtime: Runtime,
    hangup: Signal,
    quit: Signal,
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
    upgrade: Signal,
    window: Signal,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// As the system refuses them.
    pub(super) fn install() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let hangup = signal(SignalKind::hangup())?;
        let quit = signal(SignalKind::quit())?;
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let reopen = signal(SignalKind::user_defined1())?;
        let upgrade = signal(SignalKind::user_defined2())?;
        let window = signal(SignalKind::window_change())?;
        drop(guard);
        Ok(Self { runtime, hangup, quit, terminate, interrupt, reopen, upgrade, window })
    }

    /// Serves signals, and starts workers in the place of those that died, until the workers have ended.
    ///
    /// # Errors
    /// It cannot go on.
    pub(super) fn serve(
        self,
        server: &mut Server,
        died: mpsc::UnboundedReceiver<Death>,
    ) -> Result<(), String> {
        let Self { runtime, hangup, quit, terminate, interrupt, reopen, upgrade, window } = self;
        let streams = [hangup, quit, terminate, interrupt, reopen, upgrade, window];
        runtime.block_on(run(server, streams, died))
    }
}

/// What the main thread is told.
#[derive(Clone, Copy)]
enum Told {
    Reload,
    Reopen,
    Quit,
    Stop(&'static str),
    Upgrade,
    Rest,
    Look,
}

impl Server {
    fn obey(&mut self, told: Told) {
        faults::point("signal");
        let log = |text: &str| error::process(&self.config, Level::Notice, text);
        match told {
            // As nginx: a process that rests behind a new binary takes up work as it was.
            Told::Reload if self.is_resting => self.wake(),
            Told::Reload => self.reload(),
            Told::Reopen => self.reopen(),
            Told::Quit => {
                log("signal 3 (SIGQUIT) received, shutting down");
                self.end(|| Command::Quit);
            }
            Told::Stop(signal) => {
                log(&format!("signal {signal} received, exiting"));
                self.end(|| Command::Stop);
            }
            Told::Upgrade => self.upgrade(),
            Told::Rest => {
                log("signal 28 (SIGWINCH) received, gracefully shutting down the workers");
                self.rest();
            }
            Told::Look => self.look_after_successor(),
        }
    }
}

async fn run(
    server: &mut Server,
    streams: [Signal; 7],
    mut died: mpsc::UnboundedReceiver<Death>,
) -> Result<(), String> {
    let [mut hangup, mut quit, mut terminate, mut interrupt, mut reopen, mut upgrade, mut window] =
        streams;
    // A thread's end has no event of its own.
    let mut look = tokio::time::interval(Duration::from_millis(20));
    while server.is_resting || !server.is_ending || !server.is_ended() {
        let told = tokio::select! {
            _ = hangup.recv() => Told::Reload,
            _ = reopen.recv() => Told::Reopen,
            _ = quit.recv() => Told::Quit,
            _ = terminate.recv() => Told::Stop("15 (SIGTERM)"),
            _ = interrupt.recv() => Told::Stop("2 (SIGINT)"),
            _ = upgrade.recv() => Told::Upgrade,
            _ = window.recv() => Told::Rest,
            _ = look.tick(), if server.is_ending || server.successor.is_some() => Told::Look,
            Some(death) = died.recv() => {
                server.replace(&death).await?;
                continue;
            }
        };
        if tasks::guard(|| server.obey(told)).is_err() {
            error::process(&server.config, Level::Alert, "a signal's handling ended by a panic");
        }
    }
    error::process(&server.config, Level::Notice, "exit");
    Ok(())
}
