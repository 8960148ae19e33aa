//! Turns of a worker's event loop.
//!
//! A turn is what runs between two looks at the sockets. Every request of a turn had arrived before
//! the turn began, so what one of them learned during it - the time, whether a file exists - is not
//! older than any of them; and what those of one round of it have to say to a log is said with one call.

use crate::base::beat::Beat;
use crate::base::{faults, limits};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The turn of a thread that has no event loop: its time is always the present one.
pub(crate) const NONE: u64 = 0;

thread_local! {
    static TURN: Cell<u64> = const { Cell::new(NONE) };
    static MILLIS: Cell<(u64, i64)> = const { Cell::new((u64::MAX, 0)) };
    /// Of the present turn, as far as it was asked for: the time, and how long ago what was asked for last began.
    static INSTANT: Cell<Option<Instant>> = const { Cell::new(None) };
    static SINCE: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    static BEAT: RefCell<Option<Arc<Beat>>> = const { RefCell::new(None) };
    static KEPT: RefCell<Vec<Rc<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// The number of the present turn of this worker.
#[inline]
pub fn number() -> u64 {
    TURN.get()
}

/// Milliseconds since 1970, read once a turn.
#[inline]
pub fn unix_millis() -> i64 {
    let (turn, millis) = MILLIS.get();
    if turn == number() && turn != NONE {
        return millis;
    }
    let millis = unix_millis_of(SystemTime::now());
    MILLIS.set((number(), millis));
    millis
}

/// Seconds since 1970, as [`unix_millis`] has them.
pub fn unix_seconds() -> i64 {
    unix_millis() / 1000
}

/// As [`unix_millis`], of the monotonic clock. As nginx, whose times are those of its event loop's rounds.
#[inline]
pub fn instant() -> Instant {
    INSTANT.get().unwrap_or_else(read_clock)
}

fn read_clock() -> Instant {
    let now = Instant::now();
    if number() != NONE {
        INSTANT.set(Some(now));
    }
    now
}

/// How long ago `begun`, a time of [`instant`], was.
pub fn since(begun: Instant) -> Duration {
    match SINCE.get() {
        // A request asks this of the same time for each of its figures, and what is remembered is of this turn.
        Some((time, since)) if time == begun => since,
        _ => {
            let since = instant().saturating_duration_since(begun);
            if number() != NONE {
                SINCE.set(Some((begun, since)));
            }
            since
        }
    }
}

/// A turn begins: what was known of the one before is over.
fn begin() {
    TURN.set(number() + 1);
    INSTANT.set(None);
    SINCE.set(None);
}

/// Has the turns of this thread noted there.
pub fn note_in(beat: Arc<Beat>) {
    beat.begin();
    BEAT.set(Some(beat));
}

/// Notes that this thread works on a connection from here on.
#[inline]
pub fn works_on(connection: u64) {
    BEAT.with_borrow(|beat| beat.iter().for_each(|beat| beat.works_on(connection)));
}

/// Keeps a connection that ended open until the round's lines are in the logs. As nginx: a client that has read to the
/// end finds its request there.
pub fn keep_for_round(connection: Rc<dyn Any>) {
    // The thread may be at its end, and what it had with it.
    let _ = KEPT.try_with(|kept| kept.borrow_mut().push(connection));
}

/// Milliseconds since 1970; 0 for a clock before it.
pub fn unix_millis_of(time: SystemTime) -> i64 {
    let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// Seconds since 1970; 0 for a clock before it.
pub fn unix_seconds_of(time: SystemTime) -> i64 {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// Whether a task is still ready after the last round.
struct Ready {
    is_any: AtomicBool,
    /// Wakes the task that polls the rounds.
    outer: Mutex<Waker>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_any.store(true, Ordering::Release);
        self.outer.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}

/// Runs a worker's tasks, some polls of `tasks` a turn: one runs no more than 61 of those that are ready.
/// `round_ended` is called after each.
pub async fn run<T>(tasks: impl Future<Output = T>, mut round_ended: impl FnMut()) -> T {
    let mut tasks = pin!(tasks);
    let ready = Arc::new(Ready {
        is_any: AtomicBool::new(false),
        outer: Mutex::new(Waker::noop().clone()),
    });
    let waker = Waker::from(Arc::clone(&ready));
    // The same as in `ready`, of this thread alone.
    let mut known = Waker::noop().clone();
    std::future::poll_fn(|context| {
        begin();
        BEAT.with_borrow(|beat| beat.iter().for_each(|beat| beat.turn(instant())));
        if !known.will_wake(context.waker()) {
            known.clone_from(context.waker());
            ready.outer.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&known);
        }
        let mut poll = Poll::Pending;
        for _ in 0..limits::ROUNDS_OF_TASKS {
            ready.is_any.store(false, Ordering::Release);
            poll = tasks.as_mut().poll(&mut Context::from_waker(&waker));
            faults::point("turn");
            round_ended();
            KEPT.with_borrow_mut(Vec::clear);
            if poll.is_ready() || !ready.is_any.load(Ordering::Acquire) {
                break;
            }
        }
        BEAT.with_borrow(|beat| beat.iter().for_each(|beat| beat.rest()));
        poll
    })
    .await
}
