//! How long requests take, finer than metrics have it: four steps for each power of two. Counted only while there is a
//! viewer.

use crate::base::tally::Tally;
use std::sync::LazyLock;
use std::time::Duration;

/// Steps up to 2^27 microseconds, two minutes; what takes longer is in the last.
pub const CELLS: usize = 4 * 27;

static TALLY: LazyLock<&'static Tally> = LazyLock::new(|| Tally::leaked(CELLS));

/// The step of a time in microseconds.
fn step(micros: u64) -> usize {
    // The two bits behind the first one.
    let micros = micros.max(4);
    let power = micros.ilog2();
    let quarter = (micros >> (power - 2)) & 3;
    (4 * (power as usize - 2) + usize::try_from(quarter).unwrap_or(0)).min(CELLS - 1)
}

/// The first time, in microseconds, that is beyond a step.
pub fn end(step: usize) -> u64 {
    (5 + step as u64 % 4) << (step / 4)
}

/// Counts a request that took `time`.
pub fn observe(time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    TALLY.with(|cells| cells.add(step(micros), 1));
}

/// Requests by step.
pub fn sums() -> Vec<u64> {
    TALLY.sums()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_step_before_whose_end_it_lies() {
        let mut times: Vec<u64> = (0..100).collect();
        times.extend((3..26).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]));
        for micros in times {
            let at = step(micros);
            assert!(micros < end(at), "{micros}: {at}");
            assert!(at == 0 || micros >= end(at - 1), "{micros}: {at}");
        }
        assert_eq!(step(u64::MAX), CELLS - 1);
    }
}
