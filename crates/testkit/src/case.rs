//! `.case` files: a behaviour as configuration, origin, client and expectation.
//!
//! ```text
//! about   one sentence
//! gateways fastcgi proxy                         once for each: {gateway} is its name, {pass} passes to the
//!         origin, {to NAME} to an upstream block, {address} is what stands there; of `proxy` also with HTTP/2
//! main    directives before events {}
//! events  directives inside events {}
//! http    directives inside http {}             ($dir, $port, $certs are replaced; $origin speaks FastCGI,
//!         $web HTTP/1.1, $keys memcached's protocol; $tls_server, $tls_revoked, $tls_deep and $tls_other
//!         are $web behind TLS with that certificate of `tls::certificates`; $php speaks FastCGI over TCP, $scgi and
//!         $uwsgi their protocols, $tls_uwsgi, $revoked_uwsgi and $deep_uwsgi the latter behind TLS; $h2 and
//!         $tls_h2 speak HTTP/2, where a field Trailer-Name stands behind the content as Name;
//!         answers and counts are shared. $deaf takes connections and reads nothing, $full takes none)
//! conf    directives inside server {}
//! file    html/a.txt "text"
//! origin  GET /a -> 200 "body" Name: value      (raw "…": the bytes; at the end of the line
//!         torn: closes before the end; closes: closes a kept connection; after 0.5s: works so long;
//!         held: until `origin release`; halved: so, in the middle of the content). memcached is asked for `get KEY`; a 200 is the value.
//! client  GET /a Name: value -> 200 "body" Name: value    (!Name: must be absent; close: must close)
//! client  POST /a body "text" -> …               (body "": of no said length, over HTTP/2 and 3 with an end of its own)
//! raw     "GET / HTTP/1.1\r\n…" -> 400
//! client  one: GET /a                            asks over a connection that has a name, and goes on
//! raw     one: "more"                            sends more over it
//! client  one: -> 200                            reads its answer
//! soon    GET /a -> 200 "body" Name: value       asked again until it is so
//! client  one: gone                              the client closes it
//! client  one: sees "text"                       what came over it, unread; !"text": after a while, not
//! tls     name=a version=1.2 cert=client         what the next handshakes say; also curve=, cipher=, resume=id, resume=ticket; nothing: as in the beginning
//! write   html/a.txt "text"                      the file, now
//! wait    1.2s
//! origin saw  2                                  requests so far; waits for the last
//! origin done  1                                 answers that it could send whole
//! origin connections  1                          connections so far
//! origin param  NAME "value"                     of the last request (!NAME "": it has none); over HTTP, fields as HTTP_NAME; PEER and
//!         KEEPALIVE of a TCP connection, TLS_NAME, TLS_VERSION, TLS_CIPHER, TLS_CLIENT, TLS_RESUMED, TLS_ALPN
//! log     logs/error.log "text"                  what the pass wrote there holds the text; !"text": does not
//! mode    html/a.txt 644                         the file's permissions, now
//! cold    the reason why a second pass on the same server would not be the same
//! alone   the reason why other cases cannot be on the same server
//! only    h1 the reason why other forms cannot be; h1, h2, h3, plain, tls, new
//! differs the reason why nginx does something else; the case is not run against it
//! differs over h2: the reason why it does so in some forms, with the words of `only`
//! ```
//! A line that starts with white space continues the one before. In steps, `$scheme`, `$port` and `$protocol` are those of the form.
//!
//! A text in quotes may be repeated: `"text" * 1000`. Of an answer, `~"text"` and `!~"text"` say what the content holds and does not,
//! `Name: ~text` what a value holds, `took 0.5s` how long it took at least, `piece 512` how long the longest chunk, frame or record is, `certificate other` whose it is.
//!
//! Each case runs in every [`Form`](crate::form::Form), one after the other on one server, so that all but the first find it warm; with
//! `cold` each finds what no other has used. Cases, and the forms of a cold one, [share](crate::shared) processes nevertheless: each has its own
//! ports, folder, origin, and names of zones, upstreams, formats and variables. What HTTP/2 and HTTP/3 cannot say (a `raw` that is not one well-formed request of HTTP/1.1,
//! `Upgrade`) is said over HTTP/1.1 there; a case that says nothing else is not run over them.

