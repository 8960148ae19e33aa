//! `dav_methods`: files that clients put, delete, copy and move, and folders that they make.
//!
//! # Source
//! RFC 4918 and nginx, `ngx_http_dav_module`.

#![expect(
    clippy::disallowed_methods,
    reason = "whole trees and copies are on a thread that may block; a name is looked up where the request is"
)]

use super::static_file;
use bytes::Bytes;
use nix::errno::Errno;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use yorozu_http::conditional::etag_matches;
use yorozu_http::{date, uri};
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::StoreAccess;
use yorozu_kernel::exchange::body_failed::body_failed;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::{Exchange, error_page};
use yorozu_kernel::files::path;
use yorozu_kernel::files::temporary::{TemporaryFile, crosses_devices, folder_for, folder_mode};
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error::{self, Level, os_error};

/// The module.
pub const MODULE: Module = Module::new("http_dav", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `OFF` is a word like the others, which no request has as its method.
const KNOWN: [&[u8]; 6] = [b"OFF", b"PUT", b"DELETE", b"MKCOL", b"COPY", b"MOVE"];

/// `dav_methods off | method …`
#[derive(Clone, Debug, Default)]
pub struct Methods(Vec<Bytes>);

impl Adds for Methods {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let method = Bytes::from(word.to_ascii_uppercase());
            if !KNOWN.contains(&&method[..]) {
                let word = String::from_utf8_lossy(word);
                return Err(ValueError(format!("invalid value \"{word}\"")));
            }
            if self.0.contains(&method) {
                args.duplicate_value(word);
            } else {
                self.0.push(method);
            }
        }
        Ok(())
    }
}

settings! {
    /// The methods by which clients may change files.
    dav_methods: Methods = "off", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Whether PUT creates the folders that a path needs.
    create_full_put_path: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Permissions of what is created.
    dav_access: StoreAccess = "user:rw", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// How many parts a path must have to be deleted.
    min_delete_depth: u64 = "0", ONE, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether files may be changed.
    pub fn is_on(&self) -> bool {
        !self.dav_methods.0.is_empty()
    }
}

/// Whether the request changes files.
pub fn is_asked(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    let methods = &location.of::<Conf>().dav_methods.0;
    methods.iter().any(|method| method == exchange.request.method_text())
}

/// A status with the reason for the log, if it has one.
struct Refused(u16, Option<String>);

impl From<u16> for Refused {
    fn from(status: u16) -> Self {
        Self(status, None)
    }
}

/// What the system refused; `missing` is the status for a path that leads nowhere.
fn failed(call: &str, path: &Path, problem: &io::Error, missing: u16) -> Refused {
    let status = match problem.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG) => missing,
        Some(Errno::EACCES | Errno::EPERM) => 403,
        Some(Errno::EEXIST) => 405,
        Some(Errno::ENOSPC | Errno::EDQUOT) => 507,
        _ => 500,
    };
    Refused(
        status,
        Some(format!("{call} \"{}\" failed ({})", error::path_text(path), os_error(problem))),
    )
}

/// Does what the request asks for.
pub async fn run(exchange: &mut Exchange) -> Outcome {
    let result = match exchange.request.method_text() {
        b"PUT" => put(exchange).await,
        b"DELETE" => delete(exchange).await,
        b"MKCOL" => make_folder(exchange),
        _ => copy(exchange).await,
    };
    match result {
        Ok(outcome) => outcome,
        Err(Refused(status, text)) => {
            if let Some(text) = text {
                let level = if matches!(status, 500 | 507) { Level::Crit } else { Level::Error };
                error::request(exchange, level, &text);
            }
            Outcome::Status(status)
        }
    }
}

fn path_of(exchange: &Exchange, uri: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&path::file_of(exchange, uri)))
}

/// 201 with the path of what was made.
fn created(exchange: &Exchange) -> Outcome {
    let mut response = empty_201();
    let mut path = Vec::new();
    uri::escape_into(&mut path, &exchange.uri, uri::Escape::Path);
    response.location = Some(error_page::absolute(exchange, &path.into()));
    Outcome::Respond(Box::new(response))
}

/// 201 of a copy, which says no path.
fn copied() -> Outcome {
    Outcome::Respond(Box::new(empty_201()))
}

fn empty_201() -> Response {
    let mut response = Response::new(201);
    response.content_length = Some(0);
    response
}

