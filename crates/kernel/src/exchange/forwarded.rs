//! Addresses that proxies in front name in fields of the request.

use super::Exchange;
use std::net::{IpAddr, SocketAddr};

/// Fields that a proxy leaves.
const OF_PROXIES: [&[u8]; 7] = [
    b"cf-connecting-ip",
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
];

/// Whether a request comes from this machine, and does not say that a proxy here passed it on for another one.
pub fn is_from_here(exchange: &Exchange) -> bool {
    let ip = exchange.remote.ip();
    let own = exchange.client.local.map(|address| address.ip());
    let is_here = ip.is_none_or(|ip| ip.is_loopback() || Some(ip) == own);
    let is_passed_on = || {
        exchange.client.proxied.get().is_some()
            || OF_PROXIES.iter().any(|name| exchange.request.field(name).is_some())
    };
    is_here && !is_passed_on()
}

/// The address that a field like `X-Forwarded-For` names last; if it `is_recursive`, the last one that is no trusted
/// proxy's.
pub fn named(
    exchange: &Exchange,
    field: &[u8],
    is_recursive: bool,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    // As nginx: of other fields the first line alone counts.
    let lines = if field.eq_ignore_ascii_case(b"x-forwarded-for") { usize::MAX } else { 1 };
    let values: Vec<&[u8]> = exchange.request.values(field).take(lines).collect();
    let mut found = None;
    // From the proxy nearest to us to the farthest.
    for text in values.join(&b","[..]).rsplit(|byte| *byte == b',') {
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let Some(address) = parse(text) else { break };
        found = Some(address);
        if !is_recursive || !is_trusted(address.ip()) {
            break;
        }
    }
    found
}

/// An address with or without a port; the port is 0 without.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some((ip, 0).into());
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_ports() {
        let shown = |text: &str| parse(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(shown("192.0.2.1").as_deref(), Some("192.0.2.1:0"));
        assert_eq!(shown("192.0.2.1:80").as_deref(), Some("192.0.2.1:80"));
        assert_eq!(shown("2001:db8::1").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]:80").as_deref(), Some("[2001:db8::1]:80"));
        assert_eq!(shown("unknown"), None);
        assert_eq!(shown(""), None);
    }
}
