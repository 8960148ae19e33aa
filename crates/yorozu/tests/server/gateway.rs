//! Gateways: clients that go away, large answers, uploads, one run for many.

use crate::shared::{CACHED, files, get, log, page, pages, until, yorozu};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Server, free_port};

#[test]
fn one_php_run_for_any_number_of_clients_with_a_lock() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), |request| {
        std::thread::sleep(Duration::from_millis(300));
        pages(request)
    });
    let http = CACHED.replace("fastcgi_cache z;", "fastcgi_cache z; fastcgi_cache_lock on;");
    let server = Server::start(&yorozu(), folder.path(), &http);
    std::thread::scope(|scope| {
        for _ in 0..100 {
            let port = server.port;
            scope.spawn(move || {
                assert_eq!(get(port, "/hot").unwrap().body, page("/hot").as_bytes());
            });
        }
    });
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_client_that_goes_away_is_noticed_and_logged() {
    let folder = Folder::new();
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    let origin = Origin::start_with(folder.path(), |request| {
        until("the log line", || IS_LOGGED.load(Ordering::Relaxed));
        pages(request)
    });
    let http = "server { listen 127.0.0.1:$port; access_log $dir/logs/a.log;
        location / { fastcgi_param REQUEST_URI $request_uri; fastcgi_pass $origin; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let mut client = Client::connect(server.port);
    client.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    until("the request", || origin.seen().len() == 1);
    drop(client);
    until("the line", || {
        fs::read_to_string(folder.path().join("logs/a.log")).unwrap().contains("\" 499 ")
    });
    IS_LOGGED.store(true, Ordering::Relaxed);
}

#[test]
fn a_page_that_includes_without_end_is_made_to_an_end() {
    let folder = Folder::new();
    let page = "x<!--# include virtual=\"/two.html\" --><!--# include virtual=\"/two.html\" -->";
    fs::write(folder.path().join("html/two.html"), page).unwrap();
    let double = "<!--# set var=\"a\" value=\"$a$a\" -->".repeat(60);
    let start = "<!--# set var=\"a\" value=\"0123456789abcdef\" -->";
    let page = format!("{start}{double}end");
    fs::write(folder.path().join("html/set.html"), page).unwrap();
    let http = "server { listen 127.0.0.1:$port; root $dir/html; ssi on; ssi_silent_errors on;
        location = /added.html { add_before_body /two.html; add_after_body /two.html; } }";
    fs::write(folder.path().join("html/added.html"), "").unwrap();
    let server = Server::start(&yorozu(), folder.path(), http);
    let made = |path: &str| get(server.port, path).unwrap().body.len();
    // The page itself, and all that were made for it.
    assert_eq!(made("/two.html"), 10_001);
    // Behind that nothing can be added any more: the answer must not look whole.
    assert!(get(server.port, "/added.html").is_none());
    assert_eq!(made("/set.html"), 3);
    let log = log(&folder);
    assert_eq!(log.matches("subrequests").count(), 2, "{log}");
    assert!(log.contains("too long value of \"$a$a\""), "{log}");
}

