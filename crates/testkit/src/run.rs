//! Runs a case: starts origin and server, and does the steps once per form.

use crate::case::{Ask, Case, Expected, Step};
use crate::check::{check, text};
use crate::client::{Answer, Client, PATIENCE};
use crate::form::{Form, Ports, Version};
use crate::origin::Origin;
use crate::request::Request;
use crate::seat::Seat;
use crate::server::{Folder, Kind, Server, Text};
use crate::tls::{self, Hello};
use crate::{h2, h3};
use rustls::{ClientConfig, ClientConnection};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what must not come is waited for.
const A_WHILE: Duration = Duration::from_millis(300);

/// Runs a case in some forms, one after the other, on one server; the error says which line failed
/// in which form and what came instead.
///
/// # Errors
/// The first expectation that was not met.
pub fn run(case: &Case, kind: &Kind, forms: &[Form]) -> Result<(), String> {
    run_changed(case, kind, forms, &|text| text)
}

/// As [`run`], with another configuration than the case has: what `change` makes of it.
///
/// # Errors
/// As [`run`].
pub fn run_changed(
    case: &Case,
    kind: &Kind,
    forms: &[Form],
    change: &dyn Fn(Text) -> Text,
) -> Result<(), String> {
    let folder = Folder::new();
    let seat = Seat::new(case, kind, folder.path());
    let text = change(seat.text.clone());
    let _server = Server::try_start(kind, folder.path(), &seat.ports.all(), &text)?;
    passes(case, forms, &seat)
}

