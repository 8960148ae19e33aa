//! Panics: each ends one request or is begun again, is in the log, and leaves nothing waiting, held or counted.
//! A debug build panics where a test puts a file for it (crates/kernel/src/base/faults.rs).

use crate::shared::{
    BINARY, CACHED, PLAIN, answering, files, get, log, page, pages, send, signal, until,
};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use yorozu_testkit::client::Client;
use yorozu_testkit::h3;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::request::Request;
use yorozu_testkit::server::{Folder, Kind, Server, Text, free_port, quic_port};
use yorozu_testkit::tls::{self, Hello};

/// The program, with the folder where faults are asked for.
fn faulty(folder: &Folder) -> Kind {
    let faults = folder.path().join("faults");
    fs::create_dir(&faults).unwrap();
    let text = format!("#!/bin/sh\nYOROZU_FAULTS='{}' exec '{BINARY}' \"$@\"\n", faults.display());
    Kind::Yorozu(folder.script("yorozu", &text))
}

fn ask(folder: &Folder, fault: &str) {
    fs::write(folder.path().join("faults").join(fault), "").unwrap();
}

fn has_come(folder: &Folder, fault: &str) -> bool {
    !folder.path().join("faults").join(fault).exists()
}

/// Checks that the log has the fault and its outcome.
fn told(folder: &Folder, fault: &str, what: &str) {
    let place = format!("a test asked for it: {fault}; this is a bug");
    until(what, || log(folder).contains(&place) && log(folder).contains(what));
}

/// What is counted of connections, once it is as expected.
fn count(port: u16, expected: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while status(port) != expected {
        assert!(Instant::now() < end, "{} instead of {expected}", status(port));
    }
}

/// Connections that are counted: this one's, reading, writing.
fn status(port: u16) -> String {
    let text = String::from_utf8(get(port, "/status").unwrap().body.to_vec()).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    format!("{}, {}", lines[0], lines[3])
}

const ALONE: &str = "Active connections: 1, Reading: 0 Writing: 1 Waiting: 0";

/// Open descriptors, and threads but those for what may block, which come and go.
fn held(server: &Server) -> (usize, usize) {
    let of = |what: &str| format!("/proc/{}/{what}", server.serving_id());
    let names = fs::read_dir(of("task")).unwrap().flatten();
    let names = names.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let threads = names.filter(|name| !name.starts_with("tokio")).count();
    (fs::read_dir(of("fd")).unwrap().count(), threads)
}

const SITE: &str = "limit_conn_zone $server_name zone=one:1m; access_log $dir/logs/a.log;
    fastcgi_cache_path $dir/cache levels=1:2 keys_zone=z:1m; fastcgi_cache_key $request_uri;
    server { listen 127.0.0.1:$port; http2 on; location / { access_log off; limit_conn one 1; return 200 ok; }
        location /status { access_log off; stub_status; }
        location /php { limit_conn one 1; add_header X-Cache $upstream_cache_status;
            fastcgi_param REQUEST_URI $request_uri; fastcgi_pass $origin; fastcgi_cache z;
            fastcgi_cache_valid 200 1h; fastcgi_cache_lock on; } }";

#[test]
fn a_panic_ends_one_request_and_what_it_held_is_given_back() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(&faulty(&folder), folder.path(), SITE);
    let port = server.port;
    let mut beside = Client::connect(port);
    beside.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(beside.answer(false).is_some());
    let with_one_idle = "Active connections: 2, Reading: 0 Writing: 1 Waiting: 1";
    for fault in ["request", "wait", "log"] {
        ask(&folder, fault);
        let uri = format!("/php/{fault}");
        let answer = get(port, &uri);
        // An answer may have been sent before its line was to be written.
        assert!(answer.is_none() || fault == "log", "{fault}");
        told(&folder, fault, "a connection ended by a panic");
        // `limit_conn one 1`, the claim of the page's making and the counters are free again.
        let answer = get(port, &uri).unwrap();
        assert_eq!((answer.status, &*answer.body), (200, page(&uri).as_bytes()), "{fault}");
        count(port, with_one_idle);
        beside.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(beside.answer(false).unwrap().body, b"ok", "{fault}");
    }
    drop(beside);
    count(port, ALONE);
    let lines = || fs::read_to_string(folder.path().join("logs/a.log")).unwrap();
    until("whole lines", || {
        lines().lines().all(|line| line.contains("HTTP/1.1\" 200 ")) && lines().lines().count() == 3
    });
}