use crate::form::{FORMS, Form, Version};
use crate::h2;
use crate::origin::{End, Hold, Reply};
use crate::quoted::{quoted, quoted_bytes};
use crate::request::Request;
use crate::server::Kind;
use crate::tls::Hello;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// A case as read.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// What it shows.
    pub about: String,
    /// In which forms nginx is not an oracle for it: a word of `only`, or none for all.
    differs: Option<Option<String>>,
    /// Whether every form gets its own server.
    is_cold: bool,
    /// Whether its server is its own.
    pub(crate) is_alone: bool,
    /// Words of `only` lines.
    only: Vec<String>,
    pub(crate) main: String,
    pub(crate) events: String,
    pub(crate) http: String,
    pub(crate) conf: String,
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) steps: Vec<(usize, Step)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Origin(Reply),
    Release,
    /// Over the connection of that name: asks, reads the answer, or both.
    Client {
        name: Option<String>,
        ask: Option<Ask>,
        expected: Option<Expected>,
    },
    /// As the step says, now or in a moment.
    Soon(Box<Step>),
    /// The client goes away.
    Gone(String),
    Sees {
        name: String,
        text: String,
        is_there: bool,
    },
    Tls(Hello),
    Write(String, Vec<u8>),
    /// The permissions of a file.
    Mode(String, u32),
    Done(usize),
    Wait(Duration),
    Saw(usize),
    Connections(usize),
    Param(String, String),
    Log {
        file: String,
        text: String,
        is_there: bool,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Request(Request),
    Raw(Vec<u8>),
}

impl Ask {
    /// Whether it is known to be a GET or HEAD.
    fn is_safe(&self) -> bool {
        match self {
            Self::Request(request) => ["GET", "HEAD"].contains(&&request.method[..]),
            Self::Raw(bytes) => bytes.starts_with(b"GET ") || bytes.starts_with(b"HEAD "),
        }
    }

    /// The request, if HTTP/2 has a form for it.
    pub(crate) fn request(&self) -> Option<Request> {
        let request = match self {
            Self::Request(request) => request.clone(),
            Self::Raw(bytes) => Request::read(bytes)?,
        };
        h2::as_http(&request).map(|_| request)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// 0: closed without an answer.
    pub(crate) status: u16,
    pub(crate) body: Option<String>,
    /// What the content holds, or does not.
    pub(crate) parts: Vec<(bool, String)>,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) absent: Vec<String>,
    pub(crate) closes: bool,
    /// How long it takes at least.
    pub(crate) took: Duration,
    /// The longest chunk or frame.
    pub(crate) piece: Option<usize>,
    /// The name of the certificate that the server shows.
    pub(crate) certificate: Option<String>,
    /// A second answer must follow on the connection.
    pub(crate) more: Option<Box<Expected>>,
}

impl Case {
    /// What the case itself says of the configuration, in the order of its places.
    pub fn directives(&self) -> String {
        [&self.main, &self.events, &self.http, &self.conf].map(String::as_str).concat()
    }

    /// The forms of the case beside a program, those together that share a server.
    pub fn parts(&self, kind: &Kind) -> Vec<Vec<Form>> {
        let has_quic = self.has_quic(kind);
        let says_h2 = self.steps.iter().any(|(_, step)| match step {
            Step::Client { ask: Some(ask), .. } => ask.request().is_some(),
            _ => false,
        });
        let forms = FORMS
            .into_iter()
            .filter(|form| says_h2 || form.version == Version::H1)
            .filter(|form| has_quic || form.version != Version::H3)
            .filter(|form| self.only.iter().all(|word| form.is_named(word)))
            .filter(|form| *kind != Kind::Nginx || self.is_same_over(form));
        if self.is_cold {
            return forms.map(|form| vec![form]).collect();
        }
        let forms: Vec<_> = forms.collect();
        if forms.is_empty() { Vec::new() } else { vec![forms] }
    }

