//! Sockets that go from one process to the next: a new binary beside the old one, systemd.

use crate::shared::{
    BINARY, Master, PLAIN, Stranger, get, id, is_alive, log, signal, until, yorozu,
};
use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use yorozu_testkit::client::Client;
use yorozu_testkit::server::{Folder, Server, free_port};

/// The master of the process that answers; 0 if that process ended behind its answer.
fn answering(port: u16) -> i32 {
    let answer = get(port, "/").unwrap();
    let id: u32 = String::from_utf8(answer.body).unwrap().parse().unwrap();
    let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { return 0 };
    // proc(5): state, parent.
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_new_binary_takes_over_and_no_request_is_dropped() {
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), PLAIN);
    let (pid, old) = (folder.path().join("pid"), folder.path().join("pid.oldbin"));
    until("the process id", || id(&pid).is_some());
    let first = id(&pid).unwrap();
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let _second = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    get(server.port, "/").expect("no request is dropped");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        signal(&server, Signal::SIGUSR2);
        until("the new process", || id(&pid).is_some_and(|pid| pid != first));
        let second = id(&pid).unwrap();
        assert_eq!(id(&old), Some(first));
        until("an answer of it", || answering(server.port) == second);
        signal(&server, Signal::SIGUSR2);
        until("a refusal", || log(&folder).contains("the changing binary signal is ignored"));
        // The signals to the old one, as nginx's manual has it: its workers end, then itself.
        signal(&server, Signal::SIGWINCH);
        until("the new one alone", || (0..20).all(|_| answering(server.port) == second));
        assert!(is_alive(first));
        signal(&server, Signal::SIGQUIT);
        until("the old one's end", || !old.exists());
        assert_eq!(answering(server.port), second);
        is_over.store(true, Ordering::Relaxed);
        Stranger(second)
    });
    assert!(count.load(Ordering::Relaxed) > 20);
}

#[test]
fn without_the_new_binary_the_old_one_goes_on() {
    let folder = Folder::new();
    let socket = folder.path().join("s.sock");
    let unix = format!("{PLAIN} server {{ listen unix:{}; }}", socket.display());
    let server = Server::start(&yorozu(), folder.path(), &unix);
    let (pid, old) = (folder.path().join("pid"), folder.path().join("pid.oldbin"));
    until("the process id", || id(&pid).is_some());
    let first = id(&pid).unwrap();
    for is_woken in [true, false] {
        signal(&server, Signal::SIGUSR2);
        until("the new process", || old.exists() && id(&pid).is_some_and(|pid| pid != first));
        let second = id(&pid).unwrap();
        until("an answer of it", || answering(server.port) == second);
        signal(&server, Signal::SIGWINCH);
        until("the new one alone", || (0..20).all(|_| answering(server.port) == second));
        if is_woken {
            signal(&server, Signal::SIGHUP);
            until("the old one beside it", || answering(server.port) == first);
        }
        kill(Pid::from_raw(second), Signal::SIGTERM).unwrap();
        until("the old one's file", || !old.exists() && id(&pid) == Some(first));
        until("the old one", || get(server.port, "/").is_some_and(|answer| answer.status == 200));
        assert_eq!(answering(server.port), first);
        assert!(socket.exists(), "the socket is the old one's");
    }
}

/// The server process of a master.
fn server_of(master: i32) -> Option<i32> {
    let tasks = format!("/proc/{master}/task");
    let children = fs::read_dir(tasks).ok()?.flatten().map(|task| task.path().join("children"));
    let mut ids = children.flat_map(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>()
    });
    ids.find(|id| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "yorozu: server\n")
    })
}

/// The masters of both binaries, once the new one serves.
fn upgraded(server: &Server, pid: &Path) -> (i32, i32) {
    until("the process id", || id(pid).is_some());
    let first = id(pid).unwrap();
    signal(server, Signal::SIGUSR2);
    until("the new process", || id(pid).is_some_and(|pid| pid != first));
    let second = id(pid).unwrap();
    until("an answer of it", || answering(server.port) == second);
    (first, second)
}

