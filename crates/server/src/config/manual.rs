//! The manual's list of directives, made from the rows.

use super::directive::*;
use super::registry;
use std::fmt::Write as _;

const CONTEXT_NAMES: [(Contexts, &str); 9] = [
    (MAIN, "main"),
    (EVENTS, "events"),
    (HTTP, "http"),
    (SERVER, "server"),
    (LOCATION, "location"),
    (SERVER_IF, "if in server"),
    (LOCATION_IF, "if in location"),
    (LIMIT_EXCEPT, "limit_except"),
    (UPSTREAM, "upstream"),
];

/// Every directive with its contexts, default and text, as Markdown.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Directives\n\nMade by `yorozu --directives` from the rows beside the code; not edited by hand. \
         What a directive does is\ndocumented by nginx under the same name; this list says what this version \
         has and where it differs.\n",
    );
    for (module, rows) in registry::modules() {
        let _ = write!(
            text,
            "\n## {module}\n\n| directive | contexts | default | |\n| --- | --- | --- | --- |\n"
        );
        for row in rows.iter().filter(|row| row.contexts != 0) {
            let contexts: Vec<_> = CONTEXT_NAMES
                .iter()
                .filter(|(bit, _)| row.contexts & bit != 0)
                .map(|(_, name)| *name)
                .collect();
            let default = row.default.map_or_else(String::new, |default| format!("`{default}`"));
            let _ = writeln!(
                text,
                "| `{}` | {} | {default} | {}{} |",
                row.name,
                contexts.join(", "),
                row.doc.trim(),
                remark(row)
            );
        }
    }
    text
}

fn remark(row: &Directive) -> String {
    match row.action {
        Action::Ignored(why) => format!(" *Accepted without effect: {why}.*"),
        Action::Refused(why) => format!(" *Refused: {why}.*"),
        _ => registry::without_effect_at_all(&row.name)
            .map_or_else(String::new, |why| format!(" *Accepted without effect: {why}.*")),
    }
}
