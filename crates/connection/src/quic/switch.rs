//! How datagrams get to the worker that has their connection.

use super::keys::Keys;
use quinn::udp::RecvMeta;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Datagrams that may wait for a worker; chosen: what a moving client sends until it is noticed. More are lost, as on
/// any way.
const WAITING_MAX: usize = 256;

/// Datagrams of one peer that arrived together.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    pub(super) meta: RecvMeta,
}

/// The queues of the workers of one process, and the keys of its addresses.
#[derive(Debug, Default)]
pub struct Switch {
    queues: Mutex<HashMap<(SocketAddr, u16), mpsc::Sender<Parcel>>>,
    keys: Mutex<HashMap<SocketAddr, Keys>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// A worker's queue for what others get of it at an address; the one it had before ends.
    pub(super) fn queue(&self, address: SocketAddr, worker: u16) -> mpsc::Receiver<Parcel> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        lock(&self.queues).insert((address, worker), sender);
        receiver
    }

    /// Hands a parcel over; `false` if there is no such worker.
    pub(super) fn hand_over(&self, address: SocketAddr, worker: u16, parcel: Parcel) -> bool {
        let queue = lock(&self.queues).get(&(address, worker)).cloned();
        // One that does not fit is lost.
        queue.is_some_and(|queue| {
            !matches!(queue.try_send(parcel), Err(mpsc::error::TrySendError::Closed(_)))
        })
    }

    /// The keys of an address: those of the worker that asked first, for as long as the process lives, since what was made
    /// with them is in the clients' hands.
    ///
    /// # Errors
    /// There is no randomness.
    pub(super) fn keys(
        &self,
        address: SocketAddr,
        secret: Option<&[u8]>,
    ) -> Result<Keys, aws_lc_rs::error::Unspecified> {
        let mut all = lock(&self.keys);
        if let Some(keys) = all.get(&address) {
            return Ok(keys.clone());
        }
        let keys = Keys::new(secret)?;
        all.insert(address, keys.clone());
        Ok(keys)
    }
}
