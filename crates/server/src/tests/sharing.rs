//! Requests that share a page: what their upstream is sent is the same, but for what the handbook says changes nothing.
//!
//! Drawn configurations and requests, the same ones each time; `SEED=number` draws others, `SECONDS=number` goes on for so long.

use crate::control::explain;
use crate::{handlers, testing};
use fastrand::Rng;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};
use yorozu_cache::Key;
use yorozu_gateway::cache::secondary::Secondary;
use yorozu_gateway::cache::{eligibility, is_of_page, key, settings};
use yorozu_gateway::protocol;
use yorozu_kernel::exchange::Role;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::find_config;

/// Configurations that are drawn without `SECONDS`, and requests for each.
const CONFIGURATIONS: usize = 150;
const REQUESTS: usize = 120;

/// Keys that hold the whole URL, in ways that differ.
const KEYS: [&str; 6] = [
    "",
    "$scheme$request_method$host$request_uri",
    "$host$uri$is_args$args",
    "$request_uri",
    "$scheme$http_host$request_uri$http_x_device",
    "$scheme$host$cache_uri",
];
/// Lines of a server or its location; of the same directive one at most is drawn. `P` is the protocol's line for a header.
const LINES: [&[&str]; 7] = [
    &[
        "P X-Mapped $m;",
        "P X-Forwarded-Proto $scheme;",
        "P X-Forwarded-Host $host;",
        "P X-Unknown \"\";",
    ],
    &["P Host $host;", "P Host $http_host;", "P Host fixed;"],
    &["set $v 0; if ($http_x_flag) { set $v 1; } P X-Set $v;"],
    &[
        "if ($http_x_way = elsewhere) { rewrite ^ /else$uri break; }",
        "if ($http_x_way) { return 403; }",
    ],
    &["cache_split_headers X-Device;", "cache_split_headers X-Un*;"],
    &["cache_ignore_headers X-Id-*;"],
    &["P X-Lang $cookie_lang;", "P X-Page $arg_page;", "P Cookie \"\";"],
];
const NAMES: [&str; 4] =
    ["", "server_name h.test;", "server_name h.test w.test;", "server_name *.test;"];
const HOSTS: [&str; 5] = ["h.test", "w.test", "H.test", "h.test:8080", "evil.example"];
const TARGETS: [&str; 8] =
    ["/a", "/a?page=1", "/a?page=2&b=1", "/%61", "/a%2fb", "/a/../a", "//a", "/b/"];
/// Headers, with values; those that say what a request for http://h.test/a says by itself come first.
const HEADERS: [(&str, &[&str]); 22] = [
    ("X-Forwarded-Host", &["h.test", "w.test", "evil.example"]),
    ("X-Forwarded-Proto", &["http", "https", "https, http", "evil"]),
    ("X-Forwarded-Port", &["80", "443", "8443"]),
    ("Forwarded", &["proto=http;host=h.test", "proto=https", "host=evil.example"]),
    ("Front-End-Https", &["off", "on"]),
    ("Origin", &["http://h.test", "https://h.test", "http://evil.example"]),
    ("X-Original-URL", &["/a", "/evil"]),
    ("Accept", &["text/html", "*/*", "application/json"]),
    ("X-Requested-With", &["com.app", "XMLHttpRequest"]),
    ("HX-Request", &["true"]),
    ("X-Device", &["phone", "desk"]),
    ("X-Unknown", &["1", "2"]),
    ("X_Unknown", &["1"]),
    ("X-Id-Edge", &["1", "2"]),
    ("X-Map", &["a", "b"]),
    ("X-Flag", &["1"]),
    ("X-Way", &["elsewhere", "x"]),
    ("X-Forwarded-User", &["bob"]),
    ("Authorization", &["Basic eDp5"]),
    ("Cookie", &["lang=de", "lang=fr; a=b"]),
    ("X-Request-Id", &["1", "2"]),
    ("User-Agent", &["a", "b"]),
];

