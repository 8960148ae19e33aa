//! A certificate with its key: what a server, or a client of one, shows.

use super::pem::{self, PemFiles};
use super::{provider, x509};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use std::path::PathBuf;
use yorozu_kernel::config::directive::ValueError;

/// Where the certificate and the key are, and the passwords the key is tried with.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub passwords: Vec<Vec<u8>>,
}

impl Identity {
    /// Reads both.
    ///
    /// # Errors
    /// A file that cannot be used, or a key that is not the certificate's.
    pub fn load(&self, files: &PemFiles) -> Result<CertifiedKey, ValueError> {
        let chain = files.certificates(&self.certificate, "certificate").map_err(ValueError)?;
        let secret = files.key(&self.key, &self.passwords).map_err(ValueError)?;
        let refuse = |problem: Error| {
            let shown = pem::shown(&self.key);
            ValueError(format!("cannot use certificate key \"{shown}\": {problem}"))
        };
        let signer = provider().key_provider.load_private_key(secret).map_err(refuse)?;
        // Compared here and not by rustls, which reads no certificates of X.509's first version.
        let shown = chain.first().and_then(|own| x509::public_key(own));
        match (signer.public_key(), shown) {
            (Some(own), Some(shown)) if *own != *shown => {
                Err(refuse(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)))
            }
            _ => Ok(CertifiedKey::new(chain, signer)),
        }
    }
}
