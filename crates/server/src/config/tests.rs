//! Broken configurations and the one line that each is refused with.

use crate::testing::{config, try_config};
use yorozu_modules::filters::compress::gzip;

mod refused;

fn refusal(text: &str) -> String {
    try_config(text).expect_err("the configuration is broken")
}

/// Text, and the line it is refused with.
const BROKEN: &[(&str, &str)] = &[
    ("http { foo on; }", "unknown directive \"foo\" in conf:1"),
    (
        "http { upstream u { server 127.0.0.1; } server { location / { proxy_pass http://u:81; } } }",
        "upstream \"u\" may not have port 81 in conf:1",
    ),
    (
        "http { server { location ~ a { proxy_pass http://127.0.0.1/b; } } }",
        "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, or inside \"if\" statement, or inside \"limit_except\" block in conf:1",
    ),
    ("http { server { location / { proxy_pass ftp://a; } } }", "invalid URL prefix in conf:1"),
    (
        "http { server { location / { uwsgi_pass 127.0.0.1; } } }",
        "no port in upstream \"127.0.0.1\" in conf:1",
    ),
    ("http { uwsgi_modifier1 256; }", "value must be between 0 and 255 in conf:1"),
    (
        "http { ssl_conf_command Options unheard; }",
        "SSL_CONF_cmd(\"Options\", \"unheard\") failed: unknown option in conf:1",
    ),
    ("http { upstream u { } }", "no servers are inside upstream in conf:1"),
    (
        "http { upstream u { ip_hash; server 127.0.0.1 backup; } }",
        "balancing method does not support parameter \"backup\" in conf:1",
    ),
    (
        "http { upstream u { server a.example resolve; } }",
        "resolving names at run time requires upstream \"u\" in http to be in shared memory in conf:1",
    ),
    (
        "http { upstream u { server 127.0.0.1; keepalive 2; keepalive_ready 3; } }",
        "\"keepalive_ready\" asks for 3 connections, \"keepalive\" allows 2 in conf:1",
    ),
    (
        "http { server { location / { proxy_http_version 3; } } }",
        "invalid value \"3\" in \"proxy_http_version\" directive, it must be \"1.0\", \"1.1\" or \"2\" in conf:1",
    ),
    (
        "http { server { location / { perl a; } } }",
        "\"perl\" is not supported by this version (nginx's module http_perl; use \"map\" and \"if\", or do it in the application) in conf:1",
    ),
    ("listen 80;", "\"listen\" directive is not allowed here in conf:1"),
    ("http { gzip; }", "invalid number of arguments in \"gzip\" directive in conf:1"),
    ("http { gzip on off; }", "invalid number of arguments in \"gzip\" directive in conf:1"),
    (
        "http { gzip yes; }",
        "invalid value \"yes\" in \"gzip\" directive, it must be \"on\" or \"off\" in conf:1",
    ),
    ("http { gzip on; gzip off; }", "\"gzip\" directive is duplicate in conf:1"),
    ("http { server }", "unexpected \"}\" in conf:1"),
    ("http { server; }", "directive \"server\" has no opening \"{\" in conf:1"),
    ("http { gzip on { } }", "directive \"gzip\" is not terminated by \";\" in conf:1"),
    // What a line is comes before how its block ends.
    ("http { server { location ~ ^/a{2}$ { } } }", "unknown directive \"2}$\" in conf:1"),
    (
        "http { server { rewrite ^/a{2}$ /b; } }",
        "directive \"rewrite\" is not terminated by \";\" in conf:1",
    ),
    (
        "http { server { content_by_lua_block { ngx.say(\"x\") } } }",
        "\"content_by_lua_block\" is not supported by this version (the module lua, which is not nginx's own; use \"map\" and \"if\", or do it in the application) in conf:1",
    ),
    (
        "http { server { location / {\nroot /;\nfastcgi_pass no-such.invalid:9000; } } }",
        "host not found in upstream \"no-such.invalid\" in conf:3",
    ),
    ("http {", "unexpected end of file, expecting \"}\" in conf:1"),
    (
        "http { include none.conf; }",
        "open() \"DIR/none.conf\" failed (2: No such file or directory) in conf:1",
    ),
    (
        "http { client_max_body_size 1x; }",
        "\"client_max_body_size\" directive invalid value in conf:1",
    ),
    ("http { keepalive_timeout x; }", "\"keepalive_timeout\" directive invalid value in conf:1"),
    (
        "http { server { listen 99999; } }",
        "invalid port in \"99999\" of the \"listen\" directive in conf:1",
    ),
    ("http { server { listen 80 foo; } }", "invalid parameter \"foo\" in conf:1"),
    ("http { server { listen 81; listen 81; } }", "a duplicate listen 0.0.0.0:81 in conf:1"),
    (
        "http { server { listen 81 default_server; } server { listen 81 default_server; } }",
        "a duplicate default server for 0.0.0.0:81 in conf:1",
    ),
    ("http { server { location /a {} location /a {} } }", "duplicate location \"/a\" in conf:1"),
    ("http { server { location foo /a {} } }", "invalid location modifier \"foo\" in conf:1"),
    (
        "http { server { location /a { location /b {} } } }",
        "location \"/b\" is outside location \"/a\" in conf:1",
    ),
    ("http { server { return 1000; } }", "invalid return code \"1000\" in conf:1"),
    ("http { server { if (x) {} } }", "invalid condition \"x\" in conf:1"),
    ("http { server { set a b; } }", "invalid variable name \"a\" in conf:1"),
    ("http { server { set $uri b; } }", "the duplicate \"uri\" variable in conf:1"),
    ("http { server { set $http_host b; } }", "the duplicate \"http_host\" variable in conf:1"),
    ("http { server { location ~ (?<host>x) { } } }", "the duplicate \"host\" variable in conf:1"),
    (
        "http { server { root /a$document_root; } }",
        "the $document_root variable cannot be used in the \"root\" directive in conf:1",
    ),
    (
        "http { server { location / { alias ${realpath_root}; } } }",
        "the $realpath_root variable cannot be used in the \"alias\" directive in conf:1",
    ),
    ("http { upstream u { server 127.0.0.1 backup; } }", "no servers in upstream \"u\" in conf:1"),
    (
        "http { server { proxy_buffers 1 4k; } }",
        "there must be at least 2 \"proxy_buffers\" in conf:1",
    ),
    (
        "http { server { fastcgi_buffer_size 64k; fastcgi_buffers 4 4k; } }",
        "\"fastcgi_busy_buffers_size\" must be less than the size of all \"fastcgi_buffers\" minus one buffer in conf:1",
    ),
    (
        "http { server { uwsgi_max_temp_file_size 1k; } }",
        "\"uwsgi_max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than the maximum of the value of \"uwsgi_buffer_size\" and one of the \"uwsgi_buffers\" in conf:1",
    ),
    (
        "http { open_log_file_cache inactive=1m; }",
        "\"open_log_file_cache\" must have \"max\" parameter in conf:1",
    ),
    ("http { server { return 200 $nothing; } }", "unknown \"nothing\" variable"),
    (
        "http { server { return 200 \"${a\"; } }",
        "the closing bracket in \"a\" variable is missing in conf:1",
    ),
    ("http { error_page 99 /e; }", "value \"99\" must be between 300 and 599 in conf:1"),
    ("http { access_log off.log nope; }", "unknown log format \"nope\" in conf:1"),
    ("http { upstream u { } }", "no servers are inside upstream in conf:1"),
    (
        "http { fastcgi_cache_path c levels=1:2; }",
        "\"fastcgi_cache_path\" must have \"keys_zone\" parameter in conf:1",
    ),
    (
        "http { server { location / { fastcgi_cache z; } } }",
        "\"fastcgi_cache\" zone \"z\" is unknown in conf:1",
    ),
    ("http { fastcgi_cache_valid 1000 1m; }", "invalid status \"1000\" in conf:1"),
    ("http { gzip_comp_level 10; }", "value must be between 1 and 9 in conf:1"),
    (
        "http { server { location ~ ( {} } }",
        "pcre2_compile() failed: missing closing parenthesis in \"(\" in conf:1",
    ),
    (
        "http { gzip_disable a*+*b; }",
        "pcre2_compile() failed: quantifier does not follow a repeatable item in \"a*+*b\" at \"*b\" in conf:1",
    ),
    ("http { gzip_comp_level x; }", "\"gzip_comp_level\" directive invalid number in conf:1"),
    ("http { keepalive_requests x; }", "\"keepalive_requests\" directive invalid number in conf:1"),
    ("http { limit_req_status x; }", "\"limit_req_status\" directive invalid number in conf:1"),
    ("http { uwsgi_modifier1 x; }", "\"uwsgi_modifier1\" directive invalid number in conf:1"),
    ("worker_processes x; http { }", "\"worker_processes\" directive invalid value in conf:1"),
    ("http { root a$; }", "invalid variable name in conf:1"),
    ("http { root a${; }", "invalid variable name in conf:1"),
    ("http { server { return 200 $0; } }", "unknown \"0\" variable"),
    ("http { server { return 200 ${1}; } }", "unknown \"1\" variable"),
    ("http { types { a/b { c d; } } }", "unexpected \"{\" in conf:1"),
    ("http { map $uri $a { b { c d; } } }", "unexpected \"{\" in conf:1"),
    ("http { geo $a { b { c d; } } }", "unexpected \"{\" in conf:1"),
    ("http { split_clients $uri $a { 1% { c d; } } }", "unexpected \"{\" in conf:1"),
    ("http { charset_map a b { 80 { c d; } } }", "unexpected \"{\" in conf:1"),
    ("http { server { location / { limit_except GTE { } } } }", "invalid method \"GTE\" in conf:1"),
    ("http { geo uri $a { default 1; } }", "invalid variable name \"uri\" in conf:1"),
    ("http { geo $a { delete x; } }", "invalid network \"x\" in conf:1"),
    (
        "http { geo $a { 1.2.3.4 a; ranges; } }",
        "the \"ranges\" directive must be the first directive inside \"geo\" block in conf:1",
    ),
    (
        "http { geo $a { ranges; 1.2.3.0-1.3.9.0 a; 1.2.9.0-1.2.255.255 b; 1.2.0.0-1.2.3.0 c; } }",
        "range \"1.2.0.0-1.2.3.0\" overlaps \"1.2.3.0-1.2.8.255\" in conf:1",
    ),
    (
        "http { server { listen 99999999999; } }",
        "invalid port in \"99999999999\" of the \"listen\" directive in conf:1",
    ),
    ("http { server { server_name *; } }", "server name \"*\" is invalid in conf:1"),
    ("http { server { server_name .; } }", "server name \".\" is invalid in conf:1"),
    ("http { server { server_name a *.; } }", "server name \"*.\" is invalid in conf:1"),
    ("http { server { server_name *a; } }", "server name \"*a\" is invalid in conf:1"),
    (
        "http { server { server_name a.*.b; } }",
        "invalid server name or wildcard \"a.*.b\" in conf:1",
    ),
    // `ssl`, which newer versions of nginx do not have.
    (
        "http { ssl maybe; }",
        "invalid value \"maybe\" in \"ssl\" directive, it must be \"on\" or \"off\" in conf:1",
    ),
    ("http { ssl on; ssl off; }", "\"ssl\" directive is duplicate in conf:1"),
    (
        "http { server { location / { ssl off; } } }",
        "\"ssl\" directive is not allowed here in conf:1",
    ),
    (
        "http {\nssl on;\nserver { } }",
        "no \"ssl_certificate\" is defined for the \"ssl\" directive in conf:2",
    ),
    (
        "http { server { listen 1 ssl;\nssl on; } }",
        "no \"ssl_certificate\" is defined for the \"ssl\" directive in conf:2",
    ),
    (
        "http { server { ssl off; } server {\nssl on; ssl_certificate_key a; } }",
        "no \"ssl_certificate\" is defined for the \"ssl\" directive in conf:2",
    ),
    (
        "http { server { ssl on; ssl_certificate a; } }",
        "no \"ssl_certificate_key\" is defined for the \"ssl\" directive in conf:1",
    ),
    (
        "http { server { ssl on; ssl_certificate a; ssl_certificate b; ssl_certificate_key c; } }",
        "no \"ssl_certificate_key\" is defined for certificate \"b\" and the \"ssl\" directive in conf:1",
    ),
    // Names that several lines share.
    (
        "http { proxy_cache_path c keys_zone=a:1m;\nproxy_cache_path c keys_zone=b:1m; }",
        "the same path name \"DIR/c\" used in conf:1 and in conf:2",
    ),
    (
        "http { fastcgi_cache_path c levels=1 keys_zone=a:1m; proxy_cache_path d keys_zone=b:1m;\nscgi_cache_path ./c/ keys_zone=c:1m; }",
        "the same path name \"DIR/./c/\" used in conf:1 and in conf:2",
    ),
    (
        "http { proxy_cache_path c keys_zone=a:1m;\nserver { proxy_temp_path c; } }",
        "the same path name \"DIR/c\" used in conf:1 and in conf:2",
    ),
    (
        "http { client_body_temp_path c 1;\nserver { proxy_temp_path c 1 2; } }",
        "the same path name \"DIR/c\" in conf:1 has the different levels than in conf:2",
    ),
    (
        "http { proxy_cache_path c keys_zone=a:1m; proxy_cache_path d keys_zone=a:1m; }",
        "duplicate zone \"a\" in conf:1",
    ),
    (
        "http { proxy_cache_path c keys_zone=a:1m; proxy_cache_path d keys_zone=a:2m; }",
        "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576 in conf:1",
    ),
    (
        "http { proxy_cache_path c keys_zone=a:1m; fastcgi_cache_path d keys_zone=a:1m; }",
        "the shared memory zone \"a\" is already declared for a different use in conf:1",
    ),
    (
        "http { limit_req_zone $uri zone=a:1m rate=1r/s; limit_conn_zone $uri zone=a:1m; }",
        "the shared memory zone \"a\" is already declared for a different use in conf:1",
    ),
    (
        "http { limit_req_zone $uri zone=a:1m rate=1r/s; server { ssl_session_cache shared:a:1m; } }",
        "the shared memory zone \"a\" is already declared for a different use in conf:1",
    ),
    (
        "http { limit_conn_zone $uri zone=a:1m; upstream u { server 127.0.0.1; zone a; } }",
        "the shared memory zone \"a\" is already declared for a different use in conf:1",
    ),
    (
        "http { server { ssl_session_cache shared:a:1m; } server { ssl_session_cache off shared:a:2m; } }",
        "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576 in conf:1",
    ),
    ("http {\naio threads=a; } thread_pool b threads=1;", "unknown thread pool \"a\" in conf:2"),
    ("http { aio threads=; }", "unknown thread pool \"\" in conf:1"),
    ("http { aio threads=$nosuch; server { } }", "unknown \"nosuch\" variable"),
    (
        "thread_pool a threads=1; thread_pool a threads=1; http { }",
        "duplicate thread pool \"a\" in conf:1",
    ),
    ("http { access_log off combined; }", "invalid parameter \"combined\" in conf:1"),
    ("http { access_log off if=$uri; }", "invalid parameter \"if=$uri\" in conf:1"),
    (
        "http { server { set $fastcgi_script_name b; } }",
        "the duplicate \"fastcgi_script_name\" variable in conf:1",
    ),
    (
        "http { server { set $fastcgi_path_info b; } }",
        "the duplicate \"fastcgi_path_info\" variable in conf:1",
    ),
    ("http { keepalive_timeout 1M; }", "\"keepalive_timeout\" directive invalid value in conf:1"),
    ("http { send_timeout 1y; }", "\"send_timeout\" directive invalid value in conf:1"),
    ("http { access_log a combined flush=1M buffer=1k; }", "invalid flush time \"1M\" in conf:1"),
    (
        "http { proxy_cache_path c keys_zone=a:1m loader_sleep=1M; }",
        "invalid loader_sleep value \"loader_sleep=1M\" in conf:1",
    ),
    (
        "http { upstream u { server 127.0.0.1; keepalive_timeout 1y; } }",
        "\"keepalive_timeout\" directive invalid value in conf:1",
    ),
    ("events { use EPOLL; }", "invalid event type \"EPOLL\" in conf:1"),
    ("events { use kqueue; }", "invalid event type \"kqueue\" in conf:1"),
    (
        "events { use poll; }",
        "event method \"poll\" is not available, expected \"epoll\" in conf:1",
    ),
    ("events { use epoll; use epoll; }", "\"use\" directive is duplicate in conf:1"),
    (
        "http { server { location ~ x { location /b {} } } }",
        "location \"/b\" is outside location \"x\" in conf:1",
    ),
    (
        "http { server { location /x { location ~* ^/x { location = /x {} } } } }",
        "location \"/x\" is outside location \"^/x\" in conf:1",
    ),
    // Formats of logs: each text by itself, without captures.
    ("http { log_format a $body_bytes_sent$1; server { } }", "unknown \"1\" variable"),
    ("http { log_format a $http_ $1b; server { } }", "unknown \"1b\" variable"),
    ("http { log_format a \"$h\" ost; server { } }", "unknown \"h\" variable"),
    ("http { log_format a x$; }", "invalid parameter \"$\" in conf:1"),
    ("http { log_format a $uri \"x$ y\" z; }", "invalid parameter \"$ y\" in conf:1"),
    ("http { log_format a ${}; }", "invalid parameter \"${}\" in conf:1"),
    (
        "http { log_format a ${host; }",
        "the closing bracket in \"host\" variable is missing in conf:1",
    ),
    ("http { log_format a escape=JSON x; }", "unknown log format escaping \"JSON\" in conf:1"),
    ("http { log_format a escape= x; }", "unknown log format escaping \"\" in conf:1"),
    // Of the module of virtual hosts' traffic.
    (
        "http { vhost_traffic_status_filter_by_set_key $uri; }",
        "\"vhost_traffic_status_filter_by_set_key\" is not supported: use \"status_zone\" with the variable in a location in conf:1",
    ),
    (
        "http { server { set_sha1 $a $uri; } }",
        "\"set_sha1\" is not supported by this version (the module http_set_misc, which is not nginx's own) in conf:1",
    ),
    (
        "http { fancyindex on; }",
        "\"fancyindex\" is not supported by this version (the module http_fancyindex, which is not nginx's own; use \"autoindex\") in conf:1",
    ),
    ("http { dav_access x; }", "invalid value \"x\" in conf:1"),
    ("http { dav_methods get; }", "invalid value \"get\" in conf:1"),
    ("http { dav_methods off get; }", "invalid value \"get\" in conf:1"),
    ("http { userid_flags off maybe; }", "invalid value \"maybe\" in conf:1"),
    ("http { proxy_cache_methods get put; }", "invalid value \"put\" in conf:1"),
    ("http { ssl_protocols TLSv1.2 TLS; }", "invalid value \"TLS\" in conf:1"),
    (
        "http { keepalive_disable msie6 safari none; }",
        "invalid number of arguments in \"keepalive_disable\" directive in conf:1",
    ),
];

