//! Going into the background: the process starts itself again, detached, and waits until that one
//! is ready. No fork: the new process begins with one thread and nothing inherited but its logs.

#![expect(clippy::disallowed_methods, reason = "before workers serve")]

use super::given;
use std::io::Read as _;
use std::process::{Command, Stdio};

/// Set for the detached process; its standard output is the pipe it reports to.
pub const MARK: &str = "YOROZU_DETACHED";

/// Whether this is the detached process.
pub fn is_detached() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the detached process and returns when it is ready.
///
/// # Errors
/// It cannot be started, or ended before it was ready; its own message is on standard error.
pub fn detach() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|problem| problem.to_string())?;
    let mut command = Command::new(program);
    given::hand_file(&mut command);
    let mut child = command
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|problem| format!("cannot start in the background: {problem}"))?;
    let mut ready = [0];
    let mut pipe = child.stdout.take().expect("asked for above");
    match pipe.read(&mut ready) {
        Ok(1) => Ok(()),
        _ => Err(String::new()),
    }
}

/// In the detached process: leaves the terminal and tells the waiting one that it is ready.
pub fn report_ready() {
    use std::io::Write as _;
    let _ = nix::unistd::setsid();
    let mut out = std::io::stdout();
    let _ = out.write_all(b"+").and_then(|()| out.flush());
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
}
