//! A client that sends raw bytes and reads one response at a time.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A response as it came.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// The status; 0 if the server closed without an answer.
    pub status: u16,
    /// Field lines in order.
    pub fields: Vec<(String, String)>,
    /// The content, chunks joined.
    pub body: Vec<u8>,
}

impl Answer {
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
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to a server on this machine.
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Sends bytes as they are. A server that closed already is noticed when reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// No more will be sent.
    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(count) if count > 0 => {
                self.buffer.extend_from_slice(&piece[..count]);
                true
            }
            _ => false,
        }
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
            self.chunks(&mut answer.fields)?
        } else if let Some(length) = answer.field("content-length") {
            self.exactly(length.parse().ok()?)?
        } else {
            while self.fill() {}
            std::mem::take(&mut self.buffer)
        };
        Some(answer)
    }

    /// The content; the trailer section goes to the fields.
    fn chunks(&mut self, fields: &mut Vec<(String, String)>) -> Option<Vec<u8>> {
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
            body.extend(self.exactly(size)?);
            self.line()?;
        }
    }

    /// Has the server closed the connection, with nothing more to read?
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill()
    }
}
