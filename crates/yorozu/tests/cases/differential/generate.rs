//! Configurations and requests, drawn at random from what people write and from what breaks servers.

use fastrand::Rng;
use std::fmt::Write as _;

/// A directive, or a block of them.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) text: String,
    pub(crate) children: Option<Vec<Node>>,
}

pub(crate) fn line(text: impl Into<String>) -> Node {
    Node { text: text.into(), children: None }
}

pub(crate) fn block(text: impl Into<String>, children: Vec<Node>) -> Node {
    Node { text: text.into(), children: Some(children) }
}

/// As a configuration has it.
pub(crate) fn render(nodes: &[Node], depth: usize) -> String {
    let mut text = String::new();
    for node in nodes {
        let _ = write!(text, "{:1$}{2}", "", depth * 4, node.text);
        match &node.children {
            None => text.push_str(";\n"),
            Some(children) => {
                let _ =
                    write!(text, " {{\n{}{:2$}}}\n", render(children, depth + 1), "", depth * 4);
            }
        }
    }
    text
}

/// One of several.
pub(crate) fn pick<'t>(rng: &mut Rng, of: &[&'t str]) -> &'t str {
    of[rng.usize(..of.len())]
}

pub(crate) fn is_drawn(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}

/// Files below `html`, in every configuration.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("index.html", "root index"),
    ("a/index.html", "index of a"),
    ("a/b.html", "b in a: 0123456789"),
    ("a/x.php", "<?php a"),
    ("b", "a file named b"),
    ("c d.txt", "with a space"),
    ("err.html", "error page"),
    ("dir/one.txt", "one"),
    ("dir/.hidden", "hidden"),
    ("e%25f", "percent"),
    ("sub/a/b.html", "b in sub"),
    ("ssi.html", "s<!--#echo var='arg_a' -->i<!--#include virtual='/a/b.html' -->"),
];

/// What stands in `http {}` behind the server's `listen`.
pub(crate) fn configuration(rng: &mut Rng) -> Vec<Node> {
    let mut nodes = vec![
        line("server_tokens off"),
        line("absolute_redirect off"),
        line("default_type text/plain"),
        block("types", vec![line("text/html html"), line("text/css css")]),
        block(
            "map $arg_a $mapped",
            vec![
                line("default none"),
                line("1 one"),
                line("~^b(.)(?P<named>.*)$ \"$1-$named\""),
                line("'' empty"),
            ],
        ),
        block("geo $arg_ip $where", vec![line("default out"), line("10.0.0.0/8 in")]),
    ];
    if is_drawn(rng, 20) {
        nodes.push(some_setting(rng));
    }
    let mut server =
        vec![line("listen 127.0.0.1:$port"), line("server_name localhost"), line("root $files")];
    let count = rng.usize(..3);
    server.extend((0..count).map(|_| some_setting(rng)));
    if is_drawn(rng, 15) {
        server.push(some_script(rng, false));
    }
    server.extend(locations(rng, "", 0));
    if is_drawn(rng, 60) {
        server.push(block("location @n", body(rng, "@n")));
    }
    nodes.push(block("server", server));
    let echo = "return 200 \"$request_method $request_uri $http_x_a $http_host $content_length\"";
    nodes.push(block(
        "server",
        vec![
            line("listen 127.0.0.1:$second"),
            block("location /status/", vec![line("return 404 missing")]),
            block(
                "location /html",
                vec![line("default_type text/html"), line("return 200 \"<a> $request_uri\"")],
            ),
            block(
                "location /move",
                vec![line("return 302 http://127.0.0.1:$second/there$is_args$args")],
            ),
            block("location /", vec![line(echo)]),
        ],
    ));
    nodes
}

