//! Finding: a key that holds a part of what the application sees, a single argument or cookie, or what a `map` makes of a header.
//! The application may read the whole in another way, and its page is everyone's who has the same part.

use super::scope::{Finding, is_silenced};
use yorozu_conf::Tree;
use yorozu_gateway::cache::{self, settings};
use yorozu_gateway::protocol;
use yorozu_kernel::config::reads::{Reads, Sources};
use yorozu_kernel::exchange::conf::{Config, LocationConf};

/// Where that is.
pub(super) fn of(tree: &Tree, config: &Config) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (location, reads) in config.locations.iter().zip(&config.reads) {
        let is_stored = settings::of(location).is_some_and(|conf| conf.zone().is_some());
        let Some(at) = reads.key_at.as_ref().filter(|_| is_stored) else { continue };
        for text in texts(location, reads) {
            let finding = Finding { text, at: at.clone() };
            if !found.contains(&finding) && !is_silenced(tree, at) {
                found.push(finding);
            }
        }
    }
    found
}

fn texts(location: &LocationConf, reads: &Reads) -> Vec<String> {
    let is_sent =
        |name: &[u8]| protocol::of(location).is_some_and(|it| it.passes_on(location, name));
    let mut texts = Vec::new();
    // A location that spells the arguments it sends, spells those of its key.
    let spells = reads.told.iter().any(|source| source.starts_with("arg_"));
    if !reads.keyed_of_url.target
        && !has_any(&reads.key, &["args", "cache_args", "query_string"])
        && !spells
    {
        texts.extend(first(&reads.key, "arg_").map(|name| {
            format!(
                "the key contains \"${name}\" of all arguments that the application sees, which may read them in another way and so make the page for others: put \"$request_uri\" into the key, or \"$cache_uri\" with \"cache_keep_args\""
            )
        }));
    }
    if !reads.key.has("http_cookie") && is_sent(b"cookie") {
        texts.extend(first(&reads.key, "cookie_").map(|name| {
            format!(
                "the key contains \"${name}\" of all cookies that the application sees, which may read them in another way and so make the page for others: have it see only \"$cache_cookies\", with \"cache_keep_cookies\", or put \"$http_cookie\" into the key"
            )
        }));
    }
    let mapped = reads.key.iter().filter_map(|source| {
        let field = source.strip_prefix("http_").filter(|_| !reads.in_key.has(source))?;
        let field = field.replace('_', "-");
        (cache::is_of_page(field.as_bytes()) && is_sent(field.as_bytes())).then_some(field)
    });
    texts.extend(mapped.map(|field| {
        format!(
            "the key contains what a \"map\" makes of the header \"{field}\", and the application sees all of it: have it see only what the key contains"
        )
    }));
    texts
}

fn has_any(sources: &Sources, names: &[&str]) -> bool {
    names.iter().any(|name| sources.has(name))
}

fn first<'s>(sources: &'s Sources, prefix: &str) -> Option<&'s str> {
    sources.iter().find(|source| source.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_part_of_what_the_application_sees_is_reported_where_the_key_is() {
        let told = |key: &str, lines: &str| {
            let text = format!(
                "http {{ proxy_cache_path cache keys_zone=z:1m;\nmap $http_x_user $g {{ default a; }} map $http_user_agent $m {{ default a; }}
                server {{ proxy_cache z;\n\nproxy_cache_key {key}; location / {{ proxy_pass http://127.0.0.1:1; {lines} }} }} }}"
            );
            let loaded = testing::try_load(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let found = of(&loaded.tree, &loaded.config);
            assert!(found.iter().all(|finding| finding.at.line == 5), "{found:?}");
            found.into_iter().map(|finding| finding.text).collect::<Vec<_>>().join("\n")
        };
        for (key, lines, part) in [
            ("$uri$arg_lang", "", "\"$arg_lang\" of all arguments"),
            ("$uri$args$cookie_lang", "", "\"$cookie_lang\" of all cookies"),
            ("$request_uri$g", "", "makes of the header \"x-user\""),
        ] {
            assert!(told(key, lines).contains(part), "{key}: {}", told(key, lines));
        }
        for (key, lines) in [
            ("$request_uri$arg_lang$m$http_x_user", ""),
            ("$uri$args$http_cookie$cookie_lang", ""),
            ("$request_uri$cookie_lang", "proxy_set_header Cookie lang=$cookie_lang;"),
            ("$request_uri$g", "proxy_set_header X-User $g;"),
            ("$uri$arg_page", "proxy_set_header X-Page $arg_page;"),
            ("$uri$arg_lang", "proxy_cache off;"),
        ] {
            assert_eq!(told(key, lines), "", "{key} {lines}");
        }
    }
}
