//! The secondary key: what a request says beyond its key, and its upstream may make another page of.
//!
//! > Requests share a page only if they agree in the key and in the secondary key. What neither holds may take a page, and never
//! > makes one.
//!
//! What a header says, its name tells ([`headers`]); whether the key holds it, or the upstream sees it, the configuration does
//! ([`Reads`]). Most requests have no secondary key: their page has nginx's file name.

use super::header_rules;
use super::headers::{self, Class};
use super::sent;
use super::settings::Conf;
use crate::protocol::{self, Protocol};
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;
use yorozu_cache::{Key, VariantId, Zone};
use yorozu_http::field;
use yorozu_http::uri::{Escape, escape_into, hex_pair, normalize};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::reads::{Parts, Reads};
use yorozu_kernel::config::servers::ServerName;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::find_config;

/// Most addresses of a page that requests can choose; chosen: more than a site has kinds of parts of a page.
const ADDRESSES_MAX: usize = 8;

/// Headers that say how content is read.
const OF_CONTENT: [&[u8]; 2] = [b"content-encoding", b"content-type"];

/// A secondary key, and what is to be known of it where a page is looked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Secondary {
    /// A digest of what it holds; `None`: nothing.
    id: Option<VariantId>,
    /// Whether clients choose it, so that the pages under it are bounded.
    pub is_chosen: bool,
    /// Whether it holds the origin of another site's script alone: a page that is for all origins is the same for it.
    pub is_of_origin: bool,
}

/// A part of a secondary key.
#[derive(Clone, Debug)]
struct Piece<'e> {
    /// Of the header; or what it is that is no header.
    name: Cow<'e, [u8]>,
    value: Cow<'e, [u8]>,
    /// Whether it is for the client to choose; else the set-up of a site has one, or a few.
    is_chosen: bool,
    /// Of a header that says a scheme.
    scheme: Option<ForwardedScheme>,
}

impl Secondary {
    /// Of a request for a page, in the location where it is.
    pub fn of(exchange: &Exchange, conf: &Conf) -> Self {
        let pieces = pieces(exchange, conf);
        if pieces.is_empty() {
            return Self::default();
        }
        let mut text = Scratch::take();
        for Piece { name, value, .. } in &pieces {
            for part in [name, value] {
                text.extend_from_slice(part);
                // Whatever it holds, it is not taken for another one.
                text.extend_from_slice(&part.len().to_le_bytes());
            }
        }
        Self {
            id: Some(Key::variant_id(&text)),
            is_chosen: pieces.iter().any(|piece| piece.is_chosen),
            is_of_origin: matches!(&pieces[..], [piece] if &piece.name[..] == b"origin"),
        }
    }

    /// Where the page of a key is for such requests.
    pub fn address(&self, page: Key) -> Key {
        match &self.id {
            None => page,
            Some(id) => page.with_secondary(id),
        }
    }

    /// Whether a page under it may be stored. `is_known`: it was asked for before; `vary`: the page's.
    pub(super) fn may_be_stored(
        self,
        exchange: &mut Exchange,
        conf: &Conf,
        (zone, address): (&Arc<Zone>, &Key),
        is_known: bool,
        vary: &[u8],
    ) -> bool {
        !self.is_chosen
            || is_known && zone.has_room_for(address, ADDRESSES_MAX)
            || is_varied_by(exchange, conf, vary)
    }
}

/// What the secondary key of a request holds, in order.
fn pieces<'e>(exchange: &'e Exchange, conf: &Conf) -> Vec<Piece<'e>> {
    let Some(view) = View::of(exchange, conf) else { return Vec::new() };
    let mut pieces = Vec::new();
    view.add_host(&mut pieces);
    view.add_scheme(&mut pieces);
    view.add_path(&mut pieces);
    view.add_content(&mut pieces);
    view.add_headers(&mut pieces);
    // In whatever order headers came.
    pieces.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
    pieces
}

