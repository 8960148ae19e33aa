//! Addresses as the configuration writes them.

use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

/// Bytes of the largest UDP payload that the route to an address takes from here; networks behind it may take less. `None` if
/// the system does not say.
pub fn route_datagram_bytes(peer: SocketAddr) -> Option<u16> {
    let (family, headers) = match peer {
        SocketAddr::V4(_) => (AddressFamily::INET, 20 + 8),
        SocketAddr::V6(_) => (AddressFamily::INET6, 40 + 8),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    // Nothing is sent.
    connect(&socket, &peer).ok()?;
    let whole = if peer.is_ipv4() { ip_mtu(&socket) } else { ipv6_mtu(&socket) };
    Some(u16::try_from(whole.ok()?).unwrap_or(u16::MAX).saturating_sub(headers))
}

/// Socket addresses of `host[:port]` that can be asked.
pub fn resolve_peer(text: &str, default_port: u16) -> Result<Vec<SocketAddr>, &'static str> {
    match text.split(':').next() {
        // All addresses are none of a peer.
        Some("*") => Err("host not found"),
        _ => resolve(text, default_port),
    }
}

/// Socket addresses of `host[:port]`; `*` is every IPv4 address.
pub fn resolve(text: &str, default_port: u16) -> Result<Vec<SocketAddr>, &'static str> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port > 0).ok_or("invalid port")?;
            (host, port)
        }
        _ => (text, default_port),
    };
    if host == "*" {
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into()]);
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Some(bare) = bare {
        let address: Ipv6Addr = bare.parse().map_err(|_| "invalid IPv6 address")?;
        return Ok(vec![(address, port).into()]);
    }
    if host.is_empty() {
        return Err("no host");
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let mut found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|_| "host not found")?.collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err("host not found") } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_this_machine_takes_large_datagrams() {
        for peer in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            let bytes = route_datagram_bytes(peer.parse().unwrap()).unwrap();
            assert!(bytes > 16_000, "{peer}: {bytes}");
        }
    }
}