#[test]
fn of_two_masters_the_one_that_lives_serves_alone() {
    for (is_new_killed, rests) in [(true, false), (true, true), (false, false), (false, true)] {
        let folder = Folder::new();
        let mut server = Server::start(&yorozu(), folder.path(), PLAIN);
        let pid = folder.path().join("pid");
        let (first, second) = upgraded(&server, &pid);
        if rests {
            signal(&server, Signal::SIGWINCH);
            until("the new one alone", || (0..20).all(|_| answering(server.port) == second));
        }
        let (killed, lives) = if is_new_killed { (second, first) } else { (first, second) };
        let orphan = server_of(killed);
        kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
        if !is_new_killed {
            server.wait();
        }
        // A request in progress is no more than that.
        until("the end of what it left", || orphan.is_none_or(|orphan| !is_alive(orphan)));
        until("an answer", || answering(server.port) == lives);
        assert!((0..20).all(|_| answering(server.port) == lives));
        if is_new_killed {
            until("its file", || id(&pid) == Some(first));
        } else {
            kill(Pid::from_raw(second), Signal::SIGQUIT).unwrap();
            until("its end", || !is_alive(second));
        }
    }
}

#[test]
fn a_server_whose_masters_are_both_gone_is_found() {
    let folder = Folder::new();
    let mut server = Server::start(&yorozu(), folder.path(), PLAIN);
    let pid = folder.path().join("pid");
    let (first, second) = upgraded(&server, &pid);
    let (old, new) = (server_of(first).unwrap(), server_of(second).unwrap());
    // Neither can act on the end of the other.
    for master in [first, second] {
        kill(Pid::from_raw(master), Signal::SIGSTOP).unwrap();
    }
    for master in [first, second] {
        kill(Pid::from_raw(master), Signal::SIGKILL).unwrap();
    }
    server.wait();
    until("their ends", || {
        !is_alive(second) || !Path::new(&format!("/proc/{second}/exe")).exists()
    });
    let _next = Master::start(&folder);
    until("the end of the old one", || !is_alive(old));
    let line = format!("the server process {new} has no master: taken over");
    until(&line, || log(&folder).contains(&line));
    assert!(is_alive(new));
}

#[test]
fn a_master_that_rests_without_another_one_reads_its_configuration_again() {
    let folder = Folder::new();
    let server = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; return 200 old; }",
    );
    assert_eq!(get(server.port, "/").unwrap().body, b"old");
    signal(&server, Signal::SIGWINCH);
    until("its rest", || log(&folder).contains("exited with code 0"));
    let file = folder.path().join("nginx.conf");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("200 old", "200 new")).unwrap();
    signal(&server, Signal::SIGHUP);
    assert_eq!(get(server.port, "/").unwrap().body, b"new");
}

#[test]
fn a_socket_that_a_reload_adds_is_heard_though_a_worker_still_ends() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!("{PLAIN} #later server {{ listen 127.0.0.1:{port}; return 200 later; }}\n");
    let server = Server::start(&yorozu(), folder.path(), &http);
    // A head that is not whole keeps its worker from ending.
    let mut slow = Client::connect(server.port);
    slow.send(b"GET / HTTP/1.1\r\nHost: a\r\n");
    assert!(get(server.port, "/").is_some());
    signal(&server, Signal::SIGWINCH);
    until("the rest", || log(&folder).contains("signal 28"));
    signal(&server, Signal::SIGHUP);
    // The process that ends may still answer, and a second signal that comes before the first was read is none.
    until("a server", || log(&folder).contains("start server process"));
    until("an answer", || get(server.port, "/").is_some());
    let file = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&file).unwrap().replace("#later", "");
    fs::write(&file, text).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    for _ in 0..16 {
        assert_eq!(get(port, "/").expect("every socket is heard").body, b"later");
    }
    slow.send(b"Connection: close\r\n\r\n");
    assert_eq!(slow.answer(false).unwrap().status, 200);
}

