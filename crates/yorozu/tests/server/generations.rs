//! A configuration ends with its last request, and takes with it what was kept going for it. `RELOADS`: how many are
//! compared with what was held before them, `SECONDS`: for how long in place of that, `SERVERS`: how many a large one has.

use crate::shared::{frame, get, log, number, pages, signal, steps, until, yorozu};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Server, free_port};

/// What a server of the world outside was asked, counted.
type Count = Arc<AtomicUsize>;

/// Connections that come to a port, each closed by its second byte or by its client.
fn accepting(port: u16) -> Count {
    let count = Count::default();
    let (listener, counter) = (TcpListener::bind(("127.0.0.1", port)).unwrap(), count.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            // A server that keeps connections ready opens the next.
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                drop(stream);
            });
        }
    });
    count
}

/// A name server that says 127.0.0.1 for a second.
fn naming() -> (u16, Count) {
    let count = Count::default();
    let (socket, counter) = (UdpSocket::bind("127.0.0.1:0").unwrap(), count.clone());
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut question) {
            counter.fetch_add(1, Ordering::SeqCst);
            let name = question[12..length].iter().position(|byte| *byte == 0).unwrap();
            let asked = &question[12..12 + name + 5];
            let mut answer = question[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            answer.extend(asked);
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            let _ = socket.send_to(&answer, client);
        }
    });
    (port, count)
}

/// Certificate and key of a server, and of its own authority.
fn certificate(folder: &Path) {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=a", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn reload(server: &Server, folder: &Folder, text: &str) {
    let file = folder.path().join("nginx.conf");
    let before = log(folder).matches("reconfigured").count();
    fs::write(file, text).unwrap();
    signal(server, Signal::SIGHUP);
    until("the reload", || log(folder).matches("reconfigured").count() > before);
}

fn released(folder: &Folder, number: u32) -> bool {
    log(folder).contains(&format!("configuration {number} released\n"))
}