    /// Whether its servers can listen for QUIC, and clients say over it what they say.
    pub fn has_quic(&self, kind: &Kind) -> bool {
        /// What QUIC has no use for, in a `listen` or elsewhere.
        const WORDS: [&str; 5] =
            ["ssl_protocols ", "Protocol ", "ssl_conf_command ", "proxy_protocol;", "ssl_ciphers "];
        let texts = [&self.http, &self.conf];
        let is_old = |hello: &Hello| {
            hello.version == "1.2" || hello.resume == "id" || !hello.ciphers.is_empty()
        };
        *kind != Kind::Nginx
            && !WORDS.iter().any(|word| texts.iter().any(|text| text.contains(word)))
            && !self.steps.iter().any(|(_, step)| matches!(step, Step::Tls(hello) if is_old(hello)))
    }

    /// Whether it has a cache that more is done with than filling it.
    pub(crate) fn changes_caches(&self) -> bool {
        let directives = self.directives();
        let is_change = |step: &Step| match step {
            Step::Client { ask: Some(ask), .. } => !ask.is_safe(),
            _ => false,
        };
        directives.contains("_cache_path ")
            && (["cache_purge", "control_api"].iter().any(|word| directives.contains(word))
                || self.steps.iter().any(|(_, step)| is_change(step)))
    }

    /// Whether nginx is an oracle in this form.
    fn is_same_over(&self, form: &Form) -> bool {
        match &self.differs {
            None => true,
            Some(None) => false,
            Some(Some(word)) => !form.is_named(word),
        }
    }
}

/// Reads a case; those of several gateways are several.
///
/// # Panics
/// The text is not a case; the message names the line.
pub fn parse_all(text: &str) -> Vec<Case> {
    let names = text.lines().find_map(|line| line.strip_prefix("gateways "));
    let Some(names) = names else { return vec![parse(text)] };
    let mut names: Vec<&str> = names.split_whitespace().collect();
    if names.contains(&"proxy") {
        names.push("h2");
    }
    let one = |name: &str| {
        if name == "h2" {
            return of_h2(text);
        }
        let (scheme, address) = match name {
            "fastcgi" => ("", "$php"),
            "grpc" => ("grpc://", "$h2"),
            "proxy" => ("http://", "$web"),
            "scgi" => ("", "$scgi"),
            "uwsgi" => ("", "$uwsgi"),
            "memcached" => ("", "$keys"),
            _ => panic!("no gateway is called \"{name}\""),
        };
        let text = text
            .replace("{gateway}", name)
            .replace("{pass}", &format!("{name}_pass {scheme}{address}"))
            .replace("{address}", address)
            .replace("{to ", &format!("{{to {name}_pass {scheme}"));
        let mut case = parse(&text);
        case.about = format!("{name}: {}", case.about);
        case
    };
    names.into_iter().map(one).collect()
}

/// A case of `proxy` with upstreams of HTTP/2, which nginx of Debian does not have.
fn of_h2(text: &str) -> Case {
    let text = text
        .replace("proxy_http_version 1.1;", "")
        .replace("{gateway}", "proxy")
        .replace("{pass}", "proxy_pass http://$h2")
        .replace("{address}", "$h2")
        .replace("{to ", "{to proxy_pass http://");
    let mut case = parse(&text);
    case.http.insert_str(0, "proxy_http_version 2;\n");
    case.about = format!("h2: {}", case.about);
    case.differs = Some(None);
    case
}

/// `{to X Y}` as `X Y`.
fn without_to(line: &str) -> String {
    let mut out = String::new();
    let mut parts = line.split("{to ");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (inner, rest) = part.split_once('}').expect("{to …} has an end");
        out.push_str(inner);
        out.push_str(rest);
    }
    out
}

