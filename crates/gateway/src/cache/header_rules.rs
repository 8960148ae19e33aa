//! `cache_ignore_headers`, `cache_split_headers`: what a site says of the headers of its requests.
//!
//! ```text
//! cache_ignore_headers X-Acme-Edge-*;
//! cache_split_headers X-Device;
//! ```

use yorozu_http::field;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::NamePattern;

/// The module.
pub const MODULE: Module =
    Module::new("cache_headers", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// Names of headers, compared as those do that take `_` for `-`.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<NamePattern>);

impl Adds for Names {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        for word in args.words {
            let start = word.strip_suffix(b"*");
            let name = start.unwrap_or(word);
            if !field::is_token(name) || name.contains(&b'*') {
                let word = String::from_utf8_lossy(word);
                return Err(ValueError(format!(
                    "invalid header name \"{word}\", expected a name that may end with \"*\""
                )));
            }
            let star = if start.is_some() { &b"*"[..] } else { b"" };
            self.0.push(NamePattern::new(&[&field::plain_name(name), star].concat()));
        }
        Ok(())
    }
}

impl Names {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|known| known.matches_as(name, field::is_alike))
    }
}

settings! {
    /// Request headers that do not affect a page, as if they were on the list of those that every proxy adds; a `*` at the end of a name matches any ending.
    cache_ignore_headers: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Request headers that select a page: each of their values has its own.
    cache_split_headers: Names = none, ONE_OR_MORE, HTTP_SERVER_LOCATION;
}
