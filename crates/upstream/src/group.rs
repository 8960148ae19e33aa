//! A named group of peers: their state, and which one is next.
//!
//! | life of a lease | next |
//! | --- | --- |
//! | taken by [`Group::select`]: the peer's load is one more | succeeded, failed, or dropped |
//! | succeeded, failed | given back, with a verdict on the peer |
//! | dropped | given back without one |
//!
//! # Invariants
//! - A peer to send requests to is had by a [`Lease`] alone: nothing is sent uncounted.
//! - A lease gives back what it took, once, however its request ends, also when the peer is no longer of the
//!   group or the group of the configuration.

use crate::balance::{self, Balance, HashState, LeastTime, MISSES_MAX, Selector};
use crate::connection::PeerAddress;
use crate::gauge::{Gauge, Taken};
use crate::loads::Loads;
use crate::numbers::{digest, mix, seed};
use crate::ring::{Ring, RingKind};
use crate::sync::{Mutex, MutexGuard};
use crate::times::{Inflight, averaged, millis, soonest};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
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
    /// Used for requests alone that are bound to it.
    pub drain: bool,
    /// The name by which requests are bound to it, in place of a digest of the address.
    pub route: Option<String>,
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
            drain: false,
            route: None,
        }
    }
}

/// A peer: where requests can go. To send one takes a [`Lease`].
#[derive(Clone, Debug)]
pub struct Peer {
    id: u64,
    place: Arc<Place>,
}

/// An address with its text, and the requests under way there.
#[derive(Debug)]
pub(crate) struct Place {
    address: PeerAddress,
    pub(crate) text: Arc<str>,
    sid: Arc<str>,
    /// Those of earlier configurations included.
    load: Arc<Gauge>,
}

/// A peer in use by one request.
#[derive(Debug)]
pub struct Lease {
    group: Arc<Group>,
    /// Counted until the lease ends.
    peer: Taken<Loaded>,
    pub(crate) begun: Instant,
    /// Whether it counts as not answered yet.
    is_inflight: Cell<bool>,
}

/// A peer, as it keeps the gauge of its load.
struct Loaded(Peer);

impl Deref for Loaded {
    type Target = Gauge;

    fn deref(&self) -> &Gauge {
        &self.0.place.load
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_inflight.get() {
            #[cfg_attr(
                not(test),
                expect(
                    clippy::disallowed_methods,
                    reason = "a request that is given up says nothing"
                )
            )]
            self.landed(Instant::now());
        }
    }
}

impl Lease {
    /// The peer it is for.
    pub fn peer(&self) -> &Peer {
        &self.peer.keeper().0
    }

    /// The head of an answer came that is none of a failure. The time is asked for where it counts.
    pub fn headed(&self, now: impl FnOnce() -> Instant) {
        let Balance::LeastTime(LeastTime { to_last_byte, .. }) = self.group.balance else { return };
        let now = now();
        self.group.with_slot(self.peer(), |slot| {
            let time = &mut slot.state.header_time;
            *time = Some(averaged(*time, millis(self.begun, now)));
        });
        if !to_last_byte {
            self.landed(now);
        }
    }

    /// It does not count as unanswered any more.
    fn landed(&self, now: Instant) {
        if self.is_inflight.replace(false) {
            let begun = self.begun;
            self.group.with_slot(self.peer(), |slot| slot.state.inflight.remove(begun, now));
        }
    }

    /// The peer answered, and its answer ended so long after [`Lease::begun`].
    pub fn succeeded(self, took: Duration) {
        let is_timed = matches!(self.group.balance, Balance::LeastTime(_));
        let now = self.begun + took;
        if is_timed {
            self.landed(now);
        }
        self.group.with_slot(self.peer(), |slot| {
            slot.state.answers += 1;
            slot.state.answer_micros +=
                took.as_secs() * 1_000_000 + u64::from(took.subsec_micros());
            if is_timed {
                let time = &mut slot.state.response_time;
                *time = Some(averaged(*time, millis(self.begun, now)));
            }
            if slot.state.accessed < slot.state.checked {
                slot.state.fails = 0;
            }
        });
    }

    /// The peer refused, timed out or answered nonsense.
    /// Whether that takes it out for a time.
    pub fn failed(self, now: Instant) -> bool {
        self.blame(now)
    }

