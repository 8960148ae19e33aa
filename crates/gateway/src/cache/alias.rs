//! Under which keys the pages of a URL are purged.
//!
//! A purge names a URL. Keys that hold nothing but what the URL says are made of it, whatever rules lead its clients where:
//! all such keys of the configuration, in their zones ([`by_url`]). A page under any other key - a device, a language, a
//! slice, another method - has aliases: the URL, and the key of its page for a client that says nothing of itself. Which
//! of the two a page is follows from the same list, so none is missed.

use super::settings::{self, Conf};
use super::{cleaned, key};
use crate::protocol;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Key, Zone};
use yorozu_http::field::{Name, Value};
use yorozu_http::uri::{normalize, with_args};
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::{Config, KeyedByUrl, LocationConf};
use yorozu_kernel::exchange::request::{Method, Request};
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::{Client, Exchange, Role};
use yorozu_kernel::find_config;
use yorozu_wire::h1::Version;

/// What a client that says nothing of itself says: many sites refuse requests without it.
const USER_AGENT: &[u8] = b"Mozilla/5.0 (compatible; yorozu)";

/// A request for the same URL by a client that says nothing of itself, as far as it comes: where rules refuse it, its
/// location says which key it would have had. `None` if its path is invalid.
pub fn plain(exchange: &Exchange) -> Option<Box<Exchange>> {
    let client = Rc::new(exchange.client.at(([127, 0, 0, 1], 0).into(), exchange.remote.scheme));
    walked(exchange, &client, |request| {
        request.become_get();
        request.version = Version::V11;
        request.drop_content();
        request.retain_fields(|name| name.eq_ignore_ascii_case(b"host"));
        request.normalize_authority();
        request.add_field(Name::USER_AGENT, &Value::new(USER_AGENT));
    })
}

/// The request of `client` after a `change`, as far as it comes without waiting for anything; `None` if its path is invalid.
fn walked(
    exchange: &Exchange,
    client: &Rc<Client>,
    change: impl FnOnce(&mut Request),
) -> Option<Box<Exchange>> {
    let mut request = exchange.request.clone();
    change(&mut request);
    let (conf, client) = (Rc::clone(&exchange.conf), Rc::clone(client));
    let mut asked = Box::new(Exchange::new(conf, client, request, RequestBody::none()));
    asked.request_id = (*exchange.id()).into();
    asked.started = exchange.started;
    asked.role = Role::Question { supposes_scripts: false };
    find_config::begin(&mut asked).ok()?;
    let start = asked.conf.engine.start;
    start(&mut asked);
    Some(asked)
}

/// The aliases of what is stored in a zone under the request's key, as tags.
pub fn tags(exchange: &Exchange, zone: &Arc<Zone>, own: &Key) -> Vec<Bytes> {
    if is_part(exchange) {
        return vec![of_part(exchange).alias()];
    }
    let own = own.page();
    if is_found_by_url(exchange, zone, &own) {
        return Vec::new();
    }
    let holds = |text: &[u8]| memchr::memmem::find(own.as_bytes(), text).is_some();
    let (path, args) = path_and_args(exchange);
    let mut urls = vec![with_args(&path, args)];
    if !args.is_empty() && !holds(args) {
        // Whatever the arguments: it is the page of all of them.
        urls.push(path.to_vec());
    }
    if exchange.uri != *path && holds(&exchange.uri) {
        // Where rules have led: a client may ask for it there.
        let args = Some(&exchange.args[..]).filter(|args| holds(args));
        urls.push(with_args(&exchange.uri, args.unwrap_or_default()));
    }
    let host = &exchange.request.host[..];
    let mut found: Vec<_> = urls.iter().map(|url| Key::of_url(host, &[url])).collect();
    if !holds(host) {
        let server = any_host(exchange);
        found.extend(urls.iter().map(|url| Key::of_url(&server, &[url])));
    }
    let method: &'static [u8] =
        if exchange.request.method == Method::Head { b"HEAD" } else { b"GET" };
    let plain = in_cache(exchange, |plain, conf| key::with_method(plain, conf, method));
    found.extend(plain.filter(|plain| *plain != own));
    found.iter().map(Key::alias).collect()
}

