//! The server under test, and what happens to it during the test.

use crate::shared::files;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::RwLock;
use yorozu_testkit::clock::Clock;
use yorozu_testkit::server::{Folder, free_port, has_processes, kill_group};

pub(crate) const TOKEN: &str = "a-secret-of-sixteen-bytes-or-more";

/// The program under test.
fn binary() -> String {
    std::env::var("YOROZU").unwrap_or_else(|_| env!("CARGO_BIN_EXE_yorozu").to_owned())
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) workers: u64,
    pub(crate) memory_bytes: usize,
    pub(crate) max_size: Option<usize>,
    pub(crate) has_lock: bool,
    pub(crate) lock_timeout: &'static str,
    pub(crate) is_updated_behind: bool,
    pub(crate) is_renewed_early: bool,
    pub(crate) is_kept_alive: bool,
    /// Whether its clock may jump, which takes Debian's faketime.
    pub(crate) has_clock: bool,
}

impl Options {
    pub(crate) fn new(workers: u64, draw: &mut fastrand::Rng) -> Self {
        Self {
            workers,
            memory_bytes: [300_000, 1_000_000, 64_000_000][draw.usize(..3)],
            max_size: draw.bool().then(|| draw.usize(500_000..6_000_000)),
            has_lock: draw.u8(..4) > 0,
            lock_timeout: ["5s", "5s", "20ms"][draw.usize(..3)],
            is_updated_behind: draw.u8(..3) > 0,
            is_renewed_early: draw.bool(),
            is_kept_alive: draw.bool(),
            has_clock: draw.u8(..3) == 0 && Clock::library().is_some(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    folder: Folder,
    options: Options,
    pub(crate) port: u16,
    pub(crate) h2_port: u16,
    origin: u16,
    inactive: AtomicU64,
    /// The process that is not the successor of another one.
    pid: Mutex<Option<i32>>,
    /// The groups that its processes are of: a master's server may be another one's child.
    groups: Mutex<Vec<u32>>,
    /// Odd while it is not there; more after each time.
    disturbance: AtomicU64,
    /// Written to while one process takes over from another.
    pub(crate) gate: RwLock<()>,
}

impl Server {
    pub(crate) fn new(options: Options, origin: u16) -> Self {
        Self {
            folder: Folder::new(),
            options,
            port: free_port(),
            h2_port: free_port(),
            origin,
            inactive: AtomicU64::new(600),
            pid: Mutex::default(),
            groups: Mutex::default(),
            disturbance: AtomicU64::new(1),
            gate: RwLock::new(()),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn disturbance(&self) -> u64 {
        self.disturbance.load(Ordering::SeqCst)
    }

    fn disturb(&self) {
        self.disturbance.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path().join("logs/error.log")).unwrap_or_default())
            .into_owned()
    }

    /// What it wrote to standard error: where it panicked.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.path().join("stderr")).unwrap_or_default()
    }

    fn write_configuration(&self) {
        let Self { options, port, h2_port, origin, .. } = self;
        let dir = self.path().display();
        let inactive = self.inactive.load(Ordering::SeqCst);
        let Options { workers, memory_bytes, lock_timeout, .. } = options;
        let on = |is_on| if is_on { "on" } else { "off" };
        let max_size = options.max_size.map_or(String::new(), |size| format!("max_size={size}"));
        let text = format!(
            "daemon off; {user} worker_processes {workers};
            pid {dir}/pid; error_log {dir}/logs/error.log info;
            events {{ worker_connections 1024; }}
            http {{ access_log off; client_body_temp_path {dir}/body;
            fastcgi_temp_path {dir}/fastcgi; proxy_temp_path {dir}/proxy;
            proxy_cache_path {dir}/cache levels=1:2 keys_zone=z:4m memory={memory_bytes} {max_size}
                inactive={inactive}s
                loader_files=20 loader_sleep=5ms manager_files=20 manager_sleep=5ms;
            gzip on; gzip_comp_level 1; gzip_min_length 1; gzip_vary on; gzip_proxied any;
            brotli on; brotli_comp_level 0; zstd on; zstd_comp_level 1;
            upstream origin {{ server 127.0.0.1:{origin} max_fails=0; {keepalive} }}
            server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{h2_port} http2; server_name a.test;
                proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $host;
                location = /.purge {{ cache_purge_api token={TOKEN}; }}
                location = /do {{ proxy_pass http://origin; }}
                location / {{ proxy_pass http://origin; proxy_cache z; proxy_cache_purge PURGE from 127.0.0.1;
                    proxy_cache_key $scheme$request_method$host$request_uri; proxy_cache_revalidate on;
                    proxy_cache_lock {lock}; proxy_cache_lock_timeout {lock_timeout};
                    proxy_cache_use_stale error timeout updating http_500;
                    proxy_cache_background_update {behind};
                    proxy_cache_early_refresh {early};
                    add_header X-Cache $upstream_cache_status always; }} }} }}\n",
            user = if nix::unistd::geteuid().is_root() { "user root;" } else { "" },
            keepalive = if options.is_kept_alive { "keepalive 8;" } else { "" },
            lock = on(options.has_lock),
            behind = on(options.is_updated_behind),
            early = on(options.is_renewed_early),
        );
        fs::write(self.path().join("nginx.conf"), text).unwrap();
    }

    fn words(&self) -> [String; 6] {
        let path = |name: &str| self.path().join(name).display().to_string();
        let [folder, conf, log] = [path(""), path("nginx.conf"), path("logs/error.log")];
        ["-p".to_owned(), folder, "-c".to_owned(), conf, "-e".to_owned(), log]
    }

    /// Starts it, and waits until it listens.
    pub(crate) async fn start(&self) {
        self.write_configuration();
        let said = self.path().join("stderr");
        let said = fs::OpenOptions::new().append(true).create(true).open(said).unwrap();
        let mut command = Command::new(binary());
        command.args(self.words()).stdin(Stdio::null()).stderr(said);
        if self.options.has_clock {
            Clock::new(self.path()).control(&mut command);
        }
        let mut child = command.process_group(0).spawn().unwrap();
        self.groups.lock().unwrap().push(child.id());
        *self.pid.lock().unwrap() = Some(i32::try_from(child.id()).unwrap());
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it does not start: {}", self.said());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Its end is looked up by its pid; it is taken from the table here.
        std::thread::spawn(move || child.wait());
        self.disturb();
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.pid.lock().unwrap() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    async fn ended(&self, pid: i32) {
        let is_there = || kill(Pid::from_raw(pid), None).is_ok();
        for _ in 0..30_000 {
            if !is_there() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("process {pid} does not end: {}", self.log());
    }

    /// Ends it and starts it again; `KILL`: with whatever is on the disk then.
    pub(crate) async fn restart(&self, signal: Signal, draw: &mut fastrand::Rng) {
        let Some(pid) = *self.pid.lock().unwrap() else { return };
        self.disturb();
        if signal == Signal::SIGKILL {
            self.kill().await;
            self.damage(draw);
        } else {
            self.signal(signal);
            self.ended(pid).await;
        }
        self.start().await;
    }

    /// Ends the process that serves, or the one above it, which another one replaces.
    pub(crate) async fn lose(&self, is_master: bool) {
        let Some(master) = *self.pid.lock().unwrap() else { return };
        self.disturb();
        if is_master {
            self.signal(Signal::SIGKILL);
            self.ended(master).await;
            self.start().await;
            return;
        }
        let children = format!("/proc/{master}/task/{master}/children");
        let child = fs::read_to_string(children).unwrap_or_default();
        // A server that was taken over is not the master's child.
        if let Some(child) = child.split_whitespace().next() {
            let _ = kill(Pid::from_raw(child.parse().unwrap()), Signal::SIGKILL);
        }
        self.disturb();
    }

    async fn kill(&self) {
        let groups = std::mem::take(&mut *self.groups.lock().unwrap());
        groups.iter().for_each(|group| kill_group(*group));
        while groups.iter().any(|group| has_processes(*group)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What a crash may leave: a line of the journal, and a page, that were being written.
    fn damage(&self, draw: &mut fastrand::Rng) {
        let journal = self.path().join("cache/yorozu.purges");
        if draw.bool() {
            let lines = fs::read_to_string(&journal).unwrap_or_default();
            let last = lines.trim_end().rsplit('\n').next().unwrap_or_default();
            let torn = format!("\n{}", &last[..draw.usize(..=last.len())]);
            let file = fs::OpenOptions::new().append(true).create(true).open(&journal);
            file.unwrap().write_all(torn.as_bytes()).unwrap();
        }
        if draw.bool() {
            fs::write(self.path().join("cache/tmp.0123456789abcdef.7"), b"YRZ").unwrap();
        }
        for file in files(&self.path().join("cache")) {
            if draw.u8(..50) == 0 {
                let length = fs::metadata(&file).unwrap().len();
                let file = fs::OpenOptions::new().write(true).open(file).unwrap();
                file.set_len(draw.u64(..length)).unwrap();
            }
        }
    }

    pub(crate) fn has_clock(&self) -> bool {
        self.options.has_clock
    }

    /// The wall clock jumps.
    pub(crate) fn set_clock(&self, draw: &mut fastrand::Rng) {
        Clock::new(self.path()).set(draw.i64(-40_000..40_000));
    }

    pub(crate) fn reload(&self, changes_zone: bool) {
        if changes_zone {
            self.inactive.fetch_add(1, Ordering::SeqCst);
        }
        self.write_configuration();
        self.signal(Signal::SIGHUP);
    }

    /// Another process of the program takes over.
    pub(crate) async fn upgrade(&self) {
        let _alone = self.gate.write().await;
        let Some(old) = *self.pid.lock().unwrap() else { return };
        let file = self.path().join("pid");
        let id = || fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<i32>().ok());
        while id() != Some(old) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.disturb();
        self.signal(Signal::SIGUSR2);
        for tries in 0.. {
            if id().is_some_and(|id| id != old) {
                break;
            }
            assert!(tries < 10_000, "no new process: {}", self.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let new = id();
        self.signal(Signal::SIGQUIT);
        self.ended(old).await;
        *self.pid.lock().unwrap() = new;
        self.disturb();
    }

    /// Runs `yorozu purge`; returns whether it succeeded.
    pub(crate) async fn command(&self, words: &[String]) -> bool {
        let mut command = Command::new(binary());
        command.args(self.words()).args(words).stdin(Stdio::null());
        let done = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
        done.is_ok_and(|output| output.status.success())
    }

    pub(crate) async fn stop(&self) {
        let pid = self.pid.lock().unwrap().take();
        if let Some(pid) = pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            self.ended(pid).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.groups.lock().unwrap().iter().for_each(|group| kill_group(*group));
    }
}
