//! Answers that are whole in memory, and requests to upstreams, written together once all that has arrived is
//! worked on.
//!
//! The code that makes an answer and the kernel's that sends it are each larger than a core's first caches. Taken
//! in turn for each request they are fetched again each time; so all that is ready is made first, and
//! then all of it is sent (docs/decisions/0013).

use crate::base::scratch::Scratch;
use crate::base::{faults, limits, tasks, turn};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use yorozu_upstream::Connection;

/// Where bytes go; past TLS.
pub trait TryWrite {
    /// Writes from both in order, as much as goes at once; how much that was.
    ///
    /// # Errors
    /// As the system reports it; `WouldBlock` where nothing goes.
    fn try_write(&self, head: &[u8], body: &[u8]) -> io::Result<usize>;
}

impl TryWrite for Connection {
    fn try_write(&self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        debug_assert!(head.is_empty(), "a request to an upstream is one piece");
        Self::try_write(self, body)
    }
}

/// Bytes that wait to be sent: an answer, or a request to an upstream.
struct Waiting {
    to: Rc<dyn TryWrite>,
    head: Scratch,
    body: Bytes,
    sending: Rc<Sending>,
}

impl Waiting {
    /// Writes it, and wakes the task that waits for that.
    fn write(mut self) {
        faults::point("batch");
        let count = self.to.try_write(&self.head, &self.body);
        let (head, body) = (std::mem::take(&mut self.head), std::mem::take(&mut self.body));
        self.sending.done.replace(Some(Written { head, body, count }));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Lost by a panic: its client gets nothing, and that is known.
        let lost = || Written {
            head: std::mem::take(&mut self.head),
            body: std::mem::take(&mut self.body),
            count: Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let is_whole = self.sending.done.borrow_mut().get_or_insert_with(lost).is_whole();
        if is_whole && self.sending.is_quiet.get() {
            return;
        }
        if let Some(waker) = self.sending.waker.take() {
            waker.wake();
        }
    }
}

/// What came of a write: its bytes, and how many of them the socket took at once.
pub struct Written {
    /// To be used again.
    pub head: Scratch,
    /// As it was given.
    pub body: Bytes,
    /// Of both, in their order.
    pub count: io::Result<usize>,
}

impl Written {
    fn is_whole(&self) -> bool {
        self.count.as_ref().is_ok_and(|count| *count == self.head.len() + self.body.len())
    }
}

/// The outcome of a write, and who waits for it.
#[derive(Default)]
struct Sending {
    done: RefCell<Option<Written>>,
    waker: RefCell<Option<Waker>>,
    /// Whether its task has to know only of what was not sent.
    is_quiet: Cell<bool>,
}

/// A write that waits for others.
pub struct Ticket(Rc<Sending>);

impl Ticket {
    /// What came of it.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Written> {
        match self.0.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                self.0.is_quiet.set(false);
                self.0.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// Its task, which was just polled, need not be woken because all is sent: something else wakes it.
    pub fn be_quiet(&self) {
        self.0.is_quiet.set(true);
    }
}

#[derive(Default)]
struct Batch {
    waiting: Vec<Waiting>,
    sender: Option<Waker>,
    /// The turn that was written in last, and how often.
    turn: u64,
    count: usize,
    /// Whether it pays: it did in the turn before.
    is_on: bool,
}

impl Batch {
    /// Counts a write; returns whether it shall wait for others.
    fn waits(&mut self) -> bool {
        if self.turn != turn::number() {
            self.is_on = self.count >= limits::BATCH_MIN;
            self.turn = turn::number();
            self.count = 0;
        }
        self.count += 1;
        self.is_on
    }
}

thread_local! {
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Writes an answer with those of other connections.
///
/// # Cancel safety
/// The answer may be written all the same.
pub async fn write(to: Rc<dyn TryWrite>, head: Scratch, body: Bytes) -> Written {
    match begin(to, head, body) {
        Ok(written) => written,
        Err(ticket) => std::future::poll_fn(|context| ticket.poll(context)).await,
    }
}

/// Writes a request to an upstream likewise.
///
/// # Errors
/// It waits for others.
pub fn write_upstream(connection: &Rc<Connection>, request: Bytes) -> Result<Written, Ticket> {
    begin(Rc::clone(connection) as Rc<dyn TryWrite>, Scratch::default(), request)
}

fn begin(to: Rc<dyn TryWrite>, head: Scratch, body: Bytes) -> Result<Written, Ticket> {
    if !BATCH.with_borrow_mut(Batch::waits) {
        let count = to.try_write(&head, &body);
        return Ok(Written { head, body, count });
    }
    let sending = Rc::new(Sending::default());
    let waiting = Waiting { to, head, body, sending: Rc::clone(&sending) };
    BATCH.with_borrow_mut(|batch| {
        batch.waiting.push(waiting);
        if let (1, Some(sender)) = (batch.waiting.len(), &batch.sender) {
            // Behind every task that is ready now.
            sender.wake_by_ref();
        }
    });
    Err(Ticket(sending))
}

/// The worker's task that writes what waits.
pub async fn run() {
    let mut work: Vec<Waiting> = Vec::new();
    std::future::poll_fn(|context| {
        BATCH.with_borrow_mut(|batch| {
            std::mem::swap(&mut batch.waiting, &mut work);
            batch.sender = Some(context.waker().clone());
        });
        for waiting in work.drain(..) {
            // A panic is in the log, and its writer knows of it: the others are written all the same.
            let _ = tasks::guard(|| waiting.write());
        }
        Poll::<()>::Pending
    })
    .await;
}
