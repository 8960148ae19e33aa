//! The process: signals, reload, start and stop, crashes, timeouts, a full disk.

use crate::shared::{CACHED, files, get, log, page, pages, run, signal, until, yorozu};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Kind, Server, free_port};

#[test]
fn reload_drops_no_request_and_keeps_the_memory_cache() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(&yorozu(), folder.path(), CACHED);
    assert_eq!(get(server.port, "/a").unwrap().field("x-cache").as_deref(), Some("MISS"));
    // Only the memory tier can answer from here on: the file is there, without anything in it.
    until("the file", || files(&folder.path().join("cache")).len() == 1);
    fs::write(&files(&folder.path().join("cache"))[0], "").unwrap();
    drop(origin);
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (is_over, answered, port) = (&is_over, &answered, server.port);
                scope.spawn(move || {
                    let mut kept = Client::connect(port);
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let answer = if number % 2 == 0 {
                            get(port, "/a")
                        } else {
                            kept.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
                            kept.answer(false)
                        };
                        let answer = answer.expect("no request is dropped");
                        assert_eq!((answer.status, &*answer.body), (200, page("/a").as_bytes()));
                        count += 1;
                        answered.fetch_add(1, Ordering::Relaxed);
                        if count % 900 == 0 {
                            kept = Client::connect(port); // keepalive_requests is 1000
                        }
                    }
                })
            })
            .collect();
        for round in 1..=5 {
            signal(&server, Signal::SIGHUP);
            until("the reload", || log(&folder).matches("reconfigured").count() >= round);
            let before = answered.load(Ordering::Relaxed);
            until("answers after it", || answered.load(Ordering::Relaxed) > before + 20);
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    assert_eq!(get(server.port, "/a").unwrap().field("x-cache").as_deref(), Some("HIT"));
}

#[test]
fn a_broken_configuration_on_reload_keeps_the_old_one_and_says_why() {
    let folder = Folder::new();
    let server = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; return 200 old; }",
    );
    let file = folder.path().join("nginx.conf");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("return 200 old", "retrun 200 new")).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the message", || log(&folder).contains("[emerg]"));
    assert!(log(&folder).contains("unknown directive \"retrun\" in "), "{}", log(&folder));
    assert_eq!(get(server.port, "/").unwrap().body, b"old");
    fs::write(&file, good.replace("return 200 old", "return 200 new")).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the new configuration", || {
        get(server.port, "/").is_some_and(|answer| answer.body == b"new")
    });
}

#[test]
fn a_reload_adds_and_removes_sockets() {
    let folder = Folder::new();
    let server = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; return 200 ok; }",
    );
    let (file, other) = (folder.path().join("nginx.conf"), free_port());
    let old = fs::read_to_string(&file).unwrap();
    fs::write(&file, old.replace(&server.port.to_string(), &other.to_string())).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the new socket", || TcpStream::connect(("127.0.0.1", other)).is_ok());
    assert_eq!(get(other, "/").unwrap().body, b"ok");
    until("the end of the old socket", || TcpStream::connect(("127.0.0.1", server.port)).is_err());
}

#[test]
fn quit_finishes_what_is_under_way_and_closes_what_is_idle() {
    let folder = Folder::new();
    let body = vec![b'x'; 60_000];
    fs::write(folder.path().join("html/slow"), &body).unwrap();
    let mut server = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; root $dir/html; location /slow { limit_rate 30k; } location / { return 200 ok; } }",
    );
    let mut idle = Client::connect(server.port);
    idle.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.answer(false).unwrap().status, 200);
    let mut busy = Client::connect(server.port);
    busy.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(busy.is_answered());
    signal(&server, Signal::SIGQUIT);
    assert!(idle.is_closed());
    until("the end of the socket", || TcpStream::connect(("127.0.0.1", server.port)).is_err());
    assert_eq!(busy.answer(false).unwrap().body, body);
    assert!(busy.is_closed());
    assert!(server.wait());
    assert!(!folder.path().join("pid").exists());
}