#[test]
fn broken_configurations_are_refused_in_nginx_s_words() {
    for (text, expected) in BROKEN.iter().chain(refused::MORE) {
        assert_eq!(refusal(text), *expected, "{text}");
    }
}

#[test]
fn what_is_written_reaches_the_place_it_is_for() {
    let config = config(
        "worker_processes 3; http { gzip on; keepalive_timeout 7 8;
         server { client_max_body_size 2m; location /a/ { gzip off; location /a/b { } } location /c { } } }",
    );
    let find = |name: &str| {
        config
            .locations
            .iter()
            .find(|location| location.name == name)
            .unwrap_or_else(|| panic!("{name}"))
    };
    assert!(
        !find("/a/").of::<gzip::Conf>().gzip
            && !find("/a/b").of::<gzip::Conf>().gzip
            && find("/c").of::<gzip::Conf>().gzip
    );
    assert_eq!(find("/a/b").http_core().client_max_body_size.0, 2 << 20);
    assert_eq!(find("/c").http_core().keepalive_timeout.timeout.as_secs(), 7);
    assert_eq!(find("/c").http_core().client_body_timeout.as_secs(), 60, "the written default");
}

#[test]
fn directives_without_effect_are_said_once() {
    let config = config("http { tcp_nopush on; output_buffers 1 32k; server { tcp_nopush on; } }");
    assert_eq!(config.notes.len(), 2, "{:?}", config.notes);
    assert!(config.notes[1].starts_with("\"tcp_nopush\" is accepted but ignored: "));
}

