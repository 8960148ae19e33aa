//! Which users may read what the server leaves on disk.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod shared;

use nix::sys::stat::{Mode, umask};
use shared::{files, get, pages, until, yorozu};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
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

/// What a server makes whose process has `mask`, and its mode.
fn modes(kind: &Kind, mask: u32) -> BTreeMap<&'static str, u32> {
    let folder = Folder::new();
    let _origin = Origin::start_with(folder.path(), pages);
    let before = umask(Mode::from_bits_truncate(mask));
    let server = Server::start(
        kind,
        folder.path(),
        "fastcgi_cache_path $dir/c levels=1:2 keys_zone=z:1m; fastcgi_cache_key $request_uri;
        fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
        server { listen 127.0.0.1:$port;
        location / { fastcgi_pass $origin; fastcgi_cache z; fastcgi_cache_valid 200 1h; }
        location /kept/ { fastcgi_pass $origin; client_body_in_file_only on; client_body_temp_path $dir/kept; }
        location /store/ { fastcgi_pass $origin; fastcgi_store $dir$uri; }
        location /shared/ { fastcgi_pass $origin; fastcgi_store $dir$uri;
            fastcgi_store_access group:rw all:r; }
        location /all/ { fastcgi_pass $origin; fastcgi_store $dir$uri; fastcgi_store_access all:r; }
        }",
    );
    umask(before);
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
