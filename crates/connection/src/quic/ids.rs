//! Connection IDs: each says which endpoint has the connection, to those who have the key.
//!
//! The system spreads datagrams over sockets by their addresses. A client that moves to another address thus reaches a
//! worker that does not know it; that one hands its datagrams over by what the ID says (`switch.rs`).

use super::keys::Keys;
use quinn::{ConnectionId, ConnectionIdGenerator};
use std::time::Duration;

/// Bytes of an ID: two that say the process and two that say its endpoint, hidden, then five that are random.
pub(super) const ID_BYTES: usize = 9;
const OWNER_BYTES: usize = 4;

/// Of the first byte: whether the header is long, its type with that, and the type of a handshake's packets.
const LONG: u8 = 0x80;
const TYPE: u8 = 0xb0;
const HANDSHAKE: u8 = 0xa0;

/// Who has the connection of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Owner {
    Endpoint(u16),
    /// An endpoint of another process.
    Other,
    /// Whoever takes it: a connection may begin with it.
    New,
}

/// Makes the IDs of one endpoint.
#[derive(Clone)]
pub(super) struct Ids {
    keys: Keys,
    endpoint: u16,
}

impl Ids {
    pub(super) fn new(keys: Keys, endpoint: u16) -> Self {
        Self { keys, endpoint }
    }

    /// What the owner is hidden with beside these random bytes.
    fn mask(&self, random: &[u8]) -> [u8; OWNER_BYTES] {
        let mut sample = [0; 16];
        sample[..random.len()].copy_from_slice(random);
        let [mask @ .., _] = self.keys.id.new_mask(&sample).unwrap_or_default();
        mask
    }

    /// Who has the connection of a datagram, by its ID.
    pub(super) fn owner(&self, datagram: &[u8]) -> Owner {
        let id = match datagram {
            [first, rest @ ..] if first & LONG == 0 => rest.get(..ID_BYTES),
            // Of the packets with a long header those of handshakes have our ID (RFC 9000, section 17.2.4).
            [first, _, _, _, _, length, rest @ ..]
                if first & TYPE == HANDSHAKE && usize::from(*length) == ID_BYTES =>
            {
                rest.get(..ID_BYTES)
            }
            _ => None,
        };
        let Some((owner, random)) = id.map(|id| id.split_at(OWNER_BYTES)) else {
            return Owner::New;
        };
        let mask = self.mask(random);
        let plain: [u8; OWNER_BYTES] = std::array::from_fn(|at| owner[at] ^ mask[at]);
        let [process @ .., high, low] = plain;
        match process == self.keys.process {
            true => Owner::Endpoint(u16::from_be_bytes([high, low])),
            false => Owner::Other,
        }
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        let (owner, random) = id.split_at_mut(OWNER_BYTES);
        // Without randomness there is no handshake either.
        let _ = aws_lc_rs::rand::fill(random);
        let mask = self.mask(random);
        let [one, two] = self.keys.process;
        let [high, low] = self.endpoint.to_be_bytes();
        let hidden = [one, two, high, low].into_iter().zip(mask).map(|(plain, mask)| plain ^ mask);
        owner.iter_mut().zip(hidden).for_each(|(place, hidden)| *place = hidden);
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

    #[test]
    fn an_id_says_its_endpoint_to_those_with_the_key() {
        let keys = Keys::new(Some(b"secret")).unwrap();
        let other = Keys::new(None).unwrap();
        for endpoint in [0, 1, 7, 1023] {
            let mut ids = Ids::new(keys.clone(), endpoint);
            let id = ids.generate_cid();
            let short = [&[0x40], &id[..], b"payload"].concat();
            let reader = Ids::new(keys.clone(), 3);
            assert_eq!(reader.owner(&short), Owner::Endpoint(endpoint));
            let long = |first: u8| {
                let head = [first, 0, 0, 0, 1, u8::try_from(ID_BYTES).unwrap()];
                [&head, &id[..], b"payload"].concat()
            };
            assert_eq!(reader.owner(&long(0xe0)), Owner::Endpoint(endpoint), "a handshake");
            assert_eq!(reader.owner(&long(0xc0)), Owner::New);
            assert_eq!(reader.owner(&short[..ID_BYTES]), Owner::New);
        }
        let mut stranger = Ids::new(other, 3);
        let ids = (0..100).map(|_| stranger.generate_cid());
        let owners = ids.map(|id| Ids::new(keys.clone(), 3).owner(&[&[0x40], &id[..]].concat()));
        assert!(owners.filter(|owner| *owner == Owner::Other).count() > 90);
    }

    #[test]
    fn processes_with_one_secret_tell_their_endpoints_apart() {
        let secret = Some(&b"secret"[..]);
        let (old, new) = (Keys::new(secret).unwrap(), Keys::new(secret).unwrap());
        // They are drawn: once in 65,536 runs both are the same.
        let new = if old.process == new.process { Keys::new(secret).unwrap() } else { new };
        let (mut ours, theirs) = (Ids::new(old, 3), Ids::new(new, 3));
        let datagram = [&[0x40], &ours.generate_cid()[..]].concat();
        assert_eq!(
            (ours.owner(&datagram), theirs.owner(&datagram)),
            (Owner::Endpoint(3), Owner::Other)
        );
    }
}
