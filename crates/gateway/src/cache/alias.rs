//! Under which keys the pages of a URL are purged.
//!
//! A key may hold more than the URL says: a device, a language, a slice. A purge names a URL, and nothing of these. So
//! what is stored under such a key has aliases: the key of the URL's page for a client that says nothing of itself, and the
//! URL. Which variables depend on the client is not read off the configuration: the request is tried once more without its
//! fields.

use super::key;
use super::settings::{self, Conf};
use super::unkeyed;
use crate::protocol;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_cache::Key;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;
use yorozu_wire::h1::Version;

/// What a client that says nothing of itself says: many sites refuse requests without it.
const USER_AGENT: &[u8] = b"Mozilla/5.0 (compatible; yorozu)";

/// A request for the same URL by a client that says nothing of itself, as far as it comes: where rules refuse it, its
/// location says which key it would have had. `None` if its path is invalid.
pub fn plain(exchange: &Exchange) -> Option<Box<Exchange>> {
    let client = Rc::new(exchange.client.at(([127, 0, 0, 1], 0).into()));
    let walked = unkeyed::walked(exchange, &client, |request| {
        request.become_get();
        request.version = Version::V11;
        request.drop_content();
        request.retain_fields(|name| name.eq_ignore_ascii_case(b"host"));
        request.normalize_authority();
        request.add_field(b"User-Agent", USER_AGENT);
    });
    walked.map(|(asked, _)| asked)
}

/// The aliases of what is stored under the request's key, as tags.
pub fn tags(exchange: &Exchange, conf: &Conf, own: &Key) -> Vec<Bytes> {
    if is_for_all(exchange, conf) {
        return Vec::new();
    }
    if is_part(exchange) {
        return vec![of_part(exchange).alias()];
    }
    let method: &'static [u8] =
        if exchange.request.method == Method::Head { b"HEAD" } else { b"GET" };
    match in_cache(exchange, |plain, conf| key::with_method(plain, conf, method)) {
        Some(key) if key == own.page() => Vec::new(),
        Some(key) => vec![key.alias(), of_url(exchange).alias()],
        None => vec![of_url(exchange).alias()],
    }
}

/// The keys under which the pages of the request's URL are purged: for GET and HEAD, with what this client says and without.
pub fn keys(exchange: &mut Exchange, conf: &Conf) -> Vec<Key> {
    let mut found = key::of_get_and_head(exchange, |exchange| key::primary(exchange, conf));
    if !is_for_all(exchange, conf) {
        let plain = in_cache(exchange, |plain, conf| {
            key::of_get_and_head(plain, |plain| key::primary(plain, conf))
        });
        let mut others = plain.unwrap_or_default();
        others.retain(|key| !found.contains(key));
        found.append(&mut others);
    }
    found.push(of_url(exchange));
    found
}

/// The key that no page has, and every page as an alias that is not under the key of a plain request: the URL, whatever the
/// scheme.
pub fn of_url(exchange: &Exchange) -> Key {
    Key::of_url(&exchange.request.host, &[exchange.request.target()])
}

/// The same of a part of another URL's page.
fn of_part(exchange: &Exchange) -> Key {
    let mark: &[u8] = if exchange.args.is_empty() { b"" } else { b"?" };
    Key::of_url(&exchange.request.host, &[&exchange.uri, mark, &exchange.args])
}

/// What `work` finds out of the [`plain`] request, with the settings of the cache it gets to; `None` if it gets to none.
fn in_cache<T>(exchange: &Exchange, work: impl FnOnce(&mut Exchange, &Conf) -> T) -> Option<T> {
    let mut plain = plain(exchange)?;
    let config = Rc::clone(&plain.conf);
    let conf = settings::of(config.location(plain.location))?;
    conf.zone().is_some().then(|| work(&mut plain, conf))
}

/// Whether the key holds nothing but the URL, and no rule that looks at the client can have led it here.
fn is_for_all(exchange: &Exchange, conf: &Conf) -> bool {
    exchange.is_uri_as_sent && !exchange.is_internal && is_of_url(exchange, conf)
}

/// Whether it is a part of another URL's page, with a URL of its own that no client asked for. Slices have that of the whole.
fn is_part(exchange: &Exchange) -> bool {
    exchange.is_subrequest() && exchange.pass.slice.get().is_none()
}

/// Whether the key can be told to hold nothing but the URL.
fn is_of_url(exchange: &Exchange, conf: &Conf) -> bool {
    match &conf.cache_key {
        Some(template) => template.is_of_url(),
        None => {
            let protocol = protocol::of(exchange.conf.location(exchange.location));
            protocol.is_none_or(|protocol| !protocol.family().has_default_key)
        }
    }
}
