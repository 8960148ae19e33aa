//! Paths from a peer's certificate to an authority: RFC 5280, section 6, by rustls-webpki.
//!
//! The library drops of a root what stands in it besides name and key. So the root is given to it
//! twice: as an anchor, and as a certificate between the anchor and the rest. A path counts only if
//! its last certificate is a trusted one, byte for byte: the library has then judged the root's
//! dates, its right to sign, length of path, purposes and constraints on names as those of any
//! issuer, and what is checked here is checked of every issuer alike.
//!
//! # Invariants
//! - Every signer on a path has been checked by the library and by [`Authorities::check_path`].
//! - A certificate that is trusted and shown itself needs no signer, and is compared as a whole.
//! - Work is bounded: the certificates looked at, those of one name among them, and the library
//!   bounds the rest.

use super::certificate::Certificate;
pub use super::certificate::Purpose;
use super::distinguished_name::{has_mail_address, may_name_host};
use super::pem::PemFiles;
use super::provider;
use super::restated::{Restated, Restating};
use super::revocation::Revocation;
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, CertificateRevocationListDer, InvalidSignature,
    SignatureVerificationAlgorithm, TrustAnchor, UnixTime, alg_id,
};
use std::cell::Cell;
use std::path::Path;
use webpki::{EndEntityCert, Error, KeyUsage, RevocationOptions, VerifiedPath};

