//! The attempts to reach an upstream peer, one after the other.

use std::sync::Arc;
use std::time::Duration;

/// What is known about one attempt to reach an upstream peer.
#[derive(Clone, Debug)]
pub struct UpstreamAttempt {
    pub peer: Arc<str>,
    /// Whether the request had been led to another upstream before: the first attempt of this one.
    pub is_led: bool,
    pub status: u16,
    pub connect_time: Option<Duration>,
    pub header_time: Option<Duration>,
    /// Until the answer was whole; `None` before.
    pub response_time: Option<Duration>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub response_bytes: u64,
}

impl UpstreamAttempt {
    /// An attempt that begins.
    pub fn new(peer: Arc<str>) -> Self {
        Self {
            peer,
            is_led: false,
            status: 0,
            connect_time: None,
            header_time: None,
            response_time: None,
            bytes_sent: 0,
            bytes_received: 0,
            response_bytes: 0,
        }
    }
}

/// All attempts of a request, in order. Most have one, which has its place here.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    last: Option<UpstreamAttempt>,
    before: Vec<UpstreamAttempt>,
}

impl Attempts {
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &UpstreamAttempt> {
        self.before.iter().chain(&self.last)
    }

    pub fn last(&self) -> Option<&UpstreamAttempt> {
        self.last.as_ref()
    }

    pub fn last_mut(&mut self) -> Option<&mut UpstreamAttempt> {
        self.last.as_mut()
    }

    pub fn push(&mut self, attempt: UpstreamAttempt) {
        self.before.extend(self.last.replace(attempt));
    }

    /// Adds those of another request to the upstream.
    pub fn append(&mut self, more: Self) {
        if self.is_empty() {
            *self = more;
            return;
        }
        for (at, mut attempt) in more.before.into_iter().chain(more.last).enumerate() {
            attempt.is_led = at == 0;
            self.push(attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_stay_in_their_order() {
        let of = |peers: &[&str]| {
            let mut attempts = Attempts::default();
            peers.iter().for_each(|peer| attempts.push(UpstreamAttempt::new((*peer).into())));
            attempts
        };
        let mut attempts = of(&[]);
        assert!(attempts.is_empty() && attempts.last().is_none());
        attempts.append(of(&["a"]));
        attempts.append(of(&["b", "c"]));
        attempts.append(of(&[]));
        let peers: Vec<&str> = attempts.iter().map(|attempt| &*attempt.peer).collect();
        assert_eq!(peers, ["a", "b", "c"]);
        assert_eq!(attempts.last_mut().map(|last| &*last.peer), Some("c"));
    }
}
