//! The last addresses of names, which stand in while no name server helps.
//!
//! They are the process's, so that a reload keeps them.
//!
//! # Source
//! RFC 8767, Serving Stale Data to Improve DNS Resiliency.

use crate::resolver::{Resolved, Resolver};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a client waits for a name server where the last addresses are known (RFC 8767, section 5).
pub(crate) const PATIENCE: Duration = Duration::from_millis(1800);
/// How long addresses stand in beyond their TTL (RFC 8767, section 5: one to three days).
const STALE_MAX: Duration = Duration::from_secs(24 * 3600);
/// When to ask again after a failure; chosen: RFC 8767 recommends 30 s, addresses of containers change sooner.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Chosen.
const NAMES_MAX: usize = 1024;

/// A name, and who is asked for it.
pub(crate) type Key = (Resolver, String);

struct LastKnown {
    addresses: Vec<IpAddr>,
    usable_until: Instant,
    /// Since the last question failed.
    retry_at: Option<Instant>,
}

static NAMES: LazyLock<Mutex<HashMap<Key, LastKnown>>> = LazyLock::new(Mutex::default);

fn names() -> MutexGuard<'static, HashMap<Key, LastKnown>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes what a name server said.
pub(crate) fn note(key: &Key, found: &Resolved) {
    let mut names = names();
    if names.len() >= NAMES_MAX && !names.contains_key(key) {
        let first = names.iter().min_by_key(|(_, known)| known.usable_until);
        let first = first.map(|(key, _)| key.clone());
        first.map(|key| names.remove(&key));
    }
    let known = LastKnown {
        addresses: found.addresses.clone(),
        usable_until: found.valid_until + STALE_MAX,
        retry_at: None,
    };
    names.insert(key.clone(), known);
}

/// Forgets a name that a name server does not know any more.
pub(crate) fn forget(key: &Key) {
    names().remove(key);
}

/// Whether addresses can stand in for this name.
pub(crate) fn is_known(key: &Key, now: Instant) -> bool {
    names().get(key).is_some_and(|known| known.usable_until > now)
}

/// The addresses that stand in, where the last question failed and it is too early for another.
pub(crate) fn in_between(key: &Key, now: Instant) -> Option<Resolved> {
    let names = names();
    let known = names.get(key).filter(|known| known.usable_until > now)?;
    let valid_until = known.retry_at.filter(|retry_at| *retry_at > now)?;
    Some(Resolved { addresses: known.addresses.clone(), valid_until, is_stale_for: None })
}

/// Notes that a question failed.
pub(crate) fn failed(key: &Key, now: Instant) {
    if let Some(known) = names().get_mut(key) {
        known.retry_at = Some(now + RETRY_INTERVAL);
    }
}
