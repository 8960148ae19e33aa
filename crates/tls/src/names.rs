//! OpenSSL's names of protocols and ciphers, as nginx configurations have them.

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{
    CipherSuite, NamedGroup, ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion,
};
use yorozu_kernel::config::directive::{Args, Setting, ValueError};

/// `ssl_protocols` and its relatives.
#[derive(Clone, Debug)]
pub struct Protocols(pub Vec<&'static SupportedProtocolVersion>);

impl Setting for Protocols {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut versions = Vec::new();
        for word in args.words {
            match &word[..] {
                b"TLSv1.2" => versions.push(&rustls::version::TLS12),
                b"TLSv1.3" => versions.push(&rustls::version::TLS13),
                b"SSLv2" | b"SSLv3" | b"TLSv1" | b"TLSv1.1" => args.env.warn(format!(
                    "\"{}\" in \"{}\" is ignored: the TLS library supports only TLSv1.2 and TLSv1.3",
                    String::from_utf8_lossy(word),
                    args.name
                )),
                other => {
                    let other = String::from_utf8_lossy(other);
                    return Err(ValueError(format!("invalid value \"{other}\"")));
                }
            }
        }
        if versions.is_empty() {
            return Err(ValueError(format!(
                "\"{}\" names no protocol that the TLS library supports, expected TLSv1.2 or TLSv1.3",
                args.name
            )));
        }
        Ok(Self(versions))
    }
}

/// OpenSSL's names of the TLS 1.2 suites rustls has.
const SUITES: [(&str, CipherSuite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Keywords of OpenSSL's lists that name every suite of [`SUITES`].
const GROUPS: [&str; 8] =
    ["DEFAULT", "ALL", "HIGH", "SECURE", "EECDH", "ECDHE", "kEECDH", "TLSv1.2"];

/// The suites that an OpenSSL list admits; those of TLS 1.3 always.
///
/// # Errors
/// The list names none that rustls has.
pub fn cipher_suites(
    list: &str,
    provider: &CryptoProvider,
) -> Result<Vec<SupportedCipherSuite>, ValueError> {
    let mut named: Vec<CipherSuite> = Vec::new();
    for item in list.split([':', ',', ' ']).filter(|item| !item.is_empty()) {
        if let Some(removed) = item.strip_prefix(['!', '-']) {
            named.retain(|suite| !admits(removed, *suite));
        } else {
            let item = item.trim_start_matches('+').split('@').next().unwrap_or_default();
            let found = SUITES.iter().map(|(_, suite)| *suite);
            named.extend(found.filter(|suite| admits(item, *suite)));
        }
    }
    if named.is_empty() {
        return Err(ValueError(format!(
            "no cipher of \"{list}\" is supported by the TLS library, expected some of {}",
            SUITES.map(|(name, _)| name).join(", ")
        )));
    }
    let is_wanted = |suite: &&SupportedCipherSuite| {
        suite.version().version == ProtocolVersion::TLSv1_3 || named.contains(&suite.suite())
    };
    Ok(provider.cipher_suites.iter().filter(is_wanted).copied().collect())
}

/// OpenSSL's name of a suite; a number for one it does not have.
pub fn cipher(suite: CipherSuite) -> String {
    let known =
        SUITES.iter().find(|(_, known)| *known == suite).map(|(name, _)| (*name).to_owned());
    known.unwrap_or_else(|| match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384".to_owned(),
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256".to_owned(),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256".to_owned(),
        CipherSuite::TLS_EMPTY_RENEGOTIATION_INFO_SCSV => {
            "TLS_EMPTY_RENEGOTIATION_INFO_SCSV".to_owned()
        }
        other => format!("0x{:04x}", u16::from(other)),
    })
}

/// OpenSSL's names of the groups rustls has.
const GROUP_NAMES: [(&str, NamedGroup); 8] = [
    ("X25519", NamedGroup::X25519),
    ("x25519", NamedGroup::X25519),
    ("prime256v1", NamedGroup::secp256r1),
    ("P-256", NamedGroup::secp256r1),
    ("secp256r1", NamedGroup::secp256r1),
    ("secp384r1", NamedGroup::secp384r1),
    ("P-384", NamedGroup::secp384r1),
    ("X25519MLKEM768", NamedGroup::X25519MLKEM768),
];

/// OpenSSL's name of a group; a number for one it does not have.
pub fn curve(group: NamedGroup) -> String {
    let known = GROUP_NAMES.iter().find(|(_, known)| *known == group);
    match (known, group) {
        (Some((name, _)), _) => (*name).to_owned(),
        (None, NamedGroup::secp521r1) => "secp521r1".to_owned(),
        (None, NamedGroup::X448) => "X448".to_owned(),
        (None, other) => format!("0x{:04x}", u16::from(other)),
    }
}

/// `ssl_ecdh_curve`
#[derive(Clone, Debug, Default)]
pub struct Curves(Option<Vec<NamedGroup>>);

impl Curves {
    /// The groups of a provider that are allowed, in the order written.
    pub fn groups(&self, provider: &CryptoProvider) -> Vec<&'static dyn SupportedKxGroup> {
        let Some(wanted) = &self.0 else { return provider.kx_groups.clone() };
        let found = |name: &NamedGroup| provider.kx_groups.iter().find(|g| g.name() == *name);
        wanted.iter().filter_map(found).copied().collect()
    }
}