/// These have no content.
fn refuse_content(exchange: &Exchange) -> Result<(), Refused> {
    let has_content = exchange.request.content_length.is_some_and(|length| length > 0);
    if !has_content && !exchange.request.is_chunked {
        return Ok(());
    }
    let method = error::verbatim(exchange.request.method_text());
    Err(Refused(415, Some(format!("{method} with body is unsupported"))))
}

/// Checks the request's conditions on what its path names now; nginx's module knows none.
///
/// # Source
/// RFC 9110, section 13.2.2.
fn check_conditions(exchange: &Exchange, found: Option<&Metadata>) -> Result<(), Refused> {
    let (request, known) = (&exchange.request, &exchange.request.known);
    let etag = found.filter(|found| found.is_file()).map(|f| static_file::etag(f.mtime(), f.len()));
    let is_named = |tags: &[u8], is_weak| match &etag {
        Some(etag) => etag_matches(tags, etag, is_weak),
        None => found.is_some() && tags.trim_ascii() == b"*",
    };
    let since = request.known(known.if_unmodified_since).and_then(date::parse_condition);
    let is_met = match request.known(known.if_match) {
        Some(tags) => is_named(tags, false),
        None => since.is_none_or(|since| found.is_none_or(|found| found.mtime() <= since)),
    };
    match request.known(known.if_none_match) {
        _ if !is_met => Err(412.into()),
        Some(tags) if is_named(tags, true) => Err(412.into()),
        _ => Ok(()),
    }
}

fn has_slash(uri: &[u8]) -> bool {
    uri.ends_with(b"/")
}

async fn put(exchange: &mut Exchange) -> Result<Outcome, Refused> {
    if has_slash(&exchange.uri) {
        return Err(Refused(409, Some("cannot PUT to a collection".to_owned())));
    }
    if exchange.request.field(b"content-range").is_some() {
        return Err(Refused(501, Some("PUT with range is unsupported".to_owned())));
    }
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    if let Err(problem) = Box::pin(exchange.body.read_all(location.http_core().body_rules())).await
    {
        return Ok(body_failed(exchange, problem));
    }
    let path = path_of(exchange, &exchange.uri);
    let before = fs::metadata(&path);
    if before.as_ref().is_ok_and(Metadata::is_dir) {
        let text = format!("\"{}\" could not be created: it is a folder", error::path_text(&path));
        return Err(Refused(409, Some(text)));
    }
    check_conditions(exchange, before.as_ref().ok())?;
    let mode = location.of::<Conf>().dav_access.0;
    if location.of::<Conf>().create_full_put_path {
        let folder = path.parent().unwrap_or(Path::new("/"));
        folder_for(folder, mode).map_err(|problem| failed("mkdir()", folder, &problem, 409))?;
    }
    let modified = exchange.request.field(b"date").and_then(date::parse);
    let content = exchange.body.content(false);
    let target = path.clone();
    let write = move || match content {
        Content::File(file, bytes) => replace(&target, mode, modified, |to| {
            let mut from = file.try_clone()?;
            from.rewind()?;
            io::copy(&mut from.take(bytes), to).map(|_| ())
        }),
        Content::Memory(text) => replace(&target, mode, modified, |to| to.write_all(&text)),
        Content::None | Content::Live { .. } => replace(&target, mode, modified, |_| Ok(())),
    };
    let result = away(write).await;
    // As nginx: a folder that is missing is the server's fault.
    result.map_err(|problem| failed("rename()", &path, &problem, 500))?;
    Ok(if before.is_ok() { Outcome::Status(204) } else { created(exchange) })
}

/// Runs file work where it may block.
async fn away<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Gives a file new content at once: readers never see a part of it.
fn replace(
    path: &Path,
    mode: u32,
    modified: Option<i64>,
    write: impl FnOnce(&mut &File) -> io::Result<()>,
) -> io::Result<()> {
    let new = TemporaryFile::beside(path)?;
    write(&mut new.file().as_ref())?;
    new.persist(path, mode, modified)
}

fn make_folder(exchange: &Exchange) -> Result<Outcome, Refused> {
    refuse_content(exchange)?;
    if !has_slash(&exchange.uri) {
        let text = "MKCOL can create a collection only".to_owned();
        return Err(Refused(409, Some(text)));
    }
    let path = path_of(exchange, &exchange.uri);
    check_conditions(exchange, fs::symlink_metadata(&path).ok().as_ref())?;
    let mode = exchange.conf.location(exchange.location).of::<Conf>().dav_access.0;
    let made = DirBuilder::new().mode(folder_mode(mode)).create(&path);
    made.map_err(|problem| failed("mkdir()", &path, &problem, 409))?;
    Ok(created(exchange))
}

