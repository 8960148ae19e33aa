//! Consistent hashing: servers own points on a ring of 32-bit numbers; a key belongs to the first
//! point at or after its hash. When a server goes, only its own keys move.
//!
//! # Sources
//! nginx, `hash … consistent`: the ring of Perl's Cache::Memcached::Fast with `ketama_points` 160.
//! libmemcached, `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`: the ring PHP's Memcached builds with
//! `OPT_LIBKETAMA_COMPATIBLE`.

use md5::{Digest as _, Md5};

/// Points of a server of weight 1.
const POINTS: u32 = 160;
/// memcached's own port, which libmemcached leaves out of a server's name.
const MEMCACHED_PORT: &str = "11211";

/// The points of a group's servers, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ring {
    points: Vec<(u32, u32)>,
    kind: RingKind,
}

/// Whose ring it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RingKind {
    /// nginx's, of `hash key consistent`.
    #[default]
    Consistent,
    /// libmemcached's, of `hash key ketama`.
    Ketama,
}

impl Ring {
    /// The ring over `(server as written, weight)`.
    pub fn new(kind: RingKind, servers: &[(String, u32)]) -> Self {
        match kind {
            RingKind::Consistent => Self::consistent(servers),
            RingKind::Ketama => Self::ketama(servers),
        }
    }

    /// The server that a key belongs to, by its place among those of [`Ring::new`]; `None` if there are none.
    pub fn server_of(&self, key: &[u8]) -> Option<usize> {
        let server = self.server(self.position(self.hash(key)))?;
        usize::try_from(server).ok()
    }

    fn consistent(servers: &[(String, u32)]) -> Self {
        let mut points = Vec::new();
        for (index, (server, weight)) in (0u32..).zip(servers) {
            let (host, port) = host_and_port(server);
            let mut base = crc32fast::Hasher::new();
            base.update(host.as_bytes());
            base.update(&[0]);
            base.update(port.as_bytes());
            let mut previous = 0u32;
            for _ in 0..POINTS.saturating_mul(*weight) {
                let mut hasher = base.clone();
                hasher.update(&previous.to_le_bytes());
                previous = hasher.finalize();
                points.push((previous, index));
            }
        }
        Self::sorted(RingKind::Consistent, points)
    }

    fn ketama(servers: &[(String, u32)]) -> Self {
        let total: u32 = servers.iter().map(|(_, weight)| weight).sum();
        let mut points = Vec::new();
        for (index, (server, weight)) in (0u32..).zip(servers) {
            let (host, port) = host_and_port(server);
            let name = match port {
                "" | MEMCACHED_PORT => host.to_owned(),
                port => format!("{host}:{port}"),
            };
            // In single precision, as libmemcached: another rounding would be another ring.
            let share = *weight as f32 / total as f32;
            let groups =
                (share * POINTS as f32 / 4.0 * servers.len() as f32 + 0.000_000_000_1).floor();
            for group in 0..groups as u32 {
                let digest = Md5::digest(format!("{name}-{group}"));
                for four in digest.chunks_exact(4) {
                    let point = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                    points.push((point, index));
                }
            }
        }
        Self::sorted(RingKind::Ketama, points)
    }

    fn sorted(kind: RingKind, mut points: Vec<(u32, u32)>) -> Self {
        points.sort_by_key(|(point, _)| *point);
        points.dedup_by_key(|(point, _)| *point);
        Self { points, kind }
    }

    /// The hash of a key on this ring.
    pub(crate) fn hash(&self, key: &[u8]) -> u32 {
        match self.kind {
            RingKind::Consistent => crc32fast::hash(key),
            RingKind::Ketama => {
                let digest = Md5::digest(key);
                u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
            }
        }
    }

    /// Position of the first point at or after `hash`.
    pub(crate) fn position(&self, hash: u32) -> usize {
        self.points.partition_point(|(point, _)| *point < hash)
    }

    /// The server of the point at `position`, around the ring.
    pub(crate) fn server(&self, position: usize) -> Option<u32> {
        let position = position.checked_rem(self.points.len())?;
        Some(self.points[position].1)
    }
}

/// `host:port`, `host`, or `unix:/path` as host without port.
fn host_and_port(server: &str) -> (&str, &str) {
    if let Some(path) = server.strip_prefix("unix:") {
        return (path, "");
    }
    match server.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
        _ => (server, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &[&str]) -> Vec<(String, u32)> {
        names.iter().map(|name| ((*name).to_owned(), 1)).collect()
    }

    #[test]
    fn only_the_keys_of_a_lost_server_move() {
        for make in [Ring::consistent, Ring::ketama] {
            let all = make(&servers(&["a:1", "b:1", "c:1"]));
            let less = make(&servers(&["a:1", "b:1"]));
            for key in 0..1000u32 {
                let hash = crc32fast::hash(key.to_string().as_bytes());
                let owner = all.server(all.position(hash)).unwrap();
                if owner < 2 {
                    assert_eq!(less.server(less.position(hash)), Some(owner), "{key}");
                }
            }
        }
    }

    #[test]
    fn the_last_point_is_followed_by_the_first() {
        let ring = Ring::consistent(&servers(&["a:1", "b:1"]));
        assert_eq!(ring.server(ring.points.len()), ring.server(0));
        assert_eq!(Ring::default().server(0), None);
    }

    #[test]
    fn servers_are_named_as_written() {
        assert_eq!(host_and_port("127.0.0.1:11211"), ("127.0.0.1", "11211"));
        assert_eq!(host_and_port("cache"), ("cache", ""));
        assert_eq!(host_and_port("unix:/run/m.sock"), ("/run/m.sock", ""));
        let ring = Ring::ketama(&servers(&["127.0.0.1:11211"]));
        assert_eq!(ring, Ring::ketama(&servers(&["127.0.0.1"])));
    }
}
