//! `ssl_conf_command` and its relatives: commands for OpenSSL, as far as rustls can do what they say.
//!
//! # Source
//! OpenSSL's manual, SSL_CONF_cmd(3).

use crate::ciphers::{cipher_suites, suites_13};
use crate::names::Curves;
use crate::provider;
use bytes::Bytes;
use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ProtocolVersion, SupportedProtocolVersion};
use std::sync::Arc;
use yorozu_kernel::config::directive::{Adds, Args, Setting, ValueError};

/// What the commands of a block say.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `CipherString`
    ciphers: Option<String>,
    /// `Ciphersuites`
    suites_13: Option<Vec<CipherSuite>>,
    /// `Curves` and `Groups`
    curves: Option<Curves>,
    /// Changes of the versions, in order.
    versions: Vec<Versions>,
    /// `Options ServerPreference`
    prefers_server: Option<bool>,
    /// `Options SessionTicket`
    has_tickets: Option<bool>,
}

/// What a command does to the versions that may be spoken; they are numbered as on the wire.
#[derive(Clone, Copy, Debug)]
enum Versions {
    AtLeast(u16),
    AtMost(u16),
    With(u16),
    Without(u16),
}

/// OpenSSL's names of versions.
const VERSIONS: [(&str, u16); 6] = [
    ("SSLv2", 0x0200),
    ("SSLv3", 0x0300),
    ("TLSv1", 0x0301),
    ("TLSv1.1", 0x0302),
    ("TLSv1.2", 0x0303),
    ("TLSv1.3", 0x0304),
];

/// Commands that are taken and change nothing, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("SignatureAlgorithms", "the TLS library chooses them"),
    ("ClientSignatureAlgorithms", "the TLS library chooses them"),
    ("RecordPadding", "records are not padded"),
    ("NumTickets", "one ticket is sent"),
    ("DHParameters", "the TLS library exchanges keys over curves only"),
    ("ECDHParameters", "\"Groups\" is meant"),
];

/// `Options` that say how rustls is anyway, or what it cannot do and need not be told.
const OPTIONS_WITHOUT_EFFECT: [&str; 22] = [
    "AllowNoDHEKEX",
    "AntiReplay",
    "Bugs",
    "CANames",
    "ClientRenegotiation",
    "Compression",
    "DHSingle",
    "ECDHSingle",
    "EmptyFragments",
    "EncryptThenMac",
    "ExtendedMasterSecret",
    "KTLS",
    "KTLSTxZerocopySendfile",
    "MiddleboxCompat",
    "NoRenegotiation",
    "NoResumptionOnRenegotiation",
    "PreferNoDHEKEX",
    "PrioritizeChaCha",
    "RxCertificateCompression",
    "StrictCertCheck",
    "TxCertificateCompression",
    "UnsafeLegacyServerConnect",
];

impl Adds for Commands {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let (name, value) = (args.text(0), args.text(1));
        let failed =
            |why: &str| ValueError(format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed: {why}"));
        let is = |known: &str| known.eq_ignore_ascii_case(&name);
        if is("CipherString") {
            cipher_suites(&value, provider()).map_err(|why| failed(&why.0))?;
            self.ciphers = Some(value);
        } else if is("Ciphersuites") {
            self.suites_13 = Some(suites_13(&value).map_err(|why| failed(&why.0))?);
        } else if is("Curves") || is("Groups") {
            let words = [Bytes::from(value)];
            self.curves = Some(Curves::from_args(&Args { words: &words, ..*args })?);
        } else if is("MinProtocol") || is("MaxProtocol") {
            let bound = if is("MinProtocol") { Versions::AtLeast } else { Versions::AtMost };
            if !value.eq_ignore_ascii_case("None") {
                let version = version(&value).ok_or_else(|| failed("unknown version"))?;
                self.versions.push(bound(version));
            }
        } else if is("Protocol") {
            self.protocol(&value).ok_or_else(|| failed("unknown version"))?;
        } else if is("Options") {
            for option in value.split(',') {
                self.option(args, option).ok_or_else(|| failed("unknown option"))?;
            }
        } else {
            let known = WITHOUT_EFFECT.iter().find(|(known, _)| is(known));
            let (known, why) =
                known.ok_or_else(|| failed("the TLS library has no such command"))?;
            args.env.warn(format!("\"{} {known}\" has no effect: {why}", args.name));
        }
        Ok(())
    }
}

