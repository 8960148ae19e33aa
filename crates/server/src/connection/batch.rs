//! Answers that are whole in memory, written together once every request that has arrived is worked on.
//!
//! The code that makes an answer and the kernel's that sends it are each larger than a core's first caches. Taken
//! in turn for each request they are fetched anew each time; so all that is ready is made first, and
//! then all of it is sent (docs/decisions/0013).

use super::transport::Transport;
use bytes::Bytes;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// An answer that waits to be sent.
struct Waiting {
    io: Rc<Transport>,
    head: Vec<u8>,
    body: Bytes,
    sending: Rc<Sending>,
}

/// What became of it: the head's buffer to use again, and how much was sent.
#[derive(Default)]
struct Sending {
    done: RefCell<Option<(Vec<u8>, io::Result<usize>)>>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Batch {
    waiting: Vec<Waiting>,
    sender: Option<Waker>,
}

thread_local! {
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Writes `head` and `body` to the socket of `io`, past TLS, with those of other connections; gives the head's buffer back, and how much was
/// written of both: as much as the socket took at once.
///
/// # Cancel safety
/// The answer may be written all the same.
pub(super) async fn write(
    io: &Rc<Transport>,
    head: Vec<u8>,
    body: &Bytes,
) -> (Vec<u8>, io::Result<usize>) {
    let sending = Rc::new(Sending::default());
    let waiting =
        Waiting { io: Rc::clone(io), head, body: body.clone(), sending: Rc::clone(&sending) };
    BATCH.with_borrow_mut(|batch| {
        batch.waiting.push(waiting);
        if let (1, Some(sender)) = (batch.waiting.len(), &batch.sender) {
            // Behind every task that is ready now.
            sender.wake_by_ref();
        }
    });
    std::future::poll_fn(|context| match sending.done.take() {
        Some(done) => Poll::Ready(done),
        None => {
            sending.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        }
    })
    .await
}

/// The worker's task that writes what waits.
pub async fn run() {
    let mut work: Vec<Waiting> = Vec::new();
    std::future::poll_fn(|context| {
        BATCH.with_borrow_mut(|batch| {
            std::mem::swap(&mut batch.waiting, &mut work);
            batch.sender = Some(context.waker().clone());
        });
        for Waiting { io, head, body, sending } in work.drain(..) {
            let written = io.socket().try_write(&[IoSlice::new(&head), IoSlice::new(&body)]);
            sending.done.replace(Some((head, written)));
            if let Some(waker) = sending.waker.take() {
                waker.wake();
            }
        }
        Poll::<()>::Pending
    })
    .await;
}
