//! `index`: the file that stands for a folder.

use nix::errno::Errno;
use std::io;
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
        let before_last = args.words.iter().rev().skip(1);
        for _ in before_last.filter(|word| word.starts_with(b"/")) {
            args.env.warn_here("only the last index in \"index\" directive should be absolute");
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
        let refusal = match path::look(exchange, &path) {
            // As nginx, whatever it is: no name at all is the folder again, without end.
            Ok(_) => return Some(Outcome::Internal { uri: uri.to_vec(), args: None }),
            Err(problem) => not_there(exchange, &path, problem, !has_looked),
        };
        if refusal.is_some() {
            return refusal;
        }
        has_looked = true;
    }
    None
}

/// What is answered in the place of a file that is not there, if others are not to be looked for: no file of the folder may
/// be seen, or, where that is to be looked at, there is no folder.
fn not_there(exchange: &mut Exchange, file: &[u8], problem: Errno, looks: bool) -> Option<Outcome> {
    match problem {
        Errno::EACCES | Errno::ENOTDIR | Errno::ENAMETOOLONG => {
            Some(refused(exchange, file, &problem.into()))
        }
        _ if looks => folder(exchange, file),
        _ => None,
    }
}

/// What is answered if there is no such folder, or it is none.
fn folder(exchange: &mut Exchange, file: &[u8]) -> Option<Outcome> {
    let path = path::request_filename(exchange);
    match open::metadata(&path) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => {
            let shown = error::verbatim(&path);
            error::request(exchange, Level::Alert, &format!("\"{shown}\" is not a directory"));
            Some(Outcome::Status(500))
        }
        Err(problem) if open::status_of(&problem) == 404 => Some(refused(exchange, file, &problem)),
        Err(_) => None,
    }
}

/// The answer to a request for a folder of which a file, the first of those that may stand for it, tells what is wrong.
fn refused(exchange: &Exchange, file: &[u8], problem: &io::Error) -> Outcome {
    let status = open::status_of(problem);
    let is_logged = exchange.conf.location(exchange.location).http_core().log_not_found;
    if status != 404 || is_logged {
        let (file, why) = (error::verbatim(file), error::os_error(problem));
        let what = if status == 404 { "not found" } else { "forbidden" };
        error::request(exchange, Level::Error, &format!("\"{file}\" is {what} ({why})"));
    }
    Outcome::Status(status)
}
