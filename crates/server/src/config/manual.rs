//! The manual's list of directives, made from the rows.

use crate::modules::MODULES;
use std::fmt::Write as _;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::names::is_assignment;

const CONTEXT_NAMES: [(Contexts, &str); 10] = [
    (MAIN, "main"),
    (EVENTS, "events"),
    (HTTP, "http"),
    (SERVER, "server"),
    (LOCATION, "location"),
    (SERVER_IF, "if in server"),
    (LOCATION_IF, "if in location"),
    (LIMIT_EXCEPT, "limit_except"),
    (UPSTREAM, "upstream"),
    (ACME_ISSUER, "acme_issuer"),
];

/// Directives that nginx has and that do something else here, with what.
const DIFFERS: &[(&[&str], &str)] = &[
    (&["worker_processes"], "threads; changes take effect at the next start"),
    (
        &["worker_connections"],
        "further clients wait until a connection that is idle, silent or slow to start has ended; each socket always has room for 8",
    ),
    (&["worker_shutdown_timeout"], "if not set, connections from before a reload may stay open"),
    (&["listen"], "the default backlog is 16,384"),
    (&["server_tokens"], "says `yorozu`"),
    (
        &["quic_host_key"],
        "if not set, the key belongs to the process, not the configuration; a changed key takes effect at the next start",
    ),
    (&["ssl_early_data"], "with QUIC only"),
    (&["quic_retry"], "Retry is also requested while many handshakes are in progress"),
    (&["resolver"], "`localhost` is not looked up"),
    (
        &["client_body_temp_path", "client_body_in_file_only"],
        "body files have no name unless they are kept",
    ),
    (&["if_modified_since"], "ignored if there is an `If-None-Match`"),
    (&["gzip_min_length"], "applies to responses that arrived whole without `Content-Length`, too"),
    (&["sub_filter", "ssi", "add_before_body", "add_after_body"], "subrequests have no content"),
    (&["dav_methods"], "a file is written next to its target and renamed"),
    (&["auth_basic_user_file"], "hashes of gost-yescrypt, scrypt, SunMD5 and NT are not supported"),
    (
        &["proxy_cache_key", "fastcgi_cache_key", "scgi_cache_key", "uwsgi_cache_key"],
        "if not set, the key is method, host and target; with proxy_pass, nginx's $scheme$proxy_host$request_uri",
    ),
    (
        &[
            "proxy_cache_methods",
            "fastcgi_cache_methods",
            "scgi_cache_methods",
            "uwsgi_cache_methods",
        ],
        "responses to HEAD are stored only under a key with `$request_method`",
    ),
    (
        &["proxy_cache_valid", "fastcgi_cache_valid", "scgi_cache_valid", "uwsgi_cache_valid"],
        "`any` excludes statuses that concern one request; our own 502 and 504 are never stored",
    ),
    (
        &[
            "proxy_cache_use_stale",
            "fastcgi_cache_use_stale",
            "scgi_cache_use_stale",
            "uwsgi_cache_use_stale",
        ],
        "`must-revalidate` and the like forbid it",
    ),
    (
        &["proxy_cache_purge", "fastcgi_cache_purge", "scgi_cache_purge", "uwsgi_cache_purge"],
        "as in nginx's commercial version, with `tag`, `soft` and lists",
    ),
    (
        &["proxy_request_buffering", "fastcgi_request_buffering"],
        "also `chunked`; requests that the cache may answer are read whole first",
    ),
    (
        &["scgi_pass"],
        "`CONTENT_LENGTH` is sent once, with the actual length; a parameter with a zero byte is refused",
    ),
    (&["proxy_pass_request_body"], "off sends no `Content-Length` either"),
    (&["proxy_pass"], "spaces and line ends from variables are escaped"),
    (
        &[
            "proxy_redirect",
            "proxy_hide_header",
            "fastcgi_hide_header",
            "scgi_hide_header",
            "uwsgi_hide_header",
            "proxy_cookie_domain",
            "proxy_cookie_path",
            "proxy_cookie_flags",
        ],
        "applied when a page is stored",
    ),
    (
        &["memcached_pass"],
        "responses are read whole; connections are kept without `keepalive`, too",
    ),
    (&["proxy_ssl_protocols", "uwsgi_ssl_protocols", "ssl_protocols"], "1.2 and 1.3"),
    (&["proxy_ssl_ciphers", "uwsgi_ssl_ciphers", "ssl_ciphers"], "only those with forward secrecy"),
    (
        &["proxy_ssl_verify", "uwsgi_ssl_verify"],
        "X.509 version 1 authorities are not accepted as signers; an address is compared with alternative names, too",
    ),
    (&["ssl_ecdh_curve"], "X25519, prime256v1, secp384r1, X25519MLKEM768"),
    (
        &["proxy_ssl_conf_command", "ssl_conf_command", "uwsgi_ssl_conf_command"],
        "what rustls can do; other commands and options have no effect or are refused",
    ),
    (
        &["acme_certificate"],
        "until the certificate is issued, one from an earlier order or a self-signed one is used; no names with `*`",
    ),
    (&["acme_issuer"], "without `resolver`, the system's is used"),
    (
        &["state_path"],
        "only one of the processes that share it orders certificates; an interrupted order is resumed",
    ),
    (&["ssl"], "as nginx before 1.25.1, with its warning; newer ones refuse it"),
    (&["ssl_stapling"], "requested at the start, always verified"),
    (&["sticky"], "a session is learned when the response head has arrived"),
    (&["http2_chunk_size"], "16k by default"),
    (&["quic_gso"], "on by default"),
    (
        &["api"],
        "as in nginx's commercial version, read-only; each cache also has an object `yorozu`",
    ),
    (
        &["status_zone"],
        "as in nginx's commercial version; the name may be a variable in a server and a location",
    ),
];

