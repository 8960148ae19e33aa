//! `random_index`: any file of the folder stands for it.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: what a folder has is asked of the system where the request is"
)]

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::files::path;

/// The module.
pub const MODULE: Module =
    Module::new("http_random_index", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

settings! {
    /// Whether a path that ends in a slash is answered with a random file from that folder.
    random_index: bool = "off", ONE, LOCATION;
}

/// An internal redirect to a file of the folder; none if there is no file.
pub fn respond(exchange: &mut Exchange) -> Option<Outcome> {
    let path = path::request_filename(exchange);
    let entries = match std::fs::read_dir(Path::new(OsStr::from_bytes(&path))) {
        Ok(entries) => entries,
        Err(problem) => return Some(super::autoindex::not_listed(exchange, &path, &problem)),
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
