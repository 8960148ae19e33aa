//! Directives of nginx's core module: the process, its logs, its events.

use super::block::Block;
use super::directive::*;
use super::place::{ModuleConf, Place, place};
use super::settings::{Compiling, ModuleDraft};
use super::types::{Offset, PrefixPath, Words, word_enum};
use crate::base::address::resolve;
use crate::base::places;
use crate::config::module::Module;
use crate::config::network::Network;
use crate::exchange::conf::Config;
use crate::logging::error_log::{ErrorLogs, Sink, Target};
use crate::logging::level::Level;
use crate::logging::syslog::Syslog;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use yorozu_conf::{os_error, value};

/// The module.
pub const MODULE: Module = Module::new("core", || [DIRECTIVES, OTHERS].concat());

word_enum! {
    /// `debug_points`
    DebugPoints {
        Stop = "stop",
        Abort = "abort",
    }
}

/// `worker_cpu_affinity auto [mask] | mask …`
#[derive(Clone)]
struct CpuMasks;

impl Setting for CpuMasks {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let masks = match args.words.split_first() {
            Some((first, masks)) if &first[..] == b"auto" => masks,
            _ => args.words,
        };
        let is_wrong = |byte: &&u8| !matches!(byte, b'0' | b'1' | b' ');
        match masks.iter().find_map(|mask| mask.iter().find(is_wrong)) {
            Some(byte) => Err(ValueError(format!(
                "invalid character \"{}\" in \"worker_cpu_affinity\"",
                char::from(*byte)
            ))),
            None => Ok(Self),
        }
    }
}

/// `worker_priority number`, which may be below 0.
#[derive(Clone, Debug)]
pub struct Nice;

impl Setting for Nice {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let word = args.word(0);
        let digits = word.strip_prefix(b"-").unwrap_or(word);
        value::number(digits).map(|_| Self).ok_or_else(|| args.invalid_number())
    }
}

/// Checks `thread_pool name threads=number [max_queue=number]`.
fn thread_pool(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let mut has_threads = false;
    for word in &args.words[1..] {
        let number = |prefix: &[u8]| word.strip_prefix(prefix).map(yorozu_conf::value::number);
        match (number(b"threads="), number(b"max_queue=")) {
            (Some(Some(1..)), _) => has_threads = true,
            (Some(_), _) => {
                let text = String::from_utf8_lossy(word);
                return Err(ValueError(format!("invalid threads value \"{text}\"")));
            }
            (_, Some(None)) => {
                let text = String::from_utf8_lossy(word);
                return Err(ValueError(format!("invalid max_queue value \"{text}\"")));
            }
            _ => {}
        }
    }
    if !has_threads {
        return Err(ValueError::new("\"thread_pool\" must have \"threads\" parameter"));
    }
    args.env.named.borrow_mut().pool(args.text(0))
}

/// `use method`: by its exact name.
fn event_method(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    if !block.ignored.insert(args.name.to_owned()) {
        return Err(args.duplicate());
    }
    match args.word(0) {
        b"epoll" => Ok(()),
        // nginx has them where it was built with them.
        b"poll" | b"select" => Err(ValueError(format!(
            "event method \"{}\" is not available, expected \"epoll\"",
            args.text(0)
        ))),
        _ => Err(ValueError(format!("invalid event type \"{}\"", args.text(0)))),
    }
}

/// `worker_processes`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Workers {
    /// One per CPU this process may run on.
    Auto,
    /// A number of them.
    Count(u64),
}

impl Setting for Workers {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.word(0) == b"auto" {
            return Ok(Self::Auto);
        }
        match u64::from_args(args) {
            Ok(count) if (1..=crate::base::limits::WORKERS_MAX).contains(&count) => {
                Ok(Self::Count(count))
            }
            _ => Err(args.invalid_value()),
        }
    }
}

/// `control path | off`
#[derive(Clone, Debug)]
pub struct ControlSocket(pub Option<PathBuf>);

impl Setting for ControlSocket {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self(None),
            _ => Self(Some(args.env.prefix_path(&args.text(0)))),
        })
    }
}

/// `user`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct User {
    pub user: String,
    pub group: Option<String>,
}

impl Setting for User {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let user = args.text(0);
        let unknown = |call: &str, name: &str| ValueError(format!("{call}(\"{name}\") failed"));
        if !matches!(nix::unistd::User::from_name(&user), Ok(Some(_))) {
            return Err(unknown("getpwnam", &user));
        }
        let group = (args.words.len() == 2).then(|| args.text(1));
        if let Some(group) = &group {
            if !matches!(nix::unistd::Group::from_name(group), Ok(Some(_))) {
                return Err(unknown("getgrnam", group));
            }
        }
        Ok(Self { user, group })
    }
}

