//! `autoindex`: a folder's listing as HTML.

use super::Outcome;
use super::static_file;
use crate::config::directive::*;
use crate::config::types::word_enum;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use bytes::Bytes;
use jiff::{Timestamp, tz::TimeZone};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use yorozu_http::uri::{Escape, escape_into};

word_enum! {
    /// `autoindex_format`
    Format {
        /// A page.
        Html = "html",
    }
}

settings! {
    in autoindex;
    /// Whether folders without index file are listed.
    autoindex: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Whether sizes are shown in bytes instead of rounded.
    autoindex_exact_size: bool = "on", ONE, HTTP_SERVER_LOCATION;
    /// The listing's format; this server has `html`.
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
    let settings = &conf.location(exchange.location).autoindex;
    if !settings.autoindex || !exchange.request.method.is_get_or_head() {
        return None;
    }
    let path = static_file::path(exchange);
    let items = match read(Path::new(OsStr::from_bytes(&path))) {
        Ok(items) => items,
        Err(error) => return Some(Outcome::Status(static_file::status_of(&error))),
    };
    let page = html(&exchange.uri, &items, settings);
    let response = Response::with_body(200, Bytes::from_static(b"text/html"), page);
    Some(Outcome::Respond(Box::new(response)))
}

fn read(folder: &Path) -> std::io::Result<Vec<Item>> {
    let mut items = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().as_bytes().to_vec();
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if name.starts_with(b".") {
            continue;
        }
        let modified = metadata.modified().map(crate::exchange::unix_seconds).unwrap_or(0);
        items.push(Item { name, is_folder: metadata.is_dir(), bytes: metadata.len(), modified });
    }
    items.sort_by(|a, b| b.is_folder.cmp(&a.is_folder).then_with(|| a.name.cmp(&b.name)));
    Ok(items)
}

fn html(uri: &[u8], items: &[Item], settings: &Conf) -> Vec<u8> {
    const NAME_WIDTH: usize = 50;
    let title = [b"Index of ", &escape_html(uri)[..]].concat();
    let mut page = Vec::new();
    page.extend_from_slice(b"<html>\r\n<head><title>");
    page.extend_from_slice(&title);
    page.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>");
    page.extend_from_slice(&title);
    page.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for item in items {
        page.extend_from_slice(b"<a href=\"");
        escape_into(&mut page, &item.name, Escape::Path);
        let slash: &[u8] = if item.is_folder { b"/" } else { b"" };
        page.extend_from_slice(slash);
        page.extend_from_slice(b"\">");
        let name = String::from_utf8_lossy(&item.name);
        let width = name.chars().count() + slash.len();
        if width > NAME_WIDTH {
            let short: String = name.chars().take(NAME_WIDTH - 3).collect();
            page.extend_from_slice(&escape_html(short.as_bytes()));
            page.extend_from_slice(b"..&gt;</a>");
        } else {
            page.extend_from_slice(&escape_html(name.as_bytes()));
            page.extend_from_slice(slash);
            page.extend_from_slice(b"</a>");
        }
        page.extend_from_slice(" ".repeat(NAME_WIDTH.saturating_sub(width)).as_bytes());
        let size = if item.is_folder {
            "-".to_owned()
        } else {
            size(item.bytes, settings.autoindex_exact_size)
        };
        let column = if settings.autoindex_exact_size { 19 } else { 7 };
        let line =
            format!(" {} {size:>column$}\r\n", date(item.modified, settings.autoindex_localtime));
        page.extend_from_slice(line.as_bytes());
    }
    page.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
    page
}

fn date(unix_seconds: i64, is_local: bool) -> String {
    let zone = if is_local { TimeZone::system() } else { TimeZone::UTC };
    let time = Timestamp::from_second(unix_seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone);
    time.strftime("%d-%b-%Y %H:%M").to_string()
}

fn size(bytes: u64, is_exact: bool) -> String {
    match bytes {
        _ if is_exact => bytes.to_string(),
        0..=9999 => bytes.to_string(),
        10_000..=10_238_975 => format!("{}K", bytes.div_ceil(1024)),
        10_238_976..=10_484_711_423 => format!("{}M", bytes.div_ceil(1 << 20)),
        _ => format!("{}G", bytes.div_ceil(1 << 30)),
    }
}

fn escape_html(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            b'&' => out.extend(b"&amp;"),
            b'"' => out.extend(b"&quot;"),
            _ => out.push(byte),
        }
    }
    out
}
