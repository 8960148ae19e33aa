//! Which file a request names, and of which type it is.

use super::open::{self, Kind};
use crate::base::scratch::Scratch;
use crate::config::http_core::{Root, Types};
use crate::exchange::conf::LocationConf;
use crate::exchange::outcome::Outcome;
use crate::exchange::{Exchange, Role};
use crate::logging::error::{self, Level};
use bytes::Bytes;
use nix::errno::Errno;
use std::os::unix::ffi::OsStrExt as _;

/// `$document_root`: the folder, with its variables.
pub fn append_document_root(exchange: &Exchange, out: &mut Vec<u8>) {
    let root = &exchange.conf.location(exchange.location).http_core().root;
    append_folder(root, exchange, out);
}

/// The folder of a `root` or `alias`, below the prefix of the server if it is relative. Where variables come to nothing it
/// is none: it would be that of the whole system, or as with nginx the prefix, where the configuration may be.
pub fn append_folder(root: &Root, exchange: &Exchange, out: &mut Vec<u8>) {
    if let Some(text) = root.path.literal_text() {
        out.extend_from_slice(text);
        return;
    }
    let start = out.len();
    root.path.append_peeked(exchange, out);
    let value = &out[start..];
    if value.iter().all(|byte| *byte == b'/') {
        if !exchange.doubt.is_open() {
            let name = if root.is_alias { "alias" } else { "root" };
            exchange.leave_doubt(&format!("the variables of \"{name}\" name no folder"));
        }
    } else if !value.starts_with(b"/") {
        let prefix = exchange.conf.prefix.join("");
        out.splice(start..start, prefix.as_os_str().as_bytes().iter().copied());
    }
}

/// `$request_filename`: the file the current path names.
pub fn request_filename(exchange: &Exchange) -> Scratch {
    let mut path = Scratch::take();
    append_file_of(exchange, &exchange.uri, &mut path);
    path
}

/// The file that `uri` names in the exchange's location.
pub fn file_of(exchange: &Exchange, uri: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(PATH_BYTES);
    append_file_of(exchange, uri, &mut path);
    path
}

/// Room for a path before it has to grow; chosen: most are shorter.
const PATH_BYTES: usize = 128;

/// As [`file_of`], behind what is in `out`.
pub fn append_file_of(exchange: &Exchange, uri: &[u8], out: &mut Vec<u8>) {
    append_file_in(&exchange.conf.location(exchange.location).http_core().root, exchange, uri, out);
}

/// Whether a path names a file in the exchange's location. As nginx: below an `alias` one that was rewritten there does
/// not, as it has nothing of the prefix that the alias stands for.
pub fn is_named(root: &Root, exchange: &Exchange) -> bool {
    !root.is_alias || exchange.is_uri_in_location
}

/// What is answered where a file is to be looked for and none is named.
pub fn unnamed(exchange: &Exchange) -> Option<Outcome> {
    let root = &exchange.conf.location(exchange.location).http_core().root;
    if is_named(root, exchange) {
        if root.path.literal_text().is_none() {
            append_folder(root, exchange, &mut Scratch::take());
        }
        return exchange.doubt.is_open().then_some(Outcome::Status(500));
    }
    let text = "\"alias\" cannot be used in a location where the URI was rewritten";
    error::request(exchange, Level::Error, text);
    Some(Outcome::Status(500))
}

/// As [`append_file_of`], for who has the `root` of the exchange's location at hand.
pub fn append_file_in(root: &Root, exchange: &Exchange, uri: &[u8], out: &mut Vec<u8>) {
    if !is_named(root, exchange) {
        return;
    }
    append_folder(root, exchange, out);
    out.extend_from_slice(match &root.replaced {
        _ if !root.is_alias => uri,
        Some(replaced) => uri.strip_prefix(&replaced[..]).unwrap_or_default(),
        None if exchange.is_uri_below_alias => uri,
        None => b"",
    });
}

/// As [`open::kind`], for what decides where a request goes. As nginx, it is logged if the system does not let us see.
#[inline]
pub fn kind(exchange: &Exchange, path: &[u8]) -> Option<Kind> {
    look(exchange, path).map_err(|problem| not_seen(exchange, path, problem)).ok()
}

/// As [`kind`], and nothing is logged.
///
/// # Errors
/// As the system says.
#[inline]
pub fn look(exchange: &Exchange, path: &[u8]) -> Result<Kind, Errno> {
    let supposed =
        || exchange.role == (Role::Question { supposes_scripts: true }) && path.ends_with(b".php");
    match open::look(path) {
        Ok(seen) => Ok(seen.kind),
        Err(_) if supposed() => Ok(Kind::File),
        Err(problem) => Err(problem),
    }
}

fn not_seen(exchange: &Exchange, path: &[u8], problem: Errno) {
    use Errno::{EINVAL, ENAMETOOLONG, ENOENT, ENOTDIR};
    if !matches!(problem, ENOENT | ENOTDIR | ENAMETOOLONG | EINVAL) {
        let path = error::verbatim(path.strip_suffix(b"/").unwrap_or(path));
        let text = format!("stat() \"{path}\" failed ({})", error::os_error(&problem.into()));
        error::request(exchange, Level::Crit, &text);
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

/// The type by the path's extension, or `default_type`.
pub fn content_type(exchange: &Exchange, location: &LocationConf) -> Bytes {
    exchange.accel_content_type().unwrap_or_else(|| {
        let core = location.http_core();
        mime_type(&core.types, &core.default_type, &exchange.uri)
    })
}
