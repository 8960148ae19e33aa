//! The directives of gzip, and nginx's rules for which clients get compressed answers.

use super::put_ratio;
use bitflags::bitflags;
use bytes::Bytes;
use yorozu_http::{date, field};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::regex::Regex;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::{Buffers, Size, add_word_flags, word_enum};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::coding::Coding;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_wire::h1::Version;

/// The module.
pub const MODULE: Module = Module::new("http_gzip", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] =
    &[("gzip_ratio", Variable::Builtin(|ex, out| put_ratio(ex, Coding::Gzip, out)))];

/// Deflate effort; 1 to 9 by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Level(pub(super) u8);

impl Setting for Level {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match yorozu_conf::value::number(args.word(0)) {
            Some(effort @ 1..=9) => Ok(Self(effort as u8)),
            Some(_) => Err(ValueError::new("value must be between 1 and 9")),
            None => Err(args.invalid_number()),
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

bitflags! {
    /// `gzip_proxied`
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct Proxied: u16 {
        const OFF = 1;
        const EXPIRED = 1 << 1;
        const NO_CACHE = 1 << 2;
        const NO_STORE = 1 << 3;
        const PRIVATE = 1 << 4;
        const NO_LAST_MODIFIED = 1 << 5;
        const NO_ETAG = 1 << 6;
        const AUTH = 1 << 7;
        const ANY = 1 << 8;
    }
}

impl Proxied {
    const WORDS: [(&str, Self); 9] = [
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
}

impl Adds for Proxied {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        add_word_flags(self, args, &Self::WORDS)
    }
}

/// `gzip_types` and its like; `text/html` is always among them.
#[derive(Clone, Debug, Default)]
pub struct MimeTypes(Vec<Bytes>);

impl MimeTypes {
    pub fn has(&self, content_type: &[u8]) -> bool {
        // What most pages say, as they say it.
        if let Some(b"" | [b';', ..]) = content_type.strip_prefix(b"text/html") {
            return true;
        }
        let mime = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        mime.eq_ignore_ascii_case(b"text/html")
            || self.0.iter().any(|found| &found[..] == b"*" || found.eq_ignore_ascii_case(mime))
    }
}

impl Adds for MimeTypes {
    /// As nginx, with a warning about each that is there already; behind `*` nothing counts.
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let is_default = args.env.line.borrow().is_none();
        for word in args.words {
            if self.0.iter().any(|found| &found[..] == b"*") {
                break;
            }
            let word = Bytes::from(word.to_ascii_lowercase());
            if word == "text/html" && !is_default || self.0.contains(&word) {
                let text = String::from_utf8_lossy(&word);
                args.env.warn_here(&format!("duplicate MIME type \"{text}\""));
            } else {
                self.0.push(word);
            }
        }
        Ok(())
    }
}

/// `msie6`, as nginx finds it: the first "MSIE " is followed by 4 or 5, or by 6 without "SV1" behind it; and it is not Opera
/// that says so. What was passed is not come back to: a long text costs no more than its bytes.
const MSIE_6: &[u8] = br"^(?!.*Opera)(?:(?!MSIE ).)*+MSIE (?:[45]\..|6\..(?!.*SV1))";

/// `gzip_disable`
#[derive(Clone, Debug, Default)]
pub struct Agents(Vec<Regex>);

impl Adds for Agents {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let (pattern, is_caseless) =
                if &word[..] == b"msie6" { (MSIE_6, false) } else { (&word[..], true) };
            self.0.push(Regex::compile(pattern, is_caseless, args.env)?);
        }
        Ok(())
    }
}

settings! {
    /// Whether responses are compressed, unless 128 MB of memory are already in use to compress others.
    gzip: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Number and size of buffers; accepted, memory is allocated as needed.
    gzip_buffers: Buffers = "16 8k", TWO, HTTP_SERVER_LOCATION;
    /// Compression level, from 1 (fastest) to 9 (smallest).
    gzip_comp_level: Level = "1", ONE, HTTP_SERVER_LOCATION;
    /// Browsers, by regular expressions over User-Agent, that get no compressed responses.
    gzip_disable: Option<Agents> = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Minimum version of the request's protocol.
    gzip_http_version: HttpVersion = "1.1", ONE, HTTP_SERVER_LOCATION;
    /// Minimum length of responses, by their Content-Length.
    gzip_min_length: Size = "20", ONE, HTTP_SERVER_LOCATION;
    /// When requests that came through a proxy (Via) get compressed responses.
    gzip_proxied: Proxied = "off", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Types compressed besides text/html; `*` for all.
    gzip_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Whether Vary: Accept-Encoding is added.
    gzip_vary: bool = "off", ONE, HTTP_SERVER_LOCATION;
}

