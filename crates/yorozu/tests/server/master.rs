//! The master process and the server process: either is killed, and the site goes on.
//! `KILLS`: how often the server is killed under load; `SECONDS`: how long it is reloaded, upgraded and killed in turn, in
//! place of a fixed number of times.

use crate::shared::{
    BINARY, CACHED, Master, PLAIN, answering, files, get, log, number, pages, run, send, signal,
    steps, until, yorozu,
};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Kind, Server, Text, free_port, kill_group, serving_id};

/// The outcome of a request, in a word.
fn outcome(port: u16) -> &'static str {
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut client = TcpStream::connect(("127.0.0.1", port))?;
        client.set_read_timeout(Some(Duration::from_secs(60)))?;
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
    let kills = usize::try_from(number("KILLS").unwrap_or(2)).unwrap();
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
fn a_server_is_replaced_although_its_cache_folder_cannot_be_used() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(&yorozu(), folder.path(), CACHED);
    let cache = folder.path().join("cache");
    let state = |path: &str| get(server.port, path).map(|answer| answer.field("x-cache"));
    assert_eq!(state("/a"), Some(Some("MISS".to_owned())));
    // Not even root can make a folder of a file. They change places at once: a folder that is missing is made again.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    renameat2(AT_FDCWD, &file, AT_FDCWD, &cache, RenameFlags::RENAME_EXCHANGE).unwrap();
    send(server.serving_id(), Signal::SIGKILL);
    until("an answer that nothing stores", || state("/a") == Some(None));
    assert_eq!(state("/a"), Some(None));
    assert!(log(&folder).contains("the cache zone \"z\" stores nothing: mkdir() "));
    assert_eq!(log(&folder).matches("[emerg]").count(), 0);
    // What is there again is used after a reload.
    fs::remove_file(&cache).unwrap();
    signal(&server, Signal::SIGHUP);
    until("a stored page", || state("/a") == Some(Some("HIT".to_owned())));
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
        // The connection, the page and the process are the same.
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
    let second = || {
        let begun = Instant::now();
        let done = Command::new(BINARY)
            .args(["-p".as_ref(), folder.path().as_os_str()])
            .args(["-c".as_ref(), folder.path().join("nginx.conf").as_os_str()])
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && said.contains("98: Address already in use"), "{said}");
        begun.elapsed()
    };
    // A machine that stands still tries again: one that waits for the first does so for five seconds each time.
    assert!((0..5).any(|_| second() < Duration::from_secs(4)), "it waits for nothing");
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
fn a_reload_moves_the_pid_file() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink(folder.path(), path("link")).unwrap();
    let mut server = Server::start(&yorozu(), folder.path(), PLAIN);
    let (serving, text) = (server.serving_id(), fs::read_to_string(path("nginx.conf")).unwrap());
    let line = text.split_inclusive(';').find(|line| line.trim().starts_with("pid ")).unwrap();
    let reload = |new: &str| {
        let new = format!(" pid {};", folder.path().join(new).display());
        fs::write(path("nginx.conf"), text.replace(line, &new)).unwrap();
        let reloads = log(&folder).matches("reconfigured").count();
        assert_eq!(run(&folder, &["-c", "last.conf", "-s", "reload"]), (true, String::new()));
        until("the reload", || {
            log(&folder).matches("reconfigured").count() > reloads
                || log(&folder).contains("[emerg]")
        });
        fs::copy(path("nginx.conf"), path("last.conf")).unwrap();
    };
    fs::write(path("last.conf"), &text).unwrap();
    let own = std::process::id();
    // Of another file system, where there is one.
    let shm = std::path::PathBuf::from(format!("/dev/shm/yorozu-pid.{own}"));
    for new in ["moved", shm.to_str().unwrap(), "again", "link/again", "last"] {
        reload(new);
        until("the file", || {
            fs::read_to_string(path(new)).is_ok_and(|id| id == format!("{}\n", server.id()))
        });
        until("the place beside it", || path(&format!("{new}.server")).exists());
    }
    for gone in ["pid", "moved", "again"].map(path).iter().chain([&shm]) {
        for end in ["", ".server", ".sock"] {
            let gone = std::path::PathBuf::from(format!("{}{end}", gone.display()));
            until(&format!("the end of {gone:?}"), || !gone.exists());
        }
    }
    // One that cannot be written is refused, and the old one stays.
    fs::write(path("nginx.conf"), text.replace(line, " pid /dev/null/pid;")).unwrap();
    assert_eq!(run(&folder, &["-c", "last.conf", "-s", "reload"]), (true, String::new()));
    until("the refusal", || log(&folder).contains("open() \"/dev/null/pid\" failed (20: "));
    // Another master finds the server where the pid file is now.
    send(server.id(), Signal::SIGKILL);
    server.wait();
    fs::copy(path("last.conf"), path("nginx.conf")).unwrap();
    let _next = Master::start(&folder);
    until("its word", || {
        log(&folder).contains(&format!("the server process {serving} has no master: taken over"))
    });
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
    assert!(begun.elapsed() < Duration::from_secs(60));
    until("its end", || !Path::new(&format!("/proc/{serving}")).exists());
    assert!(
        ["pid", "pid.server", "pid.sock"].iter().all(|name| !folder.path().join(name).exists())
    );
}

