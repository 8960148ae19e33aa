//! Addresses and networks, as `allow`, `deny` and `set_real_ip_from` name them.

use super::env::Env;
use crate::base::address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use yorozu_conf::value;

/// The clients a rule is about. Lists of tens of thousands are read: it is as small as what it says.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    All,
    /// Clients of a Unix socket.
    Unix,
    /// The first address, and the length of the prefix, at most 32.
    V4(Ipv4Addr, u8),
    /// As for IPv4, at most 128.
    V6(Ipv6Addr, u8),
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// An address alone.
impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) => Self::V4(ip, 32),
            IpAddr::V6(ip) => Self::V6(ip, 128),
        }
    }
}

impl Network {
    /// `all`, `unix:`, an address, or a network with its prefix.
    pub fn parse(text: &str) -> Option<Self> {
        Self::read(text).map(|(network, _)| network)
    }

    /// As [`Network::parse`], for a line of a configuration: bits behind the prefix are worth a warning.
    pub fn written(text: &str, env: &Env) -> Option<Self> {
        let (network, is_whole) = Self::read(text)?;
        if !is_whole {
            env.warn_here(&format!("low address bits of {text} are meaningless"));
        }
        Some(network)
    }

    /// The network, and whether its address has no bits behind the prefix.
    fn read(text: &str) -> Option<(Self, bool)> {
        match text {
            "all" => return Some((Self::All, true)),
            "unix:" => return Some((Self::Unix, true)),
            _ => {}
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(value::number(prefix.as_bytes())?)),
            None => (text, None),
        };
        let prefix = |most: u8| match prefix.map(u8::try_from) {
            None => Some(most),
            Some(prefix) => prefix.ok().filter(|prefix| *prefix <= most),
        };
        match address::ip(address.as_bytes())? {
            IpAddr::V4(ip) => {
                let prefix = prefix(32)?;
                let first = Ipv4Addr::from_bits(ip.to_bits() & mask_v4(prefix));
                Some((Self::V4(first, prefix), first == ip))
            }
            IpAddr::V6(ip) => {
                let prefix = prefix(128)?;
                let first = Ipv6Addr::from_bits(ip.to_bits() & mask_v6(prefix));
                Some((Self::V6(first, prefix), first == ip))
            }
        }
    }

    /// The addresses of a network of IPv4, from the first to the last.
    pub fn v4_bounds(self) -> Option<(u32, u32)> {
        match self {
            Self::All => Some((0, u32::MAX)),
            Self::V4(first, prefix) => Some((first.to_bits(), first.to_bits() | !mask_v4(prefix))),
            Self::Unix | Self::V6(..) => None,
        }
    }

    /// The addresses of a network of IPv6, from the first to the last.
    pub fn v6_bounds(self) -> Option<(u128, u128)> {
        match self {
            Self::All => Some((0, u128::MAX)),
            Self::V6(first, prefix) => Some((first.to_bits(), first.to_bits() | !mask_v6(prefix))),
            Self::Unix | Self::V4(..) => None,
        }
    }

    /// Whether it is among them; `None` is a client of a Unix socket.
    pub fn matches(self, peer: Option<IpAddr>) -> bool {
        let has_v4 = |first: Ipv4Addr, prefix, ip: Ipv4Addr| {
            ip.to_bits() & mask_v4(prefix) == first.to_bits()
        };
        match (self, peer) {
            (Self::All, _) | (Self::Unix, None) => true,
            (Self::V4(first, prefix), Some(IpAddr::V4(ip))) => has_v4(first, prefix, ip),
            (Self::V4(first, prefix), Some(IpAddr::V6(ip))) => {
                ip.to_ipv4_mapped().is_some_and(|ip| has_v4(first, prefix, ip))
            }
            (Self::V6(first, prefix), Some(IpAddr::V6(ip))) => {
                ip.to_bits() & mask_v6(prefix) == first.to_bits()
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_match_by_their_prefix() {
        let table = [
            ("all", "1.2.3.4", true),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("0.0.0.0/0", "9.9.9.9", true),
            ("2001:db8::/32", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("unix:", "10.1.1.1", false),
        ];
        for (network, peer, expected) in table {
            let peer = Some(peer.parse().unwrap());
            assert_eq!(
                Network::parse(network).unwrap().matches(peer),
                expected,
                "{network} {peer:?}"
            );
        }
        assert!(Network::parse("unix:").unwrap().matches(None));
        assert!(Network::parse("10.0.0.0/33").is_none() && Network::parse("x").is_none());
    }
}
