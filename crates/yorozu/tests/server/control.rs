//! The control socket and the purge API: how much they take at once, and which clients may ask.

use crate::shared::{BINARY, cpu, get, log, pages, run, yorozu};
use std::process::Command;
use std::time::Duration;
use yorozu_testkit::client::{Answer, Client};
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Server};

const TOKEN: &str = "0123456789abcdef0123";

/// A site whose pages are cached, and purged by an API in a location that allows small bodies only.
fn site(folder: &Folder) -> Server {
    let http = format!(
        "fastcgi_cache_path $dir/cache keys_zone=z:1m; fastcgi_cache_key $request_uri; client_max_body_size 1k;
        server {{ listen 127.0.0.1:$port; server_name a; add_header X-Cache $upstream_cache_status;
        location / {{ fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
            fastcgi_pass $origin; fastcgi_cache z; fastcgi_cache_valid 200 1h; }}
        location = /.purge {{ cache_purge_api token={TOKEN}; }}
        location = /.mirrored {{ client_max_body_size 1m; mirror /none; cache_purge_api token={TOKEN}; }}
        location = /none {{ internal; return 204; }} }}"
    );
    Server::start(&yorozu(), folder.path(), &http)
}

fn store(server: &Server, path: &str) {
    let cached = |answer: Answer| answer.field("x-cache");
    crate::shared::until("the page", || {
        get(server.port, path).and_then(cached).as_deref() == Some("HIT")
    });
}

fn is_stored(server: &Server, path: &str) -> bool {
    get(server.port, path).unwrap().field("x-cache").as_deref() == Some("HIT")
}

fn post(server: &Server, path: &str, framing: &str, content: &[u8]) -> Answer {
    let mut client = Client::connect(server.port);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n{framing}\r\n\r\n"
    );
    client.send(head.as_bytes());
    client.send(content);
    // Ten thousand purges take a busy machine more than a client's usual patience.
    client.sees("\r\n\r\n", Duration::from_secs(600));
    client.answer(false).unwrap()
}

/// A batch of `count` purges, the last of which is of `path`.
fn batch(count: usize, path: &str) -> String {
    let mut urls: Vec<String> =
        (1..count).map(|number| format!("/a-page-of-the-site/%E3%81%82/{number}")).collect();
    urls.push(path.to_owned());
    format!("{{\"urls\":[\"{}\"]}}", urls.join("\",\""))
}

#[test]
fn batches_of_every_size_purge_whatever_the_buffers() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let server = site(&folder);
    for (path, count) in
        [("/.purge", 1), ("/.purge", 400), ("/.purge", 10_000), ("/.mirrored", 400)]
    {
        store(&server, "/old");
        let text = batch(count, "/old");
        let before = cpu(&server);
        let answer =
            post(&server, path, &format!("Content-Length: {}", text.len()), text.as_bytes());
        let said = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, 200, "{count}: {said}");
        assert!(said.contains("\"purged\":1"), "{count}: {said}");
        assert!(!is_stored(&server, "/old"), "{path}, {count} purges");
        // Not a millisecond and more for each.
        let took = cpu(&server) - before;
        assert!(took < Duration::from_secs(60), "{count}: {took:?}");
    }
    store(&server, "/old");
    let text = batch(400, "/old");
    let chunked = format!("{:x}\r\n{text}\r\n0\r\n\r\n", text.len());
    let answer = post(&server, "/.purge", "Transfer-Encoding: chunked", chunked.as_bytes());
    assert_eq!(answer.status, 200);
    assert!(!is_stored(&server, "/old"));
}

#[test]
fn what_is_too_much_is_refused_with_a_line() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let server = site(&folder);
    store(&server, "/old");
    let text = batch(10_001, "/old");
    let answer =
        post(&server, "/.purge", &format!("Content-Length: {}", text.len()), text.as_bytes());
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 400 && said.contains("more than the 10000 purges"), "{said}");
    let answer = post(&server, "/.purge", "Content-Length: 100000000", b"{");
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 413 && said.contains("8388608 bytes"), "{} {said}", answer.status);
    assert!(log(&folder).contains("purge refused: the content is longer than 8388608 bytes"));
    let piece = "x".repeat(1 << 20);
    let chunked = format!("{:x}\r\n{piece}\r\n", piece.len()).repeat(9);
    let answer = post(&server, "/.purge", "Transfer-Encoding: chunked", chunked.as_bytes());
    assert_eq!(answer.status, 413);
    assert!(is_stored(&server, "/old"));
}

