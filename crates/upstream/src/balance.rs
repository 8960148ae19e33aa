//! How a group chooses among its peers.
//!
//! What makes a peer ineligible (tried, down, resting, full) is known before. The hashing methods fall back to round robin when their choice fails too often, as nginx.

use crate::group::Slot;
use std::net::IpAddr;

/// A load balancing method of an `upstream` block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Balance {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
    /// `ip_hash`
    IpHash,
    /// `hash key`: as Cache::Memcached.
    Hash,
    /// `hash key consistent`: as Cache::Memcached::Fast with `ketama_points` 160.
    Consistent,
    /// `hash key ketama`: as libmemcached's `LIBKETAMA_COMPATIBLE`, and so PHP's Memcached.
    Ketama,
    /// `least_conn`
    LeastConn,
    /// `least_time`
    LeastTime(LeastTime),
    /// `random`; `two`: the less busy of two.
    Random {
        /// Whether two are drawn and compared.
        two: bool,
    },
}

/// What `least_time` says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeastTime {
    /// Whether the time to the last byte counts, and not that to the head.
    pub to_last_byte: bool,
    /// Whether requests count that are not answered yet.
    pub with_inflight: bool,
}

impl Balance {
    /// Whether the group may have backup peers.
    pub fn admits_backup(self) -> bool {
        matches!(self, Self::RoundRobin | Self::LeastConn | Self::LeastTime(_))
    }
}

/// What a request brings to the choice.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// The value of the `hash` key.
    pub key: Vec<u8>,
    /// The client's address, for `ip_hash`; `None` over a Unix socket.
    pub client: Option<IpAddr>,
    /// The peer that the request is bound to ([`crate::Peer::sid`]); empty for none.
    pub sid: Vec<u8>,
}

/// How often a hash may hit an ineligible peer before round robin takes over; as nginx.
pub(crate) const MISSES_MAX: u32 = 20;

/// Where a hashing method stands within one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashState {
    pub(crate) hash: u32,
    pub(crate) rehash: u32,
    pub(crate) misses: u32,
    pub(crate) is_begun: bool,
}

impl Default for HashState {
    fn default() -> Self {
        Self { hash: 89, rehash: 0, misses: 0, is_begun: false }
    }
}

impl HashState {
    /// The next value of `ip_hash`: the first three octets of an IPv4 address, all of an IPv6 one.
    pub(crate) fn next_of_address(&mut self, client: Option<IpAddr>) -> u32 {
        let mut mix = |octets: &[u8]| {
            for octet in octets {
                self.hash = (self.hash * 113 + u32::from(*octet)) % 6271;
            }
        };
        match client {
            Some(IpAddr::V4(address)) => mix(&address.octets()[..3]),
            Some(IpAddr::V6(address)) => mix(&address.octets()),
            None => mix(&[0; 3]),
        }
        self.hash
    }

    /// The next value of `hash key`: `((crc32([rehash] key) >> 16) & 0x7fff)` added to the last.
    pub(crate) fn next_of_key(&mut self, key: &[u8]) -> u32 {
        if !self.is_begun {
            (self.hash, self.is_begun) = (0, true);
        }
        let mut crc = crc32fast::Hasher::new();
        if self.rehash > 0 {
            crc.update(self.rehash.to_string().as_bytes());
        }
        crc.update(key);
        self.rehash += 1;
        self.hash = self.hash.wrapping_add((crc.finalize() >> 16) & 0x7fff);
        self.hash
    }
}

/// The slot that `hash` falls on when each takes as much room as its weight.
pub(crate) fn by_weight(slots: &[Slot], hash: u32) -> Option<usize> {
    let primary = || slots.iter().enumerate().filter(|(_, slot)| !slot.options.backup);
    let total: u32 = primary().map(|(_, slot)| slot.options.weight).sum();
    let mut left = hash.checked_rem(total)?;
    for (index, slot) in primary() {
        match left.checked_sub(slot.options.weight) {
            None => return Some(index),
            Some(rest) => left = rest,
        }
    }
    None
}

/// Smooth weighted round robin over the `eligible`: each gains its weight, the highest goes and
/// pays the total, so that a, a, b becomes a, b, a.
pub(crate) fn smooth(slots: &mut [Slot], eligible: impl Fn(&Slot) -> bool) -> Option<usize> {
    let mut total = 0;
    let mut best: Option<(usize, i64)> = None;
    for (index, slot) in slots.iter_mut().enumerate() {
        if !eligible(slot) {
            continue;
        }
        let state = &mut slot.state;
        state.current_weight += state.effective_weight;
        total += state.effective_weight;
        if state.effective_weight < i64::from(slot.options.weight) {
            state.effective_weight += 1;
        }
        if best.is_none_or(|(_, highest)| state.current_weight > highest) {
            best = Some((index, state.current_weight));
        }
    }
    let (best, _) = best?;
    slots[best].state.current_weight -= total;
    Some(best)
}

/// As [`smooth`], with a choice that was made: it pays, but never more than one turn of all others ahead.
pub(crate) fn bound(slots: &mut [Slot], chosen: usize, eligible: impl Fn(&Slot) -> bool) {
    let all: i64 = slots.iter().map(|slot| i64::from(slot.options.weight)).sum();
    let own = i64::from(slots[chosen].options.weight);
    if slots[chosen].state.current_weight <= own - all {
        return;
    }
    let mut total = 0;
    for slot in slots.iter_mut().filter(|slot| eligible(slot)) {
        slot.state.current_weight += slot.state.effective_weight;
        total += slot.state.effective_weight;
    }
    slots[chosen].state.current_weight -= total;
}

/// Orders by connections per weight: the less busy first.
pub(crate) fn by_load(a: &Slot, b: &Slot) -> std::cmp::Ordering {
    let load = |of: &Slot, by: &Slot| of.connections() as u64 * u64::from(by.options.weight);
    load(a, b).cmp(&load(b, a))
}

/// The least busy of the `eligible`; among equals, smooth round robin.
pub(crate) fn least_busy(slots: &mut [Slot], eligible: impl Fn(&Slot) -> bool) -> Option<usize> {
    let least = slots
        .iter()
        .filter(|slot| eligible(slot))
        .min_by(|a, b| by_load(a, b))
        .map(|slot| (slot.connections(), slot.options.weight))?;
    smooth(slots, |slot| {
        let load = slot.connections() as u64 * u64::from(least.1);
        eligible(slot) && load == least.0 as u64 * u64::from(slot.options.weight)
    })
}