/// The names of the headers that the secondary key of a request holds, and of what else it does; `is_chosen`: of those alone
/// that clients choose.
pub fn names(exchange: &Exchange, conf: &Conf, is_chosen: bool) -> Vec<Bytes> {
    let pieces = pieces(exchange, conf);
    let named = pieces.iter().filter(|piece| piece.is_chosen || !is_chosen);
    named.map(|piece| Bytes::copy_from_slice(&piece.name)).collect()
}

/// Whether all that the secondary key holds by a client's choice is named by this `Vary`, as the upstream gets it: then the page
/// itself says that it is another one.
fn is_varied_by(exchange: &mut Exchange, conf: &Conf, vary: &[u8]) -> bool {
    !vary.is_empty()
        && names(exchange, conf, true).iter().all(|name| {
            let name = field::plain_name(name);
            field::list_has(vary, &name) && sent::is_as_said(exchange, &name)
        })
}

/// A request and its location, as they are asked what they hold.
struct View<'e> {
    exchange: &'e Exchange,
    request: &'e Request,
    location: &'e LocationConf,
    protocol: &'e dyn Protocol,
    rules: &'e header_rules::Conf,
    reads: &'e Reads,
    /// What of the URL the key holds.
    keyed: Parts,
    url: Url<'e>,
}

impl<'e> View<'e> {
    fn of(exchange: &'e Exchange, conf: &Conf) -> Option<Self> {
        let location = exchange.conf.location(exchange.location);
        let protocol = protocol::of(location)?;
        let reads = exchange.conf.reads_of(exchange.location)?;
        let keyed = match &conf.cache_key {
            Some(_) => reads.keyed_of_url,
            // What the upstream is asked, or ours, which holds the host.
            None => {
                let is_ours = !protocol.family().has_default_key;
                Parts { host: is_ours, target: true, scheme: !is_ours, ..Parts::default() }
            }
        };
        Some(Self {
            exchange,
            request: &exchange.request,
            location,
            protocol,
            rules: location.of(),
            reads,
            keyed,
            url: Url::of(exchange),
        })
    }

    /// Whether a header may change what the upstream is told: it is passed on, or read.
    fn is_seen(&self, name: &[u8]) -> bool {
        self.protocol.passes_on(self.location, name) || self.reads.told.has_field(name)
    }

    /// Adds the host, where several are possible and the key does not hold it; and the way it is written.
    fn add_host(&self, pieces: &mut Vec<Piece<'e>>) {
        if !self.keyed.host && (self.reads.of_url.host || self.is_seen(b"host")) {
            let is_own = self.is_own_host();
            if !(is_own && self.has_one_name()) {
                pieces.push(Piece::of(b"host", &self.request.host, !is_own));
            }
        }
        if self.keyed.authority || self.url.is_written_plainly() || !self.is_seen(b"host") {
            return;
        }
        if self.reads.told.has("http_host") || self.url.authority.is_empty() {
            // Behind a port that something else listens at.
            let is_of_setup = self.url.has_other_port();
            pieces.push(Piece::of(b"host", self.request.authority(), !is_of_setup));
        } else if !self.url.is_own_port {
            pieces.push(Piece::of(b"port", &self.request.port, false));
        }
    }

    /// Whether the server has the host's name; without names any host is its own.
    fn is_own_host(&self) -> bool {
        let server = self.exchange.conf.server(self.exchange.server);
        let socket = self.exchange.conf.socket(&self.exchange.client);
        !server.has_names()
            || find_config::named(socket, &self.request.host) == Ok(Some(self.exchange.server))
    }

    fn has_one_name(&self) -> bool {
        let names = &self.exchange.conf.server(self.exchange.server).names;
        matches!(&names[..], [ServerName::Text(name)] if !name.contains('*') && !name.starts_with('.'))
    }

    /// Adds the scheme, where the server has both and the key holds neither.
    fn add_scheme(&self, pieces: &mut Vec<Piece<'e>>) {
        let is_either = self.reads.has_both_schemes || self.exchange.remote.scheme.is_some();
        if is_either && self.reads.of_url.scheme && !self.keyed.scheme && self.url.is_https {
            pieces.push(Piece::of(b"scheme", b"https", false));
        }
    }

