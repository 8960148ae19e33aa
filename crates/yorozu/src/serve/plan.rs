//! What is known of a site, and how it is served.

use super::application::{self, Found};
use super::kept::{
    is_ours, make_folder, make_token, may_keep, remember, short_name, sockets, state, write_token,
};
use super::listen::Listens;
use super::php::{self, Php};
use super::sizes::{self, Machine, Sizes};
use super::supervise::{self, Ended, PHP, Process, SERVER, Supervisor};
use super::text::{self, Site, Tls, Worker};
use super::watch::Watch;
use super::{Serve, https, install};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Group, Uid, User};
use std::fs;
use std::io::{IsTerminal as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is before and behind the token in its file, which the configuration includes.
const TOKEN_LINE: (&str, &str) = ("cache_purge_api token=", ";");
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
        may_keep(&state, &found.root)?;
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
        match (self.serve.is_internal(), &self.serve.domains[..]) {
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
            tls => Listens::of_machine(self.serve.port, tls != Tls::None, self.serve.is_served()),
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
        install::install(&short_name(&self.folder), &self.folder, &command)
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
        let configuration = fs::read_to_string(folder.join("nginx.conf")).unwrap_or_default();
        let keeps = configuration.contains(text::PURGE_PATH);
        let has_console = configuration.contains(text::CONSOLE_PATH);
        let told = if keeps { self.purges(&listens, written.is_none())? } else { Vec::new() };
        let mut supervisor = Supervisor::new(self.processes(&folder, told)?, watch)?;
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
        self.introduce(&url, has_console, written.as_deref());
        let measured = self.state.join("process-kb");
        loop {
            let looked = match supervisor.run(|fpm| remember(fpm, &measured)) {
                Ended::Asked => break,
                Ended::Changed(file) if !file.starts_with(&folder) => {
                    if keeps {
                        self.forget_pages(&folder, &file);
                    }
                    continue;
                }
                Ended::Changed(_) => Ok(()),
                Ended::Reload if written.is_some() => Ok(()),
                Ended::Reload => self.again(&folder, &listens),
            };
            match looked {
                Ok(()) => supervisor.reload(),
                Err(why) => say!("yorozu: [error] nothing is changed: {why}"),
            }
        }
        drop(supervisor);
        Ok(())
    }

    /// Has the server forget its pages, which a change of this file may have made old.
    fn forget_pages(&self, conf: &Path, file: &Path) {
        let file = file.strip_prefix(&self.folder).unwrap_or(file).display();
        let done = std::env::current_exe().and_then(|own| {
            let mut command = std::process::Command::new(own);
            command.arg("-p").arg(conf.join("")).arg("-c").arg(conf.join("nginx.conf"));
            command.args(["purge", "--all"]).output()
        });
        match done {
            Ok(output) if output.status.success() => {
                say!("yorozu: [notice] {file} was changed: pages are made again");
            }
            Ok(output) => say!("{}", String::from_utf8_lossy(&output.stderr).trim_end()),
            Err(why) => say!("yorozu: [error] {file} was changed, pages are kept: {why}"),
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
        make_folder(folder)?;
        self.files(listens)
            .into_iter()
            .try_for_each(|(name, text)| https::write(&folder.join(name), &text, 0o644))
            .map_err(failed)
    }

    /// Makes what the configuration names and is not the server's to make.
    fn make_folders(&self, listens: &Listens) -> Result<(), String> {
        for folder in [&self.state, &self.sockets] {
            make_folder(folder)?;
        }
        let temporary = self.state.join("tmp");
        fs::create_dir_all(&temporary)
            .map_err(|why| format!("\"{}\": {why}", temporary.display()))?;
        if listens.are_local() && self.serve.proxies.is_empty() {
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

    /// What PHP needs to purge pages, and for how long one that does may have them kept, where no time was asked for.
    fn purges(
        &self,
        listens: &Listens,
        has_no_time: bool,
    ) -> Result<Vec<(&'static str, String)>, String> {
        let url = listens.own_url(matches!(self.tls(), Tls::Issued { .. }));
        let Some(url) = url else { return Ok(Vec::new()) };
        let mut told =
            vec![("YOROZU_URL", url + text::PURGE_PATH), ("YOROZU_TOKEN", self.purge_token()?)];
        // What purges its pages need not have them forgotten by time.
        if has_no_time && self.serve.cache.is_none() {
            told.push(("YOROZU_SECONDS", "86400".to_owned()));
        }
        Ok(told)
    }

    /// The processes of a configuration; what PHP is told is in its environment.
    fn processes(
        &self,
        folder: &Path,
        told: Vec<(&'static str, String)>,
    ) -> Result<Vec<Process>, String> {
        let mut processes = Vec::new();
        if let Some(Php::Own { program, .. }) = &self.php {
            let args = [
                "--nodaemonize".into(),
                "--fpm-config".into(),
                folder.join("php-fpm.conf").into_os_string(),
            ];
            processes.push(Process::new(PHP, program, args.to_vec(), told, Signal::SIGUSR2));
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
        say!("yorozu: {} in {}{root}", self.found.application.name, self.folder.display());
        match &self.php {
            Some(Php::Own { version, .. }) => say!(
                "yorozu: PHP {version}, up to {} processes{}",
                self.sizes().children,
                self.worker.as_ref().map_or_else(String::new, |it| format!(" as {}", it.user))
            ),
            Some(Php::Running(address)) => say!("yorozu: PHP at {address}"),
            None => {}
        }
        let kept = if written.is_none() { self.pages() } else { None };
        match (&self.php, kept) {
            _ if written.is_some() => {}
            (Some(_), Some(time)) => say!(
                "yorozu: pages are kept for {time}{} for visitors without a login or a session (--cache off: not at all)",
                if self.serve.cache.is_none() {
                    ", or a day by a plugin that purges them,"
                } else {
                    ""
                }
            ),
            (Some(_), None) => say!(
                "yorozu: no pages are kept; --cache 30s keeps those for visitors without a session, who may see one that is 30 seconds old"
            ),
            (None, _) => {}
        }
        let token = fs::read_to_string(self.state.join(text::CONSOLE_TOKEN)).ok();
        if let Some(token) = token.filter(|_| has_console) {
            say!(
                "yorozu: its console is at {}{}#token={}",
                url.trim_end_matches('/'),
                text::CONSOLE_PATH,
                token.trim()
            );
        }
        match self.tls() {
            Tls::Own(folder) => say!(
                "yorozu: browsers trust it that import {} (curl --cacert)",
                folder.join("authority.crt").display()
            ),
            Tls::Issued { .. } => say!(
                "yorozu: a certificate is ordered, and with that the issuer's terms are accepted; until it is there browsers warn"
            ),
            Tls::None => {}
        }
        if let Some(folder) = written {
            say!("yorozu: as {} says (--forget: as this version would)", folder.display());
            for option in self.serve.written_options() {
                say!(
                    "yorozu: [warn] \"{option}\" counts for nothing: {}/nginx.conf says it",
                    folder.display()
                );
            }
        }
        say!("yorozu: {}{url}{} - Ctrl-C ends it", strong.0, strong.1);
    }
}

/// What this machine is called among those that share pages: by its own name, and the port, as one may have several.
fn node(listens: &Listens) -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    let port = listens.probe().map_or(0, |address| address.port());
    let is_plain = |sign: &char| sign.is_ascii_alphanumeric() || "-.".contains(*sign);
    format!("{}-{port}", name.to_string_lossy().chars().filter(is_plain).collect::<String>())
}
