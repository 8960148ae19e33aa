//! `yorozu top`: the console's figures in a terminal.
//!
//! The terminal is written to as every one since the VT100 understands, and is as it was when this ends, also by a signal
//! or a panic.

mod screen;

use crate::control::{Ask, Control};
use crate::output;
use crate::signals;
use clap::Args;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, OptionalActions, Termios};
use screen::Screen;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The stream of events, without requests: none has this status.
const NO_REQUESTS: &str = "/console/events?status=999";

/// How long a server is asked again that ended, or has another configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The figures of the running server.
#[derive(Debug, Args)]
pub(crate) struct Top;

impl Ask for Top {
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String> {
        if is_json {
            let figures = control.text("GET", "/console/figures", "")?;
            return output::show(&format!("{}\n", figures.trim_end()));
        }
        if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            return Err("\"top\" needs a terminal; \"top --json\" has the same figures".to_owned());
        }
        let events = control.open(NO_REQUESTS)?;
        let signals = signals::readable(&[
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGWINCH,
        ])?;
        let raw = Raw::begin().map_err(|problem| format!("tcsetattr() failed ({problem})"))?;
        let ended = show(control, events, &signals);
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

fn show(
    control: &Control,
    mut events: BufReader<UnixStream>,
    signals: &SignalFd,
) -> Result<(), String> {
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
            match open_again(control, signals, &screen)? {
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
    control: &Control,
    signals: &SignalFd,
    screen: &Screen,
) -> Result<Option<BufReader<UnixStream>>, String> {
    write(screen.draw(size()).as_bytes());
    let until = Instant::now() + PATIENCE;
    loop {
        match control.open(NO_REQUESTS) {
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
