//! `ssl_crl`: lists of revoked certificates.

use super::certificate::Certificate;
use super::chain::{CRL_EXPIRED, CRL_NOT_YET_VALID, LIST_SIGNER, REVOKED, Refusal, UNKNOWN_CRL};
use super::der::{BIT_STRING, Element, INTEGER, SEQUENCE};
use super::restated::Restated;
use super::signature::is_signed;
use rustls::pki_types::{CertificateRevocationListDer, UnixTime};
use std::time::Duration;
use webpki::{
    CertRevocationList, ExpirationPolicy, OwnedCertRevocationList, RevocationOptions,
    RevocationOptionsBuilder,
};
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::BitString;
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};
use x509_cert::time::Time;

/// All lists of a server, the newest first: the library looks at the first of an issuer.
#[derive(Debug)]
pub(super) struct Revocation(Vec<List>);

#[derive(Debug)]
struct List {
    list: CertRevocationList<'static>,
    der: CertificateRevocationListDer<'static>,
    restated: Option<Restated>,
    issued: Duration,
}

/// What the library does not tell of a list (RFC 5280, section 5.1).
struct Parts<'a> {
    content: &'a [u8],
    algorithm: AlgorithmIdentifierOwned,
    signature: BitString,
    issuer: &'a [u8],
    this_update: Duration,
    next_update: Duration,
}

impl Revocation {
    /// # Errors
    /// What cannot be read.
    pub(super) fn read(lists: &[CertificateRevocationListDer<'_>]) -> Result<Self, String> {
        let lists: Result<Vec<_>, _> = lists.iter().map(|der| List::read(der)).collect();
        let mut lists = lists?;
        lists.sort_by_key(|list| std::cmp::Reverse(list.issued));
        Ok(Self(lists))
    }

    /// Calls `verify` with the lists that are valid by now: every certificate of a path must have
    /// one that does not name it.
    pub(super) fn with_options<T>(
        &self,
        now: UnixTime,
        verify: impl FnOnce(RevocationOptions<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let lists: Vec<_> = self.begun(now).map(|list| &list.list).collect();
        let refusal = self.unknown(now);
        let options = RevocationOptionsBuilder::new(&lists).map_err(|_| refusal)?;
        let found = verify(options.with_expiration_policy(ExpirationPolicy::Enforce).build());
        found.map_err(|problem| if problem == UNKNOWN_CRL { refusal } else { problem })
    }

    /// Checks that a certificate that signed itself is not in its own list.
    pub(super) fn check_self_signed(
        &self,
        certificate: &Certificate<'_>,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        let key = SubjectPublicKeyInfoOwned::from_der(certificate.key).map_err(|_| UNKNOWN_CRL)?;
        let by_itself = |list: &List| {
            let parts = Parts::read(&list.der)?;
            let is_own = parts.issuer == certificate.subject && parts.is_signed(&key);
            is_own.then_some(parts.next_update)
        };
        let mut own = self.begun(now).filter_map(|list| Some((list, by_itself(list)?)));
        let (list, until) = own.next().ok_or_else(|| self.unknown(now))?;
        if !certificate.may_sign_lists() {
            return Err(LIST_SIGNER);
        }
        if until.as_secs() <= now.as_secs() {
            return Err(CRL_EXPIRED);
        }
        match list.list.find_serial(certificate.serial) {
            Ok(None) => Ok(()),
            _ => Err(REVOKED),
        }
    }

    /// Lists that the library has in another form.
    pub(super) fn restated(&self) -> impl Iterator<Item = &Restated> {
        self.0.iter().filter_map(|list| list.restated.as_ref())
    }

    fn begun(&self, now: UnixTime) -> impl Iterator<Item = &List> {
        self.0.iter().filter(move |list| list.issued.as_secs() <= now.as_secs())
    }

    fn unknown(&self, now: UnixTime) -> Refusal {
        if self.begun(now).count() < self.0.len() { CRL_NOT_YET_VALID } else { UNKNOWN_CRL }
    }
}

impl List {
    fn read(der: &CertificateRevocationListDer<'_>) -> Result<Self, String> {
        let restated = Restated::list(der);
        let taken = restated.as_ref().map_or(&der[..], |restated| &restated.der);
        let list = OwnedCertRevocationList::from_der(taken)
            .map_err(|problem| format!("{problem}, it must have a number and a next update"))?;
        let issued = Parts::read(der).ok_or("it has no date")?.this_update;
        Ok(Self { list: list.into(), der: der.to_vec().into(), restated, issued })
    }
}

impl<'a> Parts<'a> {
    fn read(der: &'a [u8]) -> Option<Self> {
        let mut whole = Element::only(der, SEQUENCE)?.content;
        let content = Element::take_tagged(&mut whole, SEQUENCE)?;
        let algorithm = Element::take_tagged(&mut whole, SEQUENCE)?.whole;
        let signature = Element::only(whole, BIT_STRING)?.whole;
        let mut rest = content.content;
        let first = Element::take(&mut rest)?;
        if first.tag == INTEGER {
            let _algorithm = Element::take_tagged(&mut rest, SEQUENCE)?;
        }
        let issuer = Element::take_tagged(&mut rest, SEQUENCE)?.whole;
        let mut time = || Time::from_der(Element::take(&mut rest)?.whole).ok();
        Some(Self {
            content: content.whole,
            algorithm: AlgorithmIdentifierOwned::from_der(algorithm).ok()?,
            signature: BitString::from_der(signature).ok()?,
            issuer,
            this_update: time()?.to_unix_duration(),
            next_update: time()?.to_unix_duration(),
        })
    }

    fn is_signed(&self, key: &SubjectPublicKeyInfoOwned) -> bool {
        is_signed(self.content, &self.algorithm, &self.signature, key)
    }
}
