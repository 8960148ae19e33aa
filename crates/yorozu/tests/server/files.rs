//! Which users may read what the server leaves on disk.

use crate::shared::{files, get, pages, steps, until, yorozu};
use nix::sys::stat::Mode;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use yorozu_testkit::client::Client;
use yorozu_testkit::origin::Origin;
use yorozu_testkit::server::{Folder, Kind, Server};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn send(server: &Server, method: &str, path: &str, body: &str) -> u16 {
    let mut client = Client::connect(server.port);
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    client.send((head + body).as_bytes());
    client.answer(false).unwrap().status
}

/// A site that makes files of every kind.
const OF_MODES: &str = "fastcgi_cache_path $dir/c levels=1:2 keys_zone=z:1m; fastcgi_cache_key $request_uri;
    fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
    server { listen 127.0.0.1:$port; root $dir; access_log $dir/logs/all; access_log $dir/logs/of$args;
    location / { fastcgi_pass $origin; fastcgi_cache z; fastcgi_cache_valid 200 1h; }
    location /kept/ { fastcgi_pass $origin; client_body_in_file_only on; client_body_temp_path $dir/kept; }
    location /store/ { fastcgi_pass $origin; fastcgi_store $dir$uri; }
    location /shared/ { fastcgi_pass $origin; fastcgi_store $dir$uri;
        fastcgi_store_access group:rw all:r; }
    location /all/ { fastcgi_pass $origin; fastcgi_store $dir$uri; fastcgi_store_access all:r; }
    }";

/// What a server makes whose process has `mask`, and its mode.
fn modes(kind: &Kind, mask: u32) -> BTreeMap<&'static str, u32> {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    // The mask is one of the whole process, in which other tests run at the same time: a shell sets that of the server.
    let (program, temporary) = match kind {
        Kind::Yorozu(path) => (path.display().to_string(), ""),
        Kind::Nginx => (
            "/usr/sbin/nginx".to_owned(),
            "proxy_temp_path $dir/p; uwsgi_temp_path $dir/u; scgi_temp_path $dir/s;",
        ),
    };
    let masked = format!("#!/bin/sh\numask {mask:o}\nexec '{program}' \"$@\"\n");
    let server = Server::start(
        &Kind::Yorozu(folder.script("masked", &masked)),
        folder.path(),
        &(temporary.to_owned() + OF_MODES),
    );
    for path in ["/page", "/store/sub/a", "/shared/sub/a", "/all/a"] {
        assert_eq!(get(server.port, path).unwrap().status, 200);
    }
    assert_eq!(send(&server, "POST", "/kept/a", "body"), 200);
    let at = |path: &str| folder.path().join(path);
    until("the files", || !files(&at("c")).is_empty() && at("all/a").exists());
    let page = files(&at("c")).remove(0);
    let mut kept = fs::read_dir(at("kept")).unwrap();
    let body: PathBuf = kept.next().unwrap().unwrap().path();
    BTreeMap::from([
        ("cache", mode(&at("c"))),
        ("level of the cache", mode(page.parent().unwrap())),
        ("page", mode(&page)),
        ("folder of bodies", mode(&at("kept"))),
        ("body", mode(&body)),
        ("fastcgi_temp", mode(&at("fastcgi"))),
        ("stored", mode(&at("store/sub/a"))),
        ("folder of stored", mode(&at("store/sub"))),
        ("stored for others", mode(&at("shared/sub/a"))),
        ("folder of those", mode(&at("shared/sub"))),
        ("stored for all", mode(&at("all/a"))),
        ("log", mode(&at("logs/all"))),
        ("log of a variable", mode(&at("logs/of"))),
        ("error log", mode(&at("logs/error.log"))),
        ("process id", mode(&at("pid"))),
    ])
}

#[test]
fn modes_are_nginx_s_whatever_the_mask() {
    for mask in [0, 0o022, 0o077] {
        let ours = modes(&yorozu(), mask);
        for (what, expected) in [
            ("cache", 0o700),
            ("level of the cache", 0o700),
            ("page", 0o600),
            ("folder of bodies", 0o700),
            ("body", 0o600),
            ("fastcgi_temp", 0o700),
            ("stored", 0o600),
            ("folder of stored", 0o700),
            ("stored for others", 0o664),
            ("stored for all", 0o604),
            ("log", 0o644 & !mask),
            ("log of a variable", 0o644 & !mask),
            ("error log", 0o644 & !mask),
            ("process id", 0o644 & !mask),
        ] {
            assert_eq!(
                format!("{:o}", ours[what]),
                format!("{expected:o}"),
                "{what}, mask {mask:o}"
            );
        }
        if let Some(nginx) = Kind::oracle() {
            assert_eq!(ours, modes(&nginx, mask), "mask {mask:o}");
        }
    }
}

