//! Connection IDs: each says which endpoint has the connection, to those who have the key.
//!
//! The system spreads datagrams over sockets by their addresses. A client that moves to another address thus reaches a
//! worker that does not know it; that one hands its datagrams over by what the ID says (`switch.rs`).

use aws_lc_rs::aead::quic::HeaderProtectionKey;
use quinn::{ConnectionId, ConnectionIdGenerator};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an ID: two that say the endpoint, six that are random.
pub(super) const ID_BYTES: usize = 8;
const OWNER_BYTES: usize = 2;

/// Makes the IDs of one endpoint.
#[derive(Clone)]
pub(super) struct Ids {
    key: Arc<HeaderProtectionKey>,
    endpoint: u16,
}

impl Ids {
    pub(super) fn new(key: Arc<HeaderProtectionKey>, endpoint: u16) -> Self {
        Self { key, endpoint }
    }

    /// What the endpoint is hidden with beside these random bytes.
    fn mask(&self, random: &[u8]) -> [u8; OWNER_BYTES] {
        let mut sample = [0; 16];
        sample[..random.len()].copy_from_slice(random);
        let mask = self.key.new_mask(&sample).unwrap_or_default();
        [mask[0], mask[1]]
    }

    /// The endpoint that a datagram is for, where it says one: those of a client that knows its connection's ID do.
    pub(super) fn endpoint_of(&self, datagram: &[u8]) -> Option<u16> {
        let (first, rest) = datagram.split_first()?;
        // The long header is that of handshakes, which do not move (RFC 9000, section 9).
        if first & 0x80 != 0 {
            return None;
        }
        let (owner, random) = rest.get(..ID_BYTES)?.split_at(OWNER_BYTES);
        let mask = self.mask(random);
        Some(u16::from_be_bytes([owner[0] ^ mask[0], owner[1] ^ mask[1]]))
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        let (owner, random) = id.split_at_mut(OWNER_BYTES);
        // Without randomness there is no handshake either.
        let _ = aws_lc_rs::rand::fill(random);
        let mask = self.mask(random);
        let endpoint = self.endpoint.to_be_bytes();
        owner.copy_from_slice(&[endpoint[0] ^ mask[0], endpoint[1] ^ mask[1]]);
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::keys::Keys;

    #[test]
    fn an_id_says_its_endpoint_to_those_with_the_key() {
        let keys = Keys::new(Some(b"secret")).unwrap();
        let other = Keys::new(None).unwrap();
        let mut seen = std::collections::HashSet::new();
        for endpoint in [0, 1, 7, 1023] {
            let mut ids = Ids::new(Arc::clone(&keys.id), endpoint);
            let id = ids.generate_cid();
            let short = [&[0x40], &id[..], b"payload"].concat();
            let reader = Ids::new(Arc::clone(&keys.id), 3);
            assert_eq!(reader.endpoint_of(&short), Some(endpoint));
            assert_eq!(reader.endpoint_of(&[&[0xc0], &id[..]].concat()), None);
            assert_eq!(reader.endpoint_of(&short[..ID_BYTES]), None);
            let stranger = Ids::new(Arc::clone(&other.id), 3);
            seen.insert(stranger.endpoint_of(&short));
        }
        assert_ne!(seen, [0, 1, 7, 1023].map(Some).into());
    }
}
