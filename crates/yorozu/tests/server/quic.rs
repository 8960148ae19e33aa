//! Connections over QUIC, beside what the cases say of them: reloads, other addresses, ends, early data.

use crate::shared::{Stranger, id, log, signal, until, yorozu};
use nix::sys::signal::Signal;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_testkit::client::Answer;
use yorozu_testkit::h3::Client;
use yorozu_testkit::request::Request;
use yorozu_testkit::server::{Folder, Server, Text, free_port, quic_port};
use yorozu_testkit::tls::{self, Hello};

fn hello() -> Hello {
    Hello { alpn: b"h3".to_vec(), resume: "ticket".to_owned(), ..Hello::default() }
}

/// A site over QUIC, with more lines of a server.
fn site(lines: &str) -> String {
    let folder = tls::certificates().display();
    format!(
        "ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
        server {{ listen 127.0.0.1:$port ssl; listen 127.0.0.1:$quic quic reuseport; {lines} }}"
    )
}

/// Starts a server with four workers.
fn start(folder: &Folder, http: &str) -> Server {
    let port = free_port();
    let http = http.replace("$port", &port.to_string());
    let http = http.replace("$quic", &quic_port(port).to_string());
    let main = "worker_processes 4;".to_owned();
    let text = Text { main, http, ..Text::default() };
    Server::try_start(&yorozu(), folder.path(), &[port], &text).unwrap()
}

fn connect(server: &Server) -> Client {
    let hello = hello();
    Client::connect(quic_port(server.port), &tls::settings(&hello), &hello).unwrap()
}

fn request(method: &str, target: &str) -> Request {
    let fields = vec![("Host".to_owned(), "localhost".to_owned())];
    Request { method: method.to_owned(), target: target.to_owned(), fields, body: None }
}

fn get(client: &mut Client, target: &str) -> Result<Answer, String> {
    let asked = client.ask(&request("GET", target))?;
    client.answer(asked)
}

fn body(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

/// Has the server read another configuration.
fn reload(folder: &Folder, server: &Server, from: &str, to: &str) {
    let path = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from));
    fs::write(&path, text.replace(from, to)).unwrap();
    let before = log(folder).matches("reconfigured").count();
    signal(server, Signal::SIGHUP);
    until("another configuration", || log(folder).matches("reconfigured").count() > before);
}

#[test]
fn a_reload_drops_no_connection() {
    let folder = Folder::new();
    let server = start(&folder, &site("return 200 \"one $connection\";"));
    let mut clients: Vec<_> = (0..8).map(|_| connect(&server)).collect();
    let first: Vec<_> = clients.iter_mut().map(|client| body(&get(client, "/").unwrap())).collect();
    reload(&folder, &server, "\"one ", "\"two ");
    for (client, first) in clients.iter_mut().zip(&first) {
        let second = body(&get(client, "/").unwrap());
        assert_eq!(second, first.replace("one", "two"), "the same connection");
        assert!(!client.is_over());
    }
    assert!(body(&get(&mut connect(&server), "/").unwrap()).starts_with("two"));
}

#[test]
fn a_socket_that_goes_takes_no_one_and_ends_in_order() {
    let folder = Folder::new();
    let server = start(&folder, &site("location / { return 200 one; }"));
    let mut client = connect(&server);
    assert_eq!(body(&get(&mut client, "/").unwrap()), "one");
    let line = format!("listen 127.0.0.1:{} quic reuseport;", quic_port(server.port));
    reload(&folder, &server, &line, "");
    until("the end of the connection", || client.is_over());
    // It comes again: so do clients.
    let other = format!("listen 127.0.0.1:{} ssl;", server.port);
    reload(&folder, &server, &other, &format!("{other} {line}"));
    assert_eq!(body(&get(&mut connect(&server), "/").unwrap()), "one");
}

/// Has a client take all of an answer after a while in which it took what its system has room for.
fn take_late(client: &mut Client, meanwhile: impl FnOnce()) {
    let asked = client.ask(&request("GET", "/long")).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    meanwhile();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.answer(asked).unwrap().body.len(), 3_000_000);
}

#[test]
fn what_a_client_has_not_taken_outlives_its_socket() {
    let folder = Folder::new();
    fs::write(folder.path().join("html/long"), vec![b'x'; 3_000_000]).unwrap();
    let server = start(&folder, &site("root $dir/html;"));
    let line = format!("listen 127.0.0.1:{} quic reuseport;", quic_port(server.port));
    take_late(&mut connect(&server), || reload(&folder, &server, &line, ""));
}

