//! Every directive of the program, by module, in the order a request meets the modules.

use super::directive::Directive;
use super::{http_core, main_core};
use crate::connection::h2;
use crate::control;
use crate::filters::compress::{brotli, gunzip, gzip, precompressed, zstd};
use crate::filters::{addition, charset, headers, slice, ssi, sub, userid};
use crate::handlers::gateway;
use crate::handlers::{
    autoindex, dav, empty_gif, fastcgi, index, memcached, proxy, random_index, stub_status,
    upstream,
};
use crate::logging::access as access_log;
use crate::phases::{
    access, auth_basic, auth_request, browser, geo, limit_conn, limit_req, map, mirror, realip,
    referer, rewrite, secure_link, split_clients,
};
use crate::tls;
use std::collections::HashMap;
use std::sync::LazyLock;

/// A module's name, as nginx's manual has it, and its rows.
pub type Module = (&'static str, Vec<Directive>);

/// The modules.
pub fn modules() -> Vec<Module> {
    vec![
        ("core", [main_core::DIRECTIVES, main_core::OTHERS].concat()),
        ("http_core", [http_core::DIRECTIVES, http_core::OTHERS, http_core::IGNORED].concat()),
        ("http_ssl", [tls::directives::DIRECTIVES, tls::directives::OTHERS].concat()),
        ("http_v2", [h2::DIRECTIVES, h2::OTHERS].concat()),
        ("http_realip", realip::DIRECTIVES.to_vec()),
        ("http_map", map::DIRECTIVES.to_vec()),
        ("http_rewrite", [rewrite::DIRECTIVES, rewrite::OTHERS].concat()),
        ("http_geo", geo::DIRECTIVES.to_vec()),
        ("http_split_clients", split_clients::DIRECTIVES.to_vec()),
        ("http_limit_req", [limit_req::DIRECTIVES, limit_req::OTHERS].concat()),
        ("http_limit_conn", [limit_conn::DIRECTIVES, limit_conn::OTHERS].concat()),
        ("http_access", access::DIRECTIVES.to_vec()),
        ("http_auth_basic", auth_basic::DIRECTIVES.to_vec()),
        ("http_auth_request", auth_request::DIRECTIVES.to_vec()),
        ("http_mirror", mirror::DIRECTIVES.to_vec()),
        ("http_browser", browser::DIRECTIVES.to_vec()),
        ("http_referer", referer::DIRECTIVES.to_vec()),
        ("http_secure_link", secure_link::DIRECTIVES.to_vec()),
        ("http_empty_gif", empty_gif::DIRECTIVES.to_vec()),
        ("http_random_index", random_index::DIRECTIVES.to_vec()),
        ("http_dav", dav::DIRECTIVES.to_vec()),
        ("http_index", index::DIRECTIVES.to_vec()),
        ("http_autoindex", autoindex::DIRECTIVES.to_vec()),
        ("http_stub_status", stub_status::DIRECTIVES.to_vec()),
        ("control", control::DIRECTIVES.to_vec()),
        ("http_upstream", upstream::DIRECTIVES.to_vec()),
        ("http_proxy", proxy::rows()),
        ("http_memcached", memcached::rows()),
        ("http_fastcgi", {
            let mut rows = gateway::rows::<fastcgi::Family>();
            rows.extend_from_slice(fastcgi::DIRECTIVES);
            rows.extend_from_slice(fastcgi::OTHERS);
            rows
        }),
        ("http_sub", sub::DIRECTIVES.to_vec()),
        ("http_addition", addition::DIRECTIVES.to_vec()),
        ("http_ssi", ssi::DIRECTIVES.to_vec()),
        ("http_userid", userid::DIRECTIVES.to_vec()),
        ("http_slice", slice::DIRECTIVES.to_vec()),
        ("http_charset", [charset::DIRECTIVES, charset::map::DIRECTIVES].concat()),
        ("http_headers", headers::DIRECTIVES.to_vec()),
        ("http_gzip", gzip::DIRECTIVES.to_vec()),
        ("http_brotli", brotli::DIRECTIVES.to_vec()),
        ("http_zstd", [zstd::DIRECTIVES, zstd::OTHERS].concat()),
        ("http_gunzip", gunzip::DIRECTIVES.to_vec()),
        ("http_gzip_static", precompressed::DIRECTIVES.to_vec()),
        ("http_log", [access_log::DIRECTIVES, access_log::OTHERS].concat()),
    ]
}

static BY_NAME: LazyLock<HashMap<String, Vec<Directive>>> = LazyLock::new(|| {
    let mut by_name: HashMap<String, Vec<Directive>> = HashMap::new();
    for row in modules().into_iter().flat_map(|(_, rows)| rows) {
        // A context of none: the setting is filled by a row of its own elsewhere.
        if row.contexts != 0 {
            by_name.entry(row.name.clone().into_owned()).or_default().push(row);
        }
    }
    by_name
});

/// The rows of a name: one, or one per context where it means different things (`server`).
pub fn rows(name: &str) -> &'static [Directive] {
    BY_NAME.get(name).map(Vec::as_slice).unwrap_or_default()
}

