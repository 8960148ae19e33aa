//! Files below `root` or `alias`.

pub mod files;
mod small;

use super::Outcome;
use crate::config::compiled::LocationConf;
use crate::config::http_core::{Symlinks, Types};
use crate::exchange::Exchange;
use crate::exchange::response::{Body, Response, Segment};
use crate::exchange::scratch::Scratch;
use crate::filters::compress::precompressed::{self, Static};
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::io;
use std::rc::Rc;
use yorozu_http::uri::{Escape, escape_into};

/// `$document_root`: the folder, with its variables.
pub fn append_root(exchange: &Exchange, out: &mut Vec<u8>) {
    let root = &exchange.conf.location(exchange.location).http_core.root;
    root.path.append_peeked(exchange, out);
}

/// `$request_filename`: the file the current path names.
pub fn path(exchange: &Exchange) -> Vec<u8> {
    path_of(exchange, &exchange.uri)
}

/// Does `alias` name one file, whatever the path is? So it does with a regex.
pub fn is_alias_whole(exchange: &Exchange) -> bool {
    let root = &exchange.conf.location(exchange.location).http_core.root;
    root.is_alias && root.alias_bytes == usize::MAX
}

/// The file that `uri` names in the exchange's location.
pub fn path_of(exchange: &Exchange, uri: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(PATH_BYTES);
    append_path_of(exchange, uri, &mut path);
    path
}

/// Room for a path before it has to grow; chosen: most are shorter.
const PATH_BYTES: usize = 128;

/// As [`path_of`], behind what is in `out`.
pub fn append_path_of(exchange: &Exchange, uri: &[u8], out: &mut Vec<u8>) {
    append_root(exchange, out);
    let root = &exchange.conf.location(exchange.location).http_core.root;
    let rest = match uri.get(root.alias_bytes..) {
        _ if !root.is_alias => uri,
        Some(rest) => rest,
        None if exchange.is_uri_below_alias => uri,
        None => b"",
    };
    out.extend_from_slice(rest);
}

/// As [`files::kind`], for what decides where a request goes.
pub fn kind(exchange: &Exchange, path: &[u8]) -> Option<files::Kind> {
    let supposed = || exchange.supposes_scripts && path.ends_with(b".php");
    files::kind(path).or_else(|| supposed().then_some(files::Kind::File))
}

/// The status for a file that cannot be had.
pub fn status_of(error: &io::Error) -> u16 {
    use nix::errno::Errno;
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::EINVAL) => 404,
        Some(Errno::EACCES | Errno::ELOOP | Errno::EPERM) => 403,
        _ => 500,
    }
}

/// The type for a path's extension.
pub fn mime_type(types: &Types, default: &Bytes, path: &[u8]) -> Bytes {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let extension = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0);
    let Some(extension) = extension.map(|at| &name[at + 1..]) else { return default.clone() };
    let found = types.0.get(extension).or_else(|| types.0.get(&extension.to_ascii_lowercase()[..]));
    found.unwrap_or(default).clone()
}

/// The file the path names.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    if exchange.uri.ends_with(b"/") {
        return forbidden_listing(exchange);
    }
    if !exchange.request.method.is_get_or_head()
        && exchange.request.method != crate::exchange::request::Method::Post
    {
        return Outcome::Status(405);
    }
    let path = path(exchange);
    if let Some(response) = precompressed(exchange, location, &path) {
        return Outcome::Respond(Box::new(response));
    }
    if let Some(problem) = refused_link(exchange, location, &path) {
        return not_opened(exchange, location, &path, &problem);
    }
    if let Some((content, modified)) = small::known(&path) {
        if exchange.request.method.is_get_or_head() {
            return Outcome::Respond(Box::new(whole(
                exchange,
                location,
                Segment::Memory(content),
                modified,
            )));
        }
    }
    let opened = match files::open(&path, &location.http_core) {
        Ok(opened) => opened,
        Err(problem) => return not_opened(exchange, location, &path, &problem),
    };
    if opened.is_folder {
        return redirect_to_slash(exchange);
    }
    if exchange.request.method == crate::exchange::request::Method::Post {
        return Outcome::Status(405);
    }
    if !opened.is_file {
        error::request(
            exchange,
            Level::Crit,
            &format!("\"{}\" is not a regular file", String::from_utf8_lossy(&path)),
        );
        return Outcome::Status(404);
    }
    let modified = opened.modified;
    let content = match small::read(&opened) {
        Some(content) => Segment::Memory(content),
        None => Segment::File(opened.file, 0..opened.bytes),
    };
    Outcome::Respond(Box::new(whole(exchange, location, content, modified)))
}