impl Setting for Curves {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        if text == "auto" {
            return Ok(Self(None));
        }
        let mut groups = Vec::new();
        for name in text.split(':') {
            match GROUP_NAMES.iter().find(|(known, _)| *known == name) {
                Some((_, group)) => groups.push(*group),
                None if ["secp521r1", "P-521", "X448", "ffdhe2048"].contains(&name) => {
                    args.env.warn(format!(
                        "\"{name}\" in \"{}\" is ignored: the TLS library supports only X25519, prime256v1, secp384r1 and X25519MLKEM768",
                        args.name
                    ));
                }
                None => {
                    return Err(ValueError(format!(
                        "unknown curve \"{name}\" in \"{}\"",
                        args.name
                    )));
                }
            }
        }
        if groups.is_empty() {
            return Err(ValueError(format!(
                "\"{}\" names no curve that the TLS library supports",
                args.name
            )));
        }
        Ok(Self(Some(groups)))
    }
}

/// Whether an item of a list (a suite, a group, or parts joined by `+`) stands for `suite`.
fn admits(item: &str, suite: CipherSuite) -> bool {
    let Some((name, _)) = SUITES.iter().find(|(_, known)| *known == suite) else { return false };
    if item == *name || GROUPS.contains(&item) {
        return true;
    }
    // AESGCM, CHACHA20, ECDSA+AES256 and the like.
    item.split('+').all(|part| {
        let part = match part {
            "aECDSA" => "ECDSA",
            "aRSA" => "RSA",
            other => other,
        };
        GROUPS.contains(&part)
            || name.split('-').any(|word| word == part)
            || (part == "AESGCM" && name.contains("GCM"))
            || (part == "AES" && name.contains("AES"))
            || (matches!(part, "SHA256" | "SHA384") && name.ends_with(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_understood_as_openssl_means_them() {
        let count = |list: &str| {
            let suites = cipher_suites(list, super::super::provider()).ok()?;
            Some(suites.iter().filter(|s| s.version().version == ProtocolVersion::TLSv1_2).count())
        };
        assert_eq!(count("DEFAULT"), Some(6));
        assert_eq!(count("HIGH:!aNULL:!MD5"), Some(6));
        assert_eq!(count("ECDHE-RSA-AES128-GCM-SHA256"), Some(1));
        assert_eq!(count("EECDH+AESGCM:EDH+AESGCM"), Some(4));
        assert_eq!(count("HIGH:!CHACHA20"), Some(4));
        assert_eq!(count("AES128-SHA"), None);
    }
}
