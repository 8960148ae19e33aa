//! What is root's, with Debian's layout: logs, folders, keys and the process id, their modes and owners, and what the
//! user of the server process may not do.

use crate::shared::{Master, PLAIN, answering, get, log, send, signal, until, yorozu};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use yorozu_testkit::server::{Folder, Kind, Server, Text, free_port};

/// A server as Debian has it: logs and configuration are root's, the server is www-data.
struct Debian {
    folder: Folder,
    server: Server,
    /// With places for what a reload adds.
    text: String,
}

/// `None`, and said, without root.
fn debian(kind: &Kind, http: &str) -> Option<Debian> {
    if !nix::unistd::geteuid().is_root() {
        println!("not run: needs root");
        return None;
    }
    let folder = Folder::new();
    fs::remove_dir(folder.path().join("cache")).unwrap();
    let port = free_port();
    let space = if matches!(kind, Kind::Nginx) { "" } else { "worker_rlimit_as 64g;" };
    let text = Text {
        main: format!("user www-data; worker_processes 1; worker_rlimit_nofile 3000; {space}"),
        http: http.replace("$port", &port.to_string()),
        ..Text::default()
    };
    let server = Server::try_start(kind, folder.path(), &[port], &text).unwrap();
    until("an answer", || get(port, "/").is_some());
    let text = fs::read_to_string(folder.path().join("nginx.conf")).unwrap();
    Some(Debian { folder, server, text })
}

impl Debian {
    fn reload(&self, old: &str, new: &str) {
        let dir = self.folder.path().display().to_string();
        let text = self.text.replace(old, &new.replace("$dir", &dir));
        assert_ne!(text, self.text);
        fs::write(self.folder.path().join("nginx.conf"), text).unwrap();
        signal(&self.server, Signal::SIGHUP);
    }

    /// Mode and owner of all that is there, by name; sockets and files of the server's choice apart.
    fn listing(&self) -> BTreeMap<String, (u32, u32)> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for item in fs::read_dir(folder).unwrap().flatten() {
                let metadata = item.metadata().unwrap();
                let path = item.path();
                let name = path.strip_prefix(self.folder.path()).unwrap().display().to_string();
                if metadata.is_dir() {
                    folders.push(path);
                }
                found.insert(name, (metadata.mode() & 0o7777, metadata.uid()));
            }
        }
        found
    }
}

const LOGGED: &str =
    "access_log $dir/logs/unused.log; server { listen 127.0.0.1:$port; access_log $dir/logs/a.log; return 200 ok; } #later
";

#[test]
fn files_have_the_modes_and_owners_that_nginx_gives_them() {
    let http = "access_log $dir/logs/a.log; proxy_cache_path $dir/cache keys_zone=z:1m;
        server { listen 127.0.0.1:$port; return 200 ok; } #later
";
    let listings = [Kind::Nginx, yorozu()].map(|kind| {
        let debian = debian(&kind, http)?;
        let steps = |debian: &Debian| {
            let logs = debian.folder.path().join("logs");
            let first = debian.listing();
            fs::rename(logs.join("a.log"), logs.join("a.log.1")).unwrap();
            signal(&debian.server, Signal::SIGUSR1);
            until("the new log", || logs.join("a.log").exists());
            until("its owner", || logs.join("a.log").metadata().unwrap().uid() != 0);
            let second = debian.listing();
            debian.reload("#later", "access_log $dir/logs/b.log;");
            until("the other log", || logs.join("b.log").exists());
            [first, second, debian.listing()]
        };
        let mut listings = steps(&debian);
        // nginx has folders of protocols that are off; its own sockets and the process id's names differ.
        let is_common = |name: &str| {
            ["logs", "cache", "body", "fastcgi", "pid"]
                .iter()
                .any(|one| name == *one || name.starts_with("logs/"))
        };
        listings.iter_mut().for_each(|listing| listing.retain(|name, _| is_common(name)));
        Some(listings)
    });
    let [Some(nginx), Some(ours)] = listings else { return };
    for (nginx, ours) in nginx.iter().zip(&ours) {
        assert_eq!(nginx, ours, "nginx, then yorozu");
    }
}

#[test]
fn logs_are_rotated_by_debians_own_file() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let (dir, port) = (debian.folder.path(), debian.server.port);
    let logs = dir.join("logs");
    // logrotate refuses folders that others may write to.
    for folder in [dir, &logs] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    let text = fs::read_to_string("/etc/logrotate.d/nginx").unwrap();
    // What the init script behind invoke-rc.d does, with a process id of this place.
    let signal = format!("kill -USR1 $(cat {}/pid)", dir.display());
    let text = text
        .replace("/var/log/nginx", &logs.display().to_string())
        .replace("invoke-rc.d nginx rotate", &signal);
    let rules = dir.join("logrotate.conf");
    fs::write(&rules, text).unwrap();
    fs::set_permissions(&rules, Permissions::from_mode(0o644)).unwrap();
    let lines =
        |name: &str| fs::read_to_string(logs.join(name)).unwrap_or_default().lines().count();
    for round in 1..=3 {
        assert!(get(port, "/").is_some());
        until("the line", || lines("a.log") > 0);
        let mut rotate = Command::new("/usr/sbin/logrotate");
        rotate.arg("-f").arg("-s").arg(dir.join("state")).arg(&rules);
        assert!(rotate.status().unwrap().success());
        assert!(logs.join("a.log.1").exists());
        assert_eq!(logs.join("a.log.2.gz").exists(), round > 1);
        let metadata = fs::metadata(logs.join("a.log")).unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o640);
        // The signal is obeyed when a new line is in the new file.
        until("a line in the new log", || get(port, "/").is_some() && lines("a.log") > 0);
        fs::write(logs.join("a.log"), "").unwrap();
    }
}