#[test]
fn a_server_that_ends_is_not_configured_again() {
    // The master is told to end, or its server process, of which it starts another one then.
    for is_master in [true, false] {
        let folder = Folder::new();
        fs::write(folder.path().join("html/slow"), vec![b'x'; 60_000]).unwrap();
        let mut server = Server::start(
            &yorozu(),
            folder.path(),
            "server { listen 127.0.0.1:$port; root $dir/html; location /slow { limit_rate 30k; } }",
        );
        let mut busy = Client::connect(server.port);
        busy.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(busy.is_answered());
        let (file, other) = (folder.path().join("nginx.conf"), free_port());
        let old = fs::read_to_string(&file).unwrap();
        fs::write(&file, old.replace(&server.port.to_string(), &other.to_string())).unwrap();
        let serving = server.serving_id();
        crate::shared::send(if is_master { server.id() } else { serving }, Signal::SIGQUIT);
        until("the word", || log(&folder).contains("shutting down"));
        signal(&server, Signal::SIGHUP);
        until("the other word", || log(&folder).contains("reconfiguring"));
        std::thread::sleep(Duration::from_millis(300));
        // The socket may be open in the master, for the next server process: this one takes no client.
        assert!(!is_master || TcpStream::connect(("127.0.0.1", other)).is_err());
        assert_eq!(busy.answer(false).unwrap().body.len(), 60_000);
        if is_master {
            assert!(server.wait());
        } else {
            until("another server process", || get(other, "/slow").is_some());
            assert_ne!(server.serving_id(), serving);
        }
    }
}

#[test]
fn worker_shutdown_timeout_bounds_a_graceful_stop() {
    let folder = Folder::new();
    let http = "client_header_timeout 10m; server { listen 127.0.0.1:$port; return 200 ok; }";
    let mut server = Server::start(&yorozu(), folder.path(), http);
    drop(get(server.port, "/"));
    let file = folder.path().join("nginx.conf");
    let text = format!("worker_shutdown_timeout 100ms;\n{}", fs::read_to_string(&file).unwrap());
    fs::write(&file, text).unwrap();
    signal(&server, Signal::SIGHUP);
    until("the reload", || log(&folder).contains("reconfigured"));
    let mut half = Client::connect(server.port);
    half.send(b"GET / HTTP/1.1\r\n");
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    signal(&server, Signal::SIGQUIT);
    assert!(server.wait() && begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn usr1_opens_the_logs_again() {
    let folder = Folder::new();
    let http = "access_log $dir/logs/a.log; server { listen 127.0.0.1:$port; access_log $dir/logs/a.log; return 200 ok; }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let (now, rotated) = (folder.path().join("logs/a.log"), folder.path().join("logs/a.log.1"));
    get(server.port, "/before").unwrap();
    until("the line", || fs::read_to_string(&now).unwrap().contains("/before"));
    fs::rename(&now, &rotated).unwrap();
    signal(&server, Signal::SIGUSR1);
    until("the new file", || now.exists());
    // As with nginx, the file is there before those that serve write to it.
    until("the line", || {
        get(server.port, "/between").unwrap();
        fs::read_to_string(&now).unwrap().contains("/between")
    });
    get(server.port, "/after").unwrap();
    until("the line", || fs::read_to_string(&now).unwrap().contains("/after"));
    assert!(!fs::read_to_string(&rotated).unwrap().contains("/after"));
}

#[test]
fn a_taken_port_is_one_clear_line() {
    let folder = Folder::new();
    let first = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; return 200 ok; }",
    );
    let (is_fine, text) = run(&folder, &[]);
    let expected =
        format!("bind() to 127.0.0.1:{} failed (98: Address already in use)", first.port);
    assert!(!is_fine && text.contains(&expected), "{text}");
    assert_eq!(get(first.port, "/").unwrap().body, b"ok");
}

#[test]
fn it_goes_into_the_background_and_obeys_signals_by_name() {
    let folder = Folder::new();
    let port = free_port();
    let text = format!(
        "user {}; pid pid; error_log logs/error.log; events {{}} http {{ server {{ listen 127.0.0.1:{port}; return 200 ok; }} }}",
        std::env::var("USER").unwrap_or_else(|_| "root".to_owned())
    );
    fs::write(folder.path().join("nginx.conf"), text).unwrap();
    assert_eq!(run(&folder, &[]), (true, String::new()));
    assert_eq!(get(port, "/").unwrap().body, b"ok");
    let (is_fine, text) = run(&folder, &["-t"]);
    assert!(
        is_fine && text.contains("syntax is ok") && text.contains("test is successful"),
        "{text}"
    );
    assert_eq!(run(&folder, &["-t", "-q"]), (true, String::new()));
    assert!(run(&folder, &["-T"]).1.contains("# configuration file "));
    assert_eq!(run(&folder, &["-s", "stop"]), (true, String::new()));
    until("the end", || !folder.path().join("pid").exists());
    let (is_fine, text) = run(&folder, &["-s", "stop"]);
    assert!(!is_fine, "{text}");
    assert!(run(&folder, &["-x"]).1.contains("invalid option: \"x\""));
    assert!(run(&folder, &["-t", "--reads"]).1.contains("option \"--reads\" requires \"-T\""));
    assert!(
        run(&folder, &["-g", "foo on;"]).1.contains("unknown directive \"foo\" in command line:1")
    );
    assert!(run(&folder, &["-V"]).1.contains("nginx version: nginx/"));
}

