//! `random_index`: any file of the folder stands for it.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: what a folder has is asked of the system where the request is"
)]

use super::Outcome;
use super::static_file;
use crate::config::directive::*;
use crate::exchange::Exchange;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::rc::Rc;

settings! {
    in random_index;
    /// Whether a path that ends in a slash is answered with a file of that folder, whichever.
    random_index: bool = "off", ONE, LOCATION;
}

/// An internal redirect to a file of the folder; none if it is not on, or there is no file.
pub fn respond(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    if !conf.location(exchange.location).random_index.random_index {
        return None;
    }
    let path = static_file::path(exchange);
    let entries = match std::fs::read_dir(Path::new(OsStr::from_bytes(&path))) {
        Ok(entries) => entries,
        Err(problem) => return Some(Outcome::Status(static_file::status_of(&problem))),
    };
    let is_shown = |name: &[u8]| !name.starts_with(b".");
    let files = entries.flatten().filter(|entry| {
        // As nginx: links to files count too.
        std::fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file())
    });
    let names: Vec<_> = files.map(|entry| entry.file_name().into_vec()).collect();
    let names: Vec<_> = names.into_iter().filter(|name| is_shown(name)).collect();
    let name = fastrand::choice(&names)?;
    Some(Outcome::Internal { uri: [&exchange.uri, &name[..]].concat(), args: None })
}
