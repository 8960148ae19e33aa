//! Certificates of clients: asked for in the handshake, judged after it, as nginx does: a client
//! whose certificate is not valid gets a page that says so.

use crate::tls::tickets::{self, Circle};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{DistinguishedName, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use yorozu_tls::chain::{Authorities, Purpose};
use yorozu_tls::pem::PemFiles;
use yorozu_tls::verifier::AnyClient;
use yorozu_tls::x509;

/// What is asked of clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asking {
    /// A certificate that an authority signed.
    Must,
    /// None, or one that an authority signed.
    May,
    /// None, or any.
    MayBySelf,
}

/// What the verification of a client's certificate came to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verification {
    /// None was shown.
    None,
    Success,
    /// OpenSSL's number and words for the reason.
    Failed(u16, &'static str),
}

/// How clients prove who they are.
#[derive(Debug)]
pub struct ClientAuth {
    pub asking: Asking,
    authorities: Authorities,
    hints: Arc<[DistinguishedName]>,
    circle: Circle,
}

impl ClientAuth {
    /// # Errors
    /// A file that cannot be used.
    pub fn load(
        asking: Asking,
        named: Option<&Path>,
        trusted: Option<&Path>,
        crl: Option<&Path>,
        depth: usize,
        files: &PemFiles,
    ) -> Result<Self, String> {
        let mut hints = Vec::new();
        let mut all = Vec::new();
        for (path, is_named) in [(named, true), (trusted, false)] {
            let Some(path) = path else { continue };
            let certificates = files.certificates(path, "certificate")?;
            if is_named {
                // Helps clients with several certificates to choose.
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates.iter().cloned());
                hints = roots.subjects();
                hints.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
                hints.dedup_by(|a, b| a.as_ref() == b.as_ref());
            }
            all.extend(certificates);
        }
        let rule = [asking as u8];
        let parts = std::iter::once(&rule[..]).chain(all.iter().map(|der| &der[..]));
        let circle = tickets::circle(parts);
        let authorities = Authorities::load(all, crl, depth, Purpose::Client, files)?;
        Ok(Self { asking, authorities, hints: hints.into(), circle })
    }

    /// What is to be said of trusted certificates that are of no use as authorities.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.authorities.unreadable().map(|(der, problem)| {
            let subject = x509::name(der, x509::Who::Subject).unwrap_or_default();
            let why = match problem {
                webpki::Error::UnsupportedCertVersion => {
                    "it is not an X.509 version 3 certificate".to_owned()
                }
                problem => problem.to_string(),
            };
            format!("clients are not verified by the certificate of \"{subject}\": {why}")
        })
    }

    /// What sessions under this rule have in common.
    pub fn circle(&self) -> Circle {
        self.circle
    }

    /// For the handshake: asks, and sees to it that the client holds its certificate's key.
    pub fn handshake_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(AnyClient { hints: Arc::clone(&self.hints) })
    }

    /// Judges what a client has shown: its certificate and those behind it.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Verification {
        if chain.is_empty() {
            return Verification::None;
        }
        match self.authorities.verify(chain, UnixTime::now()) {
            Ok(()) => Verification::Success,
            Err((number, words)) => Verification::Failed(number, words),
        }
    }

    /// Admits a client with this verification, or says the status it gets.
    pub fn admits(&self, verification: &Verification) -> Result<(), u16> {
        // As nginx: it does not count here who signed it, nor whether the signer is known.
        const BY_SELF: [u16; 4] = [18, 19, 20, 21];
        match (verification, self.asking) {
            (Verification::None, Asking::Must) => Err(496),
            (Verification::Failed(number, _), Asking::MayBySelf) if BY_SELF.contains(number) => {
                Ok(())
            }
            (Verification::Failed(..), _) => Err(495),
            _ => Ok(()),
        }
    }
}
