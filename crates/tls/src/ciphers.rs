//! OpenSSL's lists of ciphers, as far as rustls has them.
//!
//! A list is a program: its words add ciphers, take them away for now (`-`) or for good (`!`), and put them at the end
//! (`+`). What OpenSSL has and rustls does not is skipped, as OpenSSL skips a word that it does not know.
//!
//! # Source
//! OpenSSL's manual, openssl-ciphers(1).

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ProtocolVersion, SupportedCipherSuite};
use yorozu_kernel::config::directive::ValueError;

/// A suite of TLS 1.2 that rustls has. All of them exchange keys by ECDHE and are authenticated encryption.
struct Suite {
    /// OpenSSL's name.
    name: &'static str,
    suite: CipherSuite,
    /// How the server proves who it is: `ECDSA` or `RSA`.
    proof: &'static str,
    cipher: Cipher,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Cipher {
    Aes256,
    Aes128,
    ChaCha20,
}

/// In OpenSSL's order.
const SUITES: [Suite; 6] = [
    Suite {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        proof: "ECDSA",
        cipher: Cipher::Aes256,
    },
    Suite {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        proof: "RSA",
        cipher: Cipher::Aes256,
    },
    Suite {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        proof: "ECDSA",
        cipher: Cipher::ChaCha20,
    },
    Suite {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        proof: "RSA",
        cipher: Cipher::ChaCha20,
    },
    Suite {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        proof: "ECDSA",
        cipher: Cipher::Aes128,
    },
    Suite {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        proof: "RSA",
        cipher: Cipher::Aes128,
    },
];

/// OpenSSL's names of the suites of TLS 1.3 that rustls has.
const SUITES_13: [(&str, CipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// Those that OpenSSL has besides.
const OTHERS_13: [&str; 2] = ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];

/// Words that stand for the whole list, which they begin.
const WHOLE: [(&str, &str); 4] = [
    ("SUITEB128ONLY", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("SUITEB128C2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB128", "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("SUITEB192", "ECDHE-ECDSA-AES256-GCM-SHA384"),
];

impl Suite {
    /// Whether a word of a list stands for it, among others.
    fn is_meant_by(&self, word: &str) -> bool {
        match word {
            "ALL" | "HIGH" | "TLSv1.2" => true,
            "ECDHE" | "EECDH" | "ECDH" | "kECDHE" | "kEECDH" => true,
            "ECDSA" | "aECDSA" => self.proof == "ECDSA",
            // "RSA" are those that exchange keys by it.
            "aRSA" => self.proof == "RSA",
            "AES" | "AESGCM" | "FIPS" => self.cipher != Cipher::ChaCha20,
            "AES256" => self.cipher == Cipher::Aes256,
            "AES128" => self.cipher == Cipher::Aes128,
            "CHACHA20" => self.cipher == Cipher::ChaCha20,
            name => name == self.name,
        }
    }

    fn is_strong(&self) -> bool {
        self.cipher != Cipher::Aes128
    }
}

/// The suites while a list is read: those that are not in it may be put there again.
struct List(Vec<(&'static Suite, bool)>);

impl List {
    fn of(list: &str) -> Self {
        let mut suites = Self(SUITES.iter().map(|suite| (suite, false)).collect());
        let whole = WHOLE.iter().find(|(word, _)| list.starts_with(word));
        let mut list = whole.map_or(list, |(_, meant)| meant);
        if let Some(rest) = list.strip_prefix("DEFAULT") {
            suites.apply("ALL");
            list = rest;
        }
        for item in list.split([':', ',', ' ', ';']) {
            // Levels of security and other commands may follow a word.
            let (rule, command) = item.split_once('@').unwrap_or((item, ""));
            suites.apply(rule);
            if command == "STRENGTH" {
                suites.put_last(|suite| suite.is_strong());
                suites.put_last(|suite| !suite.is_strong());
            }
        }
        suites
    }

    /// Words joined by `+` are meant together.
    fn apply(&mut self, rule: &str) {
        let words = rule.trim_start_matches(['!', '-', '+']);
        if words.is_empty() {
            return;
        }
        let has = |word: &str| words.split('+').any(|found| found == word);
        // Both are strengths to OpenSSL, of which a cipher has one.
        if has("HIGH") && has("FIPS") {
            return;
        }
        let is_meant = |suite: &Suite| words.split('+').all(|word| suite.is_meant_by(word));
        match rule.as_bytes()[0] {
            b'!' => self.0.retain(|(suite, _)| !is_meant(suite)),
            b'-' => {
                let (gone, stay): (Vec<_>, Vec<_>) =
                    self.0.drain(..).partition(|(suite, is_in)| *is_in && is_meant(suite));
                self.0 = gone.into_iter().map(|(suite, _)| (suite, false)).chain(stay).collect();
            }
            b'+' => self.put_last(is_meant),
            _ => {
                let (new, known): (Vec<_>, Vec<_>) =
                    self.0.drain(..).partition(|(suite, is_in)| !is_in && is_meant(suite));
                let new = new.into_iter().map(|(suite, _)| (suite, true));
                self.0 = known.into_iter().chain(new).collect();
            }
        }
    }

    /// Puts those of the list behind the others.
    fn put_last(&mut self, is_meant: impl Fn(&Suite) -> bool) {
        self.0.sort_by_key(|(suite, is_in)| *is_in && is_meant(suite));
    }

    fn suites(&self) -> impl Iterator<Item = &'static Suite> {
        self.0.iter().filter(|(_, is_in)| *is_in).map(|(suite, _)| *suite)
    }
}

/// The suites that a list of OpenSSL's admits, in its order; those of TLS 1.3 always, and first.
///
/// # Errors
/// The list admits none that rustls has.
pub fn cipher_suites(
    list: &str,
    provider: &CryptoProvider,
) -> Result<Vec<SupportedCipherSuite>, ValueError> {
    let all = &provider.cipher_suites;
    let is_newest =
        |suite: &&SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
    let newest = all.iter().filter(is_newest).count();
    let mut found: Vec<_> = all.iter().filter(is_newest).copied().collect();
    for wanted in List::of(list).suites() {
        found.extend(all.iter().find(|suite| suite.suite() == wanted.suite));
    }
    if found.len() == newest {
        return Err(ValueError(format!(
            "no cipher of \"{list}\" is supported by the TLS library, expected some of {}",
            SUITES.each_ref().map(|suite| suite.name).join(", ")
        )));
    }
    Ok(found)
}

/// The suites of a list of those of TLS 1.3, in its order; names that OpenSSL has and rustls has not are skipped.
///
/// # Errors
/// The list names none that is known.
pub fn suites_13(list: &str) -> Result<Vec<CipherSuite>, ValueError> {
    let names = || list.split(':').filter(|name| !name.is_empty());
    let is_known =
        |name: &str| OTHERS_13.contains(&name) || SUITES_13.iter().any(|(known, _)| *known == name);
    if names().next().is_some() && !names().any(is_known) {
        return Err(ValueError(format!("no cipher suite of \"{list}\" is known")));
    }
    let found = names().filter_map(|name| SUITES_13.iter().find(|(known, _)| *known == name));
    Ok(found.map(|(_, suite)| *suite).collect())
}

/// OpenSSL's name of a suite; a number for one it does not have.
pub fn cipher(suite: CipherSuite) -> String {
    if let Some(known) = SUITES.iter().find(|known| known.suite == suite) {
        return known.name.to_owned();
    }
    match SUITES_13.iter().find(|(_, known)| *known == suite) {
        Some((name, _)) => (*name).to_owned(),
        None if suite == CipherSuite::TLS_EMPTY_RENEGOTIATION_INFO_SCSV => {
            "TLS_EMPTY_RENEGOTIATION_INFO_SCSV".to_owned()
        }
        None => format!("0x{:04x}", u16::from(suite)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn names(list: &str) -> Vec<&'static str> {
        List::of(list).suites().map(|suite| suite.name).collect()
    }

    /// Letters for what is in a list: `E` for ECDSA, `R` for RSA, `2` for AES256, `1` for AES128, `c` for ChaCha20.
    fn letters(list: &str) -> String {
        let letter = |suite: &'static Suite| {
            let cipher = match suite.cipher {
                Cipher::Aes256 => "2",
                Cipher::Aes128 => "1",
                Cipher::ChaCha20 => "c",
            };
            format!("{}{cipher} ", &suite.proof[..1])
        };
        List::of(list).suites().map(letter).collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn lists_are_understood_as_openssl_means_them() {
        for (list, found) in [
            ("DEFAULT", "E2 R2 Ec Rc E1 R1"),
            ("HIGH:!aNULL:!MD5", "E2 R2 Ec Rc E1 R1"),
            ("HIGH:!SHA1:!SHA256:!SHA384:!RSA", "E2 R2 Ec Rc E1 R1"),
            ("ECDHE-RSA-AES128-GCM-SHA256", "R1"),
            ("EECDH+AESGCM:EDH+AESGCM", "E2 R2 E1 R1"),
            ("ECDH+AES128:ECDH+AES256", "E1 R1 E2 R2"),
            ("kECDHE+AESGCM:@STRENGTH", "E2 R2 E1 R1"),
            ("AES128:CHACHA20:@STRENGTH", "Ec Rc E1 R1"),
            ("HIGH:!CHACHA20", "E2 R2 E1 R1"),
            ("HIGH:-aECDSA:ECDSA", "R2 Rc R1 E2 Ec E1"),
            ("HIGH:!aECDSA:ECDSA", "R2 Rc R1"),
            ("HIGH:+AES256", "Ec Rc E1 R1 E2 R2"),
            ("+HIGH", ""),
            ("SUITEB128", "E1 E2"),
            ("SUITEB128ONLY:ALL", "E1"),
            ("FIPS:!aNULL", "E2 R2 E1 R1"),
            ("DEFAULT@SECLEVEL=0", "E2 R2 Ec Rc E1 R1"),
            ("HIGH:unknown:!unheard", "E2 R2 Ec Rc E1 R1"),
            ("AES128-SHA:RSA+AESGCM:SHA256", ""),
        ] {
            assert_eq!(letters(list), found, "{list}");
        }
        assert!(cipher_suites("AES128-SHA", crate::provider()).is_err());
        assert_eq!(cipher_suites("FIPS", crate::provider()).unwrap().len(), 7);
    }

    /// Lists made by chance, beside those that OpenSSL makes of them; nothing where it is not installed.
    #[test]
    fn any_list_is_as_openssl_has_it() {
        const WORDS: [&str; 26] = [
            "ALL",
            "HIGH",
            "DEFAULT",
            "ECDHE",
            "EECDH",
            "ECDH",
            "kECDHE",
            "ECDSA",
            "aECDSA",
            "aRSA",
            "RSA",
            "kRSA",
            "AES",
            "AESGCM",
            "AES128",
            "AES256",
            "CHACHA20",
            "SHA256",
            "SHA384",
            "FIPS",
            "MEDIUM",
            "TLSv1.2",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "AES128-SHA",
            "unknown",
        ];
        let mut state = 7u32;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        for _ in 0..150 {
            let mut list = WORDS[next(WORDS.len())].to_owned();
            for _ in 0..next(6) {
                let sign = ["", "", "", "!", "-", "+", "@"][next(7)];
                let word = WORDS[next(WORDS.len())];
                list += &match sign {
                    "@" => ":@STRENGTH".to_owned(),
                    _ if next(3) == 0 => format!(":{sign}{word}+{}", WORDS[next(WORDS.len())]),
                    _ => format!(":{sign}{word}"),
                };
            }
            let Ok(output) = Command::new("openssl").args(["ciphers", &list]).output() else {
                return;
            };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let known = |name: &&str| SUITES.iter().any(|suite| suite.name == *name);
            let wanted: Vec<&str> = text.trim().split(':').filter(known).collect();
            assert_eq!(names(&list), wanted, "{list}");
        }
    }

    #[test]
    fn suites_of_tls_13_have_a_list_of_their_own() {
        let list = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_CCM_SHA256:unknown";
        assert_eq!(suites_13(list).unwrap(), [CipherSuite::TLS13_CHACHA20_POLY1305_SHA256]);
        assert!(suites_13("unknown").is_err());
        assert!(suites_13("").unwrap().is_empty());
    }
}
