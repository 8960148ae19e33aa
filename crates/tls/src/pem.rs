//! Certificates, keys and revocation lists out of PEM files.

use super::locked::Locked;
use bytes::Bytes;
use pkcs8::der::{Decode as _, Header, Reader as _, SliceReader};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use yorozu_conf::os_error;
use yorozu_kernel::config::directive::{Args, Setting, ValueError};
use yorozu_kernel::config::files::{read_file_or_pipe, read_regular};
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;
use yorozu_kernel::config::types::ConfPath;

/// PEM files, each read once however often it is named: one may be a pipe.
#[derive(Clone, Debug, Default)]
pub struct PemFiles(Arc<Mutex<HashMap<PathBuf, Bytes>>>);

impl Shared for PemFiles {
    const IS_FOR_LOADING: bool = true;

    fn place() -> &'static Place {
        place!()
    }
}

/// What names PEM text that stands in the configuration itself.
const DATA: &str = "data:";

/// The path of a file named in the configuration that lies in `folder`.
pub fn path(folder: &Path, name: &[u8]) -> PathBuf {
    let name = String::from_utf8_lossy(name);
    if name.starts_with(DATA) { PathBuf::from(&*name) } else { folder.join(&*name) }
}

impl PemFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, path: &Path, what: &str) -> Result<Bytes, String> {
        self.read_by(read_regular, path, what)
    }

    fn read_by(
        &self,
        read: fn(&Path) -> io::Result<Bytes>,
        path: &Path,
        what: &str,
    ) -> Result<Bytes, String> {
        if let Some(text) = path.to_str().and_then(|text| text.strip_prefix(DATA)) {
            return Ok(Bytes::copy_from_slice(text.as_bytes()));
        }
        if let Some(text) = self.lock().get(path) {
            return Ok(text.clone());
        }
        let text = read(path).map_err(|problem| {
            format!("cannot load {what} \"{}\": {}", path.display(), os_error(&problem))
        })?;
        self.lock().insert(path.to_owned(), text.clone());
        Ok(text)
    }

    /// The certificates of a file, in order.
    ///
    /// # Errors
    /// It cannot be read, or holds none.
    pub fn certificates(
        &self,
        path: &Path,
        what: &str,
    ) -> Result<Vec<CertificateDer<'static>>, String> {
        let text = self.read(path, what)?;
        let text = plain_labels(&text);
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found.into_iter().map(without_aux).collect()),
            Ok(_) => Err(format!("cannot load {what} \"{}\": no certificate in it", shown(path))),
            Err(problem) => Err(format!("cannot load {what} \"{}\": {problem}", shown(path))),
        }
    }

    /// The revocation lists of a file.
    ///
    /// # Errors
    /// It cannot be read, or holds none.
    pub fn revocations(
        &self,
        path: &Path,
    ) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
        let text = self.read(path, "CRL")?;
        let found: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&text).collect();
        found
            .ok()
            .filter(|found| !found.is_empty())
            .ok_or_else(|| format!("cannot load CRL \"{}\": no list in it", shown(path)))
    }

    /// The private key of a file; an encrypted one is tried with each password.
    ///
    /// # Errors
    /// It cannot be read, holds none, or no password fits.
    pub fn key(
        &self,
        path: &Path,
        passwords: &[Vec<u8>],
    ) -> Result<PrivateKeyDer<'static>, String> {
        let text = self.read(path, "certificate key")?;
        let refuse = |why: &str| format!("cannot load certificate key \"{}\": {why}", shown(path));
        if let Some(locked) = Locked::find(&text) {
            return locked.open(passwords).map_err(|why| refuse(&why));
        }
        PrivateKeyDer::from_pem_slice(&text).map_err(|problem| refuse(&problem.to_string()))
    }

    /// The passwords of a file, one a line.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn passwords(&self, path: &Path) -> Result<Vec<Vec<u8>>, String> {
        let text = self.read_by(read_file_or_pipe, path, "password file")?;
        let lines =
            text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Any other file that TLS needs.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn bytes(&self, path: &Path, what: &str) -> Result<Bytes, String> {
        self.read(path, what)
    }
}

/// `*_password_file`: read with the line that names it, so that a missing one is noticed also where no key needs it.
#[derive(Clone, Debug)]
pub struct PasswordFile(pub PathBuf);

impl Setting for PasswordFile {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let path = ConfPath::from_args(args)?.0;
        args.env.shared::<PemFiles>().passwords(&path).map_err(ValueError)?;
        Ok(Self(path))
    }
}

/// A private key in PKCS#8 as PEM text.
///
/// # Panics
/// It is longer than any key.
pub fn key_text(der: &[u8]) -> String {
    let text = pkcs8::der::pem::encode_string("PRIVATE KEY", pkcs8::LineEnding::LF, der);
    text.expect("a key is short")
}

/// How a path is shown in messages: never with a key that stands in it.
pub fn shown(path: &Path) -> Cow<'_, str> {
    let text = path.to_string_lossy();
    if text.starts_with(DATA) { DATA.into() } else { text }
}

/// OpenSSL's other labels of a certificate as the common one.
fn plain_labels(text: &[u8]) -> Cow<'_, [u8]> {
    const OTHERS: [&str; 2] = [" X509 CERTIFICATE-", " TRUSTED CERTIFICATE-"];
    if OTHERS.iter().all(|label| memchr::memmem::find(text, label.as_bytes()).is_none()) {
        return Cow::Borrowed(text);
    }
    let text = String::from_utf8_lossy(text).into_owned();
    let plain = |text: String, label| text.replace(label, " CERTIFICATE-");
    Cow::Owned(OTHERS.into_iter().fold(text, plain).into_bytes())
}

/// The certificate alone: behind a trusted one stand OpenSSL's own notes about it.
fn without_aux(certificate: CertificateDer<'static>) -> CertificateDer<'static> {
    let whole = || {
        let mut reader = SliceReader::new(&certificate).ok()?;
        let content = Header::decode(&mut reader).ok()?.length();
        usize::try_from((reader.position() + content).ok()?).ok()
    };
    match whole() {
        Some(length) if length < certificate.len() => {
            CertificateDer::from(certificate[..length].to_vec())
        }
        _ => certificate,
    }
}
