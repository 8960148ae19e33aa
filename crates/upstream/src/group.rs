//! A named group of peers: their state, and which one is next.

use crate::balance::{self, Balance, HashState, MISSES_MAX, Selector};
use crate::connection::PeerAddress;
use crate::ring::{self, Ring};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A `server` line of an `upstream` block; one per address the name resolved to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PeerOptions {
    /// Where it listens.
    pub address: PeerAddress,
    /// The server as written, whose addresses belong together.
    pub server: String,
    /// Share of requests.
    pub weight: u32,
    /// Failures within `fail_timeout` that take it out; 0: never.
    pub max_fails: u32,
    /// The window for counting failures, and how long it stays out.
    pub fail_timeout: Duration,
    /// Requests at a time; 0: no bound.
    pub max_conns: usize,
    /// Used only when no other peer is available.
    pub backup: bool,
    /// Never used.
    pub down: bool,
}

impl PeerOptions {
    /// nginx's defaults for one address.
    pub fn new(address: PeerAddress) -> Self {
        Self {
            server: address.to_string(),
            address,
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            max_conns: 0,
            backup: false,
            down: false,
        }
    }
}

/// A peer as selected; cheap to copy.
#[derive(Clone, Debug)]
pub struct Peer {
    id: u64,
    place: Arc<Place>,
}

/// An address with its text.
#[derive(Debug)]
struct Place {
    address: PeerAddress,
    text: Arc<str>,
}

impl Peer {
    /// Where it listens.
    pub fn address(&self) -> &PeerAddress {
        &self.place.address
    }

    /// The address as logs show it.
    pub fn text(&self) -> &Arc<str> {
        &self.place.text
    }
}

/// Which peers one request has tried, and how far its hash went.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    ids: Vec<u64>,
    hash: HashState,
}

impl Tried {
    /// How many so far.
    pub fn count(&self) -> usize {
        self.ids.len()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    pub(crate) current_weight: i64,
    pub(crate) effective_weight: i64,
    pub(crate) connections: usize,
    fails: u32,
    accessed: Option<Instant>,
    checked: Option<Instant>,
}

/// A peer in its group.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    id: u64,
    /// Position in [`Inner::servers`].
    server: u32,
    place: Arc<Place>,
    pub(crate) options: PeerOptions,
    pub(crate) state: State,
}

impl Slot {
    fn is_out(&self, now: Instant) -> bool {
        let (options, state) = (&self.options, &self.state);
        options.max_fails > 0
            && state.fails >= options.max_fails
            && state
                .checked
                .is_some_and(|at| now.saturating_duration_since(at) <= options.fail_timeout)
    }

    fn is_full(&self) -> bool {
        self.options.max_conns > 0 && self.state.connections >= self.options.max_conns
    }

    fn is_eligible(&self, tried: &Tried, now: Instant) -> bool {
        !self.options.down && !tried.ids.contains(&self.id) && !self.is_out(now) && !self.is_full()
    }
}

#[derive(Debug)]
struct Inner {
    slots: Vec<Slot>,
    servers: Vec<(String, u32)>,
    ring: Ring,
    next_id: u64,
    random: u64,
}

/// A group; its state is shared by all workers.
#[derive(Debug)]
pub struct Group {
    /// The name in messages and `$proxy_host`.
    pub name: String,
    /// Unlike any other group's of the process, also over reloads.
    pub id: u64,
    balance: Balance,
    inner: Mutex<Inner>,
    is_refreshed: AtomicBool,
}