#[test]
fn an_answer_is_stored_across_file_systems() {
    let folder = Folder::new();
    let other = PathBuf::from(format!("/dev/shm/yorozu-files.{}", std::process::id()));
    fs::create_dir_all(&other).unwrap();
    let is_other =
        fs::metadata(&other).unwrap().dev() != fs::metadata(folder.path()).unwrap().dev();
    assert!(is_other, "/dev/shm must be a file system of its own");
    let _origin = Origin::start_with(folder.path(), pages);
    let server = Server::start(
        &yorozu(),
        folder.path(),
        &format!(
            "fastcgi_param REQUEST_URI $request_uri; server {{ listen 127.0.0.1:$port;
            location / {{ fastcgi_pass $origin; fastcgi_temp_path $dir/t; fastcgi_store {}$uri;
                fastcgi_store_access all:r; }} }}",
            other.display()
        ),
    );
    // Nothing that lies there under a name which can be guessed is written to.
    let (bystander, stored) = (folder.path().join("bystander"), other.join("a"));
    fs::write(&bystander, "as it was").unwrap();
    std::os::unix::fs::symlink(&bystander, other.join(format!("a.{}.tmp", server.serving_id())))
        .unwrap();
    std::os::unix::fs::symlink(&bystander, &stored).unwrap();
    let page = get(server.port, "/a").unwrap().body;
    until("the file", || !fs::symlink_metadata(&stored).unwrap().is_symlink());
    assert_eq!((fs::read(&stored).unwrap() == page, mode(&stored)), (true, 0o604));
    assert_eq!(fs::read_to_string(&bystander).unwrap(), "as it was");
    until("the end of the copy", || fs::read_dir(folder.path().join("t")).unwrap().count() == 0);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 2, "the page and the bystander's link");
    fs::remove_dir_all(&other).unwrap();
}

/// What is in a log that `name` of a request chooses, and in the file that lies behind a link of that name.
#[test]
fn logs_of_variables_are_not_written_behind_links_that_are_refused() {
    for (setting, cache) in [
        ("off", ""),
        ("on", ""),
        ("on", "open_log_file_cache max=10;"),
        ("if_not_owner", ""),
        ("on from=$dir/logs", ""),
    ] {
        let mut seen = Vec::new();
        for kind in std::iter::once(yorozu()).chain(Kind::oracle()) {
            let folder = Folder::new();
            let at = |path: &str| folder.path().join(path);
            let server = Server::start(
                &kind,
                folder.path(),
                &format!(
                    "log_format name $arg_n; server {{ listen 127.0.0.1:$port; root $dir; disable_symlinks {setting}; {cache}
                    access_log $dir/logs/../logs/$arg_n.log name; location / {{ return 204; }} }}"
                ),
            );
            fs::create_dir(at("elsewhere")).unwrap();
            fs::write(at("elsewhere/file"), "").unwrap();
            std::os::unix::fs::symlink(at("elsewhere/file"), at("logs/link.log")).unwrap();
            std::os::unix::fs::symlink(at("elsewhere/none"), at("logs/dangling.log")).unwrap();
            std::os::unix::fs::symlink(at("elsewhere"), at("logs/folder")).unwrap();
            for name in ["plain", "link", "dangling", "folder/log", "../elsewhere/climbs"] {
                for _ in 0..2 {
                    assert_eq!(get(server.port, &format!("/?n={name}")).unwrap().status, 204);
                }
            }
            let read = |path| fs::read_to_string(at(path)).ok();
            until("the plain log", || {
                read("logs/plain.log").is_some_and(|log| log.lines().count() == 2)
            });
            seen.push(["elsewhere/file", "elsewhere/none", "elsewhere/log.log"].map(read));
            if matches!(kind, Kind::Yorozu(_)) {
                assert_eq!(read("elsewhere/climbs.log"), None, "{setting}");
                let log = read("logs/error.log").unwrap();
                let refused = log.matches("openat() \"").count();
                assert_eq!(refused == 0, setting == "off", "{setting}: {log}");
            }
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{setting} {cache}: {seen:?}");
        let is_written = setting == "off";
        assert_eq!(seen[0][0].as_deref() == Some(""), !is_written, "{setting} {cache}");
    }
}

#[test]
fn a_log_that_nobody_reads_stops_no_one() {
    let folder = Folder::new();
    let server = Server::start(
        &yorozu(),
        folder.path(),
        "open_log_file_cache max=10; server { listen 127.0.0.1:$port; root $dir;
        location / { access_log $dir/logs/$arg_n.log; return 204; } }",
    );
    nix::unistd::mkfifo(&folder.path().join("logs/pipe.log"), Mode::S_IRWXU).unwrap();
    for name in ["pipe", "other", "pipe"] {
        assert_eq!(get(server.port, &format!("/?n={name}")).unwrap().status, 204);
    }
    let log = fs::read_to_string(folder.path().join("logs/error.log")).unwrap();
    assert!(log.contains("pipe.log\" failed (6: No such device or address)"), "{log}");
}

