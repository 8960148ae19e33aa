//! A FastCGI server that answers from a script: for what a real PHP cannot be made to do.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use yorozu_wire::fastcgi::{HEAD_BYTES, RecordKind, stream};

/// What the origin does with a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// `GET /path`
    pub request: String,
    /// Bytes of the CGI answer, head and body.
    pub text: Vec<u8>,
    /// How the answer ends.
    pub end: End,
    /// How long the application works before it answers.
    pub delay: Duration,
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

/// A running origin; it ends with the test's process.
#[derive(Debug)]
pub struct Origin {
    /// Its socket.
    pub path: PathBuf,
    script: Arc<Mutex<Vec<Reply>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

/// Makes the CGI answer for requests the script does not name.
pub type Fallback = fn(&Seen) -> Vec<u8>;

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
        let origin = Self {
            path,
            script: Arc::default(),
            seen: Arc::default(),
            connections: Arc::default(),
        };
        let (script, seen) = (Arc::clone(&origin.script), Arc::clone(&origin.seen));
        let connections = Arc::clone(&origin.connections);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (script, seen) = (Arc::clone(&script), Arc::clone(&seen));
                connections.fetch_add(1, Ordering::Relaxed);
                // A client that goes away in the middle ends only its own thread.
                std::thread::spawn(move || {
                    while serve(&connection, &script, &seen, fallback).unwrap_or(false) {}
                });
            }
        });
        origin
    }

    /// The next answer for its request; answers for equal requests are used up in order.
    pub fn expect(&self, reply: Reply) {
        self.script.lock().unwrap().push(reply);
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// What arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Serves one request; `true` if the connection stays open.
fn serve(
    mut connection: &UnixStream,
    script: &Mutex<Vec<Reply>>,
    seen: &Mutex<Vec<Seen>>,
    fallback: Fallback,
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
    let request = Seen { params: pairs(&params), body };
    let line = format!("{} {}", request.param("REQUEST_METHOD"), request.param("REQUEST_URI"));
    seen.lock().unwrap().push(request.clone());
    let reply = {
        let mut script = script.lock().unwrap();
        let at = script.iter().position(|reply| reply.request == line);
        at.map(|at| script.remove(at))
    };
    let (text, end, delay) = match reply {
        Some(reply) => (reply.text, reply.end, reply.delay),
        None => (fallback(&request), End::Whole, Duration::ZERO),
    };
    let mut out = Vec::new();
    if !text.is_empty() {
        stream(&mut out, RecordKind::Stdout, &text);
    }
    if end != End::Torn {
        out.extend([1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    std::thread::sleep(delay);
    connection.write_all(&out)?;
    Ok(keeps && end == End::Whole)
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
