//! Certificates, keys and revocation lists out of PEM files.

use pkcs8::der::SecretDocument;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use std::path::Path;
use yorozu_conf::os_error;

fn read(path: &Path, what: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|problem| {
        format!("cannot load {what} \"{}\": {}", path.display(), os_error(&problem))
    })
}

/// The certificates of a file, in order.
///
/// # Errors
/// It cannot be read, or holds none.
pub fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path, what)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("cannot load {what} \"{}\": no certificate in it", path.display())),
        Err(problem) => Err(format!("cannot load {what} \"{}\": {problem}", path.display())),
    }
}

/// The revocation lists of a file.
///
/// # Errors
/// It cannot be read, or holds none.
pub fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let text = read(path, "CRL")?;
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| format!("cannot load CRL \"{}\": no list in it", path.display()))
}

/// The private key of a file; an encrypted one is tried with each password.
///
/// # Errors
/// It cannot be read, holds none, or no password fits.
pub fn key(path: &Path, passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path, "certificate key")?;
    let shown = path.display();
    if memchr::memmem::find(&text, b"ENCRYPTED PRIVATE KEY").is_some() {
        return decrypt(&text, passwords)
            .ok_or_else(|| format!("cannot load certificate key \"{shown}\": no password fits"));
    }
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|problem| format!("cannot load certificate key \"{shown}\": {problem}"))
}

fn decrypt(text: &[u8], passwords: &[Vec<u8>]) -> Option<PrivateKeyDer<'static>> {
    const BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
    let text = std::str::from_utf8(text).ok()?;
    // A certificate may stand in the same file.
    let text = &text[text.find(BEGIN)?..];
    let (_, document) = SecretDocument::from_pem(text).ok()?;
    let info = pkcs8::EncryptedPrivateKeyInfo::try_from(document.as_bytes()).ok()?;
    let key = passwords.iter().find_map(|password| info.decrypt(password).ok())?;
    Some(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}

/// The passwords of a file, one a line.
///
/// # Errors
/// It cannot be read.
pub fn passwords(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = read(path, "password file")?;
    let lines =
        text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}
