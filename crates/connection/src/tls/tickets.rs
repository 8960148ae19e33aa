//! Resumption: session tickets and stored sessions, shared by all workers and kept over a reload.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::digest::{Context, SHA256};
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};
use rustls::{Error, TicketRotator};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::Shared;

/// Bytes of a ticket's name of its key.
const NAME_BYTES: usize = 16;

/// What two servers must have in common for a session of one to be a session of the other:
/// certificates, and how clients are verified.
pub type Circle = [u8; 32];

/// A digest of all that makes up a circle.
pub fn circle<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Circle {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut circle = [0; 32];
    circle.copy_from_slice(context.finish().as_ref());
    circle
}

/// The sessions of all configurations of the process.
#[derive(Debug, Default)]
pub struct SessionStore(Arc<Sessions>);

impl SessionStore {
    pub fn sessions(&self) -> Arc<Sessions> {
        Arc::clone(&self.0)
    }
}

impl Shared for SessionStore {
    const SURVIVES: bool = true;

    fn place() -> &'static Place {
        place!()
    }

    fn follow(&mut self, earlier: &Self) {
        self.0 = earlier.sessions();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// One key that tickets are sealed with: `name(16) nonce(12) AES-256-GCM(…)`.
#[derive(Debug)]
struct Sealer {
    name: [u8; NAME_BYTES],
    key: RandomizedNonceKey,
}

impl Sealer {
    fn random() -> Result<Box<dyn ProducesTickets>, rustls::crypto::GetRandomFailed> {
        let mut secret = [0; 48];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| rustls::crypto::GetRandomFailed)?;
        let sealer = Self::new(&secret).ok_or(rustls::crypto::GetRandomFailed)?;
        Ok(Box::new(Keys { sealers: vec![sealer], lifetime: u32::MAX }))
    }

    /// From a name and 32 bytes of key.
    fn new(secret: &[u8; 48]) -> Option<Self> {
        let (name, key) = secret.split_at(NAME_BYTES);
        let key = RandomizedNonceKey::new(&AES_256_GCM, key).ok()?;
        Some(Self { name: name.try_into().ok()?, key })
    }
}

/// Keys known from the start: the first seals, all open.
#[derive(Debug)]
struct Keys {
    sealers: Vec<Sealer>,
    lifetime: u32,
}

impl ProducesTickets for Keys {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.lifetime
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let sealer = self.sealers.first()?;
        let mut sealed = plain.to_vec();
        let nonce =
            sealer.key.seal_in_place_append_tag(Aad::from(sealer.name), &mut sealed).ok()?;
        Some([&sealer.name[..], nonce.as_ref(), &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let sealer = self.sealers.iter().find(|sealer| sealer.name == *name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut plain = sealed.to_vec();
        let opened = sealer.key.open_in_place(nonce, Aad::from(sealer.name), &mut plain).ok()?;
        Some(opened.to_vec())
    }
}

/// Tickets that are good for `ssl_session_timeout` after they were made.
#[derive(Debug)]
struct Timed {
    keys: Box<dyn ProducesTickets>,
    timeout: Duration,
}

impl ProducesTickets for Timed {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.encrypt(&[&now().to_be_bytes()[..], plain].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        timely(self.keys.decrypt(ticket)?, self.timeout)
    }
}

/// What stands behind a time, if that is not too long ago.
fn timely(mut stamped: Vec<u8>, timeout: Duration) -> Option<Vec<u8>> {
    let made = u64::from_be_bytes(*stamped.first_chunk()?);
    let is_good = now().saturating_sub(made) <= timeout.as_secs();
    is_good.then(|| stamped.split_off(size_of::<u64>()))
}

/// Stored sessions of one circle of servers in a cache that others may use too.
#[derive(Debug)]
struct OfCircle {
    cache: Arc<ServerSessionMemoryCache>,
    circle: Circle,
    timeout: Duration,
}

impl OfCircle {
    fn key(&self, id: &[u8]) -> Vec<u8> {
        [&self.circle[..], id].concat()
    }
}

impl StoresServerSessions for OfCircle {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        self.cache.put(self.key(&id), [&now().to_be_bytes()[..], &session].concat())
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        timely(self.cache.get(&self.key(id))?, self.timeout)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        timely(self.cache.take(&self.key(id))?, self.timeout)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

type Tickets = HashMap<(Circle, Duration), Arc<dyn ProducesTickets>>;

/// Everything that lets a client resume, kept over reloads.
#[derive(Debug, Default)]
pub struct Sessions {
    caches: Mutex<HashMap<(String, usize), Arc<ServerSessionMemoryCache>>>,
    tickets: Mutex<Tickets>,
}

impl Sessions {
    /// The stored sessions of a circle in the named cache, and how many it holds.
    pub fn store(
        &self,
        name: &str,
        count: usize,
        circle: Circle,
        timeout: Duration,
    ) -> Arc<dyn StoresServerSessions> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = caches.entry((name.to_owned(), count)).or_insert_with(|| {
            // The library's bound.
            ServerSessionMemoryCache::new(count)
        });
        Arc::new(OfCircle { cache: Arc::clone(cache), circle, timeout })
    }

    /// Tickets with our own keys, changed once per `timeout` and forgotten after another.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn tickets(
        &self,
        circle: Circle,
        timeout: Duration,
    ) -> Result<Arc<dyn ProducesTickets>, Error> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = tickets.get(&(circle, timeout)) {
            return Ok(Arc::clone(found));
        }
        let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        let keys = Box::new(TicketRotator::new(seconds, Sealer::random)?);
        let made: Arc<dyn ProducesTickets> = Arc::new(Timed { keys, timeout });
        tickets.insert((circle, timeout), Arc::clone(&made));
        Ok(made)
    }
}

