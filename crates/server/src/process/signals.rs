//! Signals: HUP reload, USR1 reopen logs, QUIT finish, TERM and INT stop.

use super::Server;
use super::worker::Command;
use crate::logging::error::{self, Level};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Serves signals until the workers have ended.
///
/// # Errors
/// The handlers cannot be installed.
pub(super) fn serve(server: &mut Server) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|problem| problem.to_string())?;
    runtime.block_on(run(server)).map_err(|problem| problem.to_string())
}

async fn run(server: &mut Server) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut reopen = signal(SignalKind::user_defined1())?;
    let mut upgrade = signal(SignalKind::user_defined2())?;
    let mut window = signal(SignalKind::window_change())?;
    // A thread's end has no event of its own.
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let mut is_ending = false;
    while !server.is_ended() {
        let log = |text: &str| error::process(&server.config, Level::Notice, text);
        tokio::select! {
            _ = hangup.recv() => server.reload(),
            _ = reopen.recv() => server.reopen(),
            _ = quit.recv() => {
                log("signal 3 (SIGQUIT) received, shutting down");
                is_ending = true;
                server.tell(|| Command::Quit);
            }
            _ = terminate.recv() => {
                log("signal 15 (SIGTERM) received, exiting");
                is_ending = true;
                server.tell(|| Command::Stop);
            }
            _ = interrupt.recv() => {
                log("signal 2 (SIGINT) received, exiting");
                is_ending = true;
                server.tell(|| Command::Stop);
            }
            _ = upgrade.recv() => log("signal 12 (SIGUSR2) received: upgrading the binary is not supported"),
            _ = window.recv() => log("signal 28 (SIGWINCH) received, ignored"),
            _ = look.tick(), if is_ending => {}
        }
    }
    error::process(&server.config, Level::Notice, "exit");
    Ok(())
}
