//! `.case` files: a behaviour as configuration, origin, client and expectation.
//!
//! ```text
//! about   one sentence
//! http    directives inside http {}             ($dir, $port are replaced; $origin speaks FastCGI,
//!         $web HTTP/1.1, answers and counts are shared)
//! conf    directives inside server {}
//! file    html/a.txt "text"
//! origin  GET /a -> 200 "body" Name: value      (raw "…": the bytes; at the end of the line
//!         torn: closes before the end; closes: closes a kept connection; after 0.5s: works so long)
//! client  GET /a Name: value -> 200 "body" Name: value    (!Name: must be absent; close: must close)
//! client  POST /a body "text" -> …
//! raw     "GET / HTTP/1.1\r\n…" -> 400
//! wait    1.2s
//! origin saw  2                                  requests so far
//! origin connections  1                          connections so far
//! origin param  NAME "value"                     of the last request; over HTTP, fields as HTTP_NAME
//! differs the reason why nginx does something else; the case is not run against it
//! ```
//! A line that starts with white space continues the one before.

use crate::client::{Answer, Client};
use crate::origin::{End, Origin, Reply};
use crate::server::{Folder, Kind, Server};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// A case as read.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// What it shows.
    pub about: String,
    /// Why nginx is no oracle for it.
    pub differs: Option<String>,
    http: String,
    conf: String,
    files: Vec<(String, String)>,
    steps: Vec<(usize, Step)>,
}

#[derive(Clone, Debug)]
enum Step {
    Origin(Reply),
    Client { bytes: Vec<u8>, is_head: bool, expected: Expected },
    Wait(Duration),
    Saw(usize),
    Connections(usize),
    Param(String, String),
}

#[derive(Clone, Debug, Default)]
struct Expected {
    /// 0: closed without an answer.
    status: u16,
    body: Option<String>,
    fields: Vec<(String, String)>,
    absent: Vec<String>,
    closes: bool,
    /// A second answer must follow on the connection.
    more: Option<Box<Expected>>,
}

/// Reads a case.
///
/// # Panics
/// The text is no case; the message names the line.
pub fn parse(text: &str) -> Case {
    let mut case = Case::default();
    for (number, line) in logical_lines(text) {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let rest = rest.trim();
        match word {
            "about" => rest.clone_into(&mut case.about),
            "differs" => case.differs = Some(rest.to_owned()),
            "http" => writeln!(case.http, "{rest}").unwrap(),
            "conf" => writeln!(case.conf, "{rest}").unwrap(),
            "file" => {
                let (path, content) = rest.split_once(' ').unwrap();
                case.files.push((path.to_owned(), quoted(content.trim()).0));
            }
            "wait" => {
                let seconds: f64 = rest.trim_end_matches('s').parse().unwrap();
                case.steps.push((number, Step::Wait(Duration::from_secs_f64(seconds))));
            }
            "origin" => case.steps.push((number, origin_step(rest))),
            "client" => case.steps.push((number, client_step(rest))),
            "raw" => {
                let (bytes, rest) = quoted(rest);
                let expected = expected(rest.trim().strip_prefix("->").unwrap());
                case.steps.push((
                    number,
                    Step::Client { bytes: bytes.into_bytes(), is_head: false, expected },
                ));
            }
            _ => panic!("line {number}: unknown step \"{word}\""),
        }
    }
    case
}

fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let is_comment = line.trim_start().starts_with('#');
        if line.trim().is_empty() || is_comment {
            continue;
        }
        match lines.last_mut() {
            Some((_, last)) if line.starts_with(char::is_whitespace) => {
                last.push('\n');
                last.push_str(line.trim());
            }
            _ => lines.push((index + 1, line.trim_end().to_owned())),
        }
    }
    lines
}