fn draw<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.usize(..of.len())]
}

fn configuration(rng: &mut Rng) -> String {
    let (pass, header) = match rng.bool() {
        true => ("proxy", "proxy_set_header"),
        false => ("scgi", "scgi_param"),
    };
    let key = match draw(rng, &KEYS) {
        "" => String::new(),
        key => format!("{pass}_cache_key \"{key}\";"),
    };
    let mut lines = [String::new(), String::new()];
    for group in LINES {
        if rng.bool() {
            let line = draw(rng, group);
            let line = match pass {
                // `P NAME`, as a parameter of the environment.
                "scgi" => as_params(line),
                _ => line.replace("P ", &format!("{header} ")),
            };
            lines[rng.usize(..2)] += &line;
        }
    }
    let [server, location] = lines;
    let names = draw(rng, &NAMES);
    let address = if pass == "proxy" { "http://127.0.0.1:1" } else { "127.0.0.1:1" };
    format!(
        "http {{ {pass}_cache_path cache keys_zone=z:1m; map $http_x_map $m {{ default none; a A; }} underscores_in_headers on;
         server {{ listen 127.0.0.1:80; {names} {pass}_cache z; {key} {server}
         location / {{ {location} {pass}_pass {address}; }} }} }}"
    )
}

/// `P X-Name VALUE` as `scgi_param HTTP_X_NAME VALUE`.
fn as_params(line: &str) -> String {
    let mut parts = line.split("P ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(' ').unwrap();
        text += &format!("scgi_param HTTP_{} {rest}", name.to_uppercase().replace('-', "_"));
    }
    text
}

fn fields(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.usize(..4) {
        let (name, values) = HEADERS[rng.usize(..HEADERS.len())];
        text += &format!("{name}: {}\r\n", draw(rng, values));
    }
    text
}

/// Whether a header of this value says no more than a request for `host` and `target` by itself.
fn is_plain(name: &str, value: &str, host: &str, target: &str) -> bool {
    let host = host.to_lowercase();
    match name {
        "x-forwarded-host" => host.split(':').next() == Some(value) || value == host,
        "x-forwarded-proto" => value == "http",
        "x-forwarded-port" => value == "80" || host.rsplit(':').next() == Some(value),
        "forwarded" => value
            .split([';', ','])
            .map(str::trim)
            .all(|it| it == "proto=http" || it == format!("host={host}")),
        // Its own page's, over the scheme that a proxy says.
        "origin" => {
            value.trim_start_matches("https:").trim_start_matches("http:") == format!("//{host}")
        }
        "x-original-url" => value == target,
        "accept" => value.contains("text/html") || value.contains("*/*"),
        "x-requested-with" => value != "XMLHttpRequest",
        // Where it is there, the configuration says so.
        "x-id-edge" => true,
        // Made of a cookie, which is for `Vary` and the key.
        "x-lang" => true,
        _ => false,
    }
}