    /// Adds the target as it was sent, where the key holds the path as it is read here and an application may read another
    /// one.
    fn add_path(&self, pieces: &mut Vec<Piece<'e>>) {
        if !self.keyed.target && is_respelled(self.request) {
            pieces.push(Piece::of(b"path", self.request.target(), true));
        }
    }

    /// Adds what the content is read as, of methods that have any.
    fn add_content(&self, pieces: &mut Vec<Piece<'e>>) {
        if self.request.method.is_get_or_head() {
            return;
        }
        for name in OF_CONTENT {
            let values = self.request.values(name);
            pieces.extend(values.map(|value| Piece::of(name, value, false)));
        }
    }

    fn add_headers(&self, pieces: &mut Vec<Piece<'e>>) {
        let (split, selecting) = (&self.rules.cache_split_headers, &self.reads.selecting);
        for field in &self.request.fields {
            let name = self.request.name(field);
            if split.has(name) {
                pieces.push(Piece::of(name, self.request.value(field), false));
                continue;
            }
            let (class, known) = headers::known(name);
            let read = selecting.iter().find(|read| field::is_alike(name, &read.name));
            if !class.may_split() && read.is_none() {
                continue;
            }
            let counts = || {
                !self.rules.cache_ignore_headers.has(name)
                    && !self.reads.key.has_field(name)
                    && self.is_seen(name)
            };
            let value = self.request.value(field);
            if let Some(read) = read {
                pieces.extend(counts().then(|| Piece::of(name, value, read.is_told)));
                continue;
            }
            let Some(value) = self.whole(name, value) else { continue };
            let meaning = self.url.meaning(class, &value);
            if matches!(meaning, Meaning::Same) || !counts() {
                continue;
            }
            let name = known.unwrap_or(name);
            let piece = |value, is_chosen| Piece { value, ..Piece::of(name, b"", is_chosen) };
            match meaning {
                Meaning::Same => {}
                Meaning::Said(said) => pieces.push(piece(said.into(), true)),
                Meaning::OfSetup => pieces.push(piece(value, false)),
                Meaning::Other => pieces.push(piece(value, true)),
                Meaning::Scheme(scheme) => {
                    // Who it is said for is beside the point.
                    let value =
                        if class == Class::Forwarded { scheme.word().into() } else { value };
                    pieces.push(Piece { scheme: Some(scheme), ..piece(value, false) });
                }
            }
        }
        self.settle_scheme(pieces);
    }

    /// The value of a header with this line, of which it may have several: they are a list (RFC 9110, section 5.3), also to
    /// applications that take one name for another. `None`: of those it is not the first.
    fn whole(&self, name: &[u8], line: &'e [u8]) -> Option<Cow<'e, [u8]>> {
        let is_alike = |field: &&_| field::is_alike(self.request.name(field), name);
        let mut values =
            self.request.fields.iter().filter(is_alike).map(|it| self.request.value(it));
        let first = values.next()?;
        if !std::ptr::eq(first, line) {
            return None;
        }
        let mut whole = Cow::from(first);
        for value in values {
            whole.to_mut().extend_from_slice(b", ");
            whole.to_mut().extend_from_slice(value);
        }
        Some(whole)
    }

    /// Settles what the headers come to that say the scheme which the client spoke to a proxy. An application may go by any of
    /// them, so each stays, unless all say no more than the connection does.
    fn settle_scheme(&self, pieces: &mut Vec<Piece<'e>>) {
        let said = || pieces.iter().filter_map(|piece| piece.scheme);
        let Some(ForwardedScheme { is_https, .. }) = said().next() else { return };
        let contradicts = |piece: &Piece<'_>| {
            piece.scheme.is_none() && piece.is_chosen && headers::class(&piece.name).is_of_scheme()
        };
        let agree = said().all(|it| it.is_https == is_https) && !pieces.iter().any(contradicts);
        let is_own = agree && is_https == self.url.is_https && said().all(|it| it.is_plain);
        if is_https && agree {
            // A script of the site's own, by the scheme that it was loaded over.
            let is_own = |piece: &Piece<'_>| {
                &piece.name[..] == b"origin"
                    && piece.value.strip_prefix(b"https://") == Some(self.url.authority())
            };
            pieces.retain(|piece| !is_own(piece));
        }
        if is_own {
            pieces.retain(|piece| piece.scheme.is_none());
        } else if !agree {
            pieces.iter_mut().for_each(|piece| piece.is_chosen |= piece.scheme.is_some());
        }
    }
}

