//! Scenes: a configuration with caches, upstreams and several servers, and what clients do one after the other.

use super::generate::{Node, block, is_drawn, line, pick, render};
use fastrand::Rng;

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Over a connection of that number, which is opened where there is none; several at once are sent together.
    Ask(usize, Vec<Asked>),
    /// Over HTTP/2.
    AskH2(Asked),
    /// What is fresh for two seconds no longer is.
    Wait,
    /// The other configuration from now on.
    Reload,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    pub(crate) version: &'static str,
    pub(crate) host: &'static str,
    pub(crate) fields: Vec<&'static str>,
    pub(crate) content: Vec<u8>,
    pub(crate) is_chunked: bool,
}

/// A scene: two configurations (what stands in `http {}`) and steps.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) nodes: [Vec<Node>; 2],
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn scene(rng: &mut Rng) -> Scene {
    let first = configuration(rng);
    let mut second = first.clone();
    let reloads = is_drawn(rng, 20);
    if reloads {
        second = change(rng, &first);
    }
    let waits = is_drawn(rng, 20);
    let breaks = is_drawn(rng, 40);
    let text = [&first, &second].map(|nodes| render(nodes, 0)).concat();
    let bounds = Bounds::of(&text, breaks);
    let targets = (0..rng.usize(1..4)).map(|_| target(rng, breaks, bounds)).collect();
    let asking = Asking { targets, bounds };
    let mut steps = Vec::new();
    for _ in 0..rng.usize(3..14) {
        steps.push(match rng.u32(..20) {
            0..=2 => {
                let mut asked = asking.one(rng, true);
                // Over HTTP/2 nginx judges the content again where the error's page is, and sends its own page.
                if text.contains("error_page 413") {
                    asked.content.clear();
                }
                Step::AskH2(asked)
            }
            3 => {
                let mut all: Vec<_> = (0..3).map(|_| asking.one(rng, false)).collect();
                // Where content breaks off of which the client needs none, or not all, nginx closes its connection: what
                // was asked behind it is asked of the origin or not.
                for one in all.iter_mut().filter(|_| breaks) {
                    one.fields.retain(|field| !field.starts_with("Range"));
                    if one.method == "HEAD" {
                        one.method = "GET";
                    }
                }
                Step::Ask(rng.usize(..2), all)
            }
            4 if waits => Step::Wait,
            5 if reloads => Step::Reload,
            _ => Step::Ask(rng.usize(..2), vec![asking.one(rng, false)]),
        });
    }
    Scene { nodes: [first, second], steps }
}

/// What is not asked for in a scene, as it is known to differ there.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Content that does not come with its head: sent on while it arrives it goes to one peer only, and how much of it
    /// has arrived when a peer fails, or it becomes too long, is a matter of time. In a file it is not asked of a cache.
    long_content: bool,
    /// Pieces of answers without a length: they are cut of stored ones.
    stores: bool,
    forces_ranges: bool,
}

impl Bounds {
    fn of(text: &str, breaks: bool) -> Self {
        let has = |part: &str| text.contains(part);
        let may_fail = breaks
            || has("next_upstream http")
            || has("next_upstream error ")
            || has("$dead fail_timeout")
            || has("$dead max_fails");
        let may_end = may_fail || has("client_max_body_size 3000");
        Self {
            long_content: !(has("request_buffering off") && may_end || has("cache_methods POST")),
            stores: has("proxy_cache z"),
            forces_ranges: has("force_ranges"),
        }
    }
}

/// What a reload brings: a setting of a location goes, or comes.
fn change(rng: &mut Rng, nodes: &[Node]) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    let locations = nodes.iter_mut().filter_map(|node| node.children.as_mut()).flatten();
    let mut locations: Vec<_> =
        locations.filter(|node| node.text.starts_with("location")).collect();
    if locations.is_empty() {
        return nodes;
    }
    let place = rng.usize(..locations.len());
    let inner = locations[place].children.get_or_insert_with(Vec::new);
    if let (true, at) = (is_drawn(rng, 50), rng.usize(..=inner.len())) {
        if at < inner.len() && !inner[at].text.contains("_pass") {
            inner.remove(at);
        }
    } else {
        inner.push(setting(rng));
    }
    once(inner);
    without_overriding(&mut nodes);
    nodes
}

