//! Poisoning: what a request says beside its key must not decide what others get.
//!
//! A request may name another host, port, scheme, URL, method or user than its own, in fields that applications believe
//! ([`suspects`](super::suspects)), or be written so that they read another one in it ([`ambiguous`]). It is harmless as long as the upstream does not see it, the key holds it, or the answer varies by it. Which
//! of these is so is not read off the configuration: the request is tried once more without that, and its key
//! and the request to the upstream are compared.

use super::ambiguous::{Ambiguous, Said};
use super::directives::IgnoreHeaders;
use super::settings::Conf;
use super::suspects::Own;
use super::{ambiguous, key, sent};
use crate::protocol;
use crate::protocol::codec::Head;
use crate::protocol::target::Target;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_http::field;
use yorozu_http::uri::split_authority;
use yorozu_kernel::config::servers::{LocationId, ServerName};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::Templates;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::outcome::Progress;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::{Client, Exchange, Role};
use yorozu_kernel::find_config;

/// Most fields of one request that are looked into; with more its answer is not stored.
const SUSPECTS_MAX: usize = 8;

/// What a request says that need not fit its URL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Suspect {
    /// A field, by its name in lower case.
    Field(Bytes),
    /// One whose name was written with `_`, or another byte that applications take for a dash.
    Disguised(Bytes),
    /// The way its host is written: with a port that it was not asked at, in capitals, with a dot behind it.
    Authority,
    /// Its host, which is none of its server's names; with the one it would have else.
    Host(Bytes),
    /// Its path, which is not written as others write it; with the target that they send.
    Target(Bytes),
    /// Arguments or cookies that an application may read in another way than this server.
    Ambiguous(Box<Ambiguous>),
}

/// A host that no server is asked for (RFC 6761, section 6.4).
const NO_HOST: &[u8] = b"host.invalid";

/// A suspect that the upstream sees and the key does not hold.
#[derive(Clone, Debug)]
pub struct Unkeyed {
    pub suspect: Suspect,
    /// Whether the upstream gets the field as the client says it: only then a page that varies by it is for those alone who
    /// say the same.
    is_sent_as_said: bool,
}

impl Unkeyed {
    fn new(exchange: &mut Exchange, suspect: Suspect) -> Self {
        let is_sent_as_said =
            suspect.field_name().is_some_and(|name| sent::is_as_said(exchange, name));
        Self { suspect, is_sent_as_said }
    }

    /// Whether `Vary` distinguishes such requests, or the answer says that it is the same for all.
    pub fn is_distinguished_by(&self, conf: &Conf, head: &Head) -> bool {
        let is_origin = matches!(&self.suspect, Suspect::Field(name) if &name[..] == b"origin");
        let is_for_all = is_origin
            && head.field(b"access-control-allow-origin").is_some_and(|allowed| allowed == "*");
        let varies = !conf.ignore_headers.contains(IgnoreHeaders::VARY)
            && head.values(b"vary").any(|vary| self.is_varied_by(vary));
        is_for_all || varies
    }

    /// Whether a `Vary` names it.
    pub fn is_varied_by(&self, vary: &[u8]) -> bool {
        let name = self.suspect.field_name();
        self.is_sent_as_said && name.is_some_and(|name| field::list_has(vary, name))
    }
}

impl Suspect {
    /// The field that `Vary` can name.
    fn field_name(&self) -> Option<&[u8]> {
        match self {
            Self::Field(name) => Some(name),
            Self::Authority | Self::Host(_) => Some(b"host"),
            Self::Ambiguous(found) if matches!(found.without, Said::Cookies(_)) => Some(b"cookie"),
            Self::Disguised(_) | Self::Target(_) | Self::Ambiguous(_) => None,
        }
    }
}

/// What others must not get because of how this request was made: what the upstream sees and the key does not hold.
pub fn unkeyed(exchange: &mut Exchange, conf: &Conf) -> Vec<Unkeyed> {
    let found = seen(exchange, conf);
    found.into_iter().map(|suspect| Unkeyed::new(exchange, suspect)).collect()
}