/// Starts the server as systemd does: with open sockets, or a place for messages.
fn activate(folder: &Folder, http: &str, sockets: Vec<FdMapping>, messages: &Path) -> Child {
    let dir = folder.path().display();
    let file = folder.path().join("nginx.conf");
    let text = format!(
        "daemon off; user root; pid {dir}/pid; error_log {dir}/logs/error.log info;\n\
         events {{}}\nhttp {{ access_log off; {http} }}"
    );
    fs::write(&file, text).unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["-c".as_ref(), file.as_os_str()])
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("NOTIFY_SOCKET", messages)
        .fd_mappings(sockets)
        .unwrap();
    command.spawn().unwrap()
}

#[test]
fn systemd_hears_that_the_workers_turn_for_as_long_as_they_do() {
    let folder = Folder::new();
    let messages = folder.path().join("notify");
    let told = UnixDatagram::bind(&messages).unwrap();
    let hears = |time: u64| {
        told.set_read_timeout(Some(Duration::from_secs(time))).unwrap();
        let mut text = [0; 256];
        let count = told.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..count]).into_owned())
    };
    let faults = folder.path().join("faults");
    fs::create_dir(&faults).unwrap();
    let (port, file) = (free_port(), folder.path().join("nginx.conf"));
    let dir = folder.path().display();
    let text = format!(
        "daemon off; user root; pid {dir}/pid; error_log {dir}/logs/error.log info; worker_watchdog 0;
         events {{}} http {{ access_log off; server {{ listen 127.0.0.1:{port}; return 200 ok; }} }}"
    );
    fs::write(&file, text).unwrap();
    let mut server = Command::new(BINARY)
        .args(["-c".as_ref(), file.as_os_str()])
        .env("NOTIFY_SOCKET", &messages)
        .env("WATCHDOG_USEC", "400000")
        .env("YOROZU_FAULTS", &faults)
        .spawn()
        .unwrap();
    assert!(hears(60).unwrap().contains("READY=1"));
    for _ in 0..3 {
        assert!(hears(60).unwrap().contains("WATCHDOG=1"));
    }
    fs::write(faults.join("connection"), "").unwrap();
    let stands = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Those that were on their way come still.
    until("silence", || hears(2).is_none());
    fs::remove_file(faults.join("connection")).unwrap();
    assert!(hears(60).unwrap().contains("WATCHDOG=1"));
    drop(stands);
    kill(Pid::from_raw(i32::try_from(server.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(server.wait().unwrap().success());
}

#[test]
fn systemd_opens_the_sockets_and_is_told_how_it_goes() {
    let folder = Folder::new();
    let messages = folder.path().join("notify");
    let told = UnixDatagram::bind(&messages).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hears = |wanted: &str| {
        let mut text = [0; 256];
        let count = told.recv(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text[..count]).into_owned();
        assert!(text.contains(wanted), "{text} instead of {wanted}");
    };
    let (tcp, path) = (TcpListener::bind("127.0.0.1:0").unwrap(), folder.path().join("u.sock"));
    let port = tcp.local_addr().unwrap().port();
    let unix = UnixListener::bind(&path).unwrap();
    // A second one could not be opened beside it: it is this one that is served.
    let http = format!(
        "server {{ listen 127.0.0.1:{port}; listen unix:{}; return 200 in; }}",
        path.display()
    );
    let sockets = vec![
        FdMapping { parent_fd: tcp.into(), child_fd: 3 },
        FdMapping { parent_fd: unix.into(), child_fd: 4 },
    ];
    let mut server = activate(&folder, &http, sockets, &messages);
    hears("READY=1");
    assert_eq!(get(port, "/").unwrap().body, b"in");
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    let pid = Pid::from_raw(i32::try_from(server.id()).unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    hears("RELOADING=1");
    hears("READY=1");
    kill(pid, Signal::SIGQUIT).unwrap();
    hears("STOPPING=1");
    assert!(server.wait().unwrap().success());
}

#[test]
fn systemd_does_not_take_the_old_one_s_end_for_the_service_s() {
    let folder = Folder::new();
    let messages = folder.path().join("notify");
    let told = UnixDatagram::bind(&messages).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hears = || {
        let mut text = [0; 256];
        let count = told.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let http = format!("server {{ listen 127.0.0.1:{}; }}", free_port());
    let mut old = activate(&folder, &http, Vec::new(), &messages);
    let first = Pid::from_raw(i32::try_from(old.id()).unwrap());
    assert!(hears().contains("READY=1"));
    let begin = || {
        kill(first, Signal::SIGUSR2).unwrap();
        let second = hears().trim().strip_prefix("MAINPID=").unwrap().parse().unwrap();
        assert!(hears().contains("READY=1"));
        Stranger(second)
    };
    let end = |process| kill(Pid::from_raw(process), Signal::SIGQUIT).unwrap();
    let refused = begin();
    end(refused.0);
    assert_eq!(hears().trim(), format!("MAINPID={first}"));
    drop(refused);
    let new = begin();
    end(first.as_raw());
    assert!(old.wait().unwrap().success());
    end(new.0);
    assert!(hears().contains("STOPPING=1"));
    until("the new one's end", || !is_alive(new.0));
    told.set_nonblocking(true).unwrap();
    assert!(told.recv(&mut [0; 256]).is_err(), "there was one end, and one message of it");
}

#[test]
fn one_port_can_be_listened_on_in_general_and_in_particular() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:$port; return 200 a; }}\n\
         server {{ listen {port}; return 200 all; }}\n#later server {{ listen 127.0.0.1:{port}; return 200 one; }}\n"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    until("an answer on the port", || get(port, "/").is_some_and(|answer| answer.body == b"all"));
    let file = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&file).unwrap().replace("#later", "");
    fs::write(&file, text).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    until("its own server", || get(port, "/").is_some_and(|answer| answer.body == b"one"));
    drop(server);
    let _server = Server::start(&yorozu(), folder.path(), &http.replace("#later", ""));
    until("an answer on the port", || get(port, "/").is_some());
    assert_eq!(get(port, "/").unwrap().body, b"one");
}

