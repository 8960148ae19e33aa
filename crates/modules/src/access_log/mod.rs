//! Access logs: formats, conditions, and lines written once per round of a turn of the event loop.

mod named_files;

use crate::filters::compress::{Effort, compress};
use base16ct::upper;
use bytes::Bytes;
use named_files::{NamedFile, OpenFiles};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_conf::value;
use yorozu_kernel::base::{faults, limits, places, tasks};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::shared::{Shared, SharedType};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::logging::error;
use yorozu_kernel::logging::file::LogFile;
use yorozu_kernel::logging::syslog::Syslog;

/// The module.
pub const MODULE: Module = Module::new("http_log", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .sharing(&[SharedType::of::<Formats>(), SharedType::of::<Buffered>()]);

/// The format named `combined`, known without a `log_format`.
const COMBINED: &[u8] = b"$remote_addr - $remote_user [$time_local] \"$request\" $status \
    $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// How values are made safe for a line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EscapeStyle {
    /// `"`, `\` and control or non-ASCII bytes as `\xXX`; `-` for no value.
    #[default]
    Standard,
    /// As in a JSON string; nothing for no value.
    Json,
    /// As they are; nothing for no value.
    None,
}

/// A `log_format`.
#[derive(Clone, Debug)]
pub struct Format {
    template: Template,
    escape: EscapeStyle,
}

/// The formats by name.
#[derive(Debug, Default)]
pub struct Formats(HashMap<Bytes, Arc<Format>>);

impl Shared for Formats {
    const IS_FOR_LOADING: bool = true;

    fn place() -> &'static Place {
        place!()
    }
}

/// `buffer=` and `flush=`, and the level of compression.
type Buffering = (Option<(usize, Duration)>, Option<u8>);

/// How the lines for a file wait, and how they are compressed: all of its `access_log` lines agree.
#[derive(Debug, Default)]
struct Buffered(HashMap<PathBuf, Buffering>);

impl Shared for Buffered {
    const IS_FOR_LOADING: bool = true;

    fn place() -> &'static Place {
        place!()
    }
}

/// Where lines go.
#[derive(Clone, Debug)]
enum Destination {
    File(Arc<LogFile>),
    Path(NamedFile),
    Syslog(Arc<Syslog>),
}

/// One `access_log` line.
#[derive(Clone, Debug)]
pub struct AccessLog {
    destination: Destination,
    /// Level of compression of what is written at once.
    gzip: Option<u8>,
    format: Arc<Format>,
    condition: Option<Template>,
    /// `buffer=` and `flush=`: lines may wait so long.
    flush: Option<(usize, Duration)>,
}

/// What a block's `access_log` lines say.
#[derive(Clone, Debug)]
pub enum AccessLogs {
    /// `access_log off`; as nginx, which opens the files that other lines name all the same.
    Off(Vec<AccessLog>),
    /// To these logs.
    To(Vec<AccessLog>),
}

impl Setting for AccessLogs {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.word(0) == b"off" {
            return match args.words.get(1) {
                Some(word) => Err(args.invalid_parameter(word)),
                None => Ok(Self::Off(Vec::new())),
            };
        }
        Ok(Self::To(vec![AccessLog::from_args(args)?]))
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        match (Self::from_args(args)?, &mut *self) {
            (Self::To(mut more), Self::To(logs) | Self::Off(logs)) => logs.append(&mut more),
            // As nginx: it holds wherever it stands.
            (Self::Off(_), Self::To(logs)) => *self = Self::Off(std::mem::take(logs)),
            (Self::Off(_), Self::Off(_)) => {}
        }
        Ok(())
    }
}

