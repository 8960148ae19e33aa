//! What is shown of a group's peers.

use crate::group::{Group, Lease, PeerOptions, Slot};
use std::sync::Arc;
use std::time::Instant;

/// What a peer does, and has done since its group was made.
#[derive(Clone, Debug)]
pub struct PeerFigures {
    /// Unlike any other's of the group.
    pub id: u64,
    /// As written.
    pub server: String,
    /// The address as logs show it.
    pub address: Arc<str>,
    /// Used only when no other peer is available.
    pub backup: bool,
    /// Share of requests.
    pub weight: u32,
    /// As nginx calls it: `up`, `down`, `draining`, or `unavail` after failures.
    pub state: &'static str,
    /// Requests under way.
    pub active: usize,
    /// Their bound; 0 for none.
    pub max_conns: usize,
    /// Requests that it was asked for.
    pub requests: u64,
    /// Those of them that it failed to answer.
    pub fails: u64,
    /// How often that took it out.
    pub unavailable: u64,
    /// Its answers that were none of failures, and the microseconds until they were whole.
    pub answers: u64,
    /// See `answers`.
    pub answer_micros: u64,
    /// Average in milliseconds, where balancing needs it.
    pub header_time: Option<u64>,
    /// The same to the last byte; of all answers where balancing needs none.
    pub response_time: Option<u64>,
}

impl Lease {
    /// When it was taken.
    pub fn begun(&self) -> Instant {
        self.begun
    }
}

impl Group {
    /// How many peers it has now.
    pub fn len(&self) -> usize {
        self.inner().slots.len()
    }

    /// Whether it has no peer now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each peer does and has done.
    pub fn figures(&self) -> Vec<PeerFigures> {
        #[cfg_attr(
            not(test),
            expect(clippy::disallowed_methods, reason = "what is shown is shown now")
        )]
        let now = Instant::now();
        self.inner().slots.iter().map(|slot| slot.figures(now)).collect()
    }
}

impl Slot {
    fn figures(&self, now: Instant) -> PeerFigures {
        let (options, state) = (&self.options, &self.state);
        PeerFigures {
            id: self.id,
            server: options.server.clone(),
            address: Arc::clone(&self.place.text),
            backup: options.backup,
            weight: options.weight,
            state: match options {
                PeerOptions { down: true, .. } => "down",
                _ if self.is_out(now) => "unavail",
                PeerOptions { drain: true, .. } => "draining",
                _ => "up",
            },
            active: self.connections(),
            max_conns: options.max_conns,
            requests: state.requests,
            fails: state.failures,
            unavailable: state.outages,
            header_time: state.header_time,
            answers: state.answers,
            answer_micros: state.answer_micros,
            response_time: state
                .response_time
                .or_else(|| Some(state.answer_micros.checked_div(state.answers)? / 1000)),
        }
    }
}
