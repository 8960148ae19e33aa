//! Findings about arguments that a cache key leaves out (`cache_drop_args`) and the application still sees: it
//! may print one visitor's into a page for all.

use super::scope::{Finding, Scope, holds_rows};
use yorozu_conf::{Directive, Tree};

/// Where that may be.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    look(&Scope::new(None, &tree.directives), &mut found);
    found
}

fn look(scope: &Scope<'_, '_>, found: &mut Vec<Finding>) {
    if leaves_out(scope, "fastcgi") {
        for (name, whole, cleaned) in [
            ("REQUEST_URI", &[&b"$request_uri"[..]][..], "$cache_uri"),
            ("QUERY_STRING", &[b"$query_string", b"$args"], "$cache_args"),
        ] {
            let params = scope.find("fastcgi_param");
            // The last one of a name is the one that PHP goes by.
            let last = params.iter().rfind(|param| is_word(param, 0, name.as_bytes()));
            let shows = |param: &&&Directive| whole.iter().any(|whole| is_word(param, 1, whole));
            found.extend(last.filter(shows).map(|param| Finding {
                text: format!(
                    "the cache key omits arguments that the application sees, pages may contain one visitor's: add \"fastcgi_param {name} {cleaned};\" after it"
                ),
                at: param.at.clone(),
            }));
        }
    }
    if leaves_out(scope, "proxy") {
        let passes = scope.own("proxy_pass");
        let shows = |pass: &&&Directive| !pass.args.iter().any(|url| mentions_cleaned(url));
        found.extend(passes.iter().find(shows).map(|pass| Finding {
            text: "the cache key omits arguments that the upstream sees, pages may contain one visitor's: append \"$cache_uri\" to the address".to_owned(),
            at: pass.at.clone(),
        }));
    }
    for line in scope.lines.iter().filter(|line| !holds_rows(line)) {
        if let Some(block) = &line.block {
            look(&Scope::new(Some(scope), block), found);
        }
    }
}

/// Whether a gateway is asked here whose pages are stored under a key without some arguments.
fn leaves_out(scope: &Scope<'_, '_>, family: &str) -> bool {
    let key = scope.find(&format!("{family}_cache_key"));
    !scope.own(&format!("{family}_pass")).is_empty()
        && key.last().is_some_and(|key| key.args.iter().any(|word| mentions_cleaned(word)))
}

fn mentions_cleaned(text: &[u8]) -> bool {
    [&b"$cache_uri"[..], b"$cache_args"]
        .iter()
        .any(|name| memchr::memmem::find(text, name).is_some())
}

fn is_word(line: &Directive, at: usize, word: &[u8]) -> bool {
    line.args.get(at).is_some_and(|arg| arg == word)
}