impl<'e> Piece<'e> {
    fn of(name: &'e [u8], value: &'e [u8], is_chosen: bool) -> Self {
        let is_lower = !name.iter().any(u8::is_ascii_uppercase);
        let name = if is_lower { name.into() } else { name.to_ascii_lowercase().into() };
        Self { name, value: value.into(), is_chosen, scheme: None }
    }
}

/// What a header says beside the request's own URL.
enum Meaning {
    /// Nothing else.
    Same,
    /// What is the same for all clients of a proxy.
    OfSetup,
    /// Another page.
    Other,
    /// The same, by this part of the value.
    Said(Vec<u8>),
    Scheme(ForwardedScheme),
}

/// The scheme that a client spoke to a proxy, as a header says it.
#[derive(Clone, Copy, Debug)]
struct ForwardedScheme {
    is_https: bool,
    /// Whether all applications take its word for that. There is none that all take for a "no".
    is_plain: bool,
}

impl ForwardedScheme {
    /// To the letter: applications compare and copy values as they are.
    fn of_word(word: &[u8]) -> Meaning {
        match word {
            b"https" => Self::plain(true),
            b"http" => Self::plain(false),
            _ => Meaning::Other,
        }
    }

    /// Of several proxies in a row, each of which added its own.
    fn of_words(value: &[u8]) -> Meaning {
        let mut words = field::list(value).peekable();
        let is_https = words.peek().is_some_and(|first| *first == b"https");
        match words.all(|word| matches!(word, b"http" | b"https")) {
            true => Meaning::Scheme(Self { is_https, is_plain: false }),
            false => Meaning::Other,
        }
    }

    fn word(&self) -> &'static [u8] {
        if self.is_https { b"https" } else { b"http" }
    }

    fn plain(is_https: bool) -> Meaning {
        Meaning::Scheme(Self { is_https, is_plain: true })
    }
}

/// The URL that a request came for, as it says so itself.
struct Url<'e> {
    is_https: bool,
    host: &'e [u8],
    /// As it was sent.
    authority: &'e [u8],
    /// The port that is named.
    port: &'e [u8],
    /// Whether that is the one of the connection, or there is none.
    is_own_port: bool,
    target: &'e [u8],
}

impl<'e> Url<'e> {
    fn of(exchange: &'e Exchange) -> Self {
        let request = &exchange.request;
        let is_https = exchange.is_https();
        let proxied = exchange.client.proxied.get();
        // Ours, and that of a proxy that says so with the PROXY protocol.
        let connected = || {
            [
                exchange.client.local.map(|address| address.port()),
                proxied.and_then(|header| header.destination).map(|address| address.port()),
                Some(if is_https { 443 } else { 80 }),
            ]
        };
        let is_connected = |port: &[u8]| {
            let number = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
            number.is_some() && connected().contains(&number)
        };
        Self {
            is_https,
            host: &request.host,
            authority: request.authority(),
            port: &request.port,
            is_own_port: request.port.is_empty() || is_connected(&request.port),
            target: request.target(),
        }
    }

