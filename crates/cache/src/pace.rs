//! The pace of work on many files, beside which pages are served.

#![cfg_attr(
    not(test),
    expect(clippy::disallowed_methods, reason = "the pace of a thread of its own")
)]

use std::time::{Duration, Instant};

/// How much is done at once, and how long is paused after it.
///
/// # Source
/// nginx, `loader_files` and `manager_files` of `fastcgi_cache_path` and their relatives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pace {
    /// Files of one step.
    pub files: usize,
    /// Pause between steps.
    pub sleep: Duration,
    /// Longest step.
    pub threshold: Duration,
}

impl Pace {
    /// Without a pause.
    pub(crate) const AT_ONCE: Self =
        Self { files: usize::MAX, sleep: Duration::ZERO, threshold: Duration::MAX };
}

impl Default for Pace {
    fn default() -> Self {
        Self { files: 100, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) }
    }
}

/// Counts the files of a step, and pauses after it.
pub(crate) struct Steps<'a> {
    pub(crate) pace: Pace,
    files: usize,
    begun: Instant,
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(pace: Pace, is_wanted: &'a dyn Fn() -> bool) -> Self {
        Self { pace, files: 0, begun: Instant::now(), is_wanted }
    }

    /// One more file is done; `false` if no more is wanted.
    pub(crate) fn next(&mut self) -> bool {
        self.files += 1;
        if self.files < self.pace.files && self.begun.elapsed() < self.pace.threshold {
            return true;
        }
        std::thread::sleep(self.pace.sleep);
        (self.files, self.begun) = (0, Instant::now());
        (self.is_wanted)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// How many files are done between two pauses, of nine.
    fn steps(pace: Pace) -> Vec<usize> {
        let (files, pauses) = (Cell::new(0), Cell::new(Vec::new()));
        let note = || {
            let mut all = pauses.take();
            all.push(files.replace(0));
            pauses.set(all);
            true
        };
        let mut steps = Steps::new(pace, &note);
        for _ in 0..9 {
            files.set(files.get() + 1);
            assert!(steps.next());
        }
        pauses.take()
    }

    #[test]
    fn a_step_ends_after_so_many_files_or_so_long() {
        let hour = Duration::from_secs(3600);
        let pace = Pace { files: 4, sleep: Duration::ZERO, threshold: hour };
        assert_eq!(steps(pace), [4, 4]);
        assert_eq!(steps(Pace { files: 100, ..pace }), []);
        let pace = Pace { files: 100, sleep: Duration::ZERO, threshold: Duration::ZERO };
        assert_eq!(steps(pace), [1; 9]);
    }

    #[test]
    fn between_steps_it_sleeps() {
        let sleep = Duration::from_millis(20);
        let begun = Instant::now();
        steps(Pace { files: 3, sleep, threshold: Duration::from_secs(3600) });
        assert!(begun.elapsed() >= 3 * sleep);
    }

    #[test]
    fn what_is_not_wanted_ends_after_a_step() {
        let pace = Pace { files: 2, sleep: Duration::ZERO, threshold: Duration::from_secs(3600) };
        let mut steps = Steps::new(pace, &|| false);
        assert_eq!([steps.next(), steps.next()], [true, false]);
    }
}