impl Group {
    /// A group. It may be empty: names still to be resolved bring peers later.
    pub fn new(name: String, peers: Vec<PeerOptions>, balance: Balance) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut inner = Inner {
            slots: Vec::new(),
            servers: Vec::new(),
            ring: Ring::default(),
            next_id: 1,
            random: seed(),
        };
        for peer in peers {
            inner.add(peer);
        }
        inner.build_ring(balance);
        Self {
            name,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            balance,
            inner: Mutex::new(inner),
            is_refreshed: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Numbers only; a panic between two updates costs at most a skewed choice.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many peers it has now.
    pub fn len(&self) -> usize {
        self.inner().slots.len()
    }

    /// How many peers a request may try: those not `down`.
    pub fn tries_max(&self) -> usize {
        self.inner().slots.iter().filter(|slot| !slot.options.down).count()
    }

    /// Has it no peer now?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All peers that are in use; none of them counts as selected.
    pub fn peers(&self) -> Vec<Peer> {
        let inner = self.inner();
        let used = inner.slots.iter().filter(|slot| !slot.options.down);
        used.map(|slot| Peer { id: slot.id, place: Arc::clone(&slot.place) }).collect()
    }

    /// `true` for the first who asks: one task keeps the group's names resolved.
    pub fn claim_refresh(&self) -> bool {
        !self.is_refreshed.swap(true, Ordering::Relaxed)
    }

    /// Replaces the peers of one server: addresses that stay keep their state.
    pub fn resolved(&self, template: &PeerOptions, addresses: &[PeerAddress]) {
        let mut inner = self.inner();
        inner.slots.retain(|slot| {
            slot.options.server != template.server || addresses.contains(&slot.options.address)
        });
        for address in addresses {
            let is_known = inner.slots.iter().any(|slot| {
                slot.options.server == template.server && slot.options.address == *address
            });
            if !is_known {
                inner.add(PeerOptions { address: address.clone(), ..template.clone() });
            }
        }
        inner.build_ring(self.balance);
    }

    /// The next peer that `tried` does not hold; backups only when no other is left.
    ///
    /// Counts as one connection until [`Group::succeeded`], [`Group::failed`] or
    /// [`Group::released`].
    pub fn select(&self, tried: &mut Tried, selector: &Selector, now: Instant) -> Option<Peer> {
        let mut inner = self.inner();
        let index = match &inner.slots[..] {
            // As nginx: a lone peer is never taken out by failures.
            [only] => {
                let is_free = tried.ids.is_empty() && !only.options.down && !only.is_full();
                is_free.then_some(0)?
            }
            _ => inner.choose(self.balance, tried, selector, now)?,
        };
        let slot = &mut inner.slots[index];
        let is_window_over = slot
            .state
            .checked
            .is_none_or(|at| now.saturating_duration_since(at) > slot.options.fail_timeout);
        if is_window_over {
            slot.state.checked = Some(now);
        }
        tried.ids.push(slot.id);
        slot.state.connections += 1;
        Some(Peer { id: slot.id, place: Arc::clone(&slot.place) })
    }

    /// The peer answered.
    pub fn succeeded(&self, peer: &Peer) {
        self.with_slot(peer, |slot| {
            slot.state.connections = slot.state.connections.saturating_sub(1);
            if slot.state.accessed < slot.state.checked {
                slot.state.fails = 0;
            }
        });
    }

    /// The peer refused, timed out or answered nonsense.
    pub fn failed(&self, peer: &Peer, now: Instant) {
        self.with_slot(peer, |slot| {
            let (options, state) = (&slot.options, &mut slot.state);
            state.connections = state.connections.saturating_sub(1);
            state.fails += 1;
            (state.accessed, state.checked) = (Some(now), Some(now));
            if let Some(loss) = options.weight.checked_div(options.max_fails).map(i64::from) {
                state.effective_weight = (state.effective_weight - loss).max(0);
            }
        });
    }

    /// The request ended without a verdict on the peer (the client went away).
    pub fn released(&self, peer: &Peer) {
        self.with_slot(peer, |slot| {
            slot.state.connections = slot.state.connections.saturating_sub(1);
        });
    }

    /// Acts on a peer, unless its name no longer resolves to it.
    fn with_slot(&self, peer: &Peer, act: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.inner().slots.iter_mut().find(|slot| slot.id == peer.id) {
            act(slot);
        }
    }
}

impl Inner {
    fn add(&mut self, options: PeerOptions) {
        let known = self.servers.iter().position(|(name, _)| *name == options.server);
        let server = known.unwrap_or_else(|| {
            self.servers.push((options.server.clone(), options.weight));
            self.servers.len() - 1
        });
        let state = State { effective_weight: i64::from(options.weight), ..State::default() };
        let server = u32::try_from(server).expect("a group has few servers");
        let address = options.address.clone();
        let place = Arc::new(Place { text: address.to_string().into(), address });
        self.slots.push(Slot { id: self.next_id, server, place, options, state });
        self.next_id += 1;
    }

    fn build_ring(&mut self, balance: Balance) {
        self.ring = match balance {
            Balance::Consistent => Ring::consistent(&self.servers),
            Balance::Ketama => Ring::ketama(&self.servers),
            _ => return,
        };
    }

    fn choose(
        &mut self,
        balance: Balance,
        tried: &mut Tried,
        selector: &Selector,
        now: Instant,
    ) -> Option<usize> {
        let by_method = match balance {
            Balance::RoundRobin => None,
            Balance::LeastConn => {
                let least = |slots: &mut [Slot], backup| {
                    balance::least_busy(slots, |slot| {
                        slot.options.backup == backup && slot.is_eligible(tried, now)
                    })
                };
                let primary = least(&mut self.slots, false);
                primary.or_else(|| least(&mut self.slots, true))
            }
            Balance::Random { two } => self.draw(two, tried, now),
            Balance::Hash if selector.key.is_empty() => None,
            Balance::IpHash | Balance::Hash => self.hashed(balance, tried, selector, now),
            Balance::Consistent | Balance::Ketama if selector.key.is_empty() => None,
            Balance::Consistent => self.on_ring(ring::consistent_hash(&selector.key), tried, now),
            Balance::Ketama => self.on_ring(ring::ketama_hash(&selector.key), tried, now),
        };
        by_method.or_else(|| self.round_robin(tried, now))
    }

