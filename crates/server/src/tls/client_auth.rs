//! Certificates of clients: asked for in the handshake, judged after it, as nginx does: a client
//! whose certificate is no good gets a page that says so.

use super::pem::PemFiles;
use super::provider;
use super::tickets::{self, Circle};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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

/// What the judgement on a client's certificate is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Judgement {
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
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Certificates that are good by themselves.
    trusted: Vec<CertificateDer<'static>>,
    hints: Arc<[DistinguishedName]>,
    circle: Circle,
    /// Intermediate certificates allowed.
    depth: usize,
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
        let mut roots = RootCertStore::empty();
        let mut parts: Vec<Vec<u8>> = vec![vec![asking as u8]];
        let (mut hints, mut all) = (Vec::new(), Vec::new());
        for (path, is_named) in [(named, true), (trusted, false)] {
            let Some(path) = path else { continue };
            let certificates = files.certificates(path, "certificate")?;
            parts.extend(certificates.iter().map(|certificate| certificate.to_vec()));
            if is_named {
                // Helps clients with several certificates to choose.
                let mut named = RootCertStore::empty();
                named.add_parsable_certificates(certificates.iter().cloned());
                hints = named.subjects();
                hints.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
                hints.dedup_by(|a, b| a.as_ref() == b.as_ref());
            }
            all.extend_from_slice(&certificates);
            roots.add_parsable_certificates(certificates);
        }
        let circle = tickets::circle(parts.iter().map(|part| &part[..]));
        let mut verifier = None;
        if !roots.is_empty() {
            let mut builder = WebPkiClientVerifier::builder_with_provider(
                Arc::new(roots),
                Arc::clone(provider()),
            );
            if let Some(crl) = crl {
                builder = builder.with_crls(files.revocations(crl)?);
            }
            let built =
                builder.build().map_err(|problem| format!("cannot verify clients: {problem}"))?;
            verifier = Some(built);
        }
        Ok(Self { asking, verifier, trusted: all, hints: hints.into(), circle, depth })
    }

    /// What sessions under this rule have in common.
    pub fn circle(&self) -> Circle {
        self.circle
    }

    /// For the handshake: asks, and sees to it that the client holds its certificate's key.
    pub fn handshake_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let algorithms = provider().signature_verification_algorithms;
        Arc::new(Believing { hints: Arc::clone(&self.hints), algorithms })
    }

    /// Judges what a client has shown: its certificate and those behind it.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Judgement {
        let Some((own, others)) = chain.split_first() else { return Judgement::None };
        let result = match &self.verifier {
            // An authority that shows its own certificate; rustls takes it for nobody's but a signer's.
            _ if self.trusted.iter().any(|trusted| trusted == own) => timely(own),
            None => Err(CertificateError::UnknownIssuer),
            Some(verifier) => {
                // rustls finds the way to an authority and does not tell its length: those sent bound it.
                let others = &others[..self.depth.min(others.len())];
                match verifier.verify_client_cert(own, others, UnixTime::now()) {
                    Ok(_) => Ok(()),
                    Err(rustls::Error::InvalidCertificate(reason)) => Err(reason),
                    Err(_) => Err(CertificateError::BadEncoding),
                }
            }
        };
        match result {
            Ok(()) => Judgement::Success,
            Err(reason) => {
                let (number, words) = words(&reason, own, self.depth < others.len());
                Judgement::Failed(number, words)
            }
        }
    }

    /// May a client that was judged so be answered?
    pub fn admits(&self, judgement: &Judgement) -> Result<(), u16> {
        // As nginx: whoever signed it, or whether its signer is known, does not count here.
        const BY_SELF: [u16; 5] = [2, 18, 19, 20, 21];
        match (judgement, self.asking) {
            (Judgement::None, Asking::Must) => Err(496),
            (Judgement::Failed(number, _), Asking::MayBySelf) if BY_SELF.contains(number) => Ok(()),
            (Judgement::Failed(..), _) => Err(495),
            _ => Ok(()),
        }
    }
}

/// Is a certificate valid now?
fn timely(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let (start, end) = super::x509::validity(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = Duration::from_secs(UnixTime::now().as_secs());
    if now < start {
        return Err(CertificateError::NotValidYet);
    }
    if now > end { Err(CertificateError::Expired) } else { Ok(()) }
}

/// OpenSSL's number and words for a reason (`X509_V_ERR_…`, openssl-verification-options(1)).
fn words(
    reason: &CertificateError,
    certificate: &CertificateDer<'_>,
    is_too_long: bool,
) -> (u16, &'static str) {
    use CertificateError as E;
    match reason {
        E::Expired | E::ExpiredContext { .. } => (10, "certificate has expired"),
        E::NotValidYet | E::NotValidYetContext { .. } => (9, "certificate is not yet valid"),
        E::Revoked => (23, "certificate revoked"),
        E::BadSignature => (7, "certificate signature failure"),
        E::UnknownRevocationStatus => (3, "unable to get certificate CRL"),
        E::ExpiredRevocationList | E::ExpiredRevocationListContext { .. } => {
            (12, "CRL has expired")
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            (26, "unsuitable certificate purpose")
        }
        E::UnhandledCriticalExtension => (34, "unhandled critical extension"),
        E::UnknownIssuer if is_too_long => (22, "certificate chain too long"),
        E::UnknownIssuer if super::x509::is_self_signed(certificate) => {
            (18, "self-signed certificate")
        }
        // A certificate that may sign, shown as a client's own.
        E::Other(_) if super::x509::is_self_signed(certificate) => (18, "self-signed certificate"),
        E::UnknownIssuer => (21, "unable to verify the first certificate"),
        _ => (1, "unspecified certificate verification error"),
    }
}

/// Believes any certificate whose key the client holds.
#[derive(Debug)]
struct Believing {
    hints: Arc<[DistinguishedName]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Believing {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        super::verify_by_key(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
