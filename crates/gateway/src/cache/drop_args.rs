//! `cache_drop_args`: arguments that say where a visitor comes from and nothing of the page, left out of a key.
//!
//! ```text
//! cache_drop_args utm_* fbclid gclid;
//! fastcgi_cache_key $scheme$request_method$host$cache_uri;
//! ```
//! An application must not see them either where its answer is stored: it might print them.

use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::NamePattern;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::{Row, Variable, put};

/// The module.
pub const MODULE: Module = Module::new("cache_drop_args", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[
    // `$request_uri` without them; a query of which nothing is left goes with its `?`.
    ("cache_uri", Variable::OfUrl(uri)),
    // The query of that.
    (
        "cache_args",
        Variable::OfUrl(|exchange, out| {
            append_args(exchange, out);
            true
        }),
    ),
];

/// Names of arguments.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<NamePattern>);

impl Adds for Names {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let name = NamePattern::new(word);
            if name.text().is_empty() || name.text().contains(&b'*') {
                let word = String::from_utf8_lossy(word);
                return Err(ValueError(format!(
                    "invalid argument name \"{word}\", expected a name that may end with \"*\""
                )));
            }
            self.0.push(name);
        }
        Ok(())
    }
}

impl Names {
    /// Whether the argument is one of them. Names are compared as they are written, as by `$arg_` variables.
    fn has(&self, argument: &[u8]) -> bool {
        let end = argument.iter().position(|byte| *byte == b'=').unwrap_or(argument.len());
        self.0.iter().any(|name| name.matches(&argument[..end]))
    }
}

settings! {
    /// Arguments that $cache_uri and $cache_args leave out; a `*` at the end of a name matches any ending.
    cache_drop_args: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

fn uri(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    put(out, exchange.request.split_target().0);
    let start = out.len();
    out.push(b'?');
    append_args(exchange, out);
    if out.len() == start + 1 {
        out.truncate(start);
    }
    true
}

/// Appends the arguments that stay, in their order.
fn append_args(exchange: &Exchange, out: &mut Vec<u8>) {
    let (_, args) = exchange.request.split_target();
    let names = &exchange.conf.location(exchange.location).of::<Conf>().cache_drop_args;
    let mut is_first = true;
    for argument in args.split(|byte| *byte == b'&') {
        if names.has(argument) {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.push(b'&');
        }
        out.extend_from_slice(argument);
    }
}