fn configuration(rng: &mut Rng) -> Vec<Node> {
    let mut nodes = Vec::new();
    nodes.extend((0..rng.usize(..4)).map(|_| setting(rng)));
    if is_drawn(rng, 20) {
        nodes.push(line(pick(rng, FOR_ALL)));
    }
    once(&mut nodes);
    nodes.push(upstream(rng, "one"));
    nodes.push(upstream(rng, "two"));
    let names = ["localhost", "b.test *.w.test", "~^(?<sub>r\\d)\\.test$ c.*"];
    let count = rng.usize(1..=names.len());
    let default = rng.usize(..count + 2);
    for (place, name) in names.iter().take(count).enumerate() {
        let is_default = if place == default { " default_server" } else { "" };
        let mut server = vec![
            line(format!("listen 127.0.0.1:$port{is_default}")),
            line(format!("listen 127.0.0.1:$h2port http2{is_default}")),
            line(format!("server_name {name}")),
            line("root $files"),
            block("location = /generation", vec![line("return 200 \"$generation\"")]),
            block("location /file/", vec![line("alias $files/a/")]),
        ];
        let mut own: Vec<_> = (0..rng.usize(..3)).map(|_| setting(rng)).collect();
        once(&mut own);
        server.extend(own);
        for path in ["/", "/c/", "/d/", "@n", "~ \\.x$", "= /only"] {
            if path == "/" || is_drawn(rng, 50) {
                server.push(location(rng, path));
            }
        }
        nodes.push(block("server", server));
    }
    without_overriding(&mut nodes);
    nodes
}

/// Takes what would say otherwise out of the blocks below: nginx announces a body that it does not pass on where a block has
/// fields of its own, and stores the empty answer to a HEAD under a key that a GET has too.
fn without_overriding(nodes: &mut [Node]) {
    fn drop_lines(nodes: &mut Vec<Node>, start: &str) {
        nodes.retain(|node| !node.text.starts_with(start));
        let inner = nodes.iter_mut().filter_map(|node| node.children.as_mut());
        inner.for_each(|nodes| drop_lines(nodes, start));
    }
    let has_intercept = nodes.iter().any(|node| node.text.starts_with("proxy_intercept_errors on"));
    let has = |start: &str| nodes.iter().any(|node| node.text.starts_with(start));
    let starts = [
        ("proxy_pass_request_body ", "proxy_set_header "),
        ("proxy_cache_convert_head ", "proxy_cache_key "),
    ];
    for (_, start) in starts.into_iter().filter(|(name, _)| has(name)).collect::<Vec<_>>() {
        let inner = nodes.iter_mut().filter_map(|node| node.children.as_mut());
        inner.for_each(|nodes| drop_lines(nodes, start));
    }
    // Of an answer that an error's page replaces nginx stores the status alone, which other locations then answer with.
    if render(nodes, 0).contains("proxy_cache z") {
        for inner in nodes.iter_mut().filter_map(|node| node.children.as_mut()) {
            drop_lines(inner, "proxy_intercept_errors ");
            if has_intercept {
                drop_lines(inner, "error_page ");
            }
        }
    }
}

