//! `gzip`: compresses responses; a stored page is compressed once and kept in that form.

mod encoder;

pub use encoder::{Encoder, compress};

use crate::config::directive::*;
use crate::config::regex::Regex;
use crate::config::types::{Buffers, Size, word_bits, word_enum};
use crate::exchange::Exchange;
use crate::exchange::response::{Body, GzipEntry, Response};
use crate::limits;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use yorozu_http::cache_control::CacheControl;
use yorozu_http::negotiation::accepts;
use yorozu_http::{conditional, date, field};
use yorozu_wire::h1::Version;

/// Deflate effort; 1 to 9 by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Level(u8);

impl Setting for Level {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match yorozu_conf::value::number(args.word(0)) {
            Some(effort @ 1..=9) => Ok(Self(effort as u8)),
            _ => Err(ValueError::new("value must be between 1 and 9")),
        }
    }
}

word_enum! {
    /// `gzip_http_version`
    HttpVersion {
        V10 = "1.0",
        V11 = "1.1",
    }
}

/// `gzip_proxied`
#[derive(Clone, Copy, Debug)]
pub struct Proxied(u32);

impl Proxied {
    const OFF: u32 = 1;
    const EXPIRED: u32 = 1 << 1;
    const NO_CACHE: u32 = 1 << 2;
    const NO_STORE: u32 = 1 << 3;
    const PRIVATE: u32 = 1 << 4;
    const NO_LAST_MODIFIED: u32 = 1 << 5;
    const NO_ETAG: u32 = 1 << 6;
    const AUTH: u32 = 1 << 7;
    const ANY: u32 = 1 << 8;
}

impl Setting for Proxied {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let known = [
            ("off", Self::OFF),
            ("expired", Self::EXPIRED),
            ("no-cache", Self::NO_CACHE),
            ("no-store", Self::NO_STORE),
            ("private", Self::PRIVATE),
            ("no_last_modified", Self::NO_LAST_MODIFIED),
            ("no_etag", Self::NO_ETAG),
            ("auth", Self::AUTH),
            ("any", Self::ANY),
        ];
        word_bits(args, &known).map(Self)
    }
}

/// `gzip_types`; `text/html` is always among them.
#[derive(Clone, Debug)]
pub struct MimeTypes(Vec<Bytes>);

impl MimeTypes {
    fn has(&self, content_type: &[u8]) -> bool {
        let mime = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        mime.eq_ignore_ascii_case(b"text/html")
            || self.0.iter().any(|found| &found[..] == b"*" || found.eq_ignore_ascii_case(mime))
    }
}

impl Setting for MimeTypes {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.words.iter().filter(|word| &word[..] == b"text/html").count() > 0
            && args.words.len() > 1
        {
            args.env.warn("duplicate MIME type \"text/html\" in \"gzip_types\"");
        }
        Ok(Self(args.words.to_vec()))
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0.extend_from_slice(args.words);
        Ok(())
    }
}

/// `gzip_disable`
#[derive(Clone, Debug)]
pub struct Agents(Vec<Regex>);

impl Setting for Agents {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut agents = Self(Vec::new());
        agents.again(args)?;
        Ok(agents)
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            // nginx's mask: MSIE 4 to 6 without "SV1".
            let pattern: &[u8] =
                if &word[..] == b"msie6" { b"MSIE [4-6]\\.(?!.*SV1)" } else { word };
            self.0.push(Regex::compile(pattern, true, args.env)?);
        }
        Ok(())
    }
}

settings! {
    in gzip;
    /// Whether responses are compressed.
    gzip: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Count and size of buffers; accepted, memory is taken as needed.
    gzip_buffers: Buffers = "16 8k", TWO, HTTP_SERVER_LOCATION;
    /// Effort of compression, from 1 (fastest) to 9 (smallest).
    gzip_comp_level: Level = "1", ONE, HTTP_SERVER_LOCATION;
    /// Browsers, by regular expressions over User-Agent, that get no compressed answers.
    gzip_disable: Option<Agents> = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Least version of the request's protocol.
    gzip_http_version: HttpVersion = "1.1", ONE, HTTP_SERVER_LOCATION;
    /// Least length of answers, going by Content-Length.
    gzip_min_length: Size = "20", ONE, HTTP_SERVER_LOCATION;
    /// When requests that came through a proxy (Via) get compressed answers.
    gzip_proxied: Proxied = "off", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Types compressed beside text/html; `*` for all.
    gzip_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Whether Vary: Accept-Encoding is added.
    gzip_vary: bool = "off", ONE, HTTP_SERVER_LOCATION;
}