#[test]
fn a_log_whose_reader_hangs_stops_no_worker_and_no_other_log() {
    let folder = Folder::new();
    let logs = folder.path().join("logs");
    fs::create_dir_all(&logs).unwrap();
    nix::unistd::mkfifo(&logs.join("pipe.log"), Mode::S_IRWXU).unwrap();
    let mut reader = fs::File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(logs.join("pipe.log"))
        .unwrap();
    let long = "x".repeat(60_000);
    let server = Server::start(
        &yorozu(),
        folder.path(),
        &format!(
            "log_format long \"$request_uri {long}\"; log_format short $request_uri; root $dir;
            server {{ listen 127.0.0.1:$port; access_log $dir/logs/pipe.log long; access_log $dir/logs/other.log short;
            location / {{ return 204; }} location /none/ {{ }} location = /metrics {{ access_log off; prometheus all; }} }}"
        ),
    );
    // More than the pipe and the queue take; some are lost.
    let mut client = Client::connect(server.port);
    for number in 0..200 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(client.answer(false).unwrap().status, 204);
    }
    let lines = || fs::read_to_string(logs.join("other.log")).unwrap_or_default().lines().count();
    until("the other log", || lines() == 200);
    assert_eq!(get(server.port, "/none/a").unwrap().status, 404);
    until("the error", || {
        fs::read_to_string(logs.join("error.log"))
            .is_ok_and(|text| text.contains("/none/a\" failed"))
    });
    let metrics = String::from_utf8(get(server.port, "/metrics").unwrap().body).unwrap();
    let lost = metrics.lines().find_map(|line| line.strip_prefix("yorozu_log_lines_lost_total "));
    let lost: usize = lost.unwrap().parse().unwrap();
    assert!((1..200).contains(&lost), "{lost}");
    // It reads on, and gets whole lines.
    let mut text = Vec::new();
    until("what waited", || {
        let _ = reader.read_to_end(&mut text);
        text.iter().filter(|byte| **byte == b'\n').count() + lost == 201
    });
    let text = String::from_utf8(text).unwrap();
    assert!(text.lines().all(|line| line.starts_with('/') && line.ends_with(&long)));
}

/// Whoever owns a folder swaps what lies there for a link, and back, while it is asked for; `SECONDS`: for so long with each mode.
#[test]
fn links_that_are_put_there_at_any_moment_show_nothing_of_other_owners() {
    if !nix::unistd::geteuid().is_root() {
        return println!("left out: only root gives files away");
    }
    for mode in ["on", "if_not_owner"] {
        let folder = Folder::new();
        let (html, secret) = (folder.path().join("html"), folder.path().join("secret"));
        for path in [&secret, &html.join("own")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(secret.join("a"), "secret").unwrap();
        fs::write(html.join("own/a"), "own").unwrap();
        fs::write(html.join("plain"), "own").unwrap();
        let other = Some(65534);
        for path in [&html, &html.join("own"), &html.join("own/a"), &html.join("plain")] {
            std::os::unix::fs::chown(path, other, other).unwrap();
        }
        let link = |target: &Path, name: &str| {
            let path = html.join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            std::os::unix::fs::lchown(&path, other, other).unwrap();
        };
        link(&secret, "folder");
        link(&secret.join("a"), "file");
        let server = Server::start(
            &yorozu(),
            folder.path(),
            &format!(
                "server {{ listen 127.0.0.1:$port; root $dir/html; disable_symlinks {mode}; autoindex on; }}"
            ),
        );
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let swapped = |one: &str, other: &str| {
            let (one, other) = (html.join(one), html.join(other));
            let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
            nix::fcntl::renameat2(
                nix::fcntl::AT_FDCWD,
                &one,
                nix::fcntl::AT_FDCWD,
                &other,
                exchange,
            )
            .unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    swapped("own", "folder");
                    swapped("plain", "file");
                }
            });
            let mut seen = BTreeMap::new();
            for _ in steps(200) {
                for path in ["/own/a", "/plain", "/own/"] {
                    let answer = get(server.port, path).unwrap();
                    let is_secret = answer.body == b"secret";
                    *seen.entry((path, answer.status, is_secret)).or_insert(0) += 1;
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(seen.keys().all(|(_, _, is_secret)| !is_secret), "{mode}: {seen:?}");
            assert!(seen.keys().any(|(_, status, _)| *status == 200), "{mode}: {seen:?}");
        });
    }
}
