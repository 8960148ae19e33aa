//! Configurations that are wrong, or not what was meant: what `-t` says, and what a server makes of them.

use crate::shared::{BINARY, get, log, run, signal, until, yorozu};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};
use yorozu_testkit::server::{Folder, Server};

#[test]
fn a_test_names_every_line_that_is_refused_and_what_is_warned_of() {
    let folder = Folder::new();
    let text = "events {}\nhttp { foo on;\nserver { listen nowhere:x; location / { bar;\nroot; }\nlocation ~ .php$ { return 403; } location $admin { return 403; } } }";
    fs::write(folder.path().join("nginx.conf"), text).unwrap();
    let (is_fine, said) = run(&folder, &["-t"]);
    let expected = [
        ("[warn] the dot before \"php\" in \".php$\"", 5),
        ("[emerg] unknown directive \"foo\"", 2),
        ("[emerg] invalid port in \"nowhere:x\" of the \"listen\" directive", 3),
        ("[emerg] unknown directive \"bar\"", 3),
        ("[emerg] invalid number of arguments in \"root\"", 4),
        ("[emerg] predicate locations are not supported", 5),
    ];
    let mut rest = &said[..];
    for (part, line) in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part}: {said}"));
        rest = &rest[at..];
        let end = rest.find('\n').unwrap();
        assert!(rest[..end].ends_with(&format!("nginx.conf:{line}")), "{part}: {said}");
        rest = &rest[end..];
    }
    assert!(!is_fine && rest.contains("test failed"), "{said}");
    // As nginx, which starts with none of them.
    assert_eq!(run(&folder, &[]).1.matches("[emerg]").count(), 1);
    let text = "events {} http { server { location / { proxy_pass http://no-such.invalid; } } }";
    fs::write(folder.path().join("nginx.conf"), text).unwrap();
    for args in [&["-t"][..], &[]] {
        let said = run(&folder, args).1;
        let at = said.find("host not found in upstream \"no-such.invalid\" in ");
        assert!(at.is_some_and(|at| said[at..].contains("server NAME resolve;")), "{said}");
    }
}

