//! Tokens: what a client that shows one gets, and those that may be used once.

use aws_lc_rs::hkdf::Prk;
use quinn::crypto::{AeadKey, CryptoError};
use quinn::{TokenLog, TokenReuseError};
use quinn_proto::crypto::HandshakeTokenKey;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Tokens that are remembered before the older half of them is forgotten; chosen: 256 KB of a worker.
const REMEMBERED_MAX: usize = 16 * 1024;

/// The first byte of what the library seals as a token of Retry.
const OF_RETRY: u8 = 0;
/// Such a token for IPv4 address 0.0.0.0, port 0, no connection ID, in 1970, as the library writes it.
const NO_ONES: [u8; 17] = [OF_RETRY; 17];
/// Bytes that tell tokens of Retry from others, without the key to what is in them.
pub(super) const MARK_BYTES: usize = 4;

/// The key of tokens. Those of Retry have a mark behind them: a client that was given one takes no second one, so it is sent
/// away if its token was spoilt (RFC 9000, section 8.1.2), while one with any other token is asked as if it had none.
pub(super) struct TokenKey {
    pub(super) root: Prk,
    pub(super) mark: [u8; MARK_BYTES],
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Marking { key: self.root.aead_from_hkdf(random), mark: self.mark })
    }
}

/// The key of one token.
struct Marking {
    key: Box<dyn AeadKey>,
    mark: [u8; MARK_BYTES],
}

impl AeadKey for Marking {
    fn seal(&self, content: &mut Vec<u8>, additional: &[u8]) -> Result<(), CryptoError> {
        let is_of_retry = content.first() == Some(&OF_RETRY);
        self.key.seal(content, additional)?;
        if is_of_retry {
            content.extend_from_slice(&self.mark);
        }
        Ok(())
    }

    fn open<'a>(
        &self,
        sealed: &'a mut [u8],
        additional: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let Some(length) = sealed.strip_suffix(&self.mark).map(<[u8]>::len) else {
            return self.key.open(sealed, additional);
        };
        let opened = self.key.open(&mut sealed[..length], additional).map(|content| content.len());
        match opened {
            Ok(length) => Ok(&mut sealed[..length]),
            Err(problem) => {
                // As another client's, to whom the library says what this one is to hear.
                let content = sealed.get_mut(..NO_ONES.len()).ok_or(problem)?;
                content.copy_from_slice(&NO_ONES);
                Ok(content)
            }
        }
    }
}

/// Those that were used, as far as that is remembered.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<[HashSet<u128>; 2]>);

impl TokenLog for Tokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [newer, older] = &mut *used;
        if older.contains(&nonce) || !newer.insert(nonce) {
            return Err(TokenReuseError);
        }
        if newer.len() >= REMEMBERED_MAX / 2 {
            *older = std::mem::take(newer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::keys::Keys;

    #[test]
    fn a_spoilt_token_of_retry_is_another_clients() {
        let keys = Keys::new(Some(b"secret")).unwrap();
        let key = keys.token.aead_from_hkdf(b"random");
        let content = |kind: u8| [&[kind], &b"0123456789012345678901234567890123"[..]].concat();
        let sealed = |kind: u8| {
            let mut sealed = content(kind);
            key.seal(&mut sealed, b"").unwrap();
            sealed
        };
        let opened =
            |mut sealed: Vec<u8>| key.open(&mut sealed, b"").ok().map(|found| found.to_vec());
        let [retry, other] = [sealed(OF_RETRY), sealed(1)];
        assert_eq!(opened(retry.clone()), Some(content(OF_RETRY)));
        assert_eq!(opened(other.clone()), Some(content(1)));
        for at in 0..retry.len() {
            let mut spoilt = retry.clone();
            spoilt[at] ^= 0xff;
            // Without the mark nothing says what it was.
            let wanted = (at < retry.len() - MARK_BYTES).then(|| NO_ONES.to_vec());
            assert_eq!(opened(spoilt), wanted, "{at}");
        }
        for at in 0..other.len() {
            let mut spoilt = other.clone();
            spoilt[at] ^= 0xff;
            assert_eq!(opened(spoilt), None, "{at}");
        }
        let stranger = Keys::new(None).unwrap().token.aead_from_hkdf(b"random");
        let mut theirs = content(OF_RETRY);
        stranger.seal(&mut theirs, b"").unwrap();
        assert_eq!(opened(theirs), None, "the mark is another one");
        let keys_mark = retry[retry.len() - MARK_BYTES..].to_vec();
        assert_eq!(opened(keys_mark), None, "too short for anything");
    }

    #[test]
    fn a_token_is_used_once_and_what_is_remembered_has_a_bound() {
        let tokens = Tokens::default();
        let using = |nonce: u128| {
            tokens.check_and_insert(nonce, SystemTime::UNIX_EPOCH, Duration::ZERO).is_ok()
        };
        assert!(using(7) && !using(7));
        assert!((100..100 + REMEMBERED_MAX as u128 / 2).all(using));
        assert!(!using(7), "as one of the older half");
        assert!((100_000..100_000 + 2 * REMEMBERED_MAX as u128).all(using));
        let used = tokens.0.lock().unwrap();
        assert!(used.iter().map(HashSet::len).sum::<usize>() < REMEMBERED_MAX);
    }
}
