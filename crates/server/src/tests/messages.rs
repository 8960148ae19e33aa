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
