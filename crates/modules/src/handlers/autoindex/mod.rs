//! `autoindex`: a folder's listing.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: what a folder has is asked of the system where the request is"
)]

mod formats;

use bytes::Bytes;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::{open, path};

/// The module.
pub const MODULE: Module =
    Module::new("http_autoindex", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

word_enum! {
    /// `autoindex_format`
    Format {
        /// A page.
        Html = "html",
        /// `<list>` with `<directory>` and `<file>`.
        Xml = "xml",
        /// A list of objects.
        Json = "json",
        /// JSON as the argument of the function that `?callback=` names.
        Jsonp = "jsonp",
    }
}

settings! {
    /// Whether folders without index file are listed.
    autoindex: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether sizes are shown in bytes instead of rounded.
    autoindex_exact_size: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// The listing's format.
    autoindex_format: Format = "html", ONE, HTTP_SERVER_LOCATION;
    /// Whether times are local instead of UTC.
    autoindex_localtime: bool = "off", ONE, HTTP_SERVER_LOCATION;
}

struct Item {
    name: Vec<u8>,
    is_folder: bool,
    bytes: u64,
    modified: i64,
}

/// The listing of the folder, if listings are on.
pub fn respond(exchange: &mut Exchange) -> Option<Outcome> {
    let conf = Rc::clone(&exchange.conf);
    let settings = conf.location(exchange.location).of::<Conf>();
    if !settings.autoindex || !exchange.request.method.is_get_or_head() {
        return None;
    }
    let path = path::request_filename(exchange);
    let items = match read(&path, Links::of(exchange, &path)) {
        Ok(items) => items,
        Err(error) => return Some(Outcome::Status(open::status_of(&error))),
    };
    let (content_type, page) = match settings.autoindex_format {
        Format::Html => ("text/html", formats::html(&exchange.uri, &items, settings)),
        Format::Xml => ("text/xml; charset=utf-8", formats::xml(&items)),
        Format::Json => ("application/json", formats::json(&items)),
        Format::Jsonp => {
            let callback =
                yorozu_http::field::argument(&exchange.args, b"callback").unwrap_or_default();
            match formats::jsonp(&items, callback) {
                Some(page) => page,
                None => return Some(Outcome::Status(400)),
            }
        }
    };
    let response = Response::with_body(200, Bytes::from_static(content_type.as_bytes()), page);
    Some(Outcome::Respond(Box::new(response)))
}

fn read(path: &[u8], links: Links) -> std::io::Result<Vec<Item>> {
    // What was opened is listed, whatever the path leads to by now.
    let folder = links.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
    let mut items = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name().as_bytes().to_vec();
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if name.starts_with(b".") {
            continue;
        }
        let modified =
            metadata.modified().map(yorozu_kernel::base::turn::unix_seconds_of).unwrap_or(0);
        items.push(Item { name, is_folder: metadata.is_dir(), bytes: metadata.len(), modified });
    }
    items.sort_by(|a, b| b.is_folder.cmp(&a.is_folder).then_with(|| a.name.cmp(&b.name)));
    Ok(items)
}
