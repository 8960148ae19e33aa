//! Generated configurations and requests, to nginx and to yorozu: they answer alike.
//!
//! A few fixed ones; `SEED=number` draws others, `ROUNDS=number` or `SECONDS=number` makes it longer, `KEEP=file` notes every
//! difference found and goes on instead of stopping at the first, `TRIES=number` bounds what is tried to make one smaller,
//! `YOROZU=binary` names another binary. What a difference comes from becomes a `.case`; what differs for a reason is in
//! `docs/from-nginx.md`, and is not drawn.

mod generate;
mod origin;
mod play;
mod scenes;

use fastrand::Rng;
use generate::{FILES, Node, configuration, render, request};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use yorozu_testkit::client::{Answer, Client};
use yorozu_testkit::server::{Claim, Folder, Kind, Server};

const REQUESTS: usize = 30;
/// Where drawing begins if the environment says nothing.
const SEED: u64 = 1;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Rounds, counted from 0: as many as `ROUNDS` says, or as `SECONDS` has room for.
fn rounds() -> impl Iterator<Item = u64> {
    let end = number("SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let most = number("ROUNDS").unwrap_or(4);
    (0..).take_while(move |round| end.map_or(*round < most, |end| Instant::now() < end))
}

fn yorozu() -> Kind {
    let built = || env!("CARGO_BIN_EXE_yorozu").to_owned();
    Kind::Yorozu(std::env::var("YOROZU").unwrap_or_else(|_| built()).into())
}

#[test]
fn nginx_and_yorozu_answer_alike() {
    let Some(nginx) = Kind::oracle() else {
        eprintln!("nginx is not installed: nothing to compare with");
        return;
    };
    let yorozu = yorozu();
    let seed = number("SEED").unwrap_or(SEED);
    eprintln!("SEED={seed}");
    let files = Folder::new();
    for (path, content) in FILES {
        let path = files.path().join("html").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let files = files.path().join("html");
    let mut done = 0;
    for round in rounds() {
        done += 1;
        let mut rng = Rng::with_seed(seed.wrapping_add(round));
        let nodes = configuration(&mut rng);
        let requests: Vec<_> = (0..REQUESTS).map(|_| request(&mut rng)).collect();
        let pair = [&nginx, &yorozu];
        let Some(difference) = compare(pair, &files, &nodes, &requests) else { continue };
        let (nodes, requests) = reduce(pair, &files, nodes, difference.request);
        let difference = compare(pair, &files, &nodes, &requests).expect("it differed before");
        note(&format!("SEED={} ROUNDS=1\n{}", seed + round, difference.text));
    }
    eprintln!("{done} configurations");
}

#[test]
fn nginx_and_yorozu_do_alike_over_time() {
    let Some(nginx) = Kind::oracle() else {
        eprintln!("nginx is not installed: nothing to compare with");
        return;
    };
    let yorozu = yorozu();
    let seed = number("SEED").unwrap_or(SEED);
    eprintln!("SEED={seed}");
    let pair = [&nginx, &yorozu];
    let (mut done, mut late) = (0, 0);
    for round in rounds() {
        done += 1;
        let mut rng = Rng::with_seed(seed.wrapping_add(round));
        let scene = scenes::scene(&mut rng);
        let text = match play::compare(pair, &scene) {
            play::Outcome::Alike => continue,
            play::Outcome::Late => {
                late += 1;
                continue;
            }
            play::Outcome::Different(text) => text,
        };
        let tries = usize::try_from(number("TRIES").unwrap_or(80)).unwrap();
        let (_, reduced) = play::reduce(pair, scene, tries);
        note(&format!("SEED={} ROUNDS=1\n{}", seed + round, reduced.unwrap_or(text)));
    }
    eprintln!("{late} of {done} were too late to be judged");
}

/// Fails with a difference, or notes it in the file that `KEEP` names.
fn note(text: &str) {
    let Ok(file) = std::env::var("KEEP") else { panic!("{text}") };
    let mut all = fs::read_to_string(&file).unwrap_or_default();
    let _ = writeln!(all, "{text}\n----");
    fs::write(file, all).unwrap();
}

struct Difference {
    text: String,
    /// The request that is answered differently; none if the configuration is judged differently.
    request: Option<Vec<u8>>,
}

/// The first difference.
fn compare(
    pair: [&Kind; 2],
    files: &Path,
    nodes: &[Node],
    requests: &[Vec<u8>],
) -> Option<Difference> {
    let second = Claim::new();
    let http = render(nodes, 0);
    let shown = http.clone();
    let http = http.replace("$files", &files.display().to_string());
    let http = http.replace("$second", &second.port.to_string());
    let folder = Folder::new();
    let [wanted, found] = pair.map(|kind| refusal(kind, folder.path(), &http));
    match (wanted, found) {
        (None, None) => {}
        (Some(_), Some(_)) => return None,
        (wanted, found) => {
            let text = format!("{shown}\nnginx says {wanted:?}\nyorozu says {found:?}");
            return Some(Difference { text, request: None });
        }
    }
    // One after the other: the second port is the same for both.
    let answers = pair.map(|kind| {
        let folder = Folder::new();
        let server = Server::start(kind, folder.path(), &http);
        requests
            .iter()
            .map(|request| normal(ask(server.port, request), server.port))
            .collect::<Vec<_>>()
    });
    let at = (0..requests.len()).find(|at| answers[0][*at] != answers[1][*at])?;
    let request = &requests[at];
    let mut text = format!("{shown}\n{}", String::from_utf8_lossy(request));
    for (name, answers) in ["nginx", "yorozu"].iter().zip(&answers) {
        let _ = write!(text, "\n{name}:\n{}\n", answers[at]);
    }
    Some(Difference { text, request: Some(request.clone()) })
}

/// Why a server refuses a configuration; `None` if it does not.
fn refusal(kind: &Kind, folder: &Path, http: &str) -> Option<String> {
    let (program, port) = match kind {
        Kind::Yorozu(path) => (path.as_path(), "1"),
        Kind::Nginx => (Path::new("/usr/sbin/nginx"), "1"),
    };
    let file = folder.join("test.conf");
    let http = http.replace("$port", port);
    let dir = folder.display();
    fs::write(
        &file,
        format!("pid {dir}/pid; error_log {dir}/e; events {{}} http {{ access_log off; {http} }}"),
    )
    .unwrap();
    let output = Command::new(program).arg("-t").arg("-c").arg(&file).output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn ask(port: u16, request: &[u8]) -> Option<Answer> {
    let mut client = Client::connect(port);
    client.send(request);
    client.answer(request.starts_with(b"HEAD"))
}

/// An answer without what must differ: times, the server's name and port, boundaries, and how its end is marked.
fn normal(answer: Option<Answer>, port: u16) -> String {
    let Some(answer) = answer else { return "closed".to_owned() };
    let own = |text: &str| {
        let text = text.replace(&format!(":{port}"), ":PORT");
        [concat!("yorozu/", env!("CARGO_PKG_VERSION")), "yorozu", "nginx/1.22.1", "nginx"]
            .iter()
            .fold(text, |text, name| text.replace(&format!("<hr><center>{name}</center>"), "<hr>"))
    };
    let is_part = answer.field("content-type").is_some_and(|value| value.starts_with("multipart/"));
    let is_gzip = answer.field("content-encoding").is_some();
    let mut fields: Vec<String> = answer
        .fields
        .iter()
        .filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            match &*name {
                "date" | "server" | "transfer-encoding" | "content-length" => None,
                // nginx passes the page for this status through its filters a second time.
                _ if answer.status == 416 && name != "content-range" => None,
                "expires" if value != "Thu, 01 Jan 1970 00:00:01 GMT" => Some("expires".to_owned()),
                "content-type" if is_part => Some("multipart".to_owned()),
                _ => Some(format!("{name}: {}", own(value))),
            }
        })
        .collect();
    fields.sort();
    // nginx adds trailers once more for each subrequest.
    fields.dedup();
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let body = match (is_part, is_gzip) {
        (_, true) => "coded".to_owned(),
        (true, _) => {
            body.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
        }
        _ => own(&body),
    };
    format!("{}\n{}\n\n{body}", answer.status, fields.join("\n"))
}

/// Takes away what the difference does not need.
fn reduce(
    pair: [&Kind; 2],
    files: &Path,
    mut nodes: Vec<Node>,
    request: Option<Vec<u8>>,
) -> (Vec<Node>, Vec<Vec<u8>>) {
    let requests: Vec<Vec<u8>> = request.into_iter().collect();
    // A difference that needs several requests stays whole.
    if compare(pair, files, &nodes, &requests).is_none() {
        return (nodes, requests);
    }
    let mut at = 0;
    while let Some(smaller) = without(&nodes, &mut at.clone()) {
        let is_same_kind =
            |difference: &Difference| difference.request.is_some() != requests.is_empty();
        let still = compare(pair, files, &smaller, &requests);
        match still.filter(is_same_kind) {
            Some(_) => nodes = smaller,
            None => at += 1,
        }
    }
    (nodes, requests)
}

/// The nodes without the one at place `at`, counted through; `None` if there are fewer.
fn without(nodes: &[Node], at: &mut usize) -> Option<Vec<Node>> {
    for (place, node) in nodes.iter().enumerate() {
        // What listens, and where, is not to be removed.
        if node.text.starts_with("listen ") {
            continue;
        }
        if node.text != "server" {
            if *at == 0 {
                let mut rest = nodes.to_vec();
                rest.remove(place);
                return Some(rest);
            }
            *at -= 1;
        }
        if let Some(children) = &node.children {
            if let Some(children) = without(children, at) {
                let mut rest = nodes.to_vec();
                rest[place].children = Some(children);
                return Some(rest);
            }
        }
    }
    None
}