#[test]
fn what_nginx_takes_twice_or_does_not_look_at_is_accepted() {
    for text in [
        "http { ssl off; server { listen 1; ssl off; } server { listen 2; ssl OFF; } }",
        "http { server { listen 1; ssl on; ssl_reject_handshake on; } }",
        "http { ssl on; ssl_reject_handshake on; server { } server { ssl off; } }",
        "http { proxy_cache_path c keys_zone=a:1m; proxy_temp_path t 1; fastcgi_temp_path t 1; }",
        "http { ssl_session_cache shared:a:1m; server { ssl_session_cache builtin shared:a:1m; } }",
        "http { aio threads=a; server { aio threads=default; location / { aio threads=$uri; } } } thread_pool a threads=1;",
        "http { keepalive_timeout 1w 1y; ssl_session_timeout 1M; open_file_cache_valid 1y; proxy_cache_valid 1M; }",
        "http { server { location ~ /b { location /bc { } location = /b { } location ~ x { } } } }",
        "http { log_format a \"$request_time\" ms; log_format b escape=json; log_format c x escape=json; server { } }",
        "http { ssl_protocols TLSv1.2; ssl_protocols tlsv1.3; dav_methods off; dav_methods put; userid_flags secure; userid_flags samesite=LAX; }",
        "http { ancient_browser_value a; ancient_browser_value b; }",
        "http { modern_browser_value a; modern_browser_value b; }",
        "http { gzip_proxied off; gzip_proxied any; }",
        "http { ssl_session_cache off; ssl_session_cache shared:a:1m; }",
        "http { proxy_busy_buffers_size 1; fastcgi_buffers 1 4k; }",
        "http { grpc_buffer_size 100m; memcached_buffer_size 100m; server { } }",
        "http { uwsgi_busy_buffers_size 1; server { uwsgi_busy_buffers_size 16k; } }",
        "http { upstream u { server 127.0.0.1; zone x; } upstream v { server 127.0.0.1; zone x 32k; } }",
        "http { map $uri $b { hostnames; *.a x; a y; a.* z; \\*a b; } }",
        "http { server { listen 1 so_keepalive=30m::10 fastopen=3; listen 2 so_keepalive=:1; } }",
        "error_log stderr debug_core debug_http; events { debug_connection unix:; debug_connection 127.0.0.0/8; }",
        "http { charset a$; expires @24h; }",
        "http { source_charset a$; }",
        "http { open_log_file_cache max=1 min_uses=0; server { open_log_file_cache max=1 off; } }",
        "http { access_log /dev/null combined buffer=1k; server { access_log /dev/null combined; access_log /dev/null combined buffer=1k; } }",
        "http { access_log syslog:server=127.0.0.1,tag=,nohostname,nohostname; }",
        "http { charset a; source_charset $arg_b; server { location / { types_hash_max_size 0; } } }",
    ] {
        try_config(text).unwrap_or_else(|why| panic!("{text}: {why}"));
    }
}