#[test]
fn a_reload_opens_what_only_root_may() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let (dir, logs) = (debian.folder.path(), debian.folder.path().join("logs"));
    for folder in [dir, &logs] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    let first = debian.server.serving_id();
    let user = fs::metadata(format!("/proc/{first}")).unwrap().uid();
    assert_ne!(user, 0, "the server is www-data's");
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap();
    for (name, value) in [("Max address space", "68719476736"), ("Max open files", "3000")] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains(value), "{line}");
    }
    let secret = dir.join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("more.conf"), "add_header X-Secret read;").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(secret.join("more.conf"), Permissions::from_mode(0o600)).unwrap();
    let low = (600..1000).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let low = low.unwrap();
    let more = format!(
        "proxy_cache_path $dir/new/cache keys_zone=n:1m; server {{ listen 127.0.0.1:{low};
         access_log $dir/logs/new.log; include $dir/secret/*.conf; return 200 low; }}"
    );
    debian.reload("#later", &more);
    until("the reload", || log(&debian.folder).contains("reconfigured"));
    let answer = get(low, "/").unwrap();
    assert_eq!((&*answer.body, answer.field("x-secret").as_deref()), (&b"low"[..], Some("read")));
    until("the line", || fs::read_to_string(logs.join("new.log")).unwrap().contains("GET / "));
    assert_eq!(fs::metadata(dir.join("new/cache")).unwrap().uid(), user);
    // The same after the server was replaced.
    send(first, Signal::SIGKILL);
    until("another server", || get(low, "/").is_some_and(|answer| answer.status == 200));
    // Logs that were moved away are written no more.
    fs::rename(logs.join("new.log"), logs.join("new.log.1")).unwrap();
    signal(&debian.server, Signal::SIGUSR1);
    until("the new log", || {
        get(low, "/again").unwrap();
        fs::read_to_string(logs.join("new.log")).unwrap_or_default().contains("/again")
    });
}

/// The names below a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|it| it.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn nothing_stays_behind_in_folders_of_root() {
    let folder = Folder::new();
    let (run, port) = (folder.path().join("run"), free_port());
    fs::create_dir(&run).unwrap();
    let user = if nix::unistd::geteuid().is_root() { "user www-data;" } else { "" };
    let text = Text {
        main: format!("{user} pid $dir/run/pid;"),
        http: PLAIN.replace("$port", &port.to_string()),
        ..Text::default()
    };
    let mut server = Server::try_start(&yorozu(), folder.path(), &[port], &text).unwrap();
    until("the process id", || names(&run) == ["pid", "pid.server", "pid.sock"]);
    // Applications often have the workers' user: it may not purge every site.
    let control = fs::metadata(run.join("pid.sock")).unwrap();
    assert_eq!(control.uid(), nix::unistd::geteuid().as_raw());
    assert_eq!(control.mode() & 0o777, 0o600);
    assert_ne!(answering(port), server.id());
    signal(&server, Signal::SIGTERM);
    assert!(server.wait());
    assert!(names(&run).is_empty(), "{:?}", names(&run));
}

#[test]
fn a_change_of_user_is_for_the_next_start() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let owner = |name: &str| fs::metadata(debian.folder.path().join(name)).unwrap().uid();
    let before = owner("body");
    debian.reload("user www-data;", "user games;");
    until("the reload", || log(&debian.folder).contains("reconfigured"));
    assert!(log(&debian.folder).contains("a change of \"user\" takes effect at the next start"));
    assert_eq!(owner("body"), before);
    // A new master of another user has a server of its own.
    let first = debian.server.serving_id();
    send(debian.server.id(), Signal::SIGKILL);
    until("the server's word", || log(&debian.folder).contains("the master process is gone"));
    let next = Master::start(&debian.folder);
    until("the end of the first", || !Path::new(&format!("/proc/{first}")).exists());
    assert!(get(debian.server.port, "/").is_some());
    assert_ne!(owner("body"), before);
    drop(next);
}

#[test]
fn what_a_user_may_write_is_not_given_with_roots_rights() {
    let Some(debian) = debian(&yorozu(), LOGGED) else { return };
    let (dir, user) =
        (debian.folder.path(), fs::metadata(debian.folder.path().join("body")).unwrap().uid());
    // In a folder of the user's a cache's place is a link to one of root's.
    let (theirs, roots) = (dir.join("theirs"), dir.join("roots"));
    for folder in [&theirs, &roots] {
        fs::create_dir(folder).unwrap();
    }
    std::os::unix::fs::chown(&theirs, Some(user), None).unwrap();
    std::os::unix::fs::symlink(&roots, theirs.join("cache")).unwrap();
    debian.reload("#later", "proxy_cache_path $dir/theirs/cache keys_zone=n:1m; #");
    until("the signal", || log(&debian.folder).contains("signal 1 (SIGHUP) received"));
    until("the answer", || {
        log(&debian.folder).contains("[emerg]") || log(&debian.folder).contains("reconfigured")
    });
    assert_eq!(fs::metadata(&roots).unwrap().uid(), 0);
    // What another process of that user's sees of the server: no memory, no descriptors.
    let serving = debian.server.serving_id();
    for what in ["mem", "environ", "fd"] {
        assert_eq!(fs::metadata(format!("/proc/{serving}/{what}")).unwrap().uid(), 0, "{what}");
    }
    let status = fs::read_to_string(format!("/proc/{serving}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}
