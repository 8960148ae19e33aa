//! Addresses that proxies in front name in fields of the request.

use super::Exchange;
use crate::base::address;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

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

/// Whether a request comes from this machine, and does not say that a proxy here passed it on for another one. An address that a
/// field names is a claim: the connection's own counts.
pub fn is_from_here(exchange: &Exchange) -> bool {
    let ip = exchange.remote.ip();
    let is_claimed = !Rc::ptr_eq(&exchange.remote, &exchange.client.remote);
    let own = exchange.client.local.map(|address| address.ip());
    let is_here = ip.is_none_or(|ip| ip.is_loopback() || Some(ip) == own);
    let is_passed_on = || {
        exchange.client.proxied.get().is_some()
            || OF_PROXIES.iter().any(|name| exchange.request.field(name).is_some())
    };
    is_here && !is_claimed && !is_passed_on()
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
    let lines: Vec<&[u8]> = exchange.request.values(field).take(lines).collect();
    let mut found = None;
    // From the proxy nearest to us to the farthest.
    for line in lines.into_iter().rev() {
        let mut rest = Some(line);
        while let Some(list) = rest {
            let (before, text) = last_member(list);
            let Some(address) = address::with_port(text) else { return found };
            found = Some(address);
            if !is_recursive || !is_trusted(address.ip()) {
                return found;
            }
            rest = before;
        }
    }
    found
}

/// The last member of a list, and what stands before it.
///
/// # Source
/// nginx, `ngx_http_get_forwarded_addr_internal`: spaces and commas part, except as the first byte.
fn last_member(list: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let is_part = |byte: &u8| !matches!(byte, b' ' | b',');
    let Some(behind) = list.get(1..) else { return (None, list) };
    let end = behind.iter().rposition(is_part).map_or(1, |at| at + 2);
    match behind[..end - 1].iter().rposition(|byte| !is_part(byte)) {
        Some(at) => (Some(&list[..=at]), &list[at + 2..end]),
        None => (None, &list[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_and_commas_part_members() {
        let members = |list: &'static str| {
            let mut found = Vec::new();
            let mut rest = Some(list.as_bytes());
            while let Some(list) = rest {
                let (before, text) = last_member(list);
                found.push(std::str::from_utf8(text).unwrap());
                rest = before;
            }
            found
        };
        assert_eq!(members("a, b c,d ,"), ["d", "c", "b", "a"]);
        assert_eq!(members(""), [""]);
        assert_eq!(members("a"), ["a"]);
        assert_eq!(members(",a b"), ["b", ",a"]);
        assert_eq!(members(", "), [","]);
    }
}
