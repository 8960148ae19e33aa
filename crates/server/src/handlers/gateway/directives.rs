//! Directives that every gateway has under its own prefix: `fastcgi_connect_timeout`, and so on.

use super::store::{Store, StoreAccess};
use crate::cache::directives::*;
use crate::cache::early::{EarlyRefresh, Heuristic};
use crate::cache::invalidate::Invalidate;
use crate::cache::purge::PurgeRule;
use crate::cache::report::StatusName;
use crate::config::block::Block;
use crate::config::directive::*;
use crate::config::template::Template;
use crate::config::types::{Buffers, Offset, Size, TempPath, Templates, word_bits};
use bytes::Bytes;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A protocol's part of the block.
pub trait Family {
    /// `fastcgi`
    const PREFIX: &'static str;
    /// The default of its `*_temp_path`.
    const TEMP_PATH: &'static str;
    /// Its draft.
    fn draft(block: &mut Block) -> &mut Draft;
}

/// Failures that let the next peer try, or a stale entry answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Failures(pub u32);

impl Failures {
    pub const ERROR: u32 = 1;
    pub const TIMEOUT: u32 = 1 << 1;
    pub const INVALID_HEADER: u32 = 1 << 2;
    pub const HTTP_500: u32 = 1 << 3;
    pub const HTTP_502: u32 = 1 << 4;
    pub const HTTP_503: u32 = 1 << 5;
    pub const HTTP_504: u32 = 1 << 6;
    pub const HTTP_403: u32 = 1 << 7;
    pub const HTTP_404: u32 = 1 << 8;
    pub const HTTP_429: u32 = 1 << 9;
    pub const UPDATING: u32 = 1 << 10;
    pub const NON_IDEMPOTENT: u32 = 1 << 11;
    pub const DENIED: u32 = 1 << 12;
    pub const OFF: u32 = 1 << 13;

    pub fn has(self, bit: u32) -> bool {
        self.0 & Self::OFF == 0 && self.0 & bit != 0
    }

    /// The bit of a status; 0 for one that is never a failure.
    pub fn of_status(status: u16) -> u32 {
        match status {
            500 => Self::HTTP_500,
            502 => Self::HTTP_502,
            503 => Self::HTTP_503,
            504 => Self::HTTP_504,
            403 => Self::HTTP_403,
            404 => Self::HTTP_404,
            429 => Self::HTTP_429,
            _ => 0,
        }
    }
}

impl Setting for Failures {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut known = vec![
            ("error", Self::ERROR),
            ("timeout", Self::TIMEOUT),
            ("invalid_header", Self::INVALID_HEADER),
            ("http_500", Self::HTTP_500),
            ("http_502", Self::HTTP_502),
            ("http_504", Self::HTTP_504),
            ("http_503", Self::HTTP_503),
            ("http_403", Self::HTTP_403),
            ("http_404", Self::HTTP_404),
            ("http_429", Self::HTTP_429),
            ("off", Self::OFF),
        ];
        if args.name.starts_with("memcached") {
            known = vec![
                ("error", Self::ERROR),
                ("timeout", Self::TIMEOUT),
                ("denied", Self::DENIED),
                ("invalid_response", Self::INVALID_HEADER),
                ("not_found", Self::HTTP_404),
                ("off", Self::OFF),
            ];
        } else if args.name.ends_with("use_stale") {
            known.push(("updating", Self::UPDATING));
        } else {
            known.extend([("non_idempotent", Self::NON_IDEMPOTENT), ("denied", Self::DENIED)]);
        }
        word_bits(args, &known).map(Self)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0 |= Self::from_args(args)?.0;
        Ok(())
    }
}

/// Fields of the upstream's answer that are not acted on; `Authorization` is the request's, whose answers
/// are stored like others then.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Default)]
pub struct IgnoreHeaders(pub u32);

impl IgnoreHeaders {
    pub const X_ACCEL_REDIRECT: u32 = 1;
    pub const X_ACCEL_EXPIRES: u32 = 1 << 1;
    pub const X_ACCEL_LIMIT_RATE: u32 = 1 << 2;
    pub const X_ACCEL_BUFFERING: u32 = 1 << 3;
    pub const X_ACCEL_CHARSET: u32 = 1 << 4;
    pub const EXPIRES: u32 = 1 << 5;
    pub const CACHE_CONTROL: u32 = 1 << 6;
    pub const SET_COOKIE: u32 = 1 << 7;
    pub const VARY: u32 = 1 << 8;
    pub const AUTHORIZATION: u32 = 1 << 9;
    pub const X_ACCEL_PURGE: u32 = 1 << 10;

