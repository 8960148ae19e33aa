//! Directives of nginx's core module: the process, its logs, its events.

use super::directive::*;
use super::types::{Offset, PrefixPath, Words, word_enum};
use crate::control::ControlSocket;
use crate::logging::error::ErrorLogs;
use bytes::Bytes;
use std::time::Duration;

word_enum! {
    /// Event methods by nginx's names.
    EventMethod {
        /// The one this server uses.
        Epoll = "epoll",
        /// Known to nginx, not to this server.
        Poll = "poll",
        /// Known to nginx, not to this server.
        Select = "select",
    }
}

/// `worker_processes`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Workers {
    /// One per CPU this process may run on.
    Auto,
    /// So many.
    Count(u64),
}

impl Setting for Workers {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.word(0) == b"auto" {
            return Ok(Self::Auto);
        }
        match u64::from_args(args) {
            Ok(count) if (1..=crate::limits::WORKERS_MAX).contains(&count) => {
                Ok(Self::Count(count))
            }
            _ => Err(ValueError::new("invalid number")),
        }
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
    in main;
    /// Runs in the background.
    daemon: bool = "on", ONE, MAIN;
    /// nginx forks a master; here one process does both jobs, so both values mean the same.
    master_process: bool = "on", ONE, MAIN;
    /// User and group the process takes on after binding its sockets.
    user: Option<User> = none, ONE_OR_TWO, MAIN;
    /// Worker threads, each with its own event loop; `auto`: one per usable CPU.
    worker_processes: Workers = "1", ONE, MAIN;
    /// File that holds the process id.
    pid: Option<PrefixPath> = none, ONE, MAIN;
    /// Socket for `yorozu cache …`: a path, or off; the pid file's with .sock behind it where it says nothing.
    control: Option<ControlSocket> = none, ONE, MAIN;
    /// Limit of open files (RLIMIT_NOFILE).
    worker_rlimit_nofile: Option<u64> = none, ONE, MAIN;
    /// Limit of a core file (RLIMIT_CORE).
    worker_rlimit_core: Option<Offset> = none, ONE, MAIN;
    /// How long a graceful stop waits for connections before it closes them.
    worker_shutdown_timeout: Option<Duration> = none, ONE, MAIN;
    /// Nice value of the process, from -20 to 20.
    worker_priority: Bytes = "0", ONE, MAIN;
    /// Current folder of the process.
    working_directory: Option<PrefixPath> = none, ONE, MAIN;
    /// Connections a worker holds at once, those to upstreams included.
    worker_connections: u64 = "512", ONE, EVENTS;
    /// Environment variables kept for the process; all are kept.
    env: Vec<Words> = none, ONE_OR_MORE, MAIN;
}

/// Rows that are no plain settings.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "events",
        MAIN,
        Arity::NONE,
        Action::Open(super::load::events),
        "Opens the block of event settings.",
    ),
    Directive::row(
        "http",
        MAIN,
        Arity::NONE,
        Action::Open(super::load::http),
        "Opens the block of HTTP settings.",
    ),
    Directive::row(
        "error_log",
        MAIN | HTTP_SERVER_LOCATION,
        Arity::ONE_OR_MORE,
        Action::Set(|block, args| {
            let target = ErrorLogs::target(args)?;
            block.error_log.get_or_insert_with(ErrorLogs::default).push(target);
            Ok(())
        }),
        "File and least level of messages; several lines give several logs.",
    ),
    Directive::row(
        "ssl_object_cache_inheritable",
        MAIN,
        Arity::ONE,
        Action::Ignored("a reload reads certificates and keys again"),
        "Whether a reload takes certificates over that did not change.",
    ),
    Directive::row(
        "use",
        EVENTS,
        Arity::ONE,
        Action::Set(|_, args| match EventMethod::from_args(args)? {
            EventMethod::Epoll => Ok(()),
            _ => Err(ValueError(format!(
                "event method \"{}\" is not available, expected \"epoll\"",
                args.text(0)
            ))),
        }),
        "Event method; this server has epoll.",
    ),
    Directive::row(
        "multi_accept",
        EVENTS,
        Arity::ONE,
        Action::Ignored("every pending connection is accepted on each wake-up"),
        "Accept all pending connections at once.",
    ),
    Directive::row(
        "accept_mutex",
        EVENTS,
        Arity::ONE,
        Action::Ignored("each worker has a listening socket of its own"),
        "Workers take turns accepting.",
    ),
    Directive::row(
        "accept_mutex_delay",
        EVENTS,
        Arity::ONE,
        Action::Ignored("each worker has a listening socket of its own"),
        "Delay between turns.",
    ),
    Directive::row(
        "debug_connection",
        EVENTS,
        Arity::ONE,
        Action::Ignored("there is no debug log per client"),
        "Debug log for chosen clients.",
    ),
    Directive::row(
        "worker_aio_requests",
        EVENTS,
        Arity::ONE,
        Action::Ignored("there is no aio"),
        "Outstanding aio requests.",
    ),
    Directive::row(
        "lock_file",
        MAIN,
        Arity::ONE,
        Action::Ignored("no lock is needed between threads"),
        "Prefix of lock files.",
    ),
    Directive::row(
        "pcre_jit",
        MAIN,
        Arity::ONE,
        Action::Ignored("regular expressions are always compiled just in time"),
        "Just-in-time compilation of regular expressions.",
    ),
    Directive::row(
        "timer_resolution",
        MAIN,
        Arity::ONE,
        Action::Ignored("the clock is read without a system call"),
        "How often the clock is read.",
    ),
    Directive::row(
        "worker_cpu_affinity",
        MAIN,
        Arity::ONE_OR_MORE,
        Action::Ignored("the scheduler places the worker threads"),
        "Binds workers to CPUs.",
    ),
    Directive::row(
        "thread_pool",
        MAIN,
        Arity::TWO_OR_THREE,
        Action::Ignored("blocking file work has its own threads"),
        "Named thread pools for aio.",
    ),
    Directive::row(
        "debug_points",
        MAIN,
        Arity::ONE,
        Action::Ignored("there are no debug points"),
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
            "modules are not loaded; a directive of theirs is refused where it is used",
        ),
        "Loads a dynamic module.",
    ),
];
