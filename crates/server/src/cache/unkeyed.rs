//! Poisoning: what a request says beside its key must not decide what others get.

use super::freshness::NotStored;
use crate::exchange::Exchange;
use crate::handlers::gateway::{Conf, Head};

/// Fields by which applications and frameworks are told another URL or method than the request's.
const OVERRIDES: [&[u8]; 6] = [
    b"x-original-url",
    b"x-rewrite-url",
    b"x-original-uri",
    b"x-http-method-override",
    b"x-http-method",
    b"x-method-override",
];
/// Fields by which they are told another host.
const HOSTS: [&[u8]; 3] = [b"x-forwarded-host", b"x-host", b"x-forwarded-server"];

/// Why the answer may depend on what the key does not hold.
pub fn refusal(exchange: &Exchange, conf: &Conf, head: &Head) -> Option<NotStored> {
    let request = &exchange.request;
    let is_keyed = |name: &[u8]| conf.cache_key.as_ref().is_some_and(|key| key.has_field(name));
    // A GET with content: applications read it, and nothing of it is in the key.
    let has_content = request.is_chunked || request.content_length.is_some_and(|length| length > 0);
    if request.method.is_get_or_head() && has_content {
        return Some(NotStored::Body);
    }
    if request.known.authorization.is_some() && head.status == 401 {
        return Some(NotStored::Authorization);
    }
    let host = request.field(b"host").unwrap_or_default();
    for field in &request.fields {
        let (name, value) = (request.name(field), request.value(field));
        // By its first byte: hardly any field is one of these.
        if !matches!(name.first(), Some(b'x' | b'X')) {
            continue;
        }
        let is = |known: &&[u8]| known.eq_ignore_ascii_case(name);
        let is_misleading =
            OVERRIDES.iter().any(is) || (HOSTS.iter().any(is) && !value.eq_ignore_ascii_case(host));
        if is_misleading && !is_keyed(&name.to_ascii_lowercase()) {
            return Some(NotStored::Unkeyed);
        }
    }
    leads_to_itself(exchange, head).then_some(NotStored::Loop)
}

/// Does it redirect to the very URL of the request? Stored, it would be a loop for everybody.
fn leads_to_itself(exchange: &Exchange, head: &Head) -> bool {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
        return false;
    }
    let Some(location) = head.field(b"location") else { return false };
    let host = exchange.request.field(b"host").unwrap_or_default();
    let own = [exchange.client.scheme(), b"://", host, exchange.request.target()].concat();
    location == exchange.request.target() || location[..] == own[..]
}

/// Statuses that say something about one request, not about its URL: `*_cache_valid any` does not mean
/// them, or one client's broken request would be everybody's answer.
pub fn is_of_request(status: u16) -> bool {
    matches!(status, 400 | 401 | 407 | 408 | 411..=417 | 421 | 426 | 428 | 429 | 431 | 494..=499)
}