/// A peer that failed is not asked again while the scene lasts: when it would be is a matter of how fast the machine is.
fn upstream(rng: &mut Rng, name: &str) -> Node {
    let mut lines = vec![line(pick(
        rng,
        &[
            "server 127.0.0.1:$a fail_timeout=60s",
            "server 127.0.0.1:$a weight=2 fail_timeout=60s",
            "server 127.0.0.1:$a max_fails=0",
        ],
    ))];
    for server in [
        "server 127.0.0.1:$b fail_timeout=60s",
        "server 127.0.0.1:$b backup fail_timeout=60s",
        "server 127.0.0.1:$b max_fails=2 fail_timeout=60s",
        "server 127.0.0.1:$dead fail_timeout=60s",
        "server 127.0.0.1:$dead max_fails=0",
        "server 127.0.0.1:$dead down",
    ] {
        let port = server.split(' ').nth(1);
        if is_drawn(rng, 25) && !lines.iter().any(|line| line.text.split(' ').nth(1) == port) {
            lines.push(line(server));
        }
    }
    let is_hashed = is_drawn(rng, 15);
    if is_hashed && !lines.iter().any(|line| line.text.contains("backup")) {
        lines.insert(0, line(pick(rng, &["hash $uri", "ip_hash", "least_conn"])));
    }
    lines.push(line(pick(rng, &["keepalive 1", "keepalive 4"])));
    block(format!("upstream {name}"), lines)
}

fn location(rng: &mut Rng, path: &str) -> Node {
    let mut inner: Vec<_> = (0..rng.usize(..5)).map(|_| setting(rng)).collect();
    let is_prefix = path.starts_with('/') || path.starts_with('=');
    let pass = match rng.u32(..9) {
        0..=4 => "proxy_pass http://one",
        5 => "proxy_pass http://two",
        6 if is_prefix => "proxy_pass http://one/up/",
        7 => "proxy_pass http://127.0.0.1:$a",
        8 => "proxy_pass http://two$request_uri",
        _ => "proxy_pass http://two",
    };
    inner.push(line(pass));
    if path == "@n" {
        // nginx looks at an announced length only where a location is found by its path.
        inner.retain(|node| !node.text.starts_with("client_max_body_size "));
    }
    once(&mut inner);
    block(format!("location {path}"), inner)
}

/// Leaves the first of what can stand once only.
fn once(nodes: &mut Vec<Node>) {
    let mut seen: Vec<String> = Vec::new();
    nodes.retain(|node| {
        let name = node.text.split(' ').next().unwrap_or_default().to_owned();
        // Of `error_page` and its kind the same status may stand twice, too.
        let is_many = matches!(
            &*name,
            "add_header"
                | "error_page"
                | "proxy_cache_valid"
                | "map"
                | "server"
                | "listen"
                | "location"
                | "proxy_set_header"
        );
        let is_new = !seen.contains(&name) || (is_many && !seen.contains(&node.text));
        seen.push(name);
        seen.push(node.text.clone());
        is_new
    });
}

/// What stands outside of all servers, or nowhere: what is applied when a page is stored would differ between
/// blocks that share pages.
const FOR_ALL: &[&str] = &[
    "proxy_pass_request_body off; proxy_set_header Content-Length \"\"; proxy_set_header Connection \"\"",
    "proxy_cache_convert_head off; proxy_cache_key $request_method$request_uri",
    "proxy_hide_header Content-Type",
    "proxy_redirect / /red/",
    "proxy_cookie_path / /cookie",
];