    /// As [`Lease::failed`], of a peer whose answer is still read.
    pub fn blame(&self, now: Instant) -> bool {
        let is_out = self.group.with_slot(self.peer(), |slot| {
            let (options, state) = (&slot.options, &mut slot.state);
            state.fails += 1;
            state.failures += 1;
            state.outages += u64::from(state.fails == options.max_fails);
            (state.accessed, state.checked) = (Some(now), Some(now));
            if let Some(loss) = options.weight.checked_div(options.max_fails).map(i64::from) {
                state.effective_weight = (state.effective_weight - loss).max(0);
            }
            options.max_fails != 0 && state.fails >= options.max_fails
        });
        is_out == Some(true)
    }
}

impl Peer {
    /// Where it listens.
    pub fn address(&self) -> &PeerAddress {
        &self.place.address
    }

    /// By what requests are bound to it: its `route`, or the MD5 of its address, in hexadecimal digits.
    pub fn sid(&self) -> &Arc<str> {
        &self.place.sid
    }

    /// The address as logs show it.
    pub fn text(&self) -> &Arc<str> {
        &self.place.text
    }
}

/// Which peers one request has tried, and how far its hash went.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    last: Option<u64>,
    before: Vec<u64>,
    hash: HashState,
}

impl Tried {
    /// How many so far.
    pub fn count(&self) -> usize {
        self.before.len() + usize::from(self.last.is_some())
    }

    fn has(&self, id: u64) -> bool {
        self.last == Some(id) || self.before.contains(&id)
    }

    fn add(&mut self, id: u64) {
        self.before.extend(self.last.replace(id));
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    pub(crate) current_weight: i64,
    pub(crate) effective_weight: i64,
    fails: u32,
    /// How often it was asked, failed, and was taken out for its failures.
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    pub(crate) outages: u64,
    /// Its answers that were none of failures, and the microseconds until they were whole.
    pub(crate) answers: u64,
    pub(crate) answer_micros: u64,
    accessed: Option<Instant>,
    pub(crate) checked: Option<Instant>,
    /// Averages in milliseconds, of answers that were none of failures.
    pub(crate) header_time: Option<u64>,
    pub(crate) response_time: Option<u64>,
    pub(crate) inflight: Inflight,
}

/// A peer in its group.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) id: u64,
    /// Position in [`Inner::servers`].
    server: u32,
    /// Unlike that of any other peer of the group with this address.
    alike: usize,
    pub(crate) place: Arc<Place>,
    pub(crate) options: PeerOptions,
    pub(crate) state: State,
}

impl Slot {
    pub(crate) fn is_out(&self, now: Instant) -> bool {
        let (options, state) = (&self.options, &self.state);
        options.max_fails > 0
            && state.fails >= options.max_fails
            && state
                .checked
                .is_some_and(|at| now.saturating_duration_since(at) <= options.fail_timeout)
    }

    fn is_full(&self) -> bool {
        self.options.max_conns > 0 && self.connections() >= self.options.max_conns
    }

    /// Requests under way.
    pub(crate) fn connections(&self) -> usize {
        self.place.load.get()
    }

    fn is_eligible(&self, tried: &Tried, now: Instant) -> bool {
        !self.options.drain && self.is_available(tried, now)
    }

    /// Whether a request that is bound to it may have it.
    fn is_available(&self, tried: &Tried, now: Instant) -> bool {
        !self.options.down && !tried.has(self.id) && !self.is_out(now) && !self.is_full()
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) slots: Vec<Slot>,
    servers: Vec<(String, u32)>,
    ring: Ring,
    next_id: u64,
    random: u64,
    /// The group's name, and the loads of all groups.
    loads: (String, Arc<Loads>),
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
}