/// More than comes with a head.
fn long_page(uri: &str) -> String {
    page(uri).repeat(40)
}

#[test]
fn a_panic_in_the_middle_of_a_body_tears_it_and_stores_nothing() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), |request| {
        let page = long_page(request.param("REQUEST_URI"));
        format!("Content-Type: text/html\r\n\r\n{page}").into_bytes()
    });
    // Kept as a file, too: its holder lets it go.
    let stored = "fastcgi_cache_lock on; fastcgi_store $dir/kept$uri;";
    let http = SITE.replace("fastcgi_cache_lock on;", stored);
    let server = Server::start(&faulty(&folder), folder.path(), &http);
    for number in 0..3 {
        let uri = format!("/php/{number}");
        let kept = folder.path().join(format!("kept{uri}"));
        ask(&folder, "pump");
        let torn = get(server.port, &uri);
        assert!(has_come(&folder, "pump"));
        assert!(torn.is_none_or(|answer| answer.body.len() < long_page(&uri).len()), "{uri}");
        assert!(!kept.exists(), "{uri}");
        for status in ["MISS", "HIT"] {
            let answer = get(server.port, &uri).unwrap();
            assert_eq!(answer.field("x-cache").as_deref(), Some(status), "{uri}");
            assert!(answer.body == long_page(&uri).as_bytes(), "{uri}");
        }
        assert!(fs::read(&kept).unwrap() == long_page(&uri).as_bytes(), "{uri}");
    }
    assert!(log(&folder).contains("a test asked for it: pump; this is a bug"));
    count(server.port, ALONE);
}

/// A page over HTTP/3, with what is answered of it.
fn over_quic(client: &mut h3::Client, target: &str) -> Result<String, String> {
    let fields = vec![("Host".to_owned(), "localhost".to_owned())];
    let request = Request { method: "GET".into(), target: target.into(), fields, body: None };
    let asked = client.ask(&request)?;
    Ok(String::from_utf8(client.answer(asked)?.body).unwrap())
}

fn quic_client(port: u16) -> Result<h3::Client, String> {
    let hello = Hello { alpn: b"h3".to_vec(), ..Hello::default() };
    h3::Client::connect(quic_port(port), &tls::settings(&hello), &hello)
}

#[test]
fn a_panic_over_quic_ends_one_stream_and_what_takes_connections_goes_on() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let certs = tls::certificates().display();
    let quic = format!(
        "listen 127.0.0.1:$port; listen 127.0.0.1:$quic quic;
        ssl_certificate {certs}/server.pem; ssl_certificate_key {certs}/server.key;"
    );
    let site = SITE.replace("listen 127.0.0.1:$port;", &quic);
    let server = Server::start(&faulty(&folder), folder.path(), &site);
    let mut client = quic_client(server.port).unwrap();
    for fault in ["request", "wait"] {
        ask(&folder, fault);
        let uri = format!("/php/{fault}");
        assert!(over_quic(&mut client, &uri).is_err(), "{fault}");
        told(&folder, fault, "this is a bug");
        assert_eq!(over_quic(&mut client, &uri), Ok(page(&uri)), "{fault}");
        count(server.port, "Active connections: 2, Reading: 0 Writing: 1 Waiting: 1");
    }
    ask(&folder, "accept");
    assert!(quic_client(server.port).is_err());
    told(&folder, "accept", "the taking of QUIC connections ended by a panic, starting it again");
    let mut other = quic_client(server.port).unwrap();
    assert_eq!(over_quic(&mut other, "/"), Ok("ok".to_owned()));
    assert_eq!(over_quic(&mut client, "/"), Ok("ok".to_owned()));
    drop((client, other));
    count(server.port, ALONE);
    ask(&folder, "turn");
    until("the fault", || has_come(&folder, "turn"));
    until("another worker", || {
        quic_client(server.port).is_ok_and(|mut client| over_quic(&mut client, "/").is_ok())
    });
}

/// A GET over HTTP/2 (RFC 9113, section 6.2; RFC 7541, appendix A).
fn request_frame(stream: u8, path: &str) -> Vec<u8> {
    let mut fields = vec![0x82, 0x86, 0x41, 1, b'a', 0x44, u8::try_from(path.len()).unwrap()];
    fields.extend(path.as_bytes());
    let mut frame = vec![0, 0, u8::try_from(fields.len()).unwrap(), 1, 0x05, 0, 0, 0, stream];
    frame.extend(fields);
    frame
}

