//! Connections between requests: what holds one, and where it goes back to.
//!
//! Each worker has a pool for each group; its bound is that of `keepalive`. A connection in it is for one protocol and,
//! with `keepalive … local` or TLS, for one location and peer name: it is never used for what it was not opened for.

use crate::upstream::{Keepalive, Upstream, counters};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use yorozu_kernel::base::{tasks, turn};
use yorozu_upstream::{Connection, Group, Kept, KeptFor, Peer, Pool};

/// What keeps connections apart.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct PoolKey {
    group: u64,
    scheme: &'static str,
    /// Whether a connection has a state of its own.
    has_session: bool,
    /// `*_bind`
    from: Option<SocketAddr>,
    /// The location and the name of the peer's certificate, where they matter.
    place: Option<(usize, Box<str>)>,
}

impl PoolKey {
    /// `scheme`, and whether a connection has a state of its own; `location` is unlike any other of the process's configurations.
    pub fn new(
        upstream: &Upstream,
        (scheme, has_session): (&'static str, bool),
        from: Option<SocketAddr>,
        location: usize,
        tls_name: Option<&str>,
    ) -> Self {
        let is_local = upstream.keepalive.is_some_and(|keepalive| keepalive.is_local);
        let place = match tls_name {
            Some(name) => Some((location, name.into())),
            None => is_local.then(|| (location, "".into())),
        };
        Self { group: upstream.group.id, scheme, has_session, from, place }
    }
}

/// What a connection is kept for: made when it is opened, and with it from then on.
pub type Whom = Rc<KeptFor<PoolKey>>;

struct Entry {
    pool: Pool<PoolKey>,
    keepalive: Keepalive,
    /// Gone with its configuration.
    group: Weak<Group>,
}

/// The pool of each group, by its number.
type Pools = HashMap<u64, Entry, BuildHasherDefault<ByNumber>>;

/// Group numbers are counted up: they need no mixing.
#[derive(Default)]
struct ByNumber(u64);

impl Hasher for ByNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What a connection to `peer` is kept for.
pub fn whom(key: &PoolKey, peer: &Peer) -> Whom {
    Rc::new(KeptFor { peer: Arc::clone(peer.text()), key: key.clone() })
}

thread_local! {
    static TAKEN: Rc<Notify> = Rc::new(Notify::new());
    static POOLS: RefCell<Pools> = RefCell::default();
    static IS_SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// How often idle connections are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Notified whenever a connection of this worker is taken from those that are kept ready.
pub fn taken() -> Rc<Notify> {
    TAKEN.with(Rc::clone)
}

/// An idle connection to `peer`.
pub fn take(key: &PoolKey, peer: &Peer) -> Option<(Whom, Kept)> {
    POOLS.with_borrow_mut(|pools| {
        let Entry { pool, keepalive, .. } = pools.get_mut(&key.group)?;
        if keepalive.ready > 0 {
            TAKEN.with(|taken| taken.notify_waiters());
        }
        pool.take(peer.text(), key, turn::instant())
    })
}

/// Whether fewer than `count` connections to `peer` are idle, and there is room for one more.
pub fn lacks(key: &PoolKey, peer: &Peer, count: usize) -> bool {
    POOLS.with_borrow(|pools| {
        pools.get(&key.group).is_none_or(|Entry { pool, keepalive, .. }| {
            pool.len() < keepalive.limits.idle_max && pool.idle(peer.text(), key) < count
        })
    })
}

/// Keeps a connection that stands between two requests, within the limits.
pub fn put(whom: Whom, upstream: &Upstream, kept: Kept) {
    let Some(keepalive) = upstream.keepalive else { return };
    POOLS.with_borrow_mut(|pools| {
        let entry = pools.entry(whom.key.group).or_insert_with(|| {
            let group = Arc::downgrade(&upstream.group);
            Entry { pool: Pool::default(), keepalive, group }
        });
        entry.pool.put(whom, kept, &keepalive.limits, turn::instant());
    });
    if !IS_SWEEPING.replace(true) {
        tasks::of_request(sweep(Sweeping));
    }
}

/// The one task of a worker that sweeps; the next one may begin when it ends, however that is.
struct Sweeping;

impl Drop for Sweeping {
    fn drop(&mut self) {
        IS_SWEEPING.set(false);
    }
}

/// Closes connections that were idle too long, that their peer closed, or whose group is gone.
async fn sweep(_sweeping: Sweeping) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let is_empty = POOLS.with_borrow_mut(|pools| {
            let now = Instant::now();
            pools.retain(|_, entry| {
                entry.pool.expire(now);
                entry.pool.drop_closed();
                entry.group.strong_count() > 0 && !entry.pool.is_empty()
            });
            pools.is_empty()
        });
        if is_empty {
            return;
        }
    }
}

/// A connection on which another request can follow, and what that has to know.
pub struct Rest {
    pub connection: Rc<Connection>,
    pub memory: Option<Box<dyn Any>>,
}

/// A peer in use by one request, and where its connection is kept afterwards, if at all.
pub struct Lease {
    upstream: Arc<Upstream>,
    lease: yorozu_upstream::Lease,
    whom: Option<Whom>,
    requests: u64,
    opened: Instant,
    /// Whether the peer was found at fault though its answer is used.
    is_blamed: bool,
}

impl Lease {
    /// Of a connection that had this many `requests` since it was `opened`.
    pub fn new(
        upstream: &Arc<Upstream>,
        lease: yorozu_upstream::Lease,
        whom: Option<Whom>,
        (requests, opened): (u64, Instant),
    ) -> Self {
        Self { upstream: Arc::clone(upstream), lease, whom, requests, opened, is_blamed: false }
    }

    pub fn peer(&self) -> &Peer {
        self.lease.peer()
    }

    /// The head of the answer came, and counts as none.
    pub fn headed(&self) {
        self.lease.headed(turn::instant);
    }

    /// The answer counts as the peer's failure, and its connection is not kept. Whether that takes the peer out for a time.
    pub fn blame(&mut self, now: Instant) -> bool {
        let is_out = self.lease.blame(now);
        counters::failed(self.upstream.tally);
        self.is_blamed = true;
        self.whom = None;
        is_out
    }

    /// The request is over; a connection on which another can follow may be kept.
    pub fn release(self, rest: Option<Rest>) {
        if let (Some(whom), Some(Rest { connection, memory })) = (self.whom, rest) {
            let (requests, opened) = (self.requests + 1, self.opened);
            put(whom, &self.upstream, Kept { connection, requests, opened, memory });
        }
        if !self.is_blamed {
            let took = turn::since(self.lease.begun());
            counters::answered(self.upstream.tally, took);
            self.lease.succeeded(took);
        }
    }
}
