//! Private keys with a password, in both forms that OpenSSL writes: PKCS#8, and the traditional one, whose lines say how it
//! was encrypted (RFC 1421).

use super::der::{Element, SEQUENCE};
use aes::{Aes128, Aes192, Aes256};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cbc::Decryptor;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeDecrypt, KeyIvInit};
use des::TdesEde3;
use md5::{Digest as _, Md5};
use pkcs8::der::SecretDocument;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

/// A key that a password opens.
pub(super) enum Locked<'a> {
    /// PEM text of `EncryptedPrivateKeyInfo` (RFC 5958, section 3).
    Pkcs8(&'a str),
    Traditional {
        /// `RSA` or `EC`
        kind: &'a str,
        /// The value of `DEK-Info`: a cipher and its first block in hexadecimal digits.
        how: &'a str,
        body: &'a str,
    },
}

impl<'a> Locked<'a> {
    /// The first of a file that may hold certificates, too.
    pub(super) fn find(text: &'a [u8]) -> Option<Self> {
        const PKCS8: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
        const PRIVATE: &str = " PRIVATE KEY-----";
        let text = std::str::from_utf8(text).ok()?;
        if let Some(start) = text.find(PKCS8) {
            return Some(Self::Pkcs8(&text[start..]));
        }
        let (before, behind) = text.split_once("Proc-Type: 4,ENCRYPTED")?;
        let label = before.rsplit_once("-----BEGIN ")?.1;
        let kind = label.trim_end().strip_suffix(PRIVATE)?;
        let (_, behind) = behind.split_once("DEK-Info:")?;
        let (how, behind) = behind.split_once('\n')?;
        let (body, _) = behind.split_once("-----END ")?;
        Some(Self::Traditional { kind, how: how.trim(), body })
    }

    /// Tries each password.
    ///
    /// # Errors
    /// Why it stays closed.
    pub(super) fn open(&self, passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
        const NONE: &str = "no password fits";
        match self {
            Self::Pkcs8(text) => {
                let (_, document) =
                    SecretDocument::from_pem(text).map_err(|problem| problem.to_string())?;
                let info = pkcs8::EncryptedPrivateKeyInfoRef::try_from(document.as_bytes())
                    .map_err(|problem| problem.to_string())?;
                let key = passwords.iter().find_map(|password| info.decrypt(password).ok());
                let key = key.ok_or(NONE)?;
                Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
            }
            Self::Traditional { kind, how, body } => {
                let made: fn(Vec<u8>) -> PrivateKeyDer<'static> = match *kind {
                    "RSA" => |der| PrivatePkcs1KeyDer::from(der).into(),
                    "EC" => |der| PrivateSec1KeyDer::from(der).into(),
                    other => return Err(format!("keys of kind \"{other}\" are not known")),
                };
                let (name, first) = how.split_once(',').ok_or("DEK-Info cannot be read")?;
                let cipher = Cipher::by_name(name).ok_or_else(|| {
                    format!("it is encrypted with \"{name}\", which is not known")
                })?;
                let first = base16ct::mixed::decode_vec(first)
                    .ok()
                    .filter(|first| first.len() >= SALT_BYTES)
                    .ok_or("DEK-Info cannot be read")?;
                let body: String = body.split_ascii_whitespace().collect();
                let body = BASE64_STANDARD.decode(body).map_err(|problem| problem.to_string())?;
                let opened = passwords.iter().find_map(|password| {
                    let key = derived(password, &first[..SALT_BYTES], cipher.key_bytes);
                    // One wrong password of 256 leaves padding that looks right.
                    let der = (cipher.decrypt)(&key, &first, &body)?;
                    Element::only(&der, SEQUENCE).is_some().then_some(der)
                });
                Ok(made(opened.ok_or(NONE)?))
            }
        }
    }
}

/// Decrypts content by key and first block; `None` if it ends wrongly.
type Decrypt = fn(&[u8], &[u8], &[u8]) -> Option<Vec<u8>>;

/// Bytes of the first block that are salt, too (`PEM_do_header` of OpenSSL).
const SALT_BYTES: usize = 8;

struct Cipher {
    key_bytes: usize,
    decrypt: Decrypt,
}

impl Cipher {
    fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "AES-128-CBC" => Self { key_bytes: 16, decrypt: decrypt::<Decryptor<Aes128>> },
            "AES-192-CBC" => Self { key_bytes: 24, decrypt: decrypt::<Decryptor<Aes192>> },
            "AES-256-CBC" => Self { key_bytes: 32, decrypt: decrypt::<Decryptor<Aes256>> },
            "DES-EDE3-CBC" => Self { key_bytes: 24, decrypt: decrypt::<Decryptor<TdesEde3>> },
            _ => return None,
        })
    }
}

fn decrypt<D: KeyIvInit + BlockModeDecrypt>(
    key: &[u8],
    first: &[u8],
    body: &[u8],
) -> Option<Vec<u8>> {
    D::new_from_slices(key, first).ok()?.decrypt_padded_vec::<Pkcs7>(body).ok()
}

/// A key made of a password as OpenSSL always did (`EVP_BytesToKey` with MD5 and one round).
fn derived(password: &[u8], salt: &[u8], bytes: usize) -> Vec<u8> {
    let mut key: Vec<u8> = Vec::new();
    let mut last: Vec<u8> = Vec::new();
    while key.len() < bytes {
        last = Md5::new()
            .chain_update(&last)
            .chain_update(password)
            .chain_update(salt)
            .finalize()
            .to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(bytes);
    key
}
