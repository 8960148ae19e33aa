//! Finding: what follows a script in the path, split off after `try_files` has changed the path: it is always empty.

use super::scope::{Finding, Scope, holds_rows, inside};
use yorozu_conf::Tree;

/// Where that is.
pub(super) fn of(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    look(&Scope::new(None, &tree.directives), &mut found);
    found
}

fn look(scope: &Scope<'_, '_>, found: &mut Vec<Finding>) {
    let mentions = |text: &[u8], name: &[u8]| memchr::memmem::find(text, name).is_some();
    let tried = scope.own("try_files");
    let is_changed = tried.iter().any(|line| {
        let files = line.args.split_last().map_or(&[][..], |(_, files)| files);
        files.iter().any(|file| mentions(file, b"$fastcgi_script_name"))
    });
    let is_split = is_changed && !scope.find("fastcgi_split_path_info").is_empty();
    for param in scope.find("fastcgi_param").into_iter().filter(|_| is_split) {
        let [name, value, ..] = &param.args[..] else { continue };
        if mentions(value, b"$fastcgi_path_info") {
            let name = String::from_utf8_lossy(name);
            found.push(Finding {
                text: format!(
                    "\"{name}\" is always empty, as \"try_files\" leaves nothing behind the script: add \"set $path_info $fastcgi_path_info;\" to the location and write \"fastcgi_param {name} $path_info;\""
                ),
                at: param.at.clone(),
            });
        }
    }
    for line in scope.lines.iter().filter(|line| !holds_rows(line)) {
        look(&Scope::new(Some(scope), inside(line)), found);
    }
}
