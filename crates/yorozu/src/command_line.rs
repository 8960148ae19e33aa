//! Options of the command line.

use crate::cache::Command;
use crate::log::Log;
use crate::serve;
use crate::top::Top;
use crate::warm::Warm;
use lexopt::prelude::*;
use nix::sys::signal::Signal;
use std::path::PathBuf;
use yorozu_kernel::base::NGINX_VERSION;
use yorozu_kernel::base::places::STANDARD_PREFIX;
use yorozu_server::config::load::Request;

/// What is asked for.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Action {
    /// `acme …`; `None`: its help.
    Acme(Option<Command>),
    /// `cache …`; `None`: its help.
    Cache(Option<Command>),
    /// `log …`; `None`: its help.
    Log(Option<Log>),
    /// `purge …`, and what is warmed then; `None`: its help.
    Purge(Option<(Command, Option<Warm>)>),
    /// `top`; `None`: its help.
    Top(Option<Top>),
    /// `warm …`; `None`: its help.
    Warm(Option<Warm>),
    Directives,
    /// `serve …`; `None`: its help.
    Application(Option<serve::Serve>),
    Serve,
    Signal(Signal),
    Test {
        is_dumped: bool,
    },
}

/// What is said before anything is done. Only a test of the configuration is done then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Notice {
    Build,
    Help,
    Version,
}

/// The whole command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) action: Action,
    pub(crate) notice: Option<Notice>,
    pub(crate) is_quiet: bool,
    /// Whether `-T` prints what locations read of requests, and not the text.
    pub(crate) shows_reads: bool,
    /// Whether `-t` leaves out what this version lacks.
    pub(crate) omits_unsupported: bool,
    prefix: PathBuf,
    file: Option<PathBuf>,
    error_log: Option<PathBuf>,
    global: Option<String>,
}

/// Where nginx of Debian looks.
const FILE: &str = "/etc/nginx/nginx.conf";

/// The text of `-h`.
pub(crate) const HELP: &str = "\
Usage: yorozu [-?hvVtTq] [-s signal] [-p prefix] [-e filename] [-c filename] [-g directives]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -T --reads    : the same, but print what each location reads of requests
  -t --omit-unsupported : test what is left without the directives of modules that are not here
  -T --omit-unsupported : the same, and print that as one file
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: /usr/share/nginx/)
  -e filename   : set error log file (default: /var/log/nginx/error.log; with -p logs/error.log)
  -c filename   : set configuration file (default: /etc/nginx/nginx.conf)
  -g directives : set global directives out of configuration file

  acme status   : certificates that issuers give: how each stands, and why: see yorozu acme -h
  cache COMMAND : what is stored, and how a request would be answered: see yorozu cache -h
  log           : requests as they come, with the reason for each that was no hit: see yorozu log -h
  purge URL ... : removes stored pages: see yorozu purge -h
  serve FOLDER  : a PHP application in one command: see yorozu serve -h
  top           : what the server does, in this terminal: see yorozu top -h
  warm URL ...  : makes pages before visitors come for them: see yorozu warm -h
";

/// The text of `-v`.
pub(crate) fn version() -> String {
    format!(
        "yorozu version: yorozu/{} (nginx/{NGINX_VERSION} configuration)",
        env!("CARGO_PKG_VERSION")
    )
}

/// The text of `-V`: what is here, and what of nginx is missing.
pub(crate) fn build() -> String {
    format!(
        "{}\nnginx version: nginx/{NGINX_VERSION}\nbuilt with rustls 0.23 (aws-lc-rs); its directives are those of nginx built with OpenSSL 3.0 or later\nTLS SNI support enabled\n\
         configure arguments: --with-http_ssl_module --with-http_v2_module --with-http_v3_module --with-http_realip_module --with-http_gunzip_module --with-http_gzip_static_module --with-http_stub_status_module --with-http_auth_request_module --with-http_secure_link_module --with-http_sub_module --with-http_addition_module --with-http_slice_module --with-http_random_index_module --with-http_dav_module --with-http_flv_module --with-http_mp4_module --without-http_tunnel_module\n",
        version()
    )
}