    /// The host and the port, if one is named.
    fn authority(&self) -> &'e [u8] {
        if self.is_host_and_port() { self.authority } else { self.host }
    }

    /// Whether the authority is the host, with no port or with the one that was connected to.
    fn is_written_plainly(&self) -> bool {
        self.is_own_port && self.is_host_and_port()
    }

    /// Whether it is the host, with a port that something before this server listens at.
    fn has_other_port(&self) -> bool {
        !self.is_own_port && self.is_host_and_port()
    }

    fn is_host_and_port(&self) -> bool {
        let rest = self.authority.strip_prefix(self.host).filter(|_| !self.host.is_empty());
        rest.is_some_and(|rest| match rest {
            [] => true,
            [b':', port @ ..] => port == self.port && !port.is_empty(),
            _ => false,
        })
    }

    fn is_host(&self, value: &[u8]) -> bool {
        value == self.authority()
    }

    fn meaning(&self, class: Class, value: &[u8]) -> Meaning {
        let same_if = |is_same: bool| if is_same { Meaning::Same } else { Meaning::Other };
        match class {
            Class::Nothing | Class::Credential | Class::Unknown => Meaning::Same,
            Class::Scheme if value.contains(&b',') => ForwardedScheme::of_words(value),
            Class::Scheme => ForwardedScheme::of_word(value),
            Class::Switch => match value {
                b"on" | b"On" | b"1" | b"true" | b"https" => ForwardedScheme::plain(true),
                b"off" | b"Off" | b"0" | b"false" | b"http" => {
                    Meaning::Scheme(ForwardedScheme { is_https: false, is_plain: false })
                }
                _ => Meaning::Other,
            },
            Class::Certificate => ForwardedScheme::plain(true),
            Class::Port => match value {
                port if port == self.port && !port.is_empty() => Meaning::Same,
                b"443" => ForwardedScheme::plain(true),
                b"80" => ForwardedScheme::plain(false),
                ports if !ports.is_empty() && field::list(ports).all(is_port) => Meaning::OfSetup,
                _ => Meaning::Other,
            },
            Class::Visitor => {
                let word = value.strip_prefix(b"{\"scheme\":\"").unwrap_or_default();
                ForwardedScheme::of_word(word.strip_suffix(b"\"}").unwrap_or_default())
            }
            Class::Forwarded => self.forwarded(value),
            Class::Host if self.is_host(value) => Meaning::Same,
            Class::Host if self.are_hosts(value) => Meaning::OfSetup,
            Class::Host => Meaning::Other,
            Class::Target => same_if(value == self.target),
            Class::Proxy if self.is_host(value) => Meaning::Same,
            Class::Proxy => Meaning::OfSetup,
            Class::Origin => {
                let scheme: &[u8] = if self.is_https { b"https" } else { b"http" };
                let rest = value.strip_prefix(scheme).and_then(|rest| rest.strip_prefix(b"://"));
                same_if(rest.is_some_and(|authority| self.is_host(authority)))
            }
            Class::Accept => same_if(accepts_pages(value)),
            Class::RequestedWith => same_if(!value.eq_ignore_ascii_case(b"xmlhttprequest")),
            Class::Page => Meaning::Other,
        }
    }

    /// Whether each of these is the host, with any port.
    fn are_hosts(&self, value: &[u8]) -> bool {
        field::list(value).all(|host| match host.strip_prefix(self.host) {
            Some([]) => true,
            Some([b':', port @ ..]) => is_port(port),
            _ => false,
        })
    }

    /// What the hosts and schemes of `Forwarded` say; for whom, by whom and what else it says is about the client.
    fn forwarded(&self, value: &[u8]) -> Meaning {
        let (mut scheme, mut said, mut is_other) = (None, Vec::new(), false);
        for pair in value.split(|byte| matches!(byte, b',' | b';')).map(<[u8]>::trim_ascii) {
            let Some(at) = pair.iter().position(|byte| *byte == b'=') else {
                // In quotes there may be anything.
                if pair.is_empty() {
                    continue;
                } else {
                    return Meaning::Other;
                };
            };
            let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
            let value = value.strip_prefix(b"\"").unwrap_or(value);
            let value = value.strip_suffix(b"\"").unwrap_or(value);
            if name.eq_ignore_ascii_case(b"proto") {
                is_other |= scheme.is_some_and(|known| known != value);
                scheme = Some(value);
            } else if name.eq_ignore_ascii_case(b"host") {
                is_other |= !self.is_host(value);
            } else {
                continue;
            }
            said.extend_from_slice(pair);
            said.push(b';');
        }
        match scheme.map(ForwardedScheme::of_word) {
            None if !is_other => Meaning::Same,
            Some(Meaning::Scheme(scheme)) if !is_other => Meaning::Scheme(scheme),
            _ => Meaning::Said(said),
        }
    }
}

