//! A server under test: yorozu, or nginx as the oracle, in a folder of its own.

use std::fs;
use std::net::{TcpListener, TcpStream};
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
        for folder in ["logs", "html", "cache"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
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
}

/// First and number of the ports that servers under test get: below those the system gives to
/// whoever asks for any, so that nobody takes one between this probe and its use.
const PORTS: (u32, u32) = (20_000, 12_000);

/// A port nobody listens on now, and that this process has not been given before.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (first, count) = PORTS;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let start = std::process::id().wrapping_mul(97);
        let port = u16::try_from(first + start.wrapping_add(number) % count).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    /// Starts a server with what stands in `http {}`; `$port`, `$dir` and `$origin` are replaced.
    pub fn start(kind: &Kind, folder: &Path, http: &str) -> Self {
        let port = free_port();
        let user = if is_root() { "user root;" } else { "" };
        let text = format!(
            "daemon off;\n{user}\npid {dir}/pid;\nerror_log {dir}/logs/error.log info;\nevents {{}}\nhttp {{\n\
             access_log off;\nclient_body_temp_path {dir}/body;\nfastcgi_temp_path {dir}/fastcgi;\n{more}{http}\n}}\n",
            dir = folder.display(),
            more = match kind {
                Kind::Nginx => format!(
                    "proxy_temp_path {dir}/p; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n",
                    dir = folder.display()
                ),
                Kind::Yorozu(_) => String::new(),
            },
        );
        let text = text.replace("$port", &port.to_string());
        let text = text.replace("$dir", &folder.display().to_string());
        let text =
            text.replace("$origin", &format!("unix:{}", folder.join("origin.sock").display()));
        let file = folder.join("nginx.conf");
        fs::write(&file, &text).unwrap();
        let mut child = Command::new(kind.program())
            .args(["-p".as_ref(), folder.as_os_str(), "-c".as_ref(), file.as_os_str()])
            .args(["-e".as_ref(), folder.join("logs/error.log").as_os_str()])
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let is_over = child.try_wait().unwrap().is_some() || Instant::now() > end;
            let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
            assert!(!is_over, "{kind:?} does not listen: {said}\n{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, port }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Ends it as an operator would not: at once, with nothing saved.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
        // TERM first: nginx's workers end with their master.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }
}
