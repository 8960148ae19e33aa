//! What a zone counts of itself: evictions and purges. Hits and misses are its user's to count.

use crate::purge_list::Purge;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a page went that was neither purged nor replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Evicted {
    /// Its file was damaged.
    Damaged,
    /// It was not asked for within `inactive`.
    Inactive,
    /// There are as many pages as `keys_zone` holds.
    Keys,
    /// `max_size`
    MaxSize,
    /// From memory, for its room; a file stays.
    Memory,
    /// `min_free`
    MinFree,
    /// Keys and tags had no more room.
    Names,
}

impl Evicted {
    /// In their order.
    pub const ALL: [Self; 7] = [
        Self::Damaged,
        Self::Inactive,
        Self::Keys,
        Self::MaxSize,
        Self::Memory,
        Self::MinFree,
        Self::Names,
    ];

    /// A word for each.
    pub fn name(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Inactive => "inactive",
            Self::Keys => "keys",
            Self::MaxSize => "max-size",
            Self::Memory => "memory",
            Self::MinFree => "min-free",
            Self::Names => "names",
        }
    }
}

/// What a purge names, as counted.
pub const PURGE_KINDS: [&str; 4] = ["page", "prefix", "tag", "all"];

fn kind(purge: &Purge) -> usize {
    match purge {
        Purge::Page(_) => 0,
        Purge::Prefix(_) => 1,
        Purge::Tag(_) => 2,
        Purge::All => 3,
    }
}

/// Counters of a zone.
#[derive(Debug, Default)]
pub struct Figures {
    evicted: [AtomicU64; Evicted::ALL.len()],
    purges: [AtomicU64; PURGE_KINDS.len()],
    purged: AtomicU64,
}

impl Figures {
    pub(crate) fn evict(&self, why: Evicted) {
        self.evicted[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts purges, and the pages that they found.
    pub(crate) fn purge(&self, purges: &[Purge], found: usize) {
        for purge in purges.iter().filter(|purge| !purge.is_beside()) {
            self.purges[kind(purge)].fetch_add(1, Ordering::Relaxed);
        }
        self.purged.fetch_add(found as u64, Ordering::Relaxed);
    }

    /// Pages that went, by [`Evicted::ALL`].
    pub fn evicted(&self) -> [u64; Evicted::ALL.len()] {
        std::array::from_fn(|at| self.evicted[at].load(Ordering::Relaxed))
    }

    /// Purges, by [`PURGE_KINDS`].
    pub fn purges(&self) -> [u64; PURGE_KINDS.len()] {
        std::array::from_fn(|at| self.purges[at].load(Ordering::Relaxed))
    }

    /// Pages that purges found.
    pub fn purged(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }
}
