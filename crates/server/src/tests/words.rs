//! Words of lists: their case, and where they stand twice; and the old words of TLS.

use crate::config::load::Kept;
use crate::modules::MODULES;
use crate::testing::config;
use bytes::Bytes;
use std::path::PathBuf;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::{Action, Args};
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::shared::SharedSet;

#[test]
fn words_of_a_set_are_told_of_where_they_stand_twice() {
    let told = |text: &str| config(&format!("http {{ server {{ {text} }} }}")).warnings.clone();
    for text in [
        "keepalive_disable none;",
        "keepalive_disable none msie6;",
        "keepalive_disable msie6; keepalive_disable safari;",
        "keepalive_disable NONE Safari;",
        "dav_methods off PUT;",
        "ssl_protocols TLSv1.2; ssl_protocols TLSv1.3;",
        "proxy_cache_methods get; proxy_cache_methods post;",
        "userid_flags off secure;",
    ] {
        assert!(told(text).is_empty(), "{text}: {:?}", told(text));
    }
    for (text, word) in [
        ("keepalive_disable none none;", "none"),
        ("keepalive_disable msie6; keepalive_disable MSIE6;", "MSIE6"),
        ("dav_methods put; dav_methods Put;", "Put"),
        ("dav_methods off off;", "off"),
        ("ssl_protocols TLSv1.2 tlsv1.2;", "tlsv1.2"),
        ("proxy_ssl_protocols TLSv1.3; proxy_ssl_protocols TLSv1.3;", "TLSv1.3"),
        ("proxy_cache_methods GET GET;", "GET"),
        ("userid_flags secure; userid_flags secure;", "secure"),
        ("gzip_proxied any; gzip_proxied any;", "any"),
        ("proxy_next_upstream error; proxy_next_upstream error;", "error"),
        ("proxy_ignore_headers Vary; proxy_ignore_headers vary;", "vary"),
        ("memcached_next_upstream error; memcached_next_upstream error;", "error"),
    ] {
        let told = told(text);
        let expected = format!("duplicate value \"{word}\" in ");
        assert!(matches!(&told[..], [one] if one.starts_with(&expected)), "{text}: {told:?}");
    }
}

#[test]
fn old_versions_of_tls_are_told_of_in_one_line() {
    let told = |text: &str| config(&format!("http {{ {text} }}")).warnings.clone();
    assert_eq!(
        told("ssl_protocols SSLv3 TLSv1 TLSv1.1 TLSv1.2;"),
        [
            "\"SSLv3\", \"TLSv1\" and \"TLSv1.1\" in \"ssl_protocols\" are ignored: the TLS library supports only TLSv1.2 and TLSv1.3"
        ]
    );
    assert_eq!(
        told("proxy_ssl_protocols TLSv1 TLSv1.2;"),
        [
            "\"TLSv1\" in \"proxy_ssl_protocols\" is ignored: the TLS library supports only TLSv1.2 and TLSv1.3"
        ]
    );
}

#[test]
fn ssl_on_is_for_the_addresses_of_which_its_server_is_the_default_one() {
    let reject = "ssl_reject_handshake on;";
    let speak = |text: &str| {
        let config = config(&format!("http {{ {reject} {text} }}"));
        let shown = config.warnings.iter().filter(|line| {
            line.starts_with(
                "the \"ssl\" directive is deprecated, use the \"listen ... ssl\" directive instead in ",
            )
        });
        assert_eq!(shown.count(), text.lines().count() - 1, "a line each: {text}");
        let sockets = config.sockets.iter().filter(|socket| !socket.options.is_control);
        sockets.map(|socket| socket.is_tls).collect::<Vec<_>>()
    };
    for (text, expected) in [
        ("server { listen 1; listen 2; listen unix:a;\nssl on; }", &[true, true, true][..]),
        ("server { listen 1; listen 2 ssl;\nssl off; }", &[false, true]),
        ("server { listen 1; listen 2 ssl;\nssl ON; }", &[true, true]),
        ("server { listen 1 quic; listen 1;\nssl on; }", &[true, true]),
        ("\nssl on; server { listen 1; } server { listen 2; }", &[true, true]),
        ("\nssl on; server { listen 1;\nssl off; } server { listen 2; }", &[false, true]),
        ("server { listen 1;\nssl on; } server { listen 1; }", &[true]),
        ("server { listen 1; } server { listen 1;\nssl on; }", &[false]),
        ("server { listen 1; } server { listen 1 default_server;\nssl on; }", &[true]),
    ] {
        assert_eq!(speak(text), expected, "{text}");
    }
    // The control socket is a server of the configuration, and stays as it is.
    let config = config(&format!("pid a; http {{ {reject} ssl on; server {{ listen 1; }} }}"));
    assert!(config.sockets.iter().all(|socket| socket.is_tls != socket.options.is_control));
}