#[test]
fn what_is_made_for_an_answer_ends_when_its_client_leaves() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), |request| {
        std::thread::sleep(Duration::from_millis(50));
        pages(request)
    });
    let include = "<!--# include virtual=\"/php\" wait=\"yes\" -->".repeat(200);
    fs::write(folder.path().join("html/a.html"), &include).unwrap();
    fs::write(folder.path().join("html/b.html"), include.replace("wait=\"yes\"", "")).unwrap();
    fs::write(folder.path().join("html/c.html"), "<!--# include virtual=\"/a.html\" -->").unwrap();
    fs::write(folder.path().join("html/d.html"), include.replace("wait=\"yes\"", "set=\"a\""))
        .unwrap();
    let http = "server { listen 127.0.0.1:$port; root $dir/html; access_log $dir/logs/a.log; location ~ html$ { ssi on; }
        location /php { fastcgi_param REQUEST_URI $request_uri; fastcgi_pass $origin; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    for (number, path) in ["/a.html", "/b.html", "/c.html", "/d.html"].into_iter().enumerate() {
        let before = origin.seen().len();
        let mut client = Client::connect(server.port);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        until("the first include", || origin.seen().len() > before);
        drop(client);
        let lines =
            || fs::read_to_string(folder.path().join("logs/a.log")).unwrap().lines().count();
        until("the log line", || lines() == number + 1);
        // What was under way may still have been read; all 200 are not.
        let mut after = 0;
        until("the end", || {
            let seen = std::mem::replace(&mut after, origin.seen().len());
            std::thread::sleep(Duration::from_millis(300));
            seen == after && origin.seen().len() == after
        });
        assert!(after - before < 150, "{path}: {}", after - before);
    }
}

#[test]
fn a_large_answer_reaches_a_slow_client_whole() {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), |_| {
        let mut answer = b"Content-Type: text/x\r\n\r\n".to_vec();
        answer.extend((0..6_000_000u32).map(|at| (at / 251) as u8));
        answer
    });
    let http = "server { listen 127.0.0.1:$port sndbuf=32k; location / { fastcgi_pass $origin; fastcgi_buffers 4 4k;
        fastcgi_buffer_size 4k; } location /none { fastcgi_pass $origin; fastcgi_max_temp_file_size 0; }
        location /direct { fastcgi_pass $origin; fastcgi_buffering off; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let expected: Vec<u8> = (0..6_000_000u32).map(|at| (at / 251) as u8).collect();
    for path in ["/", "/none", "/direct"] {
        let mut client = Client::connect(server.port);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        std::thread::sleep(Duration::from_millis(300));
        assert!(client.answer(false).unwrap().body == expected, "{path}");
    }
    assert!(files(&folder.path().join("fastcgi")).is_empty(), "temporary files have no names");
}

#[test]
fn php_may_be_behind_tcp() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), pages);
    let (path, port) = (origin.path.clone(), free_port());
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            assert_eq!(near.peer_addr().unwrap().ip().to_string(), "127.0.0.2");
            let mut far = std::os::unix::net::UnixStream::connect(&path).unwrap();
            let (mut back, mut answer) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut near, &mut far));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut answer);
                let _ = answer.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let http = CACHED.replace("$origin", &format!("127.0.0.1:{port}; fastcgi_bind 127.0.0.2"));
    let server = Server::start(&yorozu(), folder.path(), &http);
    assert_eq!(get(server.port, "/tcp").unwrap().body, page("/tcp").as_bytes());
}

