//! The modules of the server, in the order a request meets them. A new one is a line here.

use crate::{console, control, cron};
use std::sync::LazyLock;
use yorozu_connection::{h2, quic, tls};
use yorozu_gateway::{cache, fastcgi, grpc, memcached, nodes, proxy, scgi, upstream, uwsgi};
use yorozu_kernel::config::module::{Module, Modules, WithoutEffect};
use yorozu_kernel::config::{http_core, main_core};
use yorozu_kernel::exchange::core_variables::VARIABLES;
use yorozu_modules::filters::compress::{brotli, gunzip, gzip, precompressed, zstd};
use yorozu_modules::filters::{addition, charset, headers, more_headers, slice, ssi, sub, userid};
use yorozu_modules::handlers::{
    autoindex, dav, empty_gif, flv, index, mp4, random_index, stub_status,
};
use yorozu_modules::phases::{
    access, auth_basic, auth_request, browser, geo, geoip2, htaccess, limit_conn, limit_req, map,
    mirror, realip, referer, rewrite, secure_link, split_clients,
};
use yorozu_modules::{access_log, metrics};

/// The modules.
const ALL: &[Module] = &[
    main_core::MODULE,
    http_core::MODULE.computing(VARIABLES),
    tls::MODULE,
    yorozu_acme::MODULE,
    h2::MODULE,
    quic::MODULE,
    realip::MODULE,
    map::MODULE,
    rewrite::MODULE,
    geo::MODULE,
    geoip2::MODULE,
    split_clients::MODULE,
    limit_req::MODULE,
    limit_conn::MODULE,
    access::MODULE,
    htaccess::MODULE,
    auth_basic::MODULE,
    auth_request::MODULE,
    mirror::MODULE,
    browser::MODULE,
    referer::MODULE,
    secure_link::MODULE,
    empty_gif::MODULE,
    flv::MODULE,
    mp4::MODULE,
    random_index::MODULE,
    dav::MODULE,
    index::MODULE,
    autoindex::MODULE,
    stub_status::MODULE,
    metrics::MODULE,
    console::MODULE,
    control::MODULE,
    cron::MODULE,
    upstream::MODULE,
    cache::MODULE,
    cache::cleaned::MODULE,
    cache::header_rules::MODULE,
    cache::memory::MODULE,
    nodes::MODULE,
    proxy::MODULE,
    grpc::MODULE,
    memcached::MODULE,
    fastcgi::MODULE,
    uwsgi::MODULE,
    scgi::MODULE,
    sub::MODULE,
    addition::MODULE,
    ssi::MODULE,
    userid::MODULE,
    slice::MODULE,
    charset::MODULE,
    headers::MODULE,
    more_headers::MODULE,
    gzip::MODULE,
    brotli::MODULE,
    zstd::MODULE,
    gunzip::MODULE,
    precompressed::MODULE,
    access_log::MODULE,
];

/// The modules, with their directives by name.
pub static MODULES: LazyLock<Modules> = LazyLock::new(|| Modules::new(ALL, WITHOUT_EFFECT));

/// Settings that are read and checked, and change nothing, with the reason. Those whose words are
/// given have no effect only when written so.
const WITHOUT_EFFECT: &[WithoutEffect] = &[
    ("acme_shared_zone", &[], "memory is allocated as needed"),
    ("client_body_in_single_buffer", &[], "a body in memory is always in one buffer"),
    ("connection_pool_size", &[], "there are no memory pools"),
    ("directio", &[], "files are read through the page cache"),
    (
        "env",
        &[],
        "the whole environment is kept as it is: set a variable where the server is started",
    ),
    ("fastcgi_busy_buffers_size", &[], "everything that has arrived may be sent"),
    ("fastcgi_send_lowat", &[], "the kernel decides"),
    ("fastcgi_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("brotli_buffers", &[], "memory is allocated as needed"),
    ("gunzip_buffers", &[], "memory is allocated as needed"),
    ("gzip_buffers", &[], "memory is allocated as needed"),
    ("memcached_buffer_size", &[], "a value is read whole"),
    (
        "memcached_send_timeout",
        &[],
        "requests share a queue with those of other clients, which counts towards the read timeout",
    ),
    ("msie_refresh", &["on"], "redirects are sent as redirects"),
    ("proxy_busy_buffers_size", &[], "everything that has arrived may be sent"),
    ("proxy_send_lowat", &[], "the kernel decides"),
    ("proxy_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("scgi_busy_buffers_size", &[], "everything that has arrived may be sent"),
    ("scgi_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("ssi_min_file_chunk", &[], "pages are read"),
    ("tcp_nodelay", &["off"], "small writes are never delayed"),
    ("tcp_nopush", &["on"], "head and content always share a packet"),
    ("uwsgi_busy_buffers_size", &[], "everything that has arrived may be sent"),
    ("uwsgi_temp_file_write_size", &[], "pieces are written as they arrive"),
    ("zstd_buffers", &[], "memory is allocated as needed"),
    ("worker_priority", &[], "the process keeps the priority it was started with"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_each_context() {
        for (name, rows) in MODULES.names() {
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
            assert!(!MODULES.rows(name).is_empty(), "{name} is not registered");
        }
    }

    #[test]
    fn every_row_has_manual_text() {
        for module in MODULES.all {
            for row in (module.directives)() {
                assert!(
                    row.doc.trim().ends_with('.'),
                    "{}: {} lacks a sentence",
                    module.name,
                    row.name
                );
            }
        }
    }
}
