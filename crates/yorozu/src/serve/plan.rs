//! What is known of a site, and how it is served.

use super::application::{self, Found};
use super::listen::Listens;
use super::php::{self, Php};
use super::sizes::{self, Machine, Sizes};
use super::supervise::{self, Ended, PHP, Process, SERVER, Supervisor};
use super::text::{self, Site, Tls, Worker};
use super::watch::Watch;
use super::{Serve, Task, https, install};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Group, Uid, User};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{IsTerminal as _, Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is before and behind the token in its file, which the configuration includes.
const TOKEN_LINE: (&str, &str) = ("cache_purge_api token=", ";");
/// Longest path of the folder of sockets, so that each has 107 bytes at most (unix(7)); `pid.server.new` is the longest name.
const SOCKETS_PATH_MAX: usize = 107 - "/pid.server.new".len();

/// Where pages, certificates and what was measured are kept: below XDG_STATE_HOME, and without it below /var/lib for root, else
/// below the user's own state folder.
fn state(folder: &Path) -> PathBuf {
    let name = folder
        .file_name()
        .map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
    let name = format!("{name}-{:08x}", hash(folder));
    let told =
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = told.map(|base| base.join("yorozu")).unwrap_or_else(|| {
        if Uid::effective().is_root() {
            return "/var/lib/yorozu/serve".into();
        }
        let home = std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into());
        Path::new(&home).join(".local/state/yorozu")
    });
    base.join(name)
}

/// Where sockets are: beside what else is kept, or where that path is too long, in a folder of this user for what runs.
fn sockets(state: &Path) -> PathBuf {
    if state.as_os_str().len() <= SOCKETS_PATH_MAX {
        return state.to_owned();
    }
    let user = Uid::effective();
    let told =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let (base, name) = match (user.is_root(), told) {
        (true, _) => ("/run".into(), "yorozu".to_owned()),
        (_, Some(base)) => (base, "yorozu".to_owned()),
        _ => ("/tmp".into(), format!("yorozu-{user}")),
    };
    base.join(format!("{name}-{:08x}", hash(state)))
}

/// A short name for a path.
fn hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() >> 32
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

/// Everything that is known of the site.
pub(super) struct Plan<'a> {
    serve: &'a Serve,
    folder: PathBuf,
    found: Found,
    php: Option<Php>,
    state: PathBuf,
    sockets: PathBuf,
    worker: Option<Worker>,
    machine: Machine,
}

impl<'a> Plan<'a> {
    /// Looks at a folder and the machine.
    ///
    /// # Errors
    /// There is no PHP, or no user to be.
    pub(super) fn of(serve: &'a Serve, folder: PathBuf) -> Result<Self, String> {
        let found = application::look(&folder);
        let needs_php = found.application.runs_php();
        let php = if needs_php { Some(php::find(serve.php.as_deref())?) } else { None };
        let state = serve.state.clone().unwrap_or_else(|| state(&folder));
        let sockets = sockets(&state);
        let (worker, machine) = (worker(&folder)?, Machine::look(serve.memory_mb));
        if serve.shared.is_some()
            && text::pages(serve.cache.as_deref(), found.application.pages).is_none()
        {
            return Err("--shared: no pages are kept here, say --cache 30s".to_owned());
        }
        Ok(Self { serve, folder, found, php, state, sockets, worker, machine })
    }

    /// Each size with its reason.
    pub(super) fn explained_sizes(&self) -> String {
        self.sizes().explained(self.machine, self.process())
    }

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

    fn files(&self, listens: &Listens) -> Vec<(&'static str, String)> {
        let site = Site {
            folder: &self.folder,
            found: &self.found,
            php: self.php.as_ref(),
            sizes: self.sizes(),
            cores: self.machine.cores,
            state: &self.state,
            sockets: &self.sockets,
            worker: self.worker.as_ref(),
            listens,
            names: &self.serve.domains,
            tls: &self.tls(),
            pages: self.pages(),
            proxies: &self.serve.proxies,
            shared: self.serve.shared.as_deref().map(|redis| (redis, node(listens))),
            is_strict: self.serve.cache.is_some(),
            is_json: self.serve.is_json,
            is_watched: self.serve.watches,
        };
        site.files()
    }

