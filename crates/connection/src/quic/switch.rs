//! How datagrams get to the endpoint that has their connection.
//!
//! Each endpoint of an address has a number, which stands in the IDs of its connections. An endpoint that takes no more
//! connections still reads what the system gives it, as long as it has some: what is for others it hands on.

use super::ids::{Ids, Owner};
use super::keys::Keys;
use super::link;
use arc_swap::ArcSwapOption;
use quinn::udp::RecvMeta;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Parcels that may wait for an endpoint; chosen: what a moving client sends until it is noticed. More are lost, as on
/// any way.
const WAITING_MAX: usize = 256;

/// Datagrams of one peer that arrived together.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) bytes: Vec<u8>,
    pub(super) meta: RecvMeta,
}

/// The endpoints of one address.
#[derive(Debug)]
struct Address {
    keys: Keys,
    queues: HashMap<u16, mpsc::Sender<Parcel>>,
    /// Those that take connections.
    open: Vec<u16>,
    /// The number of the next one.
    next: u16,
}

/// The endpoints of one process, by address.
#[derive(Debug, Default)]
pub struct Switch {
    addresses: Mutex<HashMap<SocketAddr, Address>>,
    hasher: RandomState,
    /// Leads to the process before this one, as long as it has connections at the same sockets.
    predecessor: ArcSwapOption<UnixDatagram>,
    /// Whether another process reads the sockets.
    is_succeeded: AtomicBool,
    /// Whether another process is there that reads them, or is about to: what is known to no endpoint may be its own.
    has_successor: AtomicBool,
}

/// What an endpoint has of the switch.
pub(super) struct Joined {
    pub(super) number: u16,
    pub(super) queue: mpsc::Receiver<Parcel>,
    /// As long as the process lives: what was made with them is in the clients' hands.
    pub(super) keys: Keys,
}

