//! `yorozu top`: the console's figures in a terminal.
//!
//! The terminal is written to as every one since the VT100 understands, and is as it was when this ends, also by a signal
//! or a panic.

mod screen;

use crate::cache::{open, socket};
use crate::command_line::Options;
use lexopt::prelude::*;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{self, OptionalActions, Termios};
use screen::Screen;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

/// The text of `yorozu top -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] top

Shows what the running server does, each second: hit ratios, why requests were no hits, the pages that cost most, zones and
upstreams. q or Ctrl-C ends it. The figures begin with the first look where the configuration has no metrics.
";

/// The stream of events, without requests: none has this status.
const NO_REQUESTS: &str = "/console/events?status=999";

/// `top` has no options.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Top;

impl Top {
    /// Reads what follows `top`; `None`: help is wanted.
    ///
    /// # Errors
    /// An option that there is not.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Option<Self>, String> {
        match parser.next().map_err(|problem| problem.to_string())? {
            None => Ok(Some(Self)),
            Some(Short('h' | '?') | Long("help")) => Ok(None),
            Some(other) => Err(other.unexpected().to_string()),
        }
    }

    /// Shows until it is told to end, or the server ends.
    ///
    /// # Errors
    /// There is no terminal, or no server.
    pub(crate) fn run(&self, options: &Options) -> Result<(), String> {
        if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            return Err(
                "\"top\" needs a terminal; GET /console/figures has the same as JSON".to_owned()
            );
        }
        let path = socket(options)?;
        let events = open(&path, NO_REQUESTS)?;
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("{what} failed ({why})");
        let mut wanted = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGWINCH] {
            wanted.add(signal);
        }
        wanted.thread_block().map_err(|problem| failed("sigprocmask()", &problem))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&wanted, flags);
        let signals = signals.map_err(|problem| failed("signalfd()", &problem))?;
        let raw = Raw::begin().map_err(|problem| failed("tcsetattr()", &problem))?;
        let ended = show(events, &signals);
        drop(raw);
        ended
    }
}

/// The terminal gives each key at once; as before when this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> rustix::io::Result<Self> {
        let stdin = std::io::stdin();
        let before = termios::tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        // Another screen, without cursor, and lines that do not go on in the next row.
        write(b"\x1b[?1049h\x1b[?25l\x1b[?7l");
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        write(b"\x1b[?7h\x1b[?25h\x1b[?1049l");
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

fn write(text: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text).and_then(|()| out.flush());
}

fn size() -> (usize, usize) {
    let size = termios::tcgetwinsize(std::io::stdout());
    let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
    // Some terminals do not know.
    let or = |number: u16, usual: usize| if number == 0 { usual } else { usize::from(number) };
    (or(columns, 80), or(rows, 24))
}

fn show(mut events: BufReader<UnixStream>, signals: &SignalFd) -> Result<(), String> {
    let stdin = std::io::stdin();
    let mut screen = Screen::default();
    let mut is_figures = false;
    loop {
        // What is read ahead is a whole event or waits for the rest of it.
        if events.buffer().is_empty() {
            let (key, signal, event) = {
                let socket = events.get_ref();
                let mut all = [
                    PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                ];
                if poll(&mut all, None).is_err() {
                    continue;
                }
                let is_ready = |at: usize| !all[at].revents().is_empty();
                (is_ready(0), is_ready(1), is_ready(2))
            };
            if key && is_end() {
                return Ok(());
            }
            if signal {
                while let Ok(Some(signal)) = signals.read_signal() {
                    if signal.ssi_signo != Signal::SIGWINCH as u32 {
                        return Ok(());
                    }
                }
                write(screen.draw(size()).as_bytes());
            }
            if !event {
                continue;
            }
        }
        let mut line = String::new();
        match events.read_line(&mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => {
                return Err("the server ended, or has another configuration".to_owned());
            }
        }
        if let Some(name) = line.strip_prefix("event: ") {
            is_figures = name.trim() == "figures";
        } else if let (Some(text), true) = (line.strip_prefix("data: "), is_figures) {
            screen.take(serde_json::from_str(text).unwrap_or_default());
            write(screen.draw(size()).as_bytes());
        }
    }
}

/// Whether a key was pressed that ends it, or there are no more keys.
fn is_end() -> bool {
    let mut keys = [0; 64];
    match std::io::stdin().lock().read(&mut keys) {
        Ok(count @ 1..) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 3)),
        Ok(0) | Err(_) => true,
    }
}
