//! `yorozu serve`: a PHP application in one command. It looks at a folder, writes the configuration that its application needs, and keeps
//! PHP-FPM and the server running.

mod application;
mod php;
mod sizes;
mod supervise;
mod text;

use application::Found;
use lexopt::prelude::*;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Group, Uid, User};
use php::Php;
use sizes::{Machine, Sizes};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{IsTerminal as _, Seek as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use supervise::{Ended, PHP, Process, SERVER, Supervisor};
use text::{Site, Worker};

/// The text of `yorozu serve -h`.
pub(crate) const HELP: &str = "\
Usage: yorozu serve [OPTION ...] [FOLDER]

Serves the PHP application in a folder, the current one if none is named: it finds out which one it is, starts PHP for it as the
folder's owner, and sizes both to the machine. Ctrl-C ends all of it.

Options:
  --port N          : port (default: 8080, the next free one if that is taken)
  --listen ADDRESS  : where to listen, as \"listen\" has it (default: this machine alone); may be repeated
  --cache TIME      : keeps pages for visitors without a session that long; off: keeps none
  --php WHERE       : a PHP-FPM to start (a program), or one that runs (a socket, an address)
  --json            : requests as JSON, for machines
  --print           : prints the configuration and ends
  --write DIR       : writes it to a folder and ends; from then on it is used as it stands there
  --forget          : no longer uses what --write wrote
  --explain-sizes   : prints each size with its reason and ends
";

/// The port that is tried first.
const PORT: u16 = 8080;
/// How many are tried after it.
const PORTS: u16 = 20;
/// Longest path of a socket (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// What is to be done with the configuration.
#[derive(Debug, Default, Eq, PartialEq)]
enum Task {
    #[default]
    Serve,
    Print,
    Write(PathBuf),
    ExplainSizes,
    /// Another program, which ends with this one's parent.
    Child(Vec<OsString>),
}

/// What is to be served, and how.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Serve {
    folder: Option<PathBuf>,
    port: Option<u16>,
    listens: Vec<String>,
    cache: Option<String>,
    php: Option<String>,
    is_json: bool,
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
                Long("cache") => serve.cache = Some(time(text(parser)?)?),
                Long("php") => serve.php = Some(text(parser)?),
                Long("json") => serve.is_json = true,
                Long("forget") => serve.forgets = true,
                Long("print") => serve.task = Task::Print,
                Long("write") => serve.task = Task::Write(text(parser)?.into()),
                Long("explain-sizes") => serve.task = Task::ExplainSizes,
                Long("child") => {
                    let rest = parser.raw_args().map_err(failed)?;
                    serve.task = Task::Child(rest.collect());
                }
                Value(folder) if serve.folder.is_none() => serve.folder = Some(folder.into()),
                other => return Err(other.unexpected().to_string()),
            }
        }
        if serve.port.is_some() && !serve.listens.is_empty() {
            return Err(
                "\"--port\" and \"--listen\" say the same: one of them is enough".to_owned()
            );
        }
        Ok(Some(serve))
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
        let found = application::look(&folder);
        let php =
            if found.application.runs_php() { Some(php::find(self.php.as_deref())?) } else { None };
        let state = state(&folder);
        let machine = Machine::look();
        let plan =
            Plan { serve: self, worker: worker(&folder)?, folder, found, php, state, machine };
        match &self.task {
            Task::Child(_) => unreachable!("done before"),
            Task::Print => plan.print(),
            Task::ExplainSizes => {
                print!("{}", plan.sizes().explained(machine, plan.process()));
                Ok(())
            }
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

fn time(text: String) -> Result<String, String> {
    let is_time = text == "off"
        || yorozu_conf::value::time(text.as_bytes()).is_some_and(|time| !time.is_zero());
    if is_time {
        Ok(text)
    } else {
        Err(format!("--cache \"{text}\": a time was expected, such as 30s or 10m, or off"))
    }
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

/// Where sockets, pages and what was measured are kept: for root below /var/lib, else below the user's own state folder.
fn state(folder: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    let name = folder
        .file_name()
        .map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
    let name = format!("{name}-{:08x}", hasher.finish() >> 32);
    if Uid::effective().is_root() {
        return Path::new("/var/lib/yorozu/serve").join(name);
    }
    let base =
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || {
        Path::new(&std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".local/state")
    };
    base.unwrap_or_else(home).join("yorozu").join(name)
}

/// Who the server and PHP are where root starts them: the folder's owner, who is not root.
fn worker(folder: &Path) -> Result<Option<Worker>, String> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let metadata = fs::metadata(folder).map_err(|why| why.to_string())?;
    let owner = User::from_uid(Uid::from_raw(metadata.uid())).ok().flatten();
    let owner = owner.filter(|user| !user.uid.is_root());
    let other =
        || ["www-data", "daemon"].iter().find_map(|name| User::from_name(name).ok().flatten());
    let user = owner.or_else(other).ok_or(
        "there is no user but root: make one (adduser --system site), and give it the folder",
    )?;
    let group = Group::from_gid(Gid::from_raw(user.gid.as_raw())).ok().flatten();
    let group = group.map_or_else(|| user.gid.to_string(), |group| group.name);
    Ok(Some(Worker { user: user.name, group }))
}

/// Who has a port of this machine: a program's name and process.
fn holder(port: u16) -> Option<String> {
    let socket_of = |text: String| {
        let wanted = format!(":{port:04X}");
        text.lines().skip(1).find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_it = fields.get(1)?.ends_with(&wanted) && fields.get(3) == Some(&"0A");
            is_it.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
        })
    };
    let socket = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|file| fs::read_to_string(file).ok().and_then(socket_of))?;
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let has_it = |process: &PathBuf| {
        let links = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .any(|to| to.as_os_str() == &*socket)
    };
    let mut holders = processes
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
        })
        .filter(has_it);
    let process = holders.next()?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(format!("{} (process {})", name.trim(), process.file_name()?.to_string_lossy()))
}

