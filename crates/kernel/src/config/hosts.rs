//! Host names with wildcards: exact, longest `*.name`, longest `name.*`, then regexes in order.

use crate::config::regex::Regex;
use crate::config::regex_set::RegexSet;
use bytes::Bytes;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::OnceLock;

/// A table from host names to values.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    exact: HashMap<Bytes, T, RandomState>,
    /// `.example.com` for `*.example.com`.
    suffixes: HashMap<Bytes, T, RandomState>,
    /// `mail.` for `mail.*`.
    prefixes: HashMap<Bytes, T, RandomState>,
    regexes: Vec<(Regex, T)>,
    /// Made when the last of them is there.
    regex_set: OnceLock<RegexSet>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::default(),
            suffixes: HashMap::default(),
            prefixes: HashMap::default(),
            regexes: Vec::new(),
            regex_set: OnceLock::new(),
        }
    }
}

/// Whether a name can be looked for in a table: at most one `*`, at the beginning as `*.` or at the end as `.*`, and no
/// empty part within.
pub fn is_name_or_wildcard(name: &str) -> bool {
    let is_wildcard = name.starts_with('.') && name.len() > 1
        || name.len() > 2 && (name.starts_with("*.") || name.ends_with(".*"));
    let stars = name.matches('*').count();
    !name.contains("..") && (stars == 0 || stars == 1 && is_wildcard)
}

impl<T: Clone> Hosts<T> {
    /// Whether the name is there without a wildcard, or with one that stands for it as well (`.name`).
    pub fn has_exact(&self, name: &[u8]) -> bool {
        self.exact.contains_key(name)
    }

    /// Adds a lower-cased name; `false` if it was there.
    pub fn add(&mut self, name: &str, value: T) -> bool {
        let key = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let put = |map: &mut HashMap<Bytes, T, RandomState>, name: &str, value: T| {
            let is_new = !map.contains_key(name.as_bytes());
            if is_new {
                map.insert(key(name), value);
            }
            is_new
        };
        if let Some(rest) = name.strip_prefix("*.") {
            put(&mut self.suffixes, &format!(".{rest}"), value)
        } else if let Some(bare) = name.strip_prefix('.') {
            let is_new = put(&mut self.suffixes, name, value.clone());
            put(&mut self.exact, bare, value) && is_new
        } else if let Some(rest) = name.strip_suffix('*') {
            put(&mut self.prefixes, rest, value)
        } else {
            put(&mut self.exact, name, value)
        }
    }

    /// Leaves out the empty name where it stands for what a name that is not found stands for.
    pub fn simplify(&mut self, default: &T)
    where
        T: PartialEq,
    {
        if self.regexes.is_empty() && self.exact.get(&b""[..]) == Some(default) {
            self.exact.remove(&b""[..]);
        }
    }

    /// Whether there is no name.
    pub fn has_no_name(&self) -> bool {
        self.exact.is_empty() && self.suffixes.is_empty() && self.prefixes.is_empty()
    }

    pub fn add_regex(&mut self, regex: Regex, value: T) {
        self.regexes.push((regex, value));
        self.regex_set = OnceLock::new();
    }

    /// The value of a name, regexes not considered.
    pub fn find(&self, host: &[u8]) -> Option<&T> {
        if let Some(value) = self.exact.get(host) {
            return Some(value);
        }
        if !self.suffixes.is_empty() {
            let mut dots = host.iter().enumerate().filter(|(_, byte)| **byte == b'.');
            if let Some(value) = dots.find_map(|(at, _)| self.suffixes.get(&host[at..])) {
                return Some(value);
            }
        }
        if self.prefixes.is_empty() {
            return None;
        }
        let mut dots = host.iter().enumerate().rev().filter(|(_, byte)| **byte == b'.');
        dots.find_map(|(at, _)| self.prefixes.get(&host[..=at]))
    }

    /// The regexes that may match a name, in order.
    pub fn regexes_for(&self, host: &[u8]) -> impl Iterator<Item = (&Regex, &T)> {
        let make = || RegexSet::new(self.regexes.iter().map(|(regex, _)| regex));
        let candidates = self.regex_set.get_or_init(make).candidates(host);
        (0..candidates.len()).map(move |at| {
            let (regex, value) = &self.regexes[candidates[at] as usize];
            (regex, value)
        })
    }

    /// All regexes, in order.
    pub fn regexes(&self) -> impl Iterator<Item = (&Regex, &T)> {
        self.regexes.iter().map(|(regex, value)| (regex, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_beats_suffix_beats_prefix_and_longer_beats_shorter() {
        let mut hosts = Hosts::default();
        for (value, name) in
            ["a.com", "*.a.com", "*.b.a.com", ".c.com", "www.*", "www.a.*"].into_iter().enumerate()
        {
            assert!(hosts.add(name, value));
        }
        assert!(!hosts.add("a.com", 9));
        let table = [
            ("a.com", Some(0)),
            ("x.a.com", Some(1)),
            ("x.b.a.com", Some(2)),
            ("c.com", Some(3)),
            ("x.y.c.com", Some(3)),
            ("www.q.org", Some(4)),
            ("www.a.org", Some(5)),
            ("com", None),
            ("", None),
        ];
        for (host, expected) in table {
            assert_eq!(hosts.find(host.as_bytes()).copied(), expected, "{host}");
        }
    }
}