/// Everything that runs for a configuration, and does not belong to a request.
fn busy(upstream: u16, names: u16, tls: u16) -> String {
    format!(
        "resolver 127.0.0.1:{names}; resolver_timeout 2s;
        ssl_certificate $dir/cert.pem; ssl_certificate_key $dir/key.pem; ssl_session_tickets on;
        ssl_session_cache shared:s:1m; ssl_stapling on; ssl_trusted_certificate $dir/cert.pem;
        ssl_stapling_responder http://127.0.0.1:{upstream}/;
        limit_req_zone $uri zone=r:1m rate=1000r/s; limit_conn_zone $uri zone=c:1m;
        map $uri $mapped {{ default x; }}
        fastcgi_cache_path $dir/cache/NUMBER keys_zone=zNUMBER:1m inactive=1s; fastcgi_cache_key $uri;
        upstream ready {{ server 127.0.0.1:{upstream}; keepalive 4; keepalive_ready 2; }}
        upstream named {{ zone named 64k; server a.example:{upstream} resolve; }}
        access_log $dir/logs/NUMBER.log combined buffer=64k flush=1h;
        server {{ listen 127.0.0.1:$port; error_log $dir/logs/NUMBER.error info; http2 on;
            limit_req zone=r burst=100; limit_conn c 100; error_log $dir/logs/NUMBER.error info;
            location / {{ return 200 NUMBER$mapped; }}
            location /ready {{ proxy_http_version 1.1; proxy_set_header Connection ''; proxy_pass http://ready; }}
            location /named {{ proxy_pass http://named; }}
            location /slow {{ limit_rate 20k; root $dir/html; }}
            location /php {{ mirror /mirror; fastcgi_param REQUEST_URI $request_uri; fastcgi_pass $origin;
                fastcgi_cache zNUMBER; fastcgi_cache_valid 200 1s;
                fastcgi_cache_use_stale updating; fastcgi_cache_background_update on; }}
            location /mirror {{ internal; fastcgi_param REQUEST_URI $request_uri; fastcgi_pass $origin; }} }}
        server {{ listen 127.0.0.1:{tls} ssl; http2 on; return 200 tls; }}"
    )
}

/// Uses what there is; what is returned stays open.
fn visit(server: &Server, tls: u16) -> Vec<Client> {
    for uri in ["/", "/php/a", "/php/b"] {
        assert_eq!(get(server.port, uri).unwrap().status, 200, "{uri}");
    }
    let output = Command::new("curl")
        .args(["-sk", "--http2", &format!("https://127.0.0.1:{tls}/")])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"tls");
    let mut idle = Client::connect(server.port);
    idle.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.answer(false).unwrap().status, 200);
    let mut half = Client::connect(server.port);
    half.send(b"GET / HTTP/1.1\r\nHost:");
    let mut preface = Client::connect(server.port);
    preface.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let silent = Client::connect(server.port);
    vec![idle, half, preface, silent]
}

#[test]
fn a_configuration_ends_with_its_last_request() {
    let folder = Folder::new();
    certificate(folder.path());
    fs::write(folder.path().join("html/slow"), vec![b'x'; 200_000]).unwrap();
    let _origin = Origin::start_with(folder.path(), pages);
    let (upstream, tls) = (free_port(), free_port());
    let (connections, (names, questions)) = (accepting(upstream), naming());
    let text = busy(upstream, names, tls);
    let server = Server::start(&yorozu(), folder.path(), &text.replace("NUMBER", "1"));
    let first = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    let of = |number: u32| {
        first
            .replace("logs/1.", &format!("logs/{number}."))
            .replace("z1", &format!("z{number}"))
            .replace("cache/1", &format!("cache/{number}"))
            .replace("200 1$", &format!("200 {number}$"))
    };
    let plain_server = "server { listen 127.0.0.1:PORT; location / { return 200 ok; } }";
    let plain = format!(
        "{}http {{ access_log off; {} }}",
        &first[..first.find("http {").unwrap()],
        plain_server.replace("PORT", &server.port.to_string())
    );
    let is_busy = |what: &Count| {
        let before = what.load(Ordering::SeqCst);
        until("more", || what.load(Ordering::SeqCst) > before + 2);
    };
    let mut open = Vec::new();
    // Those of the start, and those that came by a reload.
    for number in 1..=3 {
        open.extend(visit(&server, tls));
        is_busy(&connections);
        is_busy(&questions);
        assert!(!released(&folder, number));
        reload(&server, &folder, &of(number + 1));
        until("the end of the one before", || released(&folder, number));
        let lines = fs::read_to_string(folder.path().join(format!("logs/{number}.log"))).unwrap();
        assert!(lines.contains("GET /php/b"), "what was buffered is written: {lines}");
    }
    // A request keeps its own, and nothing is kept going for that.
    let mut slow = Client::connect(server.port);
    slow.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(slow.begins(), "the head has come");
    reload(&server, &folder, &plain);
    assert_eq!(get(server.port, "/").unwrap().body, b"ok");
    let asked = || (connections.load(Ordering::SeqCst), questions.load(Ordering::SeqCst));
    // What was under way when it was replaced.
    std::thread::sleep(Duration::from_millis(200));
    let before = asked();
    // Names hold for a second, connections for less.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(asked(), before, "connections, questions");
    assert!(!released(&folder, 4), "a request of it is under way");
    assert_eq!(slow.answer(false).unwrap().body.len(), 200_000);
    until("its end", || released(&folder, 4));
    drop(open);
}

const MEGABYTE: u64 = 1 << 20;

/// Resident bytes, descriptors, and threads but those for what may block and for logs, which come as they are needed.
fn held(server: &Server) -> (u64, usize, usize) {
    let of = |what: &str| format!("/proc/{}/{what}", server.serving_id());
    let status = fs::read_to_string(of("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let threads = threads(server)
        .filter(|name| !name.starts_with("tokio") && !name.starts_with("log writer"))
        .count();
    (kilobytes * 1024, fs::read_dir(of("fd")).unwrap().count(), threads)
}

/// The names of the threads of what serves, each with a line break.
fn threads(server: &Server) -> impl Iterator<Item = String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.serving_id())).unwrap().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
}

/// The nth reload has been done, and all before it are gone.
fn settle(server: &Server, folder: &Folder, last: u64) {
    until("all but the last to be gone", || {
        log(folder).matches(" released\n").count() as u64 == last - 1
    });
    assert!(get(server.port, "/").is_some());
}

#[test]
fn reloads_leave_nothing_behind() {
    let folder = Folder::new();
    certificate(folder.path());
    let _origin = Origin::start_with(folder.path(), pages);
    let (upstream, tls) = (free_port(), free_port());
    let (_connections, (names, _)) = (accepting(upstream), naming());
    let text = busy(upstream, names, tls);
    let server = Server::start(&yorozu(), folder.path(), &text.replace("NUMBER", "1"));
    let first = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    // Each with other logs, another zone and a visitor.
    let mut round = |number: u64| {
        let text = first
            .replace("logs/1.", &format!("logs/{number}."))
            .replace("z1:", &format!("z{number}:"))
            .replace("cache z1", &format!("cache z{number}"))
            .replace("inactive=1s", &format!("inactive={number}s"));
        reload(&server, &folder, &text);
        assert!(get(server.port, "/php/a").is_some());
    };
    (2..=20).for_each(&mut round);
    settle(&server, &folder, 20);
    let before = held(&server);
    let mut reloads = 0;
    for step in steps(number("RELOADS").unwrap_or(40)) {
        round(21 + step);
        reloads += 1;
    }
    settle(&server, &folder, 20 + reloads);
    // Connections that were kept ready for one before are closed by and by.
    until("the descriptors", || held(&server).1 <= before.1 + 8);
    // One of a reload waits for a second, to give memory back.
    until("the threads", || held(&server).2 <= before.2);
    let after = held(&server);
    println!("{reloads} reloads: {before:?} -> {after:?}");
    assert!(after.0 <= before.0 + 16 * MEGABYTE, "{before:?} -> {after:?}");
}

/// That number of servers, each with a file to log to in common, a location and an upstream.
fn many(count: u64) -> String {
    let server = |number| {
        format!(
            "server {{ listen 127.0.0.1:$port; server_name s{number}.example; root $dir/html;
            location / {{ return 200 ok; }} location ~ \\.php$ {{ fastcgi_pass $origin; fastcgi_param A b{number}; }}
            location /p {{ proxy_pass http://127.0.0.1:9; }} }}"
        )
    };
    (0..count).map(server).collect()
}

#[test]
fn many_servers_leave_nothing_behind_however_they_came() {
    let count = number("SERVERS").unwrap_or(100);
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), &many(count));
    let large = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    let small = large.replace(&large[large.find("server {").unwrap()..], &many(1)) + "}\n";
    let small = small.replace("$port", &server.port.to_string());
    let small = small.replace("$dir", &folder.path().display().to_string());
    let small = small.replace("$origin", "unix:/nowhere");
    // Its worker runs, with all that it opens, and so does the thread that is started last.
    until("an answer", || get(server.port, "/").is_some());
    until("who listens to the master", || threads(&server).any(|name| name == "master\n"));
    let of_start = held(&server);
    let (_, files, threads) = of_start;
    let mut done = 1;
    let mut load = |text: &str| {
        reload(&server, &folder, text);
        done += 1;
        settle(&server, &folder, done);
        // The connection of the last answer may just be closing.
        until("descriptors and threads", || {
            let (_, files_now, threads_now) = held(&server);
            files_now <= files && threads_now <= threads
        });
        held(&server)
    };
    let after_start = load(&small);
    let mut rounds = Vec::new();
    for _ in 0..3 {
        rounds.push((load(&large), load(&small)));
    }
    println!(
        "{count} servers of the start: {of_start:?}, then one: {after_start:?}; by reloads: {rounds:?}"
    );
    // The allocator keeps some of what was freed, now more, now less. A configuration that stayed would be
    // there once more, and after three rounds three times.
    let bound = of_start.0 + of_start.0 / 4 + 16 * MEGABYTE;
    assert!(rounds.iter().all(|(large, small)| large.0 <= bound && small.0 <= bound), "{bound}");
}

/// A client of HTTP/2 whose streams have no window: the content of an answer waits until there is one.
struct Streams(TcpStream);

impl Streams {
    fn connect(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        stream.write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
        Self(stream)
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, stream, payload)).unwrap();
    }

    fn ask(&mut self, stream: u32, path: &str) {
        let length = u8::try_from(path.len()).unwrap();
        let head = [&[0x82, 0x86, 0x04, length], path.as_bytes(), &[0x41, 1, b'a']].concat();
        self.send(1, 5, stream, &head);
    }

    /// One whose stream 1 has the head of its answer and waits for room for the content.
    fn waiting(port: u16) -> Self {
        let mut client = Self::connect(port);
        client.ask(1, "/");
        assert!(!client.answered(1));
        client
    }

    /// The next frame that is neither of SETTINGS nor WINDOW_UPDATE: its kind, flags, stream and payload; `None` at the end.
    fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).ok()?;
            let [_, high, low, kind, flags, a, b, c, d] = head;
            let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
            self.0.read_exact(&mut payload).unwrap();
            if kind != 4 && kind != 8 {
                return Some((kind, flags, u32::from_be_bytes([a, b, c, d]), payload));
            }
        }
    }

    /// Expects a GOAWAY: the last stream that it names.
    fn told(&mut self) -> u32 {
        let (kind, _, _, payload) = self.next().unwrap();
        assert_eq!((kind, payload.len(), &payload[4..]), (7, 8, &[0; 4][..]));
        u32::from_be_bytes(*payload.first_chunk().unwrap())
    }

    /// Expects the head of a stream's answer: whether that is all of it.
    fn answered(&mut self, wanted: u32) -> bool {
        let (kind, flags, stream, _) = self.next().unwrap();
        assert_eq!((kind, stream), (1, wanted));
        flags & 1 == 1
    }

    /// Takes the content that waits.
    fn finish(mut self, stream: u32) {
        self.send(8, 0, stream, &[0, 0, 1, 0]);
        assert_eq!(self.next(), Some((0, 1, stream, b"page".to_vec())));
        assert_eq!(self.next(), None);
    }
}

