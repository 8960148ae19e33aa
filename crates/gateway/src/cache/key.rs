//! What a request's page is found by: the zone, the key, the variant.

use super::sent;
use super::settings::Conf;
use crate::protocol;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Entry, EntryHead, Key, VariantId, Zone};
use yorozu_http::{field, vary};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::logging::error::{self, Level};

/// The zone the location names.
///
/// # Errors
/// The status the client gets for a name that variables spell and no zone has.
pub fn zone(exchange: &mut Exchange, conf: &Conf) -> Result<Option<Arc<Zone>>, u16> {
    let Some(name) = conf.cache.zone() else { return Ok(None) };
    let mut text = Scratch::take();
    name.append(exchange, &mut text);
    if text.is_empty() || text[..] == *b"off" {
        return Ok(None);
    }
    let found = std::str::from_utf8(&text).ok().and_then(|name| exchange.conf.zones.get(name));
    match found {
        Some(zone) if zone.fault().is_some() => Ok(None),
        Some(zone) => Ok(Some(Arc::clone(zone))),
        None => {
            let name = String::from_utf8_lossy(&text);
            error::request(exchange, Level::Error, &format!("cache \"{name}\" not found"));
            Err(500)
        }
    }
}

/// The zones that the pages of a location may be in: where variables choose one, any.
///
/// # Errors
/// As [`zone`].
pub fn zones(exchange: &mut Exchange, conf: &Conf) -> Result<Vec<Arc<Zone>>, u16> {
    let is_chosen = conf.cache.zone().is_some_and(|name| name.as_literal().is_none());
    match is_chosen {
        true => Ok(exchange.conf.zones.values().cloned().collect()),
        false => zone(exchange, conf).map(|zone| zone.into_iter().collect()),
    }
}

/// The key of the first variant.
pub fn primary(exchange: &mut Exchange, conf: &Conf) -> Key {
    let mut key = Scratch::take();
    match &conf.cache_key {
        Some(template) => template.append(exchange, &mut key),
        None => default_key(exchange, &mut key),
    }
    Key::new(Bytes::copy_from_slice(&key))
}

/// The key the request would have with another method.
pub fn with_method(exchange: &mut Exchange, conf: &Conf, method: &'static [u8]) -> Key {
    as_method(exchange, method, |exchange| primary(exchange, conf))
}

/// What `key` makes of the request as a GET and as a HEAD; one key where they are the same.
pub fn of_get_and_head(exchange: &mut Exchange, key: impl Fn(&mut Exchange) -> Key) -> Vec<Key> {
    let get = as_method(exchange, b"GET", &key);
    let head = as_method(exchange, b"HEAD", &key);
    if get == head { vec![get] } else { vec![get, head] }
}

/// Does `work` while the request has another method.
pub fn as_method<T>(
    exchange: &mut Exchange,
    method: &'static [u8],
    work: impl FnOnce(&mut Exchange) -> T,
) -> T {
    let kept = (exchange.request.method, exchange.request.method_override);
    exchange.request.method = Method::parse(method);
    exchange.request.method_override = Some(method);
    let done = work(exchange);
    (exchange.request.method, exchange.request.method_override) = kept;
    done
}

/// The protocol's own key; where it has none nginx would mix every page, and this keeps them apart.
fn default_key(exchange: &mut Exchange, key: &mut Vec<u8>) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let protocol = protocol::of(location);
    if let Some(protocol) = protocol.filter(|protocol| protocol.family().has_default_key) {
        return protocol.default_key(exchange, location, key);
    }
    key.extend_from_slice(b"http");
    key.extend_from_slice(exchange.request.method_text());
    key.extend_from_slice(&exchange.request.host);
    key.extend_from_slice(exchange.request.target());
}

/// Digest of the fields that `vary` names, as the upstream gets them.
pub fn variant_id(exchange: &mut Exchange, conf: &Conf, vary: &[u8]) -> VariantId {
    let mut selecting = Scratch::take();
    for name in field::list(vary) {
        selecting.extend(name.iter().map(u8::to_ascii_lowercase));
        selecting.push(b':');
        let start = selecting.len();
        sent::append_selecting(exchange, conf, name, &mut selecting);
        // Whatever stands in a value, it is not taken for another field.
        let length = selecting.len() - start;
        selecting.extend_from_slice(&length.to_le_bytes());
    }
    Key::variant_id(&selecting)
}

/// The key of the variant that the request selects, if it is not `entry` itself; `first`: the key of the first one.
pub(super) fn variant(
    exchange: &mut Exchange,
    conf: &Conf,
    first: &Key,
    entry: &Entry,
) -> Option<Key> {
    other_variant(exchange, conf, first, &entry.head)
}

/// As [`variant`], of a page that may still be on its way.
pub(super) fn other_variant(
    exchange: &mut Exchange,
    conf: &Conf,
    first: &Key,
    head: &EntryHead,
) -> Option<Key> {
    if head.vary.is_empty() {
        return None;
    }
    let id = variant_id(exchange, conf, &head.vary);
    if id == head.variant || is_in_language(exchange, conf, head) {
        return None;
    }
    Some(first.variant(&id))
}

/// Whether the page is in the language the request prefers, with `*_cache_vary_language`, where nothing else
/// distinguishes variants.
pub(super) fn is_in_language(exchange: &mut Exchange, conf: &Conf, head: &EntryHead) -> bool {
    let varies_by_language_alone = || head.vary.eq_ignore_ascii_case(b"accept-language");
    if !conf.cache_vary_language || !varies_by_language_alone() {
        return false;
    }
    let mut fields = head.fields.iter();
    let language = fields.find(|(name, _)| name.eq_ignore_ascii_case(b"content-language"));
    let wanted = sent::value(exchange, b"accept-language");
    language.is_some_and(|(_, language)| vary::is_preferred_language(&wanted, language))
}