#[test]
fn after_a_kill_at_any_moment_every_page_is_whole() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let mut hits = 0;
    for round in 0..6u64 {
        let mut server = Server::start(&yorozu(), folder.path(), CACHED);
        for number in 0..20 {
            let uri = format!("/{number}");
            let answer = get(server.port, &uri).unwrap();
            assert_eq!(
                (answer.status, &*answer.body),
                (200, page(&uri).as_bytes()),
                "round {round}"
            );
            hits += usize::from(answer.field("x-cache").as_deref() == Some("HIT"));
        }
        let port = server.port;
        let writer = std::thread::spawn(move || {
            for number in 0..40 {
                // The kill may come at any of these.
                let uri = format!("/{round}-{number}");
                if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                    let _ = write!(stream, "GET {uri} HTTP/1.0\r\n\r\n");
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        });
        std::thread::sleep(Duration::from_millis(3 + 7 * round));
        server.kill();
        writer.join().unwrap();
    }
    assert!(hits >= 60, "only {hits} hits: files were lost");
}

#[test]
fn damaged_files_are_misses() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let mut server = Server::start(&yorozu(), folder.path(), CACHED);
    for number in 0..12 {
        get(server.port, &format!("/{number}")).unwrap();
    }
    until("the files", || files(&folder.path().join("cache")).len() == 12);
    server.kill();
    for (number, path) in files(&folder.path().join("cache")).iter().enumerate() {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        match number % 4 {
            0 => bytes.truncate(middle),
            1 => bytes[middle] ^= 1,
            2 => bytes[5] ^= 1,
            _ => bytes.clear(),
        }
        fs::write(path, bytes).unwrap();
    }
    let server = Server::start(&yorozu(), folder.path(), CACHED);
    for number in 0..12 {
        let uri = format!("/{number}");
        let answer = get(server.port, &uri).unwrap();
        assert_eq!(answer.body, page(&uri).as_bytes());
        assert_eq!(answer.field("x-cache").as_deref(), Some("MISS"));
        assert_eq!(get(server.port, &uri).unwrap().field("x-cache").as_deref(), Some("HIT"));
    }
    assert!(log(&folder).contains("is damaged"), "{}", log(&folder));
}

#[test]
fn a_full_disk_costs_files_and_nothing_else() {
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(&cache)
        .output()
        .unwrap();
    if !mount.status.success() {
        println!("not run: mounting a small file system needs root");
        return;
    }
    let _origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(&yorozu(), folder.path(), CACHED);
    let mut is_right = true;
    for number in 0..40 {
        let uri = format!("/{number}");
        is_right &=
            get(server.port, &uri).is_some_and(|answer| answer.body == page(&uri).as_bytes());
    }
    let is_hit =
        get(server.port, "/39").is_some_and(|a| a.field("x-cache").as_deref() == Some("HIT"));
    let has_said = || log(&folder).contains("failed (28: No space left on device");
    let end = Instant::now() + Duration::from_secs(60);
    while !has_said() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (said, log) = (has_said(), log(&folder));
    drop(server);
    assert!(Command::new("umount").arg(&cache).status().unwrap().success());
    assert!(is_right && is_hit && said, "{is_right} {is_hit} {said} {log}");
}

#[test]
fn a_client_that_is_silent_is_let_go() {
    let folder = Folder::new();
    let http = "client_header_timeout 300ms; client_body_timeout 300ms; keepalive_timeout 300ms; access_log $dir/logs/a.log;
        server { listen 127.0.0.1:$port; access_log $dir/logs/a.log;
        location / { return 200 ok; } location /php { fastcgi_pass $origin; } }";
    let _origin = Origin::start(folder.path());
    let server = Server::start(&yorozu(), folder.path(), http);
    let silent = |sent: &[u8]| {
        let begun = Instant::now();
        let mut client = Client::connect(server.port);
        client.send(sent);
        let answer = client.answer(false);
        assert!(client.is_closed());
        (answer.map(|answer| answer.status), begun.elapsed())
    };
    for (sent, answer) in [
        (&b""[..], None),
        (b"GET / HTTP/1.1\r\nHost:", None),
        (b"POST /php HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", None),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Some(200)),
    ] {
        let (got, time) = silent(sent);
        assert_eq!(got, answer, "{:?}", String::from_utf8_lossy(sent));
        assert!(
            (250..30_000).contains(&time.as_millis()),
            "{time:?} for {:?}",
            String::from_utf8_lossy(sent)
        );
    }
    until("the log lines", || {
        fs::read_to_string(folder.path().join("logs/a.log")).unwrap().matches("\" 408 ").count()
            == 2
    });
}