/// OpenSSL's number and words for a reason (`X509_V_ERR_…`, openssl-verification-options(1)).
pub type Refusal = (u16, &'static str);

const BROKEN: Refusal = (1, "unspecified certificate verification error");
const NO_ROOT: Refusal = (2, "unable to get issuer certificate");
pub const UNKNOWN_CRL: Refusal = (3, "unable to get certificate CRL");
const BAD_SIGNATURE: Refusal = (7, "certificate signature failure");
const BAD_CRL_SIGNATURE: Refusal = (8, "CRL signature failure");
const NOT_YET_VALID: Refusal = (9, "certificate is not yet valid");
const EXPIRED: Refusal = (10, "certificate has expired");
pub const CRL_NOT_YET_VALID: Refusal = (11, "CRL is not yet valid");
pub const CRL_EXPIRED: Refusal = (12, "CRL has expired");
const SELF_SIGNED: Refusal = (18, "self-signed certificate");
const SELF_SIGNED_ABOVE: Refusal = (19, "self-signed certificate in certificate chain");
const UNKNOWN_ISSUER: Refusal = (20, "unable to get local issuer certificate");
const UNVERIFIED: Refusal = (21, "unable to verify the first certificate");
pub const REVOKED: Refusal = (23, "certificate revoked");
const PATH_LENGTH: Refusal = (25, "path length constraint exceeded");
const PURPOSE: Refusal = (26, "unsuitable certificate purpose");
const NO_CERTIFICATE_SIGNER: Refusal = (32, "key usage does not include certificate signing");
const CRITICAL: Refusal = (34, "unhandled critical extension");
pub const LIST_SIGNER: Refusal = (35, "key usage does not include CRL signing");
const NAME_CONSTRAINT: Refusal = (47, "permitted subtree violation");
const WEAK_DIGEST: Refusal = (68, "CA signature digest algorithm too weak");

/// Certificates of a peer that are looked at; more are never needed.
const SENT_MAX: usize = 16;
/// Those of one name among them: one that was renewed, or signed by two authorities. With more,
/// a chain made up for it could have the library try ways without end.
const OF_ONE_NAME_MAX: usize = 2;

/// The authorities that peers are verified by: clients, or the servers behind a gateway.
#[derive(Debug)]
pub struct Authorities {
    trusted: Vec<CertificateDer<'static>>,
    /// Those of them that signed themselves: a path ends there.
    anchors: Vec<TrustAnchor<'static>>,
    own_signatures: OwnSignatures,
    revocation: Option<Revocation>,
    /// Certificates allowed between a peer's and a root.
    depth: usize,
    purpose: Purpose,
}

impl Authorities {
    /// # Errors
    /// A list of revoked certificates that cannot be read.
    fn new(
        trusted: Vec<CertificateDer<'static>>,
        revoked: Option<&[CertificateRevocationListDer<'_>]>,
        depth: usize,
        purpose: Purpose,
    ) -> Result<Self, String> {
        let revocation = revoked.map(Revocation::read).transpose()?;
        let roots = || trusted.iter().filter(|der| is_self_issued(der));
        let anchors =
            roots().filter_map(|der| Some(webpki::anchor_from_trusted_cert(der).ok()?.to_owned()));
        let anchors = anchors.collect();
        let own_signatures = OwnSignatures::of(roots());
        Ok(Self { anchors, own_signatures, trusted, revocation, depth, purpose })
    }

    /// The same with lists out of a file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(
        trusted: Vec<CertificateDer<'static>>,
        crl: Option<&Path>,
        depth: usize,
        purpose: Purpose,
        files: &PemFiles,
    ) -> Result<Self, String> {
        let Some(crl) = crl else { return Self::new(trusted, None, depth, purpose) };
        let lists = files.revocations(crl)?;
        Self::new(trusted, Some(&lists), depth, purpose)
            .map_err(|problem| format!("cannot load CRL \"{}\": {problem}", crl.display()))
    }

    /// Trusted certificates that the library cannot read, and why: they sign no other certificate.
    pub fn unreadable(&self) -> impl Iterator<Item = (&CertificateDer<'static>, Error)> {
        self.trusted.iter().filter_map(|der| Some((der, EndEntityCert::try_from(der).err()?)))
    }

    /// Verifies a peer's certificate, with those it has sent behind it.
    ///
    /// # Errors
    /// Why it is not valid.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Refusal> {
        let (leaf, sent) = chain.split_first().ok_or(BROKEN)?;
        let own = Certificate::read(leaf).ok_or(BROKEN)?;
        let (begin, end) = own.validity().ok_or(BROKEN)?;
        if now.as_secs() < begin.as_secs() {
            return Err(NOT_YET_VALID);
        }
        if now.as_secs() >= end.as_secs() {
            return Err(EXPIRED);
        }
        if !own.is_for(self.purpose) {
            return Err(PURPOSE);
        }
        if own.is_self_issued() {
            return self.check_self_issued(&own, leaf, now);
        }
        let sent = looked_at(sent);
        let found = match &self.revocation {
            None => self.find_path(leaf, &sent, now, None),
            Some(lists) => {
                lists.with_options(now, |lists| self.find_path(leaf, &sent, now, Some(lists)))
            }
        };
        match found {
            Err(UNKNOWN_ISSUER) => Err(self.why_unknown(&own, &sent)),
            found => found,
        }
    }

    /// Checks that a peer's certificate that signed itself is trusted itself; nothing else counts for it.
    fn check_self_issued(
        &self,
        own: &Certificate<'_>,
        leaf: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        match EndEntityCert::try_from(leaf) {
            Ok(_) | Err(Error::UnsupportedCertVersion) => {}
            Err(problem) => return Err(refusal(&problem)),
        }
        match (self.trusted.iter().any(|trusted| trusted == leaf), &self.revocation) {
            (true, None) => Ok(()),
            (true, Some(lists)) => lists.check_self_signed(own, now),
            (false, None) => Err(SELF_SIGNED),
            (false, Some(_)) => Err(UNKNOWN_CRL),
        }
    }

    fn find_path(
        &self,
        leaf: &CertificateDer<'_>,
        sent: &[CertificateDer<'_>],
        now: UnixTime,
        revocation: Option<RevocationOptions<'_>>,
    ) -> Result<(), Refusal> {
        let restated = Certificate::read(leaf).as_ref().and_then(Restated::certificate);
        let lists = self.revocation.iter().flat_map(Revocation::restated);
        let all: Vec<_> = restated.iter().chain(lists).collect();
        let leaf = CertificateDer::from(restated.as_ref().map_or(&leaf[..], |found| &found.der));
        let leaf = EndEntityCert::try_from(&leaf).map_err(|problem| refusal(&problem))?;
        let known = provider().signature_verification_algorithms.all;
        let known: Vec<_> =
            known.iter().map(|known| Restating { known: *known, restated: &all }).collect();
        let mut algorithms: Vec<&dyn SignatureVerificationAlgorithm> =
            known.iter().map(|known| known as _).collect();
        algorithms.push(&self.own_signatures);
        let trusted = self.trusted.iter().map(|der| CertificateDer::from(&der[..]));
        let others: Vec<_> =
            sent.iter().map(|der| CertificateDer::from(&der[..])).chain(trusted).collect();
        // The library's errors cannot say it.
        let own_refusal = Cell::new(UNKNOWN_ISSUER);
        let check = |path: &VerifiedPath<'_>| {
            self.check_path(path).map_err(|why| {
                own_refusal.set(why);
                Error::UnknownIssuer
            })
        };
        let found = leaf.verify_for_usage(
            &algorithms,
            &self.anchors,
            &others,
            now,
            self.usage(),
            revocation,
            Some(&check),
        );
        match found {
            Ok(_) => Ok(()),
            Err(Error::UnknownIssuer) => Err(own_refusal.get()),
            Err(problem) => Err(refusal(&problem)),
        }
    }

    fn usage(&self) -> KeyUsage {
        match self.purpose {
            Purpose::Client => KeyUsage::client_auth(),
            Purpose::Server => KeyUsage::server_auth(),
        }
    }

    /// What the library leaves to us of a path that it has found.
    fn check_path(&self, path: &VerifiedPath<'_>) -> Result<(), Refusal> {
        let issuers: Vec<_> = path.intermediate_certificates().map(|issuer| issuer.der()).collect();
        let (root, between) = issuers.split_last().ok_or(UNKNOWN_ISSUER)?;
        // As OpenSSL, which does not look beyond the depth.
        if !is_self_issued(root) || !self.trusted.contains(root) || between.len() > self.depth {
            return Err(UNKNOWN_ISSUER);
        }
        let leaf = path.end_entity().der();
        let leaf = Certificate::read(&leaf).ok_or(BROKEN)?;
        let has_host = path.end_entity().valid_dns_names().next().is_some();
        // The library compares constraints with alternative names of the kinds it knows, and with
        // nothing else.
        let mut is_beyond = !has_host && may_name_host(leaf.subject);
        let mut below = leaf;
        for issuer in &issuers {
            let issuer = Certificate::read(issuer).ok_or(BROKEN)?;
            if !issuer.may_sign_certificates() {
                return Err(NO_CERTIFICATE_SIGNER);
            }
            is_beyond |= has_mail_address(below.subject) || below.has_other_names();
            if is_beyond && issuer.constrains_names() {
                return Err(NAME_CONSTRAINT);
            }
            below = issuer;
        }
        Ok(())
    }

    /// OpenSSL's word for a path that ends too early.
    fn why_unknown(&self, own: &Certificate<'_>, sent: &[CertificateDer<'_>]) -> Refusal {
        let issuer = |among: &[CertificateDer<'_>]| {
            let mut read = among.iter().filter_map(|der| Certificate::read(der));
            read.find(|other| other.subject == own.issuer).map(|found| found.is_self_issued())
        };
        let why = if issuer(sent).is_some() {
            let is_untrusted = |der: &&CertificateDer<'_>| !self.trusted.contains(der);
            let is_end = sent.iter().filter(is_untrusted).any(|der| is_self_issued(der));
            if is_end { SELF_SIGNED_ABOVE } else { UNKNOWN_ISSUER }
        } else {
            match issuer(&self.trusted) {
                None => return UNVERIFIED,
                Some(false) => NO_ROOT,
                Some(true) => UNKNOWN_ISSUER,
            }
        };
        // As OpenSSL: a certificate with an unknown signer has no list either.
        if self.revocation.is_some() { UNKNOWN_CRL } else { why }
    }
}