    fn round_robin(&mut self, tried: &Tried, now: Instant) -> Option<usize> {
        [false, true].into_iter().find_map(|backup| {
            balance::smooth(&mut self.slots, |slot| {
                slot.options.backup == backup && slot.is_eligible(tried, now)
            })
        })
    }

    fn hashed(
        &self,
        balance: Balance,
        tried: &mut Tried,
        selector: &Selector,
        now: Instant,
    ) -> Option<usize> {
        while tried.hash.misses <= MISSES_MAX {
            let hash = if balance == Balance::IpHash {
                tried.hash.next_of_address(selector.client)
            } else {
                tried.hash.next_of_key(&selector.key)
            };
            let index = balance::by_weight(&self.slots, hash)?;
            if self.slots[index].is_eligible(tried, now) {
                return Some(index);
            }
            tried.hash.misses += 1;
        }
        None
    }

    fn on_ring(&mut self, hash: u32, tried: &mut Tried, now: Instant) -> Option<usize> {
        if !tried.hash.is_begun {
            tried.hash.is_begun = true;
            tried.hash.hash = u32::try_from(self.ring.position(hash)).ok()?;
        }
        while tried.hash.misses <= MISSES_MAX {
            let server = self.ring.server(tried.hash.hash as usize)?;
            let found = balance::smooth(&mut self.slots, |slot| {
                slot.server == server && slot.is_eligible(tried, now)
            });
            if found.is_some() {
                return found;
            }
            tried.hash.hash += 1;
            tried.hash.misses += 1;
        }
        None
    }

    fn draw(&mut self, two: bool, tried: &Tried, now: Instant) -> Option<usize> {
        let mut first: Option<usize> = None;
        for _ in 0..=MISSES_MAX {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let index = balance::by_weight(&self.slots, mix(self.random))?;
            if !self.slots[index].is_eligible(tried, now) || first == Some(index) {
                continue;
            }
            match first {
                _ if !two => return Some(index),
                None => first = Some(index),
                Some(first) => {
                    let order = balance::by_load(&self.slots[first], &self.slots[index]);
                    return Some(if order.is_le() { first } else { index });
                }
            }
        }
        None
    }
}

/// A number nobody can foresee: keys that the standard library draws for hash tables.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

/// The output step of the splitmix64 generator, its upper half.
fn mix(state: u64) -> u32 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from((mixed ^ (mixed >> 31)) >> 32).expect("32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn options(peers: &[(&str, u32)]) -> Vec<PeerOptions> {
        let peer = |(name, weight): &(&str, u32)| PeerOptions {
            weight: *weight,
            ..PeerOptions::new(PeerAddress::Unix((*name).into()))
        };
        peers.iter().map(peer).collect()
    }

    fn group(peers: &[(&str, u32)], balance: Balance) -> Group {
        Group::new("g".into(), options(peers), balance)
    }

    fn name(peer: &Peer) -> String {
        peer.text().replace("unix:", "")
    }

    fn order(group: &Group, count: usize, selector: &Selector, now: Instant) -> String {
        (0..count)
            .map(|_| {
                let peer = group.select(&mut Tried::default(), selector, now).unwrap();
                group.succeeded(&peer);
                name(&peer)
            })
            .collect()
    }

    fn any() -> Selector {
        Selector::default()
    }

    fn key(text: &str) -> Selector {
        Selector { key: text.into(), ..any() }
    }

    #[test]
    fn weights_are_spread_smoothly() {
        let group = group(&[("a", 5), ("b", 1), ("c", 1)], Balance::RoundRobin);
        assert_eq!(order(&group, 7, &any(), Instant::now()), "aabacaa");
    }

    #[test]
    fn a_failing_peer_rests_for_fail_timeout() {
        let (group, now) = (group(&[("a", 1), ("b", 1)], Balance::RoundRobin), Instant::now());
        let peer = group.select(&mut Tried::default(), &any(), now).unwrap();
        group.failed(&peer, now);
        assert!(!order(&group, 4, &any(), now).contains(&name(&peer)));
        let later = now + Duration::from_secs(11);
        assert!(order(&group, 4, &any(), later).contains(&name(&peer)));
    }

    #[test]
    fn each_peer_is_tried_once_and_backups_last() {
        let mut options = options(&[("a", 1), ("b", 1), ("c", 1)]);
        options[0].backup = true;
        options[2].down = true;
        let group = Group::new("g".into(), options, Balance::RoundRobin);
        let mut tried = Tried::default();
        let mut next = || group.select(&mut tried, &any(), Instant::now()).map(|peer| name(&peer));
        assert_eq!((next(), next(), next()), (Some("b".into()), Some("a".into()), None));
    }

