//! Turns of a worker's event loop.
//!
//! A turn is what runs between two looks at the sockets. Every request of a turn had arrived before
//! the turn began, so what one of them learned during it - the time, whether a file exists - is not
//! older than any of them; and what they all have to say to a log can be said at its end.

use crate::logging::access;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::time::SystemTime;

thread_local! {
    static TURN: Cell<u64> = const { Cell::new(0) };
    static NOW: Cell<(u64, SystemTime)> = const { Cell::new((u64::MAX, SystemTime::UNIX_EPOCH)) };
}

/// The number of the present turn of this worker.
pub fn number() -> u64 {
    TURN.get()
}

/// The time, read once a turn.
pub fn now() -> SystemTime {
    let (turn, now) = NOW.get();
    if turn == number() {
        return now;
    }
    let now = SystemTime::now();
    NOW.set((number(), now));
    now
}

/// Runs a worker's tasks, one poll of `tasks` a turn.
pub async fn run<T>(tasks: impl Future<Output = T>) -> T {
    let mut tasks = pin!(tasks);
    std::future::poll_fn(|context| {
        TURN.set(number() + 1);
        let poll = tasks.as_mut().poll(context);
        access::flush();
        poll
    })
    .await
}
