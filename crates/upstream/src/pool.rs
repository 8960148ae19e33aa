//! Idle connections kept for the next request.

use crate::connection::Connection;
use std::collections::VecDeque;
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
    /// The connection.
    pub connection: Connection,
    /// Requests served so far.
    pub requests: u64,
    /// When it was opened.
    pub opened: Instant,
}

/// One worker's idle connections of one group; least recently used goes first.
#[derive(Debug, Default)]
pub struct Pool {
    /// With the peer's text, which is compared faster than an address.
    idle: VecDeque<(Arc<str>, Instant, Kept)>,
}

impl Pool {
    /// The most recently used connection to `peer` (as [`crate::Peer::text`] has it) that is still good.
    pub fn take(&mut self, peer: &str, limits: &PoolLimits, now: Instant) -> Option<Kept> {
        self.expire(limits, now);
        while let Some(at) = self.idle.iter().rposition(|(found, ..)| **found == *peer) {
            let (_, _, kept) = self.idle.remove(at)?;
            if kept.connection.is_quiet() {
                return Some(kept);
            }
        }
        None
    }

    /// Keeps a connection that stands between two requests, within the limits.
    pub fn put(&mut self, peer: Arc<str>, kept: Kept, limits: &PoolLimits, now: Instant) {
        let is_old = now.saturating_duration_since(kept.opened) >= limits.age_max;
        if limits.idle_max == 0 || kept.requests >= limits.requests_max || is_old {
            return;
        }
        while self.idle.len() >= limits.idle_max {
            self.idle.pop_front();
        }
        self.idle.push_back((peer, now, kept));
    }

    /// Closes what has been idle too long.
    pub fn expire(&mut self, limits: &PoolLimits, now: Instant) {
        // In the order in which they were put back.
        while let Some((_, since, _)) = self.idle.front() {
            if now.saturating_duration_since(*since) < limits.idle_timeout {
                return;
            }
            self.idle.pop_front();
        }
    }

    /// Closes what the peer closed, or sent something unasked.
    pub fn drop_closed(&mut self) {
        self.idle.retain(|(_, _, kept)| kept.connection.is_quiet());
    }

    /// How many to `peer` are idle.
    pub fn idle(&self, peer: &str) -> usize {
        self.idle.iter().filter(|(found, ..)| **found == *peer).count()
    }

    /// How many are idle.
    pub fn len(&self) -> usize {
        self.idle.len()
    }

    /// Is none idle?
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

    fn kept(now: Instant) -> (Kept, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let connection = Connection::Unix(UnixSocket::new(near).unwrap());
        (Kept { connection, requests: 0, opened: now }, far)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_pool_keeps_the_latest_within_its_bounds() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let mut far = Vec::new();
        for name in ["a", "b", "c"] {
            let (kept, end) = kept(now);
            far.push(end);
            pool.put(name.into(), kept, &LIMITS, now);
        }
        assert_eq!(pool.len(), 2);
        assert!(pool.take("a", &LIMITS, now).is_none());
        assert!(pool.take("c", &LIMITS, now).is_some());
        assert!(pool.take("b", &LIMITS, now + LIMITS.idle_timeout).is_none());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_the_peer_closed_is_not_handed_out() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let (first, far) = kept(now);
        pool.put("a".into(), first, &LIMITS, now);
        drop(far);
        // The close shows as readiness only after the reactor ran.
        tokio::task::yield_now().await;
        if let Some(kept) = pool.take("a", &LIMITS, now) {
            assert!(kept.connection.is_quiet(), "not noticed yet is allowed; wrong is not");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_serves_so_many_requests() {
        let (mut pool, now) = (Pool::default(), Instant::now());
        let (mut kept, _far) = kept(now);
        for requests in 1..LIMITS.requests_max {
            kept.requests = requests;
            pool.put("a".into(), kept, &LIMITS, now);
            kept = pool.take("a", &LIMITS, now).unwrap();
        }
        kept.requests = LIMITS.requests_max;
        pool.put("a".into(), kept, &LIMITS, now);
        assert!(pool.is_empty());
    }
}
