//! The command line: nginx's options, and the commands that nginx lacks.

use crate::cache::{Certificates, Explain, List, Stat};
use crate::control::{Ask, Control};
use crate::generate;
use crate::log::Log;
use crate::purge::Purge;
use crate::serve::Serve;
use crate::top::Top;
use crate::warm::Warm;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use yorozu_kernel::base::NGINX_VERSION;
use yorozu_kernel::base::places::STANDARD_PREFIX;
use yorozu_server::config::load::Request;
use yorozu_server::process;

/// Where nginx of Debian looks.
const FILE: &str = "/etc/nginx/nginx.conf";
/// What names the service's configuration, as `CONF=FILE`, where the package is installed.
const SERVICE: &str = "/etc/default/yorozu";
/// The service's configuration where that names none.
const PACKAGED: &str = "/etc/yorozu/nginx.conf";

/// A web server that reads nginx.conf and answers PHP sites from its page cache
///
/// Without a command, starts the server. Options are those of nginx; a relative FILE counts from the prefix.
#[derive(Debug, Parser)]
#[command(
    name = "yorozu",
    bin_name = "yorozu",
    version,
    disable_version_flag = true,
    args_override_self = true,
    subcommand_help_heading = "Commands",
    override_usage = "yorozu [-vVtTq] [-s SIGNAL] [-p DIR] [-e FILE] [-c FILE] [-g DIRECTIVES]\n       yorozu [-p DIR] [-c FILE] COMMAND"
)]
pub(crate) struct Options {
    /// Show the version, then exit
    #[arg(short = 'v')]
    pub(crate) shows_version: bool,
    /// Show the version and what of nginx is built in, then exit
    #[arg(short = 'V')]
    pub(crate) shows_build: bool,
    /// Show the version in one line on standard output, then exit
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
    /// Test the configuration, then exit
    #[arg(short = 't')]
    is_tested: bool,
    /// Test the configuration, dump it, then exit
    #[arg(short = 'T')]
    pub(crate) is_dumped: bool,
    /// With -T: print what each location reads of requests instead
    #[arg(long = "reads")]
    pub(crate) shows_reads: bool,
    /// With -t or -T: test what is left without the directives of modules that are not here; -T prints it, as one file
    #[arg(long = "omit-unsupported")]
    pub(crate) omits_unsupported: bool,
    /// During a test of the configuration, print errors only
    #[arg(short = 'q')]
    pub(crate) is_quiet: bool,
    /// Send a signal to the master process: stop, quit, reopen or reload
    #[arg(short = 's', value_name = "SIGNAL", hide_possible_values = true, value_parser = ["stop", "quit", "reopen", "reload"])]
    signal: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Error log [default: /var/log/nginx/error.log; with -p logs/error.log]
    #[arg(short = 'e', value_name = "FILE", allow_hyphen_values = true)]
    error_log: Option<PathBuf>,
    /// Directives besides those of the configuration file
    #[arg(short = 'g', value_name = "DIRECTIVES", allow_hyphen_values = true)]
    global: Option<String>,
    /// Print a table of all directives, as Markdown
    #[arg(long = "directives")]
    pub(crate) shows_directives: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Which configuration is meant.
#[derive(Debug, Args)]
struct Place {
    /// Prefix of relative paths [default: /usr/share/nginx/]
    #[arg(short = 'p', value_name = "DIR", id = "prefix of paths", allow_hyphen_values = true)]
    prefix: Option<PathBuf>,
    /// Configuration file [default: CONF in /etc/default/yorozu; without the package /etc/nginx/nginx.conf]
    #[arg(short = 'c', value_name = "FILE", id = "configuration file", allow_hyphen_values = true)]
    file: Option<PathBuf>,
}

// No doc comment: it would be the help of each command.
#[derive(Debug, Args)]
pub(crate) struct Asked<T: Args> {
    #[command(flatten)]
    what: T,
    /// Print JSON, for scripts
    #[arg(long = "json", id = "is JSON")]
    is_json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the PHP application in a folder: PHP, page cache and HTTPS in one command
    ///
    /// Finds out which application it is, starts PHP for it as the folder's owner, and sizes both to the machine. Ctrl-C
    /// ends all of it.
    Serve(Box<Serve>),
    /// Remove stored pages, with all their variants, from memory and disk
    Purge(Asked<Purge>),
    /// Make pages before visitors come for them
    ///
    /// Asks the running server for pages that are missing or stale, in each coding that it compresses them with.
    Warm(Asked<Warm>),
    /// Show how a request would be answered, and why, without asking the upstream
    Explain(Asked<Explain>),
    /// Show what is stored
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Follow requests as they come, with the reason for each miss
    ///
    /// Prints the time, what the cache did, why it was no hit, the status, how long it took and the request, with the
    /// header that did it if one did, until Ctrl-C: at most 1000 requests a second. The reasons are those of $cache_detail
    /// and Cache-Status.
    Log(Asked<Log>),
    /// Watch the running server in this terminal
    ///
    /// Shows each second: hit rates, why requests missed, the most expensive pages, upstreams, zones and purges. A reload
    /// or an upgrade does not end it, q or Ctrl-C does. The figures begin with the first look where the configuration has
    /// no metrics. With --json: the figures once, without a terminal.
    Top(Asked<Top>),
    /// Show certificates of ACME issuers
    #[command(subcommand)]
    Acme(AcmeCommand),
    /// Print completions for a shell
    Completions { shell: Shell },
    /// Write the manual pages to a folder
    Man { folder: PathBuf },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Show how full each zone is
    Stat(Asked<Stat>),
    /// List stored pages
    Ls(Asked<List>),
    /// Show how a request would be answered, and why, without asking the upstream
    Explain(Asked<Explain>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum AcmeCommand {
    /// Show each certificate's state, expiry and last error
    Status(Asked<Certificates>),
}

impl<T: Ask> Asked<T> {
    fn run(&self, options: &Options) -> Result<(), String> {
        let control = Control::of(&options.request_at(&self.place))?;
        self.what.run(&control, self.is_json)
    }
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// What stands against it, as one line.
    pub(crate) fn run(&self, options: &Options) -> Result<(), String> {
        match self {
            Self::Serve(serve) => serve.run(),
            Self::Purge(asked) => asked.run(options),
            Self::Warm(asked) => asked.run(options),
            Self::Cache(CacheCommand::Stat(asked)) => asked.run(options),
            Self::Cache(CacheCommand::Ls(asked)) => asked.run(options),
            Self::Explain(asked) | Self::Cache(CacheCommand::Explain(asked)) => asked.run(options),
            Self::Log(asked) => asked.run(options),
            Self::Top(asked) => asked.run(options),
            Self::Acme(AcmeCommand::Status(asked)) => asked.run(options),
            Self::Completions { shell } => generate::completions(*shell),
            Self::Man { folder } => generate::manual(folder),
        }
    }
}

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

/// The description that options, help, completions and manual pages are made of.
pub(crate) fn description() -> clap::Command {
    let help = Arg::new("help").short('h').visible_short_alias('?').long("help");
    let help =
        help.action(ArgAction::Help).global(true).help("Print help (also -?); --help prints more");
    let mut all = Options::command().disable_help_flag(true).arg(help);
    for (path, examples) in generate::EXAMPLES {
        all = with_help(all, path, generate::examples(examples));
    }
    all
}

/// Adds to what `--help` prints of the command with these names.
fn with_help(
    command: clap::Command,
    names: &'static [&'static str],
    text: String,
) -> clap::Command {
    match names {
        [] => command.after_long_help(text),
        [first, rest @ ..] => command.mut_subcommand(first, |inner| with_help(inner, rest, text)),
    }
}

impl Options {
    /// Reads arguments, the program's name the first.
    ///
    /// # Errors
    /// Help or the version is wanted, or an option or a value is none.
    pub(crate) fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let args: Vec<_> = args.into_iter().collect();
        let refuse = |problem: String| clap::Error::raw(ErrorKind::ArgumentConflict, problem);
        // As nginx: nothing follows options that would be none.
        if args.last().is_some_and(|last| last == "--") {
            return Err(refuse("invalid option: \"-\"".to_owned()));
        }
        let options = Self::from_arg_matches(&description().try_get_matches_from(args)?)?;
        let with_any = [
            ("-t", options.is_tested),
            ("-T", options.is_dumped),
            ("-s", options.signal.is_some()),
            ("-v", options.shows_version),
            ("-V", options.shows_build),
            ("--directives", options.shows_directives),
        ];
        let with_serve = [
            ("-c", options.place.file.is_some()),
            ("-p", options.place.prefix.is_some()),
            ("-g", options.global.is_some()),
            ("-e", options.error_log.is_some()),
        ];
        let given =
            |options: &[(&'static str, bool)]| options.iter().find(|one| one.1).map(|one| one.0);
        if options.shows_reads && !options.is_dumped {
            return Err(refuse("option \"--reads\" requires \"-T\"".to_owned()));
        }
        if options.omits_unsupported && !options.is_test() {
            let problem = "option \"--omit-unsupported\" requires \"-t\" or \"-T\"";
            return Err(refuse(problem.to_owned()));
        }
        match (&options.command, given(&with_any)) {
            (Some(_), Some(name)) => return Err(refuse(format!("\"{name}\" takes no command"))),
            (Some(Command::Serve(serve)), None) => match given(&with_serve) {
                Some(name) => {
                    let problem =
                        format!("\"serve\" writes its own configuration, and takes no \"{name}\"");
                    return Err(refuse(problem));
                }
                None => serve.fit_together().map_err(refuse)?,
            },
            _ => {}
        }
        Ok(options)
    }

    /// Whether the configuration is only tested.
    pub(crate) fn is_test(&self) -> bool {
        self.is_tested || self.is_dumped
    }

    /// What `-s` names. As nginx: who tests a configuration sends nothing.
    pub(crate) fn signal(&self) -> Option<Signal> {
        match self.signal.as_deref().filter(|_| !self.is_test())? {
            "stop" => Some(Signal::SIGTERM),
            "quit" => Some(Signal::SIGQUIT),
            "reopen" => Some(Signal::SIGUSR1),
            _ => Some(Signal::SIGHUP),
        }
    }

    /// What to load.
    pub(crate) fn request(&self) -> Request {
        self.request_at(&self.place)
    }

    /// The same, where a command says which configuration is meant. Relative names count from the prefix, as nginx's do.
    fn request_at(&self, place: &Place) -> Request {
        let current = std::env::current_dir().unwrap_or_default();
        let prefix = place.prefix.as_deref().or(self.place.prefix.as_deref());
        let prefix = current.join(prefix.unwrap_or_else(|| Path::new(STANDARD_PREFIX)));
        let file = place.file.as_ref().or(self.place.file.as_ref());
        let usual = || {
            process::given_file().or_else(|| of_service(SERVICE)).unwrap_or_else(|| {
                let is_installed = Path::new(PACKAGED).exists();
                if is_installed { PACKAGED } else { FILE }.into()
            })
        };
        let file = file.map_or_else(usual, |file| {
            let (whole, beside) = (prefix.join(file), current.join(file));
            if !whole.exists() && beside.exists() {
                let (whole, beside) = (whole.display(), beside.display());
                eprintln!("yorozu: [notice] \"-c\" counts from the prefix, as nginx's does: \"{whole}\" is looked for, not \"{beside}\"");
            }
            prefix.join(file)
        });
        Request { prefix, file, global: self.global.clone(), error_log: self.error_log.clone() }
    }
}

/// The configuration that a file like /etc/default/yorozu names: its last `CONF=`, as systemd reads it.
fn of_service(path: &str) -> Option<PathBuf> {
    let text = std::fs::read_to_string(path).ok()?;
    let named = text.lines().rev().find_map(|line| line.trim().strip_prefix("CONF="))?;
    let named = named.trim().trim_matches(['"', '\'']);
    (!named.is_empty()).then(|| Path::new(STANDARD_PREFIX).join(named))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::usage::said;

    pub(crate) fn read(words: &[&str]) -> Result<Options, String> {
        let args: Vec<OsString> = ["yorozu"].iter().chain(words).map(OsString::from).collect();
        Options::read(args.clone()).map_err(|problem| said(&problem, &args))
    }

    /// What is said of arguments that are refused.
    pub(crate) fn refused(words: &[&str]) -> String {
        read(words).expect_err("refused")
    }

    #[test]
    fn the_description_is_sound() {
        description().debug_assert();
    }

    #[test]
    fn options_are_taken_before_and_after_a_command() {
        for words in [
            &["-c", "/x/a.conf", "purge", "http://h/"][..],
            &["purge", "http://h/", "-c", "/x/a.conf"],
        ] {
            let options = read(words).expect("taken");
            let Some(Command::Purge(asked)) = &options.command else { panic!("{options:?}") };
            assert_eq!(options.request_at(&asked.place).file, Path::new("/x/a.conf"));
        }
        let request = read(&["-p", "/x", "-c", "a.conf"]).expect("taken").request();
        assert_eq!((request.prefix, request.file), ("/x".into(), "/x/a.conf".into()));
        let options = read(&["-tqc/x/a", "-sreload", "-t", "-c", "/x/b"]).expect("taken");
        assert!(options.is_test() && options.is_quiet && options.signal().is_none());
        assert_eq!(options.request().file, Path::new("/x/b"));
    }

    #[test]
    fn what_is_wrong_is_one_line() {
        for (words, said) in [
            (&["-z"][..], "invalid option: \"z\". See \"yorozu --help\""),
            (&["-c"], "option \"-c\" requires file name. See \"yorozu --help\""),
            (
                &["-s", "x"],
                "invalid option: \"-s x\", expected stop, quit, reopen, reload. See \"yorozu --help\"",
            ),
            (&["--reads"], "option \"--reads\" requires \"-T\". See \"yorozu --help\""),
            (&["prge"], "unknown command \"prge\", did you mean \"purge\"? See \"yorozu --help\""),
            (
                &["purge", "--sfot"],
                "invalid option: \"--sfot\", did you mean \"--soft\"? See \"yorozu purge --help\"",
            ),
            (&["purge"], "\"purge\" needs <URL|--tag <NAME>|--all>. See \"yorozu purge --help\""),
            (
                &["purge", "h/a"],
                "invalid URL \"h/a\", expected http://HOST/PATH or https://HOST/PATH. See \"yorozu purge --help\"",
            ),
            (
                &["warm", "--jobs", "0", "http://h/"],
                "invalid --jobs \"0\": 0 is not in 1..=256. See \"yorozu warm --help\"",
            ),
            (
                &["log", "--reason", "set-cokie"],
                "invalid --reason \"set-cokie\", did you mean \"set-cookie\"? See \"yorozu log --help\"",
            ),
            (
                &["log", "--status", "7"],
                "invalid \"status=7\", expected one like 404 or 5xx. See \"yorozu log --help\"",
            ),
            (
                &["cache", "ls", "--limit"],
                "option \"--limit\" requires N. See \"yorozu cache ls --help\"",
            ),
            (&["--"], "invalid option: \"-\". See \"yorozu --help\""),
            (&["--c"], "invalid option: \"--c\". See \"yorozu --help\""),
            (
                &["explain", "\u{1b}[31m\nx"],
                "invalid URL \"\\u{1b}[31m\\u{a}x\", expected http://HOST/PATH or https://HOST/PATH. See \"yorozu explain --help\"",
            ),
            (
                &["explain", "-X", "GET /b", "http://h/"],
                "invalid method \"GET /b\", expected one like GET. See \"yorozu explain --help\"",
            ),
            (&["warm"], "\"warm\" needs <URL>. See \"yorozu warm --help\""),
            (
                &["completions", "foo"],
                "invalid SHELL \"foo\", expected bash, elvish, fish, powershell, zsh. See \"yorozu completions --help\"",
            ),
            (
                &["purge", "--all", "--host", "h"],
                "\"purge\" needs --tag <NAME>. See \"yorozu purge --help\"",
            ),
            (
                &["purge", "http://h/", "--zone", "z"],
                "\"purge\" needs <--tag <NAME>|--all>. See \"yorozu purge --help\"",
            ),
            (
                &["--directives", "purge", "--all"],
                "\"--directives\" takes no command. See \"yorozu purge --help\"",
            ),
            (&["-t", "purge", "--all"], "\"-t\" takes no command. See \"yorozu purge --help\""),
            (
                &["-c", "x", "serve"],
                "\"serve\" writes its own configuration, and takes no \"-c\". See \"yorozu serve --help\"",
            ),
        ] {
            assert_eq!(refused(words), said, "{words:?}");
        }
    }

    #[test]
    fn each_example_is_taken() {
        for (_, examples) in generate::EXAMPLES {
            for (command, _) in *examples {
                let words: Vec<String> =
                    command.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let at = words.iter().position(|word| *word == "yorozu").expect("a command");
                read(&words[at + 1..]).expect(command);
            }
        }
    }

    #[test]
    fn the_service_names_its_configuration() {
        let file = std::env::temp_dir().join(format!("yorozu-default-{}", std::process::id()));
        for (text, named) in [
            ("# CONF=/no\nCONF=/a\nCONF=\"/b c\"\n", Some("/b c")),
            ("  CONF=/a  \n", Some("/a")),
            ("CONF=\n", None),
            ("CONF=a\n", Some("/usr/share/nginx/a")),
            ("OTHER=/a\n", None),
        ] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(of_service(&file.display().to_string()), named.map(PathBuf::from), "{text}");
        }
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(of_service(&file.display().to_string()), None);
    }
}
