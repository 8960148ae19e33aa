//! Types of the values of the http core module's directives.

use super::super::directive::*;
use super::super::template::Template;
use super::super::types::{Offset, Size, add_word_flags, word_enum};
use bitflags::bitflags;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use yorozu_conf::value;
use yorozu_upstream::Resolver;

word_enum! {
    /// `satisfy`
    Satisfy {
        /// Every access module must allow.
        All = "all",
        /// One suffices.
        Any = "any",
    }
}

word_enum! {
    /// `if_modified_since`
    IfModifiedSince {
        /// Ignored: content is always sent.
        Off = "off",
        /// The time must be equal.
        Exact = "exact",
        /// The time must not be later.
        Before = "before",
    }
}

word_enum! {
    /// `lingering_close`
    LingeringClose {
        Off = "off",
        On = "on",
        Always = "always",
    }
}

word_enum! {
    /// `client_body_in_file_only`
    InFileOnly {
        Off = "off",
        On = "on",
        Clean = "clean",
    }
}

word_enum! {
    /// `server_tokens`
    ServerTokens {
        On = "on",
        Off = "off",
        Build = "build",
    }
}

/// `root` or `alias`.
#[derive(Clone, Debug)]
pub struct Root {
    pub path: Template,
    pub is_alias: bool,
    /// With `alias`: the prefix that the folder takes the place of. `None`, of a regex: the folder's text is the whole path.
    pub replaced: Option<Bytes>,
}

impl Root {
    /// Whether `alias` names one file for every path, as it does with a regex.
    pub fn is_alias_whole(&self) -> bool {
        self.is_alias && self.replaced.is_none()
    }
}

impl Setting for Root {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        // They are made of the root.
        for name in ["document_root", "realpath_root"] {
            if [format!("${name}"), format!("${{{name}}}")]
                .iter()
                .any(|spelled| text.contains(&**spelled))
            {
                return Err(ValueError(format!(
                    "the ${name} variable cannot be used in the \"{}\" directive",
                    args.name
                )));
            }
        }
        let path = if text.starts_with('$') {
            text
        } else {
            let path = args.env.prefix_path(&text).to_string_lossy().into_owned();
            if path.len() > 1 && args.name == "root" {
                path.trim_end_matches('/').to_owned()
            } else {
                path
            }
        };
        let path = Template::compile(path.as_bytes(), args.env)?;
        Ok(Self { path, is_alias: args.name == "alias", replaced: None })
    }
    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let written = if self.is_alias { "alias" } else { "root" };
        if written == args.name {
            return Err(args.duplicate());
        }
        Err(ValueError(format!(
            "\"{}\" directive is duplicate, \"{written}\" directive was specified earlier",
            args.name
        )))
    }
}

/// `keepalive_timeout timeout [header_timeout]`
#[derive(Clone, Copy, Debug)]
pub struct KeepaliveTimeout {
    pub timeout: Duration,
    pub header: Option<Duration>,
}

impl Setting for KeepaliveTimeout {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let timeout = Duration::from_args(args)?;
        // As nginx: the field says seconds, so that its unit may be a long one.
        let header = |word: &[u8]| value::time(word).ok_or_else(|| args.invalid_value());
        let header = (args.words.len() == 2).then(|| header(args.word(1))).transpose()?;
        Ok(Self { timeout, header })
    }

    // As nginx: what the field says is inherited by itself.
    fn complete(&mut self, outer: &Self) {
        self.header = self.header.or(outer.header);
    }
}

bitflags! {
    /// `keepalive_disable`
    #[derive(Clone, Copy, Debug, Default)]
    pub struct KeepaliveDisable: u8 {
        const MSIE6 = 1;
        const SAFARI = 2;
        /// Of no effect.
        const NONE = 4;
    }
}

impl KeepaliveDisable {
    const WORDS: [(&str, Self); 3] =
        [("none", Self::NONE), ("msie6", Self::MSIE6), ("safari", Self::SAFARI)];
}

impl Adds for KeepaliveDisable {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        add_word_flags(self, args, &Self::WORDS)
    }
}

/// One `error_page` line.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    pub codes: Vec<u16>,
    /// `=code`, or `=` alone as 0: the status of the page itself.
    pub overwrite: Option<u16>,
    pub target: Template,
    /// The target as written, to tell a path from a URL and a named location.
    pub written: Bytes,
    pub args: Option<Template>,
}