/// Reads a case of one gateway.
///
/// # Panics
/// The text is not a case; the message names the line.
pub fn parse(text: &str) -> Case {
    let mut case = Case::default();
    for (number, line) in logical_lines(text) {
        let line = without_to(&line);
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let rest = rest.trim();
        match word {
            "about" => rest.clone_into(&mut case.about),
            "differs" => {
                let over = rest.strip_prefix("over ").and_then(|rest| rest.split_once(':'));
                case.differs = Some(over.map(|(word, _reason)| word.to_owned()));
            }
            "gateways" => {}
            "cold" => case.is_cold = true,
            "alone" => case.is_alone = true,
            "mode" => {
                let (path, mode) = rest.split_once(' ').unwrap();
                let mode = u32::from_str_radix(mode.trim(), 8).unwrap();
                case.steps.push((number, Step::Mode(path.to_owned(), mode)));
            }
            "tls" => case.steps.push((number, Step::Tls(hello(rest)))),
            "write" => {
                let (path, content) = rest.split_once(' ').unwrap();
                let content = quoted_bytes(content.trim()).0;
                case.steps.push((number, Step::Write(path.to_owned(), content)));
            }
            "only" => {
                let (word, _reason) = rest.split_once(' ').expect("`only` says why");
                case.only.push(word.to_owned());
            }
            "main" => writeln!(case.main, "{rest}").unwrap(),
            "events" => writeln!(case.events, "{rest}").unwrap(),
            "http" => writeln!(case.http, "{rest}").unwrap(),
            "conf" => writeln!(case.conf, "{rest}").unwrap(),
            "file" => {
                let (path, content) = rest.split_once(' ').unwrap();
                case.files.push((path.to_owned(), quoted_bytes(content.trim()).0));
            }
            "wait" => {
                case.steps.push((number, Step::Wait(seconds(rest))));
            }
            "origin" => case.steps.push((number, origin_step(rest))),
            "client" => case.steps.push((number, client_step(rest))),
            "soon" => case.steps.push((number, Step::Soon(Box::new(client_step(rest))))),
            "raw" => case.steps.push((number, raw_step(rest))),
            "log" => case.steps.push((number, log_step(rest))),
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

fn seconds(text: &str) -> Duration {
    Duration::from_secs_f64(text.trim().trim_end_matches('s').parse().unwrap())
}

fn log_step(rest: &str) -> Step {
    let (file, text) = rest.split_once(' ').unwrap();
    let text = text.trim();
    let (is_there, text) = text.strip_prefix('!').map_or((true, text), |text| (false, text));
    Step::Log { file: file.to_owned(), text: quoted(text).0, is_there }
}

fn hello(rest: &str) -> Hello {
    let mut hello = Hello::default();
    for word in rest.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "name" => value.clone_into(&mut hello.name),
            "version" => value.clone_into(&mut hello.version),
            "cert" => value.clone_into(&mut hello.certificate),
            "curve" => value.clone_into(&mut hello.curve),
            "cipher" => hello.ciphers.push(value.to_owned()),
            "resume" => value.clone_into(&mut hello.resume),
            _ => panic!("no handshake has \"{name}\""),
        }
    }
    hello
}

/// The name of a connection that a step begins with, and what follows it.
fn named(rest: &str) -> (Option<String>, &str) {
    match rest.split_once(char::is_whitespace) {
        Some((word, rest)) if word.ends_with(':') && !word.starts_with('"') => {
            (Some(word.trim_end_matches(':').to_owned()), rest.trim())
        }
        _ => (None, rest),
    }
}

fn raw_step(rest: &str) -> Step {
    let (name, mut rest) = named(rest);
    let mut ask = None;
    if rest.starts_with('"') {
        let (bytes, behind) = quoted_bytes(rest);
        (ask, rest) = (Some(Ask::Raw(bytes)), behind.trim());
    }
    Step::Client { name, ask, expected: rest.strip_prefix("->").map(expected) }
}

fn origin_step(rest: &str) -> Step {
    if rest == "release" {
        return Step::Release;
    }
    if let Some(count) = rest.strip_prefix("saw") {
        return Step::Saw(count.trim().parse().unwrap());
    }
    if let Some(count) = rest.strip_prefix("done") {
        return Step::Done(count.trim().parse().unwrap());
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
            (answer.trim(), seconds(time))
        }
        _ => (answer, Duration::ZERO),
    };
    let (answer, hold) = if let Some(answer) = answer.strip_suffix("held") {
        (answer.trim(), Hold::Before)
    } else if let Some(answer) = answer.strip_suffix("halved") {
        (answer.trim(), Hold::Within)
    } else {
        (answer, Hold::No)
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
            text: quoted_bytes(raw.trim()).0,
            is_raw: true,
            end,
            delay,
            hold,
            releases: 0,
        });
    }
    let wanted = expected(answer);
    let mut text = format!("Status: {}\r\n", wanted.status);
    for (name, value) in &wanted.fields {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    write!(text, "\r\n{}", wanted.body.unwrap_or_default()).unwrap();
    let text = text.into_bytes();
    Step::Origin(Reply { request, text, is_raw: false, end, delay, hold, releases: 0 })
}

