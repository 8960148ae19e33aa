//! Every directive that works stands in the configuration of a case, and is missed there.
//!
//! `cargo test -p yorozu --test cases coverage -- --ignored` takes each directive out of the cases that have it,
//! one after the other, until one of them fails. `DIRECTIVE=gzip_vary` does so for one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use yorozu_conf::Directive;
use yorozu_kernel::config::directive::Action;
use yorozu_kernel::config::files::Files;
use yorozu_server::modules::MODULES;
use yorozu_testkit::case::{self, Case};
use yorozu_testkit::form::FORMS;
use yorozu_testkit::run::run_changed;
use yorozu_testkit::server::{Kind, Text};

/// Directives without a case, and why. The list only becomes shorter: one that has a case fails.
const WITHOUT_A_CASE: &[(&str, &str)] = &[
    ("autoindex_localtime", "the zone of the test's machine is its own"),
    ("control", "crates/yorozu/tests/server/control.rs"),
    ("fastcgi_cache_early_refresh", "it is left to chance when"),
    ("fastcgi_socket_rcvbuf", "a buffer of the own socket: not visible from outside"),
    ("fastcgi_socket_sndbuf", "a buffer of the own socket: not visible from outside"),
    ("gzip_comp_level", "compressors differ in how much shorter a level makes a content"),
    ("http2", "the runner uses `listen … http2`, which nginx 1.22 knows"),
    ("http2_body_preread_size", "no case looks at windows yet"),
    ("http2_max_concurrent_streams", "no case has streams beside each other yet"),
    ("lingering_close", "crates/yorozu/tests/server/lingering.rs"),
    ("lingering_time", "crates/yorozu/tests/server/lingering.rs"),
    ("lingering_timeout", "crates/yorozu/tests/server/lingering.rs"),
    ("msie_refresh", "only off has an effect, and is the default"),
    ("proxy_cache_early_refresh", "it is left to chance when"),
    ("proxy_socket_rcvbuf", "a buffer of the own socket: not visible from outside"),
    ("proxy_socket_sndbuf", "a buffer of the own socket: not visible from outside"),
    ("reset_timedout_connection", "crates/yorozu/tests/server/process.rs"),
    ("scgi_cache_early_refresh", "it is left to chance when"),
    ("scgi_socket_rcvbuf", "a buffer of the own socket: not visible from outside"),
    ("scgi_socket_sndbuf", "a buffer of the own socket: not visible from outside"),
    ("sendfile", "how a file is sent is not seen outside"),
    ("sendfile_max_chunk", "how a file is sent is not seen outside"),
    ("ssl_certificate_cache", "no case yet"),
    ("ssl_session_ticket_key", "tests/test_tls.py"),
    ("ssl_stapling", "tests/test_tls.py has a responder"),
    ("ssl_stapling_file", "tests/test_tls.py has a responder"),
    ("ssl_stapling_responder", "tests/test_tls.py has a responder"),
    ("tcp_nodelay", "packets are not seen by a client"),
    ("tcp_nopush", "packets are not seen by a client"),
    ("use", "there is one method"),
    ("user", "the tests are not always root's"),
    ("uwsgi_cache_early_refresh", "it is left to chance when"),
    ("uwsgi_socket_rcvbuf", "a buffer of the own socket: not visible from outside"),
    ("uwsgi_socket_sndbuf", "a buffer of the own socket: not visible from outside"),
    ("worker_connections", "tests/peers.py"),
    ("worker_processes", "threads are not seen outside"),
    ("worker_shutdown_timeout", "crates/yorozu/tests/server/process.rs"),
    ("zone", "threads share state without it"),
];

/// Directives that stand in cases which do not miss them, and why.
const NOT_MISSED: &[(&str, &str)] = &[
    ("brotli_comp_level", "compressors differ in what a level makes"),
    ("brotli_window", "compressors differ in what a window makes"),
    ("fastcgi_cache_lock_timeout", "an answer that comes later is the same"),
    ("limit_rate_after", "an answer that comes later is the same"),
    ("proxy_cache_lock_timeout", "an answer that comes later is the same"),
    ("proxy_store_access", "root, as whom tests may run, reads every file"),
    ("scgi_cache_lock_timeout", "an answer that comes later is the same"),
    ("uwsgi_cache_lock_timeout", "an answer that comes later is the same"),
    ("zstd_comp_level", "compressors differ in what a level makes"),
];

/// What the runner says in every configuration.
const OF_THE_RUNNER: [&str; 3] = ["daemon", "events", "http"];

/// Blocks whose lines are no directives.
const TABLES: [&[u8]; 5] = [b"map", b"geo", b"types", b"split_clients", b"charset_map"];

