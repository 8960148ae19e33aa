//! Signals that a command waits for beside other things.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Has these signals wait to be read, in place of what they do otherwise.
///
/// # Errors
/// The system refuses it.
pub(crate) fn readable(signals: &[Signal]) -> Result<SignalFd, String> {
    let failed = |what: &str, why: nix::Error| format!("{what} failed ({why})");
    let wanted: SigSet = signals.iter().copied().collect();
    wanted.thread_block().map_err(|why| failed("sigprocmask()", why))?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    SignalFd::with_flags(&wanted, flags).map_err(|why| failed("signalfd()", why))
}
