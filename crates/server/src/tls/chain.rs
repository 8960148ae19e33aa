//! Paths from a client's certificate to an authority: RFC 5280, section 6, as far as certificates of clients
//! use it. rustls's own verifier takes neither certificates of X.509's first version nor an authority's shown as
//! a client's, nor lists of revoked ones of the first version: what the usual tutorials make.
//!
//! # Invariants
//! - What is not understood is refused: an unknown critical extension, any constraint on names.
//! - Work is bounded: so many certificates are looked at, and so many signatures checked.

use super::provider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::cell::Cell;
use std::time::Duration;
use x509_cert::Certificate;
use x509_cert::der::asn1::{BitString, ContextSpecific};
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::oid::db::rfc5280::{
    ANY_EXTENDED_KEY_USAGE, ID_CE_CERTIFICATE_POLICIES, ID_CE_NAME_CONSTRAINTS,
    ID_CE_SUBJECT_ALT_NAME, ID_KP_CLIENT_AUTH,
};
use x509_cert::der::{
    Decode as _, Encode as _, Error, Header, NestedReader, Reader as _, SliceReader, Tag, TagNumber,
};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};
use x509_cert::time::Time;

/// OpenSSL's number and words for a reason (`X509_V_ERR_…`, openssl-verification-options(1)).
pub(super) type Refusal = (u16, &'static str);

const UNKNOWN_CRL: Refusal = (3, "unable to get certificate CRL");
const BAD_SIGNATURE: Refusal = (7, "certificate signature failure");
const NOT_YET_VALID: Refusal = (9, "certificate is not yet valid");
const EXPIRED: Refusal = (10, "certificate has expired");
const CRL_EXPIRED: Refusal = (12, "CRL has expired");
const SELF_SIGNED: Refusal = (18, "self-signed certificate");
const UNKNOWN_ISSUER: Refusal = (20, "unable to get local issuer certificate");
const UNVERIFIED: Refusal = (21, "unable to verify the first certificate");
const TOO_LONG: Refusal = (22, "certificate chain too long");
const REVOKED: Refusal = (23, "certificate revoked");
const NO_AUTHORITY: Refusal = (24, "invalid CA certificate");
const PURPOSE: Refusal = (26, "unsuitable certificate purpose");
const CRITICAL: Refusal = (34, "unhandled critical extension");
const BROKEN: Refusal = (1, "unspecified certificate verification error");

/// Certificates of a client that are looked at; more are never needed.
const CHAIN_CERTIFICATES_MAX: usize = 16;
/// Signatures that are checked for one client; chosen far above any real path.
const SIGNATURES_MAX: u32 = 64;

/// Whom clients are verified by.
#[derive(Debug)]
pub(super) struct Authorities {
    trusted: Vec<Certificate>,
    revoked: Option<Vec<RevocationList>>,
    /// Certificates allowed between a client's and a trusted one.
    depth: usize,
}

impl Authorities {
    /// `None` for a list of revoked certificates that cannot be read.
    pub(super) fn new(
        trusted: &[CertificateDer<'_>],
        revoked: Option<&[CertificateRevocationListDer<'_>]>,
        depth: usize,
    ) -> Option<Self> {
        let trusted = trusted.iter().filter_map(|der| Certificate::from_der(der).ok()).collect();
        let revoked = match revoked {
            None => None,
            Some(lists) => {
                let lists = lists.iter().map(|der| RevocationList::read(der).ok());
                Some(lists.collect::<Option<Vec<_>>>()?)
            }
        };
        Some(Self { trusted, revoked, depth })
    }

    /// Verifies a client's certificate, with those it has sent behind it, at a time since 1970.
    ///
    /// # Errors
    /// Why it is no good.
    pub(super) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: Duration,
    ) -> Result<(), Refusal> {
        let sent = chain.iter().take(CHAIN_CERTIFICATES_MAX);
        let sent: Option<Vec<_>> = sent.map(|der| Certificate::from_der(der).ok()).collect();
        let sent = sent.ok_or(BROKEN)?;
        let (own, others) = sent.split_first().ok_or(BROKEN)?;
        check_extensions(own)?;
        check_purpose(own)?;
        let walk = Walk { authorities: self, others, now, signatures: Cell::new(0) };
        walk.climb(own, 0)
    }
}

/// One search for a path.
struct Walk<'a> {
    authorities: &'a Authorities,
    others: &'a [Certificate],
    now: Duration,
    signatures: Cell<u32>,
}

impl Walk<'_> {
    /// Finds the way up from a certificate that has so many intermediate ones below it.
    fn climb(&self, certificate: &Certificate, below: usize) -> Result<(), Refusal> {
        check_time(certificate, self.now)?;
        let trusted = &self.authorities.trusted;
        if is_self_issued(certificate) && trusted.contains(certificate) {
            return self.check_revoked(certificate, certificate);
        }
        let mut refusal = match is_self_issued(certificate) {
            true => SELF_SIGNED,
            false if below == 0 && self.others.is_empty() => UNVERIFIED,
            false => UNKNOWN_ISSUER,
        };
        for issuer in issuers(trusted, certificate).chain(issuers(self.others, certificate)) {
            if issuer == certificate {
                continue;
            }
            // As OpenSSL: a way ends at one that signed itself; what is trusted besides is on the way.
            let is_end = is_self_issued(issuer) && trusted.contains(issuer);
            if !is_end && below >= self.authorities.depth {
                refusal = TOO_LONG;
                continue;
            }
            let may_sign = || match is_end {
                true => Ok(()),
                false => check_authority(issuer, below).and_then(|()| check_extensions(issuer)),
            };
            let way = self
                .count()
                .and_then(|()| is_signed(certificate, issuer))
                .and_then(|()| may_sign())
                .and_then(|()| self.climb(issuer, below + 1))
                .and_then(|()| self.check_revoked(certificate, issuer));
            match way {
                Ok(()) => return Ok(()),
                Err(problem) => refusal = problem,
            }
        }
        Err(refusal)
    }

    /// Counts the work of one more signature.
    fn count(&self) -> Result<(), Refusal> {
        self.signatures.set(self.signatures.get() + 1);
        if self.signatures.get() > SIGNATURES_MAX { Err(TOO_LONG) } else { Ok(()) }
    }

    /// Is a certificate not in its issuer's list? Without lists nobody asks.
    fn check_revoked(
        &self,
        certificate: &Certificate,
        issuer: &Certificate,
    ) -> Result<(), Refusal> {
        let Some(lists) = &self.authorities.revoked else { return Ok(()) };
        let name = &issuer.tbs_certificate.subject;
        let mut refusal = UNKNOWN_CRL;
        for list in lists.iter().filter(|list| list.issuer == *name) {
            self.count()?;
            if check_signature(&list.content, &list.algorithm, &list.signature, issuer).is_err() {
                continue;
            }
            if list.next_update.is_some_and(|next| next < self.now) {
                refusal = CRL_EXPIRED;
                continue;
            }
            return match list.serials.contains(&certificate.tbs_certificate.serial_number) {
                true => Err(REVOKED),
                false => Ok(()),
            };
        }
        Err(refusal)
    }
}

