//! Invalidation: what a request that may have changed a page does to the stored one.

use super::directives::Invalidate;
use super::key;
use super::plan::Plan;
use super::settings::Conf;
use crate::protocol::codec::Head;
use std::sync::Arc;
use yorozu_cache::{Key, Making, Purge, PurgeMode, Zone};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::logging::error::{self, Level};

/// Removes the stored page of the request's URL after the upstream answered `status` to a method that is
/// not known to be safe; all variants, under GET and HEAD.
///
/// # Source
/// RFC 9111, section 4.4. nginx does not do it.
pub async fn after(exchange: &mut Exchange, conf: &Conf, status: u16) {
    let method = exchange.request.method_text();
    let is_unsafe = !is_safe(method) && !conf.cache_methods.admits(method);
    let is_asked = conf.cache_invalidate != Invalidate::Off;
    if !is_asked || !is_unsafe || !(200..400).contains(&status) {
        return;
    }
    let Ok(Some(zone)) = key::zone(exchange, conf) else { return };
    let has_method = conf.cache_key.as_ref().is_none_or(|key| key.has_request_method());
    let methods: &[&'static [u8]] = if has_method { &[b"GET", b"HEAD"] } else { &[b"GET"] };
    for method in methods {
        let key = key::with_method(exchange, conf, method);
        let own = posted(exchange).filter(|own| Arc::ptr_eq(&own.zone, &zone));
        let takes_all = conf.cache_invalidate == Invalidate::On;
        // First: it applies to what is stored from here on; what was stored before is found.
        zone.changed(&key, takes_all, own.as_ref().map(|own| &*own.making));
        let stored = zone.stored_of(&key);
        if stored.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let (zone, now) = (Arc::clone(&zone), exchange.now());
        let removed = tokio::task::spawn_blocking(move || {
            if !takes_all && !says_its_lifetime(&zone, &key, stored, now) {
                return Ok(());
            }
            let own = own.as_ref().map(|own| &*own.making);
            zone.purge_but(&[Purge::Page(key)], PurgeMode::Hard, own).map(drop)
        });
        if let Ok(Err(problem)) = removed.await {
            error::request(exchange, Level::Crit, &problem.to_string());
        }
    }
}

/// Whether the page says itself how long it is fresh, in any of its `stored` variants. `true` for a page that is not
/// found while its variants are unknown. Blocks.
fn says_its_lifetime(zone: &Zone, page: &Key, stored: Option<Vec<Key>>, now: i64) -> bool {
    /// Variants that are looked at; chosen: all of a page have their lifetime from one place.
    const LOOKED_AT: usize = 16;
    let is_by_operator = |key: &Key| {
        let in_memory = zone.peek(key);
        let found = in_memory.or_else(|| zone.load(key, now).ok()?.map(|(entry, _)| entry));
        found.map(|entry| entry.head.is_by_operator)
    };
    match stored {
        Some(keys) => keys.iter().take(LOOKED_AT).any(|key| is_by_operator(key) == Some(false)),
        None => is_by_operator(page) != Some(true),
    }
}

/// An answer that may be stored under another method than its own.
#[derive(Clone)]
pub struct Posted {
    zone: Arc<Zone>,
    making: Arc<Making>,
}

/// The upstream is about to be asked with a POST whose answer may be stored for GET.
pub fn begin(exchange: &mut Exchange, conf: &Conf) {
    if conf.cache_content_location && exchange.request.method == Method::Post {
        if let Ok(Some(zone)) = key::zone(exchange, conf) {
            let making = Arc::new(zone.begin());
            exchange.pass.put(Posted { zone, making });
        }
    }
}

/// What the answer to the POST under way began as.
fn posted(exchange: &Exchange) -> Option<Posted> {
    let of_plan = |plan: &Plan| {
        let making = Arc::clone(plan.making.as_ref()?);
        Some(Posted { zone: Arc::clone(&plan.zone), making })
    };
    exchange.pass.of::<Posted>().cloned().or_else(|| exchange.pass.of::<Plan>().and_then(of_plan))
}

/// `*_cache_content_location`: lets the answer to a POST be stored for GET, if it says that it is the page
/// of the request's own URL.
///
/// # Source
/// RFC 9110, section 9.3.3; RFC 9111, section 3.
pub fn plan_for_get(exchange: &mut Exchange, conf: &Conf, head: &Head) {
    let is_asked = conf.cache_content_location && exchange.request.method == Method::Post;
    if !is_asked || head.status != 200 || !is_of_own_url(exchange, head) {
        return;
    }
    let Some(Posted { zone, making }) = posted(exchange) else { return };
    let key = key::with_method(exchange, conf, b"GET");
    exchange.pass.put(Plan { making: Some(making), ..Plan::new(zone, key) });
}

/// Whether `Content-Location` names the request's own URL.
fn is_of_own_url(exchange: &Exchange, head: &Head) -> bool {
    let Some(location) = head.field(b"content-location") else { return false };
    let target = exchange.request.target();
    let path = match location.strip_prefix(b"//").or_else(|| {
        let rest = location.strip_prefix(exchange.client.scheme())?;
        rest.strip_prefix(b"://")
    }) {
        None => &location[..],
        Some(rest) => {
            let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            if !rest[..slash].eq_ignore_ascii_case(exchange.request.authority()) {
                return false;
            }
            &rest[slash..]
        }
    };
    path == target
}

/// RFC 9110, section 9.2.1; RFC 4918; RFC 3253, section 3.6; RFC 5323. Any other may change something.
fn is_safe(method: &[u8]) -> bool {
    const SAFE: [&[u8]; 7] =
        [b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PROPFIND", b"REPORT", b"SEARCH"];
    SAFE.contains(&method)
}
