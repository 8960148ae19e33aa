//! Findings about arguments and cookies that a cache key leaves out (`cache_drop_args`, `cache_keep_cookies` and their like) and
//! the application still sees: it may print one visitor's into a page for all.

use super::scope::{Finding, Scope, holds_rows};
use yorozu_conf::{Directive, Tree};

/// Where that may be.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    look(&Scope::new(None, &tree.directives), &mut found);
    found
}

fn look(scope: &Scope<'_, '_>, found: &mut Vec<Finding>) {
    if holds(scope, "fastcgi", &ARGS) {
        see_param(scope, ("REQUEST_URI", "$cache_uri"), "arguments", &[b"$request_uri"], found);
        see_param(
            scope,
            ("QUERY_STRING", "$cache_args"),
            "arguments",
            &[b"$query_string", b"$args"],
            found,
        );
    }
    if holds(scope, "fastcgi", &COOKIES) {
        see_param(scope, ("HTTP_COOKIE", "$cache_cookies"), "cookies", &[b"$http_cookie"], found);
    }
    if holds(scope, "proxy", &ARGS) {
        let passes = scope.own("proxy_pass");
        let shows = |pass: &&&Directive| !pass.args.iter().any(|url| mentions(url, &ARGS));
        found.extend(passes.iter().find(shows).map(|pass| Finding {
            text: "the cache key omits arguments that the upstream sees, pages may contain one visitor's: append \"$cache_uri\" to the address".to_owned(),
            at: pass.at.clone(),
        }));
    }
    if holds(scope, "proxy", &COOKIES) {
        let sent = scope.find("proxy_set_header");
        let is_of_cookies = |line: &&&Directive| {
            line.args.first().is_some_and(|name| name.eq_ignore_ascii_case(b"cookie"))
        };
        let last = sent.iter().rfind(is_of_cookies);
        if last.is_none_or(|line| is_word(line, 1, b"$http_cookie")) {
            let place = last.copied().or_else(|| scope.own("proxy_pass").first().copied());
            found.extend(place.map(|line| Finding {
                text: "the cache key omits cookies that the upstream sees, pages may contain one visitor's: add \"proxy_set_header Cookie $cache_cookies;\"".to_owned(),
                at: line.at.clone(),
            }));
        }
    }
    for line in scope.lines.iter().filter(|line| !holds_rows(line)) {
        if let Some(block) = &line.block {
            look(&Scope::new(Some(scope), block), found);
        }
    }
}

/// Adds that PHP sees all of what the key omits some of, in a parameter that shows one of `whole`, or goes by none.
fn see_param(
    scope: &Scope<'_, '_>,
    (name, cleaned): (&str, &str),
    what: &str,
    whole: &[&[u8]],
    found: &mut Vec<Finding>,
) {
    let params = scope.find("fastcgi_param");
    // The last one of a name is the one that PHP goes by.
    let last = params.iter().rfind(|param| is_word(param, 0, name.as_bytes()));
    // Headers are passed on by themselves.
    let unsaid =
        || name.starts_with("HTTP_").then(|| scope.own("fastcgi_pass").first().copied())?;
    let shown = match last {
        Some(param) => whole.iter().any(|whole| is_word(param, 1, whole)).then_some(*param),
        None => unsaid(),
    };
    found.extend(shown.map(|line| Finding {
        text: format!(
            "the cache key omits {what} that the application sees, pages may contain one visitor's: add \"fastcgi_param {name} {cleaned};\" after it"
        ),
        at: line.at.clone(),
    }));
}

/// The variables that hold what stays of arguments, and of cookies.
const ARGS: [&[u8]; 2] = [b"$cache_uri", b"$cache_args"];
const COOKIES: [&[u8]; 1] = [b"$cache_cookies"];

/// Whether a gateway is asked here whose pages are stored under a key with any of these variables, of which something is left out.
fn holds(scope: &Scope<'_, '_>, family: &str, variables: &[&[u8]]) -> bool {
    let key = scope.find(&format!("{family}_cache_key"));
    let by = if *variables == COOKIES {
        &["cache_keep_cookies"][..]
    } else {
        &["cache_drop_args", "cache_keep_args"]
    };
    by.iter().any(|name| !scope.find(name).is_empty())
        && !scope.own(&format!("{family}_pass")).is_empty()
        && key.last().is_some_and(|key| key.args.iter().any(|word| mentions(word, variables)))
}

fn mentions(text: &[u8], variables: &[&[u8]]) -> bool {
    variables.iter().any(|name| memchr::memmem::find(text, name).is_some())
}

fn is_word(line: &Directive, at: usize, word: &[u8]) -> bool {
    line.args.get(at).is_some_and(|arg| arg == word)
}