/// Tickets with the keys of `ssl_session_ticket_key` files (48 or 80 bytes each), of which every
/// circle derives its own.
///
/// # Errors
/// A file is of another length: its number in the list, and the length.
pub fn from_files(
    files: &[bytes::Bytes],
    circle: Circle,
    timeout: Duration,
) -> Result<Arc<dyn ProducesTickets>, (usize, usize)> {
    let sealers = files.iter().enumerate().map(|(index, file)| {
        let wrong = (index, file.len());
        if ![48, 80].contains(&file.len()) {
            return Err(wrong);
        }
        let digest = |label: &[u8]| self::circle([label, &circle, file].into_iter());
        let mut secret = [0; 48];
        secret[..NAME_BYTES].copy_from_slice(&digest(b"name")[..NAME_BYTES]);
        secret[NAME_BYTES..].copy_from_slice(&digest(b"key"));
        Sealer::new(&secret).ok_or(wrong)
    });
    let sealers = sealers.collect::<Result<_, _>>()?;
    let keys = Box::new(Keys { sealers, lifetime: u32::MAX });
    Ok(Arc::new(Timed { keys, timeout }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn tickets_open_within_their_circle_and_time() {
        let sessions = Sessions::default();
        let (here, there) = (circle([&b"a"[..]].into_iter()), circle([&b"b"[..]].into_iter()));
        let tickets = sessions.tickets(here, LONG).unwrap();
        let ticket = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&ticket).unwrap(), b"session");
        // A reload finds the same keys; another circle has others.
        assert_eq!(sessions.tickets(here, LONG).unwrap().decrypt(&ticket).unwrap(), b"session");
        assert_eq!(sessions.tickets(there, LONG).unwrap().decrypt(&ticket), None);
        let mut torn = ticket.clone();
        *torn.last_mut().unwrap() ^= 1;
        assert_eq!(tickets.decrypt(&torn), None);
        for length in 0..ticket.len() {
            assert_eq!(tickets.decrypt(&ticket[..length]), None);
        }
        let old = [&(now() - 301).to_be_bytes()[..], b"session"].concat();
        assert_eq!(timely(old, LONG), None);
    }

    #[test]
    fn keys_from_files_open_what_older_ones_sealed() {
        let (old, new) = (Bytes::from(vec![1; 80]), Bytes::from(vec![2; 48]));
        let here = circle([&b"a"[..]].into_iter());
        let before = from_files(std::slice::from_ref(&old), here, LONG).unwrap();
        let ticket = before.encrypt(b"session").unwrap();
        let after = from_files(&[new.clone(), old], here, LONG).unwrap();
        assert_eq!(after.decrypt(&ticket).unwrap(), b"session");
        assert_eq!(from_files(&[new], here, LONG).unwrap().decrypt(&ticket), None);
        assert_eq!(from_files(&[Bytes::from(vec![0; 47])], here, LONG).unwrap_err(), (0, 47));
    }
}