/// RFC 9113, section 6.8: "A server that is attempting to gracefully shut down a connection SHOULD send an initial GOAWAY
/// frame with the last stream identifier set to 2^31-1".
#[test]
fn what_an_http_2_client_asks_while_it_is_told_of_a_reload_is_answered() {
    const TEXT: &str = "server { listen 127.0.0.1:$port; http2 on; keepalive_timeout 60s;
        location / { return 200 page; } location = /empty { return 204; } }";
    let folder = Folder::new();
    let server = Server::start(&yorozu(), folder.path(), TEXT);
    let mut idle = Streams::connect(server.port);
    idle.ask(1, "/empty");
    assert!(idle.answered(1));
    let [mut first, mut silent] = [(); 2].map(|()| Streams::waiting(server.port));
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    reload(&server, &folder, &text);
    // As nginx: it has nothing under way.
    assert_eq!((idle.told(), idle.next()), (1, None));
    assert_eq!(first.told(), (1 << 31) - 1);
    let (kind, flags, _, ping) = first.next().unwrap();
    assert_eq!((kind, flags), (6, 0));
    // What crosses the first GOAWAY.
    first.ask(3, "/empty");
    assert!(first.answered(3));
    first.send(6, 1, 0, b"another.");
    first.send(6, 1, 0, &ping);
    assert_eq!(first.told(), 3);
    first.ask(5, "/empty");
    first.send(6, 0, 0, b"are you?");
    assert_eq!(first.next(), Some((6, 1, 0, b"are you?".to_vec())), "no answer to stream 5");
    first.finish(1);
    // A client that does not answer the PING has a second.
    assert_eq!((silent.told(), silent.next().unwrap().0), ((1 << 31) - 1, 6));
    assert_eq!(silent.told(), 1);
    silent.finish(1);
}