/// Not among them, as they are known to differ: `proxy_buffering off` (answers are stored all the same), and `$upstream_http_…` (of a
/// stored answer nginx has those that are hidden, too).
const SETTINGS: &[&str] = &[
    "proxy_cache z",
    "proxy_cache z",
    "proxy_cache z",
    "proxy_cache off",
    "proxy_cache_valid 200 302 2s",
    "proxy_cache_valid 404 500 1m",
    // What a server says for itself when no peer answers is stored by nginx only.
    "proxy_cache_valid 502 504 0; proxy_cache_valid any 1h",
    "proxy_cache_valid 200 0",
    "proxy_cache_valid 2s",
    "proxy_cache_min_uses 2",
    "proxy_cache_min_uses 3",
    "proxy_cache_bypass $bypass",
    "proxy_cache_bypass $arg_b $http_x_a",
    "proxy_no_cache $arg_n",
    "proxy_no_cache $http_x_a $bypass",
    "proxy_cache_use_stale error timeout invalid_header",
    "proxy_cache_use_stale http_500 http_502 http_503 http_404",
    "proxy_cache_use_stale http_403 http_429 error",
    "proxy_cache_use_stale off",
    "proxy_cache_revalidate on",
    "proxy_cache_lock on",
    "proxy_cache_methods POST",
    "proxy_cache_key $uri",
    "proxy_cache_key $scheme$host$request_uri",
    "proxy_cache_key $request_method$request_uri$http_x_a",
    "proxy_ignore_headers Cache-Control Expires",
    "proxy_ignore_headers Set-Cookie Vary",
    "proxy_ignore_headers X-Accel-Expires X-Accel-Redirect",
    "proxy_cache_max_range_offset 2",
    "proxy_force_ranges on",
    "proxy_next_upstream error timeout",
    "proxy_next_upstream http_500 http_502",
    "proxy_next_upstream error http_404 http_403 non_idempotent",
    "proxy_next_upstream error invalid_header http_503",
    "proxy_next_upstream off",
    "proxy_next_upstream_tries 2",
    "proxy_next_upstream_tries 1",
    "proxy_intercept_errors on",
    "error_page 404 500 502 503 =200 /file/b.html",
    "error_page 502 504 @n",
    "error_page 404 = @n",
    "error_page 500 /file/nix.html",
    "error_page 413 /file/b.html",
    "error_page 405 403 =302 /moved",
    "recursive_error_pages on",
    "proxy_request_buffering off",
    "client_max_body_size 3000",
    "client_max_body_size 0",
    "client_body_in_single_buffer on",
    "client_body_in_file_only clean",
    "proxy_http_version 1.0",
    "proxy_set_header Connection close",
    "proxy_set_header X-A \"$http_x_a+\"; proxy_set_header Connection \"\"",
    "proxy_set_header Host $host; proxy_set_header Connection \"\"",
    "proxy_method POST",
    "proxy_ignore_client_abort on",
    "proxy_max_temp_file_size 0",
    "proxy_buffer_size 1k",
    "add_header X-S \"$status $upstream_cache_status\"",
    "expires 1h",
    "etag off",
    "max_ranges 1",
    "keepalive_timeout 0",
    "keepalive_requests 2",
];

fn setting(rng: &mut Rng) -> Node {
    line(pick(rng, SETTINGS))
}

/// What the origin is told, see there.
const WORDS: &[&str] = &[
    "s404",
    "s500",
    "s500-200",
    "s200-500",
    "s200-404-200",
    "s302",
    "s204",
    "s403",
    "s503-200",
    "s502",
    "cc60",
    "cc2",
    "cc0",
    "xae2",
    "xae0",
    "xae60",
    "exp60",
    "exp2",
    "private",
    "nostore",
    "cookie",
    "vary",
    "etag",
    "lm",
    "loc",
    "len9000",
    "len0",
    "chunk",
    "eof",
    "close",
    "redirect",
    "ranges",
];

/// `breaks`: answers may be broken. All connections to the origin are closed then: a request that was sent over a kept one is sent
/// again, which nginx counts otherwise, and does for half a head as well.
fn target(rng: &mut Rng, breaks: bool, bounds: Bounds) -> String {
    let path = pick(rng, &["/", "/c/a", "/d/a", "/a.x", "/c/a", "/only", "/c/b.x"]);
    let mut words: Vec<&str> = Vec::new();
    for _ in 0..rng.usize(..5) {
        words.push(pick(rng, WORDS));
    }
    if bounds.stores && (bounds.forces_ranges || words.contains(&"ranges")) {
        words.retain(|word| !matches!(*word, "chunk" | "eof"));
    }
    // nginx cuts pieces of what an answer redirects to that it could have stored itself.
    if bounds.stores && (is_not_for_all(&words) || words.contains(&"redirect")) {
        words.retain(|word| *word != "ranges");
    }
    if breaks {
        words.push(pick(rng, &["torn", "mute", "half", "lm", "etag"]));
        words.push("close");
    }
    format!("{path}?o={}", words.join(","))
}

