//! What is kept with a zone, over a reload.

use super::counters;
use super::learned::Learned;
use std::sync::Arc;
use yorozu_cache::Zone;
use yorozu_kernel::base::tally::Tally;

pub struct Kept {
    pub tally: &'static Tally,
    pub learned: Arc<Learned>,
}

/// The zone of this name is used. Blocks.
pub fn begin(name: &str, zone: &Zone) {
    if of(zone).is_none() {
        zone.keep(Kept { tally: counters::named(name), learned: Arc::new(Learned::read(zone)) });
    }
}

pub fn of(zone: &Zone) -> Option<&Kept> {
    zone.kept()
}