impl Group {
    /// A group. It may be empty: names still to be resolved bring peers later.
    pub fn new(
        name: String,
        peers: Vec<PeerOptions>,
        balance: Balance,
        loads: &Arc<Loads>,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut inner = Inner {
            slots: Vec::new(),
            servers: Vec::new(),
            ring: Ring::default(),
            next_id: 1,
            random: seed(),
            loads: (name.clone(), Arc::clone(loads)),
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
        }
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        // Numbers only; a panic between two updates costs at most a skewed choice.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many peers a request may try: those not `down`.
    pub fn tries_max(&self) -> usize {
        self.inner().slots.iter().filter(|slot| !slot.options.down).count()
    }

    /// All peers that are in use; none of them counts as selected.
    pub fn peers(&self) -> Vec<Peer> {
        let inner = self.inner();
        let used = inner.slots.iter().filter(|slot| !slot.options.down);
        used.map(|slot| Peer { id: slot.id, place: Arc::clone(&slot.place) }).collect()
    }

    /// Replaces the peers of one server: those that stay as they are keep their state.
    pub fn resolved(&self, server: &str, peers: Vec<PeerOptions>) {
        let mut inner = self.inner();
        inner.slots.retain(|slot| slot.options.server != server || peers.contains(&slot.options));
        for peer in peers {
            if !inner.slots.iter().any(|slot| slot.options == peer) {
                inner.add(peer);
            }
        }
        inner.build_ring(self.balance);
    }

    /// The next peer that `tried` does not hold; backups only when no other is left.
    pub fn select(
        self: &Arc<Self>,
        tried: &mut Tried,
        selector: &Selector,
        now: Instant,
    ) -> Option<Lease> {
        let mut inner = self.inner();
        loop {
            let index = match &inner.slots[..] {
                // As nginx: a lone peer is never taken out by failures.
                [only] => {
                    let is_free = tried.last.is_none() && !only.options.down && !only.is_full();
                    is_free.then_some(0)?
                }
                _ => inner.choose(self.balance, tried, selector, now)?,
            };
            let slot = &mut inner.slots[index];
            let peer = Loaded(Peer { id: slot.id, place: Arc::clone(&slot.place) });
            let taken = match slot.options.max_conns {
                0 => Some(Gauge::take(peer)),
                max => Gauge::take_below(peer, max),
            };
            // Else another configuration's request was quicker.
            let Some(peer) = taken else { continue };
            let is_window_over = slot.state.checked.is_none_or(|at| {
                at.checked_add(slot.options.fail_timeout).is_some_and(|end| now > end)
            });
            if is_window_over {
                slot.state.checked = Some(now);
            }
            slot.state.requests += 1;
            tried.add(slot.id);
            let is_inflight =
                matches!(self.balance, Balance::LeastTime(LeastTime { with_inflight: true, .. }));
            if is_inflight {
                slot.state.inflight.add(now);
            }
            let is_inflight = Cell::new(is_inflight);
            let group = Arc::clone(self);
            return Some(Lease { group, peer, begun: now, is_inflight });
        }
    }

    /// Acts on a peer, unless its name no longer resolves to it.
    fn with_slot<R>(&self, peer: &Peer, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        self.inner().slots.iter_mut().find(|slot| slot.id == peer.id).map(act)
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
        let is_free = |alike: &usize| {
            let is_its = |slot: &Slot| slot.alike == *alike && slot.options.address == address;
            !self.slots.iter().any(is_its)
        };
        let alike = (0..).find(is_free).expect("there are more numbers than slots");
        let (group, loads) = &self.loads;
        let load = loads.of((group.clone(), address.clone(), alike));
        let text: Arc<str> = address.to_string().into();
        let sid = options.route.as_deref().map_or_else(|| digest(&text), Arc::from);
        let place = Arc::new(Place { text, sid, address, load });
        self.slots.push(Slot { id: self.next_id, server, alike, place, options, state });
        self.next_id += 1;
    }

    fn build_ring(&mut self, balance: Balance) {
        let kind = match balance {
            Balance::Consistent => RingKind::Consistent,
            Balance::Ketama => RingKind::Ketama,
            _ => return,
        };
        self.ring = Ring::new(kind, &self.servers);
    }

    fn choose(
        &mut self,
        balance: Balance,
        tried: &mut Tried,
        selector: &Selector,
        now: Instant,
    ) -> Option<usize> {
        if let Some(bound) = self.bound(balance, tried, &selector.sid, now) {
            return Some(bound);
        }
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
            Balance::LeastTime(least) => [false, true].into_iter().find_map(|backup| {
                soonest(&mut self.slots, least, now, |slot| {
                    slot.options.backup == backup && slot.is_eligible(tried, now)
                })
            }),
            Balance::Random { two } => self.draw(two, tried, now),
            Balance::Hash if selector.key.is_empty() => None,
            Balance::IpHash | Balance::Hash => self.hashed(balance, tried, selector, now),
            Balance::Consistent | Balance::Ketama if selector.key.is_empty() => None,
            Balance::Consistent | Balance::Ketama => self.on_ring(&selector.key, tried, now),
        };
        by_method.or_else(|| self.round_robin(tried, now))
    }