impl AccessLog {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let destination = Destination::from_args(args)?;
        let name = args.words.get(1).cloned().unwrap_or_else(|| Bytes::from_static(b"combined"));
        let format = Formats::find(args.env, &name)?;
        let mut log = Self { destination, gzip: None, format, condition: None, flush: None };
        for word in args.words.iter().skip(2) {
            log.parameter(word, args)?;
        }
        let has = |name: &[u8]| args.words.iter().skip(2).any(|word| word.starts_with(name));
        if has(b"flush=") && !has(b"buffer=") && !has(b"gzip") {
            let name = args.text(0);
            return Err(ValueError(format!("no buffer is defined for access_log \"{name}\"")));
        }
        let is_buffered = log.flush.is_some();
        match log.destination {
            Destination::File(_) if is_buffered => {
                let (path, how) = (path_of(args), (log.flush, log.gzip));
                let known = &mut args.env.shared::<Buffered>().0;
                match known.entry(path).or_insert(how) == &how {
                    true => Ok(log),
                    false => Err(ValueError(format!(
                        "access_log \"{}\" already defined with conflicting parameters",
                        args.text(0)
                    ))),
                }
            }
            Destination::Path(_) if is_buffered => {
                Err(ValueError::new("buffered logs cannot have variables in name"))
            }
            Destination::Syslog(_) if is_buffered => {
                Err(ValueError::new("logs to syslog cannot be buffered"))
            }
            _ => Ok(log),
        }
    }

    fn parameter(&mut self, word: &Bytes, args: &Args<'_>) -> Result<(), ValueError> {
        let broken = |what: &str| {
            let value = word.splitn(2, |byte| *byte == b'=').last().unwrap_or_default();
            ValueError(format!("invalid {what} \"{}\"", String::from_utf8_lossy(value)))
        };
        let (bytes, time) = self.flush.unwrap_or((limits::LOG_BATCH_BYTES, Duration::from_secs(1)));
        if let Some(size) = word.strip_prefix(b"buffer=") {
            let size = value::size(size).filter(|size| *size > 0);
            let size = size.and_then(|size| usize::try_from(size).ok());
            self.flush = Some((size.ok_or_else(|| broken("buffer size"))?, time));
        } else if let Some(time) = word.strip_prefix(b"flush=") {
            let time = value::short_time(time).filter(|time| !time.is_zero());
            self.flush = Some((bytes, time.ok_or_else(|| broken("flush time"))?));
        } else if let Some(condition) = word.strip_prefix(b"if=") {
            self.condition = Some(Template::compile(condition, args.env)?);
        } else if let Some(level) = word.strip_prefix(b"gzip") {
            let level = match level.strip_prefix(b"=") {
                None if level.is_empty() => Some(1),
                None => None,
                Some(level) => value::number(level).and_then(|level| u8::try_from(level).ok()),
            };
            let level = level.filter(|level| (1..=9).contains(level));
            self.gzip = Some(level.ok_or_else(|| broken("compression level"))?);
            self.flush = Some((bytes, time));
        } else {
            return Err(args.invalid_parameter(word));
        }
        Ok(())
    }
}

/// The file of a line. The one that stands for a missing line is where the system's logs are.
fn path_of(args: &Args<'_>) -> PathBuf {
    match &*args.text(0) {
        "logs/access.log" => places::log(&args.env.prefix, "access.log"),
        path => args.env.prefix_path(path),
    }
}

impl Destination {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let path = args.text(0);
        if let Some(syslog) = path.strip_prefix("syslog:") {
            return Ok(Self::Syslog(Arc::new(Syslog::parse(syslog).map_err(ValueError)?)));
        }
        if path.contains('$') {
            return Ok(Self::Path(NamedFile::from_args(args)?));
        }
        let path = path_of(args);
        let file = args.env.logs.get(&path).map_err(|problem| {
            ValueError(format!(
                "open() \"{}\" failed ({})",
                path.display(),
                error::os_error(&problem)
            ))
        })?;
        Ok(Self::File(file))
    }

    /// Writes one line at once.
    fn write(&self, exchange: &mut Exchange, line: &[u8]) {
        match self {
            Self::File(file) => file.write(line),
            Self::Syslog(syslog) => syslog.send(None, line),
            Self::Path(named) => {
                let conf = Rc::clone(&exchange.conf);
                let open_files = &conf.location(exchange.location).of::<Conf>().open_log_file_cache;
                named.write(exchange, open_files, line);
            }
        }
    }
}

impl Formats {
    fn find(env: &Env, name: &Bytes) -> Result<Arc<Format>, ValueError> {
        if let Some(format) = env.shared::<Formats>().0.get(name) {
            return Ok(Arc::clone(format));
        }
        if &name[..] != b"combined" {
            return Err(ValueError(format!(
                "unknown log format \"{}\"",
                String::from_utf8_lossy(name)
            )));
        }
        let template = Template::compile(COMBINED, env)?;
        let format = Arc::new(Format { template, escape: EscapeStyle::Standard });
        env.shared::<Formats>().0.insert(name.clone(), Arc::clone(&format));
        Ok(format)
    }
}

