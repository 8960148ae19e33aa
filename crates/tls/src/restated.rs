//! Certificates and lists in the form that the library takes: signatures of what it is given are
//! those of what there was.
//!
//! As a peer's own it refuses certificates of the first version of X.509 and those of
//! authorities, which tools make by default, because elsewhere on a path they could
//! sign. At its end neither matters: there nothing is signed. So it is given what says the same of
//! the peer: a certificate of version 3, of no authority. Lists of revoked certificates of the
//! first version it is given as ones of the second, with a number.

use super::certificate::Certificate;
use super::der::{Element, INTEGER, SEQUENCE, element};
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

#[derive(Debug)]
pub(super) struct Restated {
    pub der: Vec<u8>,
    /// What is signed in it, and what there was in its place.
    content: Vec<u8>,
    original: Vec<u8>,
}

impl Restated {
    /// `None` for a peer's certificate that is taken as it is.
    pub(super) fn certificate(original: &Certificate<'_>) -> Option<Self> {
        let flag = original.authority_flag();
        if flag.is_none() && !original.is_first_version() {
            return None;
        }
        let mut content = original.content.to_vec();
        if let Some(flag) = flag {
            content[flag] = 0;
        }
        if original.is_first_version() {
            const VERSION_3: [u8; 5] = [0xa0, 3, INTEGER, 1, 2];
            let start = content.len() - original.inside.len();
            content = element(SEQUENCE, &[&VERSION_3, &content[start..]]);
        }
        Some(Self::new(content, original.content, original.behind))
    }

    /// `None` for a list of revoked certificates that is taken as it is.
    pub(super) fn list(der: &[u8]) -> Option<Self> {
        const VERSION_2: [u8; 3] = [INTEGER, 1, 1];
        // cRLNumber (RFC 5280, section 5.2.3).
        const NUMBER: [u8; 16] =
            [0xa0, 14, 0x30, 12, 0x30, 10, 6, 3, 0x55, 0x1d, 0x14, 4, 3, INTEGER, 1, 0];
        let mut behind = Element::only(der, SEQUENCE)?.content;
        let original = Element::take_tagged(&mut behind, SEQUENCE)?;
        let is_first_version = original.content.first() != Some(&INTEGER);
        let content = || element(SEQUENCE, &[&VERSION_2, original.content, &NUMBER]);
        is_first_version.then(|| Self::new(content(), original.whole, behind))
    }

    fn new(content: Vec<u8>, original: &[u8], behind: &[u8]) -> Self {
        let der = element(SEQUENCE, &[&content, behind]);
        Self { der, content, original: original.to_vec() }
    }
}

/// An algorithm of signatures that knows what there was in place of what is restated.
#[derive(Debug)]
pub(super) struct Restating<'r> {
    pub known: &'static dyn SignatureVerificationAlgorithm,
    pub restated: &'r [&'r Restated],
}

impl SignatureVerificationAlgorithm for Restating<'_> {
    fn verify_signature(
        &self,
        key: &[u8],
        content: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let restated = self.restated.iter().find(|restated| restated.content == content);
        let content = restated.map_or(content, |restated| &restated.original);
        self.known.verify_signature(key, content, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.known.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.known.signature_alg_id()
    }
}