    /// The peer that the request is bound to, if it can be had: a backup only where nothing else can.
    fn bound(
        &mut self,
        balance: Balance,
        tried: &Tried,
        sid: &[u8],
        now: Instant,
    ) -> Option<usize> {
        if sid.is_empty() {
            return None;
        }
        let has_primary =
            self.slots.iter().any(|slot| !slot.options.backup && slot.is_eligible(tried, now));
        let found = self.slots.iter().position(|slot| {
            slot.place.sid.as_bytes() == sid
                && !(slot.options.backup && has_primary)
                && slot.is_available(tried, now)
        })?;
        if balance == Balance::RoundRobin {
            let backup = self.slots[found].options.backup;
            balance::bound(&mut self.slots, found, |slot| {
                slot.options.backup == backup && slot.is_eligible(tried, now)
            });
        }
        Some(found)
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

    fn on_ring(&mut self, key: &[u8], tried: &mut Tried, now: Instant) -> Option<usize> {
        if !tried.hash.is_begun {
            tried.hash.is_begun = true;
            tried.hash.hash = u32::try_from(self.ring.position(self.ring.hash(key))).ok()?;
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

    fn group(peers: &[(&str, u32)], balance: Balance) -> Arc<Group> {
        group_of(options(peers), balance)
    }

    fn group_of(peers: Vec<PeerOptions>, balance: Balance) -> Arc<Group> {
        Arc::new(Group::new("g".into(), peers, balance, &Arc::default()))
    }

    fn name(lease: &Lease) -> String {
        lease.peer().text().replace("unix:", "")
    }

    fn order(group: &Arc<Group>, count: usize, selector: &Selector, now: Instant) -> String {
        (0..count)
            .map(|_| {
                let lease = group.select(&mut Tried::default(), selector, now).unwrap();
                let name = name(&lease);
                lease.succeeded(Duration::ZERO);
                name
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
        let lease = group.select(&mut Tried::default(), &any(), now).unwrap();
        let failing = name(&lease);
        assert!(lease.failed(now));
        assert!(!order(&group, 4, &any(), now).contains(&failing));
        let later = now + Duration::from_secs(11);
        assert!(order(&group, 4, &any(), later).contains(&failing));
    }

    #[test]
    fn each_peer_is_tried_once_and_backups_last() {
        let mut options = options(&[("a", 1), ("b", 1), ("c", 1)]);
        options[0].backup = true;
        options[2].down = true;
        let group = group_of(options, Balance::RoundRobin);
        let mut tried = Tried::default();
        let mut next = || group.select(&mut tried, &any(), Instant::now()).map(|peer| name(&peer));
        assert_eq!((next(), next(), next()), (Some("b".into()), Some("a".into()), None));
    }

    #[test]
    fn a_lone_peer_stays_in_use_though_it_fails() {
        let (group, now) = (group(&[("a", 1)], Balance::RoundRobin), Instant::now());
        for _ in 0..3 {
            group.select(&mut Tried::default(), &any(), now).unwrap().failed(now);
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
            group.select(&mut Tried::default(), &selector, now).unwrap().failed(now);
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
        let held: Vec<Lease> =
            (0..6).map(|_| group.select(&mut Tried::default(), &any(), now).unwrap()).collect();
        assert_eq!(held.iter().filter(|lease| name(lease) == "b").count(), 4);
    }

    #[test]
    fn of_two_drawn_the_less_busy_is_next() {
        let balance = Balance::Random { two: true };
        let (group, now) = (group(&[("a", 1), ("b", 1)], balance), Instant::now());
        let held: Vec<Lease> =
            (0..40).map(|_| group.select(&mut Tried::default(), &any(), now).unwrap()).collect();
        assert_eq!(held.iter().filter(|lease| name(lease) == "a").count(), 20);
    }

    #[test]
    fn a_full_peer_waits() {
        let mut options = options(&[("a", 1), ("b", 1)]);
        options[0].max_conns = 1;
        let group = group_of(options, Balance::RoundRobin);
        let now = Instant::now();
        let held: Vec<Lease> =
            (0..4).map(|_| group.select(&mut Tried::default(), &any(), now).unwrap()).collect();
        assert_eq!(held.iter().filter(|lease| name(lease) == "a").count(), 1);
    }

    #[test]
    fn resolved_addresses_keep_their_state() {
        let mut template = options(&[("a", 1)]).remove(0);
        template.server = "name".into();
        let group = group_of(Vec::new(), Balance::RoundRobin);
        let now = Instant::now();
        assert!(group.select(&mut Tried::default(), &any(), now).is_none());
        let peer = |address| PeerOptions { address, ..template.clone() };
        let peers = |names: &[&str]| {
            names.iter().map(|name| peer(PeerAddress::Unix((*name).into()))).collect()
        };
        group.resolved("name", peers(&["a", "b"]));
        let lease = group.select(&mut Tried::default(), &any(), now).unwrap();
        let (address, failing) = (lease.peer().address().clone(), name(&lease));
        assert!(lease.failed(now));
        group.resolved("name", peers(&["a", "b", "c"]));
        assert!(!order(&group, 6, &any(), now).contains(&failing));
        group.resolved("other", Vec::new());
        assert_eq!(group.len(), 3);
        group.resolved("name", vec![peer(address.clone())]);
        assert_eq!(group.len(), 1);
        assert!(group.inner().slots[0].state.fails > 0);
        group.resolved("name", vec![PeerOptions { weight: 5, ..peer(address) }]);
        assert_eq!((group.len(), group.inner().slots[0].state.fails), (1, 0));
    }

    #[test]
    fn what_a_lease_took_is_given_back_once_however_it_ends() {
        let group = group(&[("a", 1), ("b", 1)], Balance::LeastConn);
        let now = Instant::now();
        let load = || group.inner().slots.iter().map(Slot::connections).sum::<usize>();
        let take = || group.select(&mut Tried::default(), &any(), now).unwrap();
        let (one, two, three) = (take(), take(), take());
        three.blame(now);
        assert_eq!(load(), 3);
        one.succeeded(Duration::ZERO);
        two.failed(now);
        assert_eq!(load(), 1);
        drop(three);
        assert_eq!(load(), 0);
    }

    #[test]
    fn a_bound_holds_over_reloads_and_for_addresses_that_come_again() {
        let loads = Arc::new(Loads::default());
        let mut template = options(&[("a", 1)]).remove(0);
        (template.server, template.max_conns) = ("name".into(), 2);
        let make = || {
            Arc::new(Group::new("g".into(), vec![template.clone()], Balance::RoundRobin, &loads))
        };
        let select =
            |group: &Arc<Group>| group.select(&mut Tried::default(), &any(), Instant::now());
        let old = make();
        let first = select(&old).unwrap();
        let new = make();
        let second = select(&new).unwrap();
        assert!(select(&new).is_none() && select(&old).is_none());
        new.resolved("name", Vec::new());
        new.resolved("name", vec![template.clone()]);
        assert!(select(&new).is_none());
        drop(old);
        drop(first);
        assert!(select(&new).is_some_and(|third| !name(&third).is_empty()));
        drop(second);
    }

    #[test]
    fn a_peer_is_known_again_by_its_group_and_address() {
        let loads = Arc::new(Loads::default());
        let make = |name: &str, peers: &[PeerOptions], balance| {
            Arc::new(Group::new(name.into(), peers.to_vec(), balance, &loads))
        };
        let taken = |group: &Arc<Group>| {
            let take = || group.select(&mut Tried::default(), &any(), Instant::now());
            std::iter::from_fn(take).collect::<Vec<Lease>>()
        };
        let bound = |max_conns, peer: PeerOptions| PeerOptions { max_conns, ..peer };
        let peers = options(&[("a", 1), ("b", 1)]);
        let (a, b) = (bound(2, peers[0].clone()), bound(3, peers[1].clone()));
        let old = make("g", &[a.clone(), b.clone()], Balance::RoundRobin);
        let mut under_way = taken(&old);
        assert_eq!(under_way.len(), 5);
        // In another order, by another method, written another way, with one more.
        let renamed = PeerOptions { server: "name".into(), weight: 9, ..a.clone() };
        let c = bound(1, PeerOptions::new(PeerAddress::Unix("c".into())));
        let new = make("g", &[c, b.clone(), renamed], Balance::LeastConn);
        assert_eq!(taken(&new).iter().map(name).collect::<String>(), "c");
        // A higher bound admits what is new in it; under a lower one nothing is until enough have ended.
        let (more, fewer) = (bound(4, a.clone()), bound(1, b.clone()));
        let new = make("g", &[more, fewer], Balance::Hash);
        let held = taken(&new);
        assert_eq!(held.iter().map(name).collect::<String>(), "aa");
        under_way.retain(|lease| name(lease) == "b");
        assert_eq!(taken(&new).iter().map(name).collect::<String>(), "aa");
        under_way.truncate(1);
        assert!(taken(&new).iter().all(|lease| name(lease) == "a"));
        under_way.clear();
        assert_eq!(taken(&new).iter().filter(|lease| name(lease) == "b").count(), 1);
        // One that was left out for a while counts what it began before.
        let without = make("g", std::slice::from_ref(&b), Balance::RoundRobin);
        drop((old, new));
        let again = make("g", &[a.clone(), b], Balance::RoundRobin);
        assert_eq!(taken(&again).iter().filter(|lease| name(lease) == "a").count(), 0);
        drop((without, held));
        assert_eq!(taken(&again).iter().filter(|lease| name(lease) == "a").count(), 2);
        // Another group's is another's.
        let _all = taken(&again);
        assert_eq!(taken(&make("other", &[a], Balance::RoundRobin)).len(), 2);
    }

    #[test]
    fn peers_alike_are_counted_one_by_one_also_when_one_goes_and_comes() {
        let mut template = options(&[("a", 1)]).remove(0);
        (template.server, template.max_conns) = ("name".into(), 1);
        let twin = PeerOptions { server: "a".into(), ..template.clone() };
        let group = group_of(vec![template.clone(), twin], Balance::RoundRobin);
        let select = || group.select(&mut Tried::default(), &any(), Instant::now());
        let held = (select(), select());
        assert!(held.0.is_some() && held.1.is_some() && select().is_none());
        group.resolved("name", Vec::new());
        group.resolved("name", vec![template]);
        assert!(select().is_none());
        drop(held);
        assert_eq!([select(), select(), select()].iter().flatten().count(), 2);
    }

    #[test]
    fn a_bound_request_goes_to_its_peer_as_long_as_that_can_be_had() {
        let mut peers = options(&[("a", 1), ("b", 1), ("c", 1)]);
        peers[1].route = Some("two".to_owned());
        peers[2].drain = true;
        let group = group_of(peers, Balance::RoundRobin);
        let now = Instant::now();
        let chosen = |sid: &str, tried: &mut Tried| {
            let selector = Selector { sid: sid.as_bytes().to_vec(), ..Selector::default() };
            group.select(tried, &selector, now).map(|lease| name(&lease))
        };
        let fresh = |sid: &str| chosen(sid, &mut Tried::default()).unwrap();
        for _ in 0..3 {
            assert_eq!(fresh("two"), "b");
        }
        // MD5 of "unix:a" and "unix:c".
        assert_eq!(fresh("62fed2ae8d52b73953e0cd83543b1f5e"), "a");
        assert_eq!(fresh("5f48bbc3f135f54dcdc99850d0b67e97"), "c");
        // Those bound to none have what was not had; none of them goes to the one that drains.
        let unbound: Vec<_> = (0..6).map(|_| fresh("")).collect();
        assert!(unbound.iter().filter(|name| *name == "a").count() > 3, "{unbound:?}");
        assert!(!unbound.contains(&"c".to_owned()), "{unbound:?}");
        let mut tried = Tried::default();
        assert_eq!(chosen("two", &mut tried).as_deref(), Some("b"));
        assert_eq!(chosen("two", &mut tried).as_deref(), Some("a"));
        assert_eq!(chosen("two", &mut tried), None);
    }

    #[test]
    fn the_peer_that_answers_sooner_gets_more() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        for (to_last_byte, wanted) in [(false, "a"), (true, "b")] {
            let least = LeastTime { to_last_byte, with_inflight: false };
            let group = group(&[("a", 1), ("b", 1)], Balance::LeastTime(least));
            let mut seen = Vec::new();
            for _ in 0..10 {
                let lease =
                    group.select(&mut Tried::default(), &Selector::default(), start).unwrap();
                let is_a = name(&lease) == "a";
                seen.push(name(&lease));
                // One has its head sooner, the other is whole sooner.
                lease.headed(|| at(if is_a { 100 } else { 300 }));
                lease.succeeded(Duration::from_millis(if is_a { 900 } else { 400 }));
            }
            assert!(seen[2..].iter().all(|name| name == wanted), "{to_last_byte} {seen:?}");
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_left_alone() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let least = LeastTime { to_last_byte: false, with_inflight: true };
        let group = group(&[("a", 1), ("b", 1)], Balance::LeastTime(least));
        let select = |now| group.select(&mut Tried::default(), &Selector::default(), now).unwrap();
        let stuck = select(start);
        assert_eq!(name(&stuck), "a");
        for round in 1..5 {
            let lease = select(at(1000 * round));
            assert_eq!(name(&lease), "b");
            lease.headed(|| at(1000 * round + 10));
            lease.succeeded(Duration::from_millis(10));
        }
        drop(stuck);
        let slots = &group.inner().slots;
        assert!(slots.iter().all(|slot| slot.state.inflight.average_age(at(9000)) == 0));
    }
}
