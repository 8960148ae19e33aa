//! Values of the cache's directives, and `*_cache_path`.

use super::memory::Memory;
use crate::nodes;
use bitflags::bitflags;
use bytes::Bytes;
use std::path::PathBuf;
use std::time::Duration;
use yorozu_cache::{DiskOptions, Levels, Pace, ZoneOptions};
use yorozu_conf::value;
use yorozu_http::field;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::CacheZone;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::{add_word_flags, word_enum};

/// `*_cache zone | off`; the name may hold variables, and then spell `off` or nothing too.
#[derive(Clone, Debug, Default)]
pub struct CacheZoneName(Option<Template>);

impl CacheZoneName {
    pub fn zone(&self) -> Option<&Template> {
        self.0.as_ref()
    }
}

impl Setting for CacheZoneName {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            zone => Template::compile(zone, args.env).map(|zone| Self(Some(zone))),
        }
    }
}

/// `*_cache_tag_headers name ... | off`
#[derive(Clone, Debug)]
pub struct TagHeaders(Vec<Bytes>);

impl TagHeaders {
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|known| field::is_same(known, name))
    }
}

impl Setting for TagHeaders {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.words.len() == 1 && args.word(0) == b"off" {
            return Ok(Self(Vec::new()));
        }
        match args.words.iter().find(|word| !field::is_token(word) || word == &"off") {
            None => Ok(Self(args.words.to_vec())),
            Some(word) => {
                let word = String::from_utf8_lossy(word);
                let expected = "expected the name of a header, or \"off\" alone";
                Err(ValueError(format!("invalid value \"{word}\", {expected}")))
            }
        }
    }
}

/// `*_cache_methods`: GET and HEAD, and those named.
#[derive(Clone, Debug, Default)]
pub struct CacheMethods(Vec<Bytes>);

impl CacheMethods {
    pub fn admits(&self, method: &[u8]) -> bool {
        method == b"GET" || method == b"HEAD" || self.0.iter().any(|name| name == method)
    }
}

impl Adds for CacheMethods {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let method = Bytes::from(word.to_ascii_uppercase());
            if !matches!(&method[..], b"GET" | b"HEAD" | b"POST") {
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

/// `*_cache_valid` lines: the first that names the status, or `any`, counts.
#[derive(Clone, Debug, Default)]
pub struct CacheValid(Vec<(Option<u16>, Duration)>);

impl CacheValid {
    /// The lifetime for a status.
    pub fn lifetime(&self, status: u16) -> Option<Duration> {
        let means = |code: &Option<u16>| match code {
            Some(code) => *code == status,
            None => !is_of_request(status),
        };
        let found = self.0.iter().find(|(code, _)| means(code));
        found.map(|(_, time)| *time)
    }
}

impl Adds for CacheValid {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let (time, codes) = args.words.split_last().expect("one argument at least");
        let time = value::time(time).ok_or_else(|| {
            ValueError(format!("invalid time value \"{}\"", String::from_utf8_lossy(time)))
        })?;
        if codes.is_empty() {
            self.0.extend([200, 301, 302].map(|code| (Some(code), time)));
        }
        for word in codes {
            let code = match &word[..] {
                b"any" => None,
                digits => {
                    let code = value::number(digits).and_then(|code| u16::try_from(code).ok());
                    let code = code.filter(|code| (100..=599).contains(code));
                    let text = String::from_utf8_lossy(word);
                    Some(code.ok_or_else(|| ValueError(format!("invalid status \"{text}\"")))?)
                }
            };
            self.0.push((code, time));
        }
        Ok(())
    }
}

/// Statuses that say something about one request, not about its URL: `*_cache_valid any` does not mean
/// them, or one client's broken request would make the answer for all.
fn is_of_request(status: u16) -> bool {
    matches!(
        status,
        400 | 401 | 406..=408 | 411..=417 | 421 | 422 | 425 | 426 | 428 | 429 | 431 | 494..=499 | 511
    )
}

word_enum! {
    /// `*_cache_invalidate`
    Invalidate {
        /// None.
        Off = "off",
        /// Those whose own fields say how long they are fresh, as RFC 9111 has it. Where the operator or
        /// the application said so in nginx's terms, any client's POST would empty the cache against it.
        Fields = "fields",
        /// All.
        On = "on",
    }
}

/// `*_cache_purge`
#[derive(Clone, Debug, Default)]
pub enum PurgeRule {
    #[default]
    Off,
    /// `ZONE KEY`
    Key { zone: String, key: Template },
    /// `METHOD …`
    Method { method: Bytes, takes_all: bool, from: Option<From> },
    /// `$flag …`
    Flags(Vec<Template>),
}

/// `from`: the addresses that may purge.
#[derive(Clone, Debug)]
pub enum From {
    All,
    Networks(Vec<Network>),
}

impl PurgeRule {
    /// The zone it names by itself.
    pub fn zone(&self) -> Option<&str> {
        match self {
            Self::Key { zone, .. } => Some(zone),
            _ => None,
        }
    }
}

impl Setting for PurgeRule {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let first = args.word(0);
        if first.starts_with(b"$") {
            let flags = args.words.iter().map(|word| Template::compile(word, args.env));
            return flags.collect::<Result<_, _>>().map(Self::Flags);
        }
        if first == b"off" && args.words.len() == 1 {
            return Ok(Self::Off);
        }
        if args.words.len() == 2 && !matches!(args.word(1), b"from" | b"purge_all") {
            let key = Template::compile(args.word(1), args.env)?;
            return Ok(Self::Key { zone: args.text(0), key });
        }
        let is_token =
            first.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
        if !is_token {
            return Err(args.invalid_parameter(first));
        }
        let method = match first {
            b"on" => Bytes::from_static(b"PURGE"),
            method => Bytes::copy_from_slice(method),
        };
        let mut rest = &args.words[1..];
        let takes_all = rest.first().is_some_and(|word| &word[..] == b"purge_all");
        rest = &rest[usize::from(takes_all)..];
        let from = match rest {
            [] => None,
            [word, all] if &word[..] == b"from" && &all[..] == b"all" => Some(From::All),
            [word, addresses @ ..] if &word[..] == b"from" && !addresses.is_empty() => {
                let network = |word: &Bytes| {
                    Network::parse(&String::from_utf8_lossy(word))
                        .ok_or_else(|| args.invalid_parameter(word))
                };
                Some(From::Networks(addresses.iter().map(network).collect::<Result<_, _>>()?))
            }
            [other, ..] => return Err(args.invalid_parameter(other)),
        };
        Ok(Self::Method { method, takes_all, from })
    }
}