/// Does the steps in each of the forms, at a server that has the case's configuration.
pub(crate) fn passes(case: &Case, forms: &[Form], seat: &Seat) -> Result<(), String> {
    let Seat { ports, origin, folder, .. } = seat;
    for form in forms {
        let mut pass = Pass {
            form: *form,
            ports,
            origin,
            folder,
            logs: written(case, folder),
            kept: None,
            kept_h2: None,
            kept_h3: None,
            open: HashMap::new(),
            hello: Hello::default(),
            settings: Vec::new(),
        };
        pass.steps(case).map_err(|text| {
            let log = fs::read(folder.join("logs/error.log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            format!("{}, {text}\n{log}", form.name)
        })?;
        origin.forget();
    }
    Ok(())
}

/// How long the files of `log` steps are.
fn written(case: &Case, folder: &Path) -> HashMap<PathBuf, usize> {
    let mut lengths = HashMap::new();
    for (_, step) in &case.steps {
        if let Step::Log { file, .. } = step {
            let path = folder.join(file);
            let length = fs::read(&path).map_or(0, |bytes| bytes.len());
            lengths.insert(path, length);
        }
    }
    lengths
}

/// One time through the steps.
struct Pass<'a> {
    form: Form,
    ports: &'a Ports,
    origin: &'a Origin,
    folder: &'a Path,
    /// How long the logs were before.
    logs: HashMap<PathBuf, usize>,
    kept: Option<Client>,
    kept_h2: Option<h2::Client>,
    kept_h3: Option<h3::Client>,
    open: HashMap<String, Open>,
    /// What handshakes say, apart from ALPN.
    hello: Hello,
    /// Settings for handshakes, made so far.
    settings: Vec<(Hello, Arc<ClientConfig>)>,
}

/// A connection with a request under way.
struct Open {
    connection: Connection,
    form: Form,
    is_head: bool,
    since: Instant,
    /// Whether there was a request on it before.
    is_reused: bool,
    /// Whether the server said that it closes, or did not answer.
    is_last: bool,
}

enum Connection {
    H1(Client),
    H2(h2::Client, Option<h2::Asked>),
    H3(h3::Client, Option<h3::Asked>),
    /// There is none, for that reason.
    None(String),
}

impl Pass<'_> {
    fn steps(&mut self, case: &Case) -> Result<(), String> {
        for (number, step) in &case.steps {
            self.act(step).map_err(|text| format!("line {number}: {text}"))?;
        }
        Ok(())
    }

    fn act(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Origin(reply) => self.origin.expect(reply.clone()),
            Step::Release => self.origin.release(),
            Step::Wait(time) => std::thread::sleep(*time),
            Step::Saw(count) => {
                let seen = || self.origin.seen().len();
                if !until(|| seen() >= *count) || seen() != *count {
                    return Err(format!("the origin saw {} requests, expected {count}", seen()));
                }
            }
            Step::Connections(count) => {
                let made = || self.origin.connections();
                if !until(|| made() >= *count) || made() != *count {
                    return Err(format!("{} connections were made, expected {count}", made()));
                }
            }
            Step::Done(count) => {
                let done = || self.origin.done();
                if !until(|| done() >= *count) || done() != *count {
                    return Err(format!("the origin sent {} answers, expected {count}", done()));
                }
            }
            Step::Sees { name, text, is_there } => {
                let open = self.open.get_mut(name).ok_or("no such connection")?;
                let Connection::H1(client) = &mut open.connection else {
                    return Err("only HTTP/1.1 can be looked at".to_owned());
                };
                let patience = if *is_there { PATIENCE } else { A_WHILE };
                if client.sees(text, patience) != *is_there {
                    return Err(format!("{text:?} came: {}", !is_there));
                }
            }
            Step::Tls(hello) => {
                self.hello = hello.clone();
                (self.kept, self.kept_h2, self.kept_h3) = (None, None, None);
            }
            Step::Write(path, content) => {
                fs::write(self.folder.join(path), content).map_err(|why| why.to_string())?;
            }
            Step::Mode(path, wanted) => {
                let found = fs::metadata(self.folder.join(path)).map_err(|why| why.to_string())?;
                let found = found.permissions().mode() & 0o7777;
                if found != *wanted {
                    return Err(format!("{path} has mode {found:o}, expected {wanted:o}"));
                }
            }
            Step::Param(name, value) => self.param(name, &text(value, &self.form, self.ports))?,
            Step::Log { file, text: wanted, is_there } => {
                self.log(file, &text(wanted, &self.form, self.ports), *is_there)?;
            }
            Step::Gone(name) => drop(self.open.remove(name)),
            Step::Soon(step) => {
                let mut last = Ok(());
                until(|| {
                    last = self.act(step);
                    last.is_ok()
                });
                return last;
            }
            Step::Client { name, ask, expected } => {
                self.client(name.as_ref(), ask.as_ref(), expected.as_ref())?;
            }
        }
        Ok(())
    }

    fn client(
        &mut self,
        name: Option<&String>,
        ask: Option<&Ask>,
        expected: Option<&Expected>,
    ) -> Result<(), String> {
        let mut open = name.and_then(|name| self.open.remove(name));
        if let Some(ask) = ask {
            let ask = self.filled(ask);
            let is_alone = expected.is_none_or(|wanted| wanted.more.is_none());
            let mut asked = self.ask(open, &ask, name.is_some(), is_alone);
            if asked.is_reused
                && expected.is_some_and(|wanted| wanted.status != 0)
                && asked.is_closed()
            {
                // The server closed it as the request came: nothing was done.
                asked = self.ask(None, &ask, name.is_some(), is_alone);
            }
            open = Some(asked);
        }
        let mut open = open.ok_or("no such connection")?;
        if let Some(expected) = expected {
            open.expect(expected, self.ports)?;
        }
        match name {
            Some(name) => drop(self.open.insert(name.clone(), open)),
            None => self.keep(open),
        }
        Ok(())
    }

    /// The request with the placeholders of this form replaced.
    fn filled(&self, ask: &Ask) -> Ask {
        let filled = |value: &str| text(value, &self.form, self.ports);
        match ask {
            Ask::Raw(bytes) => Ask::Raw(match std::str::from_utf8(bytes) {
                Ok(value) => filled(value).into_bytes(),
                Err(_) => bytes.clone(),
            }),
            Ask::Request(request) => {
                let mut request = request.clone();
                request.target = filled(&request.target);
                for (_, value) in &mut request.fields {
                    *value = filled(value);
                }
                Ask::Request(request)
            }
        }
    }

    /// Sends a request over the right connection.
    fn ask(&mut self, open: Option<Open>, ask: &Ask, is_named: bool, is_alone: bool) -> Open {
        let since = Instant::now();
        let request = ask.request().filter(|_| is_alone);
        match (self.form.version, &request, &open) {
            (Version::H2, Some(request), None) => return self.ask_h2(request, is_named, since),
            (Version::H3, Some(request), None) => return self.ask_h3(request, is_named, since),
            _ => {}
        }
        let form = self.form.as_h1();
        let form =
            Form { is_tls: form.is_tls && open.as_ref().is_none_or(|o| o.form.is_tls), ..form };
        let kept = if is_named || matches!(ask, Ask::Raw(_)) { None } else { self.kept.take() };
        let kept = kept.and_then(|mut client| (!client.is_over()).then_some(client));
        let is_reused = kept.is_some();
        let mut client = match (open, kept) {
            (Some(Open { connection: Connection::H1(client), .. }), _) => client,
            (_, Some(client)) => client,
            _ => self.connect(&form),
        };
        let (bytes, is_head) = match ask {
            Ask::Raw(bytes) => (bytes.clone(), false),
            Ask::Request(request) => (request.bytes(), request.method == "HEAD"),
        };
        client.send(&bytes);
        Open { connection: Connection::H1(client), form, is_head, since, is_reused, is_last: false }
    }

    fn connect(&mut self, form: &Form) -> Client {
        let port = self.ports.of(form);
        if !form.is_tls {
            return Client::connect(port);
        }
        let (hello, settings) = self.settings(b"http/1.1");
        Client::connect_tls(port, &settings, &hello)
    }

    /// What the next handshake says, and its settings.
    fn settings(&mut self, alpn: &[u8]) -> (Hello, Arc<ClientConfig>) {
        let hello = Hello { alpn: alpn.to_vec(), ..self.hello.clone() };
        // Sessions live as long as the settings do.
        if let Some((_, settings)) = self.settings.iter().find(|(found, _)| *found == hello) {
            return (hello, Arc::clone(settings));
        }
        let settings = tls::settings(&hello);
        self.settings.push((hello.clone(), Arc::clone(&settings)));
        (hello, settings)
    }

    fn ask_h2(&mut self, request: &Request, is_named: bool, since: Instant) -> Open {
        let kept = if is_named { None } else { self.kept_h2.take() };
        let kept = kept.filter(|client| !client.is_over());
        let asked = kept.and_then(|mut client| Some((client.ask(request).ok()?, client)));
        let asked = asked.map_or_else(|| self.ask_new(request), Ok);
        let connection = match asked {
            Ok((asked, client)) => Connection::H2(client, Some(asked)),
            Err(why) => Connection::None(why),
        };
        self.opened(connection, request, since)
    }

    fn ask_new(&mut self, request: &Request) -> Result<(h2::Asked, h2::Client), String> {
        let tls: Option<ClientConnection> = self.form.is_tls.then(|| {
            let (hello, settings) = self.settings(b"h2");
            tls::client(&settings, &hello)
        });
        let mut client = h2::Client::connect(self.ports.of(&self.form), tls)?;
        Ok((client.ask(request)?, client))
    }

    fn ask_h3(&mut self, request: &Request, is_named: bool, since: Instant) -> Open {
        let kept = if is_named { None } else { self.kept_h3.take() };
        let kept = kept.filter(|client| !client.is_over());
        let asked = kept.and_then(|mut client| Some((client.ask(request).ok()?, client)));
        let asked = asked.map_or_else(|| self.ask_new_h3(request), Ok);
        let connection = match asked {
            Ok((asked, client)) => Connection::H3(client, Some(asked)),
            Err(why) => Connection::None(why),
        };
        self.opened(connection, request, since)
    }

    fn opened(&self, connection: Connection, request: &Request, since: Instant) -> Open {
        let is_head = request.method == "HEAD";
        Open { connection, form: self.form, is_head, since, is_reused: false, is_last: false }
    }

    fn ask_new_h3(&mut self, request: &Request) -> Result<(h3::Asked, h3::Client), String> {
        let (hello, settings) = self.settings(b"h3");
        let mut client = h3::Client::connect(self.ports.of(&self.form), &settings, &hello)?;
        Ok((client.ask(request)?, client))
    }

    /// Keeps the connection of an answered request for the next, as the form says.
    fn keep(&mut self, open: Open) {
        if !self.form.keeps || open.is_last {
            return;
        }
        match open.connection {
            Connection::H1(client) if self.form.version == Version::H1 => self.kept = Some(client),
            Connection::H2(client, _) => self.kept_h2 = Some(client),
            Connection::H3(client, _) => self.kept_h3 = Some(client),
            _ => {}
        }
    }

    fn param(&self, name: &str, value: &str) -> Result<(), String> {
        let seen = self.origin.seen();
        let body = seen.last().map(|request| String::from_utf8_lossy(&request.body));
        if let Some(name) = name.strip_prefix('!') {
            let mut params = seen.last().into_iter().flat_map(|request| &request.params);
            let found = params.find(|(found, _)| found == name);
            return found.map_or(Ok(()), |(_, value)| Err(format!("{name} was {value:?}")));
        }
        let found = match name {
            "BODY" => body.as_deref().unwrap_or_default(),
            name => seen.last().map_or("", |request| request.param(name)),
        };
        if found == value {
            Ok(())
        } else {
            Err(format!("{name} was {found:?}, expected {value:?}"))
        }
    }

    fn log(&self, file: &str, wanted: &str, is_there: bool) -> Result<(), String> {
        let path = self.folder.join(file);
        let read = || {
            let bytes = fs::read(&path).unwrap_or_default();
            let from = self.logs.get(&path).copied().unwrap_or_default().min(bytes.len());
            String::from_utf8_lossy(&bytes[from..]).into_owned()
        };
        let mut length = None;
        let mut has_come = || {
            // Reading it costs much more than looking whether there is more of it.
            let now = fs::metadata(&path).ok().map(|data| data.len());
            let is_longer = now != length;
            length = now;
            is_longer && read().contains(wanted)
        };
        if is_there && !until(&mut has_come) {
            return Err(format!("{file} has no {wanted:?}: {}", read()));
        }
        if !is_there && read().contains(wanted) {
            return Err(format!("{file} has {wanted:?}: {}", read()));
        }
        Ok(())
    }
}