/// `Depth` (RFC 4918, section 10.2); `Err` for another value.
fn depth(exchange: &Exchange) -> Result<Option<&'static str>, Refused> {
    match exchange.request.field(b"depth") {
        None => Ok(None),
        Some(b"0") => Ok(Some("0")),
        Some(b"infinity") => Ok(Some("infinity")),
        Some(other) => {
            let other = error::verbatim(other);
            let text = format!("client sent invalid \"Depth\" header: \"{other}\"");
            Err(Refused(400, Some(text)))
        }
    }
}

/// Of a whole folder.
fn need_infinity(depth: Option<&str>) -> Result<(), Refused> {
    match depth {
        Some("0") => Err(Refused(400, Some("\"Depth\" header must be infinity".to_owned()))),
        _ => Ok(()),
    }
}

async fn delete(exchange: &Exchange) -> Result<Outcome, Refused> {
    refuse_content(exchange)?;
    let least = exchange.conf.location(exchange.location).of::<Conf>().min_delete_depth;
    let uri = &exchange.uri;
    let parts = uri.iter().take(uri.len() - 1).filter(|byte| **byte == b'/').count() as u64;
    if parts < least {
        return Err(Refused(409, Some("insufficient URI depth".to_owned())));
    }
    let path = path_of(exchange, uri);
    let missing = |problem: &io::Error| {
        if problem.kind() == io::ErrorKind::NotADirectory { 409 } else { 404 }
    };
    let found = fs::symlink_metadata(&path);
    let found = found.map_err(|problem| failed("lstat()", &path, &problem, missing(&problem)))?;
    check_conditions(exchange, Some(&found))?;
    let depth = depth(exchange)?;
    if found.is_dir() {
        if !has_slash(uri) {
            let text = format!("DELETE \"{}\" failed: it is a folder", error::path_text(&path));
            return Err(Refused(409, Some(text)));
        }
        need_infinity(depth)?;
    }
    let target = path.clone();
    let result = away(move || remove(&target)).await;
    result.map_err(|problem| failed("unlink()", &path, &problem, 404))?;
    Ok(Outcome::Status(204))
}

