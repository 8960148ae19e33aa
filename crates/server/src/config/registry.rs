//! Every directive of the program, by module, in the order a request meets the modules.

use super::directive::{Action, Directive};
use super::{http_core, main_core};
use crate::filters::{gzip, headers};
use crate::handlers::gateway;
use crate::handlers::{autoindex, fastcgi, index, stub_status, upstream};
use crate::logging::access as access_log;
use crate::phases::{access, map, rewrite};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A module's name, as nginx's manual has it, and its rows.
pub type Module = (&'static str, Vec<Directive>);

/// The modules.
pub fn modules() -> Vec<Module> {
    vec![
        ("core", [main_core::DIRECTIVES, main_core::OTHERS].concat()),
        ("http_core", [http_core::DIRECTIVES, http_core::OTHERS, http_core::IGNORED].concat()),
        ("http_map", map::DIRECTIVES.to_vec()),
        ("http_rewrite", [rewrite::DIRECTIVES, rewrite::OTHERS].concat()),
        ("http_access", access::DIRECTIVES.to_vec()),
        ("http_index", index::DIRECTIVES.to_vec()),
        ("http_autoindex", autoindex::DIRECTIVES.to_vec()),
        ("http_stub_status", stub_status::DIRECTIVES.to_vec()),
        ("http_upstream", upstream::DIRECTIVES.to_vec()),
        ("http_fastcgi", {
            let mut rows = gateway::rows::<fastcgi::Family>();
            rows.extend_from_slice(fastcgi::DIRECTIVES);
            rows.extend_from_slice(fastcgi::OTHERS);
            rows
        }),
        ("http_headers", headers::DIRECTIVES.to_vec()),
        ("http_gzip", gzip::DIRECTIVES.to_vec()),
        ("http_log", [access_log::DIRECTIVES, access_log::OTHERS].concat()),
    ]
}

static BY_NAME: LazyLock<HashMap<String, Vec<Directive>>> = LazyLock::new(|| {
    let mut by_name: HashMap<String, Vec<Directive>> = HashMap::new();
    for row in modules().into_iter().flat_map(|(_, rows)| rows) {
        // A context of none: the setting is filled by a row of its own elsewhere.
        if row.contexts != 0 {
            by_name.entry(row.name.clone().into_owned()).or_default().push(row);
        }
    }
    by_name
});

/// The rows of a name: one, or one per context where it means different things (`server`).
pub fn rows(name: &str) -> &'static [Directive] {
    BY_NAME.get(name).map(Vec::as_slice).unwrap_or_default()
}

/// What is accepted and has no effect, with the reason.
pub fn ignored() -> Vec<(String, &'static str)> {
    let rows = modules().into_iter().flat_map(|(_, rows)| rows);
    rows.filter_map(|row| match row.action {
        Action::Ignored(why) => Some((row.name.into_owned(), why)),
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_each_context() {
        for (name, rows) in BY_NAME.iter() {
            let mut seen = 0;
            for row in rows {
                assert_eq!(seen & row.contexts, 0, "{name} stands twice in one context");
                seen |= row.contexts;
            }
        }
    }

    #[test]
    fn every_row_has_manual_text() {
        for (module, rows) in modules() {
            for row in rows {
                assert!(row.doc.trim().ends_with('.'), "{module}: {} lacks a sentence", row.name);
            }
        }
    }
}
