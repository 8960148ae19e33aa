//! Where the messages of a block go: `2026/11/21 08:57:21 [error] 12#12: *3 text`.

use super::clock;
use super::file::{LogFile, LogFiles};
use super::level::Level;
use super::memory::Ring;
use super::syslog::Syslog;
use super::verbatim::push_safe;
use crate::base::places;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use yorozu_conf::os_error;

/// Where messages go.
#[derive(Clone, Debug)]
pub enum Sink {
    File(Arc<LogFile>),
    Stderr,
    Syslog(Arc<Syslog>),
    Memory(Arc<Ring>),
    /// Nowhere: `error_log /dev/null crit` and the like are files; this is a log that failed.
    None,
}

/// The logs that one block writes to.
#[derive(Clone, Debug, Default)]
pub struct ErrorLogs(Vec<(Sink, Level)>);

/// One log with its level.
#[derive(Clone, Debug)]
pub struct Target(pub Sink, pub Level);

impl ErrorLogs {
    pub fn push(&mut self, target: Target) {
        self.0.push((target.0, target.1));
    }

    /// The log when the configuration names none: `-e`, or `logs/error.log`, else stderr.
    pub fn standard(logs: &LogFiles, named: Option<&Path>, prefix: &Path) -> Self {
        let path = named.map_or_else(|| places::log(prefix, "error.log"), |path| prefix.join(path));
        let sink = match logs.get(&path) {
            _ if named == Some(Path::new("stderr")) => Sink::Stderr,
            Ok(file) => Sink::File(file),
            Err(_) if logs.are_reported() => Sink::None,
            Err(error) => {
                eprintln!(
                    "yorozu: [alert] could not open error log file: open() \"{}\" failed ({})",
                    path.display(),
                    os_error(&error)
                );
                Sink::None
            }
        };
        Self(vec![(sink, Level::Error)])
    }

    /// Those in memory.
    pub fn rings(&self) -> impl Iterator<Item = &Arc<Ring>> {
        self.0.iter().filter_map(|(sink, _)| match sink {
            Sink::Memory(ring) => Some(ring),
            _ => None,
        })
    }

    /// Whether any log takes `level`.
    pub fn takes(&self, level: Level) -> bool {
        self.0.iter().any(|(_, least)| level <= *least)
    }

    pub(super) fn write_line(&self, level: Level, number: Option<u64>, text: &str) {
        let mut line = Vec::new();
        let pid = std::process::id();
        let _ = write!(line, "{} [{}] {pid}#{pid}: ", clock::now().error, level.name());
        if let Some(number) = number {
            let _ = write!(line, "*{number} ");
        }
        push_safe(&mut line, text);
        line.push(b'\n');
        for (sink, least) in &self.0 {
            match sink {
                _ if level > *least => {}
                // The process may be about to end.
                Sink::File(file) if level <= Level::Alert => file.write_now(&line),
                Sink::File(file) => file.write(&line),
                Sink::Stderr => {
                    let _ = std::io::stderr().write_all(&line);
                }
                Sink::Syslog(syslog) => syslog.send(Some(level), &line),
                Sink::Memory(ring) => ring.push(&line),
                Sink::None => {}
            }
        }
    }

    /// A message that belongs to no connection.
    pub fn process(&self, level: Level, text: &str) {
        if self.takes(level) {
            self.write_line(level, None, text);
        }
    }
}
