//! `lingering_close` and its times: whether what a client still sends is read once its answer is known.

use crate::shared::yorozu;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use yorozu_testkit::server::{Folder, Kind, Server};

const CONF: &str = "server { listen 127.0.0.1:$port; client_max_body_size 10;
    location = /on { proxy_pass http://127.0.0.1:9; }
    location = /off { lingering_close off; proxy_pass http://127.0.0.1:9; }
    location = /always { lingering_close always; return 200 ok; }
    location = /usual { return 200 ok; }
    location = /short { lingering_time 500ms; lingering_timeout 120s; proxy_pass http://127.0.0.1:9; }
    location = /silent { lingering_time 120s; lingering_timeout 300ms; proxy_pass http://127.0.0.1:9; } }";

/// Every server that is installed.
fn kinds() -> impl Iterator<Item = Kind> {
    [Some(yorozu()), Kind::oracle()].into_iter().flatten()
}

/// The answer to a request whose content has only begun to arrive, and what the client goes on with.
fn answered(port: u16, path: &str, length: usize) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let content = match length {
        0 => String::new(),
        length => format!("Content-Length: {length}\r\n"),
    };
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{content}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    if length > 0 {
        stream.write_all(&[b'x'; 1000]).unwrap();
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.ends_with(b"</html>\r\n") && !answer.ends_with(b"\r\n\r\nok") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..count]);
    }
    (String::from_utf8_lossy(&answer[9..12]).parse().unwrap(), stream)
}

/// Whether the server takes this many more bytes.
fn takes(stream: &mut TcpStream, bytes: usize) -> bool {
    (0..bytes / 10_000).all(|_| stream.write_all(&[b'x'; 10_000]).is_ok())
}

/// Sends single bytes until the server refuses them.
fn refused_after(mut stream: TcpStream, begun: Instant) -> Duration {
    while stream.write_all(b"x").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server goes on reading");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

#[test]
fn a_client_that_goes_on_sending_is_read_or_refused() {
    // More than the buffers of both systems hold.
    const BYTES: usize = 40_000_000;
    for kind in kinds() {
        let folder = Folder::new();
        let server = Server::start(&kind, folder.path(), CONF);
        for (path, length, status, goes_on) in [
            ("/on", BYTES, 413, true),
            ("/off", BYTES, 413, false),
            ("/always", 0, 200, true),
            ("/usual", 0, 200, false),
        ] {
            let (got, mut stream) = answered(server.port, path, length);
            assert_eq!(got, status, "{kind:?} {path}");
            // nginx reads on while it discards content, also with `off`.
            let goes_on = goes_on || (kind == Kind::Nginx && path == "/off");
            assert_eq!(takes(&mut stream, BYTES / 2), goes_on, "{kind:?} {path}");
        }
    }
}

#[test]
fn lingering_ends_after_its_time_or_in_silence() {
    for kind in kinds() {
        let folder = Folder::new();
        let server = Server::start(&kind, folder.path(), CONF);
        let begun = Instant::now();
        let (_, stream) = answered(server.port, "/short", 1_000_000);
        let took = refused_after(stream, begun);
        // nginx counts whole seconds.
        assert!(kind == Kind::Nginx || took >= Duration::from_millis(450), "{kind:?} {took:?}");
        assert!(took < Duration::from_secs(60), "{kind:?} {took:?}");
        let begun = Instant::now();
        let (_, stream) = answered(server.port, "/silent", 1_000_000);
        // No event tells that the server has gone: the client must not send, or it would not be silent.
        std::thread::sleep(Duration::from_millis(900));
        let took = refused_after(stream, begun);
        assert!(took < Duration::from_secs(60), "{kind:?} {took:?}");
    }
}