fn locations(rng: &mut Rng, outer: &str, depth: usize) -> Vec<Node> {
    const NAMES: [&str; 14] = [
        "/",
        "/a",
        "/a/",
        "= /a",
        "= /",
        "^~ /a/",
        "/b",
        "= /b",
        "~ \\.php$",
        "~* ^/(.)(.*)$",
        "/dir",
        "/sub/",
        "~ ^/a/(?<rest>.+)$",
        "/e%25",
    ];
    let mut used: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    let count = if depth == 0 { rng.usize(1..6) } else { rng.usize(..2) };
    for _ in 0..count {
        let name = pick(rng, &NAMES);
        let path = name.rsplit(' ').next().unwrap_or(name);
        let is_regex = name.starts_with('~');
        // `^~ /a/` and `/a/` are one.
        let same = |used: &&str| {
            let key = |name: &str| {
                (name.starts_with('='), name.trim_start_matches(['^', '~', '=', ' ']).to_owned())
            };
            key(used) == key(name)
        };
        if used.iter().any(same) || (!is_regex && !path.starts_with(outer)) {
            continue;
        }
        used.push(name);
        let mut inner = body(rng, path);
        if depth < 1 && !name.starts_with('=') && !is_regex && is_drawn(rng, 25) {
            inner.extend(locations(rng, path, depth + 1));
        }
        found.push(block(format!("location {name}"), inner));
    }
    found
}

/// What stands in a location.
fn body(rng: &mut Rng, path: &str) -> Vec<Node> {
    let mut nodes = Vec::new();
    let count = rng.usize(..4);
    nodes.extend((0..count).map(|_| some_setting(rng)));
    let scripts = rng.usize(..3);
    if is_drawn(rng, 40) {
        nodes.extend((0..scripts).map(|_| some_script(rng, true)));
    }
    match rng.u32(..12) {
        0 => nodes.push(line(format!("try_files {}", tries(rng)))),
        1 => nodes.push(line(format!("return {}", answer(rng)))),
        2 if path.starts_with('/') => {
            let alias = pick(rng, &["$files/sub/", "$files/a/"]);
            nodes.push(line(format!("alias {alias}")));
        }
        3 if path.starts_with('/') => {
            let uri = pick(rng, &["", "/", "/x", "/x/", "/status/", "/move", "/html"]);
            nodes.push(line(format!("proxy_pass http://127.0.0.1:$second{uri}")));
        }
        4 => {
            let uri = pick(rng, &["$request_uri", "/v$request_uri", "/status$request_uri", ""]);
            nodes.push(line(format!("proxy_pass http://127.0.0.1:$second{uri}")));
        }
        5 => nodes.push(line("autoindex on")),
        6 => nodes.push(line("empty_gif")),
        _ => {}
    }
    // What can stand once only.
    let mut seen: Vec<String> = Vec::new();
    nodes.retain(|node| {
        let name = node.text.split(' ').next().unwrap_or_default().to_owned();
        let is_many = matches!(
            &*name,
            "if" | "set"
                | "rewrite"
                | "return"
                | "add_header"
                | "error_page"
                | "allow"
                | "deny"
                | "sub_filter"
                | "break"
                | "proxy_redirect"
        );
        let is_new = is_many || !seen.contains(&name);
        // nginx looks at an announced length only where a location is found by its path.
        let is_known_to_differ = path == "@n" && name == "client_max_body_size";
        seen.push(name);
        is_new && !is_known_to_differ
    });
    nodes
}

// `$uri` would bring a space into a query, which is escaped where nginx passes it on and is refused by its next server.
fn tries(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.usize(1..3) {
        let file = pick(
            rng,
            &["$uri", "$uri/", "/b", "/nix", "$uri.html", "/a$uri", "/c\\ d.txt", "/dir/"],
        );
        text.push_str(file);
        text.push(' ');
    }
    text.push_str(pick(
        rng,
        &[
            "=404",
            "=403",
            "@n",
            "/err.html",
            "/a/b.html?x=$request_uri",
            "/index.html?q=$args&$args",
        ],
    ));
    text
}

fn answer(rng: &mut Rng) -> &'static str {
    pick(
        rng,
        &[
            "200 \"u=$uri|a=$args|r=$request_uri|d=$document_uri|m=$mapped|w=$where|1=$1|n=$arg_n|c=$cookie_c|i=$is_args\"",
            "200 \"f=$request_filename|dr=$document_root|rr=$realpath_root|s=$status|sc=$scheme\"",
            "301 /moved$uri",
            "302 /there?$args",
            "307 http://example.com$request_uri",
            "403",
            "404",
            "404 none",
            "500",
            "503 busy",
            "204",
            "444",
            "405",
            "http://localhost/x",
        ],
    )
}