#[test]
fn a_connection_whose_requests_are_answered_at_once_is_not_silent() {
    let folder = Folder::new();
    let server = Server::start(
        &yorozu(),
        folder.path(),
        "server { listen 127.0.0.1:$port; http2 on; keepalive_timeout 1s; client_header_timeout 1s; return 204; }",
    );
    // A client that stood still for too long is silent: another one tries.
    let mut client =
        (0..20).find_map(|_| asking(&server)).expect("a machine that goes on for a while");
    assert_eq!((client.told(), client.next()), (17, None), "then it is");
}

/// A client that asked nine times within its second; `None`: it was once too late to be answered.
fn asking(server: &Server) -> Option<Streams> {
    let mut client = Streams::connect(server.port);
    let mut last = Instant::now();
    for number in 0..9 {
        client.ask(2 * number + 1, "/");
        let answer = client.next();
        if last.elapsed() > Duration::from_millis(800) {
            return None;
        }
        let (kind, _, stream, _) = answer.unwrap();
        assert_eq!((kind, stream), (1, 2 * number + 1));
        last = Instant::now();
        std::thread::sleep(Duration::from_millis(300));
    }
    Some(client)
}

/// What a request asks for itself is asked of the configuration that it began with, wherever the newest one has the socket.
#[test]
fn slices_go_on_when_a_reload_puts_other_sockets_first() {
    /// More than is made ahead.
    const BYTES: u32 = 2_000_000;
    let folder = Folder::new();
    fs::write(folder.path().join("html/file"), vec![b'x'; BYTES as usize]).unwrap();
    let files = free_port();
    let text = format!(
        "server {{ listen 127.0.0.1:$port; http2 on; location / {{ slice 64k;
            proxy_set_header Range $slice_range; proxy_pass http://127.0.0.1:{files}; }}
            location = /empty {{ return 204; }} }}
        server {{ listen 127.0.0.1:{files}; root $dir/html; }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &text);
    let mut client = Streams::connect(server.port);
    client.ask(1, "/file");
    assert!(!client.answered(1));
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    let others: String = (0..3).map(|_| format!("listen 127.0.0.1:{}; ", free_port())).collect();
    reload(
        &server,
        &folder,
        &text.replacen("server {", &format!("server {{ {others} }} server {{"), 1),
    );
    assert_eq!((client.told(), client.next().unwrap().0), ((1 << 31) - 1, 6));
    // The connection looks for its socket.
    client.ask(3, "/empty");
    assert!(client.answered(3));
    client.send(8, 0, 1, &BYTES.to_be_bytes());
    client.send(8, 0, 0, &BYTES.to_be_bytes());
    let (mut bytes, mut is_whole) = (0, false);
    while let Some((kind, flags, stream, payload)) = client.next() {
        assert!(kind == 7 || (kind, stream) == (0, 1), "frame {kind}, stream {stream}");
        if kind == 0 {
            (bytes, is_whole) = (bytes + payload.len(), flags & 1 == 1);
        }
    }
    assert_eq!((bytes, is_whole), (BYTES as usize, true));
}