#[test]
fn an_unbuffered_upload_reaches_php_while_it_arrives() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), |request| {
        format!(
            "Content-Type: text/x\r\n\r\n{} {}",
            request.body.len(),
            request.param("CONTENT_LENGTH")
        )
        .into_bytes()
    });
    let http = "client_max_body_size 0; client_body_buffer_size 1k; client_body_timeout 2s;
        server { listen 127.0.0.1:$port; location / { fastcgi_param CONTENT_LENGTH $content_length;
        fastcgi_request_buffering chunked; fastcgi_pass $origin; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let mut client = Client::connect(server.port);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
    // PHP is connected before the body has arrived.
    until("the connection", || origin.connections() == 1);
    for _ in 0..30 {
        client.send(&[b'x'; 100_000]);
    }
    assert_eq!(client.answer(false).unwrap().body, b"3000000 3000000");
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(client.answer(false).unwrap().body, b"3 3", "without a length it is spooled");
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(client.answer(false), None, "a client that stops sending is let go");
    assert!(files(&folder.path().join("body")).is_empty());
}

#[test]
fn an_unbuffered_request_begins_before_any_of_its_content_is_there() {
    let folder = Folder::new();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let http = format!(
        "server {{ listen 127.0.0.1:$port;
        location / {{ proxy_pass http://{address}; proxy_request_buffering off; }} }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    for part in ["", "5", "5;x=", "5\r\n"] {
        let mut client = Client::connect(server.port);
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{part}").as_bytes());
        let (mut connection, _) = upstream.accept().unwrap();
        let (mut text, mut piece) = (Vec::new(), [0; 1024]);
        while !text.ends_with(b"\r\n\r\n") {
            let count = connection.read(&mut piece).unwrap();
            assert!(count > 0, "{part:?}");
            text.extend_from_slice(&piece[..count]);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        connection.write_all(answer).unwrap();
        assert_eq!(client.answer(false).unwrap().body, b"ok", "{part:?}");
    }
}

#[test]
fn a_client_that_still_sends_gets_the_refusal_and_no_reset() {
    let folder = Folder::new();
    let http = "client_max_body_size 1k; server { listen 127.0.0.1:$port; location / { fastcgi_pass $origin; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let mut client = Client::connect(server.port);
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
    for _ in 0..40 {
        client.send(&[b'x'; 100_000]);
    }
    assert_eq!(client.answer(false).map(|answer| answer.status), Some(413));
    assert!(client.is_closed());
}

#[test]
fn what_was_asked_for_before_a_post_is_not_stored_behind_it() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    static POSTED: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), |request| {
        let (method, uri) = (request.param("REQUEST_METHOD"), request.param("REQUEST_URI"));
        let is_old = method == "GET" && !BEGUN.swap(true, Ordering::SeqCst);
        if is_old {
            // Its page is of before, whatever comes now.
            until("the answer to the POST", || POSTED.load(Ordering::SeqCst));
        }
        let lifetime = if uri == "/own" { "Cache-Control: max-age=60\r\n" } else { "" };
        let version = if is_old { "old" } else { "new" };
        format!("Content-Type: text/plain\r\n{lifetime}\r\n{version}").into_bytes()
    });
    let http = CACHED.replace("fastcgi_cache z;", "fastcgi_cache z; fastcgi_cache_lock on;");
    let http = http.replace("$origin", &format!("unix:{}", origin.path.display()));
    let inner = Folder::new();
    let server = Server::start(&yorozu(), inner.path(), &http);
    // The lifetime of the other one is the operator's: no POST takes that page away.
    for (path, wanted) in [("/own", "new"), ("/operators", "old")] {
        BEGUN.store(false, Ordering::SeqCst);
        POSTED.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| get(server.port, path).unwrap());
            until("the GET", || BEGUN.load(Ordering::SeqCst));
            let mut client = Client::connect(server.port);
            let post = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            client.send(post.as_bytes());
            assert_eq!(client.answer(false).unwrap().status, 200);
            let behind = scope.spawn(|| get(server.port, path).unwrap());
            POSTED.store(true, Ordering::SeqCst);
            assert_eq!(first.join().unwrap().body, b"old");
            assert_eq!(behind.join().unwrap().body, wanted.as_bytes(), "{path}");
        });
        assert_eq!(get(server.port, path).unwrap().body, wanted.as_bytes(), "{path}");
    }
}