/// What a request's upstream is sent, by the names of headers that count.
fn sent(request: &[u8], is_scgi: bool) -> BTreeMap<String, String> {
    // No application takes the two for different paths.
    let text = String::from_utf8_lossy(request).replace("/%61", "/a");
    let pairs: Vec<(String, String)> = if is_scgi {
        let mut words = text.split_once(':').unwrap().1.split('\0');
        std::iter::from_fn(|| Some((words.next()?.to_owned(), words.next()?.to_owned()))).collect()
    } else {
        let lines = text.split("\r\n").filter(|line| !line.is_empty());
        let pairs = lines.map(|line| line.split_once(": ").unwrap_or(("", line)));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in pairs {
        let is_header = !is_scgi || name.starts_with("HTTP_");
        let plain = name.trim_start_matches("HTTP_").to_lowercase().replace('_', "-");
        let name = if is_header { plain } else { name };
        let known = joined.entry(name).or_default();
        *known += if known.is_empty() { "" } else { ", " };
        *known += &value;
    }
    joined.retain(|name, _| name == "host" || is_of_page(name.as_bytes()));
    joined
}

/// A request, and what its upstream is sent.
struct Sent {
    host: &'static str,
    target: &'static str,
    head: String,
    headers: BTreeMap<String, String>,
}

impl Sent {
    /// What a header says; whichever proxy in a row says the scheme, and the request's own host, `Forwarded` says the same.
    fn said(&self, name: &str) -> Option<String> {
        let value = self.headers.get(name)?;
        if name != "forwarded" {
            return Some(value.clone());
        }
        let own = format!("host={}", self.host.to_lowercase());
        let parts = value.split([',', ';']).map(str::trim).filter(|part| *part != own);
        Some(parts.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(";"))
    }

    fn is_plain(&self, name: &str) -> bool {
        let value = self.headers.get(name);
        value.is_none_or(|value| is_plain(name, value, self.host, self.target))
    }

    /// The headers by which another one differs in more than it says by itself.
    fn differing<'s>(&'s self, other: &'s Self) -> Vec<&'s str> {
        let names = self.headers.keys().chain(other.headers.keys()).map(String::as_str);
        let differs = |name: &&str| self.said(name) != other.said(name);
        names
            .filter(differs)
            .filter(|name| !(self.is_plain(name) && other.is_plain(name)))
            .collect()
    }
}

#[test]
fn requests_that_share_a_page_are_alike_to_their_upstream() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seed = number("SEED").unwrap_or(1);
    let end = number("SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut rng = Rng::with_seed(seed);
    let (mut configurations, mut shared, mut asked_for) = (0, 0, 0);
    while end.map_or(configurations < CONFIGURATIONS, |end| Instant::now() < end) {
        configurations += 1;
        let text = configuration(&mut rng);
        let config = testing::try_config(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let conf = Rc::new(WorkerConf::new(std::sync::Arc::new(config), || {}));
        let mut makers: HashMap<Key, Sent> = HashMap::new();
        for _ in 0..REQUESTS {
            let (host, target) = (draw(&mut rng, &HOSTS), draw(&mut rng, &TARGETS));
            let head = format!(
                "http 80\nGET {target} HTTP/1.1\r\nHost: {host}\r\n{}\r\n",
                fields(&mut rng)
            );
            // One that has a header twice is no request.
            let Ok(mut asked) = explain::asked(&conf, head.as_bytes()) else { continue };
            if find_config::begin(&mut asked).is_err() {
                continue;
            }
            asked.role = Role::Question { supposes_scripts: true };
            let Progress::Wait(_) = handlers::start(&mut asked) else { continue };
            let location = conf.location(asked.location);
            let protocol = protocol::of(location).unwrap();
            let gateway = settings::of(location).unwrap();
            asked_for += 1;
            let page = key::primary(&mut asked, gateway);
            let address = Secondary::of(&asked, gateway).address(page);
            if !eligibility::Eligibility::of(&mut asked, gateway, None).admits(b"") {
                continue;
            }
            let Ok(call) = protocol.call(&mut asked, location, Content::None) else {
                continue;
            };
            let headers = sent(&call.request, protocol.family().prefix == "scgi");
            let made = Sent { host, target, head, headers };
            match makers.entry(address) {
                Entry::Vacant(place) => _ = place.insert(made),
                Entry::Occupied(known) => {
                    let (known, differing) = (known.get(), known.get().differing(&made));
                    shared += 1;
                    assert!(
                        differing.is_empty(),
                        "{differing:?} SEED={seed}\n{text}\n{}\n{}",
                        known.head,
                        made.head
                    );
                }
            }
        }
    }
    eprintln!(
        "sharing: SEED={seed}, {configurations} configurations, {asked_for} requests, {shared} share a page"
    );
    assert!(shared > asked_for / 10, "{shared} of {asked_for}");
}