impl Switch {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Address>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new endpoint; `secret`: what the keys of the address's first one are made of.
    ///
    /// # Errors
    /// There is no randomness.
    pub(super) fn join(
        &self,
        address: SocketAddr,
        secret: Option<&[u8]>,
    ) -> Result<Joined, aws_lc_rs::error::Unspecified> {
        let mut all = self.lock();
        let known = match all.entry(address) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(Address {
                keys: Keys::new(secret)?,
                queues: HashMap::new(),
                open: Vec::new(),
                next: 0,
            }),
        };
        while known.queues.contains_key(&known.next) {
            known.next = known.next.wrapping_add(1);
        }
        let number = known.next;
        known.next = number.wrapping_add(1);
        let (sender, queue) = mpsc::channel(WAITING_MAX);
        known.queues.insert(number, sender);
        known.open.push(number);
        Ok(Joined { number, queue, keys: known.keys.clone() })
    }

    /// An endpoint takes no more connections.
    pub(super) fn close(&self, address: SocketAddr, number: u16) {
        if let Some(known) = self.lock().get_mut(&address) {
            known.open.retain(|open| *open != number);
        }
    }

    /// An endpoint is gone.
    pub(super) fn leave(&self, address: SocketAddr, number: u16) {
        if let Some(known) = self.lock().get_mut(&address) {
            known.open.retain(|open| *open != number);
            known.queues.remove(&number);
        }
    }

    /// Hands a parcel to the endpoint of a number; `false` if there is none.
    pub(super) fn hand_over(&self, address: SocketAddr, number: u16, parcel: Parcel) -> bool {
        let all = self.lock();
        let queue = all.get(&address).and_then(|known| known.queues.get(&number));
        // What does not fit is lost.
        queue.map(|queue| _ = queue.try_send(parcel)).is_some()
    }

    /// Hands a parcel to the process before this one; `false` if no other process can have the connection. What the
    /// process after this one may have is lost, as on any way: an answer would end its connection.
    pub(super) fn hand_back(&self, address: SocketAddr, parcel: impl Fn() -> Parcel) -> bool {
        let predecessor = self.predecessor.load();
        // What it does not take is lost.
        predecessor.as_ref().map(|link| _ = link.send(&link::written(address, &parcel()))).is_some()
            || self.has_successor.load(Ordering::Relaxed)
    }

    /// A parcel that the process after this one has handed back.
    pub(super) fn take_back(&self, address: SocketAddr, parcel: Parcel) {
        let id = self.lock().get(&address).map(|known| Ids::new(known.keys.clone(), 0));
        if let Some(Owner::Endpoint(number)) = id.map(|id| id.owner(&parcel.bytes)) {
            self.hand_over(address, number, parcel);
        }
    }

    pub(super) fn set_predecessor(&self, link: Option<UnixDatagram>) {
        self.predecessor.store(link.map(Arc::new));
    }

    pub(super) fn set_successor(&self, is_there: bool) {
        self.has_successor.store(is_there, Ordering::Relaxed);
    }

    pub(super) fn is_succeeded(&self) -> bool {
        self.is_succeeded.load(Ordering::Relaxed)
    }

    /// Another process reads the sockets, or does not any more.
    pub(super) fn set_succeeded(&self, is_succeeded: bool) {
        if is_succeeded == self.is_succeeded.swap(is_succeeded, Ordering::Relaxed) {
            return;
        }
        for known in self.lock().values() {
            for queue in known.queues.values() {
                // Has the endpoint look at its sockets again.
                let _ = queue.try_send(Parcel { bytes: Vec::new(), meta: RecvMeta::default() });
            }
        }
    }

    /// Hands the first datagrams of a client to an endpoint that takes connections, each client's to the same.
    pub(super) fn hand_on(&self, address: SocketAddr, parcel: Parcel) {
        let all = self.lock();
        let Some(known) = all.get(&address).filter(|known| !known.open.is_empty()) else { return };
        let place = self.hasher.hash_one(parcel.meta.addr) % known.open.len() as u64;
        let number = known.open[usize::try_from(place).unwrap_or(0)];
        if let Some(queue) = known.queues.get(&number) {
            let _ = queue.try_send(parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(port: u16) -> Parcel {
        let addr = ([127, 0, 0, 1], port).into();
        Parcel { bytes: vec![1], meta: RecvMeta { addr, ..RecvMeta::default() } }
    }

    #[test]
    fn parcels_get_to_whom_they_are_for() {
        let (switch, address) = (Switch::default(), ([127, 0, 0, 1], 443).into());
        let mut first = switch.join(address, None).unwrap();
        let mut second = switch.join(address, None).unwrap();
        let (one, two) = (first.number, second.number);
        assert_eq!(two, one.wrapping_add(1));
        assert!(switch.hand_over(address, two, parcel(1)));
        assert!(!switch.hand_over(address, two.wrapping_add(1), parcel(1)));
        assert!(second.queue.try_recv().is_ok() && first.queue.try_recv().is_err());
        // What begins is for those that take connections.
        switch.close(address, two);
        (0..20).for_each(|port| switch.hand_on(address, parcel(port)));
        assert_eq!(std::iter::from_fn(|| first.queue.try_recv().ok()).count(), 20);
        assert!(switch.hand_over(address, two, parcel(1)), "it still has connections");
        switch.leave(address, two);
        assert!(!switch.hand_over(address, two, parcel(1)));
        let next = switch.join(address, None).unwrap().number;
        assert_eq!(next, two.wrapping_add(1), "numbers come again late");
    }

    #[test]
    fn what_another_process_may_have_is_not_answered() {
        let (switch, address) = (Switch::default(), ([127, 0, 0, 1], 443).into());
        assert!(!switch.hand_back(address, || parcel(1)));
        switch.set_successor(true);
        assert!(switch.hand_back(address, || parcel(1)));
        switch.set_successor(false);
        assert!(!switch.hand_back(address, || parcel(1)));
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        switch.set_predecessor(Some(ours));
        assert!(switch.hand_back(address, || parcel(1)));
        assert!(theirs.recv(&mut [0; 100]).is_ok_and(|length| length > 1));
    }

    #[test]
    fn what_waits_has_a_bound() {
        let (switch, address) = (Switch::default(), ([127, 0, 0, 1], 443).into());
        let mut one = switch.join(address, None).unwrap();
        (0..2 * WAITING_MAX).for_each(|_| _ = switch.hand_over(address, one.number, parcel(1)));
        assert_eq!(std::iter::from_fn(|| one.queue.try_recv().ok()).count(), WAITING_MAX);
    }
}