/// Settings that are read and checked, and change nothing, with the reason. Those whose words are
/// given have no effect only when written so.
const WITHOUT_EFFECT: &[(&str, &[&str], &str)] = &[
    ("client_body_in_single_buffer", &[], "a body in memory is always in one buffer"),
    ("directio", &[], "files are read through the page cache"),
    ("env", &[], "the whole environment is kept"),
    ("fastcgi_busy_buffers_size", &[], "whatever has arrived may be sent"),
    ("fastcgi_send_lowat", &[], "the kernel decides"),
    ("fastcgi_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("brotli_buffers", &[], "memory is taken as needed"),
    ("gunzip_buffers", &[], "memory is taken as needed"),
    ("gzip_buffers", &[], "memory is taken as needed"),
    ("master_process", &[], "one process does both jobs"),
    ("memcached_buffer_size", &[], "a value is read whole"),
    ("memcached_send_timeout", &[], "questions wait with others' and count into the read timeout"),
    ("msie_refresh", &["on"], "redirects are sent as redirects"),
    ("proxy_busy_buffers_size", &[], "whatever has arrived may be sent"),
    ("proxy_send_lowat", &[], "the kernel decides"),
    ("proxy_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("ssi_min_file_chunk", &[], "pages are read"),
    ("tcp_nodelay", &["off"], "small writes are never delayed"),
    ("tcp_nopush", &["on"], "head and content always share a packet"),
    ("zstd_buffers", &[], "memory is taken as needed"),
    ("worker_priority", &[], "the process keeps the priority it was started with"),
];

/// Why a directive changes nothing however it is written; `None` if it can.
pub fn without_effect_at_all(name: &str) -> Option<&'static str> {
    let found = WITHOUT_EFFECT.iter().find(|(found, words, _)| *found == name && words.is_empty());
    found.map(|(_, _, why)| *why)
}

/// Why a simple directive, so written, changes nothing; `None` if it does.
pub fn without_effect(name: &str, args: &[bytes::Bytes]) -> Option<&'static str> {
    let (_, words, why) = WITHOUT_EFFECT.iter().find(|(found, ..)| *found == name)?;
    let is_so = words.is_empty()
        || args.first().is_some_and(|arg| words.iter().any(|w| arg == w.as_bytes()));
    is_so.then_some(*why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_each_context() {
        for (name, rows) in BY_NAME.iter() {
            let mut seen = 0;
            for row in rows {
                assert_eq!(seen & row.contexts, 0, "{name} stands twice in one context");
                seen |= row.contexts;
            }
        }
    }

    #[test]
    fn what_is_without_effect_is_a_directive() {
        for (name, ..) in WITHOUT_EFFECT {
            assert!(!rows(name).is_empty(), "{name} is not registered");
        }
    }

    #[test]
    fn every_row_has_manual_text() {
        for (module, rows) in modules() {
            for row in rows {
                assert!(row.doc.trim().ends_with('.'), "{module}: {} lacks a sentence", row.name);
            }
        }
    }
}
