//! `try_files`: the first file that exists, or the last argument.

use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::http_core::{Root, TryFile, TryLast};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::{open, path};

/// Sets the path of the first file found; the outcome of the last argument if there is none.
pub fn choose(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let core = location.http_core();
    let try_files = core.try_files.as_ref()?;
    if let Some(refusal) = path::unnamed(exchange) {
        return Some(refusal);
    }
    for file in &try_files.files {
        if let Some(uri) = found(exchange, &core.root, file) {
            // As nginx: what is passed on without a path of its own stays as it was sent.
            let is_as_sent = exchange.is_uri_as_sent;
            exchange.set_uri(uri);
            exchange.is_uri_as_sent = is_as_sent;
            exchange.is_uri_below_alias = core.root.is_alias_whole();
            return None;
        }
    }
    Some(match &try_files.last {
        TryLast::Status(status) => Outcome::Status(*status),
        TryLast::Named(name) => Outcome::Named(name.clone()),
        TryLast::Uri { path, args } => {
            let mut name = path.value(exchange).to_vec();
            let is_literal = is_literal(path) && args.as_ref().is_none_or(is_literal);
            name.drain(..in_front(exchange, &core.root, is_literal, &name));
            let (path, args) = (name, args.as_ref().map(|args| args.value(exchange)));
            // As nginx: without `?` in the argument the request's own arguments are dropped.
            Outcome::internal(path, args.as_deref())
        }
    })
}

fn is_literal(template: &Template) -> bool {
    template.as_literal().is_some()
}

/// How much of a name is the beginning that an `alias` takes the place of: as nginx, only of a name with variables, and
/// only if it begins as the request's path does.
fn in_front(exchange: &Exchange, root: &Root, is_literal: bool, name: &[u8]) -> usize {
    let replaced = root.replaced.as_ref().filter(|_| root.is_alias && !is_literal);
    let is_of_request =
        |replaced: &&Bytes| exchange.uri.starts_with(replaced) && name.starts_with(replaced);
    replaced.filter(is_of_request).map_or(0, Bytes::len)
}

/// The path of the file as a URI, if it exists as wanted.
fn found(exchange: &mut Exchange, root: &Root, file: &TryFile) -> Option<Vec<u8>> {
    let (mut name, mut path) = (Scratch::take(), Scratch::take());
    file.path.append(exchange, &mut name);
    let name = &name[in_front(exchange, root, is_literal(&file.path), &name)..];
    path::append_folder(root, exchange, &mut path);
    path.extend_from_slice(name);
    if file.is_folder {
        path.push(b'/');
    }
    let wanted = if file.is_folder { open::Kind::Folder } else { open::Kind::File };
    let is_there = path::kind(exchange, &path) == Some(wanted);
    if !is_there || Links::of(exchange, &path).refuse(&path) {
        return None;
    }
    // As nginx: the slash that asks for a folder is not the path's. A folder without its own is redirected to.
    Some(match root.is_alias {
        true => [root.replaced.as_deref().unwrap_or_default(), name].concat(),
        false => name.to_vec(),
    })
}