/// The suspects that the upstream may see and the key may not hold.
fn seen(exchange: &mut Exchange, conf: &Conf) -> Vec<Suspect> {
    let mut suspects = suspects(exchange);
    let are_too_many = suspects.len() > SUSPECTS_MAX;
    add_misread(exchange, conf, &mut suspects);
    // Without a host the upstream may make another site's page, and $host is the first name of the server.
    let has_host = !exchange.request.host.is_empty();
    if suspects.is_empty() || are_too_many || !has_host {
        return suspects;
    }
    let own_key = key::primary(exchange, conf);
    let trial = Trial { exchange, conf, is_from_start: true };
    let is_it = |whole: &Tried| whole.key == own_key && whole.location == exchange.location;
    let whole = trial.tried(|_| ()).filter(is_it);
    // Of a subrequest, say: where it came from cannot be tried.
    let trial = Trial { is_from_start: whole.is_some(), ..trial };
    let Some(whole) = whole.or_else(|| trial.tried(|_| ())) else { return suspects };
    let matters = |suspect: &Suspect| {
        let is_ambiguous = matches!(suspect, Suspect::Ambiguous(_));
        if !trial.is_from_start && !is_ambiguous {
            return true;
        }
        let without = trial.tried(|request| take_away(request, suspect));
        without.is_none_or(|without| without.key == whole.key && without != whole)
            && match suspect {
                Suspect::Ambiguous(found) => trial.is_decided_by(found),
                _ => true,
            }
    };
    suspects.into_iter().filter(matters).collect()
}

/// Adds what an application may read in another way than this server, where anything here depends on how it is read.
fn add_misread(exchange: &Exchange, conf: &Conf, suspects: &mut Vec<Suspect>) {
    let request = &exchange.request;
    // Such a key holds the target as it was sent, or nothing of it; the default one holds what the upstream gets.
    let is_of_url = conf.cache_key.as_ref().is_none_or(Template::is_of_url);
    let found = match is_of_url {
        true if conf.cache_bypass.0.is_empty() && conf.no_cache.0.is_empty() => [None, None],
        true => [None, ambiguous::cookies(request)],
        false => {
            suspects.extend(ambiguous::respelled(request).into_iter().map(Suspect::Target));
            [ambiguous::arguments(request), ambiguous::cookies(request)]
        }
    };
    suspects.extend(found.into_iter().flatten().map(Box::new).map(Suspect::Ambiguous));
}

/// Takes away what makes the request suspect.
pub fn take_away(request: &mut Request, suspect: &Suspect) {
    match suspect {
        Suspect::Field(name) | Suspect::Disguised(name) => {
            request.retain_fields(|found| !field::is_alike(found, name));
        }
        Suspect::Target(target) => request.set_target(target),
        Suspect::Ambiguous(found) => found.without.put(request),
        Suspect::Authority => request.normalize_authority(),
        Suspect::Host(name) => {
            request.host = name.clone();
            request.normalize_authority();
        }
    }
}

/// The client's request, tried once more after changes.
#[derive(Clone, Copy)]
struct Trial<'e> {
    exchange: &'e Exchange,
    conf: &'e Conf,
    /// Whether it takes its whole way again; else it is where the exchange is.
    is_from_start: bool,
}