impl Setting for ErrorPage {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (uri, mut codes) = args.words.split_last().expect("two arguments at least");
        let mut overwrite = None;
        if let Some((last, rest)) = codes.split_last().filter(|(_, rest)| !rest.is_empty()) {
            if let Some(code) = last.strip_prefix(b"=") {
                let number = if code.is_empty() { Some(0) } else { value::number(code) };
                let number = number.and_then(|n| u16::try_from(n).ok());
                overwrite = Some(number.ok_or_else(|| {
                    ValueError(format!("invalid value \"{}\"", String::from_utf8_lossy(last)))
                })?);
                codes = rest;
            }
        }
        let code = |word: &Bytes| {
            let number = value::number(word).and_then(|number| u16::try_from(number).ok());
            let text = String::from_utf8_lossy(word);
            match number {
                None => Err(ValueError(format!("invalid value \"{text}\""))),
                Some(499) => Err(ValueError::new("value \"499\" must not be used")),
                Some(number @ 300..=599) => Ok(number),
                Some(_) => Err(ValueError(format!("value \"{text}\" must be between 300 and 599"))),
            }
        };
        let (path, query) = match uri.iter().position(|byte| *byte == b'?') {
            Some(at) if uri.starts_with(b"/") => (uri.slice(..at), Some(uri.slice(at + 1..))),
            _ => (uri.clone(), None),
        };
        Ok(Self {
            codes: codes.iter().map(code).collect::<Result<_, _>>()?,
            overwrite,
            target: Template::compile(&path, args.env)?,
            written: uri.clone(),
            args: query.map(|query| Template::compile(&query, args.env)).transpose()?,
        })
    }
}

/// The files and the last resort of `try_files`.
#[derive(Clone, Debug)]
pub struct TryFiles {
    pub files: Vec<TryFile>,
    pub last: TryLast,
}

/// One file to test.
#[derive(Clone, Debug)]
pub struct TryFile {
    pub path: Template,
    /// Written with `/` at its end: a folder is wanted.
    pub is_folder: bool,
}

/// The last argument of `try_files`.
#[derive(Clone, Debug)]
pub enum TryLast {
    Status(u16),
    Named(Bytes),
    Uri { path: Template, args: Option<Template> },
}

impl Setting for TryFiles {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (last, files) = args.words.split_last().expect("two arguments at least");
        let file = |word: &Bytes| {
            let is_folder = word.ends_with(b"/");
            let path = if is_folder { word.slice(..word.len() - 1) } else { word.clone() };
            Ok(TryFile { path: Template::compile(&path, args.env)?, is_folder })
        };
        let last = if let Some(code) = last.strip_prefix(b"=") {
            let status = value::number(code).and_then(|number| u16::try_from(number).ok());
            let status = status.filter(|status| *status <= 999).ok_or_else(|| {
                ValueError(format!("invalid code \"{}\"", String::from_utf8_lossy(last)))
            })?;
            TryLast::Status(status)
        } else if last.starts_with(b"@") {
            TryLast::Named(last.clone())
        } else {
            let at = last.iter().position(|byte| *byte == b'?');
            let path = Template::compile(&last[..at.unwrap_or(last.len())], args.env)?;
            let query = at.map(|at| Template::compile(&last[at + 1..], args.env)).transpose()?;
            TryLast::Uri { path, args: query }
        };
        Ok(Self { files: files.iter().map(file).collect::<Result<_, _>>()?, last })
    }
}

/// Extensions to MIME types.
#[derive(Clone, Debug)]
pub struct Types(pub Arc<HashMap<Bytes, Bytes>>);

impl Types {
    fn standard() -> Self {
        let pairs = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        Self(Arc::new(pairs.into_iter().map(|(ext, mime)| (bytes(ext), bytes(mime))).collect()))
    }
}

impl Setting for Types {
    fn from_args(_: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self::standard())
    }
}

/// `open_file_cache`
#[derive(Clone, Copy, Debug)]
pub struct OpenFileCache(pub Option<(u64, Duration)>);

impl Setting for OpenFileCache {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (mut max, mut inactive, mut is_off) = (None, Duration::from_secs(60), false);
        for word in args.words {
            let invalid = || {
                let word = String::from_utf8_lossy(word);
                ValueError(format!("invalid \"open_file_cache\" parameter \"{word}\""))
            };
            if let Some(number) = word.strip_prefix(b"max=") {
                max = Some(value::number(number).filter(|n| *n > 0).ok_or_else(invalid)?);
            } else if let Some(time) = word.strip_prefix(b"inactive=") {
                inactive = value::time(time).ok_or_else(invalid)?;
            } else if &word[..] == b"off" {
                is_off = true;
            } else {
                return Err(invalid());
            }
        }
        match max {
            _ if is_off => Ok(Self(None)),
            Some(max) => Ok(Self(Some((max, inactive)))),
            None => Err(ValueError::new("\"open_file_cache\" must have the \"max\" parameter")),
        }
    }
}

