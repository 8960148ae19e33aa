//! A server under test: yorozu, or nginx as the oracle, in its own folder.

use crate::words::statements;
use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Which program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The binary at this path.
    Yorozu(PathBuf),
    /// Debian's nginx.
    Nginx,
}

/// Where Debian puts nginx.
const NGINX: &str = "/usr/sbin/nginx";

impl Kind {
    /// nginx, if it is installed.
    pub fn oracle() -> Option<Self> {
        Path::new(NGINX).exists().then_some(Self::Nginx)
    }

    fn program(&self) -> &Path {
        match self {
            Self::Yorozu(path) => path,
            Self::Nginx => Path::new(NGINX),
        }
    }
}

/// A folder that goes with its owner.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new one below the system's folder for temporary files.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("yorozu-case.{}.{number}", std::process::id()));
        Self::furnish(&path);
        Self(path)
    }

    fn furnish(path: &Path) {
        for folder in ["logs", "html", "cache"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
    }

    /// Makes a folder in it that has the same.
    pub(crate) fn within(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        Self::furnish(&path);
        path
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A program in the folder, of a text that begins with `#!`. A child writes it: had this process written it, children that
    /// other threads start at that moment would hold it open, and it could not be executed (ETXTBSY).
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        let mut child = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "install {}", path.display());
        path
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Whether it has no other processes.
    is_single: bool,
    /// Of a port that was drawn for it: given back when the server has ended.
    claim: Option<Claim>,
}

/// First and number of the ports that servers under test get: below those the system gives to
/// programs that ask for any, so that none is taken between this probe and its use. Behind them are as many for QUIC; those
/// of tests/peers.py are below 20,000.
const PORTS: (u32, u32) = (20_000, 6_000);

/// A port that no test of any process gets as long as this lives: its number is taken for UDP.
#[derive(Debug)]
pub struct Claim {
    /// The port.
    pub port: u16,
    _socket: UdpSocket,
}

impl Claim {
    /// A port on which nothing listens now, and that this process has not been given before.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (first, count) = PORTS;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let start = std::process::id().wrapping_mul(97);
            let port = u16::try_from(first + start.wrapping_add(number) % count).unwrap();
            let Ok(socket) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Self { port, _socket: socket };
            }
        }
    }
}

impl Default for Claim {
    fn default() -> Self {
        Self::new()
    }
}

/// The port for QUIC that belongs to a claimed one, whose own is claimed by a UDP socket: no other test has it, and the
/// system gives it to no one.
pub fn quic_port(port: u16) -> u16 {
    port + 6_000
}

/// A port on which nothing listens now, claimed as long as the process lives.
pub fn free_port() -> u16 {
    let claim = Claim::new();
    let port = claim.port;
    std::mem::forget(claim);
    port
}

/// What the configuration of a server under test says; `$dir` and `$origin` are replaced.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// Before `events {}`.
    pub main: String,
    /// In `events {}`.
    pub events: String,
    /// In `http {}`.
    pub http: String,
    /// Variables of the environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Text {
    /// In the order of the fields, with nothing in the environment.
    pub fn of([main, events, http]: [String; 3]) -> Self {
        Self { main, events, http, environment: Vec::new() }
    }
}

impl Server {
    /// Starts a server with what stands in `http {}`; `$port`, `$quic`, `$dir` and `$origin` are replaced.
    pub fn start(kind: &Kind, folder: &Path, http: &str) -> Self {
        let claim = Claim::new();
        let port = claim.port;
        let http = http.replace("$port", &port.to_string());
        let http = http.replace("$quic", &quic_port(port).to_string());
        let text = Text { http, ..Text::default() };
        let started = Self::try_start(kind, folder, &[port], &text);
        let mut server = started.unwrap_or_else(|why| panic!("{why}"));
        server.claim = Some(claim);
        server
    }

