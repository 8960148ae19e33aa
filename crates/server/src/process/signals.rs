//! Signals: HUP reload, USR1 reopen logs, USR2 start a new binary, WINCH let it serve, QUIT finish, TERM and INT stop.

use super::Server;
use super::worker::Command;
use crate::logging::error::{self, Level};
use std::io;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

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

    /// Serves signals until the workers have ended.
    pub(super) fn serve(self, server: &mut Server) {
        let Self { runtime, hangup, quit, terminate, interrupt, reopen, upgrade, window } = self;
        let streams = [hangup, quit, terminate, interrupt, reopen, upgrade, window];
        runtime.block_on(run(server, streams));
    }
}

async fn run(server: &mut Server, streams: [Signal; 7]) {
    let [mut hangup, mut quit, mut terminate, mut interrupt, mut reopen, mut upgrade, mut window] =
        streams;
    // A thread's end has no event of its own.
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let mut is_ending = false;
    while server.is_resting || !server.is_ended() {
        let log = |text: &str| error::process(&server.config, Level::Notice, text);
        tokio::select! {
            // As nginx: who rests behind a new binary takes up work as it was.
            _ = hangup.recv() => if server.is_resting { server.wake() } else { server.reload() },
            _ = reopen.recv() => server.reopen(),
            _ = quit.recv() => {
                log("signal 3 (SIGQUIT) received, shutting down");
                is_ending = true;
                server.end(|| Command::Quit);
            }
            _ = terminate.recv() => {
                log("signal 15 (SIGTERM) received, exiting");
                is_ending = true;
                server.end(|| Command::Stop);
            }
            _ = interrupt.recv() => {
                log("signal 2 (SIGINT) received, exiting");
                is_ending = true;
                server.end(|| Command::Stop);
            }
            _ = upgrade.recv() => server.upgrade(),
            _ = window.recv() => {
                log("signal 28 (SIGWINCH) received, gracefully shutting down the workers");
                server.rest();
            }
            _ = look.tick(), if is_ending || server.successor.is_some() => {
                server.look_after_successor();
            }
        }
    }
    error::process(&server.config, Level::Notice, "exit");
}
