//! One timer per connection that is moved only when it fires too early.
//!
//! A keep-alive connection sets a new deadline per request; registering each would cost more than
//! the request's parsing.

use crate::base::turn;
use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Bounds the waits of one connection, one at a time.
pub struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// The task it wakes.
    waker: Option<Waker>,
    /// Of the present wait.
    limit: Duration,
    /// Set when it turns out that there is something to wait for.
    deadline: Option<Instant>,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(Duration::from_secs(60))),
            waker: None,
            limit: Duration::ZERO,
            deadline: None,
        }
    }
}

impl Timer {
    /// What `work` gives, or `None` if it takes longer than `limit`.
    ///
    /// # Cancel safety
    /// As `work`.
    pub async fn within<T>(
        &mut self,
        limit: Duration,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        self.begin(limit);
        std::future::poll_fn(|context| {
            let work = work.as_mut().poll(context);
            self.poll_wait(context, work)
        })
        .await
    }

    /// A wait begins that may take `limit`.
    pub fn begin(&mut self, limit: Duration) {
        (self.limit, self.deadline) = (limit, None);
    }

    /// What the wait has come to, for a task that is polled: `work` if it is ready, `None` if it takes too long.
    pub fn poll_wait<T>(&mut self, context: &mut Context<'_>, work: Poll<T>) -> Poll<Option<T>> {
        if let Poll::Ready(done) = work {
            return Poll::Ready(Some(done));
        }
        let deadline = *self.deadline.get_or_insert_with(|| now() + self.limit);
        if self.sleep.deadline() > deadline {
            self.sleep.as_mut().reset(deadline);
        }
        let is_set = self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_set && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        self.waker = Some(context.waker().clone());
        while self.sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(None);
            }
            self.sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// When a wait begins: with the turn, of a thread that has turns.
fn now() -> Instant {
    match turn::number() {
        turn::NONE => Instant::now(),
        _ => Instant::from_std(turn::instant()),
    }
}

/// Timers kept by a worker for the next wait; chosen: more than wait for upstreams at once on most sites.
const KEPT_MAX: usize = 1024;

thread_local! {
    static KEPT: RefCell<Vec<Timer>> = const { RefCell::new(Vec::new()) };
}

/// A timer for one wait, from those the worker keeps.
#[derive(Default)]
struct Lent(Option<Timer>);

impl Lent {
    fn timer(&mut self, limit: Duration) -> &mut Timer {
        self.0.get_or_insert_with(|| {
            let mut timer = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
            timer.begin(limit);
            timer
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(timer) = self.0.take() else { return };
        // At the end of the thread there is no list any more.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(timer);
            }
        });
    }
}

/// What `work` gives, or `None` if it takes longer than `limit`: as [`Timer::within`], for callers without a
/// timer.
///
/// # Cancel safety
/// As `work`.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut lent) = (pin!(work), Lent::default());
    std::future::poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => lent.timer(limit).poll_wait(context, Poll::Pending),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn later_and_earlier_deadlines_both_hold() {
        let mut timer = Timer::default();
        let begun = Instant::now();
        let never = std::future::pending::<()>;
        assert!(timer.within(Duration::from_secs(90), pin!(never())).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 90);
        assert!(timer.within(Duration::from_secs(5), pin!(never())).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 95);
        assert_eq!(timer.within(Duration::from_secs(1), pin!(async { 7 })).await, Some(7));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_timer_that_was_used_before_keeps_the_next_limit() {
        for seconds in [90, 5, 200, 1] {
            let begun = Instant::now();
            let done = within(Duration::from_secs(seconds), std::future::pending::<()>()).await;
            assert_eq!((done, begun.elapsed().as_secs()), (None, seconds));
        }
        assert_eq!(within(Duration::from_secs(1), async { 7 }).await, Some(7));
        assert_eq!(KEPT.with_borrow(Vec::len), 1);
    }
}
