//! The master process and the server process: either is killed, and the site goes on; root's files stay root's.
//! `KILLS`: how often the server is killed under load.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod shared;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::{BINARY, CACHED, files, get, log, pages, signal, until, yorozu};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Kind, Server, Text, free_port, kill_group};

const PLAIN: &str = "server { listen 127.0.0.1:$port; return 200 \"$pid\"; }";

fn send(id: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
}

/// The process that answers.
fn answering(port: u16) -> u32 {
    String::from_utf8(get(port, "/").unwrap().body).unwrap().parse().unwrap()
}

/// Another master for the same folder.
struct Master(Child);

impl Master {
    fn start(folder: &Folder) -> Self {
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

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// The outcome of a request, in a word.
fn outcome(port: u16) -> &'static str {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut client = TcpStream::connect(("127.0.0.1", port))?;
        client.set_read_timeout(Some(Duration::from_secs(20)))?;
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).map(|_| answer)
    };
    match ask() {
        Ok(answer) if answer.starts_with(b"HTTP/1.1 200 ") => "answered",
        Ok(answer) if answer.is_empty() => "closed",
        Ok(_) => "torn",
        Err(error) => match error.kind() {
            ErrorKind::ConnectionReset => "reset",
            ErrorKind::ConnectionRefused => "refused",
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "unanswered",
            _ => "another error",
        },
    }
}

#[test]
fn a_server_that_is_killed_is_replaced_and_only_requests_under_way_fail() {
    const CLIENTS: usize = 4;
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let (is_over, outcomes) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let mut slowest = Duration::ZERO;
    let kills = number("KILLS", 5);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let outcome = outcome(server.port);
                    *outcomes.lock().unwrap().entry(outcome).or_insert(0) += 1;
                }
            });
        }
        for _ in 0..kills {
            // One that lives for a second is no early death.
            let (first, begun) = (answering(server.port), Instant::now());
            while begun.elapsed() < Duration::from_millis(1100) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let killed = Instant::now();
            send(first, Signal::SIGKILL);
            until("another server", || {
                get(server.port, "/")
                    .is_some_and(|answer| answer.body != first.to_string().as_bytes())
            });
            slowest = slowest.max(killed.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let outcomes = outcomes.into_inner().unwrap();
    println!("{kills} kills, another server answers after {slowest:?} at most: {outcomes:?}");
    for (outcome, count) in &outcomes {
        match *outcome {
            "answered" => {}
            // Those whose request was taken, or whose connection was accepted.
            "closed" | "reset" => assert!(*count <= CLIENTS * kills, "{outcomes:?}"),
            _ => panic!("{outcomes:?}"),
        }
    }
    assert_eq!(log(&folder).matches("exited on signal 9").count(), kills);
    assert!(!log(&folder).contains("end soon after their start"));
}

#[test]
fn pages_on_disk_are_hits_at_once() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(&yorozu(), folder.path(), CACHED);
    get(server.port, "/a").unwrap();
    until("the file", || files(&folder.path().join("cache")).len() == 1);
    drop(origin);
    send(server.serving_id(), Signal::SIGKILL);
    until("a hit", || get(server.port, "/a").is_some_and(|answer| answer.status == 200));
    assert_eq!(get(server.port, "/a").unwrap().field("x-cache").as_deref(), Some("HIT"));
}

#[test]
fn a_server_without_its_master_goes_on_and_another_master_takes_it_over() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let http =
        format!("{CACHED} server {{ listen 127.0.0.1:$port; server_name pid; return 200 $pid; }}");
    let mut first = Server::start(&yorozu(), folder.path(), &http);
    let port = first.port;
    let serving = first.serving_id();
    get(port, "/a").unwrap();
    until("the file", || files(&folder.path().join("cache")).len() == 1);
    // From here on memory alone has the page.
    fs::remove_dir_all(folder.path().join("cache")).unwrap();
    for round in 1..=2 {
        let mut kept = Client::connect(port);
        kept.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(kept.answer(false).unwrap().status, 200);
        if round == 1 {
            send(first.id(), Signal::SIGKILL);
            first.wait();
        }
        until("the server's word", || {
            log(&folder).matches("the master process is gone").count() == round
        });
        assert_eq!(get(port, "/a").unwrap().status, 200);
        let mut master = Master::start(&folder);
        until("its word", || {
            let text = format!("the server process {serving} has no master: taken over");
            log(&folder).matches(&text).count() == round
        });
        until("its configuration", || log(&folder).matches("reconfigured").count() == round);
        // The connection, the page in memory and the process are the same.
        kept.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(kept.answer(false).unwrap().field("x-cache").as_deref(), Some("HIT"));
        if round == 1 {
            master.0.kill().unwrap();
            master.0.wait().unwrap();
            std::mem::forget(master);
            continue;
        }
        let text = fs::read_to_string(folder.path().join("pid")).unwrap();
        assert_eq!(text.trim(), master.0.id().to_string());
        // It is replaced like a child.
        send(serving, Signal::SIGKILL);
        until("its end", || log(&folder).contains(&format!("server process {serving} ended")));
        until("another one", || get(port, "/a").is_some_and(|answer| answer.status == 200));
    }
    kill_group(first.id());
}

