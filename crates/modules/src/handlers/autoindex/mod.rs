//! `autoindex`: a folder's listing.

#![expect(
    clippy::disallowed_methods,
    reason = "as nginx: what a folder has is asked of the system where the request is"
)]

mod formats;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::open::{self, Kind};
use yorozu_kernel::files::path;
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_autoindex", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

word_enum! {
    /// `autoindex_format`
    Format {
        /// A page.
        Html = "html",
        /// `<list>` with `<directory>`, `<file>` and `<other>`.
        Xml = "xml",
        /// A list of objects.
        Json = "json",
        /// JSON as the argument of the function that `?callback=` names.
        Jsonp = "jsonp",
    }
}

settings! {
    /// Whether folders without an index file are listed.
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
    kind: Kind,
    bytes: u64,
    modified: i64,
}

impl Item {
    fn is_folder(&self) -> bool {
        self.kind == Kind::Folder
    }

    /// Its type in XML and JSON.
    fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Folder => "directory",
            Kind::File => "file",
            Kind::Other => "other",
        }
    }
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
        Err(problem) => return Some(not_listed(exchange, &path, &problem)),
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

/// The answer where a folder cannot be read.
pub(super) fn not_listed(exchange: &Exchange, path: &[u8], problem: &io::Error) -> Outcome {
    let status = open::status_of(problem);
    let level = if status == 500 { Level::Crit } else { Level::Error };
    let path = error::verbatim(path.strip_suffix(b"/").unwrap_or(path));
    let text = format!("opendir() \"{path}\" failed ({})", error::os_error(problem));
    error::request(exchange, level, &text);
    Outcome::Status(status)
}

fn read(path: &[u8], links: Links) -> io::Result<Vec<Item>> {
    // What was opened is listed, whatever the path leads to by now.
    let folder = links.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
    let mut items = Vec::new();
    for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
        let entry = entry?;
        let name = entry.file_name().as_bytes().to_vec();
        if name.starts_with(b".") {
            continue;
        }
        let Ok(metadata) = described(&entry.path()) else { continue };
        let modified =
            metadata.modified().map(yorozu_kernel::base::turn::unix_seconds_of).unwrap_or(0);
        let kind = Kind::of(&metadata);
        items.push(Item { name, kind, bytes: metadata.len(), modified });
    }
    items.sort_by(|a, b| b.is_folder().cmp(&a.is_folder()).then_with(|| a.name.cmp(&b.name)));
    Ok(items)
}

/// What a name leads to; as nginx, a link that leads nowhere is listed itself.
fn described(path: &Path) -> io::Result<Metadata> {
    match fs::metadata(path) {
        Err(problem) if leads_nowhere(&problem) => fs::symlink_metadata(path),
        found => found,
    }
}

fn leads_nowhere(problem: &io::Error) -> bool {
    matches!(problem.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ELOOP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_that_lead_nowhere_are_listed_themselves() {
        let folder = std::env::temp_dir().join(format!("yorozu-autoindex.{}", std::process::id()));
        fs::create_dir_all(folder.join("folder")).unwrap();
        fs::write(folder.join("file"), "text").unwrap();
        for (target, name) in [("none", "gone"), ("loop", "loop"), ("file", "link")] {
            symlink(target, folder.join(name)).unwrap();
        }
        let items = read(folder.as_os_str().as_bytes(), Links::FOLLOWED).unwrap();
        let shown = |item: &Item| (item.name.escape_ascii().to_string(), item.type_name());
        let shown: Vec<_> = items.iter().map(shown).collect();
        let expected = [
            ("folder", "directory"),
            ("file", "file"),
            ("gone", "other"),
            ("link", "file"),
            ("loop", "other"),
        ];
        assert_eq!(shown, expected.map(|(name, kind)| (name.to_owned(), kind)));
        fs::remove_dir_all(folder).unwrap();
    }
}
