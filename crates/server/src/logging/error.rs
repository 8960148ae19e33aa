//! The error log: `2026/11/21 08:57:21 [error] 12#12: *3 text, client: …`.

use super::clock;
use super::file::{LogFile, LogFiles};
use super::syslog::Syslog;
use crate::config::compiled::{Config, LocationId, ServerId, WorkerConf};
use crate::config::directive::{Args, ValueError};
use crate::exchange::{Client, Exchange, Remote};
use bytes::Bytes;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_wire::h1::{Span, slice};

pub use yorozu_conf::os_error;

/// Severity; a log takes its level and everything more severe.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    Emerg,
    Alert,
    Crit,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

impl Level {
    const NAMES: [(&'static str, Self); 8] = [
        ("emerg", Self::Emerg),
        ("alert", Self::Alert),
        ("crit", Self::Crit),
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("notice", Self::Notice),
        ("info", Self::Info),
        ("debug", Self::Debug),
    ];

    /// As in the log.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// The next level of less weight.
    pub fn below(self) -> Self {
        Self::NAMES.get(self as usize + 1).map_or(self, |(_, level)| *level)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        Self::NAMES.into_iter().find(|(name, _)| name.as_bytes() == text).map(|(_, level)| level)
    }
}

/// Where messages go.
#[derive(Clone, Debug)]
enum Sink {
    File(Arc<LogFile>),
    Stderr,
    Syslog(Arc<Syslog>),
    /// Nowhere: `error_log /dev/null crit` and the like are files; this is a log that failed.
    None,
}

/// The logs that one block writes to.
#[derive(Clone, Debug, Default)]
pub struct ErrorLogs(Vec<(Sink, Level)>);

/// One log with its level.
#[derive(Clone, Debug)]
pub struct Target(Sink, Level);

impl ErrorLogs {
    /// Reads `error_log file [level]`.
    ///
    /// # Errors
    /// An unknown level, or a file that cannot be opened.
    pub fn target(args: &Args<'_>) -> Result<Target, ValueError> {
        let level = match args.words.get(1) {
            None => Level::Error,
            Some(word) => Level::parse(word).ok_or_else(|| {
                ValueError(format!("invalid log level \"{}\"", String::from_utf8_lossy(word)))
            })?,
        };
        let path = args.text(0);
        if path == "stderr" {
            return Ok(Target(Sink::Stderr, level));
        }
        if let Some(syslog) = path.strip_prefix("syslog:") {
            let syslog = Syslog::parse(syslog).map_err(ValueError)?;
            return Ok(Target(Sink::Syslog(Arc::new(syslog)), level));
        }
        if path.starts_with("memory:") {
            return Err(ValueError(format!(
                "\"error_log {path}\" is not supported, expected a file, \"stderr\" or \"syslog:\""
            )));
        }
        let path = args.env.prefix_path(&path);
        let file = args.env.logs.get(&path).map_err(|error| {
            ValueError(format!("open() \"{}\" failed ({})", path.display(), os_error(&error)))
        })?;
        Ok(Target(Sink::File(file), level))
    }

    pub fn push(&mut self, target: Target) {
        self.0.push((target.0, target.1));
    }

