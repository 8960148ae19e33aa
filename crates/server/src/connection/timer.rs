//! One timer per connection that is moved only when it fires too early.
//!
//! A keep-alive connection sets a new deadline per request; registering each would cost more than
//! the request's parsing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Bounds the waits of one connection, one at a time.
pub struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// Whom it wakes.
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
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.limit);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

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
}