/// A quoted text with `\r \n \t \" \\ \xHH`, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let inner = text.strip_prefix('"').unwrap_or_else(|| panic!("expected a quoted text: {text}"));
    let mut out = Vec::new();
    let bytes = inner.as_bytes();
    let mut at = 0;
    loop {
        match bytes[at] {
            b'"' => break,
            b'\\' => {
                at += 1;
                out.push(match bytes[at] {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'x' => {
                        at += 2;
                        u8::from_str_radix(&inner[at - 1..=at], 16).unwrap()
                    }
                    other => other,
                });
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    // Bytes above 127 occur only in raw requests; they survive as Latin-1 would not.
    (String::from_utf8_lossy(&out).into_owned(), &inner[at + 1..])
}

fn origin_step(rest: &str) -> Step {
    if let Some(count) = rest.strip_prefix("saw") {
        return Step::Saw(count.trim().parse().unwrap());
    }
    if let Some(count) = rest.strip_prefix("connections") {
        return Step::Connections(count.trim().parse().unwrap());
    }
    if let Some(param) = rest.strip_prefix("param") {
        let (name, value) = param.trim().split_once(' ').unwrap();
        return Step::Param(name.to_owned(), quoted(value.trim()).0);
    }
    let (request, answer) = rest.split_once("->").unwrap();
    let answer = answer.trim();
    let (answer, delay) = match answer.rsplit_once(" after ") {
        Some((answer, time)) if time.trim().ends_with('s') && !time.contains('"') => {
            let seconds: f64 = time.trim().trim_end_matches('s').parse().unwrap();
            (answer.trim(), Duration::from_secs_f64(seconds))
        }
        _ => (answer, Duration::ZERO),
    };
    let (answer, end) = if let Some(answer) = answer.strip_suffix("torn") {
        (answer.trim(), End::Torn)
    } else if let Some(answer) = answer.strip_suffix("closes") {
        (answer.trim(), End::Closes)
    } else {
        (answer, End::Whole)
    };
    let request = request.trim().to_owned();
    if let Some(raw) = answer.strip_prefix("raw") {
        return Step::Origin(Reply {
            request,
            text: quoted(raw.trim()).0.into_bytes(),
            is_raw: true,
            end,
            delay,
        });
    }
    let wanted = expected(answer);
    let mut text = format!("Status: {}\r\n", wanted.status);
    for (name, value) in &wanted.fields {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    write!(text, "\r\n{}", wanted.body.unwrap_or_default()).unwrap();
    Step::Origin(Reply { request, text: text.into_bytes(), is_raw: false, end, delay })
}

fn client_step(rest: &str) -> Step {
    let (request, answer) = rest.split_once("->").unwrap();
    let (request, body) = match request.split_once(" body ") {
        Some((request, body)) => (request, Some(quoted(body.trim()).0)),
        None => (request, None),
    };
    let mut words = request.trim().splitn(3, char::is_whitespace);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    let fields = fields(words.next().unwrap_or_default());
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("Host: localhost\r\n");
    }
    for (name, value) in fields {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    if let Some(body) = &body {
        write!(text, "Content-Length: {}\r\n", body.len()).unwrap();
    }
    write!(text, "\r\n{}", body.unwrap_or_default()).unwrap();
    Step::Client { bytes: text.into_bytes(), is_head: method == "HEAD", expected: expected(answer) }
}

/// `Name: value; Other: value` - separated by two spaces or line ends.
fn fields(text: &str) -> Vec<(String, String)> {
    text.split('\n')
        .flat_map(|line| line.split("  "))
        .map(str::trim)
        .filter(|field| !field.is_empty())
        .map(|field| {
            let (name, value) =
                field.split_once(':').unwrap_or_else(|| panic!("no field: {field}"));
            (name.trim().to_owned(), value.trim().to_owned())
        })
        .collect()
}

fn expected(text: &str) -> Expected {
    let (text, more) = match text.split_once(" then ") {
        Some((text, more)) => (text, Some(Box::new(expected(more)))),
        None => (text, None),
    };
    let text = text.trim();
    let mut wanted = Expected { more, ..Expected::default() };
    let (status, mut rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    wanted.status = if status == "closed" {
        0
    } else {
        status.parse().unwrap_or_else(|_| panic!("no status: {text}"))
    };
    rest = rest.trim();
    if rest.starts_with('"') {
        let (body, after) = quoted(rest);
        (wanted.body, rest) = (Some(body), after);
    }
    for field in rest.split('\n').flat_map(|line| line.split("  ")).map(str::trim) {
        if field.is_empty() {
            continue;
        }
        if field == "close" {
            wanted.closes = true;
        } else if let Some(name) = field.strip_prefix('!') {
            wanted.absent.push(name.to_owned());
        } else {
            wanted.fields.extend(fields(field));
        }
    }
    wanted
}

/// Runs a case; the error says which line failed and what came instead.
///
/// # Errors
/// The first expectation that was not met.
pub fn run(case: &Case, kind: &Kind) -> Result<(), String> {
    let folder = Folder::new();
    for (path, content) in &case.files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let origin = Origin::start(folder.path());
    let http = format!(
        "{}\nserver {{ listen 127.0.0.1:$port; root $dir/html;\nfastcgi_param REQUEST_METHOD $request_method; \
         fastcgi_param REQUEST_URI $request_uri; fastcgi_param CONTENT_LENGTH $content_length;\n{}\n}}",
        case.http, case.conf
    );
    let http = http.replace("$web", &format!("127.0.0.1:{}", origin.port));
    let server = Server::start(kind, folder.path(), &http);
    for (number, step) in &case.steps {
        act(step, &origin, &server).map_err(|text| {
            let log =
                std::fs::read_to_string(folder.path().join("logs/error.log")).unwrap_or_default();
            format!("line {number}: {text}\n{log}")
        })?;
    }
    Ok(())
}

fn act(step: &Step, origin: &Origin, server: &Server) -> Result<(), String> {
    match step {
        Step::Origin(reply) => origin.expect(reply.clone()),
        Step::Wait(time) => std::thread::sleep(*time),
        Step::Saw(count) => {
            let seen = origin.seen().len();
            if seen != *count {
                return Err(format!("the origin saw {seen} requests, expected {count}"));
            }
        }
        Step::Connections(count) => {
            let made = origin.connections();
            if made != *count {
                return Err(format!("{made} connections were made, expected {count}"));
            }
        }
        Step::Param(name, value) => {
            let seen = origin.seen();
            let body = seen.last().map(|request| String::from_utf8_lossy(&request.body));
            let found = match &name[..] {
                "BODY" => body.as_deref().unwrap_or_default(),
                name => seen.last().map_or("", |request| request.param(name)),
            };
            if found != value {
                return Err(format!("{name} was {found:?}, expected {value:?}"));
            }
        }
        Step::Client { bytes, is_head, expected } => {
            let mut client = Client::connect(server.port);
            client.send(bytes);
            let mut expected = Some(expected);
            while let Some(wanted) = expected {
                let answer = client.answer(*is_head).unwrap_or_default();
                check(&answer, wanted, server.port)?;
                if wanted.closes && !client.is_closed() {
                    return Err("the connection stays open".to_owned());
                }
                expected = wanted.more.as_deref();
            }
        }
    }
    Ok(())
}

fn check(answer: &Answer, expected: &Expected, port: u16) -> Result<(), String> {
    if answer.status != expected.status {
        return Err(format!("status {}, expected {}: {answer:?}", answer.status, expected.status));
    }
    if let Some(body) = &expected.body {
        let got = String::from_utf8_lossy(&answer.body);
        if got != *body {
            return Err(format!("content {got:?}, expected {body:?}"));
        }
    }
    for (name, value) in &expected.fields {
        let got = answer.field(name);
        let value = value.replace("$port", &port.to_string());
        let is_met = if value == "*" { got.is_some() } else { got.as_deref() == Some(&*value) };
        if !is_met {
            return Err(format!("{name}: {got:?}, expected {value:?}"));
        }
    }
    for name in &expected.absent {
        if let Some(value) = answer.field(name) {
            return Err(format!("{name}: {value:?}, expected none"));
        }
    }
    Ok(())
}

/// Every `.case` file below a folder, sorted.
pub fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).unwrap().flatten() {
        let path = item.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "case") {
            found.push(path);
        }
    }
    found.sort();
    found
}