    pub fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

impl Setting for IgnoreHeaders {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let known = [
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
        ];
        word_bits(args, &known).map(Self)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0 |= Self::from_args(args)?.0;
        Ok(())
    }
}

/// `off`, or the address to connect from, which may hold variables.
#[derive(Clone, Debug, Default)]
pub struct Bind(pub Option<BindAddress>);

/// Where connections come from.
#[derive(Clone, Debug)]
pub struct BindAddress {
    pub address: Template,
    /// The address may be foreign: the client's, for example.
    pub is_transparent: bool,
}

impl Setting for Bind {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let is_transparent = match (args.word(0), args.word(1)) {
            (b"off", b"") => return Ok(Self(None)),
            (_, b"") => false,
            (_, b"transparent") => true,
            (_, other) => return Err(args.invalid_parameter(other)),
        };
        let address = Template::compile(args.word(0), args.env)?;
        if address.as_literal().is_some_and(|text| bind_address(&text).is_none()) {
            return Err(ValueError(format!("invalid address \"{}\"", args.text(0))));
        }
        if is_transparent {
            args.env.is_transparent.set(true);
        }
        Ok(Self(Some(BindAddress { address, is_transparent })))
    }
}

/// An address with or without port; any free port without.
pub fn bind_address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 0)))
}

