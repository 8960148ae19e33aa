//! Which server answers for an authority, and which location for a path.

pub mod hosts;

use crate::config::compiled::{Config, LocationId, LocationSet, ServerId, Socket, WorkerConf};
use crate::config::regex::Regex;
use crate::exchange::{Client, Exchange};
use crate::handlers::Handler;
use crate::limits;
use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::fmt;
use std::hash::BuildHasher as _;
use std::rc::Rc;

/// The server for a lower-cased host on a listening socket.
///
/// Captures of a regex name are set on the exchange.
pub fn server(exchange: &mut Exchange) -> ServerId {
    let host = exchange.request.host.clone();
    let found = server_of(exchange, &host);
    found.unwrap_or_else(|| exchange.conf.sockets[exchange.client.listen.get()].default_server)
}

/// The server of a lower-cased name, if one has it.
pub fn server_of(exchange: &mut Exchange, host: &[u8]) -> Option<ServerId> {
    let conf = Rc::clone(&exchange.conf);
    let hosts = &conf.sockets[exchange.client.listen.get()].hosts;
    if let Some(id) = hosts.find(host) {
        return Some(*id);
    }
    hosts.regexes().find(|(regex, _)| regex.matches(host, exchange)).map(|(_, id)| *id)
}

/// Chooses the server and normalises the path, of a request that no client waits for.
///
/// # Errors
/// Its path is invalid.
pub fn begin(asked: &mut Exchange) -> Result<(), String> {
    let conf = Rc::clone(&asked.conf);
    asked.server = server(asked);
    asked.location = conf.server(asked.server).conf;
    let first = first_server(&conf, &asked.client);
    let merges = conf.location(conf.server(first).conf).http_core.merge_slashes;
    let target = yorozu_http::uri::normalize(asked.request.target(), merges);
    let target = target.map_err(|_| "the URL's path is invalid".to_owned())?;
    (asked.uri, asked.args) = (target.path, target.args.unwrap_or_default());
    Ok(())
}

/// The server whose settings hold before a request says which one it is for: that of the name in the handshake, else the
/// socket's default server.
///
/// # Source
/// nginx, `merge_slashes`: "if the directive is specified on the server level, the value from the default server
/// can be used".
pub fn first_server(conf: &WorkerConf, client: &Client) -> ServerId {
    let socket = &conf.sockets[client.listen.get()];
    let name = client.tls.get().and_then(|session| session.server_name());
    name.and_then(|name| named(socket, name)).unwrap_or(socket.default_server)
}

/// The server of a lower-cased name on a socket, if one has it.
pub fn named(socket: &Socket, name: &[u8]) -> Option<ServerId> {
    let by_regex = || socket.hosts.regexes().find(|(regex, _)| regex.is_match(name));
    socket.hosts.find(name).or_else(|| by_regex().map(|(_, id)| id)).copied()
}

/// What the search for a location found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    Location(LocationId),
    /// The path lacks only the slash of a location that passes requests on: redirect there.
    LacksSlash(LocationId),
    /// No location takes the path: the server's own settings hold.
    Server,
}

/// The locations that a worker found last, each in the place that its hash says: with the server and the
/// path, what was found depends on nothing but the configuration. So many locations cost as little as few.
#[derive(Default)]
pub struct Memo(RefCell<Places>);

#[derive(Default)]
struct Places {
    hasher: RandomState,
    known: Vec<Option<Known>>,
}

struct Known {
    server: ServerId,
    uri: Box<[u8]>,
    search: Search,
}

/// What a search found, and the expressions that matched on the way: the last of them with groups sets `$1`.
#[derive(Clone)]
struct Search {
    found: Found,
    matched: Rc<[Regex]>,
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memo").finish_non_exhaustive()
    }
}

impl Memo {
    fn find(&self, conf: &Config, server: ServerId, uri: &[u8]) -> Search {
        let search = || {
            let mut matched = Vec::new();
            let found = in_set(conf, &conf.server(server).locations, uri, &mut matched);
            Search { found: found.unwrap_or(Found::Server), matched: matched.into() }
        };
        if uri.len() > limits::LOCATION_MEMO_BYTES {
            return search();
        }
        let Places { hasher, known } = &mut *self.0.borrow_mut();
        known.resize_with(limits::LOCATION_MEMO, || None);
        let hash = hasher.hash_one((server.0, uri));
        let place = &mut known[usize::try_from(hash).unwrap_or(0) % limits::LOCATION_MEMO];
        match place {
            Some(known) if known.server == server && &*known.uri == uri => known.search.clone(),
            _ => place.insert(Known { server, uri: uri.into(), search: search() }).search.clone(),
        }
    }
}

