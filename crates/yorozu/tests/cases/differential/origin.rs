//! An origin that does what the query of a request says: `?o=` and words with commas between.
//!
//! | word | does |
//! | --- | --- |
//! | `s404` | answers with that status; `s500-200`: first with one, then with the other, then again |
//! | `cc60`, `xae2`, `exp2` | `Cache-Control: max-age`, `X-Accel-Expires`, `Expires` in that number of seconds |
//! | `private`, `nostore`, `stale`, `cookie`, `vary`, `etag`, `lm`, `loc`, `ranges`, `redirect` | the field of that name |
//! | `len9000` | that number of bytes of content |
//! | `chunk`, `eof` | chunks, or content to the end of the connection |
//! | `close` | closes after the answer, and says so |
//! | `torn`, `mute`, `half` | ends in the content, before the head, or within it |

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// What it has seen so far, over all its ports.
#[derive(Debug, Default)]
struct Seen {
    requests: Vec<String>,
    /// By method and target: how often it was asked for.
    counts: HashMap<String, usize>,
    is_over: bool,
}

/// Listens at two ports.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) ports: [u16; 2],
    seen: Arc<Mutex<Seen>>,
}

/// Fields of requests that are compared.
const COMPARED: [&str; 7] =
    ["host", "connection", "range", "if-none-match", "if-modified-since", "x-a", "cookie"];

impl Origin {
    pub(crate) fn start() -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let ports = ["a", "b"].map(|name| {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let (port, seen) = (listener.local_addr().unwrap().port(), Arc::clone(&seen));
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if seen.lock().unwrap().is_over {
                        return;
                    }
                    // Content that was announced and does not come is the end.
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(9)));
                    let seen = Arc::clone(&seen);
                    std::thread::spawn(move || {
                        let mut connection = Connection { stream, rest: Vec::new() };
                        while connection.serve(name, &seen).unwrap_or(false) {}
                    });
                }
            });
            port
        });
        Self { ports, seen }
    }

    /// Whether nothing was asked since then.
    pub(crate) fn is_silent(&self) -> bool {
        self.seen.lock().unwrap().requests.is_empty()
    }

    /// The requests since this was called last.
    pub(crate) fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap().requests)
    }
}

impl Drop for Origin {
    /// Its ports are needed: there are thousands of rounds.
    fn drop(&mut self) {
        self.seen.lock().unwrap().is_over = true;
        for port in self.ports {
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
    }
}

struct Connection {
    stream: TcpStream,
    rest: Vec<u8>,
}

impl Connection {
    /// More bytes; `None` at the end.
    fn fill(&mut self) -> Option<()> {
        let mut piece = [0; 16 * 1024];
        let count = self.stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        self.rest.extend_from_slice(&piece[..count]);
        Some(())
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            self.fill()?;
        }
    }

    fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.rest.len() < count {
            self.fill()?;
        }
        Some(self.rest.drain(..count).collect())
    }

    fn content(&mut self, fields: &HashMap<String, String>) -> Option<Vec<u8>> {
        if let Some(length) = fields.get("content-length") {
            return self.exactly(length.parse().ok()?);
        }
        let mut content = Vec::new();
        while fields.contains_key("transfer-encoding") {
            let size = usize::from_str_radix(&self.line()?, 16).ok()?;
            content.extend(self.exactly(size)?);
            self.line()?;
            if size == 0 {
                break;
            }
        }
        Some(content)
    }

    /// Answers a request; whether another one may follow.
    fn serve(&mut self, name: &str, seen: &Mutex<Seen>) -> Option<bool> {
        let line = self.line()?;
        let mut fields = HashMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let content = self.content(&fields)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let is_new = words.next()? == "HTTP/1.1";
        let count = {
            let mut seen = seen.lock().unwrap();
            let count = seen.counts.entry(target.to_owned()).or_default();
            *count += 1;
            let count = *count;
            let mut text = format!("{name}: {line}");
            // How a content is framed is known to differ where it is sent while it comes.
            for name in COMPARED {
                if let Some(value) = fields.get(name) {
                    let _ = write!(text, " | {name}: {value}");
                }
            }
            let sum: usize = content.iter().map(|byte| usize::from(*byte)).sum();
            let _ = write!(text, " | {} bytes, {sum}", content.len());
            seen.requests.push(text);
            count
        };
        let query = target.split_once("o=").map_or("", |(_, rest)| rest);
        let query = query.split(['&', '#', ' ']).next().unwrap_or_default();
        let asked = Asked { name, method, target, count, is_new, fields: &fields };
        asked.answer(&query.split(',').collect::<Vec<_>>(), &mut self.stream)
    }
}