/// The keys of a location under which the pages of the request's URL are purged: for GET and HEAD, with what this client
/// says and without; and the URL that rules lead a plain client to. [`elsewhere`] has the others.
pub fn keys(exchange: &mut Exchange, conf: &Conf) -> Vec<Key> {
    let mut found = key::of_get_and_head(exchange, |exchange| key::primary(exchange, conf));
    let plain = in_cache(exchange, of_plain);
    let mut others = plain.unwrap_or_default();
    others.retain(|key| !found.contains(key));
    found.append(&mut others);
    found
}

/// The keys of a [`plain`] request in the cache that it leads to, and the URL there.
pub fn of_plain(plain: &mut Exchange, conf: &Conf) -> Vec<Key> {
    let mut found = key::of_get_and_head(plain, |plain| key::primary(plain, conf));
    if plain.uri != *path_and_args(plain).0 {
        found.push(Key::of_url(&plain.request.host, &[&with_args(&plain.uri, &plain.args)]));
    }
    found
}

/// Whose pages a purge may meet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scope {
    /// Those of the servers of the host that it is asked for, and of the one that is asked.
    #[default]
    Site,
    /// Every server's: the control socket's.
    All,
}

impl Scope {
    /// `None`: all.
    fn servers(self, exchange: &Exchange) -> Option<Vec<ServerId>> {
        match self {
            Self::All => None,
            Self::Site => {
                let mut servers =
                    find_config::servers_of_host(&exchange.conf, &exchange.request.host);
                servers.push(exchange.server);
                Some(servers)
            }
        }
    }

    /// The zones in which its pages may be.
    pub fn zones(self, exchange: &mut Exchange) -> Vec<Arc<Zone>> {
        let config = Rc::clone(&exchange.conf);
        let Some(servers) = self.servers(exchange) else {
            return config.zones.values().cloned().collect();
        };
        let mut found: Vec<Arc<Zone>> = Vec::new();
        let locations = servers.iter().flat_map(|id| config.locations_of(*id));
        for conf in locations.filter_map(settings::of) {
            for zone in key::zones(exchange, conf).unwrap_or_default() {
                if !found.iter().any(|known| Arc::ptr_eq(known, &zone)) {
                    found.push(zone);
                }
            }
        }
        found
    }
}

/// What else is purged for the request's URL, zone by zone: keys that hold nothing but the URL, wherever rules lead its
/// clients, and the URL, which other pages have as an alias.
pub fn elsewhere(exchange: &Exchange, scope: Scope) -> Vec<(Arc<Zone>, Key)> {
    let mut found = by_url(exchange, scope.servers(exchange).as_deref(), |asked, conf| {
        key::of_get_and_head(asked, |asked| key::primary(asked, conf))
    });
    let (path, args) = path_and_args(exchange);
    let url = with_args(&path, args);
    for host in [&exchange.request.host[..], &any_host(exchange)] {
        let alias = Key::of_url(host, &[&url]);
        found.extend(exchange.conf.zones.values().map(|zone| (Arc::clone(zone), alias.clone())));
    }
    found
}

/// In the place of the host of a page whose key does not hold it: all names of its server lead there. No host has a star.
fn any_host(exchange: &Exchange) -> Vec<u8> {
    [b"*", exchange.conf.server(exchange.server).name().as_bytes()].concat()
}

/// The path that a request was sent for, decoded, and its arguments as they were sent.
fn path_and_args(exchange: &Exchange) -> (Cow<'_, [u8]>, &[u8]) {
    let (sent, args) = exchange.request.split_target();
    let path = match normalize(sent, true) {
        Ok(normalized) => Cow::Owned(normalized.path),
        Err(_) => Cow::Borrowed(sent),
    };
    (path, args)
}

/// The same of a part of another URL's page.
fn of_part(exchange: &Exchange) -> Key {
    let url = exchange.part.as_deref().unwrap_or(&exchange.uri);
    Key::of_url(&exchange.request.host, &[url])
}