/// What a peer has sent behind its own certificate, within bounds.
fn looked_at<'c>(sent: &'c [CertificateDer<'_>]) -> Vec<CertificateDer<'c>> {
    let mut names: Vec<&[u8]> = Vec::new();
    let mut kept = Vec::new();
    for der in sent.iter().take(SENT_MAX) {
        let Some(Certificate { subject, .. }) = Certificate::read(der) else { continue };
        if names.iter().filter(|name| **name == subject).count() < OF_ONE_NAME_MAX {
            names.push(subject);
            kept.push(CertificateDer::from(&der[..]));
        }
    }
    kept
}

fn is_self_issued(der: &CertificateDer<'_>) -> bool {
    Certificate::read(der).is_some_and(|found| found.is_self_issued())
}

/// OpenSSL's word for what the library says.
fn refusal(problem: &Error) -> Refusal {
    match problem {
        Error::CaUsedAsEndEntity
        | Error::EmptyEkuExtension
        | Error::EndEntityUsedAsCa
        | Error::RequiredEkuNotFoundContext(_) => PURPOSE,
        Error::CertExpired { .. } | Error::InvalidCertValidity => EXPIRED,
        Error::CertNotValidYet { .. } => NOT_YET_VALID,
        Error::CertRevoked => REVOKED,
        Error::CrlExpired { .. } => CRL_EXPIRED,
        Error::InvalidCrlSignatureForPublicKey
        | Error::UnsupportedCrlSignatureAlgorithmContext(_)
        | Error::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => BAD_CRL_SIGNATURE,
        Error::InvalidSignatureForPublicKey
        | Error::SignatureAlgorithmMismatch
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => BAD_SIGNATURE,
        Error::IssuerNotCrlSigner => LIST_SIGNER,
        Error::NameConstraintViolation => NAME_CONSTRAINT,
        Error::PathLenConstraintViolated => PATH_LENGTH,
        Error::MaximumPathDepthExceeded | Error::UnknownIssuer | Error::UnsupportedCertVersion => {
            UNKNOWN_ISSUER
        }
        Error::UnknownRevocationStatus => UNKNOWN_CRL,
        Error::UnsupportedCriticalExtension => CRITICAL,
        Error::UnsupportedSignatureAlgorithmContext(_) => WEAK_DIGEST,
        _ => BROKEN,
    }
}

/// What trusted certificates signed themselves with SHA-1. It proves nothing, and no one looks at
/// it: they are trusted as they stand.
#[derive(Debug)]
struct OwnSignatures(Vec<(Vec<u8>, Vec<u8>)>);

impl OwnSignatures {
    fn of<'c>(roots: impl Iterator<Item = &'c CertificateDer<'static>>) -> Self {
        let own = |root: &'c CertificateDer<'static>| {
            let root = Certificate::read(root)?;
            Some((root.content.to_vec(), root.signature.to_vec()))
        };
        Self(roots.filter_map(own).collect())
    }
}