    /// Starts a server that listens at these ports.
    ///
    /// # Errors
    /// It ended, or does not listen in time; with what it said.
    pub fn try_start(
        kind: &Kind,
        folder: &Path,
        ports: &[u16],
        text: &Text,
    ) -> Result<Self, String> {
        let environment = text.environment.clone();
        let is_single = text.main.contains(SINGLE);
        let text = configuration(kind, folder, text);
        let file = folder.join("nginx.conf");
        fs::write(&file, &text).unwrap();
        let mut child = Command::new(kind.program())
            .args(["-p".as_ref(), folder.as_os_str(), "-c".as_ref(), file.as_os_str()])
            .args(["-e".as_ref(), folder.join("logs/error.log").as_os_str()])
            .envs(environment)
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while ports.iter().any(|port| TcpStream::connect(("127.0.0.1", *port)).is_err()) {
            if child.try_wait().unwrap().is_some() || Instant::now() > end {
                let _ = child.kill();
                let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                return Err(format!("{kind:?} does not listen: {said}\n{text}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Self { child, port: ports[0], is_single, claim: None })
    }

    /// The id of the process that was started: the master.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The id of the process that serves.
    pub fn serving_id(&self) -> u32 {
        serving_id(self.id())
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Ends all its processes as an operator would not: at once, with nothing saved.
    pub fn kill(&mut self) {
        let group = self.child.id();
        kill_group(group);
        let _ = self.child.wait();
        // What serves is not our child.
        while has_processes(group) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Ends every process of a group at once.
pub fn kill_group(group: u32) {
    let group = format!("-{group}");
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
}

/// What makes a server one process: it starts and ends in half the time.
pub(crate) const SINGLE: &str = "master_process off;";

/// The id of the process that serves for a master: its child.
pub fn serving_id(master: u32) -> u32 {
    let path = format!("/proc/{master}/task/{master}/children");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let children = fs::read_to_string(&path).unwrap_or_default();
        match children.split_whitespace().next() {
            Some(child) => return child.parse().unwrap(),
            None => assert!(Instant::now() < end, "no process serves"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process of the group runs. One whose first thread is a zombie does for as long as another thread
/// ends: until then its sockets listen.
pub fn has_processes(group: u32) -> bool {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = |thread: &Path| {
        let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
        // proc(5): state, parent, group.
        let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
        let mut fields = rest.split(' ');
        !matches!(fields.next(), Some("Z" | "X")) && fields.nth(1) == Some(&group.to_string())
    };
    entries(Path::new("/proc"))
        .flat_map(|process| entries(&process.path().join("task")))
        .any(|thread| runs(&thread.path()))
}

/// What lasts a minute by default, and longer than [`PATIENCE`](crate::client::PATIENCE) here: a time that is not as configured
/// must not look so.
fn times() -> String {
    const GATEWAYS: [&str; 6] = ["proxy", "fastcgi", "uwsgi", "scgi", "memcached", "grpc"];
    let of_clients = ["client_header", "client_body", "send", "keepalive"].map(str::to_owned);
    let of_gateway = |name| ["connect", "send", "read"].map(|what| format!("{name}_{what}"));
    let names = of_clients.into_iter().chain(GATEWAYS.into_iter().flat_map(of_gateway));
    names.map(|name| format!("{name}_timeout 1h;")).collect()
}

fn configuration(kind: &Kind, folder: &Path, text: &Text) -> String {
    let user = if is_root() && !text.main.contains("user ") { "user root;" } else { "" };
    let log = if text.main.contains("error_log ") {
        String::new()
    } else {
        "error_log $dir/logs/error.log info;".to_owned()
    };
    let folders = match kind {
        Kind::Nginx => "proxy_temp_path $dir/p; uwsgi_temp_path $dir/u; scgi_temp_path $dir/s;",
        Kind::Yorozu(_) => "",
    };
    let Text { main, events, http, .. } = text;
    let times = times();
    // A case may name its own in place of these.
    let ours: String = format!(
        "access_log off; client_body_temp_path $dir/body; fastcgi_temp_path $dir/fastcgi; {folders} {times}"
    )
    .split_inclusive(';')
    .filter(|one| one.split_whitespace().next().is_none_or(|name| !has_at_top(http, name)))
    .collect();
    let pid = if main.contains("pid ") { "" } else { "pid $dir/pid;" };
    let text = format!(
        "daemon off;\n{user}\n{pid} {log}\n{main}\nevents {{ {events} }}\nhttp {{\n{ours}\n{http}\n}}\n"
    );
    placed(&text, folder)
}

/// The text with what stands for paths in it replaced.
pub(crate) fn placed(text: &str, folder: &Path) -> String {
    text.replace("$origin", &format!("unix:{}", folder.join("origin.sock").display()))
        .replace("$dir", &folder.display().to_string())
}

/// Whether a directive stands in the text outside of any block.
pub(crate) fn has_at_top(text: &str, name: &str) -> bool {
    statements(text).iter().any(|(found, _)| *found == name)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if self.is_single {
            let _ = self.child.kill();
            let _ = self.child.wait();
            return;
        }
        // TERM first: nginx's workers end with their master.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }
}
