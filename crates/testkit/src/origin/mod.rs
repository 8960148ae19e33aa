//! A server that answers from a script, over FastCGI, SCGI, uwsgi, HTTP/1.1 and HTTP/2, with TLS or without, and
//! memcached's protocol: for what a real PHP or Apache cannot be made to do.

mod h2;
mod memcached;
mod plain;
pub(crate) mod silent;
mod timer;

use crate::client::PATIENCE;
use crate::tls;
use memcached::serve_memcached;
use plain::{serve_scgi, serve_uwsgi};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use yorozu_wire::fastcgi::{HEAD_BYTES, RecordKind, stream};

/// What the origin does with a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// `GET /path`
    pub request: String,
    /// Bytes of the answer: a CGI head and body.
    pub text: Vec<u8>,
    /// Over HTTP: whether the bytes are sent as they are.
    pub is_raw: bool,
    /// How the answer ends.
    pub end: End,
    /// How long the application works before it answers.
    pub delay: Duration,
    /// Whether it waits for [`Origin::release`], too.
    pub hold: Hold,
    /// How often answers had been let go when its request came.
    pub releases: usize,
}

impl Reply {
    fn body_bytes(&self) -> usize {
        let end = self.text.windows(4).position(|four| four == b"\r\n\r\n");
        end.map_or(0, |end| self.text.len() - end - 4)
    }

    /// What the application says beside its answer, over FastCGI: before it the field `Says`, behind it `Says-Last`.
    fn message(&self, field: &str) -> Option<String> {
        let head = &self.text[..self.text.len() - self.body_bytes()];
        let head = String::from_utf8_lossy(head);
        let value = |line: &str| line.strip_prefix(field)?.strip_prefix(": ").map(str::to_owned);
        head.lines().find_map(value)
    }
}

/// Where an answer waits to be released.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hold {
    /// Nowhere.
    No,
    /// Before its first byte.
    Before,
    /// In the middle of its content.
    Within,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// As it should.
    Whole,
    /// The connection closes before END_REQUEST.
    Torn,
    /// As it should, and then the application closes a connection it was asked to keep.
    Closes,
}

/// A running origin.
#[derive(Debug)]
pub struct Origin {
    /// Its FastCGI socket.
    pub path: PathBuf,
    /// Its HTTP port on 127.0.0.1.
    pub port: u16,
    work: Work,
}

/// Makes the CGI answer for requests the script does not name.
pub type Fallback = fn(&Seen) -> Vec<u8>;

/// Serves one request behind TLS: what is known of the other end, and what came behind the request before.
type ServeTls = fn(
    &mut StreamOwned<ServerConnection, TcpStream>,
    &[(String, String)],
    &mut Vec<u8>,
    &Work,
) -> io::Result<bool>;

/// A request the origin got.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Parameters in the order sent.
    pub params: Vec<(String, String)>,
    /// The request's body.
    pub body: Vec<u8>,
}

impl Seen {
    /// A parameter's value; empty if it was not sent.
    pub fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }
}

