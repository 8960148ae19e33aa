//! Clients that do not take what they asked for: `send_timeout` over HTTP/1 and HTTP/2.

use crate::shared::{frame, log, until, yorozu};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use yorozu_testkit::server::{Folder, Server};

const BYTES: usize = 8 << 20;
const SHORT: Duration = Duration::from_millis(400);

/// A server with files, a small send buffer and a `send_timeout`.
fn server(folder: &Folder, send_timeout: Duration) -> Server {
    fs::write(folder.path().join("html/huge"), vec![b'x'; BYTES]).unwrap();
    fs::write(folder.path().join("html/part"), vec![b'x'; 200_000]).unwrap();
    Server::start(
        &yorozu(),
        folder.path(),
        &format!(
            "send_timeout {}ms; server {{ listen 127.0.0.1:$port http2 sndbuf=16k; root $dir/html;
             access_log $dir/logs/access.log; location = /alive {{ return 200 yes; }} }}",
            send_timeout.as_millis()
        ),
    )
}

/// The start of a connection whose streams may send `window` bytes each, and requests for a path.
fn requests(window: u32, path: &str, count: u32) -> Vec<u8> {
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, &settings));
    out.extend(frame(8, 0, 0, &(1u32 << 30).to_be_bytes()));
    // GET, http, the path and the authority as literals of the static table's names.
    let length = u8::try_from(path.len()).unwrap();
    let head = [&[0x82, 0x86, 0x04, length], path.as_bytes(), &[0x41, 1, b'a']].concat();
    for number in 0..count {
        out.extend(frame(1, 5, 2 * number + 1, &head));
    }
    out
}

const WIDE: u32 = (1 << 31) - 1;

/// Sends requests, reads nothing until the server has logged `line`; what came before the end of the connection.
fn taken_of(folder: &Folder, port: u16, bytes: &[u8], line: &str) -> usize {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(bytes).unwrap();
    until(line, || log(folder).contains(line));
    client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut all = Vec::new();
    // A connection that is reset gives an error; one that stands gives one only after the timeout.
    let begun = Instant::now();
    let _ = client.read_to_end(&mut all);
    assert!(begun.elapsed() < Duration::from_secs(60), "the connection stands");
    all.len()
}

#[test]
fn an_http_1_client_that_reads_nothing_is_dropped() {
    let folder = Folder::new();
    let server = server(&folder, SHORT);
    let line = "client timed out (110: Connection timed out) while sending response to client";
    let got = taken_of(&folder, server.port, b"GET /huge HTTP/1.1\r\nHost: a\r\n\r\n", line);
    assert!(got < BYTES, "{got} bytes");
}

#[test]
fn an_http_2_client_that_reads_nothing_is_dropped() {
    let folder = Folder::new();
    let server = server(&folder, SHORT);
    let got = taken_of(
        &folder,
        server.port,
        &requests(WIDE, "/huge", 1),
        "client timed out (110: Connection timed out) while processing HTTP/2 connection",
    );
    assert!(got < BYTES, "{got} bytes");
    let line = "client timed out (110: Connection timed out) while sending response to client";
    until("the stream's line", || log(&folder).contains(line));
    assert!(!log(&folder).contains("writev() failed"), "{}", log(&folder));
}

#[test]
fn so_is_one_whose_answers_are_all_made() {
    let folder = Folder::new();
    let server = server(&folder, SHORT);
    let line = "while processing HTTP/2 connection";
    let got = taken_of(&folder, server.port, &requests(WIDE, "/part", 100), line);
    assert!(got < 100 * 200_000, "{got} bytes");
}