/// The type of the frame that ends the stream: 0, DATA, or 3, RST_STREAM.
fn end_of_stream(connection: &mut TcpStream, wanted: u8) -> u8 {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).unwrap();
        let [_, high, low, kind, flags, .., stream] = head;
        connection.read_exact(&mut vec![0; usize::from(high) << 8 | usize::from(low)]).unwrap();
        if stream == wanted && (kind == 3 || flags & 1 == 1) {
            return kind;
        }
    }
}

#[test]
fn a_panic_ends_one_stream_of_a_connection() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let http = SITE.replace("limit_conn one 1;", "");
    let server = Server::start(&faulty(&folder), folder.path(), &http);
    for fault in ["request", "wait"] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        ask(&folder, fault);
        for (number, ends) in [(1, 3), (3, 0), (5, 0)] {
            stream.write_all(&request_frame(number, &format!("/php/{number}"))).unwrap();
            assert_eq!(end_of_stream(&mut stream, number), ends, "{fault} {number}");
        }
        assert!(has_come(&folder, fault));
    }
    count(server.port, ALONE);
}

#[test]
fn answers_that_wait_to_be_sent_together_are_not_lost_with_one() {
    const CLIENTS: usize = 32;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let folder = Folder::new();
    let http = "server { listen 127.0.0.1:$port; location / { return 200 ok; } }";
    let server = Server::start(&faulty(&folder), folder.path(), http);
    for _ in 0..3 {
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
        ask(&folder, "batch");
        let mut is_last = false;
        while !is_last {
            is_last = has_come(&folder, "batch");
            clients.iter_mut().for_each(|client| client.write_all(REQUEST).unwrap());
            clients.retain_mut(|client| {
                client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                // One that waits without end fails here.
                client.read(&mut [0; 1000]).unwrap_or_else(|error| {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    0
                }) > 0
            });
        }
        assert_eq!(clients.len(), CLIENTS - 1, "the one whose answer was being sent");
    }
}

