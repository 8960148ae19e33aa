//! `cache_drop_args`, `cache_keep_args`, `cache_keep_cookies`: a request's arguments and cookies without those by which no page
//! differs, for the key and for the application.
//!
//! ```text
//! cache_drop_args utm_* fbclid gclid;
//! cache_keep_cookies SESS* SSESS*;
//! fastcgi_cache_key $scheme$request_method$host$cache_uri;
//! ```
//! An application must not see the others either where its answer is stored: it might print them.

use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::NamePattern;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::append_joined;
use yorozu_kernel::exchange::variables::{Row, Variable, put};

/// The module.
pub const MODULE: Module = Module::new("cache_cleaned", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    // `$request_uri` without the arguments that go; a query of which nothing is left goes with its `?`.
    ("cache_uri", Variable::Builtin(uri)),
    // `$args` without them: with those that a rewrite has added.
    (
        "cache_args",
        Variable::Builtin(|exchange, out| {
            append_args(exchange, &exchange.args, out);
            true
        }),
    ),
    // `$http_cookie` without the cookies that go.
    ("cache_cookies", Variable::Builtin(cookies)),
];

/// Names of arguments, or of cookies.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<NamePattern>);

impl Adds for Names {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let name = NamePattern::new(word);
            if name.text().is_empty() || name.text().contains(&b'*') {
                let word = String::from_utf8_lossy(word);
                return Err(ValueError(format!(
                    "invalid name \"{word}\", expected a name that may end with \"*\""
                )));
            }
            self.0.push(name);
        }
        Ok(())
    }
}

impl Names {
    /// Whether `pair`, a name with or without a value, is one of them. Names are compared as they are written, as by `$arg_`
    /// variables.
    fn has(&self, pair: &[u8]) -> bool {
        let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        self.0.iter().any(|name| name.matches(&pair[..end]))
    }

    /// Whether it is, or none is named.
    fn admit(&self, pair: &[u8]) -> bool {
        self.0.is_empty() || self.has(pair)
    }
}

settings! {
    /// Arguments that $cache_uri and $cache_args leave out; a `*` at the end of a name matches any ending.
    cache_drop_args: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// The only arguments that $cache_uri and $cache_args contain; a `*` at the end of a name matches any ending.
    cache_keep_args: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// The only cookies that $cache_cookies contains; a `*` at the end of a name matches any ending.
    cache_keep_cookies: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

fn of(exchange: &Exchange) -> &Conf {
    exchange.conf.location(exchange.location).of()
}

fn uri(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let (path, args) = exchange.request.split_target();
    put(out, path);
    let start = out.len();
    out.push(b'?');
    append_args(exchange, args, out);
    if out.len() == start + 1 {
        out.truncate(start);
    }
    true
}

/// Appends those of `args` that stay, in their order.
pub(super) fn append_args(exchange: &Exchange, args: &[u8], out: &mut Vec<u8>) {
    let conf = of(exchange);
    let stays = |argument: &&[u8]| {
        !conf.cache_drop_args.has(argument) && conf.cache_keep_args.admit(argument)
    };
    append_all(args.split(|byte| *byte == b'&').filter(stays), b"&", out);
}

fn cookies(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let mut all = Vec::new();
    append_joined(exchange.request.values(b"cookie"), b"; ", &mut all);
    let pairs = all.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let kept = &of(exchange).cache_keep_cookies;
    let stays = |pair: &&[u8]| !pair.is_empty() && kept.admit(pair);
    let start = out.len();
    append_all(pairs.filter(stays), b"; ", out);
    out.len() > start
}

fn append_all<'p>(pairs: impl Iterator<Item = &'p [u8]>, between: &[u8], out: &mut Vec<u8>) {
    for (at, pair) in pairs.enumerate() {
        if at > 0 {
            out.extend_from_slice(between);
        }
        out.extend_from_slice(pair);
    }
}
