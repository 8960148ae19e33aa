//! What is said of broken directives of modules.

use crate::testing::try_config;

#[test]
fn two_charsets_want_a_map_between_them() {
    let error = try_config("http { charset a; source_charset b; server {} }").unwrap_err();
    assert!(error.contains("no \"charset_map\" between the charsets \"b\" and \"a\""));
}

#[test]
fn broken_charset_maps_are_refused() {
    let error = |rows: &str| {
        let text = format!("http {{ charset_map {rows} server {{}} }}");
        try_config(&text).unwrap_err()
    };
    assert!(error("a a { }").contains("between the same charsets \"a\""));
    assert!(error("a b { 1 zz; }").contains("invalid value \"zz\""));
    assert!(error("a b { 100 1; }").contains("invalid value \"100\""));
    assert!(error("a utf-8 { 80 FF; }").contains("no UTF-8 sequence"));
    assert!(error("a b { 80; }").contains("invalid parameters number"));
}

#[test]
fn broken_limits_are_refused() {
    let error = |text: &str| try_config(text).err().unwrap_or_default();
    let zone = |rest: &str| error(&format!("http {{ limit_req_zone $uri {rest}; }}"));
    assert!(zone("zone=a:1m rate=0r/s").contains("invalid rate \"rate=0r/s\""));
    assert!(zone("zone=a:1k rate=1r/s").contains("zone \"a\" is too small"));
    assert!(zone("zone=a rate=1r/s").contains("invalid zone size \"zone=a\""));
    assert!(zone("rate=1r/s burst=2").contains("invalid parameter \"burst=2\""));
    let limit = |rest: &str| error(&format!("http {{ server {{ limit_req {rest}; }} }}"));
    assert!(limit("burst=5").contains("must have \"zone\" parameter"));
    assert!(limit("zone=a burst=x").contains("invalid burst value \"burst=x\""));
    let twice =
        "limit_req_zone $uri zone=a:1m rate=1r/s; limit_req zone=a; limit_req zone=a burst=5;";
    assert!(error(&format!("http {{ {twice} }}")).contains("\"limit_req\" directive is duplicate"));
    assert!(limit("zone=a").contains("zero size shared memory zone \"a\""));
}

#[test]
fn what_does_not_go_together_is_refused_in_nginx_s_words() {
    let server = |text: &str| try_config(&format!("http {{ server {{ {text} }} }}"));
    let default = "\"proxy_redirect default\"";
    let after = format!("{default} should be placed after the \"proxy_pass\" directive");
    let variables =
        format!("{default} cannot be used with \"proxy_pass\" directive with variables");
    let mixed =
        "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
    let pool = "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"";
    let table: &[(&str, &str)] = &[
        ("location / { proxy_redirect default; proxy_pass http://127.0.0.1; }", &after),
        ("proxy_redirect default;", &after),
        ("location / { fastcgi_pass 127.0.0.1:9; proxy_redirect default; }", &after),
        ("location / { proxy_pass http://$arg_a; proxy_redirect default; }", &variables),
        (
            "proxy_redirect off; proxy_redirect default;",
            "\"proxy_redirect\" directive is duplicate",
        ),
        ("secure_link_secret a; secure_link b;", mixed),
        ("secure_link_secret a; location / { secure_link_secret b; secure_link_md5 c; }", mixed),
        ("access_log a combined buffer=0;", "invalid buffer size \"0\""),
        ("access_log $uri combined buffer=1k;", "buffered logs cannot have variables in name"),
        ("access_log syslog:server=127.0.0.1 combined gzip;", "logs to syslog cannot be buffered"),
        ("large_client_header_buffers 4 511;", pool),
        ("connection_pool_size 16k;", pool),
        ("client_body_temp_path a 4 4 3;", "\"client_body_temp_path\" directive invalid value"),
        ("proxy_temp_path a 1 0;", "\"proxy_temp_path\" directive invalid value"),
    ];
    for (text, expected) in table {
        let error = server(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
    for text in [
        "location / { proxy_pass http://127.0.0.1; proxy_redirect default; }",
        "secure_link_secret a; location / { secure_link b; }",
        "secure_link a; secure_link_md5 b; location / { secure_link_secret c; }",
        "large_client_header_buffers 4 512;",
        "connection_pool_size 256; large_client_header_buffers 4 300;",
        "client_body_temp_path a 4 4; proxy_temp_path b 10;",
    ] {
        server(text).unwrap_or_else(|why| panic!("{text}: {why}"));
    }
}