/// A terminal sends SIGWINCH to what runs in its foreground when its window has another size.
#[test]
fn another_size_of_the_terminal_ends_no_server() {
    let folder = Folder::new();
    let port = free_port();
    let path = folder.path();
    let conf = format!(
        "events {{}} pid {0}/pid; error_log {0}/logs/error.log notice; daemon off; http {{ {1} }}",
        path.display(),
        PLAIN
    );
    fs::write(path.join("nginx.conf"), conf.replace("$port", &port.to_string())).unwrap();
    let command =
        format!("{BINARY} -p {0} -c {0}/nginx.conf -e {0}/logs/error.log", path.display());
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let serving = || String::from_utf8(get(port, "/").unwrap().body).unwrap().parse().unwrap();
    let (master, first): (i32, i32) = (answering(port), serving());
    let send = |id: i32, signal| kill(Pid::from_raw(id), signal).unwrap();
    for round in 1..=2 {
        send(first, Signal::SIGWINCH);
        send(master, Signal::SIGWINCH);
        send(master, Signal::SIGHUP);
        until("a reload behind it", || log(&folder).matches("reconfigured").count() == round);
        assert!(!log(&folder).contains("gracefully"), "{}", log(&folder));
        assert_eq!(serving(), first);
    }
    send(master, Signal::SIGTERM);
    terminal.wait().unwrap();
}
