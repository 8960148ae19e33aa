//! `yorozu serve`: a PHP application in one command. It looks at a folder, writes the configuration that its application needs, and keeps
//! PHP-FPM and the server running.

/// Says a line on the terminal, which may have gone.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod application;
mod https;
mod install;
mod kept;
mod listen;
mod php;
mod plan;
mod sizes;
mod supervise;
mod text;
mod watch;

use lexopt::prelude::*;
use plan::Plan;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The text of `yorozu serve -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu serve [OPTION ...] [FOLDER]

Serves the PHP application in a folder, the current one if none is named: it finds out which one it is, starts PHP for it as the
folder's owner, and sizes both to the machine. Ctrl-C ends all of it.

Options:
  --port N          : port (default: 8080, the next free one if that is taken)
  --domain NAME     : the site's name, for which a certificate is ordered: ports 80 and 443; may be repeated
  --tls internal    : HTTPS by an authority of the site's own, on the port behind --port
  --issuer URL      : who gives certificates (default: Let's Encrypt)
  --contact EMAIL   : where the issuer may write to
  --listen ADDRESS  : where to listen, as \"listen\" has it (default: this machine alone); may be repeated
  --cache TIME      : keeps pages for visitors without a session that long; off: keeps none
  --php WHERE       : a PHP-FPM to start (a program), or one that runs (a socket, an address)
  --proxy ADDRESS   : a proxy in front, whose word on visitors' addresses and on HTTPS counts; may be repeated
  --shared REDIS    : shares pages and purges with other machines that serve the site, such as redis://10.0.0.5:6379/0
  --memory SIZE     : what the site may take, such as 512m (default: 75 % of what is there, less what others use)
  --state DIR       : where pages, certificates and what was measured are kept
  --watch           : for who writes the application: a change of its files, or of what --write wrote, counts at once
  --json            : requests as JSON, for machines
  --print           : prints the configuration and ends
  --write DIR       : writes it to a folder and ends; from then on it is used as it stands there
  --forget          : serves without what --write wrote, from now on
  --explain-sizes   : prints each size with its reason and ends
  --install         : writes a unit of systemd that serves the folder like this from now on, and ends
";

/// The least that a site is sized for, in MB.
const MEMORY_MB_MIN: u64 = 64;

/// What is to be done with the configuration.
#[derive(Debug, Default, Eq, PartialEq)]
enum Task {
    #[default]
    Serve,
    Print,
    Write(PathBuf),
    ExplainSizes,
    Install,
    /// Another program, which ends with this one's parent.
    Child(Vec<OsString>),
}

/// What is to be served, and how.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Serve {
    folder: Option<PathBuf>,
    port: Option<u16>,
    listens: Vec<String>,
    domains: Vec<String>,
    /// Whether HTTPS is by an authority of the site's own.
    is_internal: bool,
    issuer: Option<String>,
    contact: Option<String>,
    cache: Option<String>,
    php: Option<String>,
    proxies: Vec<String>,
    shared: Option<String>,
    memory_mb: Option<u64>,
    state: Option<PathBuf>,
    is_json: bool,
    watches: bool,
    forgets: bool,
    task: Task,
}

impl Serve {
    /// Reads what follows `serve`; `None`: help is wanted.
    ///
    /// # Errors
    /// An option that there is not, or a value that is none.
    pub(crate) fn parse(parser: &mut lexopt::Parser) -> Result<Option<Self>, String> {
        let mut serve = Self::default();
        let failed = |problem: lexopt::Error| problem.to_string();
        while let Some(argument) = parser.next().map_err(failed)? {
            match argument {
                Short('h' | '?') | Long("help") => return Ok(None),
                Long("port") => serve.port = Some(port(&text(parser)?)?),
                Long("listen") => serve.listens.push(listen(text(parser)?)?),
                Long("domain") => serve.domains.push(domain(&text(parser)?)?),
                Long("tls") => serve.is_internal = is_internal(&text(parser)?)?,
                Long("issuer") => serve.issuer = Some(text(parser)?),
                Long("contact") => serve.contact = Some(text(parser)?),
                Long("cache") => serve.cache = Some(time(text(parser)?)?),
                Long("php") => serve.php = Some(program(text(parser)?)),
                Long("proxy") => serve.proxies.push(proxy(text(parser)?)?),
                Long("shared") => serve.shared = Some(shared(text(parser)?)?),
                Long("memory") => serve.memory_mb = Some(memory(&text(parser)?)?),
                Long("state") => serve.state = Some(whole(&text(parser)?)?),
                Long("json") => serve.is_json = true,
                Long("watch") => serve.watches = true,
                Long("forget") => serve.forgets = true,
                Long("print") => serve.task = Task::Print,
                Long("write") => serve.task = Task::Write(text(parser)?.into()),
                Long("explain-sizes") => serve.task = Task::ExplainSizes,
                Long("install") => serve.task = Task::Install,
                Long("child") => {
                    let rest = parser.raw_args().map_err(failed)?;
                    serve.task = Task::Child(rest.collect());
                }
                Value(folder) if serve.folder.is_none() => serve.folder = Some(folder.into()),
                other => return Err(other.unexpected().to_string()),
            }
        }
        serve.fit_together()?;
        Ok(Some(serve))
    }

    fn fit_together(&self) -> Result<(), String> {
        let is_issued = !self.domains.is_empty() && !self.is_internal;
        let needs = |what: &str| {
            format!("\"{what}\" needs \"--domain\", the name that a certificate is for")
        };
        match self {
            Self { port: Some(_), listens, .. } if !listens.is_empty() => {
                Err("\"--port\" and \"--listen\" say the same: one of them is enough".to_owned())
            }
            Self { port: Some(_), .. } if is_issued => {
                Err("\"--domain\" takes the ports 80 and 443: \"--port\" is for a site without one".to_owned())
            }
            Self { listens, .. } if !listens.is_empty() && (is_issued || self.is_internal) => {
                Err("\"--listen\" is for a site without HTTPS: write a configuration with \"--write\", and change that".to_owned())
            }
            Self { issuer: Some(_), .. } if !is_issued => Err(needs("--issuer")),
            Self { contact: Some(_), .. } if !is_issued => Err(needs("--contact")),
            _ => Ok(()),
        }
    }

    /// The options that say how the folder is served, with their values, as they were given.
    fn options(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = Vec::new();
        let mut add = |name, values: &[String]| {
            given.extend(values.iter().map(|value| (name, Some(value.clone()))));
        };
        add("--port", self.port.map(|port| port.to_string()).as_slice());
        add("--listen", &self.listens);
        add("--domain", &self.domains);
        add("--tls", self.is_internal.then(|| "internal".to_owned()).as_slice());
        add("--issuer", self.issuer.as_slice());
        add("--contact", self.contact.as_slice());
        add("--cache", self.cache.as_slice());
        add("--php", self.php.as_slice());
        add("--proxy", &self.proxies);
        add("--shared", self.shared.as_slice());
        add("--memory", self.memory_mb.map(|mb| format!("{mb}m")).as_slice());
        add("--state", self.state.as_ref().map(|path| path.display().to_string()).as_slice());
        let flags = [("--json", self.is_json), ("--watch", self.watches)];
        given.extend(flags.into_iter().filter(|flag| flag.1).map(|flag| (flag.0, None)));
        given
    }

    /// Options that were given about what stands in a configuration.
    fn written_options(&self) -> impl Iterator<Item = &'static str> {
        self.options()
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !["--php", "--state", "--watch"].contains(name))
    }

    /// Does it, until it is told to end.
    ///
    /// # Errors
    /// What stands against it, as one line.
    pub(crate) fn run(&self) -> Result<(), String> {
        if let Task::Child(command) = &self.task {
            return supervise::become_child(command);
        }
        let folder = self.folder.as_deref().unwrap_or_else(|| Path::new("."));
        let folder = readable(folder)?;
        let plan = Plan::of(self, folder)?;
        match &self.task {
            Task::Child(_) => unreachable!("done before"),
            Task::Print => plan.print(),
            Task::ExplainSizes => {
                print!("{}", plan.explained_sizes());
                Ok(())
            }
            Task::Install => plan.install(),
            Task::Write(folder) => plan.write_for_good(folder),
            Task::Serve => plan.serve(),
        }
    }
}

/// The value of an option.
fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(|problem| problem.to_string())?;
    value.into_string().map_err(|value| format!("{} is no text", value.to_string_lossy()))
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("--port \"{text}\": a number from 1 to 65535 was expected"))
}

fn listen(text: String) -> Result<String, String> {
    let is_address = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:[]*_/-".contains(&byte));
    if is_address {
        Ok(text)
    } else {
        Err(format!(
            "--listen \"{text}\": an address was expected, such as 80, 127.0.0.1:8080 or [::]:80"
        ))
    }
}

fn domain(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_plain
            && (1..64).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.split('.').all(is_label) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("--domain \"{text}\": a name was expected, such as shop.example.com"))
    }
}

fn is_internal(text: &str) -> Result<bool, String> {
    if text == "internal" {
        Ok(true)
    } else {
        Err(format!("--tls \"{text}\": \"internal\" was expected"))
    }
}

fn time(text: String) -> Result<String, String> {
    let is_time = text == "off"
        || yorozu_conf::value::time(text.as_bytes()).is_some_and(|time| !time.is_zero());
    if is_time {
        Ok(text)
    } else {
        Err(format!("--cache \"{text}\": a time was expected, such as 30s or 10m, or off"))
    }
}

fn proxy(text: String) -> Result<String, String> {
    let (address, bits) = text.split_once('/').unwrap_or((&text, "0"));
    match address.parse::<std::net::IpAddr>() {
        Ok(_) if bits.parse::<u8>().is_ok_and(|bits| bits <= 128) => Ok(text),
        _ => Err(format!(
            "--proxy \"{text}\": an address was expected, such as 10.0.0.1 or 10.0.0.0/24"
        )),
    }
}

fn shared(text: String) -> Result<String, String> {
    let is_url = ["redis", "unix:"].iter().any(|scheme| text.starts_with(scheme));
    if is_url && !text.contains(['$', '\n', '\r']) {
        Ok(text)
    } else {
        Err(format!(
            "--shared \"{text}\": a Redis was expected, such as redis://10.0.0.5:6379/0 or unix:/run/redis/redis.sock"
        ))
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let mb = yorozu_conf::value::offset(text.as_bytes()).map(|bytes| bytes >> 20);
    mb.filter(|mb| *mb >= MEMORY_MB_MIN).ok_or_else(|| {
        format!("--memory \"{text}\": a size of {MEMORY_MB_MIN}m or more was expected, such as 512m or 2g")
    })
}

/// A program by its whole path, as a unit starts elsewhere; an address as it is.
fn program(text: String) -> String {
    let path = std::path::absolute(&text).ok().filter(|path| path.exists());
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(text)
}

fn whole(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|why| format!("--state \"{path}\": {why}"))
}

/// The folder's whole path, if it can be served.
fn readable(folder: &Path) -> Result<PathBuf, String> {
    let whole =
        fs::canonicalize(folder).map_err(|why| format!("\"{}\": {why}", folder.display()))?;
    if !whole.is_dir() {
        return Err(format!("\"{}\" is no folder", whole.display()));
    }
    fs::read_dir(&whole).map_err(|why| format!("\"{}\" cannot be read: {why}", whole.display()))?;
    let text =
        whole.to_str().ok_or_else(|| format!("\"{}\": its name is no UTF-8", whole.display()))?;
    if text.contains(['$', '\n', '\r']) {
        return Err(format!(
            "\"{text}\": a configuration cannot name a folder with \"$\" or a line break in its path"
        ));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Option<Serve>, String> {
        Serve::parse(&mut lexopt::Parser::from_args(args))
    }

    #[test]
    fn options_are_read() {
        let serve = parsed(&["/var/www/shop", "--port", "81", "--cache", "30s", "--json"])
            .expect("taken")
            .expect("no help");
        assert_eq!(
            (serve.folder, serve.port, serve.cache, serve.is_json),
            (Some("/var/www/shop".into()), Some(81), Some("30s".to_owned()), true)
        );
        let child =
            parsed(&["--child", "php-fpm", "--nodaemonize"]).expect("taken").expect("no help");
        assert_eq!(child.task, Task::Child(vec!["php-fpm".into(), "--nodaemonize".into()]));
        assert_eq!(parsed(&["-h"]), Ok(None));
    }

    #[test]
    fn what_is_no_value_is_refused_by_what_was_expected() {
        for (args, words) in [
            (&["--port", "0"][..], "a number from 1 to 65535"),
            (&["--port", "http"], "a number from 1 to 65535"),
            (&["--cache", "soon"], "a time was expected"),
            (&["--cache", "0"], "a time was expected"),
            (&["--memory", "1m"], "a size of 64m or more"),
            (&["--state", ""], "--state"),
            (&["--proxy", "balancer"], "an address was expected"),
            (&["--shared", "memcached://x"], "a Redis was expected"),
            (&["--listen", "80; evil"], "an address was expected"),
            (&["--port", "80", "--listen", "81"], "one of them is enough"),
            (&["one", "two"], "two"),
            (&["--nothing"], "--nothing"),
        ] {
            let refused = parsed(args).expect_err("refused");
            assert!(refused.contains(words), "{args:?}: {refused}");
        }
    }
}
