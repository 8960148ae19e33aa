//! OpenSSL's names of protocols and curves, as nginx configurations have them.

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{NamedGroup, SupportedProtocolVersion};
use yorozu_kernel::config::directive::{Adds, Args, Setting, ValueError};

/// `ssl_protocols` and its relatives.
#[derive(Clone, Debug, Default)]
pub struct Protocols {
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// Places of the words among [`WORDS`].
    written: Vec<usize>,
}

/// The words, and what the TLS library has of them.
const WORDS: [(&str, Option<&SupportedProtocolVersion>); 6] = [
    ("SSLv2", None),
    ("SSLv3", None),
    ("TLSv1", None),
    ("TLSv1.1", None),
    ("TLSv1.2", Some(&rustls::version::TLS12)),
    ("TLSv1.3", Some(&rustls::version::TLS13)),
];

impl Adds for Protocols {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let mut lacking = Vec::new();
        for word in args.words {
            let is_it = |(name, _): &(&str, _)| word.eq_ignore_ascii_case(name.as_bytes());
            let text = String::from_utf8_lossy(word);
            let place = WORDS.iter().position(is_it);
            let place = place.ok_or_else(|| ValueError(format!("invalid value \"{text}\"")))?;
            if self.written.contains(&place) {
                args.duplicate_value(word);
                continue;
            }
            self.written.push(place);
            match WORDS[place].1 {
                Some(version) => self.versions.push(version),
                None => lacking.push(format!("\"{text}\"")),
            }
        }
        if let Some((last, others)) = lacking.split_last() {
            let (words, verb) = match others {
                [] => (last.clone(), "is"),
                _ => (format!("{} and {last}", others.join(", ")), "are"),
            };
            args.env.warn(format!(
                "{words} in \"{}\" {verb} ignored: the TLS library supports only TLSv1.2 and TLSv1.3",
                args.name
            ));
        }
        if self.versions.is_empty() {
            return Err(ValueError(format!(
                "\"{}\" names no protocol that the TLS library supports, expected TLSv1.2 or TLSv1.3",
                args.name
            )));
        }
        Ok(())
    }
}

/// OpenSSL's names of the groups rustls has; of several the first is the one that is shown. Their case does not matter.
const GROUP_NAMES: [(&str, NamedGroup); 7] = [
    ("X25519", NamedGroup::X25519),
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
        // OpenSSL 3.5 has marks in front of a name, and `/` between lists of equals.
        for written in text.split([':', '/']).filter(|name| !name.is_empty()) {
            let name = written.trim_start_matches(['?', '*']);
            match GROUP_NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
                Some((_, group)) => groups.push(*group),
                None => args.env.warn(format!(
                    "\"{written}\" in \"{}\" is ignored: the TLS library supports only X25519, prime256v1, secp384r1 and X25519MLKEM768",
                    args.name
                )),
            }
        }
        if groups.is_empty() {
            return Err(ValueError(format!(
                "\"{text}\" in \"{}\" names no curve that the TLS library supports",
                args.name
            )));
        }
        Ok(Self(Some(groups)))
    }
}