/// Whether an `Accept` is one of a browser, or of a program that takes what there is.
fn accepts_pages(value: &[u8]) -> bool {
    let is_page = |range: &[u8]| range.starts_with(b"text/html") || range.starts_with(b"*/*");
    value.is_empty() || is_page(value) || field::list(value).any(is_page)
}

fn is_port(text: &[u8]) -> bool {
    (1..=5).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
}

/// Whether an application may take the path as it was sent for another one than the path as it is read here: decoded, without
/// dots, with merged slashes.
fn is_respelled(request: &Request) -> bool {
    let target = request.target();
    let (path, args) = request.split_target();
    let has_odd_segments = path.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    if memchr::memchr2(b'%', b'#', target).is_none() && !has_odd_segments {
        return false;
    }
    let Ok(normal) = normalize(target, true) else { return true };
    let mut plain = Vec::new();
    escape_into(&mut plain, &normal.path, Escape::Path);
    normal.path.contains(&b'?')
        || normal.args.unwrap_or_default() != args
        || plainly(&plain) != plainly(path)
}

/// A path in a form that is the same for all those that no application tells apart: what need not be escaped is not (RFC 3986,
/// section 6.2.2). Slashes, and what ends a path, are not the same escaped.
fn plainly(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        let decoded = match rest {
            [b'%', high, low, ..] => hex_pair([*high, *low]),
            _ => None,
        };
        rest = if decoded.is_some() { &behind[2..] } else { behind };
        match decoded {
            Some(decoded @ (b'/' | b'?' | b'#' | b'%' | 0)) => plain.extend([b'%', decoded]),
            decoded => plain.push(decoded.unwrap_or(byte)),
        }
    }
    plain
}

/// Whether a response lets scripts of all origins read it (Fetch Standard, section 3.3.3).
pub(super) fn is_for_all_origins(fields: &[(Bytes, Bytes)]) -> bool {
    let name = b"access-control-allow-origin";
    fields.iter().any(|(found, value)| field::is_same(found, name) && value == "*")
}