    fn tls(&self) -> Tls {
        match (self.serve.is_internal, &self.serve.domains[..]) {
            (true, _) => Tls::Own(self.state.join("tls")),
            (false, []) => Tls::None,
            (false, _) => Tls::Issued {
                directory: self
                    .serve
                    .issuer
                    .clone()
                    .unwrap_or_else(|| https::LETS_ENCRYPT.to_owned()),
                contact: self.serve.contact.clone(),
            },
        }
    }

    fn listens(&self) -> Result<Listens, String> {
        match self.tls() {
            Tls::Issued { .. } => Ok(Listens::of_world()),
            Tls::None if !self.serve.listens.is_empty() => {
                Ok(Listens { plain: self.serve.listens.clone(), secure: Vec::new() })
            }
            tls => Listens::of_machine(
                self.serve.port,
                tls != Tls::None,
                self.serve.task == Task::Serve,
            ),
        }
    }

    /// Has what HTTPS needs before the server starts.
    fn secure(&self) -> Result<(), String> {
        match self.tls() {
            Tls::None => Ok(()),
            Tls::Own(folder) => {
                let mut names = self.serve.domains.clone();
                names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
                https::make_own(&folder, &self.folder.display().to_string(), &names)
            }
            Tls::Issued { .. } => https::lead_here(&self.serve.domains, 80),
        }
    }

