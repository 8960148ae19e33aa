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
pub(crate) mod supervise;
mod text;
mod watch;

use crate::output::show;
use clap::{ArgGroup, Args};
use plan::Plan;
use std::fs;
use std::path::{Path, PathBuf};

/// The least that a site is sized for, in MB.
const MEMORY_MB_MIN: u64 = 64;

/// What is to be served, and how.
#[derive(Debug, Default, Eq, PartialEq, Args)]
#[command(group = ArgGroup::new("task").args(["prints", "write", "explains_sizes", "installs"]))]
pub(crate) struct Serve {
    /// Folder of the application [default: the current one]
    folder: Option<PathBuf>,
    /// Port to listen on [default: 8080, the next free one if that is taken]
    #[arg(long, value_name = "N", value_parser = port)]
    port: Option<u16>,
    /// Name of the site, for which a certificate is ordered: ports 80 and 443; may be repeated
    #[arg(long = "domain", value_name = "NAME", value_parser = domain)]
    domains: Vec<String>,
    /// HTTPS by an authority of the site's own, on the port after --port
    #[arg(long, value_name = "internal", value_parser = ["internal"], hide_possible_values = true)]
    tls: Option<String>,
    /// Issuer of certificates [default: Let's Encrypt]
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Address that the issuer may write to
    #[arg(long, value_name = "EMAIL")]
    contact: Option<String>,
    /// Address to listen on, as "listen" has it [default: this machine only]; may be repeated
    #[arg(long = "listen", value_name = "ADDRESS", value_parser = listen)]
    listens: Vec<String>,
    /// How long to keep pages for visitors without a session; off: not at all
    #[arg(long, value_name = "TIME", value_parser = time)]
    cache: Option<String>,
    /// PHP-FPM to start (a program), or one that runs (a socket, an address)
    #[arg(long, value_name = "WHERE", value_parser = program)]
    php: Option<String>,
    /// Proxy in front that is trusted about visitors' addresses and HTTPS; may be repeated
    #[arg(long = "proxy", value_name = "ADDRESS", value_parser = proxy)]
    proxies: Vec<String>,
    /// Redis by which pages and purges are shared with other machines that serve the site, such as redis://10.0.0.5:6379/0
    #[arg(long, value_name = "REDIS", value_parser = shared)]
    shared: Option<String>,
    /// Memory that the site may take, such as 512m [default: 75 % of what is there, less what others use]
    #[arg(long = "memory", value_name = "SIZE", value_parser = memory)]
    memory_mb: Option<u64>,
    /// Folder for pages, certificates and what was measured
    #[arg(long, value_name = "DIR", value_parser = whole)]
    state: Option<PathBuf>,
    /// For development: a change of the application's files, or of what --write wrote, counts at once
    #[arg(long = "watch")]
    watches: bool,
    /// Print requests as JSON
    #[arg(long = "json")]
    is_json: bool,
    /// Print the configuration, then exit
    #[arg(long = "print")]
    prints: bool,
    /// Write the configuration to a folder, then exit; from then on it is used as it stands there
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// From now on, serve without what --write wrote
    #[arg(long = "forget")]
    forgets: bool,
    /// Print each size with its reason, then exit
    #[arg(long = "explain-sizes")]
    explains_sizes: bool,
    /// Write a systemd unit that serves the folder like this from now on, then exit
    #[arg(long = "install")]
    installs: bool,
}

impl Serve {
    /// Whether the site has an authority of its own.
    fn is_internal(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether it is served now, and nothing else is asked for.
    fn is_served(&self) -> bool {
        !(self.prints || self.explains_sizes || self.installs || self.write.is_some())
    }

    /// What is wrong with options that were given together.
    ///
    /// # Errors
    /// Two that exclude each other, or one that needs another.
    pub(crate) fn fit_together(&self) -> Result<(), String> {
        let is_issued = !self.domains.is_empty() && !self.is_internal();
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
            Self { listens, .. } if !listens.is_empty() && (is_issued || self.is_internal()) => {
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
        add("--tls", self.tls.as_slice());
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
        let folder = self.folder.as_deref().unwrap_or_else(|| Path::new("."));
        let folder = readable(folder)?;
        let plan = Plan::of(self, folder)?;
        if self.prints {
            return plan.print();
        }
        if self.explains_sizes {
            return show(&plan.explained_sizes());
        }
        match &self.write {
            _ if self.installs => plan.install(),
            Some(folder) => plan.write_for_good(folder),
            None => plan.serve(),
        }
    }
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("--port \"{text}\": a number from 1 to 65535 was expected"))
}

fn listen(text: &str) -> Result<String, String> {
    let is_address = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:[]*_/-".contains(&byte));
    if is_address {
        Ok(text.to_owned())
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

fn time(text: &str) -> Result<String, String> {
    let is_time = text == "off"
        || yorozu_conf::value::time(text.as_bytes()).is_some_and(|time| !time.is_zero());
    if is_time {
        Ok(text.to_owned())
    } else {
        Err(format!("--cache \"{text}\": a time was expected, such as 30s or 10m, or off"))
    }
}

fn proxy(text: &str) -> Result<String, String> {
    let (address, bits) = text.split_once('/').unwrap_or((text, "0"));
    match address.parse::<std::net::IpAddr>() {
        Ok(_) if bits.parse::<u8>().is_ok_and(|bits| bits <= 128) => Ok(text.to_owned()),
        _ => Err(format!(
            "--proxy \"{text}\": an address was expected, such as 10.0.0.1 or 10.0.0.0/24"
        )),
    }
}

fn shared(text: &str) -> Result<String, String> {
    let is_url = ["redis", "unix:"].iter().any(|scheme| text.starts_with(scheme));
    if is_url && !text.contains(['$', '\n', '\r']) {
        Ok(text.to_owned())
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
#[expect(clippy::unnecessary_wraps, reason = "what clap calls may fail")]
fn program(text: &str) -> Result<String, String> {
    let path = std::path::absolute(text).ok().filter(|path| path.exists());
    Ok(path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| text.to_owned()))
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
    use crate::command_line::tests::refused;

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
            let refused = refused(&[&["serve"], args].concat());
            assert!(refused.contains(words), "{args:?}: {refused}");
        }
    }
}
