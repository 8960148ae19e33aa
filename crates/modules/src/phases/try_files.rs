//! `try_files`: the first file that exists, or the last argument.

use std::rc::Rc;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::http_core::{Root, TryFile, TryLast};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::files::{open, path};

/// Sets the path of the first file found; the outcome of the last argument if there is none.
pub fn choose(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let core = location.http_core();
    let try_files = core.try_files.as_ref()?;
    for file in &try_files.files {
        if let Some(uri) = found(exchange, &core.root, file) {
            exchange.set_uri(uri);
            exchange.is_uri_below_alias = core.root.is_alias_whole();
            return None;
        }
    }
    Some(match &try_files.last {
        TryLast::Status(status) => Outcome::Status(*status),
        TryLast::Named(name) => Outcome::Named(name.clone()),
        TryLast::Uri { path, args } => {
            let path = path.value(exchange).to_vec();
            let args = args.as_ref().map(|args| args.value(exchange));
            // As nginx: without `?` in the argument the request's own arguments are dropped.
            Outcome::internal(path, args.as_deref())
        }
    })
}

/// The path of the file as a URI, if it exists as wanted.
fn found(exchange: &mut Exchange, root: &Root, file: &TryFile) -> Option<Vec<u8>> {
    let (mut uri, mut path) = (Scratch::take(), Scratch::take());
    file.path.append(exchange, &mut uri);
    path::append_file_in(root, exchange, &uri, &mut path);
    if root.is_alias_whole() {
        // As nginx: the files to try lie below the alias of a regex.
        path.extend_from_slice(&uri);
    }
    if file.is_folder {
        path.push(b'/');
    }
    let wanted = if file.is_folder { open::Kind::Folder } else { open::Kind::File };
    let is_there = path::kind(exchange, &path) == Some(wanted);
    if !is_there || path::refused_link(exchange, &path).is_some() {
        return None;
    }
    // As nginx: the slash that asks for a folder is not the path's. A folder without its own is redirected to.
    Some(uri.to_vec())
}
