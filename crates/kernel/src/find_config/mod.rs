//! Which server answers for an authority, and which location for a path.

pub mod memo;

use crate::config::regex::{Regex, Undecided};
use crate::config::servers::{LocationId, LocationSet, ServerId, Socket};
use crate::exchange::conf::{Config, WorkerConf};
use crate::exchange::{Client, Exchange};
pub use memo::Found;
use memo::Search;
use std::rc::Rc;

/// The server for a lower-cased host on a listening socket.
///
/// Captures of a regex name are set on the exchange.
pub fn server(exchange: &mut Exchange) -> ServerId {
    // Not by a copy: to count one more who has it is dear.
    let host = std::mem::take(&mut exchange.request.host);
    let found = server_of(exchange, &host);
    exchange.request.host = host;
    // One that is in doubt is refused there.
    let found = found.unwrap_or_default();
    found.unwrap_or_else(|| exchange.conf.socket(&exchange.client).default_server)
}

/// The server of a lower-cased name, if one has it.
///
/// # Errors
/// It cannot be told; the exchange is in doubt.
pub fn server_of(exchange: &mut Exchange, host: &[u8]) -> Result<Option<ServerId>, Undecided> {
    let conf = Rc::clone(&exchange.conf);
    let hosts = &conf.socket(&exchange.client).hosts;
    if let Some(id) = hosts.find(host) {
        return Ok(Some(*id));
    }
    for (regex, id) in hosts.regexes_for(host) {
        if regex.matches(host, exchange)? {
            return Ok(Some(*id));
        }
    }
    Ok(None)
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
    let merges = conf.location(conf.server(first).conf).http_core().merge_slashes;
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
    let socket = conf.socket(client);
    let name = client.tls.get().and_then(|session| session.server_name());
    // A handshake under a name in doubt was refused; after a reload its requests are.
    let found = name.and_then(|name| named(socket, name).unwrap_or_default());
    found.unwrap_or(socket.default_server)
}

/// The server of a lower-cased name on a socket, if one has it.
///
/// # Errors
/// It cannot be told.
pub fn named(socket: &Socket, name: &[u8]) -> Result<Option<ServerId>, Undecided> {
    if let Some(id) = socket.hosts.find(name) {
        return Ok(Some(*id));
    }
    for (regex, id) in socket.hosts.regexes_for(name) {
        if regex.is_match(name)? {
            return Ok(Some(*id));
        }
    }
    Ok(None)
}

/// The servers of a lower-cased host, on whatever socket: those that have its name, and where none has, a default server
/// without names.
pub fn servers_of_host(conf: &Config, host: &[u8]) -> Vec<ServerId> {
    let mut found = Vec::new();
    for socket in conf.sockets.iter().filter(|socket| !socket.options.is_control) {
        let id = match named(socket, host) {
            Ok(Some(id)) => id,
            Ok(None) if !conf.server(socket.default_server).has_names() => socket.default_server,
            // What cannot be told is another's.
            Ok(None) | Err(_) => continue,
        };
        if !found.contains(&id) {
            found.push(id);
        }
    }
    found
}

/// The location for the exchange's path.
///
/// Exact, then the longest prefix and the locations nested in it, then regexes in the order
/// written unless the prefix forbids them.
///
/// # Errors
/// It cannot be told; the exchange is in doubt.
pub fn location(exchange: &mut Exchange) -> Result<Found, Undecided> {
    let conf = Rc::clone(&exchange.conf);
    let (server, uri) = (exchange.server, &exchange.uri[..]);
    let search = || {
        let mut matched = Vec::new();
        let found = in_set(&conf, &conf.server(server).locations, uri, &mut matched);
        Search { found: found.map(|found| found.unwrap_or(Found::Server)), matched: matched.into() }
    };
    let Search { found, matched } = conf.locations_found.find(server, uri, search);
    if !matched.is_empty() {
        let uri = std::mem::take(&mut exchange.uri);
        // Of one that came to no end this leaves the doubt.
        let again = matched.iter().try_for_each(|regex| regex.matches(&uri, exchange).map(drop));
        exchange.uri = uri;
        again?;
    }
    found
}

fn in_set(
    conf: &Config,
    set: &LocationSet,
    uri: &[u8],
    matched: &mut Vec<Regex>,
) -> Result<Option<Found>, Undecided> {
    if let Some(id) = set.exact.get(uri) {
        return Ok(Some(Found::Location(*id)));
    }
    if let Some(id) = lacking_slash(conf, set, uri) {
        return Ok(Some(Found::LacksSlash(id)));
    }
    let prefix = set.prefixes.longest(uri).copied();
    let mut best = prefix;
    if let Some(id) = prefix {
        let location = conf.location(id);
        match in_set(conf, &location.locations, uri, matched)? {
            Some(Found::Location(nested)) => {
                let settled = conf.location(nested);
                // One nested with `^~` forbids the regexes beside it, not those outside.
                if settled.is_exact || settled.is_regex {
                    return Ok(Some(Found::Location(nested)));
                }
                best = Some(nested);
            }
            Some(found) => return Ok(Some(found)),
            None => {}
        }
        if location.no_regex {
            return Ok(best.map(Found::Location));
        }
    }
    for place in &*set.regex_set.candidates(uri) {
        let (regex, id) = &set.regexes[*place as usize];
        let is_match = regex.is_match(uri);
        if is_match != Ok(false) {
            matched.push(regex.clone());
        }
        if is_match? {
            let nested = in_set(conf, &conf.location(*id).locations, uri, matched)?;
            return Ok(Some(nested.unwrap_or(Found::Location(*id))));
        }
    }
    Ok(best.map(Found::Location))
}

/// Where one of both kinds passes requests on, the exact one is meant, if there is one.
fn lacking_slash(conf: &Config, set: &LocationSet, uri: &[u8]) -> Option<LocationId> {
    let exact = set.exact_folders.get_with_slash(uri).copied();
    let prefix = set.prefixes.get_with_slash(uri).copied();
    let found = exact.or(prefix)?;
    let passes_on = |id: LocationId| conf.location(id).handler.is_gateway();
    let is_lacking =
        (passes_on(found) || prefix.is_some_and(passes_on)) && set.prefixes.get(uri).is_none();
    is_lacking.then_some(found)
}
