//! What certificates are for, and the kinds of their keys.

use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;
use yorozu_kernel::config::directive::ValueError;

/// A name or an address that a certificate is for.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Identifier {
    /// In lower case.
    Dns(String),
    Ip(IpAddr),
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// The kind of a key, with its bits.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum KeyKind {
    Ecdsa(u32),
    Rsa(u32),
}

impl Default for KeyKind {
    fn default() -> Self {
        Self::Ecdsa(256)
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ecdsa(bits) => write!(f, "ecdsa:{bits}"),
            Self::Rsa(bits) => write!(f, "rsa:{bits}"),
        }
    }
}

impl KeyKind {
    /// Reads `ecdsa[:256|384|521]` or `rsa[:2048|3072|4096]`; `None` for anything else, which may be a file.
    ///
    /// # Errors
    /// Other sizes.
    pub fn parse(text: &str) -> Result<Option<Self>, ValueError> {
        let (name, size) = match text.split_once(':') {
            Some((name, size)) => (name, Some(size)),
            None => (text, None),
        };
        match (name, size) {
            ("ecdsa", None | Some("256")) => Ok(Some(Self::Ecdsa(256))),
            ("ecdsa", Some("384")) => Ok(Some(Self::Ecdsa(384))),
            ("ecdsa", Some("521")) => Ok(Some(Self::Ecdsa(521))),
            ("ecdsa", _) => Err(ValueError::new("unsupported curve")),
            ("rsa", None | Some("2048")) => Ok(Some(Self::Rsa(2048))),
            ("rsa", Some("3072")) => Ok(Some(Self::Rsa(3072))),
            ("rsa", Some("4096")) => Ok(Some(Self::Rsa(4096))),
            ("rsa", _) => Err(ValueError::new("unsupported key size")),
            _ => Ok(None),
        }
    }
}

/// Adds what a word of `acme_certificate` or `server_name` stands for: `.name` for the name with `www.` and without it.
///
/// # Errors
/// It is no name that a certificate can be for.
pub fn add(word: &str, identifiers: &mut Vec<Identifier>) -> Result<(), ValueError> {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    let mut push = |identifier| {
        // Twice the same would be refused by some issuers.
        if !identifiers.contains(&identifier) {
            identifiers.push(identifier);
        }
    };
    if let Ok(address) = bare.parse::<IpAddr>() {
        push(Identifier::Ip(address));
        return Ok(());
    }
    check(word).map_err(|why| ValueError(format!("invalid server name: {why}")))?;
    let name = word.to_ascii_lowercase();
    match name.strip_prefix('.') {
        Some(host) => {
            push(Identifier::Dns(format!("www.{host}")));
            push(Identifier::Dns(host.to_owned()));
        }
        None => push(Identifier::Dns(name)),
    }
    Ok(())
}

/// Whether a name is one that a client can ask for: labels of letters and what nginx lets stand in a host.
fn check(name: &str) -> Result<(), String> {
    const OTHERS: &[u8] = b"-_~%!$&'()+,;=";
    let mut before = None;
    for (at, byte) in name.bytes().enumerate() {
        let is_label = byte.is_ascii_alphanumeric() || OTHERS.contains(&byte);
        match byte {
            0..=0x20 | 0x7f.. => {
                return Err(format!("invalid character {byte:x} at position {at}"));
            }
            b'.' if before != Some(b'.') => {}
            _ if is_label => {}
            _ => {
                return Err(format!(
                    "unexpected character '{}' at position {at}",
                    char::from(byte)
                ));
            }
        }
        before = Some(byte);
    }
    match before {
        None | Some(b'.') => Err("does not end with a label".to_owned()),
        Some(_) => Ok(()),
    }
}

/// What files of an order are called: its first name, and a number that nginx's module computes the same way, so that what
/// that has in its folder is found.
pub fn file_name(identifiers: &[Identifier], key: KeyKind) -> String {
    let is_dns = |identifier: &&Identifier| matches!(identifier, Identifier::Dns(_));
    let first = identifiers.iter().find(is_dns).or_else(|| identifiers.first());
    let first = first.map(Identifier::to_string).unwrap_or_default();
    #[expect(deprecated, reason = "SipHash-2-4 without a key, which is what the names have")]
    let mut hasher = std::hash::SipHasher::new();
    hasher.write(&(identifiers.len() as u64).to_ne_bytes());
    for identifier in identifiers {
        let number: i64 = match identifier {
            Identifier::Dns(_) => 0,
            Identifier::Ip(_) => 1,
        };
        hasher.write(&number.to_ne_bytes());
        hasher.write(identifier.to_string().as_bytes());
        hasher.write(&[0xff]);
    }
    let (number, bits): (i64, u32) = match key {
        KeyKind::Ecdsa(bits) => (0, bits),
        KeyKind::Rsa(bits) => (1, bits),
    };
    hasher.write(&number.to_ne_bytes());
    hasher.write(&bits.to_ne_bytes());
    format!("{first}-{:x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<String, String> {
        let mut found = Vec::new();
        for word in words {
            add(word, &mut found).map_err(|problem| problem.0)?;
        }
        Ok(found.iter().map(Identifier::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn names_and_addresses_are_told_apart() {
        assert_eq!(read(&["A.example", "_a.example"]).unwrap(), "a.example _a.example");
        assert_eq!(
            read(&[".example.com", "www.example.com"]).unwrap(),
            "www.example.com example.com"
        );
        assert_eq!(
            read(&["192.0.2.1", "[2001:DB8::1]", "2001:db8:0::1"]).unwrap(),
            "192.0.2.1 2001:db8::1"
        );
        assert_eq!(
            read(&["www.example.*"]).unwrap_err(),
            "invalid server name: unexpected character '*' at position 12"
        );
        assert_eq!(
            read(&[".example..test"]).unwrap_err(),
            "invalid server name: unexpected character '.' at position 9"
        );
        assert_eq!(
            read(&["example."]).unwrap_err(),
            "invalid server name: does not end with a label"
        );
        assert_eq!(
            read(&["\u{e9}.example"]).unwrap_err(),
            "invalid server name: invalid character c3 at position 0"
        );
    }

    #[test]
    fn keys_have_the_sizes_of_nginx() {
        let read = |text| KeyKind::parse(text).map_err(|problem| problem.0);
        assert_eq!(read("ecdsa"), Ok(Some(KeyKind::Ecdsa(256))));
        assert_eq!(read("rsa"), Ok(Some(KeyKind::Rsa(2048))));
        assert_eq!(read("rsa:4096"), Ok(Some(KeyKind::Rsa(4096))));
        assert_eq!(read("/etc/key.pem"), Ok(None));
        assert_eq!(read("ecdsa:234"), Err("unsupported curve".to_owned()));
        assert_eq!(read("rsa:1024"), Err("unsupported key size".to_owned()));
    }

    #[test]
    fn file_names_differ_by_names_and_keys() {
        let dns = |name: &str| Identifier::Dns(name.to_owned());
        let one = file_name(&[dns("a.example")], KeyKind::default());
        assert!(one.starts_with("a.example-"), "{one}");
        assert_ne!(one, file_name(&[dns("a.example")], KeyKind::Rsa(2048)));
        assert_ne!(one, file_name(&[dns("a.example"), dns("b.example")], KeyKind::default()));
        let address = Identifier::Ip("192.0.2.1".parse().unwrap());
        assert!(
            file_name(&[address, dns("a.example")], KeyKind::default()).starts_with("a.example-")
        );
    }
}