/// Is a certificate signed by another?
pub(super) fn is_signed(certificate: &Certificate, by: &Certificate) -> Result<(), Refusal> {
    let content = certificate.tbs_certificate.to_der().map_err(|_| BROKEN)?;
    let algorithm = &certificate.signature_algorithm;
    if certificate.tbs_certificate.signature != *algorithm {
        return Err(BAD_SIGNATURE);
    }
    check_signature(&content, algorithm, &certificate.signature, by)
}

/// Checks a signature with the key of a certificate.
pub(super) fn check_signature(
    content: &[u8],
    algorithm: &AlgorithmIdentifierOwned,
    signature: &BitString,
    by: &Certificate,
) -> Result<(), Refusal> {
    let key: &SubjectPublicKeyInfoOwned = &by.tbs_certificate.subject_public_key_info;
    let wanted = (inner(algorithm), inner(&key.algorithm));
    let (Some(kind), Some(key_kind)) = wanted else { return Err(BROKEN) };
    let known = provider().signature_verification_algorithms.all;
    let known = known.iter().find(|known| {
        *known.signature_alg_id() == kind[..] && *known.public_key_alg_id() == key_kind[..]
    });
    let bits = (key.subject_public_key.as_bytes(), signature.as_bytes());
    let (Some(known), (Some(key), Some(signature))) = (known, bits) else {
        return Err(BAD_SIGNATURE);
    };
    known.verify_signature(key, content, signature).map_err(|_| BAD_SIGNATURE)
}

/// A list of revoked certificates, of either version.
#[derive(Debug)]
struct RevocationList {
    issuer: Name,
    next_update: Option<Duration>,
    serials: Vec<SerialNumber>,
    /// What is signed.
    content: Vec<u8>,
    algorithm: AlgorithmIdentifierOwned,
    signature: BitString,
}

