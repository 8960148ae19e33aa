//! One certificate: what is shown to clients, and how it stands. It outlives configurations, and is the same for all servers
//! that want the same names of the same issuer.

use crate::identifier::{Identifier, KeyKind, file_name};
use crate::issuer::Issuer;
use arc_swap::ArcSwapOption;
use instant_acme::CertificateIdentifier;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::{Der, ServerName};
use rustls::sign::CertifiedKey;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use x509_cert::Certificate as X509;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error_log::ErrorLogs;
use yorozu_tls::host;
use yorozu_tls::identity::Identity;
use yorozu_tls::pem::PemFiles;
use yorozu_tls::x509;
use yorozu_upstream::Resolver;

/// What stands before PEM text in the place of a path.
const DATA: &[u8] = b"data:";

/// What is ordered, of whom.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Order {
    /// The issuer's name in the configuration.
    pub issuer: String,
    pub uri: String,
    pub folder: Option<PathBuf>,
    pub identifiers: Vec<Identifier>,
    pub key: KeyKind,
}

impl Order {
    /// The name of its files, and in logs.
    pub fn file_name(&self) -> String {
        file_name(&self.identifiers, self.key)
    }
}

/// A certificate with its key, as clients see it.
pub struct Shown {
    pub certified: Arc<CertifiedKey>,
    /// PEM texts.
    pub chain: String,
    pub key: String,
    /// Whether the issuer made it, for exactly this order.
    pub is_issued: bool,
    /// Seconds since 1970.
    pub validity: (Duration, Duration),
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        f.debug_struct("Shown").field("chain", &self.chain).finish_non_exhaustive()
    }
}

impl Shown {
    /// # Errors
    /// What is wrong with the texts, or that the key is another certificate's.
    pub(crate) fn read(chain: String, key: String, is_issued: bool) -> Result<Self, String> {
        let data = |text: &str| PathBuf::from(format!("data:{text}"));
        let identity =
            Identity { certificate: data(&chain), key: data(&key), passwords: Vec::new() };
        let certified = identity.load(&PemFiles::default()).map_err(|problem| problem.0)?;
        let validity = certified.cert.first().and_then(x509::validity);
        let validity = validity.ok_or("the certificate has no dates")?;
        Ok(Self { certified: Arc::new(certified), chain, key, is_issued, validity })
    }

    /// One that the server signs itself.
    pub(crate) fn self_signed(identifiers: &[Identifier]) -> Result<Self, String> {
        let text = |problem: rcgen::Error| problem.to_string();
        let names: Vec<_> = identifiers.iter().map(Identifier::to_string).collect();
        let mut params = CertificateParams::new(names).map_err(text)?;
        params.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate().map_err(text)?;
        let certificate = params.self_signed(&key).map_err(text)?;
        Self::read(certificate.pem(), key.serialize_pem(), false)
    }

    /// What the issuer's information about renewal is asked by (RFC 9773, section 4.1).
    pub(crate) fn identifier(&self) -> Option<CertificateIdentifier<'static>> {
        let parsed = X509::from_der(self.certified.cert.first()?).ok()?;
        let content = parsed.tbs_certificate();
        let (_, authority) = content.get_extension::<AuthorityKeyIdentifier>().ok()??;
        let authority = authority.key_identifier?;
        let serial = content.serial_number().as_bytes();
        let der = |bytes| Der::from_slice(bytes);
        Some(CertificateIdentifier::new(der(authority.as_bytes()), der(serial)).into_owned())
    }

    /// Whether it is for a name.
    pub(crate) fn is_for(&self, identifier: &Identifier) -> bool {
        let name = match identifier {
            Identifier::Dns(name) => ServerName::try_from(name.clone()).ok(),
            Identifier::Ip(address) => Some(ServerName::from(*address)),
        };
        let own = self.certified.cert.first();
        own.zip(name).is_some_and(|(own, name)| host::is_named(own, &name))
    }

    pub(crate) fn is_valid(&self, now: Duration) -> bool {
        (self.validity.0..self.validity.1).contains(&now)
    }
}

/// What a configuration says of how it is to be got.
#[derive(Debug)]
pub struct Duty {
    pub issuer: Arc<Issuer>,
    pub log: ErrorLogs,
    pub resolver: Option<(Resolver, Duration)>,
}

/// What happens to it next.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Next {
    #[default]
    Nothing,
    Ordering,
    /// At a time, in seconds since 1970.
    Order(Duration),
    Renew(Duration),
    /// What is wrong is not repaired by waiting.
    Reload,
    /// Another process has the folder's lock.
    Other,
}

/// How it stands.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    pub next: Next,
    pub failures: u32,
    pub last_error: Option<String>,
}

/// A certificate.
#[derive(Debug)]
pub struct Certificate {
    pub order: Order,
    shown: ArcSwapOption<Shown>,
    standing: Mutex<Standing>,
    duty: ArcSwapOption<Duty>,
    /// How many configurations were read with it.
    reread: watch::Sender<u64>,
}

impl Certificate {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            order,
            shown: ArcSwapOption::empty(),
            standing: Mutex::default(),
            duty: ArcSwapOption::empty(),
            reread: watch::Sender::new(0),
        }
    }

    /// What clients see; `None` only where no one serves.
    pub fn shown(&self) -> Option<Arc<Shown>> {
        self.shown.load_full()
    }

    /// What clients see, ready for use, if the values of `ssl_certificate` and its key are this certificate's texts.
    pub fn if_named(&self, chain: &[u8], key: &[u8]) -> Option<Arc<CertifiedKey>> {
        let shown = self.shown.load();
        let shown = shown.as_ref()?;
        let is_same = |value: &[u8], text: &str| value.strip_prefix(DATA) == Some(text.as_bytes());
        (is_same(chain, &shown.chain) && is_same(key, &shown.key))
            .then(|| Arc::clone(&shown.certified))
    }

    pub(crate) fn show(&self, shown: Shown) {
        self.shown.store(Some(Arc::new(shown)));
    }

    pub fn duty(&self) -> Option<Arc<Duty>> {
        self.duty.load_full()
    }

    pub(crate) fn set_duty(&self, duty: Duty) {
        self.duty.store(Some(Arc::new(duty)));
        self.reread.send_modify(|count| *count += 1);
    }

    /// Tells when a configuration was read.
    pub(crate) fn reread(&self) -> watch::Receiver<u64> {
        self.reread.subscribe()
    }

    pub fn standing(&self) -> Standing {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        // A panic elsewhere leaves at worst an old word in it.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, change: impl FnOnce(&mut Standing)) {
        change(&mut self.lock());
    }

    /// A line of the log about it.
    pub(crate) fn log(&self, level: Level, text: &str) {
        if let Some(duty) = self.duty() {
            let (issuer, order) = (&self.order.issuer, self.order.file_name());
            duty.log
                .process(level, &format!("{text}, acme issuer: \"{issuer}\", order: \"{order}\""));
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
