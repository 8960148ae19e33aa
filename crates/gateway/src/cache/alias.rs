//! Under which keys the pages of a URL are purged.
//!
//! A key may hold more than the URL says: a device, a language, a slice. A purge names a URL, and nothing of these. So
//! what is stored under such a key has an alias: the key of the URL's page for a client that says nothing of itself.
//! Which variables depend on the client is not read off the configuration: the request is tried once more without its fields.

use super::key;
use super::settings::{self, Conf};
use super::unkeyed;
use crate::protocol;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_cache::Key;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;

/// What a client that says nothing of itself says: many sites refuse requests without it.
const USER_AGENT: &[u8] = b"Mozilla/5.0 (compatible; yorozu)";

/// A request for the same URL by a client that says nothing of itself.
///
/// # Errors
/// The status of the answer, where it does not come to a gateway.
pub fn plain(exchange: &Exchange) -> Result<Box<Exchange>, u16> {
    let client = Rc::new(exchange.client.at(([127, 0, 0, 1], 0).into()));
    unkeyed::led_to_gateway(exchange, &client, |request| {
        request.become_get();
        request.drop_content();
        request.retain_fields(|name| name.eq_ignore_ascii_case(b"host"));
        request.add_field(b"User-Agent", USER_AGENT);
    })
}

/// The alias of what is stored under the request's key, as a tag; `None` if it needs none.
pub fn tag(exchange: &Exchange, conf: &Conf, own: &Key) -> Option<Bytes> {
    let method: &[u8] = if exchange.request.method == Method::Head { b"HEAD" } else { b"GET" };
    let alias = of_plain(exchange, conf, method)?;
    (alias != own.page()).then(|| alias.alias())
}

/// The keys under which the pages of the request's URL are purged: for GET and HEAD, with what this client says and without.
pub fn keys(exchange: &mut Exchange, conf: &Conf) -> Vec<Key> {
    let mut found = Vec::new();
    for method in [&b"GET"[..], b"HEAD"] {
        let own = key::with_method(exchange, conf, method);
        for key in [Some(own), of_plain(exchange, conf, method)].into_iter().flatten() {
            if !found.contains(&key) {
                found.push(key);
            }
        }
    }
    found
}

/// The key of the URL for a client that says nothing of itself; `None` where it is the same for all, or such a client gets to
/// no cache.
fn of_plain(exchange: &Exchange, conf: &Conf, method: &'static [u8]) -> Option<Key> {
    // Rules that look at the client may have led it to another location.
    let is_led_by_url = exchange.is_uri_as_sent && !exchange.is_internal;
    if (is_led_by_url && is_of_url(exchange, conf)) || is_part(exchange) {
        return None;
    }
    let mut plain = plain(exchange).ok()?;
    let config = Rc::clone(&plain.conf);
    let conf =
        settings::of(config.location(plain.location)).filter(|conf| conf.zone().is_some())?;
    Some(key::with_method(&mut plain, conf, method))
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
