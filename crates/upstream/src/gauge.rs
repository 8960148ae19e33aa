//! How many there are of something at the moment.
//!
//! # Invariants
//! - A gauge goes up by [`Gauge::take`] and [`Gauge::take_below`] alone, and down with what these return, once each.

use crate::sync::AtomicUsize;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// Counts what is [`Taken`] of it and not given back yet.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

/// One of a [`Gauge`], until it is dropped. `G` keeps the gauge: a static or counted reference.
pub struct Taken<G: Deref<Target = Gauge>>(G);

impl Gauge {
    /// Of nothing yet.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// How many are taken.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes one.
    pub fn take<G: Deref<Target = Self>>(this: G) -> Taken<G> {
        this.0.fetch_add(1, Ordering::Relaxed);
        Taken(this)
    }

    /// Takes one if fewer than `max` are taken.
    pub fn take_below<G: Deref<Target = Self>>(this: G, max: usize) -> Option<Taken<G>> {
        let next = |taken: usize| (taken < max).then_some(taken + 1);
        let taken = this.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.is_ok().then(|| Taken(this))
    }
}

impl<G: Deref<Target = Gauge>> Taken<G> {
    /// What keeps the gauge.
    pub fn keeper(&self) -> &G {
        &self.0
    }
}

impl<G: Deref<Target = Gauge>> Drop for Taken<G> {
    fn drop(&mut self) {
        let before = self.0.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "what is taken is given back once");
    }
}

impl<G: Deref<Target = Gauge>> fmt::Debug for Taken<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", self.0.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_is_taken_is_given_back_by_its_drop() {
        static COUNT: Gauge = Gauge::new();
        let one = Gauge::take(&COUNT);
        let two = Gauge::take_below(&COUNT, 2);
        assert!(two.is_some() && Gauge::take_below(&COUNT, 2).is_none());
        drop(one);
        assert_eq!(COUNT.get(), 1);
        let panics = std::thread::spawn(move || {
            let _two = two;
            panic!("on purpose");
        });
        assert!(panics.join().is_err());
        assert_eq!(COUNT.get(), 0);
    }

    #[test]
    fn threads_together_take_no_more_than_there_are() {
        let gauge = Arc::new(Gauge::new());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let taken = Gauge::take_below(Arc::clone(&gauge), 3);
                        assert!(gauge.get() <= 3);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(gauge.get(), 0);
    }
}
