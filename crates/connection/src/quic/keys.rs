//! What an address's endpoints make tokens, stateless resets and connection IDs with: all workers the same.

use super::tokens::{MARK_BYTES, TokenKey};
use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use quinn::crypto::HmacKey;
use quinn_proto::crypto::HandshakeTokenKey;
use std::sync::Arc;

/// As nginx's.
const SALT: &[u8] = b"ngx_quic";

/// Keys made from one secret (`quic_host_key`).
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) token: Arc<dyn HandshakeTokenKey>,
    pub(super) reset: Arc<dyn HmacKey>,
    /// Hides which worker a connection ID belongs to.
    pub(super) id: Arc<HeaderProtectionKey>,
    /// Drawn, and no other process's: with one secret the process before this one has all the rest, too.
    pub(super) process: [u8; 2],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// Bytes of a key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Those of a secret; without one, of a random one.
    ///
    /// # Errors
    /// The library refuses: it has no randomness.
    pub(super) fn new(secret: Option<&[u8]>) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut process = [0; 2];
        aws_lc_rs::rand::fill(&mut process)?;
        let mut random = [0; 32];
        let secret = match secret {
            Some(secret) => secret,
            None => {
                aws_lc_rs::rand::fill(&mut random)?;
                &random
            }
        };
        let root = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let derived = |label: &[u8], length: usize| {
            let mut key = vec![0; length];
            root.expand(&[label], Length(length))?.fill(&mut key)?;
            Ok::<_, aws_lc_rs::error::Unspecified>(key)
        };
        let of_tokens = Salt::new(HKDF_SHA256, &[]).extract(&derived(b"av_token_key", 32)?);
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&derived(b"mark of retry", MARK_BYTES)?);
        let token = TokenKey { root: of_tokens, mark };
        let reset = hmac::Key::new(hmac::HMAC_SHA256, &derived(b"sr_token_key", 32)?);
        let id = HeaderProtectionKey::new(&AES_128, &derived(b"connection id", 16)?)?;
        Ok(Self { token: Arc::new(token), reset: Arc::new(reset), id: Arc::new(id), process })
    }
}