impl Trial<'_> {
    /// What `look` makes of the request after a `change`; `None` if it does not come to a gateway.
    fn with<T>(
        &self,
        change: impl FnOnce(&mut Request),
        look: impl FnOnce(&mut Exchange) -> Option<T>,
    ) -> Option<T> {
        if self.is_from_start {
            return look(&mut *tried(self.exchange, &self.exchange.client, change)?);
        }
        asked_here(self.exchange, |asked| {
            change(&mut asked.request);
            asked.forget_computed();
            look(asked)
        })
    }

    fn tried(&self, change: impl FnOnce(&mut Request)) -> Option<Tried> {
        self.with(change, |asked| Tried::of(asked, self.conf))
    }

    /// Whether arguments or cookies, read in another way, decide which page the request is for, or whether it is one for all.
    fn is_decided_by(&self, found: &Ambiguous) -> bool {
        let Some(firsts) = &found.firsts else { return true };
        let own = self.with(|_| (), |asked| Some(Reading::of(asked, self.conf)));
        let is_read_otherwise = |first: &Said| {
            let change = |request: &mut Request| first.put(request);
            self.with(change, |asked| Some(Reading::of(asked, self.conf))) != own
        };
        own.is_none() || firsts.iter().any(is_read_otherwise)
    }
}

/// What arguments and cookies decide here: which page a request is for, and whether it is one for all.
#[derive(Eq, PartialEq)]
struct Reading {
    location: LocationId,
    key: yorozu_cache::Key,
    is_bypassed: bool,
    is_forbidden: bool,
}

impl Reading {
    fn of(asked: &mut Exchange, conf: &Conf) -> Self {
        let is_true = |asked: &mut Exchange, values: &Templates| {
            values.0.iter().any(|value| value.is_true(asked))
        };
        Self {
            location: asked.location,
            key: key::primary(asked, conf),
            is_bypassed: is_true(asked, &conf.cache_bypass),
            is_forbidden: is_true(asked, &conf.no_cache),
        }
    }
}

/// What a request came to: where, under which key, and what its upstream would be sent.
#[derive(Eq, PartialEq)]
struct Tried {
    location: LocationId,
    key: yorozu_cache::Key,
    sent: Bytes,
    /// Where it goes, and how its answer is rewritten.
    decided: Vec<u8>,
}

impl Tried {
    /// What a request that has come to its gateway comes to there; `None` if it has none.
    fn of(asked: &mut Exchange, conf: &Conf) -> Option<Self> {
        let config = Rc::clone(&asked.conf);
        let location: &LocationConf = config.location(asked.location);
        let protocol = protocol::of(location)?;
        let sent = protocol.call(asked, location, Content::None).ok()?.request;
        let mut decided = Vec::new();
        protocol.append_decided(asked, location, &mut decided);
        let upstream = protocol.target().and_then(Target::fixed);
        if let Some(key) = upstream.and_then(|upstream| upstream.hash_key.as_ref()) {
            key.append(asked, &mut decided);
        }
        Some(Self { location: asked.location, key: key::primary(asked, conf), sent, decided })
    }
}

/// Whether the page depends on what was said of the client when it was let in (`auth_request_set`), or on what its certificate
/// says, and its key does not: what the upstream makes of that is for this client. A client of whom nothing was said would be
/// sent something else.
pub fn is_of_client(exchange: &Exchange, conf: &Conf) -> bool {
    if exchange.said_of_client.is_empty() && !exchange.client.has_certificate() {
        return false;
    }
    let come_to = |forgets: bool| {
        asked_here(exchange, |asked| {
            if forgets {
                asked.forget_client();
                asked.client = Rc::new(asked.client.as_anybody());
            }
            let config = Rc::clone(&asked.conf);
            protocol::of(config.location(asked.location))?.resolve(asked).ok()?;
            Tried::of(asked, conf)
        })
    };
    let (own, of_none) = (come_to(false), come_to(true));
    let Some((own, of_none)) = own.zip(of_none) else { return true };
    own.key == of_none.key && own != of_none || is_led_by_certificate(exchange, conf)
}

/// Whether the client's certificate decides on the way from the start (`if`, `set`, `rewrite`, `try_files`) what the upstream
/// gets, and not the key.
fn is_led_by_certificate(exchange: &Exchange, conf: &Conf) -> bool {
    if !exchange.client.has_certificate() {
        return false;
    }
    let from_start = |client: &Rc<Client>| Tried::of(&mut *tried(exchange, client, |_| ())?, conf);
    let of_none = from_start(&Rc::new(exchange.client.as_anybody()));
    let own = from_start(&exchange.client);
    own.zip(of_none).is_some_and(|(own, of_none)| own.key == of_none.key && own != of_none)
}

