//! `try_files`: the first file that exists, or the last argument.

use crate::config::http_core::{TryFile, TryLast};
use crate::exchange::Exchange;
use crate::exchange::scratch::Scratch;
use crate::handlers::Outcome;
use crate::handlers::static_file::{self, files};
use std::rc::Rc;

/// Sets the path of the first file found; the outcome of the last argument if there is none.
pub fn choose(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let try_files = location.http_core.try_files.as_ref()?;
    for file in &try_files.files {
        if let Some(uri) = found(exchange, file) {
            exchange.set_uri(uri);
            exchange.is_uri_below_alias = static_file::is_alias_whole(exchange);
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
            redirect(path, args.as_deref())
        }
    })
}

/// Starts over with a path that variables may have brought arguments into (`/index.php$request_uri`).
pub fn redirect(mut uri: Vec<u8>, args: Option<&[u8]>) -> Outcome {
    let Some(at) = memchr::memchr(b'?', &uri) else {
        return Outcome::Internal { uri, args: Some(args.unwrap_or_default().to_vec()) };
    };
    let mut all = uri.split_off(at + 1);
    uri.truncate(at);
    if let Some(args) = args {
        all.push(b'?');
        all.extend_from_slice(args);
    }
    Outcome::Internal { uri, args: Some(all) }
}

/// The path of the file as a URI, if it exists as wanted.
fn found(exchange: &mut Exchange, file: &TryFile) -> Option<Vec<u8>> {
    let (mut uri, mut path) = (Scratch::take(), Scratch::take());
    file.path.append(exchange, &mut uri);
    static_file::append_path_of(exchange, &uri, &mut path);
    if static_file::is_alias_whole(exchange) {
        // As nginx: the files to try lie below the alias of a regex.
        path.extend_from_slice(&uri);
    }
    if file.is_folder {
        path.push(b'/');
    }
    let wanted = if file.is_folder { files::Kind::Folder } else { files::Kind::File };
    if static_file::kind(exchange, &path) != Some(wanted) {
        return None;
    }
    // As nginx: the slash that asks for a folder is not the path's. A folder without its own is redirected to.
    Some(uri.to_vec())
}