#[test]
fn a_second_master_leaves_a_server_that_has_one_alone() {
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let first = answering(server.port);
    let begun = Instant::now();
    let done = Command::new(BINARY)
        .args(["-p".as_ref(), folder.path().as_os_str()])
        .args(["-c".as_ref(), folder.path().join("nginx.conf").as_os_str()])
        .output()
        .unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains("98: Address already in use"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(4), "it waits for nothing");
    assert_eq!(answering(server.port), first);
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    assert_eq!(answering(server.port), first);
}

#[test]
fn masters_that_look_while_one_lives_do_not_wait_for_it() {
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let begun = Instant::now();
    for _ in 0..20 {
        let mut other = Master::start(&folder);
        assert!(!other.0.wait().unwrap().success());
        std::mem::forget(other);
    }
    println!("20 starts in {:?}", begun.elapsed());
    assert_eq!(log(&folder).matches("98: Address already in use").count(), 20);
    // Their connections are no masters to a server that has lost its own.
    let serving = server.serving_id();
    send(server.id(), Signal::SIGKILL);
    until("the server's word", || log(&folder).contains("the master process is gone"));
    let _next = Master::start(&folder);
    until("its word", || {
        log(&folder).contains(&format!("the server process {serving} has no master: taken over"))
    });
    assert_eq!(answering(server.port), serving);
}

#[test]
fn a_server_that_stands_holds_up_no_end() {
    let folder = Folder::new();
    let mut server = Server::start(&yorozu(), folder.path(), PLAIN);
    let serving = answering(server.port);
    send(serving, Signal::SIGSTOP);
    let begun = Instant::now();
    for _ in 0..3 {
        signal(&server, Signal::SIGUSR1);
        signal(&server, Signal::SIGHUP);
    }
    signal(&server, Signal::SIGTERM);
    assert!(server.wait());
    println!("{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));
    until("its end", || kill(Pid::from_raw(i32::try_from(serving).unwrap()), None).is_err());
    assert!(names(folder.path()).iter().all(|name| !name.starts_with("pid")));
}

#[test]
fn a_reload_that_the_server_did_not_survive_is_reported() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!("{PLAIN} #later server {{ listen 127.0.0.1:{port}; return 200 later; }}\n");
    let server = Server::start(&yorozu(), folder.path(), &http);
    let first = answering(server.port);
    send(first, Signal::SIGSTOP);
    let file = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("#later", "")).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the signal", || log(&folder).contains("signal 1 (SIGHUP) received"));
    until("the socket", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    send(first, Signal::SIGKILL);
    until("the report", || {
        log(&folder).contains("ended while it took the new configuration: the old one stays in use")
    });
    assert_ne!(answering(server.port), first);
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    assert_eq!(get(port, "/").unwrap().body, b"later");
}

#[test]
fn a_change_of_user_is_for_the_next_start() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let owner = |name: &str| fs::metadata(debian.folder.path().join(name)).unwrap().uid();
    let before = owner("body");
    debian.reload("user www-data;", "user games;");
    until("the reload", || log(&debian.folder).contains("reconfigured"));
    assert!(log(&debian.folder).contains("a change of \"user\" takes effect at the next start"));
    assert_eq!(owner("body"), before);
    // A new master of another user has a server of its own.
    let first = debian.server.serving_id();
    send(debian.server.id(), Signal::SIGKILL);
    until("the server's word", || log(&debian.folder).contains("the master process is gone"));
    let next = Master::start(&debian.folder);
    until("the end of the first", || !Path::new(&format!("/proc/{first}")).exists());
    assert!(get(debian.server.port, "/").is_some());
    assert_ne!(owner("body"), before);
    drop(next);
}