#[test]
fn variables_that_need_themselves_or_too_many_others_end_no_process() {
    let folder = Folder::new();
    let row: String = (0..10_000)
        .map(|at| format!("map $v{} $v{at} {{ default $v{}; }} ", at + 1, at + 1))
        .collect();
    let http = format!(
        "{row} map $uri $v10000 {{ default end; }}
        map $c $a {{ default $c; }} map $a $b {{ default $a; }} map $b $c {{ volatile; default $b; }}
        map $document_root $d {{ default /x; }} map $secure_link $s {{ default $s; }}
        server {{ listen 127.0.0.1:$port; secure_link $s,$arg_e; secure_link_md5 $s$secure_link;
            location /row {{ return 200 \"[$v0]\"; }}
            location /circle {{ return 200 \"[$a]\"; }}
            location /volatile {{ return 200 \"[$m]\"; }}
            location /link {{ return 200 \"[$secure_link]\"; }}
            location /root {{ root $dir/$d; return 200 \"[$document_root]\"; }}
            location /name {{ root $dir/$request_filename; return 200 ok$request_filename; }} }}
        map $m $n {{ volatile; default $m$m; }} map $n $m {{ volatile; default $n$n; }}"
    );
    let server = Server::start(&yorozu(), folder.path(), &http);
    for (path, status) in [
        ("/row", 200),
        ("/circle", 200),
        ("/volatile", 200),
        ("/link", 200),
        // What names itself comes to nothing there, which is no folder.
        ("/root", 500),
        ("/name", 500),
    ] {
        let lines = log(&folder).matches("cycle while evaluating variable").count();
        assert_eq!(get(server.port, path).unwrap().status, status, "{path}");
        let now = log(&folder).matches("cycle while evaluating variable").count();
        assert!(now > lines, "{path}: {}", log(&folder));
    }
    assert!(log(&folder).contains("cycle while evaluating variable \"a\", client: "));
}

#[test]
fn a_test_of_the_configuration_ends_whatever_it_names() {
    let folder = Folder::new();
    let dir = folder.path();
    fs::create_dir_all(dir.join("logs")).unwrap();
    nix::unistd::mkfifo(&dir.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for at in 0..40 {
        let next = format!("include {}/{1}; include {0}/{1};", dir.display(), at + 1);
        fs::write(dir.join(at.to_string()), next).unwrap();
    }
    fs::write(dir.join("40"), "gzip on;").unwrap();
    let file = dir.join("nginx.conf");
    for (http, told) in [
        ("include $dir/fifo;", "open() \"$dir/fifo\" failed (not a regular file) in "),
        ("include $dir;", "open() \"$dir\" failed (21: Is a directory) in "),
        ("include $dir/f*;", "open() \"$dir/fifo\" failed (not a regular file) in "),
        ("include /dev/zero;", "open() \"/dev/zero\" failed (not a regular file) in "),
        ("include $dir/0;", "the configuration has more than 100000 files"),
        ("include /*/*/*/*/*/*/*/*/*/*;", "glob() \"/*/*/*/*/*/*/*/*/*/*\" failed (more than "),
        ("access_log $dir/fifo;", "open() \"$dir/fifo\" failed (6: No such device or address)"),
        ("error_log $dir/fifo;", "open() \"$dir/fifo\" failed (6: No such device or address)"),
        (
            "server { listen 1 ssl; ssl_certificate $dir/fifo; ssl_certificate_key /dev/zero; }",
            "cannot load certificate \"$dir/fifo\": not a regular file",
        ),
        (
            "server { listen 1; ssl_client_certificate /dev/zero; ssl_verify_client on; }",
            "\"/dev/zero\": not a regular file",
        ),
    ] {
        let shown = dir.display().to_string();
        fs::write(&file, format!("events {{}} http {{ {} }}", http.replace("$dir", &shown)))
            .unwrap();
        let mut test = Command::new(BINARY)
            .args(["-t", "-e", "stderr", "-p"])
            .args([dir, "-c".as_ref(), &file])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until(http, || test.try_wait().unwrap().is_some());
        let output = test.wait_with_output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.contains(&told.replace("$dir", &shown)),
            "{http}: {text}"
        );
        assert_eq!(text.matches("[emerg]").count(), 1, "{http}: {text}");
    }
}

#[test]
fn bits_behind_the_prefix_of_a_network_are_told() {
    let folder = Folder::new();
    let file = folder.path().join("nginx.conf");
    fs::create_dir_all(folder.path().join("logs")).unwrap();
    let networks = "allow 10.0.0.1/8;\ngeo $a {\n10.0.0.2/8 a; 10.1.0.0/16 b; 10.1.2.3/32 c; }\nset_real_ip_from 2001:db8::1/32;";
    fs::write(&file, format!("events {{}} http {{\n{networks}\nserver {{}} }}")).unwrap();
    let mut test = Command::new(BINARY);
    test.args(["-t", "-p"]).arg(folder.path()).arg("-c").arg(&file);
    let told = String::from_utf8(test.output().unwrap().stderr).unwrap();
    for (network, line) in [("10.0.0.1/8", 2), ("10.0.0.2/8", 4), ("2001:db8::1/32", 5)] {
        let place = format!("{}:{line}", file.display());
        let wanted = format!("[warn] low address bits of {network} are meaningless in {place}\n");
        assert!(told.contains(&wanted), "{told}");
    }
    assert_eq!(told.matches("low address bits").count(), 3, "{told}");
}

#[test]
fn a_test_of_the_configuration_says_what_was_probably_not_meant() {
    let folder = Folder::new();
    let file = folder.path().join("nginx.conf");
    fs::create_dir_all(folder.path().join("logs")).unwrap();
    let tell = |comment: &str| {
        let text = format!(
            "events {{}} http {{ server {{\nlocation ~ .php$ {{ return 200; }}{comment}\n}} }}"
        );
        fs::write(&file, text).unwrap();
        let done = Command::new(BINARY)
            .args(["-t", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&file)
            .output()
            .unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stderr).unwrap()
    };
    let told = tell("");
    assert!(told.contains("[warn] the dot before \"php\" in \".php$\" matches"), "{told}");
    assert!(told.contains(&format!(" in {}:2\n", file.display())), "{told}");
    assert!(!tell(" # yorozu: intended").contains("[warn]"));
}

#[test]
fn scripts_that_run_or_are_sent_against_what_was_meant_are_reported() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("logs")).unwrap();
    fs::create_dir_all(folder.path().join("www")).unwrap();
    fs::write(folder.path().join("www/index.php"), "<?php").unwrap();
    let refused = r"location ~ /uploads/.*\.php$ { deny all; }";
    let whole = r"location ~ /uploads/.*\.php(/|$) { deny all; }";
    let runs = r"location ~ [^/]\.php(/|$) { fastcgi_pass unix:/s; }";
    let by_name = r"location ~ \.php$ { fastcgi_pass unix:/s; }";
    let buffering = "fastcgi_request_buffering off;";
    let (is_run, is_sent, is_empty) = (
        r#"scripts that "/uploads/.*\.php$" is to refuse run with a path behind their name ("x.php/y"), in line 3: write "/uploads/.*\.php\b""#,
        "\"/index.php\" is sent as it is",
        "an upload whose length the client does not say is empty to PHP",
    );
    for (first, second, said) in [
        (refused, runs, Some(is_run)),
        (r"location ~ /uploads/.*\.php$ { return 403; }", runs, Some(is_run)),
        (whole, runs, None),
        (r"location ~ /uploads/.*\.php\b { deny all; }", runs, None),
        (refused, by_name, None),
        (runs, refused, None),
        ("", "", Some(is_sent)),
        (r"location ~ \.php { deny all; }", "", None),
        (r"location ~ \.php { allow 10.0.0.0/8; deny all; }", "", None),
        (r"location ~ \.php { deny 10.0.0.0/8; }", "", Some(is_sent)),
        ("", r"location ~ \.php$ { return 404; }", None),
        ("", by_name, None),
        (buffering, by_name, Some(is_empty)),
        ("fastcgi_request_buffering chunked;", by_name, None),
    ] {
        let text =
            format!("events {{}} http {{ server {{ listen 1; root www;\n{first}\n{second}\n}} }}");
        fs::write(folder.path().join("nginx.conf"), &text).unwrap();
        let (is_fine, told) = run(&folder, &["-t"]);
        let said_here = [is_run, is_sent, is_empty].map(|known| told.contains(known));
        let expected = [is_run, is_sent, is_empty].map(|known| said == Some(known));
        assert!(is_fine && said_here == expected, "{text}\n{told}");
    }
}

#[test]
fn the_log_has_what_a_test_warns_of_once() {
    let folder = Folder::new();
    let http = "server { listen 127.0.0.1:$port; location ~ .php$ { return 200; } }";
    let server = Server::start(&yorozu(), folder.path(), http);
    let count = || log(&folder).matches("[warn]").count();
    until("the warning", || count() == 1);
    assert!(log(&folder).contains("the dot before \"php\" in \".php$\" matches"));
    let file = folder.path().join("nginx.conf");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("location ~ .php$", "location ~ .css$ { } location ~ .php$"))
        .unwrap();
    signal(&server, Signal::SIGHUP);
    until("the other one", || log(&folder).contains("the dot before \"css\""));
    assert_eq!(count(), 2, "{}", log(&folder));
}

#[test]
fn the_reference_of_directives_is_made_from_the_code() {
    let printed = Command::new(BINARY).arg("--directives").output().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/directives.md");
    assert!(
        fs::read(file).unwrap() == printed.stdout,
        "out of date: cargo run --bin yorozu -- --directives >docs/directives.md"
    );
}

/// Every path below a folder.
fn all_below(folder: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut all_below(&path)?);
        }
        found.insert(path);
    }
    Ok(found)
}

#[test]
fn what_does_not_serve_makes_nothing() {
    let folder = Folder::new();
    let dir = folder.path();
    fs::create_dir_all(dir.join("logs")).unwrap();
    let text = format!(
        "pid {0}/pid; error_log {0}/logs/error.log; events {{}} http {{
            access_log {0}/logs/access.log; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;
            proxy_cache_path {0}/cache/deep keys_zone=z:1m;
            server {{ listen unix:{0}/socket; ssl_session_cache shared:a:1m; location / {{
                proxy_pass http://127.0.0.1:1; proxy_cache z; proxy_cache_valid 1m; }} }} }}",
        dir.display()
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, &text).unwrap();
    let before = all_below(dir).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        let done = command.arg("-p").arg(dir).arg("-c").arg(&file).args(words).output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    assert!(run(&["-t"]).0, "{}", run(&["-t"]).1);
    for words in [&["-s", "reload"][..], &["-s", "stop"], &["cache", "stat"], &["purge", "--all"]] {
        let (is_done, said) = run(words);
        assert!(!is_done && said.contains("pid"), "{words:?}: {said}");
        assert_eq!(all_below(dir).unwrap(), before, "{words:?}");
    }
    // What could not be made is said all the same.
    for (wrong, said) in [
        ("error_log $dir/none/error.log;", "open() \"$dir/none/error.log\" failed (2: "),
        (
            "proxy_cache_path $dir/nginx.conf/cache keys_zone=y:1m;",
            "\"$dir/nginx.conf/cache\" failed (20: ",
        ),
    ] {
        let dir_text = dir.display().to_string();
        let text = text.replace("http {", &format!("http {{ {}", wrong.replace("$dir", &dir_text)));
        fs::write(&file, text).unwrap();
        let (is_fine, told) = run(&["-t"]);
        assert!(!is_fine && told.contains(&said.replace("$dir", &dir_text)), "{told}");
    }
    let none = dir.join("none/pid").display().to_string();
    fs::write(&file, text.replace(&format!("pid {}/pid;", dir.display()), &format!("pid {none};")))
        .unwrap();
    let (is_fine, told) = run(&["-t"]);
    assert!(!is_fine && told.contains(&format!("open() \"{none}\" failed (2: ")), "{told}");
    // A purge reads no keys, and takes no notice of what else is wrong.
    fs::write(&file, text.replace("access_log", "ssl_certificate_key /none; access_log")).unwrap();
    let (_, told) = run(&["cache", "stat"]);
    assert!(told.contains("pid.sock"), "{told}");
    fs::remove_file(dir.join("nginx.conf")).unwrap();
    assert!(run(&["cache", "stat"]).1.contains("nginx.conf"));
}

#[test]
fn a_test_of_the_configuration_looks_at_addresses_and_sends_nothing() {
    let folder = Folder::new();
    let http = "server { listen 127.0.0.1:$port; return 200 ok; }";
    let mut server = Server::start(&yorozu(), folder.path(), http);
    // The server's own address is no fault, and a test is no signal, in whatever order they stand.
    for words in [&["-t", "-s", "stop"][..], &["-s", "stop", "-t"], &["-T", "-s", "quit"], &["-t"]]
    {
        let (is_fine, text) = run(&folder, words);
        assert!(is_fine && text.contains("test is successful"), "{words:?}: {text}");
    }
    for words in [&["-v", "-s", "stop"][..], &["-s", "stop", "-V"], &["-s", "stop", "-h"]] {
        let (is_fine, text) = run(&folder, words);
        assert!(is_fine && text.contains("yorozu"), "{words:?}: {text}");
    }
    assert!(run(&folder, &["-v", "-t"]).1.contains("test is successful"));
    assert_eq!(get(server.port, "/").unwrap().body, b"ok");
    let none = folder.path().join("none/s").display().to_string();
    for (listen, said) in [
        (
            "192.0.2.1:1".to_owned(),
            "bind() to 192.0.2.1:1 failed (99: Cannot assign requested address)".to_owned(),
        ),
        (
            format!("unix:{none}"),
            format!("bind() to unix:{none} failed (2: No such file or directory)"),
        ),
    ] {
        let file = folder.path().join("nginx.conf");
        let text = fs::read_to_string(&file).unwrap();
        let own = format!("127.0.0.1:{}", server.port);
        fs::write(folder.path().join("other.conf"), text.replace(&own, &listen)).unwrap();
        let (is_fine, text) = run(&folder, &["-t", "-c", "other.conf"]);
        let place = text.find("syntax is ok").and_then(|at| text[at..].find(&said));
        assert!(!is_fine && place.is_some() && text.contains("test failed"), "{text}");
    }
    assert_eq!(run(&folder, &["-s", "quit"]), (true, String::new()));
    assert!(server.wait());
}

#[test]
fn what_is_not_here_can_be_left_out_of_a_test() {
    let folder = Folder::new();
    let text = "events {} stream { server { listen 1; } } http { modsecurity off;
        server { listen 127.0.0.1:1; content_by_lua_block { local a = \"}\" -- }
            } auth_pam x; location ~ \"^/a{2}$\" { js_content a.b; return 200 'a\"b'; } } map $uri $a { echo 1; } }";
    fs::write(folder.path().join("nginx.conf"), text).unwrap();
    let (is_fine, said) = run(&folder, &["-t"]);
    assert!(!is_fine);
    for name in ["stream", "content_by_lua_block", "auth_pam", "js_content"] {
        assert!(
            said.contains(&format!("[emerg] \"{name}\" is not supported by this version (")),
            "{said}"
        );
    }
    assert_eq!(said.matches("[emerg]").count(), 4, "{said}");
    let (is_fine, said) = run(&folder, &["-t", "--omit-unsupported"]);
    assert!(is_fine, "{said}");
    assert_eq!(said.matches("[warn] omitted: ").count(), 5, "{said}");
    let (is_fine, said) = run(&folder, &["-T", "--omit-unsupported"]);
    let rest = "events {\n}\nhttp {\n    server {\n        listen 127.0.0.1:1;\n        location ~ \"^/a{2}$\" {\n            return 200 \"a\\\"b\";\n        }\n    }\n    map $uri $a {\n        echo 1;\n    }\n}\n";
    assert!(is_fine && said.starts_with(rest), "{said}");
    fs::write(folder.path().join("nginx.conf"), rest).unwrap();
    assert!(run(&folder, &["-t"]).0);
    fs::write(folder.path().join("nginx.conf"), "events {} http { modsecurity off; }").unwrap();
    let (is_fine, said) = run(&folder, &["-t"]);
    assert!(is_fine && said.contains("\"modsecurity\" is accepted but ignored: "), "{said}");
    assert!(run(&folder, &["--omit-unsupported"]).1.contains("requires \"-t\" or \"-T\""));
}
