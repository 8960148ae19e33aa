//! A named group of peers and the smooth weighted round robin over them.

use crate::connection::PeerAddress;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A `server` line of an `upstream` block; one per address the name resolved to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PeerOptions {
    /// Where it listens.
    pub address: PeerAddress,
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

/// A peer as selected.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Position in the group.
    pub index: usize,
    /// Where it listens.
    pub address: PeerAddress,
}

/// Which peers one request has tried.
#[derive(Clone, Debug, Default)]
pub struct Tried(Vec<usize>);

impl Tried {
    /// How many so far.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    current_weight: i64,
    effective_weight: i64,
    connections: usize,
    fails: u32,
    accessed: Option<Instant>,
    checked: Option<Instant>,
}

/// A group; its state is shared by all workers.
#[derive(Debug)]
pub struct Group {
    /// The name in messages and `$proxy_host`.
    pub name: String,
    peers: Vec<PeerOptions>,
    states: Mutex<Vec<State>>,
}

impl Group {
    /// A group of at least one peer.
    pub fn new(name: String, peers: Vec<PeerOptions>) -> Self {
        assert!(!peers.is_empty(), "the configuration refuses empty groups");
        let state = |peer: &PeerOptions| State {
            effective_weight: i64::from(peer.weight),
            ..State::default()
        };
        let states = Mutex::new(peers.iter().map(state).collect());
        Self { name, peers, states }
    }

    /// The peers as configured.
    pub fn peers(&self) -> &[PeerOptions] {
        &self.peers
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        // Numbers only; a panic between two updates costs at most a skewed choice.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next peer that `tried` does not hold; backups only when no other is left.
    ///
    /// Counts as one connection until [`Group::succeeded`] or [`Group::failed`].
    pub fn select(&self, tried: &mut Tried, now: Instant) -> Option<Peer> {
        let mut states = self.states();
        let index = if let [only] = &self.peers[..] {
            // As nginx: a lone peer is never taken out by failures.
            (tried.0.is_empty() && !only.down && !is_full(only, &states[0])).then_some(0)?
        } else {
            self.choose(&mut states, tried, false, now)
                .or_else(|| self.choose(&mut states, tried, true, now))?
        };
        tried.0.push(index);
        states[index].connections += 1;
        Some(Peer { index, address: self.peers[index].address.clone() })
    }

    /// Smooth weighted round robin: each candidate gains its weight, the highest goes and pays the
    /// total, so that a, a, b becomes a, b, a.
    fn choose(
        &self,
        states: &mut [State],
        tried: &Tried,
        backup: bool,
        now: Instant,
    ) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (index, peer) in self.peers.iter().enumerate() {
            let state = &mut states[index];
            let is_candidate = peer.backup == backup
                && !peer.down
                && !tried.0.contains(&index)
                && !is_out(peer, state, now)
                && !is_full(peer, state);
            if !is_candidate {
                continue;
            }
            state.current_weight += state.effective_weight;
            total += state.effective_weight;
            if state.effective_weight < i64::from(peer.weight) {
                state.effective_weight += 1;
            }
            let gained = state.current_weight;
            if best.is_none_or(|best| gained > states[best].current_weight) {
                best = Some(index);
            }
        }
        let best = best?;
        states[best].current_weight -= total;
        let window = self.peers[best].fail_timeout;
        if states[best]
            .checked
            .is_none_or(|checked| now.saturating_duration_since(checked) > window)
        {
            states[best].checked = Some(now);
        }
        Some(best)
    }

    /// The peer answered.
    pub fn succeeded(&self, peer: &Peer) {
        let mut states = self.states();
        let state = &mut states[peer.index];
        state.connections = state.connections.saturating_sub(1);
        if state.accessed < state.checked {
            state.fails = 0;
        }
    }

    /// The peer refused, timed out or answered nonsense.
    pub fn failed(&self, peer: &Peer, now: Instant) {
        let options = &self.peers[peer.index];
        let mut states = self.states();
        let state = &mut states[peer.index];
        state.connections = state.connections.saturating_sub(1);
        state.fails += 1;
        (state.accessed, state.checked) = (Some(now), Some(now));
        if let Some(loss) = options.weight.checked_div(options.max_fails).map(i64::from) {
            state.effective_weight = (state.effective_weight - loss).max(0);
        }
    }

    /// The request ended without a verdict on the peer (the client went away).
    pub fn released(&self, peer: &Peer) {
        let mut states = self.states();
        states[peer.index].connections = states[peer.index].connections.saturating_sub(1);
    }
}

fn is_out(peer: &PeerOptions, state: &State, now: Instant) -> bool {
    peer.max_fails > 0
        && state.fails >= peer.max_fails
        && state.checked.is_some_and(|at| now.saturating_duration_since(at) <= peer.fail_timeout)
}

fn is_full(peer: &PeerOptions, state: &State) -> bool {
    peer.max_conns > 0 && state.connections >= peer.max_conns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(peers: &[(&str, u32)]) -> Group {
        let peer = |(name, weight): &(&str, u32)| PeerOptions {
            weight: *weight,
            ..PeerOptions::new(PeerAddress::Unix((*name).into()))
        };
        Group::new("g".into(), peers.iter().map(peer).collect())
    }

    fn order(group: &Group, count: usize, now: Instant) -> Vec<usize> {
        (0..count)
            .map(|_| {
                let peer = group.select(&mut Tried::default(), now).unwrap();
                group.succeeded(&peer);
                peer.index
            })
            .collect()
    }

    #[test]
    fn weights_are_spread_smoothly() {
        let group = group(&[("a", 5), ("b", 1), ("c", 1)]);
        assert_eq!(order(&group, 7, Instant::now()), [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn a_failing_peer_rests_for_fail_timeout() {
        let (group, now) = (group(&[("a", 1), ("b", 1)]), Instant::now());
        let peer = group.select(&mut Tried::default(), now).unwrap();
        group.failed(&peer, now);
        assert!(order(&group, 4, now).iter().all(|index| *index != peer.index));
        let later = now + Duration::from_secs(11);
        assert!(order(&group, 4, later).contains(&peer.index));
    }

    #[test]
    fn each_peer_is_tried_once_and_backups_last() {
        let mut options: Vec<_> = group(&[("a", 1), ("b", 1), ("c", 1)]).peers().to_vec();
        options[0].backup = true;
        options[2].down = true;
        let (group, now) = (Group::new("g".into(), options), Instant::now());
        let mut tried = Tried::default();
        let mut next = || group.select(&mut tried, now).map(|peer| peer.index);
        assert_eq!((next(), next(), next()), (Some(1), Some(0), None));
    }

    #[test]
    fn a_lone_peer_stays_in_use_though_it_fails() {
        let (group, now) = (group(&[("a", 1)]), Instant::now());
        for _ in 0..3 {
            let peer = group.select(&mut Tried::default(), now).unwrap();
            group.failed(&peer, now);
        }
        assert!(group.select(&mut Tried::default(), now).is_some());
    }
}
