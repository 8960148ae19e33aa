//! Files below `root` or `alias`.

mod small;

use crate::filters::compress::{gzip, precompressed};
use bytes::Bytes;
use precompressed::Static;
use std::io;
use std::rc::Rc;
use yorozu_http::uri::{Escape, escape_into};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_kernel::files::links::Links;
use yorozu_kernel::files::open::{self, Opened};
use yorozu_kernel::files::path;
use yorozu_kernel::logging::error::{self, Level};

/// The file the path names.
pub fn respond(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    if exchange.uri.ends_with(b"/") {
        return forbidden_listing(exchange);
    }
    if !exchange.request.method.is_get_or_head()
        && exchange.request.method != yorozu_kernel::exchange::request::Method::Post
    {
        return Outcome::Status(405);
    }
    let path = path::request_filename(exchange);
    let beside = precompressed(exchange, location, &path);
    if let Beside::Taken(response) = beside {
        return Outcome::Respond(response);
    }
    let varies = matches!(beside, Beside::Left);
    let links = Links::of(exchange, &path);
    // What is remembered is found by its path, whatever links are in it.
    if links.are_followed() && exchange.request.method.is_get_or_head() {
        if let Some((content, modified)) = small::known(&path) {
            let content = Segment::Memory(content);
            return Outcome::Respond(Box::new(whole(
                exchange, location, content, modified, varies,
            )));
        }
    }
    let opened = match open::open(&path, links, location.http_core()) {
        Ok(opened) => opened,
        Err(problem) => return not_opened(exchange, location, &path, &problem),
    };
    if opened.is_folder {
        return redirect_to_slash(exchange);
    }
    if exchange.request.method == yorozu_kernel::exchange::request::Method::Post {
        return Outcome::Status(405);
    }
    if !opened.is_file {
        error::request(
            exchange,
            Level::Crit,
            &format!("\"{}\" is not a regular file", error::verbatim(&path)),
        );
        return Outcome::Status(404);
    }
    let modified = opened.modified;
    let content = match small::read(&opened) {
        Some(content) => Segment::Memory(content),
        None => Segment::File(opened.file, 0..opened.bytes),
    };
    Outcome::Respond(Box::new(whole(exchange, location, content, modified, varies)))
}

/// The file that the path names, for handlers that send it in a way of their own; `None` for what is no file.
///
/// # Errors
/// It cannot be opened.
pub fn open(exchange: &mut Exchange) -> Result<Option<Opened>, Outcome> {
    if exchange.uri.ends_with(b"/") {
        return Ok(None);
    }
    if let Some(refusal) = path::unnamed(exchange) {
        return Err(refusal);
    }
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let path = path::request_filename(exchange);
    match open::open(&path, Links::of(exchange, &path), location.http_core()) {
        Ok(opened) => Ok(opened.is_file.then_some(opened)),
        Err(problem) => Err(not_opened(exchange, location, &path, &problem)),
    }
}

/// The file itself, which no coding changed.
fn whole(
    exchange: &Exchange,
    location: &LocationConf,
    content: Segment,
    modified: i64,
    varies: bool,
) -> Response {
    let mut response = of_file(exchange, location, vec![content], modified);
    response.allow_ranges = true;
    response.vary_encoding = location.of::<gzip::Conf>().gzip_vary && varies;
    response
}

/// What lies in a file, or parts of it.
pub fn of_file(
    exchange: &Exchange,
    location: &LocationConf,
    segments: Vec<Segment>,
    modified: i64,
) -> Response {
    let length = segments.iter().map(Segment::bytes).sum::<u64>();
    let mut response = Response::new(200);
    response.content_type = path::content_type(exchange, location);
    response.content_length = Some(length);
    response.last_modified = Some(modified);
    if location.http_core().etag {
        response.etag = etag(modified, length);
    }
    response.body = Body::Segments(segments);
    response
}

/// `"modified-length"` in hexadecimal digits, as nginx.
pub(super) fn etag(modified: i64, length: u64) -> Bytes {
    const ROOM: usize = 35;
    // By hand, and from its end: `fmt` costs ten times as much.
    let (mut text, mut at) = ([b'"'; ROOM], ROOM - 1);
    for (number, before) in [(length, b'-'), (u64::from_ne_bytes(modified.to_ne_bytes()), b'"')] {
        let mut rest = number;
        loop {
            at -= 1;
            text[at] = b"0123456789abcdef"[(rest % 16) as usize];
            rest /= 16;
            if rest == 0 {
                break;
            }
        }
        at -= 1;
        text[at] = before;
    }
    Bytes::copy_from_slice(&text[at..])
}

/// What lies compressed beside the file asked for.
enum Beside {
    /// A file that others get.
    Left,
    Nothing,
    /// One that this client gets.
    Taken(Box<Response>),
}

/// Looks for files that lie compressed beside the one asked for.
fn precompressed(exchange: &Exchange, location: &LocationConf, path: &[u8]) -> Beside {
    let settings = location.of::<precompressed::Conf>();
    let modes = [settings.gzip_static, settings.brotli_static, settings.zstd_static];
    if modes == [Static::Off; 3] || !exchange.request.method.is_get_or_head() {
        return Beside::Nothing;
    }
    let find = |suffix: &[u8]| {
        let path = [path, suffix].concat();
        let links = Links::of(exchange, &path);
        open::open(&path, links, location.http_core()).ok().filter(|opened| opened.is_file)
    };
    let (candidates, differs) = precompressed::candidates(exchange);
    let mut missing = Vec::new();
    for candidate in candidates {
        let Some(opened) = find(candidate.suffix) else {
            missing.push(candidate.suffix);
            continue;
        };
        let content = Segment::File(opened.file, 0..opened.bytes);
        let mut response = of_file(exchange, location, vec![content], opened.modified);
        response.allow_ranges = true;
        let token = Bytes::from_static(candidate.coding.token());
        response.add(Bytes::from_static(b"Content-Encoding"), token);
        response.vary_encoding = location.of::<gzip::Conf>().gzip_vary && differs;
        return Beside::Taken(Box::new(response));
    }
    let is_there = |suffix: &[u8]| !missing.contains(&suffix) && find(suffix).is_some();
    // Where nothing says so, who else gets what does not matter.
    let varies =
        location.of::<gzip::Conf>().gzip_vary && precompressed::chosen(location).any(is_there);
    if varies { Beside::Left } else { Beside::Nothing }
}

fn forbidden_listing(exchange: &mut Exchange) -> Outcome {
    if !exchange.request.method.is_get_or_head()
        && exchange.request.method != yorozu_kernel::exchange::request::Method::Post
    {
        return Outcome::Status(405);
    }
    let path = path::request_filename(exchange);
    let text = format!("directory index of \"{}\" is forbidden", error::verbatim(&path));
    error::request(exchange, Level::Error, &text);
    Outcome::Status(403)
}

fn not_opened(
    exchange: &Exchange,
    location: &LocationConf,
    path: &[u8],
    problem: &io::Error,
) -> Outcome {
    let status = open::status_of(problem);
    if status != 404 || location.http_core().log_not_found {
        let level = if status == 500 { Level::Crit } else { Level::Error };
        let call = Links::of(exchange, path).call();
        let path = error::verbatim(path);
        let text = format!("{call} \"{path}\" failed ({})", error::os_error(problem));
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
