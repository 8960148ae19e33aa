//! What a configuration says of certificates, and what outlives it.

use crate::certificate::{Certificate, Order};
use crate::challenges::Challenges;
use crate::issuer::Issuer;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;

/// Issuers and certificates of a configuration.
#[derive(Debug, Default)]
pub struct Acme {
    pub issuers: BTreeMap<String, Arc<Issuer>>,
    pub(crate) has_zone: bool,
    /// By the server's number.
    by_server: HashMap<u32, Arc<Certificate>>,
    /// Of the process.
    known: Arc<Known>,
}

/// What outlives configurations.
#[derive(Debug, Default)]
struct Known {
    certificates: Mutex<HashMap<Order, Weak<Certificate>>>,
    challenges: Arc<Challenges>,
}

impl Shared for Acme {
    const SURVIVES: bool = true;

    fn place() -> &'static Place {
        place!()
    }

    fn follow(&mut self, earlier: &Self) {
        self.known = Arc::clone(&earlier.known);
    }
}

impl Acme {
    /// Notes that a server wants a certificate: the one of the configuration before, where that had the same.
    pub(crate) fn bind(&mut self, server: u32, order: Order) {
        let mut known = self.known.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, certificate| certificate.strong_count() > 0);
        let found = known.get(&order).and_then(Weak::upgrade);
        let certificate = found.unwrap_or_else(|| {
            let made = Arc::new(Certificate::new(order.clone()));
            known.insert(order, Arc::downgrade(&made));
            made
        });
        drop(known);
        self.by_server.insert(server, certificate);
    }

    pub(crate) fn of_server(&self, server: u32) -> Option<&Certificate> {
        self.by_server.get(&server).map(|certificate| &**certificate)
    }

    /// Every certificate once, with the number of a server that has it; in the order of the servers.
    pub fn certificates(&self) -> Vec<(u32, Arc<Certificate>)> {
        let mut all: Vec<_> = self.by_server.iter().map(|(id, it)| (*id, Arc::clone(it))).collect();
        all.sort_by_key(|(id, _)| *id);
        let mut seen: Vec<Arc<Certificate>> = Vec::new();
        all.retain(|(_, certificate)| {
            let is_new = !seen.iter().any(|other| Arc::ptr_eq(other, certificate));
            if is_new {
                seen.push(Arc::clone(certificate));
            }
            is_new
        });
        all
    }

    /// Folders that the server process writes to.
    pub fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let mut used =
            self.by_server.values().filter_map(|it| it.order.folder.clone()).collect::<Vec<_>>();
        used.sort_unstable();
        used.dedup();
        used.into_iter()
    }

    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.known.challenges
    }
}