#[test]
fn what_a_user_may_write_is_not_given_with_roots_rights() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let (dir, user) =
        (debian.folder.path(), fs::metadata(debian.folder.path().join("body")).unwrap().uid());
    // In a folder of the user's a cache's place is a link to one of root's.
    let (theirs, roots) = (dir.join("theirs"), dir.join("roots"));
    for folder in [&theirs, &roots] {
        fs::create_dir(folder).unwrap();
    }
    std::os::unix::fs::chown(&theirs, Some(user), None).unwrap();
    std::os::unix::fs::symlink(&roots, theirs.join("cache")).unwrap();
    debian.reload("#later", "proxy_cache_path $dir/theirs/cache keys_zone=n:1m; #");
    until("the signal", || log(&debian.folder).contains("signal 1 (SIGHUP) received"));
    until("the answer", || {
        log(&debian.folder).contains("[emerg]") || log(&debian.folder).contains("reconfigured")
    });
    assert_eq!(fs::metadata(&roots).unwrap().uid(), 0);
    // What another process of that user's sees of the server: no memory, no descriptors.
    let serving = debian.server.serving_id();
    for what in ["mem", "environ", "fd"] {
        assert_eq!(fs::metadata(format!("/proc/{serving}/{what}")).unwrap().uid(), 0, "{what}");
    }
    let status = fs::read_to_string(format!("/proc/{serving}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

#[test]
fn one_process_does_both_if_it_shall() {
    let folder = Folder::new();
    let port = free_port();
    let text = Text {
        main: "master_process off;".to_owned(),
        http: PLAIN.replace("$port", &port.to_string()),
        ..Text::default()
    };
    let mut server = Server::try_start(&yorozu(), folder.path(), &[port], &text).unwrap();
    assert_eq!(answering(port), server.id());
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    signal(&server, Signal::SIGUSR1);
    assert_eq!(answering(port), server.id());
    signal(&server, Signal::SIGQUIT);
    assert!(server.wait());
    assert!(!folder.path().join("pid").exists());
}

/// A server as Debian has it: logs and configuration are root's, the server is www-data.
struct Debian {
    folder: Folder,
    server: Server,
    /// With places for what a reload adds.
    text: String,
}

/// `None`, and said, without root.
fn debian(kind: &Kind, http: &str) -> Option<Debian> {
    if !nix::unistd::geteuid().is_root() {
        println!("not run: needs root");
        return None;
    }
    let folder = Folder::new();
    fs::remove_dir(folder.path().join("cache")).unwrap();
    let port = free_port();
    let space = if matches!(kind, Kind::Nginx) { "" } else { "worker_rlimit_as 64g;" };
    let text = Text {
        main: format!("user www-data; worker_processes 1; worker_rlimit_nofile 3000; {space}"),
        http: http.replace("$port", &port.to_string()),
        ..Text::default()
    };
    let server = Server::try_start(kind, folder.path(), &[port], &text).unwrap();
    until("an answer", || get(port, "/").is_some());
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    Some(Debian { folder, server, text })
}

impl Debian {
    fn reload(&self, old: &str, new: &str) {
        let dir = self.folder.path().display().to_string();
        let text = self.text.replace(old, &new.replace("$dir", &dir));
        assert_ne!(text, self.text);
        fs::write(self.folder.path().join("nginx.conf"), text).unwrap();
        signal(&self.server, Signal::SIGHUP);
    }

    /// Mode and owner of all that is there, by name; sockets and files of the server's choice apart.
    fn listing(&self) -> BTreeMap<String, (u32, u32)> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for item in fs::read_dir(folder).unwrap().flatten() {
                let metadata = item.metadata().unwrap();
                let path = item.path();
                let name = path.strip_prefix(self.folder.path()).unwrap().display().to_string();
                if metadata.is_dir() {
                    folders.push(path);
                }
                found.insert(name, (metadata.mode() & 0o7777, metadata.uid()));
            }
        }
        found
    }
}

const LOGGED: &str =
    "access_log $dir/logs/unused.log; server { listen 127.0.0.1:$port; access_log $dir/logs/a.log; return 200 ok; } #later
";

#[test]
fn files_have_the_modes_and_owners_that_nginx_gives_them() {
    let http = "access_log $dir/logs/a.log; proxy_cache_path $dir/cache keys_zone=z:1m;
        server { listen 127.0.0.1:$port; return 200 ok; } #later
";
    let listings = [Kind::Nginx, yorozu()].map(|kind| {
        let debian = debian(&kind, http)?;
        let steps = |debian: &Debian| {
            let logs = debian.folder.path().join("logs");
            let first = debian.listing();
            fs::rename(logs.join("a.log"), logs.join("a.log.1")).unwrap();
            signal(&debian.server, Signal::SIGUSR1);
            until("the new log", || logs.join("a.log").exists());
            until("its owner", || logs.join("a.log").metadata().unwrap().uid() != 0);
            let second = debian.listing();
            debian.reload("#later", "access_log $dir/logs/b.log;");
            until("the other log", || logs.join("b.log").exists());
            [first, second, debian.listing()]
        };
        let mut listings = steps(&debian);
        // nginx has folders of protocols that are off; its own sockets and the process id's names differ.
        let is_common = |name: &str| {
            ["logs", "cache", "body", "fastcgi", "pid"]
                .iter()
                .any(|one| name == *one || name.starts_with("logs/"))
        };
        listings.iter_mut().for_each(|listing| listing.retain(|name, _| is_common(name)));
        Some(listings)
    });
    let [Some(nginx), Some(ours)] = listings else { return };
    for (nginx, ours) in nginx.iter().zip(&ours) {
        assert_eq!(nginx, ours, "nginx, then yorozu");
    }
}