#[test]
fn a_client_that_does_not_read_is_reset() {
    let folder = Folder::new();
    fs::write(folder.path().join("html/big"), vec![b'x'; 32 << 20]).unwrap();
    let http = "send_timeout 300ms; reset_timedout_connection on; sendfile on;
        server { listen 127.0.0.1:$port sndbuf=16k; root $dir/html; }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("the message", || log(&folder).contains("while sending response to client"));
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all);
    assert!(end.is_err() && all.len() < 32 << 20, "{end:?} after {} bytes", all.len());
}

#[test]
fn a_client_whose_content_is_late_or_that_is_not_answered_is_reset_where_that_is_asked_for() {
    let http = "client_body_timeout 300ms; server { listen 127.0.0.1:$port;
        location /late { proxy_pass http://127.0.0.1:9; } location /none { return 444; }
        location /said { return 408; }
        location /reset/ { reset_timedout_connection on;
            location /reset/late { proxy_pass http://127.0.0.1:9; } location /reset/none { return 444; }
            location /reset/said { return 408; } } }";
    for kind in [Some(yorozu()), Kind::oracle()].into_iter().flatten() {
        let folder = Folder::new();
        let server = Server::start(&kind, folder.path(), http);
        for (path, is_reset) in [
            ("/late", false),
            ("/none", false),
            ("/said", false),
            ("/reset/late", true),
            ("/reset/none", true),
            ("/reset/said", false),
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            let end = stream.read_to_end(&mut Vec::new());
            assert_eq!(end.is_err(), is_reset, "{kind:?} {path}: {end:?}");
        }
    }
}

#[test]
fn a_small_file_is_served_as_it_is_now() {
    let folder = Folder::new();
    let root = folder.path().join("www");
    let path = root.join("style.css");
    fs::create_dir(&root).unwrap();
    let old = |days: u64| std::time::SystemTime::now() - Duration::from_secs(86_400 * days);
    let write = |path: &std::path::Path, content: &str| {
        fs::write(path, content).unwrap();
        // Only what has not changed for a while is kept; this test does not wait for that.
        fs::File::options().write(true).open(path).unwrap().set_modified(old(9)).unwrap();
    };
    write(&path, "first");
    std::thread::sleep(Duration::from_millis(3100)); // the other time of a file cannot be set
    let http = "server { listen 127.0.0.1:$port; root $dir/www; }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let body = || get(server.port, "/style.css").unwrap().body;
    for _ in 0..3 {
        assert_eq!(body(), b"first");
    }
    // In place, of the same length and with the same modification time.
    write(&path, "other");
    assert_eq!(body(), b"other");
    // By another file in its place.
    write(&root.join("new"), "third");
    fs::rename(root.join("new"), &path).unwrap();
    assert_eq!(body(), b"third");
    fs::remove_file(&path).unwrap();
    assert_eq!(get(server.port, "/style.css").unwrap().status, 404);
}

#[test]
fn an_access_log_line_is_complete() {
    let folder = Folder::new();
    let http = "log_format main '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" \"$http_x_forwarded_for\"';
        server { listen 127.0.0.1:$port; access_log $dir/logs/a.log main; return 200 ok; }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let mut client = Client::connect(server.port);
    client.send(b"GET /a%20b HTTP/1.1\r\nHost: x\r\nUser-Agent: q\"q\r\nAuthorization: Basic YWxpY2U6cHc=\r\n\r\n");
    client.answer(false).unwrap();
    let read = || fs::read_to_string(folder.path().join("logs/a.log")).unwrap();
    until("the line", || read().ends_with('\n'));
    let line = read();
    assert!(line.starts_with("127.0.0.1 - alice ["), "{line}");
    assert!(line.ends_with("\"GET /a%20b HTTP/1.1\" 200 2 \"-\" \"q\\x22q\" \"-\"\n"), "{line}");
}

#[test]
fn logs_go_to_syslog_to_named_files_and_compressed() {
    let folder = Folder::new();
    let syslog = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let server = format!(
        "syslog:server={},tag=web,facility=local0,severity=debug,nohostname",
        syslog.local_addr().unwrap()
    );
    let http = format!(
        "log_format u '$uri';
        server {{ listen 127.0.0.1:$port; root $dir/html; access_log {server} u; access_log $dir/logs/$host.log u;
            access_log $dir/logs/a.gz u gzip=9 flush=50ms; error_log {server} error; }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    get(server.port, "/x").unwrap();
    let receive = || {
        let mut buffer = [0; 2048];
        let count = syslog.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let (error, access) = (receive(), receive());
    // local0 is facility 16; debug 7, error 3 (RFC 3164, section 4.1.1).
    assert!(
        error.starts_with("<131>") && error.contains(" web: ") && error.contains("open()"),
        "{error}"
    );
    assert!(access.starts_with("<135>") && access.ends_with(" web: /x"), "{access}");
    until("the named file", || {
        fs::read_to_string(folder.path().join("logs/a.log")).is_ok_and(|text| text == "/x\n")
    });
    let packed = folder.path().join("logs/a.gz");
    // It comes in pieces.
    until("the packed line", || {
        let plain = Command::new("gzip").args(["-dc".as_ref(), packed.as_os_str()]).output();
        plain.unwrap().stdout == b"/x\n"
    });
}

#[test]
fn nobody_writes_lines_of_their_own_into_the_error_log() {
    let folder = Folder::new();
    let syslog = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let http = format!(
        "server {{ listen 127.0.0.1:$port; root $dir/html; error_log $dir/logs/error.log info;
            error_log syslog:server={} error;
            location /in {{ auth_basic in; auth_basic_user_file $dir/html/users; }} }}",
        syslog.local_addr().unwrap()
    );
    fs::write(folder.path().join("html/users"), "ann:{PLAIN}secret\n").unwrap();
    let server = Server::start(&yorozu(), folder.path(), &http);
    let ask = |head: &str| {
        let mut client = Client::connect(server.port);
        client.send(format!("{head}\r\n\r\n").as_bytes());
        client.answer(false);
    };
    ask(
        "GET /a%0a2026/11/22%2000:00:00%20[emerg]%201%231:%20FORGED%1b%5b31m%7f HTTP/1.1\r\nHost: a",
    );
    // "eve\n[emerg] FORGED\x1b[31m:x"
    ask("GET /in HTTP/1.1\r\nHost: a\r\nAuthorization: Basic ZXZlCltlbWVyZ10gRk9SR0VEG1szMW06eA==");
    ask("GET /b HTTP/1.1\r\nHost: a\r\nReferer: c\x1b[31m\td");
    let all = || log(&folder);
    until("the lines", || all().matches("[error]").count() == 3);
    let (text, is_control) = (all(), |c: char| c.is_control() && c != '\n');
    assert!(!text.contains(is_control), "{text:?}");
    assert!(text.lines().all(|line| line.contains("#") && !line.starts_with("[emerg]")), "{text}");
    assert!(
        text.contains("/a\\x0A2026/11/22 00:00:00 [emerg] 1#1: FORGED\\x1B[31m\\x7F\""),
        "{text}"
    );
    assert!(text.contains("user \"eve\\x0A[emerg] FORGED\\x1B[31m\" was not found"), "{text}");
    assert!(text.contains("referrer: \"c\\x1B[31m\\x09d\""), "{text}");
    for _ in 0..3 {
        let mut buffer = [0; 2048];
        let count = syslog.recv(&mut buffer).unwrap();
        let text = String::from_utf8_lossy(&buffer[..count]);
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn symbolic_links_are_refused_when_asked() {
    let folder = Folder::new();
    let html = folder.path().join("html");
    fs::create_dir_all(html.join("real")).unwrap();
    fs::write(html.join("real/a"), "a").unwrap();
    std::os::unix::fs::symlink(html.join("real"), html.join("linked")).unwrap();
    std::os::unix::fs::symlink(html.join("real/a"), html.join("real/b")).unwrap();
    let http =
        "server { listen 127.0.0.1:$port; root $dir/html; disable_symlinks on from=$document_root; autoindex on;
        location /linked/free { disable_symlinks off; alias $dir/html/linked/a; }
        location /linked/own { disable_symlinks if_not_owner; alias $dir/html/linked/a; } }";
    for kind in std::iter::once(yorozu()).chain(Kind::oracle()) {
        let server = Server::start(&kind, folder.path(), http);
        let status = |path: &str| get(server.port, path).unwrap().status;
        assert_eq!(
            (status("/real/a"), status("/real/b"), status("/linked/a")),
            (200, 403, 404),
            "{kind:?}"
        );
        assert_eq!((status("/linked/free"), status("/linked/own")), (200, 200), "{kind:?}");
        assert_eq!((status("/real/"), status("/linked/")), (200, 404), "{kind:?}");
    }
}