/// Names, or their ends, where nginx compares exactly, where a word is one thing among addresses, paths or times, that
/// are our own, that a whole configuration says once, or that would be looked up as names of hosts.
const EXACT: &[&str] = &[
    "_bind",
    "_cache_dry_run",
    "_cache_early_refresh",
    "_cache_heuristic",
    "_certificate_cache",
    "_pass",
    "access_log",
    "aio",
    "allow",
    "deny",
    "directio",
    "disable_symlinks",
    "expires",
    "geoip2_proxy",
    "geoip2_proxy_recursive",
    "listen",
    "open_file_cache",
    "open_log_file_cache",
    "prometheus",
    "proxy_cookie_domain",
    "proxy_cookie_flags",
    "proxy_cookie_path",
    "proxy_redirect",
    "resolver",
    "server",
    "set_real_ip_from",
    "ssl_ecdh_curve",
    "ssl_session_cache",
    "userid_mark",
    "worker_cpu_affinity",
    "worker_processes",
];
/// Words of lists, as they are written in the manual or in small letters.
const WORDS: &[&str] = &[
    "all",
    "always",
    "any",
    "auth",
    "auto",
    "before",
    "build",
    "cache-control",
    "chunked",
    "clean",
    "copy",
    "denied",
    "error",
    "exact",
    "expired",
    "fields",
    "get",
    "html",
    "http_500",
    "httponly",
    "info",
    "invalid_header",
    "json",
    "leaf",
    "log",
    "msie6",
    "none",
    "notice",
    "off",
    "on",
    "optional",
    "poll",
    "post",
    "put",
    "secure",
    "stop",
    "timeout",
    "tlsv1.2",
    "updating",
    "v1",
    "warn",
    "xml",
];

#[test]
fn words_that_nginx_compares_without_case_are_compared_so() {
    let folders = (PathBuf::from("/none"), PathBuf::from("/none"));
    let env = Env::new(&MODULES, folders, Kept::for_test().logs, &SharedSet::default());
    let is_exact = |name: &str| EXACT.iter().any(|end| name.ends_with(end));
    let (mut seen, mut wrong) = (0, Vec::new());
    for (name, rows) in MODULES.names().filter(|(name, _)| !is_exact(name)) {
        for row in rows.iter().filter(|row| row.arity.admits(1)) {
            let (Action::Set(set) | Action::Ignored(_, set)) = row.action else { continue };
            let takes = |word: &str| {
                let mut block = Block::new(row.contexts & row.contexts.wrapping_neg(), None);
                let words = [Bytes::copy_from_slice(word.as_bytes())];
                set(&mut block, &Args { name, words: &words, env: &env }).is_ok()
            };
            if takes("anything-else") {
                continue;
            }
            for word in WORDS.iter().filter(|word| takes(word)) {
                seen += 1;
                let upper = word.to_uppercase();
                if !takes(&upper) {
                    wrong.push(format!("{name} {upper}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 300, "only {seen} words were looked at");
}
