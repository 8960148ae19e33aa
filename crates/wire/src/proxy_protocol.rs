//! The PROXY protocol: what a proxy in front says about the client's connection, before its first byte.
//!
//! # Source
//! haproxy.org, "The PROXY protocol", versions 1 and 2.

use crate::WireError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the proxy says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProxyHeader {
    /// The client's address; `None` where the proxy does not know it.
    pub source: Option<SocketAddr>,
    /// The address the client asked for.
    pub destination: Option<SocketAddr>,
    /// Type-length-value fields of version 2, as they came.
    pub tlvs: Vec<u8>,
}

/// Most bytes of a line of version 1, its end included.
const LINE_BYTES_MAX: usize = 107;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before its addresses.
const PREFIX_BYTES: usize = 16;
/// Most bytes of a header of version 2; nginx's.
const HEADER_BYTES_MAX: usize = 4096;

/// Reads a header from the beginning of `input`: it and its length; `None` if more is needed.
///
/// # Errors
/// It is none.
pub fn read(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, WireError> {
    let start = &input[..input.len().min(SIGNATURE.len())];
    if SIGNATURE.starts_with(start) && start != b"" {
        return binary(input);
    }
    let start = &input[..input.len().min(6)];
    if !b"PROXY ".starts_with(start) {
        return Err(WireError::Proxy);
    }
    let line = &input[..input.len().min(LINE_BYTES_MAX)];
    match memchr::memchr(b'\n', line) {
        None if input.len() >= LINE_BYTES_MAX => Err(WireError::Proxy),
        None => Ok(None),
        Some(end) => {
            let line = line[..end].strip_suffix(b"\r").ok_or(WireError::Proxy)?;
            Ok(Some((text(line)?, end + 1)))
        }
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 5000 80`
fn text(line: &[u8]) -> Result<ProxyHeader, WireError> {
    let line = std::str::from_utf8(line).map_err(|_| WireError::Proxy)?;
    let mut words = line.split(' ').skip(1);
    let family = words.next().ok_or(WireError::Proxy)?;
    if family == "UNKNOWN" {
        return Ok(ProxyHeader::default());
    }
    let mut word = || words.next().ok_or(WireError::Proxy);
    let (source, destination) = (word()?, word()?);
    let (source_port, destination_port) = (word()?, word()?);
    let address = |address: &str, port: &str| {
        let address: IpAddr = address.parse().map_err(|_| WireError::Proxy)?;
        if (family == "TCP4") != address.is_ipv4() || !["TCP4", "TCP6"].contains(&family) {
            return Err(WireError::Proxy);
        }
        let port = port.parse().map_err(|_| WireError::Proxy)?;
        Ok(SocketAddr::new(address, port))
    };
    Ok(ProxyHeader {
        source: Some(address(source, source_port)?),
        destination: Some(address(destination, destination_port)?),
        tlvs: Vec::new(),
    })
}

fn binary(input: &[u8]) -> Result<Option<(ProxyHeader, usize)>, WireError> {
    let Some(prefix) = input.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let (command, family) = (prefix[12], prefix[13]);
    let length = usize::from(u16::from_be_bytes([prefix[14], prefix[15]]));
    let whole = PREFIX_BYTES + length;
    if command >> 4 != 2 || whole > HEADER_BYTES_MAX {
        return Err(WireError::Proxy);
    }
    let Some(rest) = input.get(PREFIX_BYTES..whole) else { return Ok(None) };
    // Any other than PROXY: LOCAL, where the proxy itself speaks, its checks for instance.
    if command & 0x0f != 1 {
        return Ok(Some((ProxyHeader::default(), whole)));
    }
    let header = match family {
        0x11 => {
            let (addresses, tlvs) = rest.split_first_chunk::<12>().ok_or(WireError::Proxy)?;
            let address = |at: usize| {
                Ipv4Addr::new(
                    addresses[at],
                    addresses[at + 1],
                    addresses[at + 2],
                    addresses[at + 3],
                )
            };
            let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
            ProxyHeader {
                source: Some((address(0), port(8)).into()),
                destination: Some((address(4), port(10)).into()),
                tlvs: tlvs.to_vec(),
            }
        }
        0x21 => {
            let (addresses, tlvs) = rest.split_first_chunk::<36>().ok_or(WireError::Proxy)?;
            let address = |at: usize| {
                let octets: [u8; 16] = addresses[at..at + 16].try_into().unwrap_or_default();
                Ipv6Addr::from(octets)
            };
            let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
            ProxyHeader {
                source: Some((address(0), port(32)).into()),
                destination: Some((address(16), port(34)).into()),
                tlvs: tlvs.to_vec(),
            }
        }
        // Families of which no address is known, and datagrams.
        _ => ProxyHeader::default(),
    };
    Ok(Some((header, whole)))
}

/// Bytes of the fixed part of the field about TLS, before the fields inside it.
const TLS_FIXED_BYTES: usize = 5;
/// The field that holds what is known of the client's TLS.
const TLS_FIELD: u8 = 0x20;

impl ProxyHeader {
    /// The value of a field by its name (`alpn`, `authority`, `unique_id`, `netns`, `ssl_cn`, `ssl_version`,
    /// `ssl_cipher`, `ssl_sig_alg`, `ssl_key_alg`, `ssl_verify`) or its type (`0x05`, `ssl_0x26` inside `ssl`).
    pub fn tlv(&self, name: &str) -> Option<Vec<u8>> {
        const NAMES: [(&str, u8); 5] = [
            ("alpn", 0x01),
            ("authority", 0x02),
            ("unique_id", 0x05),
            ("ssl", TLS_FIELD),
            ("netns", 0x30),
        ];
        const TLS_NAMES: [(&str, u8); 5] = [
            ("version", 0x21),
            ("cn", 0x22),
            ("cipher", 0x23),
            ("sig_alg", 0x24),
            ("key_alg", 0x25),
        ];
        let find = |tlvs: &[u8], names: &[(&str, u8)], name: &str| {
            let known = names.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
            let number = || u8::from_str_radix(name.strip_prefix("0x")?, 16).ok();
            field(tlvs, known.or_else(number)?).map(<[u8]>::to_vec)
        };
        if let Some(inner) = name.strip_prefix("ssl_") {
            let (fixed, tlvs) = field(&self.tlvs, TLS_FIELD)?.split_at_checked(TLS_FIXED_BYTES)?;
            if inner == "verify" {
                let verified = u32::from_be_bytes(fixed[1..].try_into().ok()?);
                return Some(verified.to_string().into_bytes());
            }
            return find(tlvs, &TLS_NAMES, inner);
        }
        find(&self.tlvs, &NAMES, name)
    }
}

fn field(mut tlvs: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        let ([kind, high, low], rest) = tlvs.split_first_chunk::<3>()?;
        let (value, rest) =
            rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        if *kind == wanted {
            return Some(value);
        }
        tlvs = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\nGET /";
        let (header, length) = read(line).unwrap().unwrap();
        assert_eq!(length, line.len() - 5);
        assert_eq!(header.source.unwrap().to_string(), "192.0.2.1:123");
        assert_eq!(header.destination.unwrap().to_string(), "192.0.2.2:5678");
        let (header, _) = read(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n").unwrap().unwrap();
        assert_eq!(header.source.unwrap().to_string(), "[2001:db8::1]:1");
        assert_eq!(read(b"PROXY UNKNOWN 1 2 3\r\n").unwrap().unwrap().0, ProxyHeader::default());
        for length in 0..40 {
            assert_eq!(read(&line[..length]), Ok(None), "{length}");
        }
        for broken in [
            &b"GET / HTTP/1.0\r\n"[..],
            b"G",
            b"PROXS TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY TCP5 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 192.0.2.1\r\n",
            b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 99999\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            &[b"PROXY TCP4 ", &[b'1'; 120][..]].concat(),
        ] {
            assert_eq!(read(broken), Err(WireError::Proxy));
        }
    }

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn headers_are_read() {
        let tls = [&[1, 0, 0, 0, 2][..], &[0x21, 0, 3], b"1.3", &[0x22, 0, 1], b"x"].concat();
        let fields =
            [&[0x01, 0, 2][..], b"h2", &[TLS_FIELD, 0, 15], &tls[..], &[0xe0, 0, 1], b"y"].concat();
        let v4 = [&[192, 0, 2, 1, 192, 0, 2, 2, 0, 123, 0, 80][..], &fields].concat();
        let bytes = header(0x21, 0x11, &v4);
        let (read_, length) = read(&bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        assert_eq!(read_.source.unwrap().to_string(), "192.0.2.1:123");
        for (name, value) in [
            ("alpn", "h2"),
            ("ssl_version", "1.3"),
            ("ssl_cn", "x"),
            ("ssl_0x21", "1.3"),
            ("ssl", std::str::from_utf8(&tls).unwrap()),
            ("ssl_verify", "2"),
            ("0xe0", "y"),
        ] {
            assert_eq!(read_.tlv(name).as_deref(), Some(value.as_bytes()), "{name}");
        }
        assert_eq!((read_.tlv("authority"), read_.tlv("nonsense")), (None, None));
        for length in 1..bytes.len() {
            assert_eq!(read(&bytes[..length]), Ok(None), "{length}");
        }
        let v6 = [&[0; 15][..], &[1], &[0; 15], &[2], &[0, 1, 0, 2]].concat();
        for (command, family) in [(0x20, 0x11), (0x22, 0x11), (0x21, 0x12), (0x21, 0x31)] {
            let (read_, length) = read(&header(command, family, &v4)).unwrap().unwrap();
            assert_eq!((read_, length), (ProxyHeader::default(), bytes.len()));
        }
        let (read_, _) = read(&header(0x21, 0x21, &v6)).unwrap().unwrap();
        assert_eq!(read_.destination.unwrap().to_string(), "[::2]:2");
        assert_eq!(read(&header(0x20, 0x11, &v4)).unwrap().unwrap().0, ProxyHeader::default());
        for broken in
            [header(0x11, 0x11, &v4), header(0x21, 0x11, &v4[..11]), header(0x21, 0x11, &[0; 5000])]
        {
            assert_eq!(read(&broken), Err(WireError::Proxy));
        }
    }
}
