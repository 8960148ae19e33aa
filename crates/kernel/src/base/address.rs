//! Addresses as the configuration writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

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