/// Compresses the response if the location and the client want it.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let conf = Rc::clone(&exchange.conf);
    let gzip = &conf.location(exchange.location).gzip;
    let length = response.content_length;
    let may_compress = gzip.gzip
        && matches!(response.status, 200 | 403 | 404)
        && length.is_none_or(|length| length >= gzip.gzip_min_length.0)
        && gzip.gzip_types.has(&response.content_type)
        && response.field(b"content-encoding").is_none();
    if !may_compress {
        return;
    }
    response.vary_encoding = gzip.gzip_vary;
    if !is_accepted(exchange, response, gzip) {
        return;
    }
    let level = gzip.gzip_comp_level.0;
    let is_head = exchange.request.method == crate::exchange::request::Method::Head;
    match std::mem::replace(&mut response.body, Body::empty()) {
        Body::Stream(mut stream) => {
            stream.gzip = Some(Box::new(Encoder::new(level)));
            response.body = Body::Stream(stream);
            response.forget_length();
        }
        tunnel @ Body::Tunnel(_) => response.body = tunnel,
        Body::Memory(bytes) => {
            let stored = response.gzip_entry.take();
            match compressed(stored, &bytes, level) {
                Some(compressed) => {
                    exchange.gzip_bytes = Some((bytes.len() as u64, compressed.len() as u64));
                    response.allow_ranges = false;
                    response.content_length =
                        (!is_head || !bytes.is_empty()).then_some(compressed.len() as u64);
                    response.body = Body::Memory(compressed);
                }
                None => {
                    response.body = Body::Memory(bytes);
                    return;
                }
            }
        }
        Body::Segments(segments) => {
            response.body = Body::Stream(Box::new(crate::handlers::gateway::stream::of_segments(
                segments, level,
            )));
            response.forget_length();
        }
    }
    response.remove(b"accept-ranges");
    response.add(Bytes::from_static(b"Content-Encoding"), Bytes::from_static(b"gzip"));
    response.etag = conditional::weaken(&response.etag).unwrap_or_default().into();
}

/// The kept compressed form of a stored page, or one made now.
///
/// The first request compresses on the worker: its client has waited for PHP just now or will get
/// the page uncompressed later anyway. Large pages are compressed beside the worker, and until then
/// sent as they are.
fn compressed(stored: Option<GzipEntry>, bytes: &Bytes, level: u8) -> Option<Bytes> {
    let Some(stored) = stored else { return Some(encoder::compress(bytes, level)) };
    if let Some((kept_level, kept)) = stored.entry.gzip.get() {
        return Some(if *kept_level == level {
            kept.clone()
        } else {
            encoder::compress(bytes, level)
        });
    }
    let entry = Arc::clone(&stored.entry);
    if entry.gzip_started.swap(true, Ordering::Relaxed) {
        return None;
    }
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
    if bytes.len() <= INLINE_BYTES_MAX
        || UNDER_WAY.load(Ordering::Relaxed) >= limits::COMPRESSIONS_MAX
    {
        let made = encoder::compress(bytes, level);
        keep(&stored, level, made.clone());
        return Some(made);
    }
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let bytes = bytes.clone();
    tokio::task::spawn_blocking(move || {
        let made = encoder::compress(&bytes, level);
        keep(&stored, level, made);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    });
    None
}

/// Pages up to here are compressed on the worker, about a millisecond; chosen.
const INLINE_BYTES_MAX: usize = 64 * 1024;

fn keep(stored: &GzipEntry, level: u8, compressed: Bytes) {
    let _ = stored.entry.gzip.set((level, compressed));
    stored.zone.reweigh(&stored.key, &stored.entry);
}

fn is_accepted(exchange: &Exchange, response: &Response, gzip: &Conf) -> bool {
    let request = &exchange.request;
    let known = &request.known;
    let version = match gzip.gzip_http_version {
        HttpVersion::V10 => Version::V10,
        HttpVersion::V11 => Version::V11,
    };
    request.known(known.accept_encoding).is_some_and(|value| accepts(value, b"gzip"))
        && request.version >= version
        && (known.via.is_none() || is_proxied_accepted(exchange, response, gzip.gzip_proxied))
        && !is_disabled(request.known(known.user_agent), gzip)
}

fn is_disabled(agent: Option<&[u8]>, gzip: &Conf) -> bool {
    match (agent, &gzip.gzip_disable) {
        (Some(agent), Some(agents)) => agents.0.iter().any(|regex| regex.is_match(agent)),
        _ => false,
    }
}

/// nginx's rules for requests with `Via`.
fn is_proxied_accepted(exchange: &Exchange, response: &Response, proxied: Proxied) -> bool {
    let has = |bit: u32| proxied.0 & bit != 0;
    if has(Proxied::OFF) {
        return false;
    }
    if has(Proxied::ANY) {
        return true;
    }
    if exchange.request.known.authorization.is_some() && has(Proxied::AUTH) {
        return true;
    }
    if let Some(expires) = response.field(b"expires") {
        if !has(Proxied::EXPIRED) {
            return false;
        }
        return date::parse(expires).is_some_and(|until| until < exchange.now());
    }
    if let Some(control) = response.field(b"cache-control") {
        let word = |name: &[u8], bit| has(bit) && field::list_has(control, name);
        return word(b"no-cache", Proxied::NO_CACHE)
            || word(b"no-store", Proxied::NO_STORE)
            || word(b"private", Proxied::PRIVATE)
            || (has(Proxied::EXPIRED) && CacheControl::parse(control).max_age == Some(0));
    }
    (has(Proxied::NO_LAST_MODIFIED) && response.last_modified.is_none())
        || (has(Proxied::NO_ETAG) && response.etag.is_empty())
}
