//! `yorozu top`: the console's figures in a terminal.
//!
//! The terminal is written to as every one since the VT100 understands, and is as it was when this ends, also by a signal
//! or a panic.

mod screen;

use crate::cache::{open, socket};
use crate::command_line::Options;
use crate::signals;
use lexopt::prelude::*;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, OptionalActions, Termios};
use screen::Screen;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The text of `yorozu top -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu [-p prefix] [-c filename] top

Shows what the running server does, each second: hit ratios, why requests were no hits, the pages that cost most, upstreams,
zones and purges; yorozu log shows requests. A reload or an upgrade does not end it, q or Ctrl-C does. The figures begin with the first look where the configuration has no metrics.
";

/// The stream of events, without requests: none has this status.
const NO_REQUESTS: &str = "/console/events?status=999";

/// How long a server is asked again that ended, or has another configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

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

    /// Shows until it is told to end, or the server ends for good.
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
        let signals = signals::readable(&[
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGWINCH,
        ])?;
        let raw = Raw::begin().map_err(|problem| format!("tcsetattr() failed ({problem})"))?;
        let ended = show(&path, events, &signals);
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

/// What the events' stream tells next.
#[derive(Default)]
enum Next {
    #[default]
    Other,
    Figures,
    Purges,
}

fn show(path: &Path, mut events: BufReader<UnixStream>, signals: &SignalFd) -> Result<(), String> {
    let mut screen = Screen::default();
    let mut next = Next::default();
    loop {
        // What is read ahead is a whole event or waits for the rest of it.
        if events.buffer().is_empty() {
            match wait(Some(events.get_ref()), signals, None, &screen) {
                Waited::End => return Ok(()),
                Waited::Event => {}
                Waited::Nothing => continue,
            }
        }
        let mut line = String::new();
        if !matches!(events.read_line(&mut line), Ok(1..)) {
            screen.is_lost = true;
            match open_again(path, signals, &screen)? {
                Some(again) => events = again,
                None => return Ok(()),
            }
            (screen.is_lost, next) = (false, Next::Other);
            continue;
        }
        if let Some(name) = line.strip_prefix("event: ") {
            next = match name.trim() {
                "figures" => Next::Figures,
                "purges" => Next::Purges,
                _ => Next::Other,
            };
        } else if let Some(text) = line.strip_prefix("data: ") {
            let value = serde_json::from_str(text).unwrap_or_default();
            match next {
                Next::Figures => screen.take(value),
                Next::Purges => screen.take_purges(&value),
                Next::Other => continue,
            }
            write(screen.draw(size()).as_bytes());
        }
    }
}

/// What was waited for.
enum Waited {
    /// A key or a signal ends it.
    End,
    /// The server said something, or ended.
    Event,
    Nothing,
}

/// Waits for the server, keys and signals; draws again for a terminal of another size.
fn wait(
    server: Option<&UnixStream>,
    signals: &SignalFd,
    most: Option<&Timespec>,
    screen: &Screen,
) -> Waited {
    let stdin = std::io::stdin();
    let mut all = vec![
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
    ];
    all.extend(server.map(|server| PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)));
    if poll(&mut all, most).is_err() {
        return Waited::Nothing;
    }
    let is_ready = |at: usize| all.get(at).is_some_and(|one| !one.revents().is_empty());
    let (key, signal, event) = (is_ready(0), is_ready(1), is_ready(2));
    if key && is_end() {
        return Waited::End;
    }
    if signal {
        while let Ok(Some(signal)) = signals.read_signal() {
            if signal.ssi_signo != Signal::SIGWINCH as u32 {
                return Waited::End;
            }
        }
        write(screen.draw(size()).as_bytes());
    }
    if event { Waited::Event } else { Waited::Nothing }
}

/// After a reload there is another configuration, after an upgrade another process. `None`: it is told to end meanwhile.
fn open_again(
    path: &Path,
    signals: &SignalFd,
    screen: &Screen,
) -> Result<Option<BufReader<UnixStream>>, String> {
    write(screen.draw(size()).as_bytes());
    let until = Instant::now() + PATIENCE;
    loop {
        match open(path, NO_REQUESTS) {
            Err(problem) if Instant::now() >= until => return Err(problem),
            Err(_) => {}
            Ok(events) => return Ok(Some(events)),
        }
        if let Waited::End = wait(None, signals, Some(&AGAIN), screen) {
            return Ok(None);
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
