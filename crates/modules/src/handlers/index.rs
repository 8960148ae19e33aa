//! `index`: the file that stands for a folder.

use std::rc::Rc;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::Templates;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::files::{open, path};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_index", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `index file …`
#[derive(Clone, Debug, Default)]
pub struct Files(Templates);

impl Adds for Files {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        if args.words.iter().any(|word| word.is_empty()) {
            return Err(ValueError::new("index \"\" in \"index\" directive is invalid"));
        }
        self.0.add(args)
    }
}

settings! {
    /// Files looked for when a path ends in a slash.
    index: Files = "index.html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// An internal redirect to the first index that exists.
pub fn respond(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let mut has_looked = false;
    for name in &location.of::<Conf>().index.0.0 {
        let name = name.value(exchange);
        if name.starts_with(b"/") {
            return Some(Outcome::Internal { uri: name.to_vec(), args: None });
        }
        let (mut uri, mut path) = (Scratch::take(), Scratch::take());
        uri.extend_from_slice(&exchange.uri);
        uri.extend_from_slice(&name);
        path::append_file_of(exchange, &uri, &mut path);
        if location.http_core().root.is_alias_whole() {
            // The alias of a regex is the folder, whatever the path.
            path.extend_from_slice(&name);
        }
        match path::kind(exchange, &path) {
            // As nginx, whatever it is: no name at all is the folder again, without end.
            Some(_) => return Some(Outcome::Internal { uri: uri.to_vec(), args: None }),
            None if !has_looked => {
                has_looked = true;
                if let Some(outcome) = folder(exchange) {
                    return Some(outcome);
                }
            }
            None => {}
        }
    }
    None
}

/// What is answered if there is no such folder, or it is none.
fn folder(exchange: &mut Exchange) -> Option<Outcome> {
    let path = path::request_filename(exchange);
    match open::metadata(&path) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => {
            let shown = error::verbatim(&path);
            error::request(exchange, Level::Alert, &format!("\"{shown}\" is not a directory"));
            Some(Outcome::Status(500))
        }
        Err(problem) => {
            let status = open::status_of(&problem);
            if status != 404 {
                return None;
            }
            let conf = Rc::clone(&exchange.conf);
            if conf.location(exchange.location).http_core().log_not_found {
                let shown = error::verbatim(&path);
                let text =
                    format!("\"{shown}index.html\" is not found ({})", error::os_error(&problem));
                error::request(exchange, Level::Error, &text);
            }
            Some(Outcome::Status(404))
        }
    }
}