/// Directives that nginx does not have.
fn is_own(name: &str) -> bool {
    const SUFFIXES: [&str; 11] = [
        "_cache_age",
        "_cache_bypass_unless_shared",
        "_cache_complete_partial",
        "_cache_content_location",
        "_cache_dry_run",
        "_cache_early_refresh",
        "_cache_heuristic",
        "_cache_invalidate",
        "_cache_status",
        "_cache_tag_headers",
        "_cache_vary_language",
    ];
    ["brotli", "zstd", "control", "more_", "geoip2", "vhost_traffic_status"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "cache_drop_args"
                | "cache_memory"
                | "cron"
                | "resolve_later"
                | "worker_rlimit_as"
                | "worker_watchdog"
                | "cache_keep_args"
                | "cache_keep_cookies"
                | "cache_ignore_headers"
                | "cache_purge_api"
                | "cache_purge_bus"
                | "cache_split_headers"
                | "console"
                | "htaccess_deny"
                | "keepalive_ready"
                | "prometheus"
                | "real_ip_scheme"
                | "status_zone_limit"
        )
        || name != "set" && is_assignment(name.as_bytes())
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Every directive with its contexts, default and text, as Markdown.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Directives\n\nMade by `yorozu --directives` from the rows beside the code; not edited by hand. \
         What a directive does is\ndocumented by nginx under the same name; this list says what this version \
         has and where it differs:\n\n\
         - **same**: as nginx has it\n- **differs**: the remark says how\n- **no effect**: read and checked\n\
         - **refused**: the configuration is, with the reason\n- **own**: nginx has none of that name.\n",
    );
    for module in MODULES.all {
        let rows = (module.directives)();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "\n## {}\n\n| directive | beside nginx | contexts | default | |\n| --- | --- | --- | --- | --- |\n",
            module.name
        );
        for row in rows.iter().filter(|row| row.contexts != 0) {
            let contexts: Vec<_> = CONTEXT_NAMES
                .iter()
                .filter(|(bit, _)| row.contexts & bit != 0)
                .map(|(_, name)| *name)
                .collect();
            let default = row.default.map_or_else(String::new, |default| format!("`{default}`"));
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {default} | {}{} |",
                row.name,
                beside_nginx(row),
                contexts.join(", "),
                row.doc.trim(),
                remark(row)
            );
        }
    }
    text.push_str("\n## Not there\n\nRefused by one line that names the module.\n\n| module of nginx | directives |\n| --- | --- |\n");
    for (module, names) in yorozu_kernel::config::unsupported::all() {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "| {module} | {} |", names.join(" "));
    }
    text
}

/// `same`, `differs`, `no effect`, `refused`, or `own` for what nginx does not have.
fn beside_nginx(row: &Directive) -> &'static str {
    match row.action {
        Action::Ignored(..) => "no effect",
        Action::Refused(_) => "refused",
        _ if MODULES.without_effect_at_all(&row.name).is_some() => "no effect",
        _ if difference(&row.name).is_some() => "differs",
        _ if is_own(&row.name) => "own",
        _ => "same",
    }
}

fn difference(name: &str) -> Option<&'static str> {
    DIFFERS.iter().find(|(names, _)| names.contains(&name)).map(|(_, how)| *how)
}

fn remark(row: &Directive) -> String {
    match row.action {
        Action::Ignored(why, _) => format!(" *Accepted but ignored: {why}.*"),
        Action::Refused(why) => format!(" *Refused: {why}.*"),
        _ => match (MODULES.without_effect_at_all(&row.name), difference(&row.name)) {
            (Some(why), _) => format!(" *Accepted but ignored: {why}.*"),
            (None, Some(how)) => format!(" *Differs: {how}.*"),
            (None, None) => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_a_directive() {
        for name in DIFFERS.iter().flat_map(|(names, _)| *names) {
            assert!(!MODULES.rows(name).is_empty(), "{name} is not registered");
        }
    }
}
