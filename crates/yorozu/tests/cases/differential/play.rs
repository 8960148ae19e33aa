//! Plays scenes to nginx and to yorozu: clients get the same, and so does the origin.

use super::generate::{FILES, Node, render};
use super::normal;
use super::origin::Origin;
use super::scenes::{Asked, Scene, Step};
use std::collections::HashMap;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use yorozu_testkit::client::{Answer, Client};
use yorozu_testkit::h2;
use yorozu_testkit::request::Request;
use yorozu_testkit::server::{Claim, Folder, Kind, Server, Text};

/// What only yorozu has, and which would make it do on purpose what nginx does not.
const OF_YOROZU: &str = "proxy_cache_age off; proxy_cache_invalidate off;\n";
/// What stands before the rest: what has other defaults since Debian's nginx, and what all scenes need.
const BEFORE: &str = "server_tokens off; absolute_redirect off; default_type text/plain;
proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_next_upstream_timeout 10s;
proxy_read_timeout 4s; proxy_send_timeout 4s; client_body_timeout 4s;
proxy_cache_path $dir/cache levels=1:2 keys_zone=z:1m inactive=1h; client_body_buffer_size 1k;
add_header X-Up \"$upstream_cache_status $upstream_addr $upstream_status\" always;
map $arg_b $bypass { default 0; 1 1; yes y; no ''; }
";
/// Longer than what is fresh for two seconds is fresh, in nginx a second longer.
const PAUSE: Duration = Duration::from_millis(3300);
/// What takes longer is told.
const SLOW: Duration = Duration::from_secs(8);
/// What is fresh for two seconds may be old after that: such a scene says nothing.
const STRETCH: Duration = Duration::from_millis(1700);

/// What a scene came to.
pub(crate) enum Outcome {
    Alike,
    /// The machine was too slow for its times.
    Late,
    Different(String),
}

/// What one server did: a line for each answer, with what the origin saw.
struct Played {
    lines: Vec<String>,
    is_late: bool,
}

/// Plays a scene to both at once.
pub(crate) fn compare(kinds: [&Kind; 2], scene: &Scene) -> Outcome {
    let [wanted, found] = std::thread::scope(|scope| {
        kinds.map(|kind| scope.spawn(|| play(kind, scene))).map(|thread| thread.join().unwrap())
    });
    let (wanted, found) = match (wanted, found) {
        (Ok(wanted), Ok(found)) => (wanted, found),
        (Err(_), Err(_)) => return Outcome::Alike,
        (wanted, found) => {
            let text =
                format!("{}\nnginx: {:?}\nyorozu: {:?}", show(scene), wanted.err(), found.err());
            return Outcome::Different(text);
        }
    };
    if wanted.is_late || found.is_late {
        return Outcome::Late;
    }
    let pairs = wanted.lines.iter().zip(&found.lines).enumerate();
    let Some((at, (wanted, found))) =
        pairs.into_iter().find(|(_, (wanted, found))| wanted != found)
    else {
        return Outcome::Alike;
    };
    Outcome::Different(format!("{}\nstep {at}\nnginx: {wanted}\nyorozu: {found}", show(scene)))
}

fn show(scene: &Scene) -> String {
    let mut text = render(&scene.nodes[0], 0);
    if scene.steps.iter().any(|step| matches!(step, Step::Reload)) {
        let second = render(&scene.nodes[1], 0);
        let same = |line: &&str| text.contains(*line);
        let new: Vec<_> = second.lines().filter(|line| !same(line)).collect();
        text.push_str(&format!("# behind the reload: {new:?}\n"));
    }
    for (at, step) in scene.steps.iter().enumerate() {
        let shown = match step {
            Step::Ask(number, asked) => {
                let all: Vec<_> = asked.iter().map(show_asked).collect();
                format!("{number}: {}", all.join("   and   "))
            }
            Step::AskH2(asked) => format!("h2: {}", show_asked(asked)),
            other => format!("{other:?}"),
        };
        text.push_str(&format!("# {at} {shown}\n"));
    }
    text
}

fn show_asked(asked: &Asked) -> String {
    let Asked { method, target, version, host, fields, content, is_chunked } = asked;
    format!("{method} {target} {version} {host} {fields:?} {} {is_chunked}", content.len())
}

/// A server with all that belongs to it.
struct Stage {
    kind: Kind,
    folder: Folder,
    server: Server,
    origin: Origin,
    claims: [Claim; 3],
    clients: HashMap<usize, Client>,
    h2: Option<h2::Client>,
    generation: usize,
}

