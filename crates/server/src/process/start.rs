//! Starting the server process: this program again, which becomes another user, with one end of a channel as its standard input.

#![expect(clippy::disallowed_methods, reason = "before workers serve, and by the master process")]

use super::channel::Channel;
use super::handover::{LISTEN_VARIABLES, MARK as SUCCESSOR};
use super::plan::Plan;
use super::{daemon, given, limits, rights, server};
use crate::config::load::Request;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Set for the server process.
const MARK: &str = "YOROZU_SERVER";
/// The running program, whatever its file is by now, and whoever may enter its folder.
const PROGRAM: &str = "/proc/self/exe";

/// Whether this process was started as a server process.
pub fn is_server() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Serves as a server process.
///
/// # Errors
/// One line for the operator, unless the master was told.
pub fn run_server(request: Request) -> Result<(), String> {
    let failed = |problem: io::Error| format!("no channel to the master process ({problem})");
    let is_changed = rights::give_up();
    let channel: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    nix::unistd::dup2_stdin(&null).map_err(|problem| failed(problem.into()))?;
    if let Err(why) = is_changed {
        server::refuse(&Channel::from(channel), &why);
        return Err(String::new());
    }
    // It is there to be told apart in a list of processes.
    let _ = rustix::thread::set_name(c"yorozu: server");
    // What went wrong was said to the master, which says it to the operator, or is in the log.
    server::serve(request, Channel::from(channel), true).map_err(|_| String::new())
}

/// Starts the server process of a plan.
///
/// # Errors
/// As the system refuses it.
pub(super) fn start(plan: &Plan, channel: Channel) -> Result<Child, String> {
    let mut command = Command::new(PROGRAM);
    let mut args = std::env::args_os();
    command.arg0(args.next().unwrap_or_default()).args(args).env(MARK, "1");
    for variable in [&LISTEN_VARIABLES[..], &[SUCCESSOR, daemon::MARK, "NOTIFY_SOCKET"]].concat() {
        command.env_remove(variable);
    }
    command.stdin(Stdio::from(OwnedFd::from(channel)));
    if daemon::is_detached() {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    given::hand_file(&mut command);
    match &plan.identity {
        Some(identity) => command.env(rights::USER, identity.told()),
        None => command.env_remove(rights::USER),
    };
    let child = command.spawn();
    let child = child.map_err(|problem| format!("cannot start the server process ({problem})"))?;
    limits::set(&plan.limits, child.id());
    Ok(child)
}