#[test]
fn json_bombs_are_refused_and_cost_little() {
    let folder = Folder::new();
    let server = site(&folder);
    let peak = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.serving_id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let long = 7 << 20;
    let bombs = [
        "[".repeat(long),
        "{\"urls\":".repeat(long / 8),
        format!("{{\"tags\":[{}]}}", vec!["\"\""; long / 3].join(",")),
        format!("{{\"tags\":[{}]}}", vec!["0"; long / 2].join(",")),
        format!("[{}]", vec!["{\"all\":true}"; long / 13].join(",")),
        format!("{{{}}}", vec!["\"soft\":true"; long / 12].join(",")),
        format!("{{\"all\":{}}}", "9".repeat(long)),
        format!("{{\"{}\":1}}", "y".repeat(long)),
    ];
    let before = peak();
    for bomb in bombs {
        let cpu_before = cpu(&server);
        let framing = format!("Content-Length: {}", bomb.len());
        let answer = post(&server, "/.purge", &framing, bomb.as_bytes());
        let start = &bomb[..20];
        assert_eq!(answer.status, 400, "{start}");
        assert!(answer.body.len() < 2000, "{start}: {} bytes", answer.body.len());
        let took = cpu(&server) - cpu_before;
        assert!(took < Duration::from_secs(60), "{start}: {took:?}");
    }
    // The content, the buffer it grew in, one string of it: not a value for each of its bytes.
    let grown = peak() - before;
    assert!(grown < 48 << 10, "{grown} KB");
}

#[test]
fn the_shell_purges_as_much_as_a_command_line_takes() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let server = site(&folder);
    for count in [400, 10_000] {
        store(&server, "/old");
        let url = |number: usize| format!("http://a:{}/a-page-of-the-site/{number}", server.port);
        let output = Command::new(BINARY)
            .args(["-p".as_ref(), folder.path().as_os_str(), "-c".as_ref(), "nginx.conf".as_ref()])
            .args(["purge", "--json"])
            .args((1..count).map(url))
            .arg(format!("http://a:{}/old", server.port))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && text.contains("\"purged\":1"), "{count}: {text}");
        assert!(!is_stored(&server, "/old"), "{count} purges");
    }
    let much = Command::new(BINARY)
        .args(["-p".as_ref(), folder.path().as_os_str(), "-c".as_ref(), "nginx.conf".as_ref()])
        .args(["cache", "explain", "-H", &format!("X-Much: {}", "x".repeat(20_000))])
        .arg(format!("http://a:{}/old", server.port))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&much.stderr).into_owned();
    assert!(text.contains("too long header line") || text.contains("header"), "{text}");
}

/// Behind a proxy that terminates TLS nothing here speaks https, and its pages are purged, warmed and explained all the same.
#[test]
fn urls_of_https_are_known_behind_a_terminator() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let http = format!(
        "fastcgi_cache_path $dir/cache keys_zone=z:1m; fastcgi_cache z; fastcgi_cache_valid 200 1h;
        fastcgi_cache_key $scheme$host$request_uri; fastcgi_param REQUEST_METHOD $request_method;
        fastcgi_param REQUEST_URI $request_uri; add_header X-Cache $upstream_cache_status;
        server {{ listen 127.0.0.1:$port; server_name a;
            location / {{ fastcgi_pass $origin; }}
            location = /.purge {{ cache_purge_api token={TOKEN}; }} }}
        server {{ listen 127.0.0.1:$port; server_name trusting; set_real_ip_from 127.0.0.1;
            real_ip_header X-Forwarded-For; real_ip_scheme X-Forwarded-Proto;
            location / {{ fastcgi_pass $origin; fastcgi_cache_purge PURGE from all; }} }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    let asked = |method: &str, host: &str| {
        let mut client = Client::connect(server.port);
        let head =
            format!("{method} /x HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-Proto: https\r\n\r\n");
        client.send(head.as_bytes());
        client.answer(false).unwrap()
    };
    let state = |host| asked("GET", host).field("x-cache").unwrap();
    for host in ["a", "trusting"] {
        let url = format!("https://{host}/x");
        let scheme_less = format!("//{host}/x");
        for url in [&url, &scheme_less] {
            state(host);
            assert_eq!(state(host), "HIT", "{host}");
            let (is_done, said) = run(&folder, &["purge", url]);
            assert!(is_done, "{said}");
            assert_eq!(state(host), "MISS", "{url}");
        }
        run(&folder, &["purge", &url]);
        let (is_done, said) = run(&folder, &["warm", "--no-codings", &url]);
        assert!(is_done && said.contains("1 made"), "{said}");
        assert_eq!(state(host), "HIT", "{host} was warmed");
        let (_, said) = run(&folder, &["cache", "explain", &url]);
        assert!(said.contains("HIT"), "{said}");
    }
    assert_eq!(asked("PURGE", "trusting").status, 200);
    assert_eq!(state("trusting"), "MISS");
    let warm = ["warm", "--no-codings", "-H", "CF-Visitor: {\"scheme\":\"https\"}", "http://a/x"];
    let (is_done, said) = run(&folder, &warm);
    assert!(is_done && said.contains("1 made"), "{said}");
}