impl RevocationList {
    /// RFC 5280, section 5.1. By hand: the library reads lists of the second version only.
    fn read(der: &[u8]) -> Result<Self, Error> {
        let mut outer = SliceReader::new(der)?;
        let (content, algorithm, signature) = outer.sequence(|list| {
            let content = list.tlv_bytes()?.to_vec();
            Ok((content, AlgorithmIdentifierOwned::decode(list)?, BitString::decode(list)?))
        })?;
        let mut inner = SliceReader::new(&content)?;
        let (issuer, next_update, serials) = inner.sequence(|list| {
            if list.peek_tag()? == Tag::Integer {
                u8::decode(list)?;
            }
            AlgorithmIdentifierOwned::decode(list)?;
            let issuer = Name::decode(list)?;
            Time::decode(list)?;
            let has = |list: &mut NestedReader<'_, _>, tags: &[Tag]| {
                !list.is_finished() && list.peek_tag().is_ok_and(|tag| tags.contains(&tag))
            };
            let next = has(list, &[Tag::UtcTime, Tag::GeneralizedTime]);
            let next = if next { Some(Time::decode(list)?.to_unix_duration()) } else { None };
            let mut serials = Vec::new();
            if has(list, &[Tag::Sequence]) {
                list.sequence(|entries| {
                    while !entries.is_finished() {
                        serials.push(entries.sequence(|entry| {
                            let serial = SerialNumber::decode(entry)?;
                            while !entry.is_finished() {
                                entry.tlv_bytes()?;
                            }
                            Ok(serial)
                        })?);
                    }
                    Ok(())
                })?;
            }
            if let Some(extensions) =
                ContextSpecific::<Vec<Extension>>::decode_explicit(list, TagNumber::N0)?
            {
                // It says that the list is not about all certificates.
                if extensions.value.iter().any(|extension| extension.critical) {
                    return Err(Tag::Sequence.value_error());
                }
            }
            Ok((issuer, next, serials))
        })?;
        Ok(Self { issuer, next_update, serials, content, algorithm, signature })
    }
}

/// Those of some certificates whose name is that of a certificate's signer.
fn issuers<'c>(
    among: &'c [Certificate],
    certificate: &Certificate,
) -> impl Iterator<Item = &'c Certificate> {
    let wanted = certificate.tbs_certificate.issuer.clone();
    among.iter().filter(move |other| other.tbs_certificate.subject == wanted)
}

/// The content of an algorithm's identifier, as the provider names it.
fn inner(algorithm: &AlgorithmIdentifierOwned) -> Option<Vec<u8>> {
    let der = algorithm.to_der().ok()?;
    let mut reader = SliceReader::new(&der).ok()?;
    Header::decode(&mut reader).ok()?;
    let start = usize::try_from(reader.position()).ok()?;
    Some(der[start..].to_vec())
}

fn is_self_issued(certificate: &Certificate) -> bool {
    certificate.tbs_certificate.subject == certificate.tbs_certificate.issuer
}

fn check_time(certificate: &Certificate, now: Duration) -> Result<(), Refusal> {
    let validity = &certificate.tbs_certificate.validity;
    if now < validity.not_before.to_unix_duration() {
        return Err(NOT_YET_VALID);
    }
    if now > validity.not_after.to_unix_duration() { Err(EXPIRED) } else { Ok(()) }
}

/// RFC 5280, section 4.2: a critical extension that is not understood makes a certificate no good.
fn check_extensions(certificate: &Certificate) -> Result<(), Refusal> {
    let known = [
        BasicConstraints::OID,
        KeyUsage::OID,
        ExtendedKeyUsage::OID,
        ID_CE_SUBJECT_ALT_NAME,
        ID_CE_CERTIFICATE_POLICIES,
    ];
    let extensions = certificate.tbs_certificate.extensions.iter().flatten();
    for extension in extensions {
        let is_unknown = extension.critical && !known.contains(&extension.extn_id);
        if is_unknown || extension.extn_id == ID_CE_NAME_CONSTRAINTS {
            return Err(CRITICAL);
        }
    }
    Ok(())
}

/// May a client show it? Without a list of purposes, for any.
fn check_purpose(certificate: &Certificate) -> Result<(), Refusal> {
    match certificate.tbs_certificate.get::<ExtendedKeyUsage>() {
        Ok(None) => Ok(()),
        Ok(Some((_, usage))) => {
            let fits = [ID_KP_CLIENT_AUTH, ANY_EXTENDED_KEY_USAGE];
            usage.0.iter().any(|found| fits.contains(found)).then_some(()).ok_or(PURPOSE)
        }
        Err(_) => Err(BROKEN),
    }
}

/// May it sign certificates, with so many intermediate ones below it?
fn check_authority(certificate: &Certificate, below: usize) -> Result<(), Refusal> {
    let content = &certificate.tbs_certificate;
    let Ok(Some((_, constraints))) = content.get::<BasicConstraints>() else {
        return Err(NO_AUTHORITY);
    };
    let is_short = constraints.path_len_constraint.is_none_or(|most| below <= usize::from(most));
    let may_sign = match content.get::<KeyUsage>() {
        Ok(None) => true,
        Ok(Some((_, usage))) => usage.key_cert_sign(),
        Err(_) => false,
    };
    if constraints.ca && is_short && may_sign { Ok(()) } else { Err(NO_AUTHORITY) }
}