/// A directive of the rewrite module.
fn some_script(rng: &mut Rng, is_in_location: bool) -> Node {
    let condition = |rng: &mut Rng| {
        pick(
            rng,
            &[
                "$arg_a",
                "$arg_a = 1",
                "$arg_a != 1",
                "$uri ~ ^/(a|b)",
                "$uri !~* \\.HTML$",
                "$request_method = POST",
                "-f $request_filename",
                "!-e $request_filename",
                "-d $request_filename",
                "$http_x_a",
                "$mapped = one",
                "$host = localhost",
                "$http_cookie ~* \"c=(\\w+)\"",
            ],
        )
    };
    let simple = |rng: &mut Rng| match rng.u32(..8) {
        0..=3 => {
            let (from, to) = (
                pick(
                    rng,
                    &["^", "^/a(.*)$", "^/(.*)\\.html$", "(.*)", "^/b$", "/", "^/old/(.*)/?$"],
                ),
                pick(
                    rng,
                    &[
                        "/b",
                        "/a/b.html",
                        "/a/$1",
                        "/x$1?y=1",
                        "/z?$args",
                        "/z?q=$1?",
                        "/dir/",
                        "$uri/",
                        "http://example.com$uri",
                        "/e%25f",
                    ],
                ),
            );
            let flag = pick(rng, &["", " last", " break", " redirect", " permanent"]);
            line(format!("rewrite {from} {to}{flag}"))
        }
        4 => line("break"),
        5 => line(format!("set $s{} \"$uri-$1\"", rng.u32(..2))),
        6 => line(format!("set $args {}", pick(rng, &["\"\"", "z=1", "$args&more=1"]))),
        _ => line(format!("return {}", answer(rng))),
    };
    if !is_drawn(rng, 45) {
        return simple(rng);
    }
    let head = format!("if ({})", condition(rng));
    let mut inner = vec![simple(rng)];
    if is_in_location && is_drawn(rng, 25) {
        inner = vec![line(pick(
            rng,
            &[
                "add_header X-If yes",
                "root $files/sub",
                "expires 1h",
                "error_page 404 /err.html",
                "default_type text/css",
            ],
        ))];
    }
    block(head, inner)
}

const SETTINGS: &[&str] = &[
    "add_header X-A \"$uri $status\"",
    "add_header X-B b always",
    "add_header Cache-Control private",
    "expires 10m",
    "expires -1",
    "expires epoch",
    "expires max",
    "error_page 404 /err.html",
    "error_page 404 =200 /a/b.html",
    "error_page 404 = @n",
    "error_page 403 404 500 /err.html?e=$request_uri",
    "error_page 405 =200 $uri",
    "error_page 404 http://example.com/404",
    "error_page 403 =301 /moved",
    "recursive_error_pages on",
    "root $files/sub",
    "index nix.html index.html",
    "index b.html /index.html",
    "internal",
    "autoindex on",
    "autoindex_format json",
    "etag off",
    "if_modified_since off",
    "if_modified_since before",
    "max_ranges 1",
    "max_ranges 0",
    "merge_slashes on",
    "log_not_found off",
    "deny all",
    "allow 127.0.0.1",
    "satisfy any",
    "auth_basic closed",
    "charset utf-8",
    "sub_filter index INDEX",
    "sub_filter_types *",
    "ssi on",
    "gzip on",
    "gzip_vary on",
    "proxy_intercept_errors on",
    "proxy_redirect off",
    "proxy_redirect http://127.0.0.1:$second/ /r/",
    "proxy_set_header X-A \"[$uri]\"",
    "proxy_set_header Host $host",
    "proxy_http_version 1.1",
    "proxy_pass_request_headers off",
    "proxy_method GET",
    "proxy_set_body \"$request_uri\"",
    "limit_rate 1m",
    "port_in_redirect off",
    "client_max_body_size 3",
    "add_trailer X-T t",
    "chunked_transfer_encoding off",
    "random_index off",
    "msie_padding off",
    "types { }",
];

