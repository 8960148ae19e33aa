//! What a request's headers are to the pages of a cache, by their names: which of them make it another page, which make it one
//! for its client alone, and which change nothing.
//!
//! The names (`headers.txt`) are those of browsers, proxies, load balancers, monitors and crawlers that send them with every
//! request, and of applications and frameworks that act on them. What has no name there is [`Class::Unknown`].

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

/// Places of the table: four for each name, so that hardly any has to wait for another.
const PLACES: usize = 2048;

/// The list of names.
struct Headers {
    names: Vec<(&'static str, Class)>,
    /// By [`place`], 1 + the place in the list; where that is taken, the next one.
    table: Box<[u16; PLACES]>,
    /// By how names begin, in order.
    families: Vec<(&'static str, Class)>,
}

static HEADERS: LazyLock<Headers> = LazyLock::new(|| Headers::read(include_str!("headers.txt")));

/// Where a name is looked for: by its length, its first eight bytes and its last, whatever their case.
fn place(name: &[u8]) -> usize {
    const CASE: u64 = u64::from_ne_bytes([0x20; 8]);
    let short = || name.iter().fold(0, |text, byte| text << 8 | u64::from(*byte | 0x20));
    let first = name.first_chunk().map_or_else(short, |eight| u64::from_le_bytes(*eight) | CASE);
    let last = name.last_chunk().map_or(0, |eight| u64::from_le_bytes(*eight) | CASE);
    let mixed = first ^ last.rotate_left(29) ^ name.len() as u64;
    // The golden ratio, as Knuth multiplies.
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize
}

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
        families.sort_unstable_by_key(|(start, _)| *start);
        let mut table = Box::new([0; PLACES]);
        for (at, (name, _)) in (1..).zip(&names) {
            let mut place = place(name.as_bytes());
            while table[place] != 0 {
                place = (place + 1) % PLACES;
            }
            table[place] = at;
        }
        Self { names, table, families }
    }

    fn named(&self, name: &[u8]) -> Option<(&'static str, Class)> {
        let mut place = place(name);
        loop {
            let at = usize::from(self.table[place]).checked_sub(1)?;
            if field::is_same(name, self.names[at].0.as_bytes()) {
                return Some(self.names[at]);
            }
            place = (place + 1) % PLACES;
        }
    }

    fn family(&self, name: &[u8]) -> Option<Class> {
        let start: [u8; 3] = name.first_chunk().map(|start| start.map(field::plain))?;
        let from = self.families.partition_point(|(known, _)| known.as_bytes()[..3] < start[..]);
        let is_of_start = |known: &str| known.as_bytes().starts_with(&start);
        let alike = self.families[from..].iter().take_while(|(known, _)| is_of_start(known));
        let begins = |known: &str| {
            name.get(..known.len()).is_some_and(|begin| field::is_alike(begin, known.as_bytes()))
        };
        alike.into_iter().find(|(known, _)| begins(known)).map(|(_, class)| *class)
    }
}

/// What the header of this name says.
pub(super) fn class(name: &[u8]) -> Class {
    known(name).0
}

/// As [`class`], with the name in lower case if it stands in the list.
pub(super) fn known(name: &[u8]) -> (Class, Option<&'static [u8]>) {
    let headers = &*HEADERS;
    if let Some((known, class)) = headers.named(name) {
        return (class, Some(known.as_bytes()));
    }
    let is_disguised = || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    // To applications that take `_` for `-` it is another one's name.
    let other = is_disguised().then(|| headers.named(&field::plain_name(name))).flatten();
    let class = other.map(|(_, class)| class).or_else(|| headers.family(name));
    (class.unwrap_or(Class::Unknown), None)
}

/// Whether no list of headers knows this name.
pub fn is_unknown_header(name: &[u8]) -> bool {
    class(name) == Class::Unknown
}

/// Whether a header of this name may select a page, or say who its client is: not one of those that every browser and proxy sends.
pub fn is_of_page(name: &[u8]) -> bool {
    class(name) != Class::Nothing
}

/// Whether a header of this name says which scheme a client spoke to a proxy.
pub fn is_of_scheme(name: &[u8]) -> bool {
    class(name).is_of_scheme()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once_and_spelled_as_it_is_compared() {
        let Headers { names, families, .. } = &*HEADERS;
        let mut all: Vec<_> = names.iter().chain(families).map(|(name, _)| name).collect();
        all.sort_unstable();
        assert!(all.is_sorted_by(|one, other| one < other));
        for (name, _) in names.iter().chain(families) {
            assert!(name.bytes().all(|byte| field::plain(byte) == byte), "{name}");
        }
        for (name, known) in names {
            let disguised = name.to_ascii_uppercase().replace('-', "_");
            for name in [*name, &disguised[..]] {
                assert_eq!(class(name.as_bytes()), *known, "{name}");
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
        }
    }
}
