//! The syntaxes of `*_cache_purge`, and tags.

use bytes::Bytes;
use yorozu_gateway::cache::directives::PurgeRule;
use yorozu_gateway::cache::purge::*;
use yorozu_gateway::cache::settings;
use yorozu_gateway::fastcgi;

fn rule(words: &str) -> Result<PurgeRule, String> {
    let text = format!(
        "http {{ fastcgi_cache_path c keys_zone=z:1m; server {{ location / {{ fastcgi_cache_purge {words}; }} }} }}"
    );
    let config = crate::testing::try_config(&text)?;
    let location = config.locations.iter().find(|location| &location.name[..] == b"/").unwrap();
    Ok(settings::with_prefix(location, &fastcgi::FAMILY).cache_purge.clone())
}

#[test]
fn every_syntax_is_read() {
    assert!(matches!(rule("off"), Ok(PurgeRule::Off)));
    assert!(matches!(rule("z $host$1*"), Ok(PurgeRule::Key { zone, .. }) if zone == "z"));
    assert!(matches!(rule("$http_x $arg_y"), Ok(PurgeRule::Flags(flags)) if flags.len() == 2));
    let method = |words| match rule(words) {
        Ok(PurgeRule::Method { method, takes_all, from }) => (method, takes_all, from.is_some()),
        other => panic!("{words}: {other:?}"),
    };
    assert_eq!(method("PURGE from 127.0.0.1 10.0.0.0/8"), (Bytes::from("PURGE"), false, true));
    assert_eq!(method("on"), (Bytes::from("PURGE"), false, false));
    assert_eq!(method("BAN purge_all from all"), (Bytes::from("BAN"), true, true));
    assert!(rule("PURGE from nowhere").is_err());
    assert!(rule("PURGE to 127.0.0.1 x").is_err());
    assert!(rule("none $uri").unwrap_err().contains("zone \"none\" is unknown"));
}

#[test]
fn tags_are_parted_by_spaces_and_commas_and_belong_to_a_host() {
    let lines = [&b"post-1 home,post-1"[..], b"a, b"];
    let found = tags(b"h", lines.into_iter()).unwrap();
    let wanted: Vec<Bytes> = [&b"post-1"[..], b"home", b"a", b"b"].map(|t| tag(b"h", t)).to_vec();
    assert_eq!(found, wanted);
    let huge = vec![b'x'; TAGS_BYTES_MAX + 1];
    assert_eq!(tags(b"h", std::iter::once(&huge[..])), None);
}
