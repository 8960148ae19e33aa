//! When what is due: pure, from times to times.

use std::time::Duration;
use tokio::time::Instant;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Pauses after failures one after the other; nginx's.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(600), Duration::from_secs(6000)];
/// The pause after all further ones; nginx's.
const PAUSE_MAX: Duration = DAY;
/// A certificate with a shorter life is renewed after half of it; nginx's.
const SHORT_LIFE: Duration = Duration::from_secs(10 * 24 * 60 * 60);
/// A certificate is used for this part of its life at least; chosen.
const SOON_PART: u32 = 20;
/// Bounds of the time between two questions for a time of renewal; nginx's.
const INFO_PAUSE_MIN: Duration = Duration::from_secs(60);
pub(crate) const INFO_PAUSE_MAX: Duration = DAY;

/// The pause after the given number of failures in a row; `chance` is between 0 and 1.
pub(crate) fn pause(failures: u32, chance: f64) -> Duration {
    let index = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
    let pause = PAUSES.get(index).copied().unwrap_or(PAUSE_MAX);
    // Many servers that failed together shall not come again together.
    pause.mul_f64(1.0 + 0.02 * chance.clamp(0.0, 1.0))
}

/// When to renew a certificate whose issuer does not say: after two thirds of its life, or a half of a short one.
pub(crate) fn renewal((begin, end): (Duration, Duration), chance: f64) -> Duration {
    let life = end.saturating_sub(begin);
    let part = if life < SHORT_LIFE { life / 2 } else { life / 3 * 2 };
    begin + part + (life / 50).mul_f64(chance.clamp(0.0, 1.0))
}

/// Whether the time of renewal comes too soon after a certificate was issued: by a clock that is wrong, here or at the
/// issuer, and the next certificate would be no better.
pub(crate) fn is_too_soon((begin, end): (Duration, Duration), left: Duration) -> bool {
    left <= end.saturating_sub(begin) / SOON_PART
}

/// A time in a window.
pub(crate) fn within((begin, end): (Duration, Duration), chance: f64) -> Duration {
    begin + end.saturating_sub(begin).mul_f64(chance.clamp(0.0, 1.0))
}

/// A time in the window of a certificate that was issued just now: one with room left is not renewed at once, though its
/// window may have begun already.
pub(crate) fn within_of_new(
    (begin, end): (Duration, Duration),
    validity: (Duration, Duration),
    now: Duration,
    chance: f64,
) -> Duration {
    let earliest = now + validity.1.saturating_sub(validity.0) / SOON_PART * 2;
    within((begin.max(earliest.min(end)), end), chance)
}

/// The time until the issuer is asked again when to renew.
pub(crate) fn info_pause(said: Duration) -> Duration {
    said.clamp(INFO_PAUSE_MIN, INFO_PAUSE_MAX)
}

/// When the next order may be begun, by a clock that is never set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempts {
    next: Option<Instant>,
    /// Until when the issuer wants to be left alone: it does so also after a reload.
    alone_until: Option<Instant>,
}

impl Attempts {
    /// An order failed: the time until the next one.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        pause: Duration,
        retry_after: Option<Duration>,
    ) -> Duration {
        let alone = retry_after.unwrap_or_default().min(PAUSE_MAX);
        self.alone_until = Some(now + alone);
        let pause = pause.max(alone);
        self.next = Some(now + pause);
        pause
    }

    /// What was wrong may be repaired.
    pub(crate) fn reloaded(&mut self) {
        self.next = self.alone_until;
    }

    /// The time until the next order.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_day() {
        let seconds = [1, 2, 3, 4, 100].map(|failures| pause(failures, 0.0).as_secs());
        assert_eq!(seconds, [60, 600, 6000, 86_400, 86_400]);
        assert_eq!(pause(1, 1.0), Duration::from_millis(61_200));
    }

    #[test]
    fn an_attempt_comes_after_its_pause_and_a_reload_shortens_it_to_what_the_issuer_wants() {
        let (mut attempts, begun) = (Attempts::default(), Instant::now());
        let minutes = |count: u64| Duration::from_secs(60 * count);
        assert_eq!(attempts.left(begun), Duration::ZERO);
        assert_eq!(attempts.failed(begun, minutes(10), None), minutes(10));
        // Who looks at the clock meanwhile waits on.
        assert_eq!(attempts.left(begun + minutes(9)), minutes(1));
        attempts.reloaded();
        assert_eq!(attempts.left(begun), Duration::ZERO);
        assert_eq!(attempts.failed(begun, minutes(10), Some(minutes(5))), minutes(10));
        attempts.reloaded();
        assert_eq!(attempts.left(begun + minutes(1)), minutes(4));
        assert_eq!(attempts.failed(begun, minutes(1), Some(minutes(5))), minutes(5));
        attempts.reloaded();
        attempts.reloaded();
        assert_eq!(attempts.left(begun), minutes(5));
        assert_eq!(attempts.failed(begun, minutes(1), Some(DAY * 365)), DAY);
    }

    #[test]
    fn short_lives_are_renewed_after_half_of_them() {
        let at = |days: u32, chance| renewal((DAY, DAY + DAY * days), chance);
        assert_eq!(at(90, 0.0), DAY * 61);
        assert_eq!(at(6, 0.0), DAY * 4);
        assert!(at(90, 1.0) > at(90, 0.0) && at(90, 1.0) < DAY * 63);
        // A certificate that ends before it begins is due.
        assert_eq!(renewal((DAY, Duration::ZERO), 0.5), DAY);
    }

    #[test]
    fn a_renewal_right_after_an_order_is_too_soon() {
        let is_too_soon = |left| is_too_soon((DAY, DAY * 91), left);
        assert!(is_too_soon(Duration::ZERO) && is_too_soon(DAY * 4) && !is_too_soon(DAY * 5));
    }

    #[test]
    fn a_window_that_has_begun_leaves_a_new_certificate_some_time() {
        let validity = (DAY, DAY * 101);
        let drawn = |window, chance| within_of_new(window, validity, DAY, chance);
        let left = drawn((DAY, DAY * 101), 0.0) - DAY;
        assert!(!is_too_soon(validity, left), "{left:?}");
        assert_eq!(drawn((DAY * 51, DAY * 61), 0.0), DAY * 51);
        // The whole window is too soon: that is for `is_too_soon` to tell.
        assert!(is_too_soon(validity, drawn((DAY, DAY * 2), 0.5) - DAY));
    }

    #[test]
    fn the_issuer_is_asked_again_within_bounds() {
        assert_eq!(info_pause(Duration::ZERO), Duration::from_secs(60));
        assert_eq!(info_pause(DAY * 9), DAY);
        assert_eq!(within((DAY, DAY * 3), 0.5), DAY * 2);
    }
}
