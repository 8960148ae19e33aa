//! The memory of several zones as one.

/// What the memory tier of a zone takes, and what it may take.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes in it.
    pub used: u64,
    /// Its bound until now.
    pub bound: u64,
    /// Its bound where all have room.
    pub max: u64,
}

/// Each zone has an equal part of this share of the budget in any case: what begins to fill needs room for its first pages.
const FLOOR_SHARE: u64 = 4;

impl Need {
    /// What it would take, `floor` at least: one that is three quarters full, as its parts make of one that is full, twice what it
    /// may take; another one a third more than it has.
    fn wanted(self, floor: u64) -> u64 {
        let is_full = self.used >= self.bound / 4 * 3;
        let wanted = if is_full { self.bound * 2 } else { self.used + self.used / 3 };
        wanted.max(floor).min(self.max)
    }
}

/// A bound for each, within `budget` together: what those with little leave goes to those that want more, in equal parts. What
/// none wants yet is room for all.
pub fn bounds(needs: &[Need], budget: u64) -> Vec<u64> {
    let floor = budget / FLOOR_SHARE / needs.len().max(1) as u64;
    let mut bounds = vec![0; needs.len()];
    let mut left = budget;
    for is_first in [true, false] {
        let target = |need: &Need| if is_first { need.wanted(floor) } else { need.max };
        let more = |at: usize| target(&needs[at]).saturating_sub(bounds[at]);
        let mut wanted: Vec<_> = (0..needs.len()).map(|at| (more(at), at)).collect();
        // Those that want least first: what they leave goes on to the others.
        wanted.sort_unstable();
        for (place, (more, at)) in wanted.iter().enumerate() {
            let given = (left / (wanted.len() - place) as u64).min(*more);
            bounds[*at] += given;
            left -= given;
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 64;

    fn need(used: u64, bound: u64) -> Need {
        Need { used, bound, max: MAX }
    }

    #[test]
    fn all_get_what_they_may_take_where_there_is_room() {
        assert_eq!(bounds(&[need(0, 64), need(60, 64)], 128), [64, 64]);
        assert_eq!(bounds(&[], 128), []);
    }

    #[test]
    fn what_some_leave_is_others() {
        // One is full, the others have next to nothing.
        let found = bounds(&[need(19, 20), need(0, 20), need(6, 20), need(0, 20)], 80);
        assert_eq!(found, [45, 11, 13, 11]);
        assert_eq!(
            bounds(&[need(46, 46), need(0, 11), need(6, 12), need(0, 11)], 80),
            [62, 5, 8, 5]
        );
        // One that grows takes no more from it than that.
        assert_eq!(bounds(&[need(62, 62), need(0, 5), need(7, 8), need(0, 5)], 80), [54, 5, 16, 5]);
        assert_eq!(bounds(&[need(54, 54), need(0, 5), need(7, 16), need(0, 5)], 80), [61, 5, 9, 5]);
    }

    #[test]
    fn all_that_want_more_have_equal_parts() {
        let found = bounds(&[need(40, 40), need(20, 20), need(10, 10), need(1, 10)], 70);
        assert_eq!(found, [23, 23, 20, 4]);
    }

    #[test]
    fn the_sum_is_never_above_the_budget() {
        for budget in 0..300 {
            let needs = [need(60, 64), need(3, 9), need(9, 9), need(0, 0), need(17, 30)];
            let found = bounds(&needs, budget);
            assert!(found.iter().sum::<u64>() <= budget && found.iter().all(|one| *one <= MAX));
        }
    }
}
