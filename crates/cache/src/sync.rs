//! The locks and wake-ups whose order decides what is served: those of the standard library and
//! tokio. With the feature `model` shuttle's, which tries one order after the other (`tests/model.rs`).
//!
//! Those of the index, the catalog and the memory tier are not among them: each is held inside one call
//! alone, in which no other is taken, so that such a call is one step in either case.

#[cfg(not(feature = "model"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(not(feature = "model"))]
pub(crate) use tokio::sync::Notify;

#[cfg(feature = "model")]
pub(crate) use model::Notify;
#[cfg(feature = "model")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};

#[cfg(feature = "model")]
mod model {
    use shuttle::sync::atomic::{AtomicBool, Ordering};

    /// tokio's, with a place to change threads before each call. Its own lock is held inside its calls alone.
    #[derive(Debug, Default)]
    pub(crate) struct Notify {
        notify: tokio::sync::Notify,
        step: AtomicBool,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        fn step(&self) -> &tokio::sync::Notify {
            self.step.load(Ordering::SeqCst);
            &self.notify
        }

        pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
            self.step().notified()
        }

        pub(crate) fn notify_one(&self) {
            self.step().notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.step().notify_waiters();
        }
    }
}