/// Relays one connection; what its client sends behind the first piece waits for a word.
fn relay(port: u16) -> (u16, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let (go_on, waits) = channel();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut answers, mut asker) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut answers, &mut asker));
        let mut first = [0; 16_384];
        let count = client.read(&mut first).unwrap();
        server.write_all(&first[..count]).unwrap();
        waits.recv().unwrap();
        let _ = std::io::copy(&mut client, &mut server);
    });
    (own, go_on)
}

#[test]
fn a_handshake_may_be_over_when_its_server_is_gone() {
    let folder = Folder::new();
    certificate(folder.path());
    let tls = free_port();
    let of = |names: &[&str]| {
        let server = |name: &&str| {
            format!(
                "server {{ listen 127.0.0.1:{tls} ssl; http2 on; server_name {name};
                ssl_certificate $dir/cert.pem; ssl_certificate_key $dir/key.pem; return 200 {name}; }}"
            )
        };
        names.iter().map(server).collect::<String>()
    };
    let plain = "server { listen 127.0.0.1:$port; return 204; }";
    let (many, one) = (of(&["a", "b", "c", "d"]), of(&["a"]));
    let server = Server::start(&yorozu(), folder.path(), &format!("{plain}{many}"));
    let (port, go_on) = relay(tls);
    let url = format!("https://d:{port}/");
    let resolve = format!("d:{port}:127.0.0.1");
    let curl = Command::new("curl")
        .args(["-sk", "--http2", "--max-time", "60", "--resolve", &resolve, &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    let dir = folder.path().display().to_string();
    let (many, one) = (many.replace("$dir", &dir), one.replace("$dir", &dir));
    assert!(text.contains(&many));
    reload(&server, &folder, &text.replace(&many, &one));
    go_on.send(()).unwrap();
    let output = curl.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a");
    assert!(!log(&folder).contains("panic"), "{}", log(&folder));
}

#[test]
fn a_socket_that_goes_ends_idle_connections_and_no_stream_of_http_2() {
    let folder = Folder::new();
    let of =
        |port: &str| format!("server {{ listen 127.0.0.1:{port}; http2 on; return 200 page; }}");
    let server = Server::start(&yorozu(), folder.path(), &of("$port"));
    let [mut first, mut silent] = [(); 2].map(|()| Streams::waiting(server.port));
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    let (old, new) = (of(&server.port.to_string()), of(&free_port().to_string()));
    let mut idle = Client::connect(server.port);
    idle.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(idle.answer(false).unwrap().body, b"page");
    assert!(text.contains(&old));
    reload(&server, &folder, &text.replace(&old, &new));
    assert!(idle.is_closed(), "what it asks next could not be answered");
    // At once: nothing could answer what the client begins before it knows.
    assert_eq!((first.told(), silent.told()), (1, 1));
    first.ask(3, "/");
    first.send(6, 0, 0, b"are you?");
    assert_eq!(first.next(), Some((6, 1, 0, b"are you?".to_vec())), "no answer to stream 3");
    first.finish(1);
    silent.finish(1);
}