fn client_step(rest: &str) -> Step {
    let (name, rest) = named(rest);
    if rest == "gone" {
        return Step::Gone(name.expect("the connection has a name"));
    }
    if let Some(text) = rest.strip_prefix("sees ") {
        let name = name.expect("the connection has a name");
        let (is_there, text) = text.strip_prefix('!').map_or((true, text), |text| (false, text));
        return Step::Sees { name, text: quoted(text).0, is_there };
    }
    let (request, answer) = match rest.split_once("->") {
        Some((request, answer)) => (request, Some(answer)),
        None => (rest, None),
    };
    let ask = (!request.trim().is_empty()).then(|| Ask::Request(client_request(request)));
    Step::Client { name, ask, expected: answer.map(expected) }
}

fn client_request(text: &str) -> Request {
    let (request, body) = match text.split_once(" body ") {
        Some((request, body)) => (request, Some(quoted_bytes(body.trim()).0)),
        None => (text, None),
    };
    let mut words = request.trim().splitn(3, char::is_whitespace);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let mut fields = fields(words.next().unwrap_or_default());
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        fields.insert(0, ("Host".to_owned(), "localhost".to_owned()));
    }
    if let Some(body) = body.as_ref().filter(|body| !body.is_empty()) {
        fields.push(("Content-Length".to_owned(), body.len().to_string()));
    }
    Request { method: method.to_owned(), target: target.to_owned(), fields, body }
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
            // ` Name: ` in a value is a field that one space more was meant to begin.
            let is_two = value.trim().split(' ').any(|word| {
                word.starts_with(|c: char| c.is_ascii_uppercase() || c == '!')
                    && word.ends_with(':')
            });
            assert!(!is_two, "two spaces must stand between fields: {field}");
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
    loop {
        rest = rest.trim();
        if rest.is_empty() {
            return wanted;
        } else if rest.starts_with('"') {
            let (body, after) = quoted(rest);
            (wanted.body, rest) = (Some(body), after);
        } else if let Some((is_in, part)) = rest
            .strip_prefix('~')
            .map(|part| (true, part))
            .or_else(|| rest.strip_prefix("!~").map(|part| (false, part)))
        {
            let (part, after) = quoted(part);
            wanted.parts.push((is_in, part));
            rest = after;
        } else {
            let end = rest.find("  ").into_iter().chain(rest.find('\n')).min();
            let word = &rest[..end.unwrap_or(rest.len())];
            expected_word(&mut wanted, word.trim());
            rest = &rest[word.len()..];
        }
    }
}

fn expected_word(wanted: &mut Expected, word: &str) {
    if word == "close" {
        wanted.closes = true;
    } else if let Some(name) = word.strip_prefix('!') {
        let name = name.trim_end_matches(':');
        assert!(!name.contains([' ', ':']), "two spaces must stand between fields: {word}");
        wanted.absent.push(name.to_owned());
    } else if let Some(time) = word.strip_prefix("took ") {
        wanted.took = seconds(time);
    } else if let Some(length) = word.strip_prefix("piece ") {
        wanted.piece = Some(length.trim().parse().unwrap());
    } else if let Some(name) = word.strip_prefix("certificate ") {
        wanted.certificate = Some(name.to_owned());
    } else {
        wanted.fields.extend(fields(word));
    }
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
