//! Addresses as configurations and requests write them.

use super::texts;
use memchr::memchr;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use yorozu_conf::value;

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

/// An address without brackets or port.
pub fn ip(text: &[u8]) -> Option<IpAddr> {
    v4(text).map(IpAddr::V4).or_else(|| v6(text).map(IpAddr::V6))
}

/// An address of IPv4 but 255.255.255.255.
///
/// # Source
/// nginx, `ngx_inet_addr`: octets are decimal, whatever zeros they begin with, and 0 where they have no digit.
pub fn v4(text: &[u8]) -> Option<Ipv4Addr> {
    let (mut bits, mut octet, mut dots) = (0_u32, 0_u32, 0);
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                octet = octet * 10 + u32::from(byte - b'0');
                if octet > 255 {
                    return None;
                }
            }
            b'.' => {
                bits = bits << 8 | octet;
                octet = 0;
                dots += 1;
            }
            _ => return None,
        }
    }
    let address = Ipv4Addr::from_bits(bits << 8 | octet);
    (dots == 3 && address != Ipv4Addr::BROADCAST).then_some(address)
}

/// An address of IPv6.
///
/// # Source
/// nginx, `ngx_inet6_addr`: a colon at the beginning or the end is passed over, and `::` is at least one word.
fn v6(text: &[u8]) -> Option<Ipv6Addr> {
    let (mut words, mut count) = ([0_u16; 8], 0);
    let (mut word, mut digits) = (0_u16, 0);
    let (mut zeros, mut behind_colon) = (None, None);
    let mut rest = text.strip_prefix(b":").unwrap_or(text);
    while let Some((byte, behind)) = rest.split_first() {
        match byte {
            b':' if digits > 0 => {
                words[count] = word;
                count += 1;
                if count == words.len() {
                    return None;
                }
                (word, digits, behind_colon) = (0, 0, Some(behind));
            }
            b':' if zeros.is_none() => (zeros, behind_colon) = (Some(count), Some(behind)),
            b'.' if digits > 0 && count + 2 <= words.len() => {
                let [a, b, c, d] = v4(behind_colon?)?.octets();
                words[count] = u16::from_be_bytes([a, b]);
                count += 1;
                word = u16::from_be_bytes([c, d]);
                break;
            }
            _ => {
                digits += 1;
                let digit = char::from(*byte).to_digit(16).filter(|_| digits <= 4)?;
                word = word << 4 | u16::try_from(digit).ok()?;
            }
        }
        rest = behind;
    }
    if digits == 0 && zeros.is_none() {
        return None;
    }
    words[count] = word;
    count += 1;
    match zeros {
        Some(start) if count < words.len() => {
            let missing = words.len() - count;
            words.copy_within(start..count, start + missing);
            words[start..start + missing].fill(0);
        }
        None if count == words.len() => {}
        _ => return None,
    }
    Some(words.into())
}

/// An address with or without a port; the port is 0 without.
///
/// # Source
/// nginx, `ngx_parse_addr_port`; brackets without a port since 1.27.3.
pub fn with_port(text: &[u8]) -> Option<SocketAddr> {
    if let Some(ip) = ip(text) {
        return Some((ip, 0).into());
    }
    let (host, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let (host, behind) = rest.split_at(memchr(b']', rest)?);
            match behind {
                b"]" => return Some((ip(host)?, 0).into()),
                _ => (host, behind.strip_prefix(b"]:")?),
            }
        }
        None => {
            let (host, behind) = text.split_at(memchr(b':', text)?);
            (host, &behind[1..])
        }
    };
    let port = u16::try_from(value::number(port)?).ok().filter(|port| *port > 0)?;
    Some((ip(host)?, port).into())
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
        let address = v6(bare.as_bytes()).ok_or("invalid IPv6 address")?;
        return Ok(vec![(address, port).into()]);
    }
    if host.is_empty() {
        return Err("no host");
    }
    if let Some(address) = ip(host.as_bytes()) {
        return Ok(vec![(address, port).into()]);
    }
    let mut found = texts::host(host, port);
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err("host not found") } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_ports() {
        let shown = |text: &str| with_port(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(shown("192.0.2.1").as_deref(), Some("192.0.2.1:0"));
        assert_eq!(shown("192.0.2.1:80").as_deref(), Some("192.0.2.1:80"));
        assert_eq!(shown("2001:db8::1").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]:80").as_deref(), Some("[2001:db8::1]:80"));
        assert_eq!(shown("[192.0.2.01]:080").as_deref(), Some("192.0.2.1:80"));
        assert_eq!(shown("192.0.2.1:0"), None);
        assert_eq!(shown("192.0.2.1:+80"), None);
        assert_eq!(shown("192.0.2.1:65536"), None);
        assert_eq!(shown("[2001:db8::1]x"), None);
        assert_eq!(shown("[[2001:db8::1]]"), None);
        assert_eq!(shown("[2001:db8::1"), None);
        assert_eq!(shown("unknown"), None);
        assert_eq!(shown(""), None);
    }

    #[test]
    fn octets_may_begin_with_zeros() {
        let shown = |text: &str| ip(text.as_bytes()).map(|address| address.to_string());
        let table = [
            ("10.1.2.3", Some("10.1.2.3")),
            ("010.001.0000002.3", Some("10.1.2.3")),
            ("1..2.", Some("1.0.2.0")),
            ("256.1.2.3", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("255.255.255.255", None),
            ("0x1.2.3.4", None),
            ("", None),
            ("::", Some("::")),
            ("::1", Some("::1")),
            (":1::2", Some("1::2")),
            ("1::", Some("1::")),
            ("1:2:3:4:5:6:7:8", Some("1:2:3:4:5:6:7:8")),
            ("1:2:3:4:5:6:7", None),
            ("1:2:3:4:5:6:7:8:9", None),
            ("1:2:3:4:5:6:7::", None),
            ("1::2::3", None),
            ("0001:0FfF::", Some("1:fff::")),
            ("00001::", None),
            ("::ffff:010.1.2.3", Some("::ffff:10.1.2.3")),
            ("1:2:3:4:5:6:7:1.2.3.4", None),
            ("1:2:3:4:5:6:1.2.3.4", Some("1:2:3:4:5:6:102:304")),
            ("::1%1", None),
            ("[::1]", None),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_route_to_this_machine_takes_large_datagrams() {
        for peer in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            let bytes = route_datagram_bytes(peer.parse().unwrap()).unwrap();
            assert!(bytes > 16_000, "{peer}: {bytes}");
        }
    }
}
