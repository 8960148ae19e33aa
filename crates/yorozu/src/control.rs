//! The control socket of a running server, and what commands ask it have in common.

use crate::output::show;
use clap::Args;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use yorozu_server::config::load::{Request, control_socket};
use yorozu_server::control;

/// What can be asked of a running server.
pub(crate) trait Ask: Args {
    /// Asks, and prints what is answered: for people, or as JSON.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    fn run(&self, control: &Control, is_json: bool) -> Result<(), String>;
}

/// Where a running server is asked.
#[derive(Debug)]
pub(crate) struct Control(PathBuf);

impl Control {
    /// By a configuration.
    ///
    /// # Errors
    /// The configuration cannot be read or has none.
    pub(crate) fn of(request: &Request) -> Result<Self, String> {
        control_socket(request).map(Self).map_err(|problem| problem.to_string())
    }

    /// Asks the server; its answer's content.
    ///
    /// # Errors
    /// It cannot be reached, or refuses.
    pub(crate) fn ask(&self, method: &str, target: &str, content: &str) -> Result<Vec<u8>, String> {
        let mut socket = self.send(method, target, content)?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).map_err(|problem| self.failed("read() from", &problem))?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let content = answer.split_off(end.map_or(answer.len(), |end| end + 4));
        if answer.starts_with(b"HTTP/1.1 200 ") {
            return Ok(content);
        }
        let status = answer.split(|byte| *byte == b'\r').next().unwrap_or(b"");
        let explained = [&b"HTTP/1.1 400 "[..], b"HTTP/1.1 413 ", b"HTTP/1.1 500 "];
        let is_explained = explained.iter().any(|status| answer.starts_with(status));
        let text = String::from_utf8_lossy(if is_explained { &content } else { status });
        Err(text.trim().to_owned())
    }

    /// The same, for an answer that is text.
    ///
    /// # Errors
    /// As those of [`Self::ask`].
    pub(crate) fn text(&self, method: &str, target: &str, content: &str) -> Result<String, String> {
        let content = self.ask(method, target, content)?;
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// Asks, and prints the answer: as it is, or as people read it.
    ///
    /// # Errors
    /// As those of [`Self::ask`]; it is not as expected, or cannot be printed.
    pub(crate) fn show(
        &self,
        (method, target, content): (&str, &str, &str),
        is_json: bool,
        shown: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let text = self.text(method, target, content)?;
        show(&if is_json { text } else { shown(&text)? })
    }

    /// Asks for what has no end; its content from here on.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub(crate) fn open(&self, target: &str) -> Result<BufReader<UnixStream>, String> {
        let mut reader = BufReader::new(self.send("GET", target, "")?);
        let mut line = || {
            let mut line = String::new();
            let read = reader.read_line(&mut line).map_err(|p| self.failed("read() from", &p))?;
            if read == 0 { Err("the server ended".to_owned()) } else { Ok(line) }
        };
        let status = line()?;
        while !line()?.trim().is_empty() {}
        if status.starts_with("HTTP/1.1 200 ") {
            return Ok(reader);
        }
        let mut text = String::new();
        let _ = reader.take(1000).read_to_string(&mut text);
        Err(if text.trim().is_empty() { status } else { text }.trim().to_owned())
    }

    fn send(&self, method: &str, target: &str, content: &str) -> Result<UnixStream, String> {
        let connected = UnixStream::connect(&self.0);
        let mut socket = connected.map_err(|problem| self.failed("connect() to", &problem))?;
        let length = content.len();
        let request = format!(
            "{method} {target} HTTP/1.0\r\nHost: control\r\nContent-Length: {length}\r\n\r\n{content}"
        );
        socket.write_all(request.as_bytes()).map_err(|p| self.failed("write() to", &p))?;
        Ok(socket)
    }

    fn failed(&self, what: &str, problem: &std::io::Error) -> String {
        let (path, why) = (self.0.display(), yorozu_conf::os_error(problem));
        format!("{what} \"{path}\" failed ({why}), is the server running?")
    }
}

/// A URL of a page.
///
/// # Errors
/// It is none.
pub(crate) fn url(text: &str) -> Result<String, String> {
    control::head(text, "GET", "").map(|_| text.to_owned())
}

/// A method.
///
/// # Errors
/// It is none.
pub(crate) fn method(text: &str) -> Result<String, String> {
    control::head("http://localhost/", text, "").map(|_| text.to_owned())
}

/// The line of a header.
///
/// # Errors
/// It is none.
pub(crate) fn field(text: &str) -> Result<String, String> {
    match text.contains(':') && !text.contains(['\r', '\n']) {
        true => Ok(format!("{text}\r\n")),
        false => Err(format!("invalid header \"{text}\", expected \"Name: value\"")),
    }
}

/// What the server answered, from JSON.
///
/// # Errors
/// It is none: the server is of another version, or ended meanwhile.
pub(crate) fn parsed(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|problem| {
        format!("unexpected response ({problem}): the server is another version, or has ended")
    })
}

/// A value as an argument of a target has it.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte.into());
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}
