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