impl SignatureVerificationAlgorithm for OwnSignatures {
    fn verify_signature(
        &self,
        _: &[u8],
        content: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let is_own = |own: &(Vec<u8>, Vec<u8>)| own.0 == content && own.1 == signature;
        if self.0.iter().any(is_own) { Ok(()) } else { Err(InvalidSignature) }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::RSA_ENCRYPTION
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        // sha1WithRSAEncryption (RFC 8017, appendix A.2.4), without parameters but NULL.
        const SHA1_WITH_RSA: [u8; 13] =
            [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05, 0x05, 0x00];
        AlgorithmIdentifier::from_slice(&SHA1_WITH_RSA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_client_sends_so_much_is_looked_at() {
        // As much of a certificate as is read here; the number is the subject.
        let certificate = |number: u8| {
            let name = [0x30, 5, 0x31, 3, 0x30, 1, number];
            let content = [&[0x30, 18, 2, 1, 1, 0x30, 0, 0x30, 0, 0x30, 0][..], &name, &[0x30, 0]];
            let content = content.concat();
            CertificateDer::from([&[0x30, 26][..], &content, &[0x30, 0, 3, 2, 0, 0]].concat())
        };
        let subjects = |numbers: &[u8]| {
            let sent: Vec<_> = numbers.iter().map(|number| certificate(*number)).collect();
            looked_at(&sent).iter().map(|der| der[19]).collect::<Vec<_>>()
        };
        assert_eq!(subjects(&[1, 2, 1, 1, 2, 2, 3]), [1, 2, 1, 2, 3]);
        let many: Vec<u8> = (0..40).collect();
        assert_eq!(subjects(&many).len(), SENT_MAX);
        assert!(looked_at(&[CertificateDer::from(vec![0x30])]).is_empty());
    }
}