/// Looks at a shadow of the request where that is.
fn asked_here<T>(exchange: &Exchange, look: impl FnOnce(&mut Exchange) -> T) -> T {
    exchange.peek(|asked| {
        // What is drawn or counted per request is not a difference.
        asked.request_id = (*exchange.id()).into();
        asked.started = exchange.started;
        asked.role = Role::Question { supposes_scripts: false };
        look(asked)
    })
}

/// The request of `client` after a `change`, as far as it comes without waiting for anything; `None` if it does not come to
/// a gateway.
pub fn tried(
    exchange: &Exchange,
    client: &Rc<Client>,
    change: impl FnOnce(&mut Request),
) -> Option<Box<Exchange>> {
    let (asked, progress) = walked(exchange, client, change)?;
    matches!(progress, Progress::Wait(_)).then_some(asked)
}

/// As [`tried`], with how far it came, whatever that is; `None` if its path is invalid.
pub fn walked(
    exchange: &Exchange,
    client: &Rc<Client>,
    change: impl FnOnce(&mut Request),
) -> Option<(Box<Exchange>, Progress)> {
    let mut request = exchange.request.clone();
    change(&mut request);
    let (conf, client) = (Rc::clone(&exchange.conf), Rc::clone(client));
    let mut asked = Box::new(Exchange::new(conf, client, request, RequestBody::none()));
    // What is drawn or counted per request is not a difference.
    asked.request_id = (*exchange.id()).into();
    asked.started = exchange.started;
    asked.role = Role::Question { supposes_scripts: false };
    find_config::begin(&mut asked).ok()?;
    let start = asked.conf.engine.start;
    let progress = start(&mut asked);
    Some((asked, progress))
}

/// The host, if the request came to its server by none of that one's names: whatever is asked for that no server has leads to
/// the default one.
fn strange_host(exchange: &Exchange) -> Option<Suspect> {
    let (conf, request) = (&exchange.conf, &exchange.request);
    let names = &conf.server(exchange.server).names;
    // Without a name any host is its own.
    let first = names.iter().find(|name| name.is_real())?;
    let by_name = find_config::named(conf.socket(&exchange.client), &request.host);
    if by_name == Ok(Some(exchange.server)) || request.host.is_empty() {
        return None;
    }
    let name = match first {
        ServerName::Text(text) if !text.contains('*') => text.trim_start_matches('.').as_bytes(),
        ServerName::Text(_) | ServerName::Regex(..) => NO_HOST,
    };
    Some(Suspect::Host(Bytes::copy_from_slice(name)))
}

/// What the request says that may not fit the URL it came for.
fn suspects(exchange: &Exchange) -> Vec<Suspect> {
    let own = Own::of(exchange);
    let mut found = Vec::new();
    if !own.is_written_plainly() {
        found.push(Suspect::Authority);
    }
    found.extend(strange_host(exchange));
    let request = &exchange.request;
    for field in &request.fields {
        let name = request.name(field);
        if own.agrees(exchange, name, request.value(field)) {
            continue;
        }
        let is_disguised = !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        let name: Bytes = name.iter().map(|byte| field::plain(*byte)).collect();
        let suspect = if is_disguised { Suspect::Disguised(name) } else { Suspect::Field(name) };
        if !found.contains(&suspect) {
            found.push(suspect);
        }
        if found.len() > SUSPECTS_MAX {
            // The rest is not looked at: no `Vary` may excuse it.
            found.push(Suspect::Disguised(Bytes::new()));
            break;
        }
    }
    found
}