impl Options {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// An unknown option or a missing argument, in nginx's words.
    pub(crate) fn parse() -> Result<Self, String> {
        let mut options = Self {
            action: Action::Serve,
            notice: None,
            is_quiet: false,
            shows_reads: false,
            omits_unsupported: false,
            prefix: STANDARD_PREFIX.into(),
            file: None,
            error_log: None,
            global: None,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next().map_err(|problem| problem.to_string())? {
            options.apply(&argument.into_owned(), &mut parser)?;
        }
        if options.shows_reads && !matches!(options.action, Action::Test { is_dumped: true }) {
            return Err("option \"--reads\" requires \"-T\"".to_owned());
        }
        if options.omits_unsupported && !matches!(options.action, Action::Test { .. }) {
            return Err("option \"--omit-unsupported\" requires \"-t\" or \"-T\"".to_owned());
        }
        Ok(options)
    }

    fn apply(&mut self, argument: &OwnedArg, parser: &mut lexopt::Parser) -> Result<(), String> {
        let mut value = |name: char, what: &str| {
            parser.value().map_err(|_| format!("option \"-{name}\" requires {what}"))
        };
        match argument {
            OwnedArg::Short('?' | 'h') => self.notice = Some(Notice::Help),
            OwnedArg::Short('v') => self.notice = Some(Notice::Version),
            OwnedArg::Short('V') => self.notice = Some(Notice::Build),
            OwnedArg::Short('t') if !matches!(self.action, Action::Test { .. }) => {
                self.action = Action::Test { is_dumped: false };
            }
            OwnedArg::Short('t') => {}
            OwnedArg::Short('T') => self.action = Action::Test { is_dumped: true },
            OwnedArg::Short('q') => self.is_quiet = true,
            OwnedArg::Short('s') => {
                let name = value('s', "parameter")?.to_string_lossy().into_owned();
                let signal = match &*name {
                    "stop" => Signal::SIGTERM,
                    "quit" => Signal::SIGQUIT,
                    "reopen" => Signal::SIGUSR1,
                    "reload" => Signal::SIGHUP,
                    _ => return Err(format!("invalid option: \"-s {name}\"")),
                };
                // As nginx: who tests a configuration sends nothing.
                if !matches!(self.action, Action::Test { .. }) {
                    self.action = Action::Signal(signal);
                }
            }
            OwnedArg::Short('p') => self.prefix = value('p', "directory name")?.into(),
            OwnedArg::Short('e') => self.error_log = Some(value('e', "file name")?.into()),
            OwnedArg::Short('c') => self.file = Some(value('c', "file name")?.into()),
            OwnedArg::Short('g') => {
                self.global = Some(value('g', "parameter")?.to_string_lossy().into_owned());
            }
            OwnedArg::Other(text) if text == "acme" => {
                self.action = Action::Acme(Command::parse_acme(parser)?);
            }
            OwnedArg::Other(text) if text == "cache" => {
                self.action = Action::Cache(Command::parse(parser)?);
            }
            OwnedArg::Other(text) if text == "log" => {
                self.action = Action::Log(Log::parse(parser)?);
            }
            OwnedArg::Other(text) if text == "purge" => {
                self.action = Action::Purge(Command::parse_purge(parser)?);
            }
            OwnedArg::Other(text) if text == "serve" => {
                self.action = Action::Application(serve::Serve::parse(parser)?);
            }
            OwnedArg::Other(text) if text == "top" => {
                self.action = Action::Top(Top::parse(parser)?);
            }
            OwnedArg::Other(text) if text == "warm" => {
                self.action = Action::Warm(Warm::parse(parser)?);
            }
            OwnedArg::Other(text) if text == "--reads" => self.shows_reads = true,
            OwnedArg::Other(text) if text == "--omit-unsupported" => self.omits_unsupported = true,
            OwnedArg::Other(text) if text == "--directives" => self.action = Action::Directives,
            OwnedArg::Short(other) => return Err(format!("invalid option: \"{other}\"")),
            OwnedArg::Other(text) => return Err(format!("invalid option: \"{text}\"")),
        }
        Ok(())
    }

    /// What to load: relative names count from the prefix, as nginx's do.
    pub(crate) fn request(&self) -> Request {
        let current = std::env::current_dir().unwrap_or_default();
        let prefix = current.join(&self.prefix);
        let file = self.file.as_ref().map_or_else(|| FILE.into(), |file| prefix.join(file));
        Request { prefix, file, global: self.global.clone(), error_log: self.error_log.clone() }
    }
}

/// An argument that borrows nothing from the parser.
#[derive(Debug)]
enum OwnedArg {
    Short(char),
    Other(String),
}

trait IntoOwned {
    fn into_owned(self) -> OwnedArg;
}

impl IntoOwned for lexopt::Arg<'_> {
    fn into_owned(self) -> OwnedArg {
        match self {
            Short(name) => OwnedArg::Short(name),
            Long(name) => OwnedArg::Other(format!("--{name}")),
            Value(text) => OwnedArg::Other(text.to_string_lossy().into_owned()),
        }
    }
}