/// `*_cache_status off | on | name`: the name of this cache in the field.
#[derive(Clone, Debug, Default)]
pub struct StatusName(pub Option<Bytes>);

/// The cache's name where `on` gives it none.
pub const DEFAULT_NAME: &[u8] = b"yorozu";

impl Setting for StatusName {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            b"on" => Ok(Self(Some(Bytes::from_static(DEFAULT_NAME)))),
            name => {
                // A token (RFC 8941, section 3.3.4).
                let is_token = name[0].is_ascii_alphabetic()
                    && name
                        .iter()
                        .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(b));
                let name = Bytes::copy_from_slice(name);
                is_token.then_some(Self(Some(name))).ok_or_else(|| {
                    ValueError(format!("invalid name \"{}\", it must be a token", args.text(0)))
                })
            }
        }
    }
}

bitflags! {
    /// Fields of the upstream's answer that are not acted on; `Authorization` is the request's, whose answers
    /// are stored like others then.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct IgnoreHeaders: u16 {
        const X_ACCEL_REDIRECT = 1;
        const X_ACCEL_EXPIRES = 1 << 1;
        const X_ACCEL_LIMIT_RATE = 1 << 2;
        const X_ACCEL_BUFFERING = 1 << 3;
        const X_ACCEL_CHARSET = 1 << 4;
        const EXPIRES = 1 << 5;
        const CACHE_CONTROL = 1 << 6;
        const SET_COOKIE = 1 << 7;
        const VARY = 1 << 8;
        const AUTHORIZATION = 1 << 9;
        const X_ACCEL_PURGE = 1 << 10;
        const X_ACCEL_COOKIES = 1 << 11;
        const X_ACCEL_SHARED = 1 << 12;
    }
}

impl IgnoreHeaders {
    const WORDS: [(&str, Self); 13] = [
        ("X-Accel-Redirect", Self::X_ACCEL_REDIRECT),
        ("X-Accel-Expires", Self::X_ACCEL_EXPIRES),
        ("X-Accel-Limit-Rate", Self::X_ACCEL_LIMIT_RATE),
        ("X-Accel-Buffering", Self::X_ACCEL_BUFFERING),
        ("X-Accel-Charset", Self::X_ACCEL_CHARSET),
        ("Expires", Self::EXPIRES),
        ("Cache-Control", Self::CACHE_CONTROL),
        ("Set-Cookie", Self::SET_COOKIE),
        ("Vary", Self::VARY),
        ("Authorization", Self::AUTHORIZATION),
        ("X-Accel-Purge", Self::X_ACCEL_PURGE),
        ("X-Accel-Cookies", Self::X_ACCEL_COOKIES),
        ("X-Accel-Shared", Self::X_ACCEL_SHARED),
    ];
}

impl Adds for IgnoreHeaders {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        add_word_flags(self, args, &Self::WORDS)
    }
}