struct Asked<'a> {
    name: &'a str,
    method: &'a str,
    target: &'a str,
    count: usize,
    is_new: bool,
    fields: &'a HashMap<String, String>,
}

/// The value of a word that begins so.
fn number(words: &[&str], start: &str) -> Option<u64> {
    words.iter().find_map(|word| word.strip_prefix(start)?.parse().ok())
}

/// The lines of the fields that words name.
fn fields(words: &[&str]) -> String {
    let mut head = String::new();
    // The first of all: of what stands before it nginx 1.22 does not take back that a page is not stored.
    if let Some(seconds) = number(words, "xae") {
        let _ = write!(head, "X-Accel-Expires: {seconds}\r\n");
    }
    let lines = [
        ("private", "Cache-Control: private"),
        ("nostore", "Cache-Control: no-store"),
        ("stale", "Cache-Control: max-age=2, stale-while-revalidate=60, stale-if-error=60"),
        ("cookie", "Set-Cookie: a=b"),
        ("vary", "Vary: X-A"),
        ("etag", "ETag: \"e\""),
        ("lm", "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT"),
        ("loc", "Location: /moved"),
        ("ranges", "Accept-Ranges: bytes"),
        ("redirect", "X-Accel-Redirect: /file/b.html"),
        ("unbuffered", "X-Accel-Buffering: no"),
    ];
    for (_, line) in lines.iter().filter(|(word, _)| words.contains(word)) {
        let _ = write!(head, "{line}\r\n");
    }
    if let Some(seconds) = number(words, "cc") {
        let _ = write!(head, "Cache-Control: max-age={seconds}\r\n");
    }
    if let Some(seconds) = number(words, "exp") {
        let at = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
        let _ = write!(head, "Expires: {at}\r\n");
    }
    head
}

const MODIFIED: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

impl Asked<'_> {
    fn status(&self, words: &[&str]) -> u16 {
        let statuses = words.iter().find_map(|word| {
            let numbers = word.strip_prefix('s')?.split('-');
            numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u16>>>()
        });
        let statuses = statuses.unwrap_or_else(|| vec![200]);
        statuses[(self.count - 1) % statuses.len()]
    }

    fn answer(&self, words: &[&str], stream: &mut TcpStream) -> Option<bool> {
        let is = |word: &str| words.contains(&word);
        if is("mute") {
            return None;
        }
        let mut status = self.status(words);
        let has = |name: &str, value: &str| self.fields.get(name).is_some_and(|it| it == value);
        if status == 200
            && ((is("etag") && has("if-none-match", "\"e\""))
                || (is("lm") && has("if-modified-since", MODIFIED)))
        {
            status = 304;
        }
        let mut head = format!("HTTP/1.1 {status} Said\r\nContent-Type: text/plain\r\n");
        if is("half") {
            stream.write_all(head.as_bytes()).ok()?;
            return None;
        }
        head.push_str(&fields(words));
        let mut content = format!("{} {} {} {}\n", self.name, self.method, self.target, self.count);
        if let Some(length) = number(words, "len") {
            let length = usize::try_from(length).unwrap();
            content = content.chars().cycle().take(length).collect();
        }
        let has_none = self.method == "HEAD" || matches!(status, 204 | 304);
        let (is_chunked, to_end) = (is("chunk") && self.is_new, is("eof"));
        if !matches!(status, 204 | 304) {
            match (is_chunked, to_end) {
                (true, _) => head.push_str("Transfer-Encoding: chunked\r\n"),
                (_, true) => {}
                _ => {
                    let _ = write!(head, "Content-Length: {}\r\n", content.len());
                }
            }
        }
        let closes = is("close") || to_end || !self.is_new || has("connection", "close");
        if closes {
            head.push_str("Connection: close\r\n");
        }
        let mut out = head.into_bytes();
        out.extend_from_slice(b"\r\n");
        let content = if is("torn") { &content[..content.len() / 2] } else { &content[..] };
        match (has_none, is_chunked) {
            (true, _) => {}
            (false, true) => {
                out.extend(format!("{:x}\r\n{content}\r\n", content.len()).as_bytes());
                if !is("torn") {
                    out.extend_from_slice(b"0\r\n\r\n");
                }
            }
            _ => out.extend_from_slice(content.as_bytes()),
        }
        stream.write_all(&out).ok()?;
        Some(!closes && !is("torn"))
    }
}
