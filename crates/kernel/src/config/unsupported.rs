//! Directives that nginx documents and this version lacks: "unknown directive" is for typing errors.

/// A module, what to do without it, and names of its directives.
type Missing = (&'static str, &'static str, &'static [&'static str]);

/// nginx's modules, with all their directives.
const MISSING: &[Missing] = &[
    ("stream", "keep nginx or HAProxy for TCP and UDP", &["stream"]),
    ("mail", "keep nginx for mail", &["mail"]),
    ("core", "", &["stall_threshold"]),
    ("google_perftools", "", &["google_perftools_profiles"]),
    (
        "http_auth_jwt",
        "ask what checks the token with \"auth_request\"",
        &[
            "auth_jwt",
            "auth_jwt_claim_set",
            "auth_jwt_header_set",
            "auth_jwt_key_cache",
            "auth_jwt_key_file",
            "auth_jwt_key_request",
            "auth_jwt_leeway",
            "auth_jwt_type",
            "auth_jwt_require",
        ],
    ),
    ("http_auth_require", "", &["auth_require"]),
    ("http_core", "", &["client_body_early_read", "error_log_tag"]),
    ("http_json", "", &["json_set"]),
    ("http_degradation", "", &["degradation", "degrade"]),
    ("http_f4f", "", &["f4f", "f4f_buffer_size"]),
    (
        "http_fastcgi",
        "",
        &["fastcgi_allow_upstream", "fastcgi_bind_dynamic", "fastcgi_request_dynamic"],
    ),
    (
        "http_geoip",
        "use \"geoip2\", or the country in a header of the proxy in front",
        &["geoip_country", "geoip_city", "geoip_org", "geoip_proxy", "geoip_proxy_recursive"],
    ),
    (
        "http_grpc",
        "",
        &["grpc_allow_upstream", "grpc_bind_dynamic", "grpc_request_dynamic", "grpc_ssl_key_log"],
    ),
    (
        "http_hls",
        "",
        &[
            "hls",
            "hls_buffers",
            "hls_forward_args",
            "hls_fragment",
            "hls_mp4_buffer_size",
            "hls_mp4_max_buffer_size",
        ],
    ),
    (
        "http_image_filter",
        "make the sizes when an image is uploaded, as WordPress does",
        &[
            "image_filter",
            "image_filter_buffer",
            "image_filter_interlace",
            "image_filter_jpeg_quality",
            "image_filter_sharpen",
            "image_filter_transparency",
            "image_filter_webp_quality",
        ],
    ),
    ("http_internal_redirect", "", &["internal_redirect"]),
    (
        "http_js",
        "use \"map\" and \"if\", or do it in the application",
        &[
            "js_body_filter",
            "js_access",
            "js_content",
            "js_context_reuse",
            "js_engine",
            "js_fetch_buffer_size",
            "js_fetch_ciphers",
            "js_fetch_max_response_buffer_size",
            "js_fetch_protocols",
            "js_fetch_timeout",
            "js_fetch_trusted_certificate",
            "js_fetch_verify",
            "js_fetch_verify_depth",
            "js_fetch_proxy",
            "js_fetch_keepalive",
            "js_fetch_keepalive_requests",
            "js_fetch_keepalive_time",
            "js_fetch_keepalive_timeout",
            "js_header_filter",
            "js_import",
            "js_include",
            "js_load_http_native_module",
            "js_path",
            "js_periodic",
            "js_preload_object",
            "js_set",
            "js_shared_dict_zone",
            "js_var",
        ],
    ),
    (
        "http_keyval",
        "use \"map\" with a file that is included, and a reload",
        &["keyval", "keyval_zone"],
    ),
    ("http_limit_conn", "", &["limit_zone"]),
    ("http_memcached", "", &["memcached_allow_upstream", "memcached_bind_dynamic"]),
    ("http_mp4", "", &["mp4_limit_rate", "mp4_limit_rate_after"]),
    ("http_num_map", "", &["num_map"]),
    (
        "http_oidc",
        "ask an OpenID Connect proxy with \"auth_request\"",
        &[
            "oidc_provider",
            "auth_oidc",
            "issuer",
            "client_id",
            "client_secret",
            "config_url",
            "cookie_name",
            "extra_auth_args",
            "frontchannel_logout_uri",
            "pkce",
            "redirect_uri",
            "logout_uri",
            "post_logout_uri",
            "logout_token_hint",
            "scope",
            "session_store",
            "session_timeout",
            "userinfo",
        ],
    ),
    (
        "http_perl",
        "use \"map\" and \"if\", or do it in the application",
        &["perl", "perl_modules", "perl_require", "perl_set"],
    ),
    (
        "http_proxy",
        "",
        &[
            "proxy_allow_upstream",
            "proxy_bind_dynamic",
            "proxy_request_dynamic",
            "proxy_ssl_key_log",
        ],
    ),
    ("http_scgi", "", &["scgi_allow_upstream", "scgi_bind_dynamic", "scgi_request_dynamic"]),
    ("http_session_log", "", &["session_log", "session_log_format", "session_log_zone"]),
    ("http_ssl", "", &["ssl_ech_file", "ssl_key_log"]),
    ("http_status", "use \"metrics\" or \"stub_status\"", &["status", "status_format"]),
    (
        "http_tunnel",
        "",
        &[
            "tunnel_allow_upstream",
            "tunnel_bind",
            "tunnel_bind_dynamic",
            "tunnel_buffer_size",
            "tunnel_connect_timeout",
            "tunnel_next_upstream",
            "tunnel_next_upstream_timeout",
            "tunnel_next_upstream_tries",
            "tunnel_pass",
            "tunnel_read_timeout",
            "tunnel_send_lowat",
            "tunnel_send_timeout",
            "tunnel_socket_keepalive",
            "tunnel_socket_rcvbuf",
            "tunnel_socket_sndbuf",
        ],
    ),
    ("http_upstream", "", &["state", "ntlm", "queue"]),
    ("http_upstream_conf", "", &["upstream_conf"]),
    (
        "http_upstream_hc",
        "\"max_fails\" and \"fail_timeout\" leave out servers that fail",
        &["health_check", "match"],
    ),
    (
        "http_uwsgi",
        "",
        &[
            "uwsgi_allow_upstream",
            "uwsgi_bind_dynamic",
            "uwsgi_request_dynamic",
            "uwsgi_ssl_key_log",
        ],
    ),
    (
        "http_xslt",
        "move it to the application",
        &[
            "xml_entities",
            "xml_external_entities",
            "xslt_last_modified",
            "xslt_param",
            "xslt_string_param",
            "xslt_stylesheet",
            "xslt_types",
        ],
    ),
];

