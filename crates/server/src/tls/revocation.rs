//! `ssl_crl`: lists of revoked certificates.

use super::certificate::Certificate;
use super::chain::{CRL_EXPIRED, CRL_NOT_YET_VALID, LIST_SIGNER, REVOKED, Refusal, UNKNOWN_CRL};
use super::signature::is_signed;
use rustls::pki_types::{CertificateRevocationListDer, UnixTime};
use std::time::Duration;
use webpki::{
    CertRevocationList, ExpirationPolicy, OwnedCertRevocationList, RevocationOptions,
    RevocationOptionsBuilder,
};
use x509_cert::crl::CertificateList;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::spki::SubjectPublicKeyInfoOwned;

/// All lists of a server, the newest first: the library looks at the first of an issuer.
#[derive(Debug)]
pub(super) struct Revocation(Vec<List>);

#[derive(Debug)]
struct List {
    list: CertRevocationList<'static>,
    parsed: CertificateList,
    issued: Duration,
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

    /// Is a certificate that signed itself not in its own list?
    pub(super) fn check_self_signed(
        &self,
        certificate: &Certificate<'_>,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        let key = SubjectPublicKeyInfoOwned::from_der(certificate.key).map_err(|_| UNKNOWN_CRL)?;
        let mut lists = self.begun(now).filter(|list| list.is_of(certificate.subject, &key));
        let list = lists.next().ok_or_else(|| self.unknown(now))?;
        if !certificate.may_sign_lists() {
            return Err(LIST_SIGNER);
        }
        let until = list.parsed.tbs_cert_list.next_update.map(|until| until.to_unix_duration());
        if until.is_none_or(|until| until.as_secs() <= now.as_secs()) {
            return Err(CRL_EXPIRED);
        }
        match list.list.find_serial(certificate.serial) {
            Ok(None) => Ok(()),
            _ => Err(REVOKED),
        }
    }

    fn begun(&self, now: UnixTime) -> impl Iterator<Item = &List> {
        self.0.iter().filter(move |list| list.issued.as_secs() <= now.as_secs())
    }

    fn unknown(&self, now: UnixTime) -> Refusal {
        if self.begun(now).count() < self.0.len() { CRL_NOT_YET_VALID } else { UNKNOWN_CRL }
    }
}

impl List {
    fn read(der: &[u8]) -> Result<Self, String> {
        let list = OwnedCertRevocationList::from_der(der).map_err(|problem| {
            format!("{problem}, it must be of version 2 and have a number and a next update")
        })?;
        let parsed = CertificateList::from_der(der).map_err(|problem| problem.to_string())?;
        let issued = parsed.tbs_cert_list.this_update.to_unix_duration();
        Ok(Self { list: list.into(), parsed, issued })
    }

    fn is_of(&self, issuer: &[u8], key: &SubjectPublicKeyInfoOwned) -> bool {
        let content = &self.parsed.tbs_cert_list;
        let is_named = content.issuer.to_der().is_ok_and(|name| name == issuer);
        let algorithm = &self.parsed.signature_algorithm;
        is_named
            && content
                .to_der()
                .is_ok_and(|content| is_signed(&content, algorithm, &self.parsed.signature, key))
    }
}