#[test]
fn streams_without_a_window_are_given_up() {
    let folder = Folder::new();
    let server = server(&folder, SHORT);
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.write_all(&requests(0, "/part", 20)).unwrap();
    let line = "client timed out (110: Connection timed out) while sending response to client";
    until("the lines", || log(&folder).matches(line).count() == 20);
    // RST_STREAM with PROTOCOL_ERROR for each, as of nginx; the connection goes on.
    client.write_all(&frame(6, 0, 0, b"01234567")).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    while !all.windows(17).any(|w| w[..5] == [0, 0, 8, 6, 1] && w[9..] == *b"01234567") {
        let count = client.read(&mut buffer).unwrap();
        assert!(count > 0, "the connection ended");
        all.extend_from_slice(&buffer[..count]);
    }
    let reset = |w: &&[u8]| w[..5] == [0, 0, 4, 3, 0] && w[9..] == [0, 0, 0, 1];
    assert_eq!(all.windows(13).filter(reset).count(), 20);
}

#[test]
fn slow_clients_that_read_get_all_of_it() {
    let timeout = Duration::from_millis(1500);
    let http_1 = b"GET /huge HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec();
    for request in [http_1, requests(WIDE, "/huge", 1)] {
        // Where the machine stands still for the timeout, the client has read nothing: another one tries.
        let is_judged = (0..20).any(|_| read_slowly(&request, timeout));
        assert!(is_judged, "a machine that goes on for a while");
    }
}

/// A client that reads some of an answer again and again, and gets all of it; `false`: it read nothing for too long.
fn read_slowly(request: &[u8], timeout: Duration) -> bool {
    let folder = Folder::new();
    let server = server(&folder, timeout);
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(request).unwrap();
    let (begun, mut got, mut buffer) = (Instant::now(), 0, vec![0; 256 * 1024]);
    while got < BYTES {
        let last = Instant::now();
        // Time in which the server can send nothing, again and again.
        std::thread::sleep(timeout / 12);
        let mut room = buffer.len();
        while room > 0 && got < BYTES {
            let count = client.read(&mut buffer[..room]).unwrap_or(0);
            if last.elapsed() > timeout * 2 / 3 {
                return false;
            }
            assert!(count > 0, "the connection ended after {got} bytes");
            (got, room) = (got + count, room - count);
        }
    }
    assert!(begun.elapsed() > 2 * timeout, "{:?}", begun.elapsed());
    assert!(!log(&folder).contains("timed out"), "{}", log(&folder));
    true
}

/// A client that asks for a page over HTTP/2, more than its system takes for it, and reads after a while: what it got of the stream, and whether
/// that was all.
fn read_late(port: u16) -> (usize, bool) {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(&requests(WIDE, "/part", 1)).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut got, mut is_whole) = (0, false);
    let mut head = [0; 9];
    while client.read_exact(&mut head).is_ok() {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        if client.read_exact(&mut vec![0; length]).is_err() {
            break;
        }
        if head[3] == 0 {
            (got, is_whole) = (got + length, head[4] & 1 == 1);
        }
        if is_whole {
            break;
        }
    }
    (got, is_whole)
}

#[test]
fn an_answer_is_no_silence_while_it_is_sent() {
    for timeout in ["0", "200ms"] {
        let folder = Folder::new();
        fs::write(folder.path().join("html/part"), vec![b'x'; 400_000]).unwrap();
        let server = Server::start(
            &yorozu(),
            folder.path(),
            &format!(
                "keepalive_timeout {timeout}; client_header_timeout 300ms; send_timeout 30s;
                 server {{ listen 127.0.0.1:$port http2 sndbuf=16k; root $dir/html; }}"
            ),
        );
        assert_eq!(read_late(server.port), (400_000, true), "keepalive_timeout {timeout}");
    }
}

#[test]
fn early_hints_wait_no_longer_than_an_answer() {
    let folder = Folder::new();
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let (ended, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = origin.accept().unwrap();
        let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: <{}>\r\n\r\n", "x".repeat(2000));
        while stream.write_all(hint.as_bytes()).is_ok() {}
        ended.send(()).unwrap();
    });
    let server = Server::start(
        &yorozu(),
        folder.path(),
        &format!(
            "send_timeout 400ms; early_hints 1; server {{ listen 127.0.0.1:$port sndbuf=16k;
             location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
        ),
    );
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    is_over.recv_timeout(Duration::from_secs(60)).expect("the upstream is let go");
    let line = "client timed out (110: Connection timed out) while sending early hints to client";
    until(line, || log(&folder).contains(line));
}
