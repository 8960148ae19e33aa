//! What the tests of the process and of its gateways share.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use yorozu_testkit::client::{Answer, Client};
use yorozu_testkit::origin::Seen;
use yorozu_testkit::server::{Folder, Kind, Server, kill_group};

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_yorozu");

/// A site whose every page is cached.
pub(crate) const CACHED: &str = "fastcgi_cache_path $dir/cache levels=1:2 keys_zone=z:1m; fastcgi_cache_key $request_uri;
    server { listen 127.0.0.1:$port; root $dir/html; add_header X-Cache $upstream_cache_status;
    location / { fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
        fastcgi_pass $origin; fastcgi_cache z; fastcgi_cache_valid 200 1h; } }";

/// A number that the environment gives a test.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Where what a test draws begins: `SEED`, or the same each time. It is printed.
pub(crate) fn seed() -> u64 {
    let seed = number("SEED").unwrap_or(1);
    println!("SEED={seed}");
    seed
}

/// Steps of a test that could go on without end, counted from 0: as many as usual, or as `SECONDS` has room for.
pub(crate) fn steps(usual: u64) -> impl Iterator<Item = u64> {
    let end = number("SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |step| end.map_or(*step < usual, |end| Instant::now() < end))
}

/// Waits for a condition that another process brings about.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut begun = Instant::now();
    let end = begun + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        // Looking may take long itself, of what is waited for.
        std::thread::sleep(begun.elapsed().max(Duration::from_millis(5)));
        begun = Instant::now();
    }
}

/// How long what serves has been on a processor: what something cost, however busy the machine is.
pub(crate) fn cpu(server: &Server) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.serving_id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // proc(5): utime and stime, in hundredths of a second.
    let ticks: u64 =
        fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// The error log so far.
pub(crate) fn log(folder: &Folder) -> String {
    String::from_utf8_lossy(&fs::read(folder.path().join("logs/error.log")).unwrap_or_default())
        .into_owned()
}

/// One answer over a new connection.
pub(crate) fn get(port: u16, path: &str) -> Option<Answer> {
    let mut client = Client::connect(port);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
    client.answer(false)
}

/// A page that only its address determines.
pub(crate) fn page(uri: &str) -> String {
    (0..400).map(|line| format!("{uri} line {line} of a page that must never be torn\n")).collect()
}

/// Answers of an origin that makes them with [`page`].
pub(crate) fn pages(request: &Seen) -> Vec<u8> {
    format!("Content-Type: text/html\r\n\r\n{}", page(request.param("REQUEST_URI"))).into_bytes()
}

/// The program under test.
pub(crate) fn yorozu() -> Kind {
    Kind::Yorozu(BINARY.into())
}

/// Sends a signal to the master.
pub(crate) fn signal(server: &Server, signal: Signal) {
    send(server.id(), signal);
}

/// Every cache file below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        match item.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&item.path())),
            _ if item.file_name().len() == 32 => found.push(item.path()),
            _ => {}
        }
    }
    found
}

/// A site that says which process answers.
pub(crate) const PLAIN: &str = "server { listen 127.0.0.1:$port; return 200 \"$pid\"; }";

/// Runs the program beside a server of the folder: whether it succeeds, and what it says.
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(BINARY)
        .args(["-p".as_ref(), folder.path().as_os_str(), "-c".as_ref(), "nginx.conf".as_ref()])
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Sends a signal to a process.
pub(crate) fn send(id: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
}

/// The process that answers.
pub(crate) fn answering(port: u16) -> u32 {
    String::from_utf8(get(port, "/").unwrap().body).unwrap().parse().unwrap()
}

/// Another master for the same folder.
pub(crate) struct Master(pub(crate) Child);

impl Master {
    /// Starts it.
    pub(crate) fn start(folder: &Folder) -> Self {
        use std::os::unix::process::CommandExt as _;
        let path = folder.path();
        let child = Command::new(BINARY)
            .args(["-p".as_ref(), path.as_os_str()])
            .args(["-c".as_ref(), path.join("nginx.conf").as_os_str()])
            .args(["-e".as_ref(), path.join("logs/error.log").as_os_str()])
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        send(self.0.id(), Signal::SIGTERM);
        self.0.wait().unwrap();
        kill_group(self.0.id());
    }
}

/// The process of a pid file.
pub(crate) fn id(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Whether a process runs.
pub(crate) fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

/// Ends a process that is not a child of the test.
pub(crate) struct Stranger(pub(crate) i32);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGTERM);
        until("its end", || !is_alive(self.0));
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
