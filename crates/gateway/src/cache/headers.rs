//! What a request's headers are to the pages of a cache, by their names: which of them make it another page, which make it one
//! for its client alone, and which change nothing.
//!
//! The names (`headers.txt`) are those of browsers, proxies, load balancers, monitors and crawlers that send them with every request, and of
//! applications and frameworks that act on them. What has no name there is [`Class::Unknown`].

use std::cmp::Ordering;
use std::sync::LazyLock;
use yorozu_http::field;

/// What a header says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Class {
    /// Nothing that a page is made of: ids, traces, addresses, what the connection needs. Or what a response's `Vary` is
    /// for: languages, codings, programs, cookies.
    Nothing,
    /// The scheme that the client spoke, as a word.
    Scheme,
    /// That the scheme is https.
    Switch,
    /// The same, by any text at all.
    Certificate,
    /// The port that the client asked at.
    Port,
    /// As Cloudflare has the scheme: `{"scheme":"https"}`.
    Visitor,
    /// RFC 7239.
    Forwarded,
    /// The host, with the port if the request names one.
    Host,
    /// Path and arguments.
    Target,
    /// What each proxy says of itself with all requests, whoever sent them.
    Proxy,
    /// RFC 6454, section 7.
    Origin,
    /// RFC 9110, section 12.5.1.
    Accept,
    /// `XMLHttpRequest`, or the app that an Android's web view is in.
    RequestedWith,
    /// A path, a method, a part of a page, or how it is to be made.
    Page,
    /// Who the client is.
    Credential,
    Unknown,
}

impl Class {
    /// Whether such a header says which scheme a client spoke to a proxy.
    pub(super) fn is_of_scheme(self) -> bool {
        matches!(
            self,
            Self::Scheme
                | Self::Switch
                | Self::Certificate
                | Self::Port
                | Self::Visitor
                | Self::Forwarded
        )
    }

    /// Whether such a header may give a page another address.
    pub(super) fn may_split(self) -> bool {
        !matches!(self, Self::Nothing | Self::Credential | Self::Unknown)
    }
}

impl Class {
    /// The one of a word of the list.
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "nothing" => Self::Nothing,
            "scheme" => Self::Scheme,
            "switch" => Self::Switch,
            "certificate" => Self::Certificate,
            "port" => Self::Port,
            "visitor" => Self::Visitor,
            "forwarded" => Self::Forwarded,
            "host" => Self::Host,
            "target" => Self::Target,
            "proxy" => Self::Proxy,
            "origin" => Self::Origin,
            "accept" => Self::Accept,
            "requested-with" => Self::RequestedWith,
            "page" => Self::Page,
            "credential" => Self::Credential,
            "unknown" => Self::Unknown,
            _ => return None,
        })
    }
}

/// The list of names.
struct Headers {
    /// In order.
    names: Vec<(&'static str, Class)>,
    /// By how names begin.
    families: Vec<(&'static str, Class)>,
    /// By the byte that names begin with: a bit for each length of those that may give a page another address. Most headers of
    /// most requests need not be looked for.
    lengths: [u64; 256],
    /// The bytes that families begin with that may.
    begins: [bool; 256],
}

static HEADERS: LazyLock<Headers> = LazyLock::new(|| Headers::read(include_str!("headers.txt")));

impl Headers {
    fn read(text: &'static str) -> Self {
        let (mut names, mut families) = (Vec::new(), Vec::new());
        let mut class = Class::Unknown;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            for word in line.split_whitespace() {
                match (word.strip_suffix(':'), word.strip_suffix('*')) {
                    (Some(name), _) => class = Class::named(name).expect("the list is tested"),
                    (None, Some(start)) => families.push((start, class)),
                    (None, None) => names.push((word, class)),
                }
            }
        }
        names.sort_unstable_by_key(|(name, _)| *name);
        let (mut lengths, mut begins) = ([0; 256], [false; 256]);
        let first = |name: &str| usize::from(name.as_bytes()[0]);
        for (name, _) in names.iter().filter(|(_, class)| class.may_split()) {
            lengths[first(name)] |= 1 << name.len();
        }
        for (start, _) in families.iter().filter(|(_, class)| class.may_split()) {
            begins[first(start)] = true;
        }
        Self { names, families, lengths, begins }
    }
}

/// Names are compared as those do that take `_` for `-`.
fn compare(known: &str, name: &[u8]) -> Ordering {
    known.bytes().cmp(name.iter().map(|byte| field::plain(*byte)))
}

/// Which names may be of headers that give a page another address: hardly any is.
pub(super) struct Filter(&'static Headers);

impl Filter {
    pub(super) fn new() -> Self {
        Self(&HEADERS)
    }

    /// Whether the header of this name may; most need not be looked for.
    #[inline]
    pub(super) fn may_split(&self, name: &[u8]) -> bool {
        let Some(first) = name.first().map(|first| usize::from(field::plain(*first))) else {
            return false;
        };
        let is_long = name.len() >= 64;
        self.0.begins[first] || !is_long && (self.0.lengths[first] >> name.len()) & 1 != 0
    }
}

/// What the header of this name says.
pub(super) fn class(name: &[u8]) -> Class {
    let Headers { names, families, .. } = &*HEADERS;
    if let Ok(at) = names.binary_search_by(|(known, _)| compare(known, name)) {
        return names[at].1;
    }
    let begins = |start: &str| {
        let begin = name.get(..start.len());
        begin.is_some_and(|begin| compare(start, begin) == Ordering::Equal)
    };
    let family = families.iter().find(|(start, _)| begins(start));
    family.map_or(Class::Unknown, |(_, class)| *class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once_and_spelled_as_it_is_compared() {
        let Headers { names, families, .. } = &*HEADERS;
        assert!(names.is_sorted_by(|one, other| one.0 < other.0));
        for (name, _) in names.iter().chain(families) {
            assert!(name.bytes().all(|byte| field::plain(byte) == byte), "{name}");
            assert!(name.len() < 64, "{name}");
        }
        for (name, known) in names {
            let disguised = name.to_ascii_uppercase().replace('-', "_");
            for name in [*name, &disguised[..]] {
                assert_eq!(class(name.as_bytes()), *known, "{name}");
                assert!(!known.may_split() || Filter::new().may_split(name.as_bytes()), "{name}");
            }
        }
    }

    #[test]
    fn families_are_found_by_how_they_begin() {
        let table = [
            ("X-Forwarded-Uri", Class::Target),
            ("X-Forwarded-Anything", Class::Page),
            ("X-Forwarded-User", Class::Credential),
            ("X-Forwarded-For", Class::Nothing),
            ("X_ORIGINAL_URL", Class::Target),
            ("x-middleware-subrequest", Class::Page),
            ("HX-Request", Class::Page),
            ("X-Auth-Request-Email", Class::Credential),
            ("Sec-Fetch-Mode", Class::Nothing),
            ("X-Forward", Class::Unknown),
            ("X-Country-Code", Class::Unknown),
            ("Content-Type", Class::Unknown),
            ("", Class::Unknown),
        ];
        for (name, expected) in table {
            assert_eq!(class(name.as_bytes()), expected, "{name}");
            assert!(!expected.may_split() || Filter::new().may_split(name.as_bytes()), "{name}");
        }
    }
}