/// Whether the answer redirects to the page that its key stands for: stored, it would be a loop for all clients. Hosts
/// are compared without port, and without the scheme if the key does not hold it.
pub fn leads_to_itself(exchange: &Exchange, conf: &Conf, head: &Head) -> bool {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
        return false;
    }
    let Some(location) = head.field(b"location") else { return false };
    let request = &exchange.request;
    let own = [&b"/"[..], request.target().strip_prefix(b"/").unwrap_or_default()].concat();
    let location = as_browsers_read(location);
    let scheme = scheme(&location).filter(|name| is_of_web(name));
    let rest = &location[scheme.map_or(0, |name| name.len() + 1)..];
    let is_own_scheme =
        scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(exchange.client.scheme()));
    let has_authority = rest.starts_with(b"//") || !is_own_scheme;
    let path = if has_authority {
        let rest = &rest[rest.iter().take_while(|byte| **byte == b'/').count()..];
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#'));
        let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
        let host = authority.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
        if split_authority(host).is_none_or(|(host, _)| *host != request.host[..]) {
            return false;
        }
        path
    } else {
        rest
    };
    let path = path.split(|byte| *byte == b'#').next().unwrap_or_default();
    // Nothing at all is a reference to what it was found at (RFC 3986, section 4.4).
    let is_same_path = (path.is_empty() && !has_authority) || same_target(&own, path);
    is_same_path && (is_own_scheme || !holds_scheme(exchange, conf))
}

/// A reference as browsers read it (URL Standard, section 4.4): tabs and line ends count for nothing, and of `\` and `/`
/// one is as good as the other.
fn as_browsers_read(reference: &[u8]) -> Vec<u8> {
    let query = reference.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let path_bytes = query.unwrap_or(reference.len());
    let read =
        |(at, byte): (usize, &u8)| if *byte == b'\\' && at < path_bytes { b'/' } else { *byte };
    let kept = |(_, byte): &(usize, &u8)| !matches!(byte, b'\t' | b'\r' | b'\n');
    reference.iter().enumerate().filter(kept).map(read).collect()
}

/// The scheme of a reference, if it has one.
fn scheme(reference: &[u8]) -> Option<&[u8]> {
    let end = reference.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
    (end > 0 && reference[end] == b':').then(|| &reference[..end])
}

fn is_of_web(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
}

/// Whether `reference`, without its authority, resolves to the target it was found at (RFC 3986, section 5.2).
fn same_target(own: &[u8], reference: &[u8]) -> bool {
    let path_bytes = own.iter().position(|byte| *byte == b'?').unwrap_or(own.len());
    let kept = match reference.first() {
        None | Some(b'/') => &b""[..],
        Some(b'?') => &own[..path_bytes],
        Some(_) => match own[..path_bytes].iter().rposition(|byte| *byte == b'/') {
            Some(at) => &own[..=at],
            None => b"/",
        },
    };
    let meant = if reference.is_empty() { b"/".to_vec() } else { [kept, reference].concat() };
    let normal = |target: &[u8]| {
        let target = yorozu_http::uri::normalize(target, false).ok()?;
        Some((target.path, target.args.unwrap_or_default()))
    };
    meant == own || normal(&meant).is_some_and(|meant| normal(own) == Some(meant))
}

/// Whether the page has another key over the other scheme.
fn holds_scheme(exchange: &Exchange, conf: &Conf) -> bool {
    let key = |is_tls: bool| {
        let client = Rc::new(exchange.client.over(is_tls));
        tried(exchange, &client, |_| ()).map(|mut asked| key::primary(&mut asked, conf))
    };
    key(true) != key(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_before_they_are_compared() {
        let table = [
            ("/a", "/a", true),
            ("/a", "", false),
            ("/", "", true),
            ("/a?q", "?q", true),
            ("/a?q", "?r", false),
            ("/b/a", "a", true),
            ("/b/a", "./a", true),
            ("/b/a", "/b/../b/a", true),
            ("/b/a", "/a", false),
            ("/a%62", "/ab", true),
            ("//a", "/a", false),
        ];
        for (own, reference, wanted) in table {
            assert_eq!(
                same_target(own.as_bytes(), reference.as_bytes()),
                wanted,
                "{own} {reference}"
            );
        }
    }
}
