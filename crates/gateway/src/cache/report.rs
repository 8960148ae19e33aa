//! What the cache did for a request and why: `$upstream_cache_status`, and `Cache-Status` of RFC 9211.

use super::directives::DEFAULT_NAME;
use super::key;
use super::plan::Plan;
use super::settings;
use crate::protocol::family::Family;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::variables::put;

/// Whether some answer of the location names this cache.
pub fn is_on(location: &LocationConf, families: &[&Family]) -> bool {
    let all = families.iter().map(|family| settings::with_prefix(location, family));
    settings::of(location).into_iter().chain(all).any(|conf| conf.cache_status.0.is_some())
}

/// Adds `Cache-Status`, where the location names this cache; `families`: those whose pages may be stored.
pub fn filter(exchange: &mut Exchange, response: &mut Response, families: &[&Family]) {
    if !exchange.cache_report.is_made() {
        return;
    }
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let name = match settings::of(location) {
        Some(conf) => conf.cache_status.0.as_ref(),
        // The page of an error, behind a location that has one.
        None => {
            let mut all = families.iter().map(|family| settings::with_prefix(location, family));
            all.find_map(|conf| conf.cache_status.0.as_ref())
        }
    };
    let Some(name) = name else { return };
    let mut value = Vec::with_capacity(64);
    exchange.cache_report.append(name, &mut value);
    response.add(Bytes::from_static(b"Cache-Status"), value);
}

/// `$upstream_cache_key`: the key that the cache was asked by.
pub fn append_key(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    if let Some(plan) = exchange.pass.of::<Plan>() {
        return put(out, plan.key.page().as_bytes());
    }
    let location = exchange.conf.location(exchange.location);
    let conf = settings::of(location).filter(|_| exchange.cache_report.is_made());
    conf.is_some_and(|conf| {
        let key = exchange.peek(|shadow| key::primary(shadow, conf));
        put(out, key.as_bytes())
    })
}

/// `$cache_status`: the member that `*_cache_status` sends, under the default name.
pub fn append_status(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let report = &exchange.cache_report;
    if report.is_made() {
        report.append(DEFAULT_NAME, out);
    }
    report.is_made()
}

/// `$cache_detail`: why the upstream's answer was not stored.
pub fn append_detail(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let detail = exchange.cache_report.not_stored;
    detail.is_some_and(|why| {
        out.extend_from_slice(why.name().as_bytes());
        true
    })
}