/// Whether the answer itself says that it is not to be stored. Where it might have been, nginx makes neither pieces nor a 304
/// of it, and does not let the upstream do so.
fn is_not_for_all(words: &[&str]) -> bool {
    let is_one = |word: &&str| ["cc0", "xae0", "private", "nostore", "cookie"].contains(word);
    words.iter().any(is_one)
}

const FIELDS: &[&str] = &[
    "X-A: 1",
    "X-A: 2",
    "Range: bytes=0-3",
    "Range: bytes=3-",
    "If-None-Match: \"e\"",
    "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT",
    "Cookie: c=d",
    "Cache-Control: no-cache",
    "Pragma: no-cache",
];

/// Of what the requests of a scene are made.
struct Asking {
    targets: Vec<String>,
    bounds: Bounds,
}

impl Asking {
    fn one(&self, rng: &mut Rng, is_h2: bool) -> Asked {
        let mut target = self.targets[rng.usize(..self.targets.len())].clone();
        target.push_str(pick(rng, &["", "", "", "", "&b=1", "&b=no", "&n=1", "&h=3"]));
        let method = pick(rng, &["GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "PUT"]);
        let method =
            ["GET", "HEAD", "POST", "PUT"].into_iter().find(|it| *it == method).unwrap_or("GET");
        let mut fields: Vec<&'static str> = Vec::new();
        if is_drawn(rng, 35) {
            let field = FIELDS[rng.usize(..FIELDS.len())];
            let query = target.split_once("o=").map_or("", |(_, rest)| rest);
            let words: Vec<_> = query.split([',', '&']).collect();
            let is_condition = field.starts_with("If-");
            let is_passed_by = (is_condition || field.starts_with("Range"))
                && self.bounds.stores
                && is_not_for_all(&words);
            // Of other methods it is known to differ.
            if !is_passed_by && (!is_condition || matches!(method, "GET" | "HEAD")) {
                fields.push(field);
            }
        }
        let has_content = matches!(method, "POST" | "PUT");
        let lengths =
            if self.bounds.long_content { [0, 3, 900, 2000, 5000] } else { [0, 3, 30, 100, 300] };
        let length = if has_content { lengths[rng.usize(..5)] } else { 0 };
        // Over HTTP/2 it is on its own.
        let length = if is_h2 && !self.bounds.long_content { 0 } else { length };
        let hosts =
            ["localhost", "localhost", "b.test", "x.w.test", "r1.test", "c.org", "nix.test"];
        let version = if !is_h2 && is_drawn(rng, 15) { "1.0" } else { "1.1" };
        Asked {
            method,
            target,
            version,
            host: hosts[rng.usize(..hosts.len())],
            fields,
            content: b"0123456789".iter().copied().cycle().take(length).collect(),
            is_chunked: version == "1.1" && !is_h2 && has_content && is_drawn(rng, 30),
        }
    }
}

impl Asked {
    /// As HTTP/1 has it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { method, target, version, host, .. } = self;
        let mut text = format!("{method} {target} HTTP/{version}\r\nHost: {host}\r\n");
        for field in &self.fields {
            text.push_str(field);
            text.push_str("\r\n");
        }
        let has_content = matches!(*method, "POST" | "PUT");
        match (has_content, self.is_chunked) {
            (true, true) => text.push_str("Transfer-Encoding: chunked\r\n"),
            (true, false) => text.push_str(&format!("Content-Length: {}\r\n", self.content.len())),
            _ => {}
        }
        let mut bytes = format!("{text}\r\n").into_bytes();
        if !self.is_chunked {
            bytes.extend_from_slice(&self.content);
            return bytes;
        }
        for piece in self.content.chunks(700) {
            bytes.extend(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }
}
