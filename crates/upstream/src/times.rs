//! How long peers take: averages of answers, requests that wait, and what `least_time` makes of them.

use crate::balance::{LeastTime, smooth};
use crate::group::Slot;
use std::time::Instant;

/// Requests that are not answered yet, for `least_time … inflight`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inflight {
    count: u64,
    /// How old they are together, in milliseconds, at the time in [`Inflight::at`].
    age: u64,
    at: Option<Instant>,
}

impl Inflight {
    fn pass_to(&mut self, now: Instant) {
        let at = self.at.unwrap_or(now);
        self.age += self.count * millis(at, now);
        // Workers do not agree on the time to the millisecond.
        self.at = Some(at.max(now));
    }

    pub(crate) fn add(&mut self, now: Instant) {
        self.pass_to(now);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, begun: Instant, now: Instant) {
        self.pass_to(now);
        self.age = self.age.saturating_sub(millis(begun, now));
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.age = 0;
        }
    }

    pub(crate) fn average_age(mut self, now: Instant) -> u64 {
        self.pass_to(now);
        self.age.checked_div(self.count).unwrap_or(0)
    }
}

/// From one time to a later one.
pub(crate) fn millis(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
}

/// Peers that take longer than this are equally bad, in milliseconds; as nginx.
const TIME_MAX: u64 = 5000;
/// Times that differ by less are the same, in milliseconds; as nginx.
const TIME_STEP: u64 = 20;
/// How many answers the average of times reaches over; chosen.
const TIME_WINDOW: u64 = 20;

/// An average with one more time in it.
pub(crate) fn averaged(average: Option<u64>, time: u64) -> u64 {
    average.map_or(time, |average| (average * (TIME_WINDOW - 1) + time) / TIME_WINDOW)
}

/// How long the requests of a peer and one more are expected to take.
fn estimated(slot: &Slot, least: LeastTime, now: Instant) -> u64 {
    let state = &slot.state;
    let average = if least.to_last_byte { state.response_time } else { state.header_time };
    let mut time = average.unwrap_or(0);
    // Half of it for each time that it was left alone, so that slow peers get another chance.
    let alone = state.checked.map_or(0, |at| now.saturating_duration_since(at).as_secs());
    let halvings = alone / (slot.options.fail_timeout.as_secs() + 1);
    time = u32::try_from(halvings).ok().and_then(|by| time.checked_shr(by)).unwrap_or(0);
    if least.with_inflight {
        time = time.max(state.inflight.average_age(now));
    }
    time = if time > TIME_MAX { TIME_MAX } else { time + TIME_STEP - time % TIME_STEP };
    time * (1 + slot.connections() as u64)
}

/// The one of the `eligible` that is expected to answer first; among equals, smooth round robin.
pub(crate) fn soonest(
    slots: &mut [Slot],
    least: LeastTime,
    now: Instant,
    eligible: impl Fn(&Slot) -> bool,
) -> Option<usize> {
    let weight = |slot: &Slot| u64::from(slot.options.weight);
    let timed = slots.iter().filter(|slot| eligible(slot));
    let timed = timed.map(|slot| (estimated(slot, least, now), weight(slot)));
    let (time, by) = timed.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))?;
    smooth(slots, |slot| eligible(slot) && estimated(slot, least, now) * by == time * weight(slot))
}
