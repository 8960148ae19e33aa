//! What the rules of a location read of requests, by the names of variables.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use yorozu_conf::Position;

/// Names of variables without `$`, in lower case. Shared by the many locations that read the same.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Sources(Arc<BTreeSet<String>>);

impl Sources {
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Whether `$http_NAME` is among them; `name` as a request has it.
    pub fn has_field(&self, name: &[u8]) -> bool {
        let as_source = name.iter().map(|byte| match byte {
            b'-' => b'_',
            byte => byte.to_ascii_lowercase(),
        });
        let of_fields = self.0.iter().filter_map(|source| source.strip_prefix("http_"));
        of_fields.map(str::bytes).any(|own| own.eq(as_source.clone()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether any of them says something of a response.
    pub fn has_response(&self) -> bool {
        let is_of_response = |source: &String| {
            source == "status" || source.starts_with("sent_") || source.starts_with("upstream_")
        };
        self.0.iter().any(is_of_response)
    }

    /// What these say of a request's URL.
    fn parts(&self) -> Parts {
        let has_any = |names: &[&str]| names.iter().any(|name| self.has(name));
        Parts {
            host: has_any(&["host", "http_host"]),
            authority: self.has("http_host"),
            scheme: has_any(&["https", "scheme", "server_port"]),
            target: has_any(&["cache_uri", "request", "request_uri"]),
        }
    }
}

impl FromIterator<String> for Sources {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(Arc::new(names.into_iter().collect()))
    }
}

/// `$http_host $uri`
impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|name| format!("${name}")).collect();
        f.write_str(&names.join(" "))
    }
}

/// Which parts of a request's URL are read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Parts {
    pub host: bool,
    /// The host as it was sent, with its port.
    pub authority: bool,
    pub scheme: bool,
    /// Path and arguments as they were sent.
    pub target: bool,
}

/// A header that rules read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadHeader {
    /// In lower case.
    pub name: Box<[u8]>,
    /// Whether it reaches the upstream, or decides which; else requests are refused for it.
    pub is_told: bool,
}

/// A variable of who the client is.
#[derive(Clone, Debug)]
pub struct OfClient {
    pub name: Box<str>,
    /// Where its value is, if the configuration defines it.
    pub slot: Option<u16>,
    /// Whether it is of a cookie that the server sets (`userid`); else of what was said of the client, or its certificate.
    pub is_of_cookie: bool,
    /// Whether only rules of other locations read it.
    pub is_elsewhere: bool,
}

/// What a location reads, directly or by way of `map`, `set`, `if` and captures: the variables that nothing in the
/// configuration makes of others.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// What decides where a request goes and what its upstream is told, beside the client's headers that are passed on; with
    /// rules of other locations that may have led it here.
    pub told: Sources,
    pub of_url: Parts,
    /// What decides whether a request is refused.
    pub guards: Sources,
    /// The headers that the two read, the key does not hold, and no list of headers knows.
    pub selecting: Arc<[ReadHeader]>,
    /// The variables of who the client is, or made of these, that the first reads and that do not stand in the key.
    pub of_client: Arc<[OfClient]>,
    /// The cache key.
    pub key: Sources,
    pub keyed_of_url: Parts,
    /// Where the key is written.
    pub key_at: Option<Position>,
    /// The variables that stand in the cache key as they are.
    pub in_key: Sources,
    /// What keeps the cache from answering, or from storing.
    pub conditions: Sources,
    /// For each value of `*_no_cache`, whether it waits for the response.
    pub waits_for_response: Box<[bool]>,
    pub logs: Sources,
    /// Whether the server can be reached over both http and https.
    pub has_both_schemes: bool,
}

impl Reads {
    /// The same, with parts of the URL and headers noted, and sources that are `known` already in one place for all.
    /// `is_unknown`: whether no list of headers knows one.
    #[must_use]
    pub fn noted(self, known: &mut HashSet<Sources>, is_unknown: fn(&[u8]) -> bool) -> Self {
        let fields = |sources: &Sources, is_told: bool| {
            let beyond_key = sources.iter().filter(|source| !self.key.has(source));
            let names = beyond_key.filter_map(|source| source.strip_prefix("http_"));
            let names = names.map(|name| name.replace('_', "-").into_bytes().into_boxed_slice());
            let unknown = names.filter(|name| is_unknown(name));
            unknown.map(|name| ReadHeader { name, is_told }).collect::<Vec<_>>()
        };
        let selecting = [fields(&self.told, true), fields(&self.guards, false)].concat().into();
        let mut share = |sources: Sources| {
            known.insert(sources.clone());
            known.get(&sources).cloned().unwrap_or(sources)
        };
        Self {
            of_url: self.told.parts(),
            keyed_of_url: self.key.parts(),
            told: share(self.told),
            guards: share(self.guards),
            key: share(self.key),
            in_key: share(self.in_key),
            conditions: share(self.conditions),
            logs: share(self.logs),
            selecting,
            ..self
        }
    }
}