/// What `work` finds out of the [`plain`] request, with the settings of the cache it gets to; `None` if it gets to none.
fn in_cache<T>(exchange: &Exchange, work: impl FnOnce(&mut Exchange, &Conf) -> T) -> Option<T> {
    let mut plain = plain(exchange)?;
    let config = Rc::clone(&plain.conf);
    let conf = settings::of(config.location(plain.location))?;
    conf.zone().is_some().then(|| work(&mut plain, conf))
}

/// Whether a purge of the URL finds the page by its key.
fn is_found_by_url(exchange: &Exchange, zone: &Arc<Zone>, own: &Key) -> bool {
    let is_asked = exchange.request.method.is_get_or_head();
    let request = &exchange.request;
    // Only so is it found by the beginning of its URL, too, and by any spelling of its path.
    let is_plain = *path_and_args(exchange).0 == *request.split_target().0;
    if !is_asked || !is_plain || !own.as_bytes().ends_with(request.target()) {
        return false;
    }
    // A purge may be asked for at any server of its host.
    let servers = find_config::servers_of_host(&exchange.conf, &exchange.request.host);
    let found = by_url(exchange, Some(&servers), |asked, conf| vec![key::primary(asked, conf)]);
    found.iter().any(|(of, key)| Arc::ptr_eq(of, zone) && key == own)
}

/// For each zone of `servers`, or of all, and each key that holds nothing but what URLs say, what `keys` makes of the
/// request's URL.
fn by_url(
    exchange: &Exchange,
    servers: Option<&[ServerId]>,
    keys: impl Fn(&mut Exchange, &Conf) -> Vec<Key>,
) -> Vec<(Arc<Zone>, Key)> {
    let config = Rc::clone(&exchange.conf);
    let mut found: Vec<(Arc<Zone>, Key)> = Vec::new();
    exchange.peek(|asked| {
        for keyed in config.keyed_by_url.get_or_init(|| keyed_by_url(&config)) {
            let is_wanted = |servers: &[_]| keyed.servers.iter().any(|id| servers.contains(id));
            if !servers.is_none_or(is_wanted) {
                continue;
            }
            let Some(conf) = settings::of(config.location(keyed.location)) else { continue };
            asked.location = keyed.location;
            let keys = keys(asked, conf);
            for zone in key::zones(asked, conf).unwrap_or_default() {
                keys.iter().for_each(|key| add(&mut found, &zone, key));
            }
        }
    });
    found
}

/// Adds a key in a zone, once.
pub fn add(pages: &mut Vec<(Arc<Zone>, Key)>, zone: &Arc<Zone>, key: &Key) {
    if !pages.iter().any(|(of, known)| Arc::ptr_eq(of, zone) && known == key) {
        pages.push((Arc::clone(zone), key.clone()));
    }
}

/// One location of each zone and such a key, and the servers that have one.
fn keyed_by_url(config: &Config) -> Box<[KeyedByUrl]> {
    let mut found: Vec<KeyedByUrl> = Vec::new();
    let mut seen = HashMap::new();
    for id in (0..).map(ServerId).take(config.servers.len()) {
        for location in config.locations_of(id) {
            let Some(conf) = settings::of(location) else { continue };
            if conf.zone().is_none() || !is_of_url(location, conf) {
                continue;
            }
            let cleaned = location.of::<cleaned::Conf>();
            let what = format!("{:?} {:?} {cleaned:?}", conf.cache, conf.cache_key);
            let place = *seen.entry(what).or_insert_with(|| {
                found.push(KeyedByUrl { location: location.id, servers: Vec::new() });
                found.len() - 1
            });
            let servers = &mut found[place].servers;
            if servers.last() != Some(&id) {
                servers.push(id);
            }
        }
    }
    found.into()
}

/// Whether it is a part of another URL's page, with a URL of its own that no client asked for. Slices have that of the whole.
fn is_part(exchange: &Exchange) -> bool {
    exchange.is_subrequest() && exchange.pass.slice.get().is_none()
}

/// Whether the key can be told to hold nothing but the URL.
fn is_of_url(location: &LocationConf, conf: &Conf) -> bool {
    match &conf.cache_key {
        Some(template) => template.is_of_url(),
        None => {
            let protocol = protocol::of(location);
            protocol.is_none_or(|protocol| !protocol.family().has_default_key)
        }
    }
}
