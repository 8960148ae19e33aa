//! Where a client is. It may move (RFC 9000, section 9), and is believed to be where it can receive.
//!
//! The library goes where the last datagram came from, challenges that address (section 8.2), and does not say how that ended.
//! So the challenge is read in the packet that carries it, before that is sealed, and the address it goes to when that is sent;
//! a client that sends the same eight bytes back, in whatever frame, has read them there.

use bytes::BytesMut;
use memchr::memmem;
use quinn::crypto::{CryptoError, PacketKey};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use yorozu_wire::h3::frame::read_integer;

/// Challenges that are remembered; chosen: the library has two under way.
const CHALLENGES_MAX: usize = 4;

/// Frames that may stand before a challenge (RFC 9000, section 19; draft-ietf-quic-ack-frequency, section 4).
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_WITH_ECN: u8 = 0x03;
const PATH_CHALLENGE: u8 = 0x1a;
const HANDSHAKE_DONE: u8 = 0x1e;
const IMMEDIATE_ACK: u8 = 0x1f;
/// Its type has two bytes.
const ACK_FREQUENCY: [u8; 2] = [0x40, 0xaf];

type Token = [u8; 8];

#[derive(Debug)]
struct Challenge {
    address: SocketAddr,
    token: Token,
    is_answered: bool,
}

/// The addresses of one connection's client.
#[derive(Debug)]
pub(crate) struct Paths {
    /// Whether the client, or someone who says so, has ever moved.
    has_moved: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Where the client was when that was asked last.
    last: SocketAddr,
    challenges: VecDeque<Challenge>,
}

thread_local! {
    /// The challenge in the packet that was sealed last, until it is known where that goes.
    static SEALED: Cell<Option<(Arc<Paths>, Token)>> = const { Cell::new(None) };
}

/// The datagram with the packet that was sealed last goes there.
pub(super) fn sent_to(address: SocketAddr) {
    if let Some((paths, token)) = SEALED.take() {
        paths.challenged(address, token);
    }
}

/// That datagram waits: others will be sealed before it is sent.
pub(super) fn not_sent() {
    SEALED.set(None);
}