/// A rate in bytes per second; 0 for none. May hold variables.
#[derive(Clone, Debug)]
pub struct Rate(pub Template);

impl Setting for Rate {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let template = Template::from_args(args)?;
        if template.as_literal().is_some_and(|text| value::size(&text).is_none()) {
            return Err(args.invalid_value());
        }
        Ok(Self(template))
    }
}

/// A directive without arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present(pub bool);

impl Setting for Present {
    fn from_args(_: &Args<'_>) -> Result<Self, ValueError> {
        Ok(Self(true))
    }
}

/// `disable_symlinks`
#[derive(Clone, Debug)]
pub struct DisableSymlinks {
    pub mode: Symlinks,
    /// Parts of the path that are trusted.
    pub from: Option<Template>,
}

/// Which links refuse a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Symlinks {
    Allowed,
    Refused,
    RefusedIfNotOwner,
}

impl Setting for DisableSymlinks {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mode = match args.word(0) {
            b"off" => Symlinks::Allowed,
            b"on" => Symlinks::Refused,
            b"if_not_owner" => Symlinks::RefusedIfNotOwner,
            other => return Err(args.invalid_parameter(other)),
        };
        let from = match args.word(1).strip_prefix(b"from=") {
            Some(from) if mode != Symlinks::Allowed => Some(Template::compile(from, args.env)?),
            None if args.words.len() == 1 => None,
            _ => return Err(args.invalid_parameter(args.word(1))),
        };
        Ok(Self { mode, from })
    }
}

/// `aio on | off | threads[=pool]`
#[derive(Clone)]
pub(super) struct Aio;

impl Setting for Aio {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let pool = match args.word(0) {
            b"on" | b"off" | b"threads" => return Ok(Self),
            word => word.strip_prefix(b"threads=").ok_or_else(|| args.invalid_value())?,
        };
        let named = Template::compile(pool, args.env)?.as_literal();
        let line = args.env.line.borrow();
        if let (Some(name), Some(at)) = (named, &*line) {
            let name = String::from_utf8_lossy(&name).into_owned();
            args.env.named.borrow_mut().ask_pool(name, at.clone());
        }
        Ok(Self)
    }
}

/// The size of a memory pool, which nginx has in some least size.
#[derive(Clone, Copy, Debug)]
pub struct PoolSize(pub(super) u64);

impl Setting for PoolSize {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        const LEAST: u64 = 112;
        const STEP: u64 = 16;
        match Size::from_args(args)?.0 {
            size if size < LEAST => {
                Err(ValueError(format!("the pool size must be no less than {LEAST}")))
            }
            size if size % STEP != 0 => {
                Err(ValueError(format!("the pool size must be a multiple of {STEP}")))
            }
            size => Ok(Self(size)),
        }
    }
}

/// `off`, or a size.
#[derive(Clone, Copy, Debug)]
pub struct OffOrSize(pub Option<u64>);

impl Setting for OffOrSize {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        if args.word(0) == b"off" {
            return Ok(Self(None));
        }
        Offset::from_args(args).map(|size| Self(Some(size.0)))
    }
}

/// `resolver address … [valid=time] [ipv4=on|off] [ipv6=on|off]`
fn resolver(args: &Args<'_>) -> Result<Resolver, ValueError> {
    let mut resolver = Resolver { servers: Vec::new(), valid: None, ipv4: true, ipv6: true };
    for word in args.words {
        let text = String::from_utf8_lossy(word).into_owned();
        let invalid = || ValueError(format!("invalid parameter: {text}"));
        let switch = |is_on: &str| value::switch(is_on.as_bytes()).ok_or_else(invalid);
        if let Some(time) = text.strip_prefix("valid=") {
            let time = value::time(time.as_bytes()).ok_or_else(invalid)?;
            // As nginx: none at all means that answers hold as long as they say.
            resolver.valid = Some(time).filter(|time| !time.is_zero());
        } else if let Some(is_on) = text.strip_prefix("ipv4=") {
            resolver.ipv4 = switch(is_on)?;
        } else if let Some(is_on) = text.strip_prefix("ipv6=") {
            resolver.ipv6 = switch(is_on)?;
        } else if !text.starts_with("status_zone=") {
            let found = crate::base::address::resolve_peer(&text, 53)
                .map_err(|why| ValueError(format!("{why} in resolver \"{text}\"")))?;
            resolver.servers.extend(found);
        }
    }
    if !resolver.ipv4 && !resolver.ipv6 {
        return Err(ValueError::new("\"ipv4\" and \"ipv6\" cannot both be \"off\""));
    }
    if resolver.servers.is_empty() {
        return Err(ValueError::new("no name servers defined"));
    }
    Ok(resolver)
}

impl Setting for Resolver {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        resolver(args)
    }
}