impl Origin {
    /// Listens on a socket in `folder`.
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, |request| {
            let line =
                format!("{} {}", request.param("REQUEST_METHOD"), request.param("REQUEST_URI"));
            format!("Status: 599\r\n\r\nthe case has no answer for {line}").into_bytes()
        })
    }

    /// As [`Origin::start`], with answers made by `fallback`.
    pub fn start_with(folder: &Path, fallback: Fallback) -> Self {
        let path = folder.join("origin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let work = Work {
            script: Arc::default(),
            seen: Arc::default(),
            connections: Arc::default(),
            done: Arc::default(),
            looks_at_timers: Arc::default(),
            releases: Arc::default(),
            ports: Arc::default(),
            is_over: Arc::default(),
            fallback,
        };
        let mut origin = Self { path, port: 0, work: work.clone() };
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten().take_while(|_| !work.is_over()) {
                let work = work.begin();
                // A client that goes away in the middle ends only its own thread.
                std::thread::spawn(move || {
                    let mut connection = connection;
                    while serve(&mut connection, &[], &work).unwrap_or(false) {}
                });
            }
        });
        origin.port = origin.listen(|mut connection, work| {
            let mut rest = Vec::new();
            let peer = peer(&connection, work);
            while serve_http(&mut connection, &peer, &mut rest, work).unwrap_or(false) {}
        });
        origin
    }

    /// One more port, until the origin ends.
    fn bind(&self) -> (TcpListener, u16) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        self.work.ports.lock().unwrap().push(port);
        (listener, port)
    }

    /// Serves every connection to a new port on a new thread; the port.
    fn listen(&self, serve: fn(TcpStream, &Work)) -> u16 {
        let ((listener, port), work) = (self.bind(), self.work.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten().take_while(|_| !work.is_over()) {
                let work = work.begin();
                std::thread::spawn(move || serve(connection, &work));
            }
        });
        port
    }

    /// Speaks HTTP/1.1 behind TLS with one of the [certificates](tls::certificates); the port.
    pub fn listen_tls(&self, certificate: &str) -> u16 {
        self.listen_tls_with(certificate, serve_http)
    }

    /// Speaks uwsgi behind TLS with one of the [certificates](tls::certificates); the port.
    pub fn listen_tls_uwsgi(&self, certificate: &str) -> u16 {
        self.listen_tls_with(certificate, |stream, peer, _, work| serve_uwsgi(stream, peer, work))
    }

    fn listen_tls_with(&self, certificate: &str, serve: ServeTls) -> u16 {
        let (listener, port) = self.bind();
        let (work, config) = (self.work.clone(), tls::server(certificate));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten().take_while(|_| !work.is_over()) {
                let (work, config) = (work.begin(), Arc::clone(&config));
                std::thread::spawn(move || {
                    let tls = ServerConnection::new(config).unwrap();
                    let mut stream = StreamOwned::new(tls, connection);
                    let mut rest = Vec::new();
                    let mut peer = peer(&stream.sock, &work);
                    if stream.conn.complete_io(&mut stream.sock).is_ok() {
                        peer.extend(handshake(&stream.conn));
                    }
                    while serve(&mut stream, &peer, &mut rest, &work).unwrap_or(false) {}
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        port
    }

    /// Speaks HTTP/2, behind TLS with one of the [certificates](tls::certificates) or without; the port.
    pub fn listen_h2(&self, certificate: Option<&str>) -> u16 {
        let (listener, port) = self.bind();
        let (work, config) = (self.work.clone(), certificate.map(tls::server_of_h2));
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten().take_while(|_| !work.is_over()) {
                let (work, config) = (work.begin(), config.clone());
                std::thread::spawn(move || h2::serve(connection, config, &work));
            }
        });
        port
    }

    /// Speaks FastCGI over TCP; the port.
    pub fn listen_fastcgi(&self) -> u16 {
        self.listen(|mut connection, work| {
            let peer = peer(&connection, work);
            while serve(&mut connection, &peer, work).unwrap_or(false) {}
        })
    }

    /// Speaks uwsgi over TCP; the port.
    pub fn listen_uwsgi(&self) -> u16 {
        self.listen(|mut connection, work| {
            let peer = peer(&connection, work);
            let _ = serve_uwsgi(&mut connection, &peer, work);
        })
    }

    /// Speaks SCGI over TCP; the port.
    pub fn listen_scgi(&self) -> u16 {
        self.listen(|mut connection, work| {
            let peer = peer(&connection, work);
            let _ = serve_scgi(&mut connection, &peer, work);
        })
    }

    /// Speaks memcached's protocol; the port.
    pub fn listen_memcached(&self) -> u16 {
        self.listen(|mut connection, work| {
            let mut rest = Vec::new();
            let peer = peer(&connection, work);
            while serve_memcached(&mut connection, &peer, &mut rest, work).unwrap_or(false) {}
        })
    }

    /// Has KEEPALIVE said of connections that come from now on.
    pub fn look_at_timers(&self) {
        self.work.looks_at_timers.store(true, Ordering::Relaxed);
    }

    /// Forgets the script, and what was seen and counted so far.
    pub fn forget(&self) {
        self.release();
        self.work.script.lock().unwrap().clear();
        self.work.seen.lock().unwrap().clear();
        self.work.connections.store(0, Ordering::Relaxed);
        self.work.done.store(0, Ordering::Relaxed);
    }

    /// Lets the answers go that are held now.
    pub fn release(&self) {
        let (count, changed) = &*self.work.releases;
        *count.lock().unwrap() += 1;
        changed.notify_all();
    }

    /// The next answer for its request; answers for equal requests are used up in order.
    pub fn expect(&self, reply: Reply) {
        self.work.script.lock().unwrap().push(reply);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.work.connections.load(Ordering::Relaxed)
    }

    /// Answers sent whole so far.
    pub fn done(&self) -> usize {
        self.work.done.load(Ordering::Relaxed)
    }

    /// What arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.work.seen.lock().unwrap().clone()
    }
}

/// Ends the threads that listen: one more connection wakes each of them.
impl Drop for Origin {
    fn drop(&mut self) {
        self.work.is_over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
        for port in &*self.work.ports.lock().unwrap() {
            let _ = TcpStream::connect(("127.0.0.1", *port));
        }
    }
}