/// Everything that is known of the site.
struct Plan<'a> {
    serve: &'a Serve,
    folder: PathBuf,
    found: Found,
    php: Option<Php>,
    state: PathBuf,
    worker: Option<Worker>,
    machine: Machine,
}

impl Plan<'_> {
    /// What a process of PHP takes: as it was measured, else as is usual.
    fn process(&self) -> Option<sizes::Process> {
        let known = fs::read_to_string(self.state.join("process-kb")).ok();
        let known = known.and_then(|text| text.trim().parse::<u64>().ok());
        self.php.as_ref().map(|_| match known {
            Some(kb) => sizes::Process { mb: kb.div_ceil(1024).max(1), is_measured: true },
            None => sizes::Process { mb: self.found.application.process_mb, is_measured: false },
        })
    }

    fn sizes(&self) -> Sizes {
        Sizes::of(self.machine, self.process())
    }

    fn pages(&self) -> Option<&str> {
        text::pages(self.serve.cache.as_deref(), self.found.application.pages)
    }

    fn files(&self, listens: &[String]) -> Vec<(&'static str, String)> {
        let site = Site {
            folder: &self.folder,
            found: &self.found,
            php: self.php.as_ref(),
            sizes: self.sizes(),
            cores: self.machine.cores,
            state: &self.state,
            worker: self.worker.as_ref(),
            listens,
            pages: self.pages(),
            is_json: self.serve.is_json,
        };
        site.files()
    }

    /// Where to listen, and the port of that for a URL; the next one for a port that is taken, unless it was asked for.
    fn listens(&self) -> Result<Vec<String>, String> {
        if !self.serve.listens.is_empty() {
            return Ok(self.serve.listens.clone());
        }
        let is_free = |port: u16| TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port)));
        let first = self.serve.port.unwrap_or(PORT);
        let port = match is_free(first) {
            Ok(_) => first,
            Err(why) if why.kind() == std::io::ErrorKind::AddrInUse => {
                let who = holder(first).unwrap_or_else(|| "another program".to_owned());
                let mut others = first + 1..=first.saturating_add(PORTS);
                match others.find(|port| self.serve.port.is_none() && is_free(*port).is_ok()) {
                    Some(other) => {
                        eprintln!(
                            "yorozu: [notice] port {first} is taken by {who}: port {other} is used"
                        );
                        other
                    }
                    None => return Err(format!("port {first} is taken by {who}")),
                }
            }
            Err(why) => return Err(format!("port {first} cannot be used: {why}")),
        };
        let has_v6 = TcpListener::bind(format!("[::1]:{port}")).is_ok();
        let mut listens = vec![format!("127.0.0.1:{port}")];
        listens.extend(has_v6.then(|| format!("[::1]:{port}")));
        Ok(listens)
    }

    fn print(&self) -> Result<(), String> {
        let listens = self.listens()?;
        let mut out = std::io::stdout().lock();
        for (name, text) in self.files(&listens) {
            if matches!(name, "mime.types" | "fastcgi_params") {
                continue;
            }
            writeln!(out, "# configuration file {name}:\n{}", text.trim_end())
                .map_err(|why| why.to_string())?;
        }
        Ok(())
    }

    /// Leaves the configuration in a folder, which is used from then on. What is there stays as it is.
    fn write_for_good(&self, folder: &Path) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let whole = fs::canonicalize(folder).map_err(failed)?;
        let mut differ = Vec::new();
        for (name, text) in self.files(&self.listens()?) {
            let path = whole.join(name);
            match fs::read_to_string(&path) {
                Ok(there) if there == text => {}
                Ok(_) => {
                    let new = whole.join(format!("{name}.new"));
                    fs::write(&new, text).map_err(failed)?;
                    differ.push(name);
                }
                Err(_) => fs::write(&path, text).map_err(failed)?,
            }
        }
        make_state(&self.state)?;
        fs::write(self.state.join("written"), whole.as_os_str().as_encoded_bytes())
            .map_err(failed)?;
        println!(
            "{}: used from now on by \"yorozu serve {}\"",
            whole.display(),
            self.folder.display()
        );
        for name in differ {
            println!(
                "{name} is another one there, and was not changed: this version's is {name}.new beside it (diff -u {0}/{name} {0}/{name}.new)",
                whole.display()
            );
        }
        Ok(())
    }

    /// The folder that `--write` left, if it did.
    fn written(&self) -> Option<PathBuf> {
        let file = self.state.join("written");
        if self.serve.forgets {
            let _ = fs::remove_file(&file);
        }
        let folder = PathBuf::from(fs::read_to_string(file).ok()?);
        folder.join("nginx.conf").is_file().then_some(folder)
    }

    fn serve(&self) -> Result<(), String> {
        make_state(&self.state)?;
        let socket = self.state.join("php.sock");
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(format!(
                "\"{}\" is too long for a socket's path: set XDG_STATE_HOME to a shorter one",
                socket.display()
            ));
        }
        let lock = supervise::lock(&self.state.join("lock"));
        let mut lock =
            lock.map_err(|who| format!("\"{}\" is served already: {who}", self.folder.display()))?;
        let written = self.written();
        let listens = match &written {
            Some(folder) => listens_of(folder),
            None => self.listens()?,
        };
        let folder = written.clone().unwrap_or_else(|| self.state.join("conf"));
        if written.is_none() {
            self.write(&folder, &listens)?;
        }
        let url = url(&listens);
        let _ = lock.set_len(0).and_then(|()| lock.rewind());
        let _ = writeln!(lock, "{url} by process {}", std::process::id());
        let mut supervisor = Supervisor::new(self.processes(&folder)?)?;
        let address = probe(&listens);
        let is_up = supervisor.start(|name| match name {
            PHP => UnixStream::connect(&socket).is_ok(),
            _ => address.is_none_or(|address| {
                TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
            }),
        })?;
        if !is_up {
            return Ok(());
        }
        self.introduce(&url, written.as_deref());
        let measured = self.state.join("process-kb");
        while supervisor.run(|fpm| remember(fpm, &measured)) == Ended::Reload {
            if written.is_none() {
                let plan = Plan {
                    serve: self.serve,
                    folder: self.folder.clone(),
                    found: application::look(&self.folder),
                    php: self.php.clone(),
                    state: self.state.clone(),
                    worker: self.worker.clone(),
                    machine: Machine::look(),
                };
                plan.write(&folder, &listens)?;
            }
            supervisor.reload();
        }
        drop(supervisor);
        Ok(())
    }

    fn write(&self, folder: &Path, listens: &[String]) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        self.files(listens)
            .into_iter()
            .try_for_each(|(name, text)| fs::write(folder.join(name), text))
            .map_err(failed)
    }

    fn processes(&self, folder: &Path) -> Result<Vec<Process>, String> {
        let mut processes = Vec::new();
        if let Some(Php::Own { program, .. }) = &self.php {
            let args = [
                "--nodaemonize".into(),
                "--fpm-config".into(),
                folder.join("php-fpm.conf").into_os_string(),
            ];
            processes.push(Process::new(PHP, program, args.to_vec(), Signal::SIGUSR2));
        }
        let own = std::env::current_exe().map_err(|why| why.to_string())?;
        let mut prefix = folder.as_os_str().to_owned();
        prefix.push("/");
        let args = [
            "-p".into(),
            prefix,
            "-e".into(),
            "stderr".into(),
            "-c".into(),
            folder.join("nginx.conf").into_os_string(),
            "-g".into(),
            "daemon off;".into(),
        ];
        processes.push(Process::new(SERVER, &own, args.to_vec(), Signal::SIGHUP));
        Ok(processes)
    }

    /// Says what was found, and where it is served.
    fn introduce(&self, url: &str, written: Option<&Path>) {
        let strong =
            if std::io::stderr().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let root = self
            .found
            .root
            .strip_prefix(&self.folder)
            .ok()
            .filter(|root| !root.as_os_str().is_empty());
        let root = root.map_or_else(String::new, |root| {
            format!(", of which visitors see {}/", root.display())
        });
        eprintln!("yorozu: {} in {}{root}", self.found.application.name, self.folder.display());
        match &self.php {
            Some(Php::Own { version, .. }) => eprintln!(
                "yorozu: PHP {version}, up to {} processes{}",
                self.sizes().children,
                self.worker.as_ref().map_or_else(String::new, |it| format!(" as {}", it.user))
            ),
            Some(Php::Running(address)) => eprintln!("yorozu: PHP at {address}"),
            None => {}
        }
        match (&self.php, self.pages()) {
            (Some(_), Some(time)) => eprintln!(
                "yorozu: pages are kept for {time} for visitors without a login or a session (--cache off: not at all)"
            ),
            (Some(_), None) => eprintln!(
                "yorozu: no pages are kept; --cache 30s keeps those for visitors without a session, who may see one that is 30 seconds old"
            ),
            (None, _) => {}
        }
        if let Some(folder) = written {
            eprintln!("yorozu: as {} says (--forget: as this version would)", folder.display());
        }
        eprintln!("yorozu: {}{url}{} - Ctrl-C ends it", strong.0, strong.1);
    }
}

