//! Certificates that variables name, kept for a while: `ssl_certificate_cache`, `proxy_ssl_certificate_cache` and others.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_conf::value;
use yorozu_kernel::config::directive::{Args, Setting, ValueError};

/// `ssl_certificate_cache`: `off`, or `max=NUMBER [inactive=TIME] [valid=TIME]`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CertificateCache {
    /// Files kept, of which a certificate and its key are two, as nginx counts; 0 for none.
    pub max: usize,
    /// Those not asked for so long are forgotten.
    pub inactive: Duration,
    /// After so long the file is looked at again.
    pub valid: Duration,
}

impl Setting for CertificateCache {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut cache =
            Self { max: 0, inactive: Duration::from_secs(10), valid: Duration::from_secs(60) };
        for word in args.words {
            let text = String::from_utf8_lossy(word);
            let time = |text: &str| value::time(text.as_bytes()).filter(|time| !time.is_zero());
            let is_read = match text.split_once('=') {
                None => text == "off" && args.words.len() == 1,
                Some(("max", number)) => {
                    number.parse().is_ok_and(|max: usize| max > 0 && replace(&mut cache.max, max))
                }
                Some(("inactive", text)) => {
                    time(text).is_some_and(|time| replace(&mut cache.inactive, time))
                }
                Some(("valid", text)) => {
                    time(text).is_some_and(|time| replace(&mut cache.valid, time))
                }
                Some(_) => false,
            };
            if !is_read {
                return Err(args.invalid_parameter(word));
            }
        }
        if cache.max == 0 && args.word(0) != b"off" {
            return Err(ValueError(format!("\"{}\" must have the \"max\" parameter", args.name)));
        }
        Ok(cache)
    }
}

fn replace<T>(place: &mut T, value: T) -> bool {
    *place = value;
    true
}

/// What was loaded, by the names it was loaded by.
pub struct Kept<T> {
    rule: CertificateCache,
    by_name: Mutex<HashMap<Vec<u8>, Loaded<T>>>,
}

struct Loaded<T> {
    value: T,
    loaded: Instant,
    used: Instant,
}

impl<T> Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl<T: Clone> Kept<T> {
    /// Nothing yet.
    pub fn new(rule: CertificateCache) -> Self {
        Self { rule, by_name: Mutex::default() }
    }

    /// What is known by a name, or else what `load` finds.
    ///
    /// # Errors
    /// Those of `load`; they are not kept.
    pub fn get_or_load<E>(
        &self,
        name: Vec<u8>,
        load: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.rule.max == 0 {
            return load();
        }
        let now = Instant::now();
        if let Some(value) = self.fresh(&name, now) {
            return Ok(value);
        }
        let value = load()?;
        let mut kept = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if 2 * (kept.len() + 1) > self.rule.max && !kept.contains_key(&name) {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                kept.remove(&oldest);
            }
        }
        kept.insert(name, Loaded { value: value.clone(), loaded: now, used: now });
        Ok(value)
    }

    fn fresh(&self, name: &[u8], now: Instant) -> Option<T> {
        let mut kept = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, kept| now - kept.used < self.rule.inactive);
        let found = kept.get_mut(name).filter(|found| now - found.loaded < self.rule.valid)?;
        found.used = now;
        Some(found.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(kept: &Kept<u8>, name: &str, value: u8) -> u8 {
        kept.get_or_load(name.into(), || Ok::<_, ()>(value)).unwrap()
    }

    #[test]
    fn as_many_are_kept_as_may_be_and_for_as_long() {
        let long = Duration::from_secs(1000);
        let rule = CertificateCache { max: 4, inactive: long, valid: long };
        let kept = Kept::new(rule);
        assert_eq!([load(&kept, "a", 1), load(&kept, "a", 2)], [1, 1]);
        assert_eq!([load(&kept, "b", 3), load(&kept, "a", 4)], [3, 1]);
        // The one that was used longest ago goes.
        assert_eq!([load(&kept, "c", 5), load(&kept, "a", 6), load(&kept, "b", 7)], [5, 1, 7]);
        for rule in [
            CertificateCache { inactive: Duration::ZERO, ..rule },
            CertificateCache { valid: Duration::ZERO, ..rule },
            CertificateCache::default(),
        ] {
            let kept = Kept::new(rule);
            assert_eq!([load(&kept, "a", 1), load(&kept, "a", 2)], [1, 2], "{rule:?}");
        }
        assert_eq!(kept.get_or_load(b"d".to_vec(), || Err("broken")), Err("broken"));
        assert_eq!(load(&kept, "d", 8), 8);
    }
}