settings! {
    written;
    /// Runs in the background.
    daemon: bool = "on", ONE, MAIN;
    /// Whether a master process keeps the privileges it was started with while a server process runs as `user`. Off: one process does both, with all privileges, as in nginx.
    master_process: bool = "on", ONE, MAIN;
    /// User and group that the process switches to after binding its sockets.
    user: Option<User> = none, ONE_OR_TWO, MAIN;
    /// Worker threads, each with its own event loop; `auto`: one per usable CPU.
    worker_processes: Workers = "1", ONE, MAIN;
    /// File that holds the process id.
    pid: Option<PrefixPath> = none, ONE, MAIN;
    /// Socket for `yorozu cache …`: a path, or off; if not set, the path of the pid file with .sock appended.
    control: Option<ControlSocket> = none, ONE, MAIN;
    /// Limit on open files (RLIMIT_NOFILE).
    worker_rlimit_nofile: Option<u64> = none, ONE, MAIN;
    /// Limit on the size of a core file (RLIMIT_CORE).
    worker_rlimit_core: Option<Offset> = none, ONE, MAIN;
    /// Limit on the server process's address space (RLIMIT_AS): exceeding it ends the process, and the master starts another.
    worker_rlimit_as: Option<Offset> = none, ONE, MAIN;
    /// How long a worker's event loop may be stuck before it is reported; 0: never.
    worker_watchdog: Duration = "30s", ONE, MAIN;
    /// How long a graceful stop waits for connections before it closes them.
    worker_shutdown_timeout: Option<Duration> = none, ONE, MAIN;
    /// Nice value of the process, from -20 to 20.
    worker_priority: Nice = "0", ONE, MAIN;
    /// Current working directory of the process.
    working_directory: Option<PrefixPath> = none, ONE, MAIN;
    /// Connections a worker holds at once, including those to upstreams.
    worker_connections: u64 = "512", ONE, EVENTS;
    /// An environment variable to keep for the process; all are kept, and none are set.
    env: Vec<Words> = none, ONE, MAIN;
}

/// Rows that are no plain settings.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "events",
        MAIN,
        Arity::NONE,
        Action::Open(super::loader::events),
        "Opens the block of event settings.",
    ),
    Directive::row(
        "http",
        MAIN,
        Arity::NONE,
        Action::Open(super::loader::http),
        "Opens the block of HTTP settings.",
    ),
    Directive::row(
        "error_log",
        MAIN | HTTP_SERVER_LOCATION,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| {
            let target = log_target(args)?;
            block.error_log.get_or_insert_with(ErrorLogs::default).push(target);
            Ok(())
        }),
        "File and minimum level of messages; several lines write several logs. memory:SIZE keeps the latest messages for yorozu log --error.",
    ),
    Directive::row(
        "ssl_object_cache_inheritable",
        MAIN,
        Arity::ONE,
        Action::Ignored("a reload reads certificates and keys again", once::<bool>),
        "Whether a reload reuses certificates that did not change.",
    ),
    Directive::row(
        "use",
        EVENTS,
        Arity::ONE,
        Action::Set(event_method),
        "Event method; this server uses epoll.",
    ),
    Directive::row(
        "multi_accept",
        EVENTS,
        Arity::ONE,
        Action::Ignored("every pending connection is accepted on each wake-up", once::<bool>),
        "Accept all pending connections at once.",
    ),
    Directive::row(
        "accept_mutex",
        EVENTS,
        Arity::ONE,
        Action::Ignored("each worker has a listening socket of its own", once::<bool>),
        "Workers take turns accepting.",
    ),
    Directive::row(
        "accept_mutex_delay",
        EVENTS,
        Arity::ONE,
        Action::Ignored("each worker has a listening socket of its own", once::<Duration>),
        "Delay between turns.",
    ),
    Directive::row(
        "debug_connection",
        EVENTS,
        Arity::ONE,
        Action::Ignored("there is no debug log per client", debug_connection),
        "Debug log for chosen clients.",
    ),
    Directive::row(
        "worker_aio_requests",
        EVENTS,
        Arity::ONE,
        Action::Ignored("there is no aio", once::<u64>),
        "Outstanding aio requests.",
    ),
    Directive::row(
        "lock_file",
        MAIN,
        Arity::ONE,
        Action::Ignored("no lock is needed between threads", once::<Bytes>),
        "Prefix of lock files.",
    ),
    Directive::row(
        "pcre_jit",
        MAIN,
        Arity::ONE,
        Action::Ignored("regular expressions are always compiled just in time", once::<bool>),
        "Just-in-time compilation of regular expressions.",
    ),
    Directive::row(
        "timer_resolution",
        MAIN,
        Arity::ONE,
        Action::Ignored("the clock is read without a system call", once::<Duration>),
        "How often the clock is read.",
    ),
    Directive::row(
        "worker_cpu_affinity",
        MAIN,
        Arity::ONE_OR_MORE,
        Action::Ignored("the scheduler places the worker threads", once::<CpuMasks>),
        "Binds workers to CPUs.",
    ),
    Directive::row(
        "thread_pool",
        MAIN,
        Arity::TWO_OR_THREE,
        Action::Ignored("blocking file work has its own threads", thread_pool),
        "Named thread pools for aio.",
    ),
    Directive::row(
        "debug_points",
        MAIN,
        Arity::ONE,
        Action::Ignored("there are no debug points", once::<DebugPoints>),
        "Stops at internal errors.",
    ),
    Directive::row(
        "ssl_engine",
        MAIN,
        Arity::ONE,
        Action::Refused("there are no OpenSSL engines"),
        "Hardware for TLS.",
    ),
    Directive::row(
        "load_module",
        MAIN,
        Arity::ONE,
        Action::Ignored(
            "modules are not loaded; directives of unknown modules are refused where they are used",
            anything,
        ),
        "Loads a dynamic module.",
    ),
];