    #[test]
    fn a_lone_peer_stays_in_use_though_it_fails() {
        let (group, now) = (group(&[("a", 1)], Balance::RoundRobin), Instant::now());
        for _ in 0..3 {
            let peer = group.select(&mut Tried::default(), &any(), now).unwrap();
            group.failed(&peer, now);
        }
        assert!(group.select(&mut Tried::default(), &any(), now).is_some());
    }

    #[test]
    fn hashes_choose_the_same_peer_again_and_all_peers_are_chosen() {
        let now = Instant::now();
        for balance in [Balance::Hash, Balance::Consistent, Balance::Ketama] {
            let group = group(&[("a", 1), ("b", 2), ("c", 3)], balance);
            let mut seen = std::collections::BTreeSet::new();
            for number in 0..200 {
                let key = key(&format!("key{number}"));
                let first = order(&group, 1, &key, now);
                assert_eq!(order(&group, 3, &key, now), first.repeat(3));
                seen.insert(first);
            }
            assert_eq!(seen.len(), 3, "{balance:?}");
        }
    }

    #[test]
    fn a_dead_server_moves_its_own_keys_only() {
        let now = Instant::now();
        for balance in [Balance::Consistent, Balance::Ketama] {
            let group = group(&[("a", 1), ("b", 1), ("c", 1)], balance);
            let owner = |number: i32| order(&group, 1, &key(&number.to_string()), now);
            let before: Vec<String> = (0..300).map(owner).collect();
            let of_a = before.iter().position(|owner| owner == "a").unwrap();
            let selector = key(&of_a.to_string());
            let dead = group.select(&mut Tried::default(), &selector, now).unwrap();
            group.failed(&dead, now);
            for (number, before) in (0..).zip(&before) {
                let after = owner(number);
                assert!(after != "a" && (before == "a" || after == *before), "{number}");
            }
        }
    }

    #[test]
    fn addresses_of_one_network_share_a_peer() {
        let (group, now) =
            (group(&[("a", 1), ("b", 1), ("c", 1)], Balance::IpHash), Instant::now());
        let from = |ip: &str| Selector { client: ip.parse::<IpAddr>().ok(), ..any() };
        for net in 0..50 {
            let first = order(&group, 1, &from(&format!("10.0.{net}.1")), now);
            assert_eq!(order(&group, 1, &from(&format!("10.0.{net}.200")), now), first);
        }
    }

    #[test]
    fn the_least_busy_peer_is_next() {
        let (group, now) = (group(&[("a", 1), ("b", 2)], Balance::LeastConn), Instant::now());
        let held: Vec<Peer> =
            (0..6).map(|_| group.select(&mut Tried::default(), &any(), now).unwrap()).collect();
        assert_eq!(held.iter().filter(|peer| name(peer) == "b").count(), 4);
    }

    #[test]
    fn of_two_drawn_the_less_busy_is_next() {
        let balance = Balance::Random { two: true };
        let (group, now) = (group(&[("a", 1), ("b", 1)], balance), Instant::now());
        let held: Vec<Peer> =
            (0..40).map(|_| group.select(&mut Tried::default(), &any(), now).unwrap()).collect();
        assert_eq!(held.iter().filter(|peer| name(peer) == "a").count(), 20);
    }

    #[test]
    fn a_full_peer_waits() {
        let mut options = options(&[("a", 1), ("b", 1)]);
        options[0].max_conns = 1;
        let group = Group::new("g".into(), options, Balance::RoundRobin);
        let now = Instant::now();
        let held: String = (0..4)
            .map(|_| name(&group.select(&mut Tried::default(), &any(), now).unwrap()))
            .collect();
        assert_eq!(held.matches('a').count(), 1);
    }

    #[test]
    fn resolved_addresses_keep_their_state() {
        let mut template = options(&[("a", 1)]).remove(0);
        template.server = "name".into();
        let group = Group::new("g".into(), Vec::new(), Balance::RoundRobin);
        let now = Instant::now();
        assert!(group.select(&mut Tried::default(), &any(), now).is_none());
        let address = |name: &str| PeerAddress::Unix(name.into());
        group.resolved(&template, &[address("a"), address("b")]);
        let peer = group.select(&mut Tried::default(), &any(), now).unwrap();
        group.failed(&peer, now);
        group.resolved(&template, &[address("a"), address("b"), address("c")]);
        assert!(!order(&group, 6, &any(), now).contains(&name(&peer)));
        group.resolved(&template, &[peer.address().clone()]);
        assert_eq!(group.len(), 1);
    }
}