fn play(kind: &Kind, scene: &Scene) -> Result<Played, String> {
    let folder = Folder::new();
    for (path, content) in FILES {
        let path = folder.path().join("html").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        // The same for both: validators are made of it.
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
            .unwrap();
    }
    let origin = Origin::start();
    let claims = [Claim::new(), Claim::new(), Claim::new()];
    let text = Text {
        main: "worker_processes 1;".to_owned(),
        http: written(kind, &scene.nodes[0], &claims, &origin, folder.path(), 0),
        ..Text::default()
    };
    let ports = [claims[0].port, claims[1].port];
    let server = Server::try_start(kind, folder.path(), &ports, &text)?;
    let clients = HashMap::new();
    let mut stage = Stage {
        kind: kind.clone(),
        folder,
        server,
        origin,
        claims,
        clients,
        h2: None,
        generation: 0,
    };
    let mut played = Played { lines: Vec::new(), is_late: false };
    let mut since = Instant::now();
    for (at, step) in scene.steps.iter().enumerate() {
        let begun = Instant::now();
        match step {
            Step::Wait => {
                played.is_late |= since.elapsed() > STRETCH;
                std::thread::sleep(PAUSE);
                since = Instant::now();
                played.lines.push(String::new());
            }
            Step::Reload => {
                let was = since.elapsed();
                let http = |stage: &Stage| {
                    let (claims, origin) = (&stage.claims, &stage.origin);
                    let folder = stage.folder.path();
                    written(kind, &scene.nodes[1], claims, origin, folder, stage.generation + 1)
                };
                let http = http(&stage);
                stage.reload(&http)?;
                played.is_late |= was > STRETCH;
                played.lines.push(String::new());
            }
            Step::Ask(number, asked) => {
                let line = stage.ask(*number, asked);
                played.lines.push(stage.with_seen(&line));
            }
            Step::AskH2(asked) => {
                let line = stage.ask_h2(asked);
                played.lines.push(stage.with_seen(&line));
            }
        }
        // Not compared, as a busy machine is slow as well; but someone should look.
        if begun.elapsed() > SLOW {
            eprintln!("{kind:?} took {:?} for step {at} of\n{}", begun.elapsed(), show(scene));
        }
    }
    let has_waits = scene.steps.iter().any(|step| matches!(step, Step::Wait));
    let has_times = has_waits || render(&scene.nodes[0], 0).contains("cache z");
    played.is_late |= has_times && since.elapsed() > STRETCH;
    Ok(played)
}

fn written(
    kind: &Kind,
    nodes: &[Node],
    claims: &[Claim; 3],
    origin: &Origin,
    folder: &Path,
    generation: usize,
) -> String {
    let own = if matches!(kind, Kind::Yorozu(_)) { OF_YOROZU } else { "" };
    let all = [
        ("$port", claims[0].port.to_string()),
        ("$h2port", claims[1].port.to_string()),
        ("$dead", claims[2].port.to_string()),
        ("$a;", format!("{};", origin.ports[0])),
        ("$a ", format!("{} ", origin.ports[0])),
        ("$b;", format!("{};", origin.ports[1])),
        ("$b ", format!("{} ", origin.ports[1])),
        ("$files", folder.join("html").display().to_string()),
        ("$generation", generation.to_string()),
    ];
    let text = format!("{own}{BEFORE}{}", render(nodes, 0));
    all.iter().fold(text, |text, (name, value)| text.replace(name, value))
}

impl Stage {
    /// A line that is the same whatever ports there are; with what the origin has seen.
    fn with_seen(&self, line: &str) -> String {
        let seen = self.origin.seen().join("\n  ");
        let text = format!("{line}\n  {seen}");
        let ports = [
            (self.origin.ports[0], "A"),
            (self.origin.ports[1], "B"),
            (self.claims[0].port, "PORT"),
            (self.claims[1].port, "PORT"),
            (self.claims[2].port, "DEAD"),
        ];
        ports
            .iter()
            .fold(text, |text, (port, name)| text.replace(&format!("127.0.0.1:{port}"), name))
    }

    fn ask(&mut self, number: usize, asked: &[Asked]) -> String {
        let port = self.claims[0].port;
        let is_closed = self.clients.get_mut(&number).is_some_and(Client::is_over);
        if is_closed {
            self.clients.remove(&number);
        }
        let client = self.clients.entry(number).or_insert_with(|| Client::connect(port));
        let bytes: Vec<u8> = asked.iter().flat_map(Asked::bytes).collect();
        client.send(&bytes);
        let mut lines = Vec::new();
        let mut is_over = false;
        for one in asked {
            let answer = client.answer(one.method == "HEAD");
            is_over = answer.as_ref().is_none_or(|answer| {
                let says = |value: &str| answer.field("connection").is_some_and(|it| it == value);
                says("close") || (one.version == "1.0" && !says("keep-alive"))
            });
            // Where content breaks off of which the client needs none, or not all, nginx closes in a moment.
            let is_part = one.fields.iter().any(|field| field.starts_with("Range"));
            is_over |= (one.method == "HEAD" || is_part) && one.target.contains("torn");
            lines.push(shown(answer, port));
            if is_over {
                break;
            }
        }
        if is_over {
            self.clients.remove(&number);
        }
        lines.join("\n---\n")
    }

