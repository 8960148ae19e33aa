//! What is refused by more than a look at one line: modules of others, what has no effect, what is opened or looked for.

/// As `BROKEN`.
pub(super) const MORE: &[(&str, &str)] = &[
    // Without effect, and refused where nginx refuses them.
    (
        "http { aio_write x; }",
        "invalid value \"x\" in \"aio_write\" directive, it must be \"on\" or \"off\" in conf:1",
    ),
    ("http { aio x; }", "\"aio\" directive invalid value in conf:1"),
    (
        "http { types_hash_max_size x; }",
        "\"types_hash_max_size\" directive invalid number in conf:1",
    ),
    ("http { postpone_output x; }", "\"postpone_output\" directive invalid value in conf:1"),
    (
        "http { postpone_output 1; postpone_output 1; }",
        "\"postpone_output\" directive is duplicate in conf:1",
    ),
    (
        "worker_cpu_affinity auto 01 0x; http { }",
        "invalid character \"x\" in \"worker_cpu_affinity\" in conf:1",
    ),
    (
        "thread_pool a max_queue=1; http { }",
        "\"thread_pool\" must have \"threads\" parameter in conf:1",
    ),
    ("worker_priority 5x; http { }", "\"worker_priority\" directive invalid number in conf:1"),
    ("worker_priority -; http { }", "\"worker_priority\" directive invalid number in conf:1"),
    ("http { server { rewrite a \"\"; } }", "empty replacement in conf:1"),
    (
        "http { limit_req_zone $uri zone=:1m rate=1r/s; }",
        "\"limit_req_zone\" must have \"zone\" parameter in conf:1",
    ),
    (
        "http { limit_conn_zone $uri zone=:1m; }",
        "\"limit_conn_zone\" must have \"zone\" parameter in conf:1",
    ),
    ("env A B; http { }", "invalid number of arguments in \"env\" directive in conf:1"),
    (
        "http { server { uninitialized_variable_warn x; } }",
        "invalid value \"x\" in \"uninitialized_variable_warn\" directive, it must be \"on\" or \"off\" in conf:1",
    ),
    // What nginx builds, opens or looks for while it reads.
    (
        "http { server { valid_referers none ~x; } }",
        "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid referer in conf:1",
    ),
    ("http { index a \"\"; }", "index \"\" in \"index\" directive is invalid in conf:1"),
    (
        "http { upstream u { server 127.0.0.1; } resolve_later on; }",
        "\"resolve_later\" must stand before the first \"upstream\" in conf:1",
    ),
    (
        "http { cache_memory 0%; }",
        "invalid value \"0%\", expected a size, or a share from 1% to 100% in conf:1",
    ),
    (
        "http { server { cron wp-cron.php 1m; } }",
        "invalid value \"wp-cron.php\", expected a path that begins with \"/\", as clients send it in conf:1",
    ),
    (
        "http { server { cron /a 500ms; } }",
        "invalid value \"500ms\", expected a time of at least 1s in conf:1",
    ),
    (
        "http { fastcgi_cache_tag_headers A b:; }",
        "invalid value \"b:\", expected the name of a header, or \"off\" alone in conf:1",
    ),
    (
        "http { limit_conn_zone $uri zone=z:1m; limit_conn z 1 always; }",
        "invalid parameter \"always\" in conf:1",
    ),
    ("http { resolver *; }", "host not found in resolver \"*\" in conf:1"),
    ("http { upstream u { server *:80; } }", "host not found in upstream \"*:80\" in conf:1"),
    ("events { } events { } http { }", "\"events\" directive is duplicate in conf:1"),
    ("# events\nhttp { server { } }", "no \"events\" section in configuration"),
    (
        "events { worker_connections 0; }",
        "0 worker_connections are not enough for 0 listening sockets",
    ),
    (
        "events { worker_connections 1; } http { server { } }",
        "1 worker_connections are not enough for 1 listening sockets",
    ),
    ("http { source_charset $nosuch; server { } }", "unknown \"nosuch\" variable"),
    (
        "http { upstream u { zone u 64k; server a.test service=http; } }",
        "service upstream \"a.test\" requires \"resolve\" parameter in conf:1",
    ),
    (
        "http { upstream u { zone u 64k; server 127.0.0.1 service=http resolve; } }",
        "service upstream \"127.0.0.1\" requires domain name in conf:1",
    ),
    (
        "http { upstream u { zone u 64k; server a.test:80 service=http resolve; } }",
        "service upstream \"a.test:80\" may not have port in conf:1",
    ),
    (
        "http { upstream u { zone u 64k; server a.test service= resolve; } }",
        "service is empty in conf:1",
    ),
    (
        "http { upstream u { server a.test service=http resolve; } }",
        "resolving names at run time requires upstream \"u\" in http to be in shared memory in conf:1",
    ),
    ("http { server { listen 80 setfib=1; } }", "invalid parameter \"setfib=1\" in conf:1"),
    ("http { resolver 127.0.0.1 valid=x; }", "invalid parameter: valid=x in conf:1"),
    ("http { resolver 127.0.0.1 ipv6=maybe; }", "invalid parameter: ipv6=maybe in conf:1"),
    ("http { log_format combined x; }", "duplicate \"log_format\" name \"combined\" in conf:1"),
    (
        "http { access_log a combined flush=5s; }",
        "no buffer is defined for access_log \"a\" in conf:1",
    ),
    ("http { access_log a combined buffer=x; }", "invalid buffer size \"x\" in conf:1"),
    ("http { access_log a combined gzip=10; }", "invalid compression level \"10\" in conf:1"),
    (
        "http { gzip_window 3k; }",
        "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k in conf:1",
    ),
    (
        "http { gzip_hash 1; }",
        "\"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k in conf:1",
    ),
    (
        "http { open_file_cache max=1 inactive=x; }",
        "invalid \"open_file_cache\" parameter \"inactive=x\" in conf:1",
    ),
    ("http { userid_service x; }", "\"userid_service\" directive invalid number in conf:1"),
    ("http { sub_filter \"\" x; }", "empty search pattern in conf:1"),
    (
        "http { charset_map a A { } }",
        "\"charset_map\" between the same charsets \"a\" and \"a\" in conf:1",
    ),
    (
        "http { proxy_cache_path /a keys_zone=x; }",
        "invalid keys zone size \"keys_zone=x\" in conf:1",
    ),
    (
        "http { server { stub_status on off; } }",
        "invalid number of arguments in \"stub_status\" directive in conf:1",
    ),
    ("http { fastcgi_split_path_info x; }", "pattern \"x\" must have 2 captures in conf:1"),
    // What modules of others bring.
    (
        "http { server { location / { content_by_lua_block { ngx.say(1) } } } }",
        "\"content_by_lua_block\" is not supported by this version (the module lua, which is not nginx's own; use \"map\" and \"if\", or do it in the application) in conf:1",
    ),
    (
        "http { lua_package_path /a; }",
        "\"lua_package_path\" is not supported by this version (the module lua, which is not nginx's own; use \"map\" and \"if\", or do it in the application) in conf:1",
    ),
    (
        "rtmp { server { listen 1935; } }",
        "\"rtmp\" is not supported by this version (the module rtmp, which is not nginx's own; keep nginx for it) in conf:1",
    ),
    (
        "google_perftools_profiles /a; http { }",
        "\"google_perftools_profiles\" is not supported by this version (nginx's module google_perftools) in conf:1",
    ),
    (
        "http { ssl_ocsp on; }",
        "\"ssl_ocsp\" is not supported: use \"ssl_crl\" for lists of revoked certificates in conf:1",
    ),
    (
        "http { ssl_ocsp maybe; }",
        "invalid value \"maybe\" in \"ssl_ocsp\" directive, it must be \"off\" or \"on\" or \"leaf\" in conf:1",
    ),
    ("http { ssl_ocsp off; ssl_ocsp off; }", "\"ssl_ocsp\" directive is duplicate in conf:1"),
    // A brace without quotes: what is before it is the pattern.
    (
        "http { server { location ~ ^/(\\d{4})/ { } } }",
        "pcre2_compile() failed: missing closing parenthesis in \"^/(\\d\" in conf:1",
    ),
    ("http { proxy_cookie_flags 1; }", "invalid parameter \"1\" in conf:1"),
    ("http { proxy_cookie_path a; }", "invalid parameter \"a\" in conf:1"),
    (
        "http { proxy_cookie_path off; proxy_cookie_path a b; }",
        "\"proxy_cookie_path\" directive is duplicate in conf:1",
    ),
    (
        "http { proxy_cookie_domain a b; proxy_cookie_domain off; }",
        "\"proxy_cookie_domain\" directive is duplicate in conf:1",
    ),
    (
        "http { proxy_cookie_flags a secure; proxy_cookie_flags off; }",
        "\"proxy_cookie_flags\" directive is duplicate in conf:1",
    ),
    (
        "http { upstream u { server 127.0.0.1; keepalive 1; keepalive 1; } }",
        "\"keepalive\" directive is duplicate in conf:1",
    ),
    ("http { upstream u { server 127.0.0.1; zone x; } }", "zero size shared memory zone \"x\""),
    ("http { upstream u { zone x 31k; } }", "zone \"x\" is too small in conf:1"),
    ("http { upstream u { zone x y; } }", "invalid zone size \"y\" in conf:1"),
    ("http { upstream u { zone \"\" 64k; } }", "invalid zone name \"\" in conf:1"),
    (
        "http { upstream u { zone x 64k; zone x 128k; } }",
        "the size 131072 of shared memory zone \"x\" conflicts with already declared size 65536 in conf:1",
    ),
    (
        "http { ssl_password_file none; }",
        "cannot load password file \"DIR/none\": 2: No such file or directory in conf:1",
    ),
    (
        "http { variables_hash_max_size 0; }",
        "could not build variables_hash, you should increase variables_hash_max_size: 0 in conf:1",
    ),
    (
        "http { server { proxy_headers_hash_bucket_size 0; } }",
        "could not build proxy_headers_hash, you should increase proxy_headers_hash_bucket_size: 0 in conf:1",
    ),
    ("http { connection_pool_size 96; }", "the pool size must be no less than 112 in conf:1"),
    (
        "http { server { request_pool_size 120; } }",
        "the pool size must be a multiple of 16 in conf:1",
    ),
    ("http { map $uri $b { hostnames; .a x; a y; } }", "conflicting parameter \"a\" in conf:1"),
    ("http { map $uri $b { hostnames; a x; .a y; } }", "conflicting parameter \".a\" in conf:1"),
    ("http { map $uri $b { hostnames; *a x; } }", "invalid hostname or wildcard \"*a\" in conf:1"),
    (
        "http { map $uri $b { hostnames; .a..b x; } }",
        "invalid hostname or wildcard \".a..b\" in conf:1",
    ),
    (
        "http { map $uri $b { hostnames; *.a.* x; } }",
        "invalid hostname or wildcard \"*.a.*\" in conf:1",
    ),
    ("http { server { server_name a..b; } }", "invalid server name or wildcard \"a..b\" in conf:1"),
    ("http { server { listen 1 fastopen=x; } }", "invalid fastopen \"fastopen=x\" in conf:1"),
    ("http { server { listen 1 so_keepalive=x; } }", "invalid so_keepalive value: \"x\" in conf:1"),
    (
        "http { server { listen 1 so_keepalive=::; } }",
        "invalid so_keepalive value: \"::\" in conf:1",
    ),
    (
        "http { server { listen 1 so_keepalive=1:2:3:4; } }",
        "invalid so_keepalive value: \"1:2:3:4\" in conf:1",
    ),
    (
        "http { access_log syslog:server=127.0.0.1,server=127.0.0.2; }",
        "duplicate syslog \"server\" in conf:1",
    ),
    ("error_log stderr info debug_http;", "invalid log level \"debug_http\" in conf:1"),
    ("error_log stderr info warn;", "duplicate log level \"warn\" in conf:1"),
    (
        "http { expires @24h1s; }",
        "\"expires\" directive daily time value must be less than 24 hours in conf:1",
    ),
    (
        "http { expires modified @1h; }",
        "\"expires\" directive daily time cannot be used with \"modified\" parameter in conf:1",
    ),
    ("http { expires @x; }", "\"expires\" directive invalid value in conf:1"),
    (
        "events { debug_connection x.invalid; }",
        "host not found in debug_connection \"x.invalid\" in conf:1",
    ),
    (
        "http { access_log /dev/null combined buffer=1k; access_log /dev/null combined buffer=2k; }",
        "access_log \"/dev/null\" already defined with conflicting parameters in conf:1",
    ),
];