#[test]
fn a_client_that_moves_goes_on() {
    let folder = Folder::new();
    fs::write(folder.path().join("html/long"), vec![b'x'; 3_000_000]).unwrap();
    let server = start(&folder, &site("root $dir/html; location = / { return 200 $connection; }"));
    let mut client = connect(&server);
    let first = body(&get(&mut client, "/").unwrap());
    // Some of its ports are another worker's.
    for _ in 0..12 {
        let asked = client.ask(&request("GET", "/long")).unwrap();
        client.migrate(Ipv4Addr::LOCALHOST).unwrap();
        assert_eq!(client.answer(asked).unwrap().body.len(), 3_000_000);
        assert_eq!(body(&get(&mut client, "/").unwrap()), first);
    }
}

#[test]
fn clients_are_asked_for_fewer_acknowledgments() {
    let folder = Folder::new();
    let server = start(&folder, &site("return 200 ok;"));
    let mut client = connect(&server);
    assert_eq!(body(&get(&mut client, "/").unwrap()), "ok");
    until("the wish", || client.acknowledges_less());
}

#[test]
fn rules_and_logs_have_the_address_that_a_client_moved_to() {
    let folder = Folder::new();
    let server = start(
        &folder,
        &site(
            "location = / { return 200 \"$remote_addr $connection_requests\"; }
            location = /far { allow 127.0.0.7; deny all; alias $dir/html/far; }
            location = /slow { limit_rate 100k; alias $dir/html/slow; }",
        ),
    );
    fs::write(folder.path().join("html/far"), "far").unwrap();
    fs::write(folder.path().join("html/slow"), vec![b'x'; 60_000]).unwrap();
    let mut client = connect(&server);
    assert_eq!(body(&get(&mut client, "/").unwrap()), "127.0.0.1 1");
    assert_eq!(get(&mut client, "/far").unwrap().status, 403);
    let asked = client.ask(&request("GET", "/slow")).unwrap();
    client.migrate(Ipv4Addr::new(127, 0, 0, 7)).unwrap();
    // It has to prove its address first, and is where it was until then.
    let mut count = 3;
    until("another address", || {
        count += 1;
        let place = body(&get(&mut client, "/").unwrap());
        assert!(place.ends_with(&format!(" {count}")), "{place} is not {count}");
        place.starts_with("127.0.0.7 ")
    });
    assert_eq!(get(&mut client, "/far").unwrap().status, 200);
    assert_eq!(client.answer(asked).unwrap().body.len(), 60_000);
}

#[test]
fn an_end_waits_for_answers_and_they_arrive() {
    let folder = Folder::new();
    let mut server = start(
        &folder,
        &site(
            "location / { limit_rate 100k; root $dir/html; } location = /now { return 200 now; }",
        ),
    );
    fs::write(folder.path().join("html/long"), vec![b'x'; 150_000]).unwrap();
    let mut client = connect(&server);
    assert_eq!(body(&get(&mut client, "/now").unwrap()), "now");
    let asked = client.ask(&request("GET", "/long")).unwrap();
    // Streams are taken in order.
    assert_eq!(body(&get(&mut client, "/now").unwrap()), "now");
    signal(&server, Signal::SIGQUIT);
    assert_eq!(client.answer(asked).unwrap().body.len(), 150_000);
    until("the word that it is the last", || client.is_over());
    let begun = Instant::now();
    assert!(server.wait());
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn early_data_is_for_requests_that_may_come_twice() {
    let folder = Folder::new();
    let server = start(
        &folder,
        &site("ssl_early_data on; return 200 \"$ssl_early_data$ssl_session_reused\";"),
    );
    let (hello, port) = (hello(), quic_port(server.port));
    let settings = {
        let mut settings = (*tls::settings(&hello)).clone();
        settings.enable_early_data = true;
        Arc::new(settings)
    };
    for (method, early, late) in [
        ("GET", (200, "1r"), (200, "r")),
        ("POST", (425, ""), (200, "r")),
        ("HEAD", (200, ""), (200, "")),
    ] {
        let ask = || {
            let mut first = Client::connect(port, &settings, &hello).unwrap();
            assert_eq!(get(&mut first, "/").unwrap().status, 200);
            drop(first);
            let (mut client, asked) =
                Client::connect_early(port, &settings, &hello, &request(method, "/")).unwrap();
            let answer = client.answer(asked).unwrap();
            // Once the handshake is over nothing is early.
            let asked = client.ask(&request("POST", "/")).unwrap();
            assert_eq!(body(&client.answer(asked).unwrap()), "r");
            (answer.status, if answer.status == 425 { String::new() } else { body(&answer) })
        };
        // On a busy machine the handshake's end may be there before the server looks at the request.
        let mut answers = (0..50).map(|_| ask());
        let is = |(status, body): &(u16, String), wanted: (u16, &str)| {
            (*status, body.as_str()) == wanted
        };
        assert!(
            answers.any(|answer| {
                assert!(is(&answer, early) || is(&answer, late), "{method}: {answer:?}");
                is(&answer, early)
            }),
            "{method} was never early"
        );
    }
}

#[test]
fn a_line_of_http_0_9_gets_its_content() {
    let folder = Folder::new();
    let server = start(&folder, &site("http3_hq on; return 200 \"$http3 $server_protocol $uri\";"));
    let hello = Hello { alpn: b"hq-interop".to_vec(), ..Hello::default() };
    let (port, settings) = (quic_port(server.port), tls::settings(&hello));
    for line in ["GET /a\r\n", "GET /a"] {
        let answer = Client::ask_hq(port, &settings, &hello, line).unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), "hq HTTP/0.9 /a");
    }
    assert_eq!(body(&get(&mut connect(&server), "/a").unwrap()), "h3 HTTP/3.0 /a");
}