fn remove(path: &Path) -> io::Result<()> {
    let is_folder = fs::symlink_metadata(path)?.is_dir();
    if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// The path that `Destination` names, on this server.
fn destination(exchange: &Exchange) -> Result<Vec<u8>, Refused> {
    let bad = |text: &str| Refused(400, Some(text.to_owned()));
    let field = exchange.request.field(b"destination");
    let field = field.ok_or_else(|| bad("client sent no \"Destination\" header"))?;
    let invalid = || {
        let text = error::verbatim(field);
        bad(&format!("client sent invalid \"Destination\" header: \"{text}\""))
    };
    let target = if field.starts_with(b"/") {
        field
    } else {
        let rest =
            [&b"http://"[..], b"https://"].iter().find_map(|scheme| field.strip_prefix(*scheme));
        let rest = rest.ok_or_else(invalid)?;
        let slash = memchr::memchr(b'/', rest).ok_or_else(invalid)?;
        let authority = &rest[..slash];
        let port = authority.iter().rposition(|byte| *byte == b':').unwrap_or(authority.len());
        let is_port = authority[port..].iter().skip(1).all(u8::is_ascii_digit);
        // As nginx: of whichever port.
        let host = if is_port { &authority[..port] } else { authority };
        let request = &exchange.request;
        if ![host, authority].iter().any(|name| name.eq_ignore_ascii_case(&request.host))
            && !authority.eq_ignore_ascii_case(request.authority())
        {
            let text = error::verbatim(field);
            return Err(bad(&format!(
                "\"Destination\" URI \"{text}\" is handled by different repository than the source URI"
            )));
        }
        &rest[slash..]
    };
    let path = uri::parse_unsafe(target).map(|target| target.path);
    let path = path.filter(|path| path.starts_with(b"/")).ok_or_else(invalid)?;
    if is_elsewhere(exchange, &path) {
        let text = error::verbatim(field);
        let text =
            format!("\"Destination\" URI \"{text}\" is not in the location of the source URI");
        return Err(Refused(403, Some(text)));
    }
    Ok(path)
}

/// Whether other rules hold for a path than for the request's, or the folder of its location does not have it. nginx cuts the
/// length of an `alias` location's name off any path, and asks no other location.
fn is_elsewhere(exchange: &Exchange, path: &[u8]) -> bool {
    let location = |path: &[u8]| {
        exchange.peek(|asked| {
            asked.uri = path.to_vec();
            find_config::location(asked).ok()
        })
    };
    let found = location(path);
    if found.is_none() || found != location(&exchange.uri) {
        return true;
    }
    let root = &exchange.conf.location(exchange.location).http_core().root;
    let Some(replaced) = root.replaced.as_ref().filter(|_| root.is_alias) else { return false };
    let rest = path.strip_prefix(&replaced[..]);
    // `/files2` is not below `/files`.
    !rest.is_some_and(|rest| replaced.ends_with(b"/") || matches!(rest.first(), None | Some(b'/')))
}

async fn copy(exchange: &Exchange) -> Result<Outcome, Refused> {
    refuse_content(exchange)?;
    let target_uri = destination(exchange)?;
    if has_slash(&exchange.uri) != has_slash(&target_uri) {
        let [from, to] = [&exchange.uri, &target_uri].map(|uri| error::verbatim(uri).into_owned());
        let text = format!(
            "both URI \"{from}\" and \"Destination\" URI \"{to}\" should be either collections or non-collections"
        );
        return Err(Refused(409, Some(text)));
    }
    let is_move = exchange.request.method_text() == b"MOVE";
    let depth = depth(exchange)?;
    if is_move {
        need_infinity(depth)?;
    }
    let may_overwrite = match exchange.request.field(b"overwrite") {
        None | Some(b"T" | b"t") => true,
        Some(b"F" | b"f") => false,
        Some(other) => {
            let other = error::verbatim(other);
            let text = format!("client sent invalid \"Overwrite\" header: \"{other}\"");
            return Err(Refused(400, Some(text)));
        }
    };
    let (from, to) = (path_of(exchange, &exchange.uri), path_of(exchange, &target_uri));
    let found =
        fs::symlink_metadata(&from).map_err(|problem| failed("lstat()", &from, &problem, 404))?;
    check_conditions(exchange, Some(&found))?;
    if found.is_dir() != has_slash(&exchange.uri) {
        let text = format!("\"{}\" is collection", error::verbatim(&exchange.uri));
        return Err(Refused(400, Some(text)));
    }
    let inside =
        |folder: &Path, path: &Path| path.components().count() > 0 && path.starts_with(folder);
    if from == to || (found.is_dir() && inside(&from, &to)) {
        return Err(Refused(403, Some("source and destination are in each other".to_owned())));
    }
    if let Ok(there) = fs::symlink_metadata(&to) {
        if there.is_dir() && !found.is_dir() {
            let text =
                format!("\"{}\" could not be overwritten: it is a folder", error::path_text(&to));
            return Err(Refused(409, Some(text)));
        }
        if !may_overwrite {
            return Err(Refused(
                412,
                Some(format!("\"{}\" could not be overwritten", error::path_text(&to))),
            ));
        }
        let old = to.clone();
        if found.is_dir() {
            let result = away(move || remove(&old)).await;
            result.map_err(|problem| failed("unlink()", &to, &problem, 409))?;
        }
    }
    let mode = exchange.conf.location(exchange.location).of::<Conf>().dav_access.0;
    let (source, target, is_folder) = (from.clone(), to.clone(), found.is_dir());
    let result = away(move || {
        if let Some(folder) = target.parent().filter(|_| is_move && !is_folder) {
            // As nginx, of files alone.
            folder_for(folder, mode)?;
        }
        if is_move { rename(&source, &target, mode) } else { copy_all(&source, &target, mode) }
    })
    .await;
    result.map_err(|problem| {
        failed(if is_move { "rename()" } else { "copy()" }, &to, &problem, 409)
    })?;
    Ok(if found.is_dir() { copied() } else { Outcome::Status(204) })
}

fn rename(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(problem) if crosses_devices(&problem) => {
            copy_all(from, to, mode)?;
            remove(from)
        }
        result => result,
    }
}

fn copy_all(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    if found.is_dir() {
        DirBuilder::new().mode(folder_mode(mode)).create(to)?;
        for item in fs::read_dir(from)? {
            let item = item?;
            copy_all(&item.path(), &to.join(item.file_name()), mode)?;
        }
        return Ok(());
    }
    let modified = yorozu_kernel::base::turn::unix_seconds_of(found.modified()?);
    let mut source = File::open(from)?;
    replace(to, mode, Some(modified), |to| io::copy(&mut source, to).map(|_| ()))
}