    /// The log when the configuration names none: `-e`, or `logs/error.log`, else stderr.
    pub fn standard(logs: &LogFiles, named: Option<&Path>, prefix: &Path) -> Self {
        let path = named.map_or_else(|| prefix.join("logs/error.log"), |path| prefix.join(path));
        let sink = match logs.get(&path) {
            _ if named == Some(Path::new("stderr")) => Sink::Stderr,
            Ok(file) => Sink::File(file),
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

    /// Is any log interested in `level`?
    pub fn takes(&self, level: Level) -> bool {
        self.0.iter().any(|(_, least)| level <= *least)
    }

    fn write_line(&self, level: Level, number: Option<u64>, text: &str) {
        let mut line = String::new();
        let pid = std::process::id();
        let _ = write!(line, "{} [{}] {pid}#{pid}: ", clock::now().error, level.name());
        if let Some(number) = number {
            let _ = write!(line, "*{number} ");
        }
        push_safe(&mut line, text);
        line.push('\n');
        for (sink, least) in &self.0 {
            match sink {
                _ if level > *least => {}
                Sink::File(file) => file.write(line.as_bytes()),
                Sink::Stderr => {
                    let _ = std::io::stderr().write_all(line.as_bytes());
                }
                Sink::Syslog(syslog) => syslog.send(Some(level), line.as_bytes()),
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

    /// A message about a connection, outside any request.
    pub fn connection(&self, level: Level, client: &crate::exchange::Client, text: &str) {
        if self.takes(level) {
            let text =
                format!("{text}, client: {}, server: {}", client.remote.text, client.address);
            self.write_line(level, Some(client.number), &text);
        }
    }
}

/// Appends a text with its control characters as `\xXX`, as access logs have them: paths, names of users and
/// messages of applications shall neither begin lines of their own nor talk to the reader's terminal.
fn push_safe(line: &mut String, text: &str) {
    for run in text.split_inclusive(char::is_control) {
        let Some(control) = run.chars().next_back().filter(|last| last.is_control()) else {
            line.push_str(run);
            continue;
        };
        line.push_str(&run[..run.len() - control.len_utf8()]);
        for byte in control.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(line, "\\x{byte:02X}");
        }
    }
}

/// What a request's message is dressed with when the exchange itself is not at hand; cheap to make.
#[derive(Clone, Debug)]
pub struct Context {
    conf: Rc<WorkerConf>,
    server: ServerId,
    location: LocationId,
    client: Rc<Client>,
    remote: Rc<Remote>,
    /// The request's line and fields.
    head: Bytes,
    line: Span,
}

impl Context {
    pub fn of(exchange: &Exchange) -> Self {
        Self {
            conf: Rc::clone(&exchange.conf),
            server: exchange.server,
            location: exchange.location,
            client: Rc::clone(&exchange.client),
            remote: Rc::clone(&exchange.remote),
            head: exchange.request.head.clone(),
            line: exchange.request.line.clone(),
        }
    }

    fn logs(&self) -> &ErrorLogs {
        &self.conf.location(self.location).error_log
    }

    pub fn takes(&self, level: Level) -> bool {
        self.logs().takes(level)
    }

    /// Logs a message about the upstream; `peer` as `fastcgi://unix:/path:`.
    pub fn upstream(&self, level: Level, text: &str, peer: Option<&str>) {
        if !self.takes(level) {
            return;
        }
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut line = format!(
            "{text}, client: {}, server: {}, request: \"{}\"",
            self.remote.text,
            self.conf.server(self.server).name(),
            lossy(slice(&self.head, &self.line)),
        );
        if let Some(peer) = peer {
            let _ = write!(line, ", upstream: \"{peer}\"");
        }
        for (name, shown) in [("host", "host"), ("referer", "referrer")] {
            if let Some(value) = self.field(name) {
                let _ = write!(line, ", {shown}: \"{}\"", lossy(value));
            }
        }
        self.logs().write_line(level, Some(self.client.number), &line);
    }

    /// A field of the request, looked for in its bytes.
    fn field(&self, wanted: &str) -> Option<&[u8]> {
        let lines = self.head[self.line.end as usize..].split(|byte| *byte == b'\n');
        lines.into_iter().find_map(|line| {
            let (name, rest) = line.split_at_checked(wanted.len())?;
            let value = rest.strip_prefix(b":")?;
            name.eq_ignore_ascii_case(wanted.as_bytes()).then(|| value.trim_ascii())
        })
    }
}

fn tail(exchange: &Exchange) -> String {
    let server = exchange.conf.server(exchange.server);
    let request = &exchange.request;
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut text = format!(
        ", client: {}, server: {}, request: \"{}\"",
        exchange.remote.text,
        server.name(),
        lossy(request.line_text()),
    );
    if let Some(host) = request.field(b"host") {
        let _ = write!(text, ", host: \"{}\"", lossy(host));
    }
    if let Some(referrer) = request.field(b"referer") {
        let _ = write!(text, ", referrer: \"{}\"", lossy(referrer));
    }
    text
}

/// Logs a message about a request; one that is only asked about happens to nobody.
pub fn request(exchange: &Exchange, level: Level, text: &str) {
    let logs = &exchange.conf.location(exchange.location).error_log;
    if logs.takes(level) && !exchange.is_dry {
        logs.write_line(level, Some(exchange.client.number), &format!("{text}{}", tail(exchange)));
    }
}

/// Logs a message of the process to the main log.
pub fn process(config: &Config, level: Level, text: &str) {
    config.error_log.process(level, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let table = [
            (
                "open() \"/a\" failed, c\\d \u{e9}\u{20ac}",
                "open() \"/a\" failed, c\\d \u{e9}\u{20ac}",
            ),
            ("a\n[emerg] b", "a\\x0A[emerg] b"),
            ("\r\n\t\0\x1b[31m\x7f", "\\x0D\\x0A\\x09\\x00\\x1B[31m\\x7F"),
            // U+009B begins a terminal's sequences as ESC [ does.
            ("a\u{9b}31m", "a\\xC2\\x9B31m"),
            ("", ""),
        ];
        for (text, expected) in table {
            let mut line = "* ".to_owned();
            push_safe(&mut line, text);
            assert_eq!(line, format!("* {expected}"));
        }
    }
}