/// Where the configuration of a folder listens.
fn listens_of(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("nginx.conf")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("listen "));
    let words = lines.filter_map(|rest| rest.split([' ', ';']).find(|word| !word.is_empty()));
    words.map(str::to_owned).collect()
}

fn make_state(state: &Path) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("\"{}\": {why}", state.display());
    fs::create_dir_all(state.join("tmp")).map_err(failed)?;
    let mode = if Uid::effective().is_root() { 0o755 } else { 0o700 };
    fs::set_permissions(state, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Keeps the size of the largest process of PHP for the next start or reload.
fn remember(fpm: nix::unistd::Pid, file: &Path) {
    let Some(kb) = supervise::largest_child(fpm) else { return };
    let known = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // Processes that have done little yet say little.
    if known.is_none_or(|known| kb > known) {
        let _ = fs::write(file, kb.to_string());
    }
}

/// An address that answers when the site does; none for a socket of a file.
fn probe(listens: &[String]) -> Option<SocketAddr> {
    let first = listens.first()?;
    let (host, port) = match first.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => match first.parse::<u16>() {
            Ok(port) => ("*", port),
            Err(_) => (&**first, 80),
        },
    };
    match host.trim_matches(['[', ']']) {
        "*" | "0.0.0.0" | "::" | "localhost" => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        host => Some(SocketAddr::new(host.parse().ok()?, port)),
    }
}

fn url(listens: &[String]) -> String {
    match probe(listens) {
        Some(address) if address.port() == 80 => "http://localhost/".to_owned(),
        Some(address) if address.ip().is_loopback() => {
            format!("http://localhost:{}/", address.port())
        }
        Some(address) => format!("http://{address}/"),
        None => listens.first().cloned().unwrap_or_default(),
    }
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
            (&["--listen", "80; evil"], "an address was expected"),
            (&["--port", "80", "--listen", "81"], "one of them is enough"),
            (&["one", "two"], "two"),
            (&["--nothing"], "--nothing"),
        ] {
            let refused = parsed(args).expect_err("refused");
            assert!(refused.contains(words), "{args:?}: {refused}");
        }
    }

    #[test]
    fn urls_are_those_a_person_opens() {
        for (listen, url_of) in [
            ("127.0.0.1:8080", "http://localhost:8080/"),
            ("80", "http://localhost/"),
            ("0.0.0.0:81", "http://localhost:81/"),
            ("[::]:8080", "http://localhost:8080/"),
            ("192.0.2.1:8080", "http://192.0.2.1:8080/"),
        ] {
            assert_eq!(url(&[listen.to_owned()]), url_of);
        }
    }
}