#[test]
fn a_reload_opens_what_only_root_may() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let (dir, logs) = (debian.folder.path(), debian.folder.path().join("logs"));
    for folder in [dir, &logs] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    let first = debian.server.serving_id();
    let user = fs::metadata(format!("/proc/{first}")).unwrap().uid();
    assert_ne!(user, 0, "the server is www-data's");
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap();
    for (name, value) in [("Max address space", "68719476736"), ("Max open files", "3000")] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains(value), "{line}");
    }
    let secret = dir.join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("more.conf"), "add_header X-Secret read;").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(secret.join("more.conf"), Permissions::from_mode(0o600)).unwrap();
    let low = (600..1000).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let low = low.unwrap();
    let more = format!(
        "proxy_cache_path $dir/new/cache keys_zone=n:1m; server {{ listen 127.0.0.1:{low};
         access_log $dir/logs/new.log; include $dir/secret/*.conf; return 200 low; }}"
    );
    debian.reload("#later", &more);
    until("the reload", || log(&debian.folder).contains("reconfigured"));
    let answer = get(low, "/").unwrap();
    assert_eq!((&*answer.body, answer.field("x-secret").as_deref()), (&b"low"[..], Some("read")));
    until("the line", || fs::read_to_string(logs.join("new.log")).unwrap().contains("GET / "));
    assert_eq!(fs::metadata(dir.join("new/cache")).unwrap().uid(), user);
    // The same after the server was replaced.
    send(first, Signal::SIGKILL);
    until("another server", || get(low, "/").is_some_and(|answer| answer.status == 200));
    // Logs that were moved away are written no more.
    fs::rename(logs.join("new.log"), logs.join("new.log.1")).unwrap();
    signal(&debian.server, Signal::SIGUSR1);
    until("the new log", || {
        get(low, "/again").unwrap();
        fs::read_to_string(logs.join("new.log")).unwrap_or_default().contains("/again")
    });
}

/// The names below a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|it| it.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn nothing_stays_behind_in_folders_of_root() {
    let folder = Folder::new();
    let (run, port) = (folder.path().join("run"), free_port());
    fs::create_dir(&run).unwrap();
    let user = if nix::unistd::geteuid().is_root() { "user www-data;" } else { "" };
    let text = Text {
        main: format!("{user} pid $dir/run/pid;"),
        http: PLAIN.replace("$port", &port.to_string()),
        ..Text::default()
    };
    let mut server = Server::try_start(&yorozu(), folder.path(), &[port], &text).unwrap();
    until("the process id", || names(&run) == ["pid", "pid.server", "pid.sock"]);
    assert_ne!(answering(port), server.id());
    signal(&server, Signal::SIGTERM);
    assert!(server.wait());
    assert!(names(&run).is_empty(), "{:?}", names(&run));
}

#[test]
fn reloads_rotations_and_kills_in_turn_lose_only_requests_under_way() {
    const CLIENTS: usize = 4;
    let seconds = Duration::from_secs(number("SECONDS", 6) as u64);
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let (is_over, outcomes, kills) =
        (AtomicBool::new(false), Mutex::new(BTreeMap::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let outcome = outcome(server.port);
                    *outcomes.lock().unwrap().entry(outcome).or_insert(0) += 1;
                }
            });
        }
        let begun = Instant::now();
        for step in 0.. {
            std::thread::sleep(Duration::from_millis(100));
            if begun.elapsed() > seconds {
                break;
            }
            match step % 20 {
                7 => signal(&server, Signal::SIGUSR1),
                19 => {
                    send(server.serving_id(), Signal::SIGKILL);
                    kills.fetch_add(1, Ordering::Relaxed);
                }
                _ => signal(&server, Signal::SIGHUP),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (outcomes, kills) = (outcomes.into_inner().unwrap(), kills.into_inner());
    println!("{kills} kills: {outcomes:?}");
    let lost: usize =
        outcomes.iter().filter(|(name, _)| **name != "answered").map(|(_, count)| count).sum();
    assert!(lost <= 2 * CLIENTS * kills, "{outcomes:?}");
    assert!(
        outcomes.keys().all(|name| ["answered", "closed", "reset"].contains(name)),
        "{outcomes:?}"
    );
}
