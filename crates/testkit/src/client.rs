//! A client that sends raw bytes and reads one response at a time.

use crate::tls::{self, Hello};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// How long an answer may take; a test that waits longer has failed. No timeout of a server ends sooner that is
/// not configured: [`Server`](crate::server::Server) sees to that.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A response as it came.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The status; 0 if the server closed without an answer.
    pub status: u16,
    /// Field lines in order.
    pub fields: Vec<(String, String)>,
    /// The content, chunks joined.
    pub body: Vec<u8>,
    /// The lengths of the chunks, or of the frames.
    pub pieces: Vec<usize>,
    /// Why there is none.
    pub trouble: String,
}

impl Answer {
    /// None, and why.
    pub fn none(trouble: String) -> Self {
        Self { trouble, ..Self::default() }
    }

    /// Values of a field, joined by `, `.
    pub fn field(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self
            .fields
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    buffer: Vec<u8>,
    is_silent: bool,
    trouble: String,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, Tap>>),
}

/// A TCP connection that notes how long the records are that come over it.
#[derive(Debug)]
struct Tap {
    tcp: TcpStream,
    /// Of a record that has begun: its type, version and length (RFC 8446, section 5.1).
    head: Vec<u8>,
    /// Bytes of the record that are still to come.
    left: usize,
    longest: usize,
}

impl Tap {
    fn note(&mut self, mut bytes: &[u8]) {
        const APPLICATION_DATA: u8 = 23;
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let count = self.left.min(bytes.len());
                self.left -= count;
                bytes = &bytes[count..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            if let [kind, _, _, high, low] = self.head[..] {
                self.left = usize::from(u16::from_be_bytes([high, low]));
                if kind == APPLICATION_DATA {
                    self.longest = self.longest.max(self.left);
                }
                self.head.clear();
            }
        }
    }
}

impl Read for Tap {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.tcp.read(out)?;
        self.note(&out[..count]);
        Ok(count)
    }
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

impl Stream {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => &tls.sock.tcp,
        }
    }
}

impl Client {
    /// Connects to a server on this machine.
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: Stream::Plain(stream),
            buffer: Vec::new(),
            is_silent: false,
            trouble: String::new(),
        }
    }

    /// As [`Client::connect`], over TLS.
    pub fn connect_tls(port: u16, settings: &Arc<ClientConfig>, hello: &Hello) -> Self {
        let mut client = Self::connect(port);
        if let Stream::Plain(tcp) = client.stream {
            let tap = Tap { tcp, head: Vec::new(), left: 0, longest: 0 };
            let stream = StreamOwned::new(tls::client(settings, hello), tap);
            client.stream = Stream::Tls(Box::new(stream));
        }
        client
    }

    /// Waits until the text is in what came and was not read; `false` if it does not come in time.
    pub fn sees(&mut self, text: &str, patience: Duration) -> bool {
        let _ = self.stream.tcp().set_read_timeout(Some(patience));
        let is_in = |buffer: &[u8]| String::from_utf8_lossy(buffer).contains(text);
        while !is_in(&self.buffer) && self.fill() {}
        let _ = self.stream.tcp().set_read_timeout(Some(PATIENCE));
        self.is_silent = false;
        is_in(&self.buffer)
    }

    /// Whether the server's certificate is the one of that name; without TLS it has none.
    pub fn has_certificate(&self, name: &str) -> bool {
        match &self.stream {
            Stream::Plain(_) => true,
            Stream::Tls(stream) => tls::is_certificate(stream.conn.peer_certificates(), name),
        }
    }

    /// The length of the longest TLS record with content, as sent; 0 without TLS.
    pub fn longest_record(&self) -> usize {
        match &self.stream {
            Stream::Plain(_) => 0,
            Stream::Tls(stream) => stream.sock.longest,
        }
    }

    /// Sends bytes as they are. A server that closed already is noticed when reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
    }

    /// No more will be sent.
    pub fn finish_sending(&mut self) {
        if let Stream::Tls(stream) = &mut self.stream {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.stream.tcp().shutdown(std::net::Shutdown::Write);
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match &mut self.stream {
                Stream::Plain(stream) => stream.read(piece),
                Stream::Tls(stream) => stream.read(piece),
            };
            // A process that is stopped and goes on is told so where it waits with a timeout (signal(7)).
            if !matches!(&read, Err(error) if error.kind() == ErrorKind::Interrupted) {
                return read;
            }
        }
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        self.trouble = match self.read(&mut piece) {
            Ok(0) => "the connection was closed".to_owned(),
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                return true;
            }
            Err(error) => {
                self.is_silent |= error.kind() == ErrorKind::WouldBlock;
                error.to_string()
            }
        };
        false
    }

    /// Why nothing more came.
    pub fn trouble(&self) -> &str {
        &self.trouble
    }

    /// Whether the server once neither sent anything nor closed for the whole timeout.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether the server has closed the connection, as far as is known now.
    pub fn is_over(&mut self) -> bool {
        if !self.buffer.is_empty() {
            return true;
        }
        let _ = self.stream.tcp().set_nonblocking(true);
        let mut piece = [0; 1];
        let came = self.read(&mut piece);
        let _ = self.stream.tcp().set_nonblocking(false);
        !came.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.fill() {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// Reads one response; `is_head`: without content. `None` if the connection ended first, or in
    /// the middle of it.
    pub fn answer(&mut self, is_head: bool) -> Option<Answer> {
        let mut answer = Answer::default();
        let status = self.line()?;
        answer.status = status.split(' ').nth(1)?.parse().ok()?;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':')?;
            answer.fields.push((name.to_owned(), value.trim().to_owned()));
        }
        if answer.status == 100 {
            return self.answer(is_head);
        }
        if is_head || matches!(answer.status, 101 | 103 | 204 | 304) {
            return Some(answer);
        }
        answer.body = if answer.field("transfer-encoding").is_some() {
            self.chunks(&mut answer.fields, &mut answer.pieces)?
        } else if let Some(length) = answer.field("content-length") {
            self.exactly(length.parse().ok()?)?
        } else {
            while self.fill() {}
            std::mem::take(&mut self.buffer)
        };
        Some(answer)
    }

    /// The content; the trailer section goes to the fields.
    fn chunks(
        &mut self,
        fields: &mut Vec<(String, String)>,
        pieces: &mut Vec<usize>,
    ) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).ok()?;
            if size == 0 {
                loop {
                    let line = self.line()?;
                    if line.is_empty() {
                        return Some(body);
                    }
                    let (name, value) = line.split_once(':')?;
                    fields.push((name.to_owned(), value.trim().to_owned()));
                }
            }
            pieces.push(size);
            body.extend(self.exactly(size)?);
            self.line()?;
        }
    }

    /// Waits for the first bytes of an answer, which stay to be read.
    pub fn begins(&mut self) -> bool {
        !self.buffer.is_empty() || self.fill()
    }

    /// Whether the server has closed the connection, with nothing more to read.
    pub fn is_closed(&mut self) -> bool {
        if !self.buffer.is_empty() {
            return false;
        }
        match self.read(&mut [0]) {
            Ok(count) => count == 0,
            // One that stands is none that was closed.
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// Waits for the first byte of an answer.
    pub fn is_answered(&self) -> bool {
        self.stream.tcp().peek(&mut [0]).is_ok_and(|count| count > 0)
    }
}