/// Whether the header of this name is in the secondary key of a request with content.
pub(super) fn is_of_content(name: &[u8]) -> bool {
    OF_CONTENT.iter().any(|known| field::is_alike(name, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str) -> Request {
        let mut request = Request::unread(Bytes::new());
        request.set_target(target.as_bytes());
        request
    }

    #[test]
    fn paths_that_applications_may_tell_apart_are_not_as_good_as_each_other() {
        let table = [
            ("/a/b?c", false),
            ("/caf%c3%a9", false),
            ("/%7euser/c%2B%2B", false),
            ("/a%20b", false),
            ("/100%25", false),
            ("/a/", false),
            ("/a/.b", false),
            ("//a?x", true),
            ("/a//", true),
            ("/a/./b", true),
            ("/x/../a", true),
            ("/x/%2e%2e/a", true),
            ("/a%2fb", true),
            ("/a%2Fb?c", true),
            ("/a%3Fb", true),
            ("/a%23b", false),
        ];
        for (target, expected) in table {
            assert_eq!(is_respelled(&request(target)), expected, "{target}");
        }
    }

    fn url(host: &'static str, authority: &'static str, is_https: bool) -> Url<'static> {
        let port = authority.rsplit_once(':').map_or(&b""[..], |(_, port)| port.as_bytes());
        let (host, authority) = (host.as_bytes(), authority.as_bytes());
        Url { is_https, host, authority, port, is_own_port: true, target: b"/a?b" }
    }

    #[test]
    fn headers_are_compared_with_the_url_to_the_letter() {
        let plain = url("h", "h", false);
        let with_port = url("h", "h:8080", false);
        let table = [
            (&plain, "X-Forwarded-Host", "h", "same"),
            (&plain, "X-Forwarded-Host", "H", "other"),
            (&plain, "X-Forwarded-Host", "h, h", "setup"),
            (&plain, "X-Forwarded-Host", "h:443", "setup"),
            (&plain, "X-Forwarded-Host", "h, evil", "other"),
            (&plain, "X-Forwarded-Host", "h:evil", "other"),
            (&plain, "X-Original-URL", "/a?b", "same"),
            (&plain, "X-Original-URL", "/evil", "other"),
            (&plain, "X-Forwarded-Port", "8443", "setup"),
            (&plain, "X-Forwarded-Port", "443, 80", "setup"),
            (&plain, "X-Forwarded-Port", "evil", "other"),
            (&plain, "X-Forwarded-Port", "", "other"),
            (&plain, "X-ARR-SSL", "2048|256|C=US", "https"),
            (&with_port, "X-Forwarded-Host", "h:8080", "same"),
            (&with_port, "X-Forwarded-Port", "8080", "same"),
            (&plain, "X-Forwarded-Port", "443", "https"),
            (&plain, "X-Forwarded-Port", "80", "http"),
            (&plain, "X-Forwarded-Port", "080", "setup"),
            (&plain, "X-Forwarded-Proto", "https", "https"),
            (&plain, "X-Forwarded-Proto", "HTTPS", "other"),
            (&plain, "X-Forwarded-Proto", "http, https", "http?"),
            (&plain, "X-Forwarded-Proto", "https,evil", "other"),
            (&plain, "X-Forwarded-Ssl", "on", "https"),
            (&plain, "X-Forwarded-Ssl", "off", "http?"),
            (&plain, "X-Forwarded-Ssl", "enabled", "other"),
            (&plain, "CF-Visitor", r#"{"scheme":"https"}"#, "https"),
            (&plain, "CF-Visitor", r#"{"scheme":"https","a":"http"}"#, "other"),
            (&plain, "Forwarded", "for=1.2.3.4;host=h;proto=https", "https"),
            (&plain, "Forwarded", "for=1.2.3.4;host=evil", "other"),
            (&plain, "Forwarded", "proto=https, proto=http", "other"),
            (&plain, "Forwarded", "for=\"[::1]\";by=_x", "same"),
            (&plain, "Forwarded", "for=1.2.3.4;proto=https;sig=x;exp=1", "https"),
            (&plain, "Surrogate-Capability", "key=ESI/1.0", "setup"),
            (&plain, "Origin", "http://h", "same"),
            (&plain, "Origin", "https://h", "other"),
            (&plain, "Origin", "null", "other"),
            (&plain, "Accept", "text/html,application/xml;q=0.9", "same"),
            (&plain, "Accept", "image/avif,*/*;q=0.8", "same"),
            (&plain, "Accept", "application/json", "other"),
            (&plain, "X-Requested-With", "XMLHttpRequest", "other"),
            (&plain, "X-Requested-With", "com.example.app", "same"),
            (&plain, "HX-Request", "true", "other"),
        ];
        for (url, name, value, expected) in table {
            let found = match url.meaning(headers::class(name.as_bytes()), value.as_bytes()) {
                Meaning::Same => "same",
                Meaning::OfSetup => "setup",
                Meaning::Other | Meaning::Said(_) => "other",
                Meaning::Scheme(ForwardedScheme { is_https: true, .. }) => "https",
                Meaning::Scheme(ForwardedScheme { is_plain: true, .. }) => "http",
                Meaning::Scheme(_) => "http?",
            };
            assert_eq!(found, expected, "{name}: {value}");
        }
    }
}
