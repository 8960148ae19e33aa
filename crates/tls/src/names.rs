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

/// A suite and OpenSSL's name of it.
type Suite = (&'static str, CipherSuite);

/// The TLS 1.2 suites rustls has, in OpenSSL's order.
const SUITES: [Suite; 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
];

/// Lists that OpenSSL knows by a name.
const LISTS: [(&str, &str); 4] = [
    ("SUITEB128", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB128ONLY", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("SUITEB128C2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB192", "ECDHE-ECDSA-AES256-GCM-SHA384"),
];

/// The suites that an OpenSSL list admits, in its order; those of TLS 1.3 always, and first.
///
/// # Errors
/// The list names none that rustls has.
pub fn cipher_suites(
    list: &str,
    provider: &CryptoProvider,
) -> Result<Vec<SupportedCipherSuite>, ValueError> {
    let named = listed(list);
    if named.is_empty() {
        return Err(ValueError(format!(
            "no cipher of \"{list}\" is supported by the TLS library, expected some of {}",
            SUITES.map(|(name, _)| name).join(", ")
        )));
    }
    let all = || provider.cipher_suites.iter().copied();
    let newer = all().filter(|suite| suite.version().version == ProtocolVersion::TLSv1_3);
    let older = named.iter().flat_map(|(_, id)| all().find(|suite| suite.suite() == *id));
    Ok(newer.chain(older).collect())
}

/// The suites of a list, which is read from its beginning to its end.
///
/// # Source
/// OpenSSL, `openssl-ciphers`, "CIPHER LIST FORMAT".
fn listed(list: &str) -> Vec<Suite> {
    let list = LISTS.iter().find(|(name, _)| *name == list).map_or(list, |(_, list)| list);
    let (mut named, mut killed) = (Vec::<Suite>::new(), Vec::<Suite>::new());
    for item in list.split([':', ',', ' ', ';']) {
        let (item, command) = item.split_once('@').unwrap_or((item, ""));
        let operator = item.chars().next().filter(|first| "!-+".contains(*first));
        let words = item.trim_start_matches(['!', '-', '+']);
        let (found, others): (Vec<_>, Vec<_>) =
            named.iter().copied().partition(|(name, _)| stands_for(words, name));
        match operator {
            Some('!') => {
                killed.extend(SUITES.iter().filter(|(name, _)| stands_for(words, name)));
                named = others;
            }
            Some('-') => named = others,
            Some(_) => named = [others, found].concat(),
            None => {
                let is_new = |suite: &&_| !named.contains(*suite) && !killed.contains(*suite);
                let all = SUITES.iter().filter(|(name, _)| stands_for(words, name));
                let new: Vec<_> = all.filter(is_new).copied().collect();
                named.extend(new);
            }
        }
        if command == "STRENGTH" {
            named.sort_by_key(|(name, _)| name.contains("AES128"));
        }
    }
    named
}

/// Whether words of a list (a suite, a property, or some joined by `+`) stand for the suite of a name.
fn stands_for(words: &str, name: &str) -> bool {
    words == name
        || words.split('+').all(|word| match word {
            "ALL" | "DEFAULT" | "HIGH" | "ECDH" | "ECDHE" | "EECDH" | "kECDHE" | "kEECDH"
            | "TLSv1.2" => true,
            "ECDSA" | "aECDSA" => name.contains("-ECDSA-"),
            "aRSA" => name.contains("-RSA-"),
            "AES" | "FIPS" => name.contains("-AES"),
            "AES128" | "AES256" | "CHACHA20" => name.split('-').any(|part| part == word),
            "AESGCM" => name.contains("-GCM-"),
            _ => false,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_understood_as_openssl_means_them() {
        // What `openssl ciphers -s -tls1_2` of version 3.0 shows of these suites.
        for (list, expected) in [
            ("DEFAULT", "E256 R256 EC RC E128 R128"),
            ("HIGH:!aNULL:!MD5", "E256 R256 EC RC E128 R128"),
            ("ECDHE-RSA-AES128-GCM-SHA256", "R128"),
            ("EECDH+AESGCM:EDH+AESGCM", "E256 R256 E128 R128"),
            ("ECDH+AESGCM:ECDH+AES256:ECDH+AES128:DH+3DES:!ADH:!AECDH", "E256 R256 E128 R128"),
            ("kECDHE+aRSA", "R256 RC R128"),
            ("HIGH:!CHACHA20", "E256 R256 E128 R128"),
            ("FIPS:!aNULL", "E256 R256 E128 R128"),
            ("SUITEB128", "E128 E256"),
            ("SUITEB192", "E256"),
            ("AESGCM:+AES256", "E128 R128 E256 R256"),
            ("AESGCM:-aRSA:aRSA", "E256 E128 R256 RC R128"),
            ("!AES128:AES", "E256 R256"),
            ("AES128+ECDSA,AES256;CHACHA20", "E128 E256 R256 EC RC"),
            ("AES128:AES256:@STRENGTH", "E256 R256 E128 R128"),
            ("DEFAULT@SECLEVEL=0", "E256 R256 EC RC E128 R128"),
            ("AES128-SHA", ""),
            ("RSA", ""),
            ("SHA384", ""),
            ("aNULL", ""),
        ] {
            let short = |name: &str| {
                let name = name.replace("ECDHE-", "").replace("ECDSA-", "E").replace("RSA-", "R");
                let name = name.replace("AES", "").replace("CHACHA20-POLY1305", "C");
                name.split('-').next().unwrap_or_default().to_owned()
            };
            let found: Vec<String> = listed(list).iter().map(|(name, _)| short(name)).collect();
            assert_eq!(found.join(" "), expected, "{list}");
            assert_eq!(cipher_suites(list, super::super::provider()).is_ok(), !expected.is_empty());
        }
    }
}