/// A setting that says how something is answered.
fn some_setting(rng: &mut Rng) -> Node {
    line(pick(rng, SETTINGS)).fixed()
}

impl Node {
    /// `types { }` is a block.
    fn fixed(self) -> Self {
        match self.text.strip_suffix(" { }") {
            Some(name) => block(name, Vec::new()),
            None => self,
        }
    }
}

/// Of these paths are put together.
const PIECES: &[&str] = &[
    "/",
    "/a",
    "/b",
    "/..",
    "/.",
    "//",
    "/a/",
    "/index.html",
    "/%61",
    "/dir",
    "/x.php",
    "/c%20d.txt",
    "/b.html",
    "/%2e%2e",
    "/e%2525f",
    "/sub",
];

/// Whole paths.
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/",
    "/b",
    "/a/b.html",
    "/a/x.php",
    "/dir",
    "/dir/",
    "/nix",
    "/nix/",
    "/index.html",
    "/c%20d.txt",
    "/err.html",
    "/sub/a/b.html",
    "/ssi.html",
    "/old/x/",
    "/a/../b",
    "/a//b.html",
    "/A/B.HTML",
    "/dir/one.txt",
    "/b/",
    "/e%2525f",
];

/// What follows a path.
const QUERIES: &[&str] =
    &["?a=1", "?a=bxy", "?", "?a", "?n=%41&a=", "?ip=10.1.1.1", "?a=1?b", "?x&a=1#f"];

/// Field lines.
const FIELDS: &[&str] = &[
    "Range: bytes=0-3",
    "Range: bytes=-2",
    "Range: bytes=2-",
    "Range: bytes=0-1,3-4",
    "Range: bytes=900-",
    "If-None-Match: *",
    "If-None-Match: \"x\"",
    "If-Modified-Since: Thu, 01 Jan 2037 00:00:00 GMT",
    "If-Modified-Since: x",
    "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT",
    "If-Match: \"x\"",
    "X-A: v",
    "Cookie: c=d; e=f",
    "Accept-Encoding: gzip",
    "Referer: http://localhost/",
    "Authorization: Basic YTpi",
    "User-Agent: fuzz",
];

/// A request as a client sends it.
pub(crate) fn request(rng: &mut Rng) -> Vec<u8> {
    let method = match rng.u32(..10) {
        0..=6 => "GET",
        7 => "HEAD",
        8 => "POST",
        _ => pick(rng, &["PUT", "DELETE", "OPTIONS", "GET"]),
    };
    let mut target = String::new();
    match rng.u32(..3) {
        0 => {
            for _ in 0..rng.usize(1..4) {
                let piece = pick(rng, PIECES);
                target.push_str(piece);
            }
        }
        _ => target.push_str(pick(rng, PATHS)),
    }
    if is_drawn(rng, 40) {
        target.push_str(pick(rng, QUERIES));
    }
    let version = if is_drawn(rng, 15) { "1.0" } else { "1.1" };
    let mut text =
        format!("{method} {target} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n");
    for _ in 0..rng.usize(..3) {
        let field = pick(rng, FIELDS);
        let name = field.split(':').next().unwrap_or_default();
        // Listed under "differs from nginx": conditions of other methods, times beside tags.
        let is_condition = name.starts_with("If-");
        if is_condition && (!matches!(method, "GET" | "HEAD") || text.contains("\r\nIf-")) {
            continue;
        }
        if !text.contains(&format!("\r\n{name}:")) {
            let _ = write!(text, "{field}\r\n");
        }
    }
    let content =
        if matches!(method, "POST" | "PUT") { pick(rng, &["", "abc", "longer"]) } else { "" };
    if !content.is_empty() || method == "POST" {
        let _ = write!(text, "Content-Length: {}\r\n", content.len());
    }
    let _ = write!(text, "\r\n{content}");
    text.into_bytes()
}