/// The file itself, which no coding changed.
fn whole(
    exchange: &Exchange,
    location: &LocationConf,
    content: Segment,
    modified: i64,
) -> Response {
    let mut response = of_file(exchange, location, content, modified);
    response.allow_ranges = true;
    let settings = &location.precompressed;
    let has_others = [settings.gzip_static, settings.brotli_static, settings.zstd_static];
    response.vary_encoding = location.gzip.gzip_vary && has_others.contains(&Static::On);
    response
}

fn of_file(
    exchange: &Exchange,
    location: &LocationConf,
    content: Segment,
    modified: i64,
) -> Response {
    let mut response = Response::new(200);
    response.content_type = content_type(exchange, location);
    response.content_length = Some(content.bytes());
    response.last_modified = Some(modified);
    if location.http_core.etag {
        response.etag = format!("\"{modified:x}-{:x}\"", content.bytes()).into();
    }
    response.body = Body::Segments(vec![content]);
    response
}

/// The file that lies compressed beside the one asked for, if there is one the client takes.
fn precompressed(exchange: &Exchange, location: &LocationConf, path: &[u8]) -> Option<Response> {
    let settings = &location.precompressed;
    let modes = [settings.gzip_static, settings.brotli_static, settings.zstd_static];
    if modes == [Static::Off; 3] || !exchange.request.method.is_get_or_head() {
        return None;
    }
    let (candidates, differs) = precompressed::candidates(exchange);
    for candidate in candidates {
        let path = [path, candidate.suffix].concat();
        if refused_link(exchange, location, &path).is_some() {
            continue;
        }
        let Ok(opened) = files::open(&path, &location.http_core) else { continue };
        if !opened.is_file {
            continue;
        }
        let content = Segment::File(opened.file, 0..opened.bytes);
        let mut response = of_file(exchange, location, content, opened.modified);
        let token = Bytes::from_static(candidate.coding.token());
        response.add(Bytes::from_static(b"Content-Encoding"), token);
        response.vary_encoding = location.gzip.gzip_vary && differs;
        return Some(response);
    }
    None
}

/// The type by the path's extension, or `default_type`.
pub fn content_type(exchange: &Exchange, location: &LocationConf) -> Bytes {
    exchange.accel_content_type().unwrap_or_else(|| {
        let core = &location.http_core;
        mime_type(&core.types, &core.default_type, &exchange.uri)
    })
}

/// `disable_symlinks`
fn refused_link(exchange: &Exchange, location: &LocationConf, path: &[u8]) -> Option<io::Error> {
    let setting = &location.http_core.disable_symlinks;
    if setting.mode == Symlinks::Allowed {
        return None;
    }
    let mut trusted = Scratch::take();
    if let Some(from) = &setting.from {
        from.append_peeked(exchange, &mut trusted);
    }
    let trusted = if path.starts_with(&trusted) { trusted.len() } else { 0 };
    files::refused_link(path, trusted, setting.mode)
}

fn forbidden_listing(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head()
        && exchange.request.method != crate::exchange::request::Method::Post
    {
        return Outcome::Status(405);
    }
    let path = path(exchange);
    let text = format!("directory index of \"{}\" is forbidden", String::from_utf8_lossy(&path));
    error::request(exchange, Level::Error, &text);
    Outcome::Status(403)
}

fn not_opened(
    exchange: &Exchange,
    location: &LocationConf,
    path: &[u8],
    problem: &io::Error,
) -> Outcome {
    let status = status_of(problem);
    if status != 404 || location.http_core.log_not_found {
        let level = if status == 500 { Level::Crit } else { Level::Error };
        let path = String::from_utf8_lossy(path);
        let text = format!("open() \"{path}\" failed ({})", error::os_error(problem));
        error::request(exchange, level, &text);
    }
    Outcome::Status(status)
}

/// The same path with a slash at its end.
pub fn redirect_to_slash(exchange: &mut Exchange) -> Outcome {
    let mut target = Vec::new();
    escape_into(&mut target, &exchange.uri, Escape::Path);
    target.push(b'/');
    if !exchange.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&exchange.args);
    }
    let mut response = Response::new(301);
    response.location = Some(target.into());
    Outcome::Redirect(Box::new(response))
}
