//! Headers that gave pages other addresses, or kept responses from being shared: counted by name, so that one which a proxy adds
//! to all requests is seen. The names of cookies that did so, in reports.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most names; chosen: clients can send any. What is beyond counts as [`OTHER`].
const NAMES_MAX: usize = 64;
/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;
const OTHER: &str = "other";

/// What a header did to a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    /// It has another address than the key's.
    Split,
    /// It is its client's alone.
    Unshared,
}

impl Effect {
    pub(super) const ALL: [Self; 2] = [Self::Split, Self::Unshared];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Unshared => "unshared",
        }
    }
}

type Counts = BTreeMap<&'static str, [u64; Effect::ALL.len()]>;

static COUNTS: Mutex<Counts> = Mutex::new(BTreeMap::new());
/// Names of cookies, which are not counted; apart, for clients can fill the other.
static COOKIES: Mutex<Counts> = Mutex::new(BTreeMap::new());

fn locked(counts: &'static Mutex<Counts>) -> MutexGuard<'static, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a response; the name for its report.
pub(super) fn count(name: &[u8], effect: Effect) -> &'static str {
    let mut counts = locked(&COUNTS);
    let name = known(&mut counts, name);
    counts.entry(name).or_default()[effect as usize] += 1;
    name
}

/// The name of a cookie for a report.
pub(super) fn cookie(name: &[u8]) -> &'static str {
    known(&mut locked(&COOKIES), name)
}

fn known(counts: &mut Counts, name: &[u8]) -> &'static str {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX);
    let known = name.and_then(|name| counts.get_key_value(name).map(|(known, _)| *known));
    let name: &'static str = match (known, name) {
        (Some(known), _) => known,
        (None, Some(name)) if counts.len() < NAMES_MAX => Box::leak(Box::from(name)),
        _ => OTHER,
    };
    counts.entry(name).or_default();
    name
}

/// How many responses of each effect each header had.
pub(super) fn by_name() -> Vec<(&'static str, [u64; Effect::ALL.len()])> {
    locked(&COUNTS).iter().map(|(name, counts)| (*name, *counts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        for at in 0..2 * NAMES_MAX {
            count(format!("x-{at}").as_bytes(), Effect::Unshared);
        }
        assert_eq!(count(&[b'x'; NAME_BYTES_MAX + 1], Effect::Split), OTHER);
        assert_eq!(count(b"x-0", Effect::Split), "x-0");
        let found = by_name();
        assert!(found.len() <= NAMES_MAX + 1, "{}", found.len());
        assert!(found.contains(&("x-0", [1, 1])));
        assert_eq!(found.iter().map(|(_, counts)| counts[1]).sum::<u64>(), 2 * NAMES_MAX as u64);
    }
}