/// Declares the settings of a family; as `settings!`, with the prefix added to each name.
macro_rules! family_settings {
    ($( $(#[doc = $doc:literal])+
        $name:ident : $ty:ty = $default:tt, $arity:ident; )*) => {
        /// What one block says about a gateway.
        #[derive(Clone, Default)]
        pub struct Draft { $( pub $name: Inherit<$ty>, )* }

        impl Draft {
            /// Takes over what the enclosing block says where this one is silent.
            pub fn inherit(&mut self, outer: &Self) { $( self.$name.inherit(&outer.$name); )* }
        }

        /// A gateway's settings in one location.
        #[derive(Clone, Debug)]
        pub struct Conf { $( $(#[doc = $doc])+ pub $name: $ty, )* }

        impl Conf {
            /// Applies the defaults.
            pub fn compile<F: Family>(
                draft: &Draft,
                env: &crate::config::env::Env,
            ) -> Result<Self, ValueError> {
                let mut conf =
                    Self { $( $name: setting_default!(draft, env, $name, $default), )* };
                conf.temp_path = draft.temp_path.or_parse("temp_path", F::TEMP_PATH, env)?;
                Ok(conf)
            }
        }

        /// The rows, with the family's prefix.
        pub fn rows<F: Family>() -> Vec<Directive> {
            vec![ $( Directive {
                name: Cow::Owned(format!("{}_{}", F::PREFIX, stringify!($name))),
                contexts: HTTP_SERVER_LOCATION,
                arity: Arity::$arity,
                default: if stringify!($name) == "temp_path" {
                    Some(F::TEMP_PATH)
                } else {
                    default_text!($default)
                },
                doc: concat!($($doc),+),
                action: Action::Set(|block, args| F::draft(block).$name.set(args)),
            }, )* ]
        }
    };
}

family_settings! {
    /// Address from which upstreams are contacted.
    bind: Bind = none, ONE_OR_TWO;
    /// Buffer for the first part of the answer, which holds its head.
    buffer_size: Size = "8k", ONE;
    /// Whether the answer is read ahead of a slow client.
    buffering: bool = "on", ONE;
    /// Count and size of buffers for reading ahead.
    buffers: Buffers = "8 8k", TWO;
    /// Bytes that may wait for the client while more is read.
    busy_buffers_size: Option<Size> = none, ONE;
    /// Zone of the page cache; `off` for none.
    cache: CacheZoneName = "off", ONE;
    /// Whether stored pages say how old they are (`Age`).
    cache_age: bool = "on", ONE;
    /// Whether expired pages answer while they are refreshed in the background.
    cache_background_update: bool = "off", ONE;
    /// Values that, if neither empty nor 0, keep the cache from answering.
    cache_bypass: Templates = none, ONE_OR_MORE;
    /// Whether the answer to a POST that names the request's URL in Content-Location is stored for GET.
    cache_content_location: bool = "off", ONE;
    /// Whether the rest of a page whose start is stored is asked for alone.
    cache_complete_partial: bool = "off", ONE;
    /// How eagerly pages that are asked for often are made anew before they expire.
    cache_early_refresh: EarlyRefresh = "off", ONE;
    /// Share of its age for which a page is fresh that says nothing but when it changed.
    cache_heuristic: Heuristic = "off", ONE;
    /// Which stored pages an answer to a method that may change them removes: none, those whose fields
    /// say how long they are fresh, or all.
    cache_invalidate: Invalidate = "fields", ONE;
    /// The key of a stored page.
    cache_key: Option<Template> = none, ONE;
    /// Whether one request at a time makes a missing page.
    cache_lock: bool = "off", ONE;
    /// How long one maker is waited for before another request may try too.
    cache_lock_age: Duration = "5s", ONE;
    /// How long a request waits for the maker.
    cache_lock_timeout: Duration = "5s", ONE;
    /// Offset beyond which ranges are not answered from a page being made.
    cache_max_range_offset: Option<Offset> = none, ONE;
    /// Methods whose answers are stored; GET and HEAD always.
    cache_methods: CacheMethods = "GET HEAD", ONE_OR_MORE;
    /// Requests after which a page is stored.
    cache_min_uses: u64 = "1", ONE;
    /// Which requests remove stored pages.
    cache_purge: PurgeRule = "off", ONE_OR_MORE;
    /// Whether expired pages are validated instead of fetched.
    cache_revalidate: bool = "off", ONE;
    /// Name of the cache in the Cache-Status field of its answers.
    cache_status: StatusName = "off", ONE;
    /// Failures that let a stale page answer.
    cache_use_stale: Failures = "off", ONE_OR_MORE;
    /// How long pages are fresh, by status.
    cache_valid: CacheValid = none, ONE_OR_MORE;
    /// Whether languages of one weight have no order, and a page in the language wanted most answers.
    cache_vary_language: bool = "off", ONE;
    /// Time to establish a connection.
    connect_timeout: Duration = "60s", ONE;
    /// Whether ranges are served though the upstream does not say it has them.
    force_ranges: bool = "off", ONE;
    /// Field of the answer that is not passed on.
    hide_header: Vec<Bytes> = none, ONE;
    /// Whether the upstream works on when the client is gone.
    ignore_client_abort: bool = "off", ONE;
    /// Fields of the answer that are not acted on.
    ignore_headers: IgnoreHeaders = none, ONE_OR_MORE;
    /// Whether answers of 300 and above may be replaced by error_page.
    intercept_errors: bool = "off", ONE;
    /// Bytes per second read from the upstream while its answer is read ahead.
    limit_rate: Size = "0", ONE;
    /// Longest temporary file for an answer; 0 for none.
    max_temp_file_size: Offset = "1024m", ONE;
    /// Failures that let the next peer try.
    next_upstream: Failures = "error timeout", ONE_OR_MORE;
    /// Time in which peers may be tried; 0 for any.
    next_upstream_timeout: Duration = "0", ONE;
    /// How many peers may be tried; 0 for all.
    next_upstream_tries: u64 = "0", ONE;
    /// Values that, if neither empty nor 0, keep the answer from being stored.
    no_cache: Templates = none, ONE_OR_MORE;
    /// Hidden field of the answer that is passed on all the same.
    pass_header: Vec<Bytes> = none, ONE;
    /// Whether the request's body is passed.
    pass_request_body: bool = "on", ONE;
    /// Whether the request's fields are passed.
    pass_request_headers: bool = "on", ONE;
    /// Time between two reads of the answer.
    read_timeout: Duration = "60s", ONE;
    /// Whether the whole request body is read before the upstream is asked.
    request_buffering: bool = "on", ONE;
    /// Least bytes of a send; accepted, not done.
    send_lowat: Size = "0", ONE;
    /// Time between two writes of the request.
    send_timeout: Duration = "60s", ONE;
    /// TCP keepalive towards upstreams.
    socket_keepalive: bool = "off", ONE;
    /// Receive buffer of upstream sockets.
    socket_rcvbuf: Option<Size> = none, ONE;
    /// Send buffer of upstream sockets.
    socket_sndbuf: Option<Size> = none, ONE;
    /// Whether answers are stored as files, and where.
    store: Store = none, ONE;
    /// Rights of stored files.
    store_access: StoreAccess = "user:rw", ONE_OR_MORE;
    /// Bytes written to a temporary file at a time; accepted, the answer's own pieces are written.
    temp_file_write_size: Size = "16k", ONE;
    /// Folder of temporary files.
    temp_path: TempPath = none, ONE_TO_FOUR;
}

impl Conf {
    /// Are answers stored as files?
    pub fn stores(&self) -> bool {
        !matches!(self.store, Store::Off)
    }

    /// Options of upstream sockets.
    pub fn socket_options(&self, from: Option<SocketAddr>) -> yorozu_upstream::SocketOptions {
        yorozu_upstream::SocketOptions {
            from,
            transparent: self.bind.0.as_ref().is_some_and(|bind| bind.is_transparent),
            keepalive: self.socket_keepalive,
            send_bytes: self.socket_sndbuf.map(Size::bytes),
            receive_bytes: self.socket_rcvbuf.map(Size::bytes),
        }
    }
}
