//! What peers have under way, over reloads.

use crate::connection::PeerAddress;
use crate::gauge::Gauge;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

/// Names a peer over reloads: its group, its address, and which of several alike it is.
pub(crate) type LoadKey = (String, PeerAddress, usize);

/// The loads of all peers of the process: a reload makes new groups, and requests of before go on.
#[derive(Debug, Default)]
pub struct Loads(Mutex<HashMap<LoadKey, Weak<Gauge>>>);

impl Loads {
    pub(crate) fn of(&self, key: LoadKey) -> Arc<Gauge> {
        // Each use is one call: a panic elsewhere cannot leave it half changed.
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(load) = loads.get(&key).and_then(Weak::upgrade) {
            return load;
        }
        // Now and then, so that ten thousand peers are not each compared with all.
        if loads.len().is_power_of_two() {
            loads.retain(|_, load| load.strong_count() > 0);
        }
        let load = Arc::new(Gauge::new());
        loads.insert(key, Arc::downgrade(&load));
        load
    }
}