#[test]
fn a_reload_that_the_server_did_not_survive_is_reported() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!("{PLAIN} #later server {{ listen 127.0.0.1:{port}; return 200 later; }}\n");
    let server = Server::start(&yorozu(), folder.path(), &http);
    let first = answering(server.port);
    // The master has heard that it serves once it takes a configuration.
    let reloads = || log(&folder).matches("reconfigured").count();
    signal(&server, Signal::SIGHUP);
    until("a reload", || reloads() == 1);
    send(first, Signal::SIGSTOP);
    let file = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("#later", "")).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the signal", || log(&folder).matches("signal 1 (SIGHUP) received").count() == 2);
    // The master obeys one signal after the other: it has handed the configuration over by then.
    signal(&server, Signal::SIGUSR1);
    until("the next signal", || log(&folder).contains("reopening logs"));
    send(first, Signal::SIGKILL);
    until("the report", || {
        log(&folder).contains("ended while it took the new configuration: the old one stays in use")
    });
    assert_ne!(answering(server.port), first);
    signal(&server, Signal::SIGHUP);
    until("the reload", || reloads() == 2);
    assert_eq!(get(port, "/").unwrap().body, b"later");
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

/// The process id in a file.
fn id_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The binary is started beside the master `first` and takes over, as nginx's manual has it.
fn upgrade(folder: &Path, first: u32) {
    send(first, Signal::SIGUSR2);
    until("the new master", || id_in(&folder.join("pid")).is_some_and(|id| id != first));
    send(first, Signal::SIGQUIT);
    until("the end of the old one", || !folder.join("pid.oldbin").exists());
}

/// The master that wrote the process id last; it ends with this.
struct Last(PathBuf);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(id) = id_in(&self.0) {
            send(id, Signal::SIGTERM);
            until("its end", || !self.0.exists());
        }
    }
}

#[test]
fn reloads_rotations_upgrades_and_kills_in_turn_lose_only_requests_under_way() {
    const CLIENTS: usize = 4;
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let pid = folder.path().join("pid");
    until("the process id", || id_in(&pid).is_some());
    let _last = Last(pid.clone());
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (outcomes, mut kills) = (Mutex::new(BTreeMap::new()), 0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let outcome = outcome(server.port);
                    *outcomes.lock().unwrap().entry(outcome).or_insert(0) += 1;
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for step in steps(60) {
            let before = asked.load(Ordering::Relaxed);
            until("requests", || asked.load(Ordering::Relaxed) >= before + 10 * CLIENTS);
            let master = id_in(&pid).unwrap();
            match step % 20 {
                7 => send(master, Signal::SIGUSR1),
                13 => upgrade(folder.path(), master),
                19 => {
                    send(serving_id(master), Signal::SIGKILL);
                    kills += 1;
                }
                _ => send(master, Signal::SIGHUP),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let outcomes = outcomes.into_inner().unwrap();
    println!("{kills} kills: {outcomes:?}");
    let lost: usize =
        outcomes.iter().filter(|(name, _)| **name != "answered").map(|(_, count)| count).sum();
    assert!(lost <= 2 * CLIENTS * kills, "{outcomes:?}");
    assert!(
        outcomes.keys().all(|name| ["answered", "closed", "reset"].contains(name)),
        "{outcomes:?}"
    );
}

#[test]
fn logs_need_one_descriptor_each_also_at_a_reload_and_when_they_are_opened_again() {
    const LOGS: usize = 700;
    let folder = Folder::new();
    // A hundred more than there are logs.
    let limit = format!("#!/bin/sh\nulimit -n 800\nexec {BINARY} \"$@\"\n");
    let script = folder.script("limited", &limit);
    let servers = (0..LOGS).map(|number| {
        format!(
            "server {{ listen 127.0.0.1:$port; server_name s{number}; access_log $dir/logs/{number}.log; return 200 {number}; }}\n"
        )
    });
    let http: String = servers.collect();
    let server = Server::start(&Kind::Yorozu(script), folder.path(), &http);
    let path = folder.path().join("logs/650.log");
    let ask = || {
        let mut client = Client::connect(server.port);
        client.send(b"GET / HTTP/1.1\r\nHost: s650\r\nConnection: close\r\n\r\n");
        assert_eq!(client.answer(false).unwrap().body, b"650");
    };
    let lines = || fs::read_to_string(&path).unwrap_or_default().lines().count();
    ask();
    until("a line", || lines() == 1);
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    ask();
    until("a second line", || lines() == 2);
    fs::rename(&path, path.with_extension("old")).unwrap();
    signal(&server, Signal::SIGUSR1);
    until("a new file", || path.exists());
    until("a line in it", || {
        ask();
        lines() > 0
    });
    assert!(!log(&folder).contains("Too many open files"), "{}", log(&folder));
}