/// Least size of a log in memory: that of a long line.
const MEMORY_BYTES_MIN: usize = 1024;

/// What nginx's debug log can be narrowed to; here it is one.
const DEBUG_WORDS: [&str; 7] = [
    "debug_core",
    "debug_alloc",
    "debug_mutex",
    "debug_event",
    "debug_http",
    "debug_mail",
    "debug_stream",
];

/// The words behind the log: a level, or parts of the debug log.
fn log_level(words: &[Bytes]) -> Result<Level, ValueError> {
    let mut level = None;
    for word in words {
        let shown = String::from_utf8_lossy(word);
        let is_part = DEBUG_WORDS.contains(&&*shown);
        let refuse = |why: &str| Err(ValueError(format!("{why} log level \"{shown}\"")));
        level = match (Level::parse(word), level) {
            (Some(found), None) => Some((found, false)),
            (Some(_), Some(_)) => return refuse("duplicate"),
            (None, None | Some((_, true))) if is_part => Some((Level::Debug, true)),
            (None, _) => return refuse("invalid"),
        };
    }
    Ok(level.map_or(Level::Error, |(level, _)| level))
}

/// `debug_connection address | network | unix: | host`
fn debug_connection(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let text = args.text(0);
    // `all` is a word of `allow` alone.
    let is_network = text != "all" && Network::written(&text, args.env).is_some();
    match is_network || resolve(&text, 80).is_ok() {
        true => Ok(()),
        false => Err(ValueError(format!("host not found in debug_connection \"{text}\""))),
    }
}

/// Reads `error_log file [level]`.
///
/// # Errors
/// An unknown level, or a file that cannot be opened.
fn log_target(args: &Args<'_>) -> Result<Target, ValueError> {
    let level = log_level(args.words.get(1..).unwrap_or_default())?;
    let path = args.text(0);
    if path == "stderr" {
        return Ok(Target(Sink::Stderr, level));
    }
    if let Some(syslog) = path.strip_prefix("syslog:") {
        let syslog = Syslog::parse(syslog).map_err(ValueError)?;
        return Ok(Target(Sink::Syslog(Arc::new(syslog)), level));
    }
    if let Some(size) = args.word(0).strip_prefix(b"memory:") {
        let bytes = yorozu_conf::value::size(size).and_then(|size| usize::try_from(size).ok());
        let bytes = bytes.filter(|bytes| *bytes >= MEMORY_BYTES_MIN).ok_or_else(|| {
            ValueError(format!("invalid buffer size \"{}\"", String::from_utf8_lossy(size)))
        })?;
        return Ok(Target(Sink::Memory(args.env.logs.ring(bytes)), level));
    }
    let path = args.env.prefix_path(&path);
    let file = args.env.logs.get(&path).map_err(|error| {
        ValueError(format!("open() \"{}\" failed ({})", path.display(), os_error(&error)))
    })?;
    Ok(Target(Sink::File(file), level))
}

impl ModuleDraft for Draft {
    type Conf = Conf;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        Draft::inherit(self, outer);
    }

    fn compile(&self, at: &Compiling<'_>) -> Result<Conf, ValueError> {
        Conf::compile(self, at.env)
    }
}

impl ModuleConf for Conf {
    fn place() -> &'static Place {
        <Draft as ModuleDraft>::place()
    }
}

/// Where the pid file is: `pid`, or where it is without that.
pub fn pid_path(pid: Option<&PrefixPath>, prefix: &Path) -> PathBuf {
    pid.map_or_else(|| places::pid(prefix), |pid| pid.0.clone())
}

impl Config {
    /// The settings of the process.
    pub fn main(&self) -> &Conf {
        self.of_main()
    }
}