settings! {
    /// File, format and condition of the access log; `off` for none.
    access_log: AccessLogs = "logs/access.log combined", ONE_OR_MORE, HTTP_SERVER_LOCATION | LOCATION_IF | LIMIT_EXCEPT;
    /// How many logs whose paths have variables stay open, and how long.
    open_log_file_cache: OpenFiles = "off", ONE_TO_FOUR, HTTP_SERVER_LOCATION;
}

/// Rows that are no plain settings.
pub const OTHERS: &[Directive] = &[Directive::row(
    "log_format",
    HTTP,
    Arity::TWO_OR_MORE,
    Action::Set(|_, args| log_format(args)),
    "Names a format for access logs.",
)];

fn log_format(args: &Args<'_>) -> Result<(), ValueError> {
    let name = args.words[0].clone();
    let mut words = &args.words[1..];
    let mut escape = EscapeStyle::Standard;
    if let Some(style) = words[0].strip_prefix(b"escape=") {
        escape = match style {
            b"default" => EscapeStyle::Standard,
            b"json" => EscapeStyle::Json,
            b"none" => EscapeStyle::None,
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(ValueError(format!("unknown log format escaping \"{other}\"")));
            }
        };
        words = &words[1..];
    }
    let template = Template::compile_all(words, args.env)?;
    let format = Arc::new(Format { template, escape });
    let is_known = args.env.shared::<Formats>().0.insert(name.clone(), format).is_some();
    if is_known || name == "combined" {
        let name = String::from_utf8_lossy(&name);
        return Err(ValueError(format!("duplicate \"log_format\" name \"{name}\"")));
    }
    Ok(())
}

/// Whether the value is free of characters that any style escapes.
fn is_plain(value: &[u8]) -> bool {
    match value.len() {
        16.. => all_plain::<16>(value),
        8.. => all_plain::<8>(value),
        4.. => all_plain::<4>(value),
        _ => are_plain(value),
    }
}

/// The same of one with this many bytes at least, which are looked at together; some twice, not one after the other.
fn all_plain<const COUNT: usize>(value: &[u8]) -> bool {
    let mut pieces = value.chunks_exact(COUNT).filter_map(<[u8]>::first_chunk::<COUNT>);
    pieces.all(|piece| are_plain(piece))
        && value.last_chunk::<COUNT>().is_none_or(|last| are_plain(last))
}

#[inline]
fn are_plain(bytes: &[u8]) -> bool {
    // Without a way out of the loop, so that it takes many bytes at once.
    bytes.iter().fold(true, |is_plain, byte| {
        is_plain & (32..127).contains(byte) & (*byte != b'"') & (*byte != b'\\')
    })
}

fn escape_standard(value: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(value) = value else { return out.push(b'-') };
    for &byte in value {
        if !(32..127).contains(&byte) || byte == b'"' || byte == b'\\' {
            put_digits(out, b"\\x", byte);
        } else {
            out.push(byte);
        }
    }
}

fn escape_json(value: Option<&[u8]>, out: &mut Vec<u8>) {
    for &byte in value.unwrap_or_default() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x08 => out.extend(b"\\b"),
            0x0c => out.extend(b"\\f"),
            0..32 => put_digits(out, b"\\u00", byte),
            _ => out.push(byte),
        }
    }
}

fn put_digits(out: &mut Vec<u8>, before: &[u8], byte: u8) {
    out.extend_from_slice(before);
    out.extend_from_slice(upper::encode(&[byte], &mut [0; 2]).unwrap_or_default());
}

fn escape_none(value: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(value.unwrap_or_default());
}

/// Lines of one worker that wait for the round's end, or longer if the log says so.
struct Pending {
    file: Arc<LogFile>,
    gzip: Option<u8>,
    lines: Vec<u8>,
    /// With `buffer=`: when the lines are due.
    due: Option<Instant>,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
}