/// Waits for what comes about elsewhere; `false` if it does not.
fn until(mut condition: impl FnMut() -> bool) -> bool {
    let mut begun = Instant::now();
    let end = begun + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        // Looking may take long itself, of what is waited for.
        std::thread::sleep(begun.elapsed().max(Duration::from_millis(5)));
        begun = Instant::now();
    }
    true
}

impl Open {
    /// Whether the server has closed the connection in place of an answer.
    fn is_closed(&mut self) -> bool {
        match &mut self.connection {
            Connection::H1(client) => client.is_closed(),
            Connection::H2(..) | Connection::H3(..) | Connection::None(_) => false,
        }
    }

    fn expect(&mut self, expected: &Expected, ports: &Ports) -> Result<(), String> {
        let mut expected = Some(expected);
        while let Some(wanted) = expected {
            let answer = match &mut self.connection {
                Connection::H1(client) => {
                    let answer = client.answer(self.is_head);
                    let mut answer =
                        answer.unwrap_or_else(|| Answer::none(client.trouble().to_owned()));
                    if client.is_silent() {
                        return Err("no answer in time".to_owned());
                    }
                    if answer.pieces.is_empty() {
                        answer.pieces.push(client.longest_record());
                    }
                    answer
                }
                Connection::H2(client, asked) => match asked.take() {
                    Some(asked) => client.answer(asked).unwrap_or_else(Answer::none),
                    None => Answer::default(),
                },
                Connection::H3(client, asked) => match asked.take() {
                    Some(asked) => client.answer(asked).unwrap_or_else(Answer::none),
                    None => Answer::default(),
                },
                Connection::None(why) => Answer::none(why.clone()),
            };
            let closes = answer.field("connection").is_some_and(|value| value == "close");
            self.is_last = closes || answer.status == 0;
            check(&answer, wanted, &self.form, ports)?;
            // nginx reads its clock once a turn, in milliseconds: a timer may end one of them early.
            if self.since.elapsed() + Duration::from_millis(1) < wanted.took {
                return Err(format!("it took {:?}", self.since.elapsed()));
            }
            if let (Some(name), Connection::H1(client)) = (&wanted.certificate, &self.connection) {
                if !client.has_certificate(name) {
                    return Err(format!("the certificate is not {name}'s"));
                }
            }
            if let (true, Connection::H1(client)) = (wanted.closes, &mut self.connection) {
                if !client.is_closed() {
                    return Err("the connection stays open".to_owned());
                }
            }
            expected = wanted.more.as_deref();
        }
        Ok(())
    }
}