    fn ask_h2(&mut self, asked: &Asked) -> String {
        let port = self.claims[1].port;
        let mut fields = vec![("Host".to_owned(), asked.host.to_owned())];
        let split =
            |field: &&str| field.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
        fields.extend(asked.fields.iter().filter_map(split));
        let body = (!asked.content.is_empty()).then(|| asked.content.clone());
        if let Some(body) = &body {
            fields.push(("Content-Length".to_owned(), body.len().to_string()));
        }
        let request =
            Request { method: asked.method.to_owned(), target: asked.target.clone(), fields, body };
        let mut answer = Err("not asked".to_owned());
        // A server may close a connection that rests; of one that does so the next request is asked again.
        for _ in 0..2 {
            let mut client = match self.h2.take().filter(|client| !client.is_over()) {
                Some(client) => client,
                None => match h2::Client::connect(port, None) {
                    Ok(client) => client,
                    Err(why) => return why,
                },
            };
            answer = client.ask(&request).and_then(|asked| client.answer(asked));
            if answer.is_ok() {
                self.h2 = Some(client);
                break;
            }
            if !self.origin.is_silent() {
                break;
            }
        }
        match answer {
            Ok(answer) => shown(Some(answer), port),
            Err(_) => "reset".to_owned(),
        }
    }

    /// The other configuration: from then on every new connection has it.
    fn reload(&mut self, http: &str) -> Result<(), String> {
        self.clients.clear();
        self.h2 = None;
        // Before it serves it may miss a signal.
        self.generation_served()?;
        self.generation += 1;
        let file = self.folder.path().join("nginx.conf");
        let text = fs::read_to_string(&file).unwrap();
        let start = text.find("server_tokens off").unwrap();
        let new = &http[http.find("server_tokens off").unwrap()..];
        let dir = self.folder.path().display().to_string();
        fs::write(
            &file,
            format!(
                "{}{new}
}}
",
                &text[..start]
            )
            .replace("$dir", &dir),
        )
        .unwrap();
        let before = children(self.server.id());
        let _ = Command::new("kill").arg("-HUP").arg(self.server.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(60);
        // nginx's old workers take connections, and count peers, until they end.
        while matches!(self.kind, Kind::Nginx)
            && children(self.server.id()).iter().any(|child| before.contains(child))
        {
            if Instant::now() > end {
                return Err("the old workers do not end".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut in_a_row = 0;
        while in_a_row < 4 {
            let is_new = self.generation_served()? == Some(self.generation);
            in_a_row = if is_new { in_a_row + 1 } else { 0 };
            if Instant::now() > end {
                return Err("the reload has not happened".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// How many reloads the configuration has seen that a new connection is answered by; `None`: it is not answered.
    fn generation_served(&self) -> Result<Option<usize>, String> {
        let port = self.claims[0].port;
        if let Err(why) = TcpStream::connect(("127.0.0.1", port)) {
            return Err(format!("no connection beside a reload: {why}"));
        }
        let mut client = Client::connect(port);
        client.send(b"GET /generation HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let answer = client.answer(false);
        Ok(answer.and_then(|it| String::from_utf8_lossy(&it.body).parse().ok()))
    }
}

/// The ids of a process's children.
fn children(parent: u32) -> Vec<String> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let all = fs::read_to_string(path).unwrap_or_default();
    all.split_whitespace().map(str::to_owned).collect()
}

fn shown(answer: Option<Answer>, port: u16) -> String {
    let text = normal(answer, port);
    // What is fresh or not is seen in who answers; how many bytes an answer of another server had is not.
    text.lines().filter(|line| !line.starts_with("keep-alive: ")).collect::<Vec<_>>().join("\n")
}

/// A scene without what the difference does not need, within a number of tries.
pub(crate) fn reduce(kinds: [&Kind; 2], mut scene: Scene, tries: usize) -> (Scene, Option<String>) {
    let mut last = None;
    let mut left = tries;
    let mut differs = |scene: &Scene| {
        left = left.checked_sub(1)?;
        match compare(kinds, scene) {
            Outcome::Different(text) => Some(text),
            _ => None,
        }
    };
    let mut at = scene.steps.len();
    while at > 0 {
        at -= 1;
        let mut smaller = scene.clone();
        smaller.steps.remove(at);
        if let Some(text) = differs(&smaller) {
            (scene, last) = (smaller, Some(text));
        }
    }
    if !scene.steps.iter().any(|step| matches!(step, Step::Reload)) {
        let mut at = 0;
        while let Some(nodes) = super::without(&scene.nodes[0], &mut at.clone()) {
            let smaller = Scene { nodes: [nodes, Vec::new()], steps: scene.steps.clone() };
            match differs(&smaller) {
                Some(text) => (scene, last) = (smaller, Some(text)),
                None => at += 1,
            }
        }
    }
    (scene, last)
}
