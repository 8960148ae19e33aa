//! Counters that each thread has for itself, and that are summed when they are read: no lock and no allocation where
//! something is counted, but for the first time on a thread.
//!
//! # Invariants
//! - A cell is written by its own thread alone, so adding is a load and a store.
//! - What a thread counted stays when it has ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The cells of one thread.
#[derive(Debug)]
pub struct Cells(Box<[AtomicU64]>);

impl Cells {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Adds to a cell of this thread.
    #[inline]
    pub fn add(&self, at: usize, more: u64) {
        let cell = &self.0[at];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Takes from a cell of this thread: all together, cells are not below nothing.
    #[inline]
    pub fn subtract(&self, at: usize, less: u64) {
        self.add(at, less.wrapping_neg());
    }

    /// Adds a time to the histogram whose cells begin at `at`.
    #[inline]
    pub fn observe(&self, at: usize, time: Duration) {
        let micros = time.as_secs() * 1_000_000 + u64::from(time.subsec_micros());
        // Nearly all answers of a cache are of the first.
        let bucket = match micros <= BOUNDS_MICROS[0] {
            true => 0,
            false => BOUNDS_MICROS.partition_point(|bound| *bound < micros),
        };
        self.add(at + bucket, 1);
        self.add(at + SUM, micros);
    }
}

/// Upper bounds of a histogram's buckets but for the last, which has none.
const BOUNDS_MICROS: [u64; 11] = [
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];
/// The same in seconds, as metrics write them.
pub const BOUNDS: [&str; 11] =
    ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0"];
/// Where the sum is, in microseconds: behind the buckets.
const SUM: usize = BOUNDS_MICROS.len() + 1;
/// The cells of a histogram.
pub const HISTOGRAM: usize = SUM + 1;

/// A histogram as it was read.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Histogram {
    /// Of each bucket, the last one without bound; not added up.
    pub buckets: Vec<u64>,
    pub sum_micros: u64,
}

impl Histogram {
    /// The histogram whose cells begin at `at`.
    pub fn of(sums: &[u64], at: usize) -> Self {
        Self { buckets: sums[at..at + SUM].to_vec(), sum_micros: sums[at + SUM] }
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Counters of one thing. They are never dropped: what is counted has a name of the configuration, or one of a bounded
/// set.
#[derive(Debug)]
pub struct Tally {
    /// Where a thread has its cells.
    number: usize,
    count: usize,
    threads: Mutex<Threads>,
}

#[derive(Debug)]
struct Threads {
    cells: Vec<Arc<Cells>>,
    /// What threads counted that have ended.
    past: Vec<u64>,
}

thread_local! {
    static OWN: RefCell<Vec<Option<Arc<Cells>>>> = const { RefCell::new(Vec::new()) };
}

impl Tally {
    /// Counters of this many cells, for the rest of the process.
    pub fn leaked(count: usize) -> &'static Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let threads = Mutex::new(Threads { cells: Vec::new(), past: vec![0; count] });
        Box::leak(Box::new(Self { number, count, threads }))
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        // Numbers only; a panic between two of them costs at most a count.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts; `count` counts nothing else with other counters.
    #[inline]
    pub fn with(&self, count: impl FnOnce(&Cells)) {
        // The thread may be at its end, and what it had with it.
        let _ = OWN.try_with(|own| {
            let begun = own.borrow();
            if let Some(Some(cells)) = begun.get(self.number) {
                return count(cells);
            }
            drop(begun);
            count(&self.begin(&mut own.borrow_mut()));
        });
    }

    #[cold]
    fn begin(&self, own: &mut Vec<Option<Arc<Cells>>>) -> Arc<Cells> {
        let cells = Cells::new(self.count);
        self.threads().cells.push(Arc::clone(&cells));
        if own.len() <= self.number {
            own.resize(self.number + 1, None);
        }
        own[self.number] = Some(Arc::clone(&cells));
        cells
    }

    /// The sums of all threads.
    pub fn sums(&self) -> Vec<u64> {
        let mut threads = self.threads();
        let Threads { cells: all, past } = &mut *threads;
        let mut living = Vec::with_capacity(all.len());
        let mut sums = vec![0; self.count];
        for cells in all.drain(..) {
            // The last one to hold them: their thread has ended.
            let (to, kept) = match Arc::try_unwrap(cells) {
                Ok(ended) => (&mut *past, Err(ended)),
                Err(cells) => (&mut sums, Ok(cells)),
            };
            let own = kept.as_ref().map_or_else(|ended| &ended.0, |cells| &cells.0);
            for (sum, cell) in to.iter_mut().zip(own) {
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
            }
            living.extend(kept);
        }
        *all = living;
        sums.iter_mut().zip(past).for_each(|(sum, past)| *sum = sum.wrapping_add(*past));
        sums
    }
}

/// Counters by name, of names that a configuration has: they stay over reloads, and there are few.
#[derive(Debug)]
pub struct Named {
    cells: usize,
    by_name: Mutex<BTreeMap<String, &'static Tally>>,
}

impl Named {
    /// Of this many cells each.
    pub const fn new(cells: usize) -> Self {
        Self { cells, by_name: Mutex::new(BTreeMap::new()) }
    }

    /// The counters of a name, made if it is new.
    pub fn of(&self, name: &str) -> &'static Tally {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = by_name.get(name) {
            return tally;
        }
        let tally = Tally::leaked(self.cells);
        by_name.insert(name.to_owned(), tally);
        tally
    }

    /// The sums of each name.
    pub fn sums(&self) -> Vec<(String, Vec<u64>)> {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner).clone();
        by_name.into_iter().map(|(name, tally)| (name, tally.sums())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_is_summed_also_when_they_have_ended() {
        let tally = Tally::leaked(2);
        let count = || (0..1000).for_each(|_| tally.with(|cells| cells.add(1, 2)));
        let threads = [count; 4].map(std::thread::spawn);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(tally.sums(), [0, 8000]);
        tally.with(|cells| cells.add(0, 1));
        assert_eq!(tally.sums(), [1, 8000]);
        assert_eq!(tally.threads().cells.len(), 1, "those that ended are added up");
        assert_eq!(tally.sums(), [1, 8000]);
    }

    #[test]
    fn a_time_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let tally = Tally::leaked(1 + HISTOGRAM);
        for millis in [0, 5, 6, 10_000, 10_001] {
            tally.with(|cells| cells.observe(1, Duration::from_millis(millis)));
        }
        let found = Histogram::of(&tally.sums(), 1);
        assert_eq!(found.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((found.count(), found.sum_micros), (5, 20_012_000));
        let written = BOUNDS.map(|bound| Duration::from_secs_f64(bound.parse().unwrap()));
        assert_eq!(written, BOUNDS_MICROS.map(Duration::from_micros));
    }

    #[test]
    fn a_name_has_one_set_of_counters() {
        static NAMED: Named = Named::new(1);
        NAMED.of("a").with(|cells| cells.add(0, 1));
        NAMED.of("a").with(|cells| cells.add(0, 1));
        NAMED.of("b");
        assert_eq!(NAMED.sums(), [("a".to_owned(), vec![2]), ("b".to_owned(), vec![0])]);
    }
}