#[test]
fn a_post_removes_all_variants_also_where_the_first_is_gone() {
    let folder = Folder::new();
    let origin = Origin::start_with(folder.path(), |request| {
        let language = request.param("HTTP_ACCEPT_LANGUAGE");
        let fields =
            "Content-Type: text/plain\r\nCache-Control: max-age=60\r\nVary: Accept-Language";
        format!("{fields}\r\n\r\nin {language}").into_bytes()
    });
    let http = CACHED.replace("$origin", &format!("unix:{}", origin.path.display())).replace(
        "fastcgi_pass",
        "fastcgi_param HTTP_ACCEPT_LANGUAGE $http_accept_language; fastcgi_pass",
    );
    let inner = Folder::new();
    let get_in = |server: &Server, language: &str| {
        let mut client = Client::connect(server.port);
        let text = format!("GET /a HTTP/1.1\r\nHost: a\r\nAccept-Language: {language}\r\n\r\n");
        client.send(text.as_bytes());
        client.answer(false).unwrap().field("x-cache").unwrap()
    };
    let mut server = Server::start(&yorozu(), inner.path(), &http);
    for language in ["de", "ja"] {
        assert_eq!(get_in(&server, language), "MISS");
    }
    let cache = inner.path().join("cache");
    until("both files", || files(&cache).len() == 2);
    server.kill();
    let is_first = |file: &std::path::PathBuf| fs::read(file).unwrap().ends_with(b"in de");
    let first = files(&cache).into_iter().find(is_first).expect("the variant that came first");
    fs::remove_file(first).unwrap();
    let server = Server::start(&yorozu(), inner.path(), &http);
    let mut client = Client::connect(server.port);
    client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.answer(false).unwrap().status, 200);
    assert_eq!(get_in(&server, "ja"), "MISS");
}

#[test]
fn a_reset_is_no_end_of_an_answer_and_the_log_has_the_bytes_of_requests() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    let http = format!(
        "proxy_cache_path $dir/c keys_zone=z:1m; error_log $dir/logs/error.log info;
        server {{ listen 127.0.0.1:$port; proxy_http_version 1.0;
        location / {{ proxy_pass http://{upstream}/up; proxy_cache z; proxy_cache_valid 1m; }}
        location /file {{ root $dir; }} }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    for _ in 0..2 {
        let mut client = Client::connect(server.port);
        client.send(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (mut stream, _) = listener.accept().unwrap();
        // What is left unread of the request makes the end a reset.
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1);
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\npart of it").unwrap();
        assert!(client.sees("part of it", Duration::from_secs(60)));
        drop(stream);
        assert!(client.answer(false).is_none());
    }
    let reset = "readv() failed (104: Connection reset by peer) while reading upstream, client: ";
    assert_eq!(log(&folder).matches(reset).count(), 2);
    let mut client = Client::connect(server.port);
    client.send(b"GET /file/caf\xe9/%0A HTTP/1.1\r\nHost: a\r\nReferer: \xff\r\n\r\n");
    let bytes = || fs::read(folder.path().join("logs/error.log")).unwrap();
    let has = |text: &[u8]| bytes().windows(text.len()).any(|part| part == text);
    until("the line", || has(b", referrer: \"\xff\"\n"));
    assert!(
        has(b"/file/caf\xe9/\\x0A\" failed (2: ") && has(b"\"GET /file/caf\xe9/%0A HTTP/1.1\"")
    );
}

#[test]
fn a_head_waits_for_no_more_than_the_length_of_a_chunk() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let folder = Folder::new();
    let http = format!(
        "server {{ listen 127.0.0.1:$port; location / {{ proxy_pass http://{address}; proxy_http_version 1.1;
            proxy_request_buffering off; }} }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for begun in ["5\r\n", "5", "5;a=b"] {
        let mut client = Client::connect(server.port);
        client.send(format!("{head}{begun}").as_bytes());
        let (mut connection, _) = upstream.accept().unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).expect("the head");
            seen.push(byte[0]);
        }
        let rest =
            if begun.ends_with('\n') { "12345\r\n0\r\n\r\n" } else { "\r\n12345\r\n0\r\n\r\n" };
        client.send(rest.as_bytes());
        let mut body = Vec::new();
        while !body.ends_with(b"0\r\n\r\n") {
            let mut byte = [0];
            connection.read_exact(&mut byte).expect("the body");
            body.push(byte[0]);
        }
        assert_eq!(body, b"5\r\n12345\r\n0\r\n\r\n");
        connection
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            .unwrap();
        assert_eq!(client.answer(false).unwrap().body, b"ok");
    }
}