fn version(name: &str) -> Option<u16> {
    VERSIONS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, number)| *number)
}

impl Commands {
    /// `-TLSv1.3`, `ALL,-TLSv1.2`
    fn protocol(&mut self, list: &str) -> Option<()> {
        for word in list.split(',') {
            let name = word.trim_start_matches(['+', '-']);
            let change = if word.starts_with('-') { Versions::Without } else { Versions::With };
            if name.eq_ignore_ascii_case("ALL") {
                self.versions.extend(VERSIONS.map(|(_, number)| change(number)));
            } else {
                self.versions.push(change(version(name)?));
            }
        }
        Some(())
    }

    fn option(&mut self, args: &Args<'_>, word: &str) -> Option<()> {
        let name = word.trim_start_matches(['+', '-']);
        let is_on = !word.starts_with('-');
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        if is("ServerPreference") {
            self.prefers_server = Some(is_on);
        } else if is("SessionTicket") {
            self.has_tickets = Some(is_on);
        } else {
            let known = OPTIONS_WITHOUT_EFFECT.iter().find(|known| is(known))?;
            args.env.warn(format!("\"{} Options {known}\" has no effect", args.name));
        }
        Some(())
    }

    /// The provider with the suites and groups that the commands say, else with those of `ciphers` and `curves`.
    ///
    /// # Errors
    /// No suite is left.
    pub fn provider(
        &self,
        ciphers: &str,
        curves: Option<&Curves>,
    ) -> Result<Arc<CryptoProvider>, ValueError> {
        let all = provider();
        let mut suites = cipher_suites(self.ciphers.as_deref().unwrap_or(ciphers), all)?;
        if let Some(wanted) = &self.suites_13 {
            let is_newest = |suite: &rustls::SupportedCipherSuite| {
                suite.version().version == ProtocolVersion::TLSv1_3
            };
            let (newest, older): (Vec<_>, Vec<_>) = suites.into_iter().partition(is_newest);
            let find = |wanted: &CipherSuite| newest.iter().find(|suite| suite.suite() == *wanted);
            suites = wanted.iter().filter_map(find).copied().chain(older).collect();
        }
        let curves = self.curves.as_ref().or(curves);
        Ok(Arc::new(CryptoProvider {
            cipher_suites: suites,
            kx_groups: curves.map_or_else(|| all.kx_groups.clone(), |curves| curves.groups(all)),
            ..CryptoProvider::clone(all)
        }))
    }

    /// The versions that are left of those that another directive says.
    ///
    /// # Errors
    /// None.
    pub fn protocols(
        &self,
        written: &[&'static SupportedProtocolVersion],
    ) -> Result<Vec<&'static SupportedProtocolVersion>, ValueError> {
        let number = |version: &SupportedProtocolVersion| u16::from(version.version);
        let mut allowed: Vec<u16> = written.iter().map(|version| number(version)).collect();
        let (mut least, mut most) = (0, u16::MAX);
        for change in &self.versions {
            match *change {
                Versions::AtLeast(bound) => least = bound,
                Versions::AtMost(bound) => most = bound,
                Versions::With(version) => allowed.push(version),
                Versions::Without(version) => allowed.retain(|known| *known != version),
            }
        }
        let is_left = |number: u16| allowed.contains(&number) && (least..=most).contains(&number);
        let known = [&rustls::version::TLS12, &rustls::version::TLS13];
        let left: Vec<_> = known.into_iter().filter(|version| is_left(number(version))).collect();
        if left.is_empty() {
            return Err(ValueError::new(
                "no protocol is left that the TLS library supports, expected TLSv1.2 or TLSv1.3",
            ));
        }
        Ok(left)
    }

    /// Whether the server's order of ciphers decides, where another directive says `written`.
    pub fn prefers_server(&self, written: bool) -> bool {
        self.prefers_server.unwrap_or(written)
    }

    /// Whether clients get tickets, where another directive says `written`.
    pub fn has_tickets(&self, written: bool) -> bool {
        self.has_tickets.unwrap_or(written)
    }
}