/// What every connection of an origin needs.
#[derive(Clone, Debug)]
struct Work {
    script: Arc<Mutex<Vec<Reply>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
    /// Whether KEEPALIVE is wanted: the system's table of connections is long where much is tested at once.
    looks_at_timers: Arc<AtomicBool>,
    /// How often held answers were let go.
    releases: Arc<(Mutex<usize>, Condvar)>,
    /// Where it listens over TCP.
    ports: Arc<Mutex<Vec<u16>>>,
    is_over: Arc<AtomicBool>,
    fallback: Fallback,
}

impl Work {
    /// For one more connection.
    fn begin(&self) -> Self {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.clone()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The answer to a request, which counts as seen.
    fn reply(&self, request: &Seen) -> Reply {
        let line = format!("{} {}", request.param("REQUEST_METHOD"), request.param("REQUEST_URI"));
        // Whoever knows that it was seen may let it go at once.
        let releases = self.releases();
        self.seen.lock().unwrap().push(request.clone());
        let mut script = self.script.lock().unwrap();
        if let Some(at) = script.iter().position(|reply| reply.request == line) {
            return Reply { releases, ..script.remove(at) };
        }
        drop(script);
        let (end, delay, is_raw) = (End::Whole, Duration::ZERO, false);
        let text = (self.fallback)(request);
        Reply { text, request: line, end, delay, is_raw, hold: Hold::No, releases }
    }

    /// Works for as long as the answer takes.
    fn wait(&self, reply: &Reply) {
        std::thread::sleep(reply.delay);
        if reply.hold == Hold::Before {
            self.held(reply.releases);
        }
    }

    /// How often answers were let go.
    fn releases(&self) -> usize {
        *self.releases.0.lock().unwrap()
    }

    /// Waits until answers are let go more often.
    fn held(&self, before: usize) {
        let (count, changed) = &*self.releases;
        let count = count.lock().unwrap();
        let _ = changed.wait_timeout_while(count, PATIENCE, |count| *count == before);
    }

    /// Sends an answer; `body` is how much of it is content.
    fn send(&self, to: &mut impl Write, reply: &Reply, out: &[u8], body: usize) -> io::Result<()> {
        let mut rest = out;
        if reply.hold == Hold::Within {
            let (first, second) = out.split_at(out.len() - body / 2);
            let before = self.releases();
            to.write_all(first)?;
            to.flush()?;
            self.held(before);
            rest = second;
        }
        to.write_all(rest)?;
        to.flush()?;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// What is known of the other end of a TCP connection, as parameters of its requests.
fn peer(connection: &TcpStream, work: &Work) -> Vec<(String, String)> {
    let (Ok(peer), Ok(own)) = (connection.peer_addr(), connection.local_addr()) else {
        return Vec::new();
    };
    let mut known = vec![("PEER".to_owned(), peer.ip().to_string())];
    if work.looks_at_timers.load(Ordering::Relaxed) {
        // Options are set when the first bytes come, not always when the connection does.
        let _ = connection.peek(&mut [0]);
        let keeps_alive = timer::is_kept_alive(peer, own);
        known.push(("KEEPALIVE".to_owned(), if keeps_alive { "on" } else { "off" }.to_owned()));
    }
    known
}

/// What the client of a handshake said.
fn handshake(tls: &ServerConnection) -> Vec<(String, String)> {
    let is_resumed = tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    let suite = tls.negotiated_cipher_suite();
    let values = [
        ("TLS_NAME", tls.server_name().unwrap_or_default().to_owned()),
        ("TLS_VERSION", tls.protocol_version().map_or(String::new(), |v| format!("{v:?}"))),
        ("TLS_CIPHER", suite.map_or(String::new(), |suite| format!("{:?}", suite.suite()))),
        ("TLS_CLIENT", if tls.peer_certificates().is_some() { "yes" } else { "no" }.to_owned()),
        ("TLS_RESUMED", if is_resumed { "yes" } else { "no" }.to_owned()),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Serves one HTTP request; `true` if the connection stays open. `rest` is what came behind it.
fn serve_http(
    connection: &mut (impl Read + Write),
    peer: &[(String, String)],
    rest: &mut Vec<u8>,
    work: &Work,
) -> io::Result<bool> {
    let mut more = |buffer: &mut Vec<u8>| {
        let mut piece = [0; 65536];
        let count = connection.read(&mut piece)?;
        buffer.extend_from_slice(&piece[..count]);
        if count == 0 { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) } else { Ok(()) }
    };
    let head_bytes = loop {
        match rest.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None => more(rest)?,
        }
    };
    let head = String::from_utf8_lossy(&rest[..head_bytes]).into_owned();
    rest.drain(..head_bytes);
    let mut request = Seen::default();
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    for name in ["REQUEST_METHOD", "REQUEST_URI", "SERVER_PROTOCOL"] {
        request.params.push((name.to_owned(), words.next().unwrap_or_default().to_owned()));
    }
    request.params.extend_from_slice(peer);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let name = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
        request.params.push((name, value.trim().to_owned()));
    }
    if request.param("HTTP_TRANSFER_ENCODING") == "chunked" {
        loop {
            while !rest.windows(2).any(|two| two == b"\r\n") {
                more(rest)?;
            }
            let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
            let size = String::from_utf8_lossy(&rest[..end]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            while rest.len() < end + 4 + size {
                more(rest)?;
            }
            request.body.extend_from_slice(&rest[end + 2..end + 2 + size]);
            rest.drain(..end + 4 + size);
            if size == 0 {
                break;
            }
        }
    } else {
        let length = request.param("HTTP_CONTENT_LENGTH").parse().unwrap_or(0);
        while rest.len() < length {
            more(rest)?;
        }
        request.body = rest.drain(..length).collect();
    }
    let reply = work.reply(&request);
    work.wait(&reply);
    let out = if reply.is_raw { reply.text.clone() } else { http_answer(&reply, &request) };
    work.send(connection, &reply, &out, reply.body_bytes())?;
    let keeps = reply.end == End::Whole && request.param("SERVER_PROTOCOL") == "HTTP/1.1";
    Ok(keeps && request.param("HTTP_CONNECTION") != "close")
}

/// A CGI answer as HTTP/1.1; a torn one announces a byte more than it has.
fn http_answer(reply: &Reply, request: &Seen) -> Vec<u8> {
    let at = reply.text.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0);
    let (head, body) = reply.text.split_at(at);
    let body = body.get(4..).unwrap_or_default();
    let head = String::from_utf8_lossy(head).into_owned();
    let mut status = "200".to_owned();
    let mut fields = String::new();
    for line in head.lines() {
        match line.strip_prefix("Status: ") {
            Some(text) => text.clone_into(&mut status),
            None => fields = format!("{fields}{line}\r\n"),
        }
    }
    let length = body.len() + usize::from(reply.end == End::Torn);
    let mut out =
        format!("HTTP/1.1 {status} OK\r\nContent-Length: {length}\r\n{fields}\r\n").into_bytes();
    if request.param("REQUEST_METHOD") != "HEAD" {
        out.extend_from_slice(body);
    }
    out
}

/// Serves one FastCGI request; `true` if the connection stays open.
fn serve(
    connection: &mut (impl Read + Write),
    peer: &[(String, String)],
    work: &Work,
) -> io::Result<bool> {
    let (mut params, mut body, mut keeps) = (Vec::new(), Vec::new(), false);
    loop {
        let mut head = [0; HEAD_BYTES];
        connection.read_exact(&mut head)?;
        let [_, kind, _, _, high, low, padding, _] = head;
        let mut content =
            vec![0; usize::from(u16::from_be_bytes([high, low])) + usize::from(padding)];
        connection.read_exact(&mut content)?;
        content.truncate(content.len() - usize::from(padding));
        match kind {
            1 => keeps = content[2] & 1 == 1,
            4 => params.extend_from_slice(&content),
            5 if content.is_empty() => break,
            5 => body.extend_from_slice(&content),
            _ => {}
        }
    }
    let mut request = Seen { params: pairs(&params), body };
    request.params.extend_from_slice(peer);
    let reply = work.reply(&request);
    let Reply { text, end, .. } = &reply;
    let mut out = Vec::new();
    if let Some(message) = reply.message("Says") {
        stream(&mut out, RecordKind::Stderr, message.as_bytes());
    }
    if reply.hold == Hold::Within {
        let (first, second) = text.split_at(text.len() - reply.body_bytes() / 2);
        stream(&mut out, RecordKind::Stdout, first);
        let before = work.releases();
        connection.write_all(&out)?;
        work.held(before);
        out.clear();
        stream(&mut out, RecordKind::Stdout, second);
    } else if !text.is_empty() {
        stream(&mut out, RecordKind::Stdout, text);
    }
    if let Some(message) = reply.message("Says-Last") {
        stream(&mut out, RecordKind::Stderr, message.as_bytes());
    }
    if *end != End::Torn {
        out.extend([1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    work.wait(&reply);
    connection.write_all(&out)?;
    work.done.fetch_add(1, Ordering::Relaxed);
    Ok(keeps && *end == End::Whole)
}

fn pairs(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.push((text(&bytes[..name]), text(&bytes[name..name + value])));
        bytes = &bytes[name + value..];
    }
    pairs
}

fn length(bytes: &mut &[u8]) -> usize {
    let (short, rest) = bytes.split_first().unwrap();
    if *short < 128 {
        *bytes = rest;
        return usize::from(*short);
    }
    let (long, rest) = bytes.split_first_chunk::<4>().unwrap();
    *bytes = rest;
    (u32::from_be_bytes(*long) & 0x7fff_ffff) as usize
}
