//! Directives that nginx documents and this version lacks: "unknown directive" is for typing errors.

/// nginx's module, and the names of its directives.
const MISSING: &[(&str, &[&str])] = &[
    ("stream: TCP and UDP; here is HTTP only", &["stream"]),
    ("mail: IMAP, POP3 and SMTP; here is HTTP only", &["mail"]),
    ("core", &["stall_threshold"]),
    ("google_perftools", &["google_perftools_profiles"]),
    (
        "http_auth_jwt",
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
    ("http_auth_require", &["auth_require"]),
    ("http_core", &["client_body_early_read", "error_log_tag"]),
    ("http_json", &["json_set"]),
    ("http_degradation", &["degradation", "degrade"]),
    ("http_f4f", &["f4f", "f4f_buffer_size"]),
    (
        "http_fastcgi",
        &["fastcgi_allow_upstream", "fastcgi_bind_dynamic", "fastcgi_request_dynamic"],
    ),
    (
        "http_geoip",
        &["geoip_country", "geoip_city", "geoip_org", "geoip_proxy", "geoip_proxy_recursive"],
    ),
    (
        "http_grpc",
        &["grpc_allow_upstream", "grpc_bind_dynamic", "grpc_request_dynamic", "grpc_ssl_key_log"],
    ),
    (
        "http_hls",
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
    ("http_internal_redirect", &["internal_redirect"]),
    (
        "http_js",
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
    ("http_keyval", &["keyval", "keyval_zone"]),
    ("http_limit_conn", &["limit_zone"]),
    ("http_memcached", &["memcached_allow_upstream", "memcached_bind_dynamic"]),
    ("http_mp4", &["mp4_limit_rate", "mp4_limit_rate_after"]),
    ("http_num_map", &["num_map"]),
    (
        "http_oidc",
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
    ("http_perl", &["perl", "perl_modules", "perl_require", "perl_set"]),
    (
        "http_proxy",
        &[
            "proxy_allow_upstream",
            "proxy_bind_dynamic",
            "proxy_request_dynamic",
            "proxy_ssl_key_log",
        ],
    ),
    ("http_scgi", &["scgi_allow_upstream", "scgi_bind_dynamic", "scgi_request_dynamic"]),
    ("http_session_log", &["session_log", "session_log_format", "session_log_zone"]),
    ("http_ssl", &["ssl_ech_file", "ssl_key_log"]),
    ("http_status", &["status", "status_format"]),
    (
        "http_tunnel",
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
    ("http_upstream", &["state", "ntlm", "queue"]),
    ("http_upstream_conf", &["upstream_conf"]),
    ("http_upstream_hc", &["health_check", "match"]),
    (
        "http_uwsgi",
        &[
            "uwsgi_allow_upstream",
            "uwsgi_bind_dynamic",
            "uwsgi_request_dynamic",
            "uwsgi_ssl_key_log",
        ],
    ),
    (
        "http_xslt",
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
const OF_OTHERS: &[(&str, &[&str])] = &[
    ("echo", &["echo", "echo_"]),
    ("lua", &["lua_", "_by_lua"]),
    ("ModSecurity", &["modsecurity", "modsecurity_"]),
    (
        "naxsi",
        &["BasicRule", "CheckRule", "DeniedUrl", "LearningMode", "MainRule", "SecRulesEnabled"],
    ),
    ("nchan", &["nchan_"]),
    ("ngx_pagespeed", &["pagespeed", "pagespeed_"]),
    ("opentracing", &["opentracing", "opentracing_"]),
    ("otel", &["otel_", "otel_exporter"]),
    ("Passenger", &["passenger_"]),
    ("rtmp", &["rtmp", "rtmp_"]),
    ("http_auth_ldap", &["auth_ldap", "auth_ldap_", "ldap_server"]),
    ("http_auth_pam", &["auth_pam", "auth_pam_"]),
    ("http_auth_spnego", &["auth_gss", "auth_gss_"]),
    ("http_concat", &["concat", "concat_"]),
    ("http_cookie_flag", &["set_cookie_flag"]),
    ("http_dav_ext", &["dav_ext_"]),
    (
        "http_encrypted_session",
        &["encrypted_session_", "set_decrypt_session", "set_encrypt_session"],
    ),
    ("http_fancyindex", &["fancyindex", "fancyindex_"]),
    ("http_memc", &["memc_"]),
    ("http_push_stream", &["push_stream_"]),
    ("http_redis", &["redis_", "redis2_"]),
    ("http_security_headers", &["security_headers", "security_headers_"]),
    (
        "http_set_misc",
        &[
            "set_decode_",
            "set_encode_",
            "set_hashed_upstream",
            "set_hmac_",
            "set_if_empty",
            "set_md5",
            "set_misc_",
            "set_quote_",
            "set_random",
            "set_rotate",
            "set_secure_random_",
            "set_sha1",
            "set_unescape_uri",
        ],
    ),
    ("http_srcache", &["srcache_"]),
    ("http_subs_filter", &["subs_filter", "subs_filter_"]),
    ("http_testcookie", &["testcookie", "testcookie_"]),
    ("http_upload", &["upload_"]),
    ("http_uploadprogress", &["report_uploads", "track_uploads", "upload_progress"]),
    ("http_upstream_check", &["check", "check_"]),
    ("http_upstream_fair", &["fair", "upstream_fair_shm_size"]),
    ("http_vod", &["vod", "vod_"]),
];

/// Whether `name` is one of those that `pattern` stands for.
fn stands_for(pattern: &str, name: &str) -> bool {
    match (pattern.starts_with('_'), pattern.ends_with('_')) {
        (true, _) => name.contains(pattern),
        (_, true) => name.starts_with(pattern),
        _ => name == pattern,
    }
}

/// The module of others that has a directive; an exact name says more than a beginning.
pub fn module_of_others(name: &str) -> Option<&'static str> {
    let find = |is_its: fn(&str, &str) -> bool| {
        let has = |names: &[&str]| names.iter().any(|pattern| is_its(pattern, name));
        OF_OTHERS.iter().find(|(_, names)| has(names)).map(|(module, _)| *module)
    };
    find(|pattern, name| pattern == name).or_else(|| find(stands_for))
}

/// Every module, with what it would bring.
pub fn all() -> &'static [(&'static str, &'static [&'static str])] {
    MISSING
}

/// The module of nginx that has a directive which is not here.
pub fn module(name: &str) -> Option<&'static str> {
    MISSING.iter().find(|(_, names)| names.contains(&name)).map(|(module, _)| *module)
}