/// Modules that are not nginx's, and directives by which they are known in configurations. One that ends with `_` stands
/// for all that begin so, one that begins with `_` for all that hold it.
const OF_OTHERS: &[Missing] = &[
    ("echo", "use \"return 200 TEXT\"", &["echo", "echo_"]),
    ("lua", "use \"map\" and \"if\", or do it in the application", &["lua_", "_by_lua"]),
    (
        "ModSecurity",
        "run a firewall in front, or in the application",
        &["modsecurity", "modsecurity_"],
    ),
    (
        "naxsi",
        "run a firewall in front, or in the application",
        &["BasicRule", "CheckRule", "DeniedUrl", "LearningMode", "MainRule", "SecRulesEnabled"],
    ),
    ("nchan", "run it by itself, behind \"proxy_pass\"", &["nchan_"]),
    (
        "ngx_pagespeed",
        "have the application do it: what it sends is stored compressed",
        &["pagespeed", "pagespeed_"],
    ),
    ("opentracing", "log and pass on \"$request_id\"", &["opentracing", "opentracing_"]),
    ("otel", "log and pass on \"$request_id\"", &["otel_", "otel_exporter"]),
    ("Passenger", "run the application by itself, behind \"proxy_pass\"", &["passenger_"]),
    ("rtmp", "keep nginx for it", &["rtmp", "rtmp_"]),
    (
        "http_auth_ldap",
        "ask what checks the password with \"auth_request\"",
        &["auth_ldap", "auth_ldap_", "ldap_server"],
    ),
    (
        "http_auth_pam",
        "ask what checks the password with \"auth_request\"",
        &["auth_pam", "auth_pam_"],
    ),
    (
        "http_auth_spnego",
        "ask what checks the ticket with \"auth_request\"",
        &["auth_gss", "auth_gss_"],
    ),
    ("http_concat", "remove it: over HTTP/2 many small files cost little", &["concat", "concat_"]),
    (
        "http_cookie_flag",
        "use \"proxy_cookie_flags\" or set them in the application",
        &["set_cookie_flag"],
    ),
    ("http_dav_ext", "", &["dav_ext_"]),
    (
        "http_encrypted_session",
        "",
        &["encrypted_session_", "set_decrypt_session", "set_encrypt_session"],
    ),
    ("http_fancyindex", "use \"autoindex\"", &["fancyindex", "fancyindex_"]),
    ("http_memc", "use \"memcached_pass\", or the page cache", &["memc_"]),
    ("http_push_stream", "run it by itself, behind \"proxy_pass\"", &["push_stream_"]),
    (
        "http_redis",
        "use the page cache: \"fastcgi_cache\" or \"proxy_cache\"",
        &["redis_", "redis2_"],
    ),
    (
        "http_security_headers",
        "use \"add_header\" with \"always\"",
        &["security_headers", "security_headers_"],
    ),
    (
        "http_set_misc",
        "",
        &[
            "set_decode_",
            "set_encode_",
            "set_hashed_upstream",
            "set_hmac_",
            "set_misc_",
            "set_quote_",
            "set_rotate",
            "set_secure_random_",
            "set_sha1",
        ],
    ),
    ("http_srcache", "use the page cache: \"fastcgi_cache\" or \"proxy_cache\"", &["srcache_"]),
    ("http_subs_filter", "use \"sub_filter\"", &["subs_filter", "subs_filter_"]),
    ("http_testcookie", "use \"limit_req\"", &["testcookie", "testcookie_"]),
    ("http_upload", "have the application take uploads", &["upload_"]),
    (
        "http_uploadprogress",
        "remove it: browsers show the progress",
        &["report_uploads", "track_uploads", "upload_progress"],
    ),
    (
        "http_upstream_check",
        "\"max_fails\" and \"fail_timeout\" leave out servers that fail",
        &["check", "check_"],
    ),
    ("http_upstream_fair", "use \"least_conn\"", &["fair", "upstream_fair_shm_size"]),
    ("http_vod", "keep nginx for it", &["vod", "vod_"]),
];

