//! The alarm of one connection: it is set with nearly every packet, and hardly ever goes off.

use quinn::AsyncTimer;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep};

/// Goes off at a moment that may be put off for nothing: the event loop's timer stays where it was, and is set for the rest
/// when it gets there.
#[derive(Debug)]
pub(super) struct Alarm {
    moment: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    pub(super) fn new(moment: Instant) -> Self {
        Self { moment, sleep: Box::pin(tokio::time::sleep_until(moment)) }
    }
}

impl AsyncTimer for Alarm {
    fn reset(mut self: Pin<&mut Self>, moment: std::time::Instant) {
        self.moment = moment.into();
        if self.moment < self.sleep.deadline() {
            let moment = self.moment;
            self.sleep.as_mut().reset(moment);
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Future::poll(self.sleep.as_mut(), context));
            let moment = self.moment;
            if self.sleep.deadline() >= moment {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_goes_off_at_the_moment_it_was_set_for_last() {
        let begun = Instant::now();
        let mut alarm = Alarm::new(begun + 5 * SECOND);
        for (set, wanted) in [(&[9][..], 9), (&[20, 12], 12), (&[40, 15, 30], 30), (&[], 30)] {
            for seconds in set {
                let moment = begun + *seconds * SECOND;
                Pin::new(&mut alarm).reset(moment.into_std());
                let is_early =
                    poll_fn(|context| Poll::Ready(Pin::new(&mut alarm).poll(context).is_pending()));
                assert!(is_early.await);
            }
            poll_fn(|context| Pin::new(&mut alarm).poll(context)).await;
            assert_eq!(begun.elapsed().as_secs(), wanted);
        }
    }
}
