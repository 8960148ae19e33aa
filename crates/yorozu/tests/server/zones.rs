//! `TZ` in the environment: every local time that the server writes is of that zone, as nginx's.

use crate::shared::{get, log, until, yorozu};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use yorozu_testkit::server::{Folder, Kind, Server, Text, free_port};

/// 2026-07-01 12:00:00
const DATED: u64 = 1_782_907_200;

const TEXT: &str = r#"log_format times "$time_local $time_iso8601"; access_log $dir/logs/times.log times;
    server { listen 127.0.0.1:$port;
        location = /daily { expires @15h30m; return 204; }
        location = /page.html { ssi on; }
        location /folder/ { autoindex on; autoindex_localtime on; } }"#;

/// What the server writes, without what depends on the moment.
#[derive(Debug, PartialEq)]
struct Times {
    /// The offset of `$time_local`.
    local: String,
    /// That of `$time_iso8601`.
    iso8601: String,
    /// The time of day of `Expires`.
    daily: String,
    /// The offset of SSI's `date_local`.
    page: String,
    /// When a file was changed.
    folder: String,
    /// How far the error log's time is from the `local` one, in half hours.
    error: u64,
}

fn times(kind: &Kind, zone: &str) -> Times {
    let folder = Folder::new();
    let html = folder.path().join("html");
    fs::create_dir(html.join("folder")).unwrap();
    let file = fs::File::create(html.join("folder/file")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(DATED)).unwrap();
    let page = r#"<!--#config timefmt="%z" --><!--#echo var="date_local" -->"#;
    fs::write(html.join("page.html"), page).unwrap();
    let port = free_port();
    let text = Text {
        http: TEXT.replace("$port", &port.to_string()),
        environment: vec![("TZ", zone.to_owned())],
        ..Text::default()
    };
    let _server = Server::try_start(kind, folder.path(), &[port], &text).unwrap();
    let body = |path| String::from_utf8(get(port, path).unwrap().body).unwrap();
    let listing = body("/folder/");
    let dated = listing.lines().find(|line| line.contains("file</a>")).unwrap();
    let [.., day, time, _] = dated.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{listing}")
    };
    let expires = get(port, "/daily").unwrap().field("expires").unwrap();
    let page = body("/page.html").trim().to_owned();
    assert_eq!(get(port, "/none").unwrap().status, 404);
    let written = || fs::read_to_string(folder.path().join("logs/times.log")).unwrap();
    until("the access log", || written().lines().count() == 4);
    let access = written();
    let [_, local, iso8601] = access.lines().next().unwrap().split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{access}")
    };
    until("the error log", || log(&folder).contains("open()"));
    let errors = log(&folder);
    let error = errors.lines().find(|line| line.contains("open()")).unwrap();
    Times {
        local: local.to_owned(),
        iso8601: iso8601[19..].to_owned(),
        daily: expires[17..].to_owned(),
        page,
        folder: format!("{day} {time}"),
        error: half_hours_from_now(&error[11..19], local),
    }
}

/// Between a time of day and the present one where clocks are `offset` ahead.
fn half_hours_from_now(time: &str, offset: &str) -> u64 {
    const DAY: i64 = 86_400;
    let number = |text: &str| text.parse::<i64>().unwrap();
    let ahead = (number(&offset[1..3]) * 60 + number(&offset[3..5])) * 60;
    let ahead = if offset.starts_with('-') { -ahead } else { ahead };
    let then = (number(&time[..2]) * 60 + number(&time[3..5])) * 60 + number(&time[6..]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let apart = (i64::try_from(now).unwrap() + ahead - then).rem_euclid(DAY);
    u64::try_from(apart.min(DAY - apart)).unwrap() / 1800
}

#[test]
fn local_times_are_of_the_zone_in_the_environment() {
    // Of each, what a file of 12:00 in July is listed as.
    let table = [
        ("America/New_York", "08:00"),
        (":Asia/Tokyo", "21:00"),
        ("/usr/share/zoneinfo/Asia/Kolkata", "17:30"),
        ("JST-9", "21:00"),
        ("AEST-10AEDT", "23:00"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "14:00"),
        ("", "12:00"),
        ("Nowhere/City", "12:00"),
    ];
    for (zone, listed) in table {
        let ours = times(&yorozu(), zone);
        assert_eq!(ours.folder, format!("01-Jul-2026 {listed}"), "{zone}");
        assert_eq!(ours.error, 0, "{zone}: {ours:?}");
        if let Some(nginx) = Kind::oracle() {
            // It lists a file of July in January by January's clocks.
            let theirs = Times { folder: ours.folder.clone(), ..times(&nginx, zone) };
            assert_eq!(ours, theirs, "{zone}");
        }
    }
}