/// Memory tier of a zone whose line says nothing about it; chosen: a few thousand pages.
const MEMORY_DEFAULT: u64 = 64 << 20;
/// How many keys nginx keeps in a `keys_zone` of that size, about 8,000 in a megabyte: 32 in each page, of which one
/// is for the rest.
fn keys(bytes: u64) -> usize {
    /// With what is kept of it.
    const PAGE_BYTES: u64 = 4096 + 16;
    const KEYS_PER_PAGE: u64 = 32;
    let pages = (bytes / PAGE_BYTES).saturating_sub(1).max(1);
    usize::try_from(pages * KEYS_PER_PAGE).unwrap_or(usize::MAX)
}

/// A disk tier of which nothing is said but its folder.
pub(super) fn disk_at(path: PathBuf) -> DiskOptions {
    DiskOptions {
        path,
        levels: Levels::default(),
        max_size: None,
        min_free: None,
        files_max: 0,
        inactive: 600,
        loader: Pace::default(),
        manager: Pace::default(),
    }
}

fn pace<'a>(disk: &'a mut DiskOptions, name: &str) -> &'a mut Pace {
    if name.starts_with("loader") { &mut disk.loader } else { &mut disk.manager }
}

fn time(text: &str) -> Option<Duration> {
    value::short_time(text.as_bytes())
}

/// `*_cache_path path keys_zone=name:size [parameters]`
///
/// # Errors
/// A parameter that is unknown or malformed, or a zone defined twice.
pub fn cache_path(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let mut disk = disk_at(args.env.prefix_path(&args.text(0)));
    let mut memory_bytes = None;
    let (mut zone, mut shared) = (None, None);
    for word in &args.words[1..] {
        let text = String::from_utf8_lossy(word).into_owned();
        let (name, argument) = text.split_once('=').ok_or_else(|| args.invalid_parameter(word))?;
        let broken = |what: &str| ValueError(format!("invalid {what} value \"{text}\""));
        let size = || value::offset(argument.as_bytes());
        match name {
            "levels" => {
                disk.levels = Levels::parse(argument)
                    .ok_or_else(|| ValueError(format!("invalid \"levels\" \"{text}\"")))?;
            }
            "keys_zone" => {
                let broken = || ValueError(format!("invalid keys zone size \"{text}\""));
                let (name, size) = argument.split_once(':').ok_or_else(broken)?;
                let size = value::size(size.as_bytes())
                    .filter(|size| *size >= 2 * 4096 && !name.is_empty());
                let size = size.ok_or_else(broken)?;
                disk.files_max = keys(size);
                zone = Some((name.to_owned(), size));
            }
            "inactive" => {
                let time = value::time(argument.as_bytes()).ok_or_else(|| broken("inactive"))?;
                disk.inactive = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
            }
            "max_size" => disk.max_size = Some(size().ok_or_else(|| broken("max_size"))?),
            "min_free" => disk.min_free = Some(size().ok_or_else(|| broken("min_free"))?),
            "shared" => shared = Some(argument.to_owned()),
            "memory" => memory_bytes = Some(size().ok_or_else(|| broken("memory"))?),
            "use_temp_path" => {
                // Temporary files always lie in the cache's own folder.
                value::switch(argument.as_bytes()).ok_or_else(|| broken("use_temp_path"))?;
            }
            "manager_files" | "loader_files" => {
                let files = value::number(argument.as_bytes());
                let files = files.and_then(|files| usize::try_from(files).ok());
                let files = files.ok_or_else(|| broken(name))?;
                // As nginx, which looks after each one whether that was the last.
                pace(&mut disk, name).files = files.max(1);
            }
            "manager_sleep" | "loader_sleep" => {
                pace(&mut disk, name).sleep = time(argument).ok_or_else(|| broken(name))?;
            }
            "manager_threshold" | "loader_threshold" => {
                pace(&mut disk, name).threshold = time(argument).ok_or_else(|| broken(name))?;
            }
            "purger_files" => {
                value::number(argument.as_bytes()).ok_or_else(|| broken(name))?;
            }
            _ => return Err(args.invalid_parameter(word)),
        }
    }
    let Some((zone, keys_bytes)) = zone else {
        return Err(ValueError(format!("\"{}\" must have \"keys_zone\" parameter", args.name)));
    };
    let mut named = args.env.named.borrow_mut();
    named.zone(&zone, args.name, keys_bytes)?;
    if args.env.zones.borrow().contains_key(&zone) {
        return Err(ValueError(format!("duplicate zone \"{zone}\"")));
    }
    let line = args.env.line.borrow();
    if let Some(at) = &*line {
        named.folder(&disk.path, true, Vec::new(), at)?;
    }
    if let Some(url) = shared {
        nodes::share(args, &zone, &url)?;
    }
    args.env.shared::<Memory>().note(&zone, memory_bytes.is_some());
    let options = ZoneOptions { memory_bytes: memory_bytes.unwrap_or(MEMORY_DEFAULT), disk };
    args.env.zones.borrow_mut().insert(zone, CacheZone { options });
    Ok(())
}