#[test]
fn the_workers_own_tasks_and_threads_are_begun_again() {
    let folder = Folder::new();
    let http = "fastcgi_cache_path $dir/cache keys_zone=z:1m inactive=1s;
        resolver 127.0.0.1:9; resolver_timeout 1s;
        upstream kept { server 127.0.0.1:$port; keepalive 2; keepalive_ready 1; }
        upstream named { zone named 64k; server a.example resolve; }
        server { listen 127.0.0.1:$port; location / { return 200 ok; }
            location /kept { proxy_http_version 1.1; proxy_set_header Connection ''; proxy_pass http://kept; }
            location /named { proxy_pass http://named; } }";
    let kind = faulty(&folder);
    const AT_START: [(&str, &str); 6] = [
        ("pulse", "a worker's pulse ended by a panic, starting it again"),
        ("ready", "keepalive_ready ended by a panic, starting it again"),
        ("resolve", "the resolving of a name ended by a panic, starting it again"),
        ("cache loader", "cache loader ended by a panic, starting it again"),
        ("cache manager", "cache manager ended by a panic, starting it again"),
        ("scan", "housekeeping of the cache zone \"z\" ended by a panic"),
    ];
    AT_START.iter().for_each(|(fault, _)| ask(&folder, fault));
    let server = Server::start(&kind, folder.path(), http);
    AT_START.iter().for_each(|(fault, what)| told(&folder, fault, what));
    until("the next question", || log(&folder).contains("a.example could not be resolved"));
    let before = held(&server);
    for fault in ["accept", "turn", "turn", "turn"] {
        ask(&folder, fault);
        until("its end", || {
            drop(TcpStream::connect(("127.0.0.1", server.port)));
            has_come(&folder, fault)
        });
        assert_eq!(get(server.port, "/").unwrap().body, b"ok");
    }
    told(&folder, "accept", "the taking of connections ended by a panic, starting it again");
    told(&folder, "turn", "worker thread ended: it panicked");
    until("all threads", || log(&folder).matches("worker thread started again").count() == 3);
    for (fault, way, what) in [
        (
            "reload",
            Signal::SIGHUP,
            "reading the configuration ended by a panic, the old one stays in use",
        ),
        ("signal", Signal::SIGUSR1, "a signal's handling ended by a panic"),
        ("evict", Signal::SIGHUP, "housekeeping of the cache zone \"z\" ended by a panic"),
    ] {
        ask(&folder, fault);
        signal(&server, way);
        told(&folder, fault, what);
        assert_eq!(get(server.port, "/").unwrap().body, b"ok");
    }
    signal(&server, Signal::SIGHUP);
    until("the release of the first", || log(&folder).contains("configuration 1 released"));
    until("what was held before", || {
        let (files, threads) = held(&server);
        files <= before.0 && threads == before.1
    });
}

#[test]
fn pages_are_kept_within_bounds_after_a_panic_of_their_keeper() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let http = CACHED.replace("keys_zone=z:1m", "keys_zone=z:1m inactive=1s");
    let kind = faulty(&folder);
    ask(&folder, "evict");
    let server = Server::start(&kind, folder.path(), &http);
    told(&folder, "evict", "housekeeping of the cache zone \"z\" ended by a panic");
    get(server.port, "/a").unwrap();
    let cache = folder.path().join("cache");
    until("the file", || files(&cache).len() == 1);
    until("its end", || {
        // Each has the keeper look.
        signal(&server, Signal::SIGHUP);
        std::thread::sleep(Duration::from_millis(50));
        files(&cache).is_empty()
    });
}

#[test]
fn a_worker_that_stands_is_reported_with_what_it_is_at() {
    let folder = Folder::new();
    let port = free_port();
    let text = Text {
        main: "worker_processes 1; worker_watchdog 200ms;".to_owned(),
        http: format!(
            "server {{ listen 127.0.0.1:{port}; location / {{ return 200 $connection; }} }}"
        ),
        ..Text::default()
    };
    let _server = Server::try_start(&faulty(&folder), folder.path(), &[port], &text).unwrap();
    let before: u64 = String::from_utf8(get(port, "/").unwrap().body).unwrap().parse().unwrap();
    ask(&folder, "connection");
    let mut client = Client::connect(port);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let text = format!("worker 0 has been stuck for 0 s at connection *{} (thread ", before + 1);
    until("the report", || log(&folder).contains(&text));
    // As this test has it stand; it may wait for a processor in between.
    let states = ["state S (sleeping)", "state R (running)"];
    assert!(states.iter().any(|state| log(&folder).contains(state)), "{}", log(&folder));
    fs::remove_file(folder.path().join("faults/connection")).unwrap();
    assert_eq!(client.answer(false).unwrap().status, 200);
    until("the end of it", || log(&folder).contains("worker 0 responds again"));
    assert_eq!(log(&folder).matches("has been stuck").count(), 1);
}

#[test]
fn a_process_that_cannot_go_on_ends_loudly_and_is_started_again() {
    let folder = Folder::new();
    let http = "server { listen 127.0.0.1:$port; location / { return 200 ok; } }";
    let server = Server::start(&faulty(&folder), folder.path(), http);
    let port = server.port;
    let first = server.serving_id();
    until("its end", || {
        ask(&folder, "turn");
        let _ = TcpStream::connect(("127.0.0.1", port));
        log(&folder).contains("[emerg]")
    });
    assert!(log(&folder).contains("workers end as soon as they are started"));
    until("the master's word", || {
        log(&folder).contains(&format!("server process {first} exited with code 1"))
    });
    fs::remove_file(folder.path().join("faults/turn")).unwrap_or_default();
    assert_eq!(get(port, "/").unwrap().body, b"ok");
    assert_ne!(server.serving_id(), first);
}

#[test]
fn a_server_that_dies_while_it_starts_is_replaced_three_times() {
    for deaths in [3, 4] {
        let folder = Folder::new();
        let program = faulty(&folder);
        ask(&folder, "start");
        let server = Server::start(&program, folder.path(), PLAIN);
        let mut killed = Vec::new();
        for _ in 0..deaths {
            let mut serving = None;
            until("another server", || {
                serving = get(server.port, "/").map(|answer| answer.body.to_vec());
                serving.is_some() && !killed.contains(&serving)
            });
            send(answering(server.port), Signal::SIGKILL);
            killed.push(serving);
        }
        fs::remove_file(folder.path().join("faults/start")).unwrap();
        if deaths == 3 {
            until("the last one", || get(server.port, "/").is_some());
        } else {
            until("the end", || log(&folder).contains("[emerg]"));
        }
        until("three more", || log(&folder).matches("start server process").count() == 3);
    }
}