fn hash(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    power(block, args, 17, "512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k")
}

fn window(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    power(block, args, 15, "512, 1k, 2k, 4k, 8k, 16k, or 32k")
}

/// A power of two from 512 on.
fn power(block: &mut Block, args: &Args<'_>, most: u32, all: &str) -> Result<(), ValueError> {
    once::<Size>(block, args)?;
    let size = Size::from_args(args)?.0;
    match (9..=most).any(|power| size == 1 << power) {
        true => Ok(()),
        false => Err(ValueError(format!("\"{}\" directive must be {all}", args.name))),
    }
}

/// Rows that are no plain settings: nginx has them, and documents none.
pub const OTHERS: &[Directive] = &[
    unsaid("gzip_hash", hash, "Memory for the search for repetitions."),
    unsaid("gzip_no_buffer", once::<bool>, "Whether pieces are sent on as they are compressed."),
    unsaid("gzip_window", window, "How far back repetitions are looked for."),
    unsaid("postpone_gzipping", once::<Size>, "Bytes to wait for before compression begins."),
];

const fn unsaid(name: &'static str, check: Setter, doc: &'static str) -> Directive {
    let why = Action::Ignored("memory is allocated as needed", check);
    Directive::row(name, HTTP_SERVER_LOCATION, Arity::ONE, why, doc)
}

/// Whether nothing but `Accept-Encoding` keeps the client from getting gzip.
pub(super) fn is_let(exchange: &Exchange, response: &Response, gzip: &Conf) -> bool {
    let request = &exchange.request;
    let known = &request.known;
    let version = match gzip.gzip_http_version {
        HttpVersion::V10 => Version::V10,
        HttpVersion::V11 => Version::V11,
    };
    request.version >= version
        && (known.via.is_none() || is_proxied_accepted(exchange, response, gzip.gzip_proxied))
        && !is_disabled(request.known(known.user_agent), gzip)
}

fn is_disabled(agent: Option<&[u8]>, gzip: &Conf) -> bool {
    match (agent, &gzip.gzip_disable) {
        // One that may be a browser that gzip is not for gets none, which any can read.
        (Some(agent), Some(agents)) => {
            agents.0.iter().any(|regex| regex.is_match(agent).unwrap_or(true))
        }
        _ => false,
    }
}

/// Whether it is the last of what semicolons set apart in a part of a list: so nginx reads `max-age=0; private`.
fn ends_with_word(part: &[u8], word: &[u8]) -> bool {
    let last = part.rsplit(|byte| *byte == b';').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(word)
}

/// nginx's rules for requests with `Via`.
fn is_proxied_accepted(exchange: &Exchange, response: &Response, proxied: Proxied) -> bool {
    let has = |flag| proxied.contains(flag);
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
        let date = match response.field(b"date") {
            Some(date) => date::parse(date),
            None => Some(exchange.now()),
        };
        return date::parse(expires).zip(date).is_some_and(|(until, date)| until < date);
    }
    if response.field(b"cache-control").is_some() {
        let word = |name: &[u8], flag| {
            let mut values = response.values(b"cache-control");
            has(flag)
                && values.any(|value| field::list(value).any(|part| ends_with_word(part, name)))
        };
        return word(b"no-cache", Proxied::NO_CACHE)
            || word(b"no-store", Proxied::NO_STORE)
            || word(b"private", Proxied::PRIVATE);
    }
    // As nginx: what says nothing about its lifetime is compressed, unless a validator speaks against it. The time of
    // a file of ours is none.
    let is_of_upstream = response.stored.is_some() || !exchange.upstream_fields.is_empty();
    let has_time = response.field(b"last-modified").is_some()
        || (response.last_modified.is_some() && is_of_upstream);
    let is_refused = (has(Proxied::NO_LAST_MODIFIED) && has_time)
        || (has(Proxied::NO_ETAG) && !response.etag.is_empty());
    !is_refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msie_is_looked_for_in_one_pass() {
        // Far above the memory that a search has for places to come back to.
        let long = |end: &[u8]| [&b"x".repeat(2_000_000)[..], end].concat();
        let regex = Regex::plain(MSIE_6).unwrap();
        assert_eq!(regex.is_match(&long(b"MSIE 6.0; x")), Ok(true));
        assert_eq!(regex.is_match(&long(b"MSIE x.0; MSIE 6.0; x")), Ok(false));
    }
}
