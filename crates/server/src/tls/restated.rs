//! A client's own certificate in the form that the library takes. It refuses those of the first version of X.509 and
//! those of authorities, which tools make for clients by default, because elsewhere on a path they could sign. At its
//! end neither matters: there nothing is signed. So it is given what says the same of the client: a certificate of
//! version 3, of no authority; and signatures of that are those of the certificate as it was sent.

use super::certificate::Certificate;
use super::der::{SEQUENCE, element};
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm,
};

#[derive(Debug)]
pub(super) struct Restated {
    pub der: CertificateDer<'static>,
    /// What is signed in it, and what was sent in its place.
    content: Vec<u8>,
    sent: Vec<u8>,
}

impl Restated {
    /// `None` for a certificate that is taken as it is.
    pub(super) fn of(sent: &Certificate<'_>) -> Option<Self> {
        let flag = sent.authority_flag();
        if flag.is_none() && !sent.is_first_version() {
            return None;
        }
        let mut content = sent.content.to_vec();
        if let Some(flag) = flag {
            content[flag] = 0;
        }
        if sent.is_first_version() {
            const VERSION_3: [u8; 5] = [0xa0, 3, 2, 1, 2];
            let start = content.len() - sent.inside.len();
            content = element(SEQUENCE, &[&VERSION_3, &content[start..]]);
        }
        let der = element(SEQUENCE, &[&content, sent.behind]).into();
        Some(Self { der, content, sent: sent.content.to_vec() })
    }

    /// Algorithms of signatures, for paths that begin with this certificate.
    pub(super) fn algorithms(
        &self,
        known: &'static [&'static dyn SignatureVerificationAlgorithm],
    ) -> Vec<Restating<'_>> {
        known.iter().map(|known| Restating { known: *known, restated: self }).collect()
    }
}

/// An algorithm that knows what was sent in place of one certificate.
#[derive(Debug)]
pub(super) struct Restating<'r> {
    known: &'static dyn SignatureVerificationAlgorithm,
    restated: &'r Restated,
}

impl SignatureVerificationAlgorithm for Restating<'_> {
    fn verify_signature(
        &self,
        key: &[u8],
        content: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let is_restated = content == self.restated.content;
        let content = if is_restated { &self.restated.sent } else { content };
        self.known.verify_signature(key, content, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.known.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.known.signature_alg_id()
    }
}
