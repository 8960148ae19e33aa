//! Tokens that clients were given, and that may be used once.

use quinn::{TokenLog, TokenReuseError};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Tokens that are remembered before the older half of them is forgotten; chosen: 256 KB of a worker.
const REMEMBERED_MAX: usize = 16 * 1024;

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