/// Whether `name` is one of those that `pattern` stands for.
fn stands_for(pattern: &str, name: &str) -> bool {
    match (pattern.starts_with('_'), pattern.ends_with('_')) {
        (true, _) => name.contains(pattern),
        (_, true) => name.starts_with(pattern),
        _ => name == pattern,
    }
}

/// Every module of nginx, with what it would bring.
pub fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    MISSING.iter().map(|(module, _, names)| (*module, *names))
}

/// Why a directive is refused that is none of this version's, in one line, with what to do; `None` if it is none of nginx's
/// or of a known module for it either.
pub fn refusal(name: &str) -> Option<String> {
    let of_nginx = MISSING.iter().find(|(_, _, names)| names.contains(&name));
    let find = |is_its: fn(&str, &str) -> bool| {
        OF_OTHERS.iter().find(|(_, _, names)| names.iter().any(|pattern| is_its(pattern, name)))
    };
    let (module, advice) = match of_nginx {
        Some((module, advice, _)) => (format!("nginx's module {module}"), *advice),
        None => {
            // An exact name says more than a beginning.
            let (module, advice, _) =
                find(|pattern, name| pattern == name).or_else(|| find(stands_for))?;
            (format!("the module {module}, which is not nginx's own"), *advice)
        }
    };
    let hint = if advice.is_empty() { String::new() } else { format!("; {advice}") };
    Some(format!("\"{name}\" is not supported by this version ({module}{hint})"))
}