    pub(super) fn print(&self) -> Result<(), String> {
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
    pub(super) fn write_for_good(&self, folder: &Path) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let whole = fs::canonicalize(folder).map_err(failed)?;
        let mut differ = Vec::new();
        let listens = self.listens()?;
        for (name, text) in self.files(&listens) {
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
        self.make_folders(&listens)?;
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
    ///
    /// # Errors
    /// Others could have written there: what this process does with it would be theirs.
    fn written(&self) -> Result<Option<PathBuf>, String> {
        let file = self.state.join("written");
        if self.serve.forgets {
            let _ = fs::remove_file(&file);
        }
        let Ok(folder) = fs::read_to_string(file).map(PathBuf::from) else { return Ok(None) };
        let files = ["nginx.conf", "php-fpm.conf", ""].map(|name| folder.join(name));
        if !files[0].is_file() {
            return Ok(None);
        }
        let is_ours = |path: &Path| {
            fs::metadata(path).is_ok_and(|it| {
                [0, Uid::effective().as_raw()].contains(&it.uid()) && it.mode() & 0o022 == 0
            })
        };
        if let Some(path) = files.iter().find(|path| path.exists() && !is_ours(path)) {
            return Err(format!(
                "\"{}\" can be changed by others than who runs this: chown and chmod go-w it, or --forget it",
                path.display()
            ));
        }
        Ok(Some(folder))
    }

    /// Leaves a unit of systemd that serves the folder as this command would, and says how it is started.
    pub(super) fn install(&self) -> Result<(), String> {
        let own = std::env::current_exe().map_err(|why| why.to_string())?;
        let mut command = vec![own.display().to_string(), "serve".to_owned()];
        command.push(self.folder.display().to_string());
        for (option, value) in self.serve.options() {
            command.push(option.to_owned());
            command.extend(value);
        }
        let site = self.serve.domains.first().map(String::as_str);
        let site = site.or_else(|| self.state.file_name()?.to_str()).unwrap_or("site");
        install::install(site, &self.folder, &command)
    }

    pub(super) fn serve(&self) -> Result<(), String> {
        make_folder(&self.state)?;
        let lock = supervise::lock(&self.state.join("lock"));
        let mut lock =
            lock.map_err(|who| format!("\"{}\" is served already: {who}", self.folder.display()))?;
        let written = self.written()?;
        let listens = match &written {
            Some(folder) => Listens::of_folder(folder),
            None => self.listens()?,
        };
        let folder = written.clone().unwrap_or_else(|| self.state.join("conf"));
        self.make_folders(&listens)?;
        if written.is_none() {
            self.secure()?;
            self.write(&folder, &listens)?;
        }
        let url = listens.url(&self.serve.domains);
        let _ = lock.set_len(0).and_then(|()| lock.rewind());
        let _ = writeln!(lock, "{url} by process {}", std::process::id());
        let watched = [&self.folder].into_iter().chain(&written).map(PathBuf::as_path);
        let watch = self.serve.watches.then(|| Watch::of(watched)).transpose()?;
        let mut supervisor = Supervisor::new(self.processes(&folder, &listens)?, watch)?;
        let (address, socket) = (listens.probe(), self.sockets.join(text::PHP_SOCKET));
        let is_up = supervisor.start(|name| match name {
            PHP => UnixStream::connect(&socket).is_ok(),
            _ => address.is_none_or(|address| {
                TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
            }),
        })?;
        if !is_up {
            return Ok(());
        }
        let configuration = fs::read_to_string(folder.join("nginx.conf"));
        let has_console = configuration.is_ok_and(|text| text.contains(text::CONSOLE_PATH));
        self.introduce(&url, has_console, written.as_deref());
        let measured = self.state.join("process-kb");
        loop {
            let looked = match supervisor.run(|fpm| remember(fpm, &measured)) {
                Ended::Asked => break,
                Ended::Changed(file) if !file.starts_with(&folder) => {
                    self.forget_pages(&folder, &file);
                    continue;
                }
                Ended::Changed(_) => Ok(()),
                Ended::Reload if written.is_some() => Ok(()),
                Ended::Reload => self.again(&folder, &listens),
            };
            match looked {
                Ok(()) => supervisor.reload(),
                Err(why) => eprintln!("yorozu: [error] nothing is changed: {why}"),
            }
        }
        drop(supervisor);
        Ok(())
    }

    /// Has the server forget its pages, which a change of this file may have made old.
    fn forget_pages(&self, conf: &Path, file: &Path) {
        let file = file.strip_prefix(&self.folder).unwrap_or(file).display();
        if self.pages().is_none() {
            return;
        }
        let done = std::env::current_exe().and_then(|own| {
            let mut command = std::process::Command::new(own);
            command.arg("-p").arg(conf.join("")).arg("-c").arg(conf.join("nginx.conf"));
            command.args(["purge", "--all"]).output()
        });
        match done {
            Ok(output) if output.status.success() => {
                eprintln!("yorozu: [notice] {file} was changed: pages are made again");
            }
            Ok(output) => eprint!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(why) => eprintln!("yorozu: [error] {file} was changed, pages are kept: {why}"),
        }
    }

    /// Looks at folder and machine again, and writes what that comes to.
    fn again(&self, folder: &Path, listens: &Listens) -> Result<(), String> {
        let plan = Plan::of(self.serve, self.folder.clone())?;
        if let Tls::Own(_) = plan.tls() {
            plan.secure()?;
        }
        plan.write(folder, listens)
    }

    fn write(&self, folder: &Path, listens: &Listens) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        self.files(listens)
            .into_iter()
            .try_for_each(|(name, text)| fs::write(folder.join(name), text))
            .map_err(failed)
    }

    /// Makes what the configuration names and is not the server's to make.
    fn make_folders(&self, listens: &Listens) -> Result<(), String> {
        for folder in [&self.state, &self.state.join("tmp"), &self.sockets] {
            make_folder(folder)?;
        }
        if listens.are_local() {
            make_token(&self.state.join(text::CONSOLE_TOKEN), "", "")?;
        }
        if self.php.is_some() && self.pages().is_some() {
            self.purge_token()?;
        }
        Ok(())
    }

    /// The token that pages are purged by: the one that the environment names, for a PHP in another container, else one of the site's own.
    fn purge_token(&self) -> Result<String, String> {
        let file = self.state.join(text::TOKEN);
        let told = std::env::var("YOROZU_TOKEN").unwrap_or_default();
        if told.is_empty() {
            return make_token(&file, TOKEN_LINE.0, TOKEN_LINE.1);
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/=".contains(&byte);
        if told.len() < 16 || !told.bytes().all(is_plain) {
            return Err(
                "YOROZU_TOKEN: 16 or more letters, digits and -_.+/= were expected".to_owned()
            );
        }
        write_token(&file, &format!("{}{told}{}", TOKEN_LINE.0, TOKEN_LINE.1))?;
        Ok(told)
    }

    /// What PHP needs to purge pages, where any are kept.
    fn purges(&self, listens: &Listens) -> Result<Vec<(&'static str, String)>, String> {
        let url = listens.own_url(matches!(self.tls(), Tls::Issued { .. }));
        let Some(url) = url.filter(|_| self.pages().is_some()) else { return Ok(Vec::new()) };
        let mut told =
            vec![("YOROZU_URL", url + text::PURGE_PATH), ("YOROZU_TOKEN", self.purge_token()?)];
        // What purges its pages need not have them forgotten by time.
        if self.serve.cache.is_none() {
            told.push(("YOROZU_SECONDS", "86400".to_owned()));
        }
        Ok(told)
    }

    fn processes(&self, folder: &Path, listens: &Listens) -> Result<Vec<Process>, String> {
        let mut processes = Vec::new();
        if let Some(Php::Own { program, .. }) = &self.php {
            let args = [
                "--nodaemonize".into(),
                "--fpm-config".into(),
                folder.join("php-fpm.conf").into_os_string(),
            ];
            let purges = self.purges(listens)?;
            processes.push(Process::new(PHP, program, args.to_vec(), purges, Signal::SIGUSR2));
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
        processes.push(Process::new(SERVER, &own, args.to_vec(), Vec::new(), Signal::SIGHUP));
        Ok(processes)
    }

    /// Says what was found, and where it is served.
    fn introduce(&self, url: &str, has_console: bool, written: Option<&Path>) {
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
        let kept = if written.is_none() { self.pages() } else { None };
        match (&self.php, kept) {
            _ if written.is_some() => {}
            (Some(_), Some(time)) => eprintln!(
                "yorozu: pages are kept for {time} for visitors without a login or a session (--cache off: not at all)"
            ),
            (Some(_), None) => eprintln!(
                "yorozu: no pages are kept; --cache 30s keeps those for visitors without a session, who may see one that is 30 seconds old"
            ),
            (None, _) => {}
        }
        let token = fs::read_to_string(self.state.join(text::CONSOLE_TOKEN)).ok();
        if let Some(token) = token.filter(|_| has_console) {
            eprintln!(
                "yorozu: its console is at {}{}#token={}",
                url.trim_end_matches('/'),
                text::CONSOLE_PATH,
                token.trim()
            );
        }
        match self.tls() {
            Tls::Own(folder) => eprintln!(
                "yorozu: browsers trust it that import {} (curl --cacert)",
                folder.join("authority.crt").display()
            ),
            Tls::Issued { .. } => eprintln!(
                "yorozu: a certificate is ordered, and with that the issuer's terms are accepted; until it is there browsers warn"
            ),
            Tls::None => {}
        }
        if let Some(folder) = written {
            eprintln!("yorozu: as {} says (--forget: as this version would)", folder.display());
            for option in self.serve.written_options() {
                eprintln!(
                    "yorozu: [warn] \"{option}\" counts for nothing: {}/nginx.conf says it",
                    folder.display()
                );
            }
        }
        eprintln!("yorozu: {}{url}{} - Ctrl-C ends it", strong.0, strong.1);
    }
}

/// What this machine is called among those that share pages: by its own name, and the port, as one may have several.
fn node(listens: &Listens) -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    let port = listens.probe().map_or(0, |address| address.port());
    let is_plain = |sign: &char| sign.is_ascii_alphanumeric() || "-.".contains(*sign);
    format!("{}-{port}", name.to_string_lossy().chars().filter(is_plain).collect::<String>())
}

/// Makes a folder that no other user can write to.
fn make_folder(folder: &Path) -> Result<(), String> {
    let failed = |why: std::io::Error| format!("\"{}\": {why}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let is_root = Uid::effective().is_root();
    let mode = if is_root { 0o755 } else { 0o700 };
    fs::set_permissions(folder, fs::Permissions::from_mode(mode)).map_err(failed)
}

/// The token in a file, between these texts; it is made where there is none.
fn make_token(file: &Path, before: &str, after: &str) -> Result<String, String> {
    let known = fs::read_to_string(file).ok();
    let known = known
        .and_then(|text| Some(text.trim().strip_prefix(before)?.strip_suffix(after)?.to_owned()))
        .filter(|token| !token.is_empty());
    if let Some(token) = known {
        return Ok(token);
    }
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|why| format!("\"/dev/urandom\": {why}"))?;
    let token = format!("{:032x}", u128::from_ne_bytes(bytes));
    write_token(file, &format!("{before}{token}{after}"))?;
    Ok(token)
}

fn write_token(file: &Path, line: &str) -> Result<(), String> {
    https::write(file, &format!("{line}\n"), 0o600)
        .map_err(|why| format!("\"{}\": {why}", file.display()))
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