/// Writes the request's line to the logs of its location.
pub fn log(exchange: &mut Exchange) {
    let conf = Rc::clone(&exchange.conf);
    let AccessLogs::To(logs) = &conf.location(exchange.location).of::<Conf>().access_log else {
        return;
    };
    for log in logs {
        let is_left_out =
            |condition: &Template| !condition.is_true(exchange) && !exchange.doubt.is_open();
        if log.condition.as_ref().is_some_and(is_left_out) {
            continue;
        }
        PENDING.with_borrow_mut(|pending| append(log, exchange, pending));
    }
}

fn append(log: &AccessLog, exchange: &mut Exchange, pending: &mut Vec<Pending>) {
    let escape = match log.format.escape {
        EscapeStyle::Standard => escape_standard,
        EscapeStyle::Json => escape_json,
        EscapeStyle::None => escape_none,
    };
    let Destination::File(file) = &log.destination else {
        let mut line = Vec::new();
        log.format.template.append_escaped(exchange, &mut line, is_plain, escape);
        line.push(b'\n');
        return log.destination.write(exchange, &line);
    };
    let at =
        pending.iter().position(|batch| Arc::ptr_eq(&batch.file, file) && batch.gzip == log.gzip);
    let at = at.unwrap_or_else(|| {
        let (file, gzip) = (Arc::clone(file), log.gzip);
        pending.push(Pending { file, gzip, lines: Vec::new(), due: None });
        pending.len() - 1
    });
    let batch = &mut pending[at];
    if let (true, Some((_, delay))) = (batch.lines.is_empty(), log.flush) {
        batch.due = Some(Instant::now() + delay);
        // A turn at that time, though nothing else may happen.
        tasks::of_request(tokio::time::sleep(delay + Duration::from_millis(1)));
    }
    let mut line = Line { start: batch.lines.len(), lines: &mut batch.lines, is_whole: false };
    faults::point("log");
    log.format.template.append_escaped(exchange, line.lines, is_plain, escape);
    line.lines.push(b'\n');
    line.is_whole = true;
    drop(line);
    let bytes_max = log.flush.map_or(limits::LOG_BATCH_BYTES, |(size, _)| size.max(1));
    if batch.lines.len() >= bytes_max {
        write(batch);
    }
}

/// A line in the making: one that a panic cuts short is none.
struct Line<'a> {
    lines: &'a mut Vec<u8>,
    start: usize,
    is_whole: bool,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.lines.truncate(self.start);
        }
    }
}

fn write(batch: &mut Pending) {
    match batch.gzip {
        // Each write is a separate gzip member: the file can be read up to its last whole write.
        Some(level) => {
            let coded = compress(&batch.lines, Effort::gzip(level));
            batch.file.write_as(&coded, || batch.lines.split(|byte| *byte == b'\n').count() - 1);
        }
        None => batch.file.write(&batch.lines),
    }
    batch.lines.clear();
    batch.due = None;
}

/// Writes what is due; called at the end of each round of a turn.
pub fn flush() {
    PENDING.with_borrow_mut(|pending| {
        for batch in pending.iter_mut().filter(|batch| !batch.lines.is_empty()) {
            if batch.due.is_none_or(|due| due <= Instant::now()) {
                write(batch);
            }
        }
    });
}

/// Writes everything: the logs are about to be opened again, a configuration is gone, or the worker ends.
pub fn flush_all() {
    // The thread may be at its end, and what it had with it.
    let _ = PENDING.try_with(|pending| {
        let Ok(mut pending) = pending.try_borrow_mut() else { return };
        pending.iter_mut().filter(|batch| !batch.lines.is_empty()).for_each(write);
        pending.clear();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_made_safe_for_a_line() {
        let run = |escape: fn(Option<&[u8]>, &mut Vec<u8>), value: Option<&[u8]>| {
            let mut out = Vec::new();
            escape(value, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(run(escape_standard, Some(b"a\"\n\xe3\\")), "a\\x22\\x0A\\xE3\\x5C");
        assert_eq!(run(escape_standard, None), "-");
        assert_eq!(run(escape_json, Some(b"a\"\n\x01")), "a\\\"\\n\\u0001");
        assert_eq!(run(escape_none, None), "");
    }

    #[test]
    fn a_value_is_plain_as_byte_by_byte() {
        for length in 0..40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut value = vec![b'x'; length];
                    value[at] = byte;
                    assert_eq!(is_plain(&value), are_plain(&value), "{length} {at} {byte}");
                }
            }
        }
        assert!(is_plain(b""));
    }
}
