//! Addresses and networks, as `allow`, `deny` and `set_real_ip_from` name them.

use super::env::Env;
use std::net::IpAddr;

/// The clients a rule is about.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    All,
    /// Clients of a Unix socket.
    Unix,
    V4 {
        bits: u32,
        mask: u32,
    },
    V6 {
        bits: u128,
        mask: u128,
    },
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
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().ok()?)),
            None => (text, None),
        };
        match address.parse().ok()? {
            IpAddr::V4(ip) => {
                let prefix = prefix.unwrap_or(32);
                let mask = u32::MAX.checked_shl(32_u32.checked_sub(prefix)?).unwrap_or(0);
                let bits = ip.to_bits() & mask;
                Some((Self::V4 { bits, mask }, bits == ip.to_bits()))
            }
            IpAddr::V6(ip) => {
                let prefix = prefix.unwrap_or(128);
                let mask = u128::MAX.checked_shl(128_u32.checked_sub(prefix)?).unwrap_or(0);
                let bits = ip.to_bits() & mask;
                Some((Self::V6 { bits, mask }, bits == ip.to_bits()))
            }
        }
    }

    /// The addresses of a network of IPv4, from the first to the last.
    pub fn v4_bounds(self) -> Option<(u32, u32)> {
        match self {
            Self::All => Some((0, u32::MAX)),
            Self::V4 { bits, mask } => Some((bits, bits | !mask)),
            Self::Unix | Self::V6 { .. } => None,
        }
    }

    /// The addresses of a network of IPv6, from the first to the last.
    pub fn v6_bounds(self) -> Option<(u128, u128)> {
        match self {
            Self::All => Some((0, u128::MAX)),
            Self::V6 { bits, mask } => Some((bits, bits | !mask)),
            Self::Unix | Self::V4 { .. } => None,
        }
    }

    /// Whether it is among them; `None` is a client of a Unix socket.
    pub fn matches(self, peer: Option<IpAddr>) -> bool {
        match (self, peer) {
            (Self::All, _) | (Self::Unix, None) => true,
            (Self::V4 { bits, mask }, Some(IpAddr::V4(ip))) => ip.to_bits() & mask == bits,
            (Self::V4 { bits, mask }, Some(IpAddr::V6(ip))) => {
                ip.to_ipv4_mapped().is_some_and(|ip| ip.to_bits() & mask == bits)
            }
            (Self::V6 { bits, mask }, Some(IpAddr::V6(ip))) => ip.to_bits() & mask == bits,
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