impl Paths {
    /// Those of a client that shakes hands from an address.
    pub(super) fn new(address: SocketAddr) -> Arc<Self> {
        let known = Known { last: address, challenges: VecDeque::new() };
        Arc::new(Self { has_moved: AtomicBool::new(false), known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn challenged(&self, address: SocketAddr, token: Token) {
        let mut known = self.known();
        let challenges = &mut known.challenges;
        if challenges.iter().any(|one| one.address == address && one.token == token) {
            return;
        }
        // What was answered there before says nothing of now.
        challenges.retain(|one| one.address != address);
        if challenges.len() >= CHALLENGES_MAX {
            challenges.pop_front();
        }
        challenges.push_back(Challenge { address, token, is_answered: false });
        self.has_moved.store(true, Ordering::Relaxed);
    }

    fn received(&self, content: &[u8]) {
        for challenge in &mut self.known().challenges {
            challenge.is_answered |= memmem::find(content, &challenge.token).is_some();
        }
    }

    pub(crate) fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Where the client is, if its last datagram came from `address`: there, or where it was before it came to an address
    /// that it has not proved.
    pub(crate) fn proved(&self, address: SocketAddr) -> SocketAddr {
        let mut known = self.known();
        if known.challenges.iter().any(|one| one.address == address && one.is_answered) {
            // Should it go back, it proves that again.
            known.challenges.clear();
            known.last = address;
        }
        known.last
    }
}

/// The challenge in a packet's frames, which stands before all that may be large.
fn challenge_in(mut frames: &[u8]) -> Option<Token> {
    loop {
        let (kind, rest) = frames.split_first()?;
        frames = match *kind {
            PING | HANDSHAKE_DONE | IMMEDIATE_ACK => rest,
            ACK => behind_ranges(rest)?,
            ACK_WITH_ECN => behind_numbers(behind_ranges(rest)?, 3)?,
            PATH_CHALLENGE => return rest.first_chunk().copied(),
            _ => behind_numbers(frames.strip_prefix(&ACK_FREQUENCY)?, 4)?,
        };
    }
}

fn behind_numbers(mut bytes: &[u8], count: u64) -> Option<&[u8]> {
    for _ in 0..count {
        bytes = &bytes[read_integer(bytes)?.1..];
    }
    Some(bytes)
}

/// What is behind the content of an acknowledgment.
fn behind_ranges(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = behind_numbers(bytes, 2)?;
    let (count, length) = read_integer(bytes)?;
    behind_numbers(&bytes[length..], 1 + 2 * count)
}

/// A key of packets behind the handshake.
struct Watched {
    key: Box<dyn rustls::quic::PacketKey>,
    paths: Arc<Paths>,
}

/// A key that sees challenges, and what comes back of them.
pub(super) fn watched(
    key: Box<dyn rustls::quic::PacketKey>,
    paths: &Arc<Paths>,
) -> Box<dyn PacketKey> {
    Box::new(Watched { key, paths: Arc::clone(paths) })
}

impl PacketKey for Watched {
    fn encrypt(&self, packet: u64, bytes: &mut [u8], head_length: usize) {
        let end = bytes.len() - self.key.tag_len();
        if let Some(token) = challenge_in(&bytes[head_length..end]) {
            SEALED.set(Some((Arc::clone(&self.paths), token)));
        }
        PacketKey::encrypt(&self.key, packet, bytes, head_length);
    }

    fn decrypt(&self, packet: u64, head: &[u8], content: &mut BytesMut) -> Result<(), CryptoError> {
        PacketKey::decrypt(&self.key, packet, head, content)?;
        if self.paths.has_moved() {
            self.paths.received(content);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = *b"\x01\x02token!";

    fn at(number: u8) -> SocketAddr {
        ([127, 0, 0, number], 4433).into()
    }

    #[test]
    fn a_challenge_is_found_behind_what_may_stand_before_it() {
        let challenge = [&[PATH_CHALLENGE], &TOKEN[..]].concat();
        let found = |before: &[u8]| challenge_in(&[before, &challenge, b"\x08rest"].concat());
        for before in [
            &b""[..],
            b"\x01",
            b"\x1e\x01\x1f",
            b"\x02\x05\x00\x00\x02",
            b"\x02\x45\x01\x40\x10\x02\x02\x01\x00\x03\x00",
            b"\x03\x05\x00\x00\x02\x01\x02\x03",
            b"\x40\xaf\x01\x05\x80\x00\x61\xa8\x02",
        ] {
            assert_eq!(found(before), Some(TOKEN), "{before:?}");
        }
        assert_eq!(found(b"\x0a\x00\x02xx"), None, "content");
        assert_eq!(found(b"\0"), None, "padding");
        assert_eq!(found(b"\x40\xae"), None, "what is not known");
        let whole = [b"\x02\x05\x00\x01\x02\x00\x00", &challenge[..]].concat();
        assert!((0..whole.len()).all(|length| challenge_in(&whole[..length]).is_none()));
    }

    #[test]
    fn a_client_is_where_it_answered() {
        let paths = Paths::new(at(1));
        assert!(!paths.has_moved());
        paths.challenged(at(2), TOKEN);
        assert!(paths.has_moved());
        assert_eq!(paths.proved(at(2)), at(1), "it only says so");
        paths.received(b"\x1b\x01\x02other!");
        assert_eq!(paths.proved(at(2)), at(1), "the answer is another one");
        paths.received(b"\x1b\x01\x02token!");
        assert_eq!(paths.proved(at(3)), at(1), "it is elsewhere");
        assert_eq!(paths.proved(at(2)), at(2));
        assert_eq!(paths.proved(at(1)), at(2), "it has to prove again that it went back");
        paths.challenged(at(1), *b"0another");
        paths.received(b"\x1b0another");
        assert_eq!(paths.proved(at(1)), at(1));
    }

    #[test]
    fn an_answer_holds_for_one_challenge() {
        let paths = Paths::new(at(1));
        paths.challenged(at(2), TOKEN);
        paths.received(&TOKEN);
        // It went elsewhere before anyone asked, and says that it is back.
        paths.challenged(at(2), *b"0another");
        assert_eq!(paths.proved(at(2)), at(1));
        for number in 10..30 {
            paths.challenged(at(number), [number; 8]);
        }
        assert_eq!(paths.known().challenges.len(), CHALLENGES_MAX);
    }

    #[test]
    fn a_challenge_that_waits_is_no_one_elses() {
        let (one, other) = (Paths::new(at(1)), Paths::new(at(2)));
        SEALED.set(Some((Arc::clone(&one), TOKEN)));
        not_sent();
        sent_to(at(3));
        SEALED.set(Some((Arc::clone(&other), TOKEN)));
        sent_to(at(4));
        sent_to(at(5));
        assert!(!one.has_moved());
        let known = other.known();
        let addresses: Vec<_> = known.challenges.iter().map(|one| one.address).collect();
        assert_eq!(addresses, [at(4)]);
    }
}
