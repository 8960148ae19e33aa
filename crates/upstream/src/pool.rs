//! Idle connections kept for the next request.

use crate::connection::Connection;
use std::any::Any;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `keepalive` and its relatives allow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolLimits {
    /// Idle connections kept at most, over all peers.
    pub idle_max: usize,
    /// How long one may stay idle.
    pub idle_timeout: Duration,
    /// Requests one connection may serve.
    pub requests_max: u64,
    /// How long one may live before it is not kept again.
    pub age_max: Duration,
}

/// A kept connection with its history.
#[derive(Debug)]
pub struct Kept {
    /// The connection; what is kept holds it alone.
    pub connection: Rc<Connection>,
    /// Requests served so far.
    pub requests: u64,
    /// When it was opened.
    pub opened: Instant,
    /// What its protocol has to know of the requests before.
    pub memory: Option<Box<dyn Any>>,
}

/// What a connection is for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptFor<K> {
    /// As [`crate::Peer::text`] has it, which is compared faster than an address.
    pub peer: Arc<str>,
    /// What else must be the same.
    pub key: K,
}

/// An idle connection.
#[derive(Debug)]
struct Idle<K> {
    /// Made when it was opened; it comes and goes with the connection.
    whom: Rc<KeptFor<K>>,
    /// When it was idle for too long; `None` for never.
    until: Option<Instant>,
    kept: Kept,
}

impl<K: Eq> Idle<K> {
    fn is_for(&self, peer: &Arc<str>, key: &K) -> bool {
        let is_peer = Arc::ptr_eq(&self.whom.peer, peer) || self.whom.peer == *peer;
        is_peer && self.whom.key == *key
    }
}

/// One worker's idle connections of one group, for all keys; least recently used goes first.
#[derive(Debug)]
pub struct Pool<K> {
    idle: VecDeque<Idle<K>>,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        Self { idle: VecDeque::new() }
    }
}

impl<K: Eq> Pool<K> {
    /// The most recently used connection that is for the same and still good, and what it is for.
    pub fn take(
        &mut self,
        peer: &Arc<str>,
        key: &K,
        now: Instant,
    ) -> Option<(Rc<KeptFor<K>>, Kept)> {
        self.expire(now);
        while let Some(at) = self.idle.iter().rposition(|idle| idle.is_for(peer, key)) {
            let is_last = at + 1 == self.idle.len();
            let idle = if is_last { self.idle.pop_back() } else { self.idle.remove(at) };
            let Idle { whom, kept, .. } = idle?;
            if kept.connection.is_quiet() {
                return Some((whom, kept));
            }
        }
        None
    }

    /// Keeps a connection that stands between two requests, within the limits.
    pub fn put(&mut self, whom: Rc<KeptFor<K>>, kept: Kept, limits: &PoolLimits, now: Instant) {
        // The end of its time, not its age: clocks are added faster than they are subtracted.
        let end = kept.opened.checked_add(limits.age_max);
        let is_old = end.is_some_and(|end| now >= end);
        if limits.idle_max == 0 || kept.requests >= limits.requests_max || is_old {
            return;
        }
        while self.idle.len() >= limits.idle_max {
            self.idle.pop_front();
        }
        let until = now.checked_add(limits.idle_timeout);
        self.idle.push_back(Idle { whom, until, kept });
    }

    /// Closes what has been idle too long.
    pub fn expire(&mut self, now: Instant) {
        // In the order in which they were put back.
        while let Some(idle) = self.idle.front() {
            if idle.until.is_none_or(|until| now < until) {
                return;
            }
            self.idle.pop_front();
        }
    }

    /// Closes what the peer closed, or sent something unasked.
    pub fn drop_closed(&mut self) {
        self.idle.retain(|idle| idle.kept.connection.is_quiet());
    }

    /// How many are idle that are for the same.
    pub fn idle(&self, peer: &Arc<str>, key: &K) -> usize {
        self.idle.iter().filter(|idle| idle.is_for(peer, key)).count()
    }

    /// How many are idle.
    pub fn len(&self) -> usize {
        self.idle.len()
    }

    /// Whether none is idle.
    pub fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix::UnixSocket;
    use std::os::unix::net::UnixStream;

    const LIMITS: PoolLimits = PoolLimits {
        idle_max: 2,
        idle_timeout: Duration::from_secs(60),
        requests_max: 3,
        age_max: Duration::from_secs(3600),
    };

    fn of(peer: &str) -> Rc<KeptFor<&'static str>> {
        Rc::new(KeptFor { peer: peer.into(), key: "" })
    }

    /// What is idle for a peer.
    fn take(pool: &mut Pool<&'static str>, peer: &str, now: Instant) -> Option<Kept> {
        pool.take(&peer.into(), &"", now).map(|(_, kept)| kept)
    }

    fn kept(now: Instant) -> (Kept, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let connection = Rc::new(Connection::Unix(UnixSocket::new(near).unwrap()));
        (Kept { connection, requests: 0, opened: now, memory: None }, far)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_pool_keeps_the_latest_within_its_bounds() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let mut far = Vec::new();
        for name in ["a", "b", "c"] {
            let (kept, end) = kept(now);
            far.push(end);
            pool.put(of(name), kept, &LIMITS, now);
        }
        assert_eq!(pool.len(), 2);
        assert!(take(&mut pool, "a", now).is_none());
        assert!(take(&mut pool, "c", now).is_some());
        assert!(take(&mut pool, "b", now + LIMITS.idle_timeout).is_none());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_the_peer_closed_is_not_handed_out() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let (first, far) = kept(now);
        pool.put(of("a"), first, &LIMITS, now);
        drop(far);
        // The close shows as readiness only after the reactor ran.
        tokio::task::yield_now().await;
        if let Some(kept) = take(&mut pool, "a", now) {
            assert!(kept.connection.is_quiet(), "not noticed yet is allowed; wrong is not");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_serves_so_many_requests() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let (mut kept, _far) = kept(now);
        for requests in 1..LIMITS.requests_max {
            kept.requests = requests;
            pool.put(of("a"), kept, &LIMITS, now);
            kept = take(&mut pool, "a", now).unwrap();
        }
        kept.requests = LIMITS.requests_max;
        pool.put(of("a"), kept, &LIMITS, now);
        assert!(pool.is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_bound_holds_over_all_that_connections_are_for() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let mut far = Vec::new();
        for key in 0..9 {
            let (kept, end) = kept(now);
            far.push(end);
            pool.put(Rc::new(KeptFor { peer: "a".into(), key }), kept, &LIMITS, now);
            assert!(pool.len() <= LIMITS.idle_max);
        }
        let mut take = |key| pool.take(&"a".into(), &key, now).is_some();
        assert!(!take(6) && take(7) && !take(7) && take(8));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_old_connection_is_not_kept_again() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let (kept, _far) = kept(now);
        pool.put(of("a"), kept, &LIMITS, now + LIMITS.age_max);
        assert!(pool.is_empty());
    }
}