/// Names of directives that do something.
fn working() -> BTreeSet<String> {
    // Certificates that an issuer gives need one: `tests/test_acme.py` has it, and each of these directives.
    let modules = MODULES.all.iter().filter(|module| module.name != "http_acme");
    let rows = modules.flat_map(|module| (module.directives)());
    rows.filter(|row| row.contexts != 0)
        .filter(|row| !matches!(row.action, Action::Ignored(..) | Action::Refused(_)))
        .map(|row| row.name.into_owned())
        .filter(|name| MODULES.without_effect_at_all(name).is_none())
        .filter(|name| !OF_THE_RUNNER.contains(&&name[..]))
        .collect()
}

fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = case::files(&root);
    let read = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).expect("it was just found");
        case::parse_all(&text)
    };
    files.iter().flat_map(read).collect()
}

fn parsed(text: &str) -> Vec<Directive> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    yorozu_conf::parse_text(&Files { folder: "/".into() }, text)
        .unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// Adds the names of all directives, also those in blocks.
fn names(directives: &[Directive], found: &mut BTreeSet<String>) {
    for directive in directives {
        found.insert(directive.name_text().into_owned());
        let block = directive.block.iter().filter(|_| !TABLES.contains(&&directive.name[..]));
        block.for_each(|block| names(block, found));
    }
}

/// The cases that have each directive.
fn by_directive(cases: &[Case]) -> BTreeMap<String, Vec<&Case>> {
    let mut by_name: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for case in cases {
        let mut found = BTreeSet::new();
        names(&parsed(&case.directives()), &mut found);
        for name in found {
            by_name.entry(name).or_default().push(case);
        }
    }
    by_name
}

#[test]
fn every_directive_stands_in_a_case() {
    let cases = cases();
    let covered = by_directive(&cases);
    let listed: BTreeSet<_> = WITHOUT_A_CASE.iter().map(|(name, _)| (*name).to_owned()).collect();
    let open: BTreeSet<_> =
        working().into_iter().filter(|name| !covered.contains_key(name)).collect();
    assert!(listed.len() < 40, "{} directives without a case are too many", listed.len());
    let missing: Vec<_> = open.difference(&listed).collect();
    assert!(missing.is_empty(), "{} directives have no case: {missing:?}", missing.len());
    let over: Vec<_> = listed.difference(&open).collect();
    assert!(over.is_empty(), "they have a case, or do nothing; take them from the list: {over:?}");
}

#[test]
#[ignore = "runs every case again and again"]
fn every_directive_is_missed() {
    let cases = cases();
    let covered = by_directive(&cases);
    let wanted = std::env::var("DIRECTIVE").unwrap_or_default();
    let names: Vec<_> =
        working().into_iter().filter(|name| wanted.is_empty() || *name == wanted).collect();
    let next = Mutex::new(names.iter());
    let unmissed = Mutex::new(BTreeSet::new());
    let work = || {
        loop {
            let name = next.lock().expect("no holder panics").next();
            let Some(name) = name else { return };
            let Some(cases) = covered.get(name) else { continue };
            if !cases.iter().any(|case| is_missed(case, name)) {
                unmissed.lock().expect("no holder panics").insert(name.clone());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(work);
        }
    });
    let unmissed = unmissed.into_inner().expect("no holder panics");
    let listed: BTreeSet<_> = NOT_MISSED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let more: Vec<_> = unmissed.difference(&listed).collect();
    assert!(more.is_empty(), "no case fails without {more:?}");
    if wanted.is_empty() {
        let over: Vec<_> = listed.difference(&unmissed).collect();
        assert!(over.is_empty(), "a case fails without them; take them from the list: {over:?}");
    }
}

/// Whether the case fails in one of its forms without the directive.
fn is_missed(case: &Case, name: &str) -> bool {
    let kind = Kind::Yorozu(env!("CARGO_BIN_EXE_yorozu").into());
    let change = |text: Text| Text {
        main: without(&parsed(&text.main), name),
        events: without(&parsed(&text.events), name),
        http: without(&parsed(&text.http), name),
        environment: text.environment,
    };
    // One form of a kind shows it, and the first is the fastest.
    let parts = case.parts(&kind);
    let forms: Vec<_> = parts.iter().flatten().copied().collect();
    let first = FORMS.iter().find(|form| forms.contains(form));
    first.is_some_and(|form| run_changed(case, &kind, &[*form], &change).is_err())
}

/// The directives as text, without those of a name.
fn without(directives: &[Directive], name: &str) -> String {
    let mut text = String::new();
    for directive in directives.iter().filter(|directive| directive.name != name) {
        let words = std::iter::once(&directive.name).chain(&directive.args);
        for word in words {
            let word = String::from_utf8_lossy(word);
            text.push_str(&format!("\"{}\" ", word.replace('\\', "\\\\").replace('"', "\\\"")));
        }
        match &directive.block {
            Some(block) => text.push_str(&format!("{{ {} }}\n", without(block, name))),
            None => text.push_str(";\n"),
        }
    }
    text
}