/// The location for the exchange's path.
///
/// Exact, then the longest prefix and the locations nested in it, then regexes in the order
/// written unless the prefix forbids them.
pub fn location(exchange: &mut Exchange) -> Found {
    let conf = Rc::clone(&exchange.conf);
    let Search { found, matched } =
        conf.locations_found.find(&conf, exchange.server, &exchange.uri);
    if !matched.is_empty() {
        let uri = std::mem::take(&mut exchange.uri);
        for regex in &*matched {
            regex.matches(&uri, exchange);
        }
        exchange.uri = uri;
    }
    found
}

fn in_set(conf: &Config, set: &LocationSet, uri: &[u8], matched: &mut Vec<Regex>) -> Option<Found> {
    if let Some(id) = set.exact.get(uri) {
        return Some(Found::Location(*id));
    }
    if let Some(id) = lacking_slash(conf, set, uri) {
        return Some(Found::LacksSlash(id));
    }
    let prefix = set.prefixes.iter().find(|(path, _)| uri.starts_with(path)).map(|(_, id)| *id);
    let mut best = prefix;
    if let Some(id) = prefix {
        let location = conf.location(id);
        match in_set(conf, &location.locations, uri, matched) {
            Some(Found::Location(nested)) => {
                let settled = conf.location(nested);
                // One nested with `^~` forbids the regexes beside it, not those outside.
                if settled.is_exact || settled.is_regex {
                    return Some(Found::Location(nested));
                }
                best = Some(nested);
            }
            Some(found) => return Some(found),
            None => {}
        }
        if location.no_regex {
            return best.map(Found::Location);
        }
    }
    for (regex, id) in &set.regexes {
        if regex.is_match(uri) {
            matched.push(regex.clone());
            let nested = in_set(conf, &conf.location(*id).locations, uri, matched);
            return Some(nested.unwrap_or(Found::Location(*id)));
        }
    }
    best.map(Found::Location)
}

fn lacking_slash(conf: &Config, set: &LocationSet, uri: &[u8]) -> Option<LocationId> {
    let found = set.prefixes.iter().find(|(path, id)| {
        path.strip_suffix(b"/") == Some(uri)
            && matches!(conf.location(*id).handler, Handler::Gateway(_))
    });
    // Looked for only then: most requests lack no slash.
    let has_own = || set.prefixes.iter().any(|(path, _)| path == uri);
    found.filter(|_| !has_own()).map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use crate::testing::config;

    fn chosen(locations: &str, uri: &str) -> String {
        let config = config(&format!("http {{ server {{ {locations} }} }}"));
        let mut exchange = crate::testing::exchange(config, "GET / HTTP/1.0\r\n\r\n");
        exchange.uri = uri.as_bytes().to_vec();
        match super::location(&mut exchange) {
            super::Found::Server => "server".to_owned(),
            super::Found::LacksSlash(_) => "slash".to_owned(),
            super::Found::Location(id) => {
                String::from_utf8_lossy(&exchange.conf.location(id).name).into_owned()
            }
        }
    }

    #[test]
    fn locations_are_chosen_as_nginx_documents() {
        // The example of nginx's documentation of `location`.
        let set = "location = / {} location / {} location /documents/ {}
                   location ^~ /images/ {} location ~* \\.(gif|jpg)$ {}";
        for (uri, name) in [
            ("/", "/"),
            ("/index.html", "/"),
            ("/documents/document.html", "/documents/"),
            ("/images/1.gif", "/images/"),
            ("/documents/1.JPG", "\\.(gif|jpg)$"),
        ] {
            assert_eq!(chosen(set, uri), name, "{uri}");
        }
    }

    #[test]
    fn what_is_remembered_sets_the_groups_again() {
        let config = config("http { server { location ~ ^/(a|b)/(.*)$ { } location ~ ^/c { } } }");
        let mut exchange = crate::testing::exchange(config, "GET / HTTP/1.0\r\n\r\n");
        for _ in 0..2 {
            for (uri, second) in [("/a/one", Some("one")), ("/b/two", Some("two")), ("/c", None)] {
                exchange.uri = uri.as_bytes().to_vec();
                assert!(matches!(super::location(&mut exchange), super::Found::Location(_)));
                assert_eq!(exchange.captures.get(2), second.map(str::as_bytes), "{uri}");
            }
        }
    }

    #[test]
    fn nested_locations_are_searched_before_outer_regexes_are() {
        let set = "location /a/ { location /a/b/ {} location ~ x$ {} } location ~ y$ {}";
        for (uri, name) in [
            ("/a/1", "/a/"),
            ("/a/b/1", "/a/b/"),
            ("/a/b/x", "x$"),
            ("/a/b/y", "y$"),
            ("/c", "server"),
        ] {
            assert_eq!(chosen(set, uri), name, "{uri}");
        }
    }
}