#[test]
fn each_socket_has_its_servers() {
    let folder = Folder::new();
    let other = quic_port(free_port());
    let second = format!("server {{ listen 127.0.0.1:{other} quic; return 200 second; }}");
    let server = start(&folder, &format!("{} {second}", site("http3 off; return 200 first;")));
    let (hello, settings) = (hello(), tls::settings(&hello()));
    assert!(Client::connect(quic_port(server.port), &settings, &hello).is_err());
    let mut client = Client::connect(other, &settings, &hello).unwrap();
    assert_eq!(body(&get(&mut client, "/").unwrap()), "second");
}

/// The process that answers.
fn answering(client: &mut Client) -> String {
    body(&get(client, "/").unwrap())
}

#[test]
fn a_new_binary_takes_over_and_connections_of_the_old_one_end_in_order() {
    for key in ["", "quic_host_key $dir/html/key;"] {
        let folder = Folder::new();
        fs::write(folder.path().join("html/key"), "secret").unwrap();
        let server = start(&folder, &site(&format!("{key} return 200 $pid;")));
        let (pid, old) = (folder.path().join("pid"), folder.path().join("pid.oldbin"));
        until("the process id", || id(&pid).is_some());
        let first = id(&pid).unwrap();
        let mut clients: Vec<_> = (0..6).map(|_| connect(&server)).collect();
        let one = answering(&mut clients[0]);
        signal(&server, Signal::SIGUSR2);
        until("the new process", || id(&pid).is_some_and(|pid| pid != first));
        let _second = Stranger(id(&pid).unwrap());
        until("a connection to it", || answering(&mut connect(&server)) != one);
        for _ in 0..3 {
            // From the same port and others.
            for client in &mut clients {
                assert_eq!(answering(client), one);
                client.migrate(Ipv4Addr::LOCALHOST).unwrap();
                assert_eq!(answering(client), one);
            }
            // The old one reads where the new one was silent for a second.
            until("a connection to the new one", || answering(&mut connect(&server)) != one);
        }
        signal(&server, Signal::SIGQUIT);
        until("the old one's end", || !old.exists());
        until("its word", || clients.iter().all(Client::is_over));
        assert_ne!(answering(&mut connect(&server)), one);
    }
}

#[test]
fn without_the_new_binary_the_old_one_reads_on() {
    let folder = Folder::new();
    let server = start(&folder, &site("return 200 $pid;"));
    let pid = folder.path().join("pid");
    until("the process id", || id(&pid).is_some());
    let first = id(&pid).unwrap();
    let mut client = connect(&server);
    let one = answering(&mut client);
    signal(&server, Signal::SIGUSR2);
    until("the new process", || id(&pid).is_some_and(|pid| pid != first));
    until("a connection to it", || answering(&mut connect(&server)) != one);
    crate::shared::send(u32::try_from(id(&pid).unwrap()).unwrap(), Signal::SIGTERM);
    until("the old one alone", || id(&pid) == Some(first));
    assert_eq!(answering(&mut client), one);
    assert_eq!(answering(&mut connect(&server)), one);
}

#[test]
fn clients_of_a_server_that_was_killed_learn_of_it() {
    let folder = Folder::new();
    fs::write(folder.path().join("html/key"), "secret").unwrap();
    let server = start(&folder, &site("quic_host_key $dir/html/key; return 200 $pid;"));
    let mut client = connect(&server);
    let one = answering(&mut client);
    crate::shared::send(server.serving_id(), Signal::SIGKILL);
    until("another server", || {
        let mut next = connect(&server);
        answering(&mut next) != one
    });
    let problem = get(&mut client, "/").unwrap_err();
    assert!(problem.contains("reset by peer"), "{problem}");
}

#[test]
fn clients_may_have_to_prove_their_address() {
    let folder = Folder::new();
    let server = start(&folder, &site("quic_retry on; return 200 $http3;"));
    assert_eq!(body(&get(&mut connect(&server), "/").unwrap()), "h3");
}
