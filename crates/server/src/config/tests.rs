//! Broken configurations and the one line that each is refused with.

use crate::testing::{config, try_config};
use yorozu_modules::filters::compress::gzip;

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
        "\"perl\" is not supported by this version (nginx's module http_perl) in conf:1",
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
        "unknown directive \"content_by_lua_block\" in conf:1",
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
    ("http { server { listen 81; listen 81; } }", "a duplicate listen 81 in conf:1"),
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
        "pcre2_compile() failed: PCRE2: error compiling pattern at offset 1: missing closing parenthesis in \"(\" at \"\" in conf:1",
    ),
];

#[test]
fn broken_configurations_are_refused_in_nginx_s_words() {
    for (text, expected) in BROKEN {
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
