//! Regular expressions of the configuration: PCRE, with named captures as variables.

use super::directive::ValueError;
use super::env::Env;
use crate::exchange::{Captures, Exchange};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// A compiled expression; clones share it.
#[derive(Clone)]
pub struct Regex {
    inner: Arc<Inner>,
}

struct Inner {
    source: String,
    regex: pcre2::bytes::Regex,
    /// Slots of variables that take the named groups.
    named: Vec<(usize, u16)>,
}

impl Inner {
    fn compile(source: &[u8], caseless: bool) -> Result<Self, ValueError> {
        let text = std::str::from_utf8(source).map_err(|_| {
            ValueError(format!("regex \"{}\" is not UTF-8", String::from_utf8_lossy(source)))
        })?;
        let regex = pcre2::bytes::RegexBuilder::new()
            .caseless(caseless)
            .jit_if_available(true)
            .build(text)
            .map_err(|error| {
                let at = error.offset().map_or_else(String::new, |at| {
                    format!(" at \"{}\"", text.get(at..).unwrap_or_default())
                });
                ValueError(format!("pcre2_compile() failed: {error} in \"{text}\"{at}"))
            })?;
        Ok(Self { source: text.to_owned(), regex, named: Vec::new() })
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.inner.source)
    }
}

impl Regex {
    /// Compiles `source`; named groups become variables.
    ///
    /// # Errors
    /// nginx's `pcre2_compile() failed` with the expression and the position.
    pub fn compile(source: &[u8], caseless: bool, env: &Env) -> Result<Self, ValueError> {
        let mut compiled = Inner::compile(source, caseless)?;
        let mut named = Vec::new();
        for (group, name) in compiled.regex.capture_names().iter().enumerate() {
            if let Some(name) = name {
                named.push((group, env.variables.borrow_mut().define(name)));
            }
        }
        compiled.named = named;
        Ok(Self { inner: Arc::new(compiled) })
    }

    /// Compiles what is no part of the configuration.
    ///
    /// # Errors
    /// As [`Regex::compile`].
    pub fn plain(source: &[u8]) -> Result<Self, ValueError> {
        Ok(Self { inner: Arc::new(Inner::compile(source, false)?) })
    }

    /// The names of its groups.
    pub fn names(&self) -> &[Option<String>] {
        self.inner.regex.capture_names()
    }

    /// How many groups it captures, the whole match not counted.
    pub fn groups(&self) -> usize {
        self.inner.regex.captures_len() - 1
    }

    /// As written.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// Does it match? A failure inside PCRE (a limit) counts as no match.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        self.inner.regex.is_match(subject).unwrap_or(false)
    }

    /// Matches and, if it captures, sets `$1`… and the named variables of the exchange.
    pub fn matches(&self, subject: &[u8], exchange: &mut Exchange) -> bool {
        if !self.is_match(subject) {
            return false;
        }
        if self.groups() == 0 {
            // As nginx: a regex without groups leaves `$1`… undefined.
            exchange.captures = Captures::default();
            return true;
        }
        let Some(captures) = self.captures(subject) else { return false };
        for (group, slot) in &self.inner.named {
            exchange.variables.set(*slot, Some(captures.group(*group)));
        }
        exchange.captures = captures;
        true
    }

    /// The groups of a match.
    pub fn captures(&self, subject: &[u8]) -> Option<Captures> {
        let mut locations = self.inner.regex.capture_locations();
        self.inner.regex.captures_read(&mut locations, subject).ok()??;
        let spans = (0..locations.len())
            .map(|group| locations.get(group).map(|(start, end)| start..end))
            .collect();
        Some(Captures::new(Bytes::copy_from_slice(subject), spans))
    }
}
