//! A wall clock that jumps, both ways, between stores, purges and restarts: no page of before a purge comes
//! back, and the cache is never off. Needs Debian's faketime. `SEED` draws others, `SECONDS` goes on for as long.

use crate::shared::{BINARY, seed, steps, until};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use yorozu_testkit::client::{Answer, Client};
use yorozu_testkit::clock::Clock;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, free_port, has_processes, kill_group};

const PAGES: usize = 6;
const HOUR: i64 = 3600;

static VERSIONS: [AtomicU64; PAGES] = [const { AtomicU64::new(1) }; PAGES];

/// The program with its own clock.
struct Program {
    child: Child,
    port: u16,
}

impl Program {
    fn start(folder: &Path, clock: &Clock, port: u16) -> Self {
        let mut command = Command::new(std::env::var("YOROZU").unwrap_or(BINARY.to_owned()));
        command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf"));
        command.arg("-e").arg(folder.join("logs/error.log")).stdin(Stdio::null());
        clock.control(&mut command);
        let child = command.process_group(0).spawn().unwrap();
        until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port }
    }

    fn ask(&self, method: &str, path: &str) -> Answer {
        let mut client = Client::connect(self.port);
        let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.send(text.as_bytes());
        client.answer(false).unwrap()
    }

    /// The version of a page, and what the cache says.
    fn version(&self, page: usize) -> (u64, String) {
        let answer = self.ask("GET", &format!("/p{page}"));
        let body = String::from_utf8(answer.body.clone()).unwrap();
        (body.parse().unwrap(), answer.field("x-cache").unwrap_or_default())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        kill_group(self.child.id());
        let _ = self.child.wait();
        until("its end", || !has_processes(self.child.id()));
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let dir = folder.display();
    let user = if nix::unistd::geteuid().is_root() { "user root;" } else { "" };
    format!(
        "daemon off; {user} pid {dir}/pid; error_log {dir}/logs/error.log info; events {{}}
        http {{ access_log off; client_body_temp_path {dir}/body; fastcgi_temp_path {dir}/fastcgi;
        fastcgi_cache_path {dir}/cache levels=1:2 keys_zone=z:1m; fastcgi_cache_key $request_uri;
        server {{ listen 127.0.0.1:{port}; add_header X-Cache $upstream_cache_status;
        location / {{ fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
            fastcgi_pass unix:{dir}/origin.sock; fastcgi_cache z; fastcgi_cache_purge PURGE; }} }} }}"
    )
}

fn by_command(folder: &Path, words: &[&str]) {
    let mut command = Command::new(BINARY);
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).arg("purge").args(words);
    assert!(command.output().unwrap().status.success(), "{words:?}");
}

/// One purge; the pages it means, and how.
fn purge(server: &Program, folder: &Path, draw: &mut fastrand::Rng) -> (Vec<usize>, &'static str) {
    let page = draw.usize(..PAGES);
    let one = format!("/p{page}");
    let (pages, how) = match draw.u8(..5) {
        0 => (vec![page], "PURGE"),
        1 => (vec![page], "--tag"),
        2 => ((0..PAGES).collect(), "--all"),
        3 => ((0..PAGES).collect(), "PURGE *"),
        _ => (vec![page], "--soft"),
    };
    for page in &pages {
        VERSIONS[*page].fetch_add(1, Ordering::SeqCst);
    }
    match how {
        "PURGE" => _ = server.ask("PURGE", &one),
        "PURGE *" => _ = server.ask("PURGE", "/*"),
        "--all" => by_command(folder, &["--all"]),
        "--tag" => by_command(folder, &["--tag", &format!("p{page}")]),
        _ => by_command(folder, &["--soft", &format!("http://a{one}")]),
    }
    (pages, how)
}

#[test]
fn purges_hold_and_the_cache_works_whatever_the_clock_does() {
    /// Offsets in seconds.
    const CLOCKS: [i64; 9] =
        [0, 1, -1, HOUR, -HOUR, 24 * HOUR, -24 * HOUR, 9000 * HOUR, -9000 * HOUR];
    if Clock::library().is_none() {
        return println!("left out: faketime is not installed");
    }
    let seed = seed();
    let mut draw = fastrand::Rng::with_seed(seed);
    let folder = Folder::new();
    let dir = folder.path();
    let _origin = Origin::start_with(dir, |request| {
        let page: usize = request.param("REQUEST_URI")[2..].parse().unwrap();
        let version = VERSIONS[page].load(Ordering::SeqCst);
        // A jump ahead makes some pages old, others not.
        let lifetime = if page.is_multiple_of(2) { 600 } else { 400_000_000 };
        let fields = format!("Cache-Control: max-age={lifetime}\r\nSurrogate-Key: p{page}");
        format!("{fields}\r\n\r\n{version}").into()
    });
    let (clock, port) = (Clock::new(dir), free_port());
    std::fs::write(dir.join("nginx.conf"), configuration(dir, port)).unwrap();
    let mut server = Program::start(dir, &clock, port);
    let (mut floors, mut told, mut kept) = ([1; PAGES], Vec::new(), 0);
    for _ in steps(150) {
        told.push(match draw.u8(..8) {
            0..3 => {
                let to = CLOCKS[draw.usize(..CLOCKS.len())];
                clock.set(to);
                format!("clock {to:+}")
            }
            3..5 => {
                let (pages, how) = purge(&server, dir, &mut draw);
                for page in pages.iter().filter(|_| how != "--soft") {
                    floors[*page] = VERSIONS[*page].load(Ordering::SeqCst);
                }
                format!("purge {how} of {pages:?}")
            }
            5 => {
                drop(server);
                server = Program::start(dir, &clock, port);
                "kill -9".to_owned()
            }
            _ => {
                let page = draw.usize(..PAGES);
                format!("page {page}: {:?}", server.version(page))
            }
        });
        let about = || format!("seed {seed}: {}", told.join(", "));
        let page = draw.usize(..PAGES);
        let (version, cache) = server.version(page);
        assert!(version >= floors[page], "page {page} of {version} ({cache}): {}", about());
        match &*cache {
            "HIT" => kept += 1,
            "STALE" | "UPDATING" => {}
            // What was made just now is a hit, whenever a purge was.
            _ => {
                assert_eq!(server.version(page).1, "HIT", "page {page} after {cache}: {}", about());
            }
        }
    }
    println!("seed {seed}: {} steps, {kept} pages were kept over theirs", told.len());
}
