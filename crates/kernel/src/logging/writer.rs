//! The threads that write to log files: a disk, or a pipe, that does not respond stops no worker.
//!
//! What is written to a log is put into its queue, in whole lines. One thread writes what the queues have, in rounds, and
//! another one is there to go on with the round where a write takes too long. A queue that is full takes no more lines;
//! those are counted as lost. Without a thread - in the master process, which serves no clients - logs are written to
//! directly.

use super::file::LogFile;
use crate::base::counters::COUNTERS;
use crate::base::tasks;
use std::io;
use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that wait for one log, and for all. Chosen: a log has room for some seconds of ten thousand requests each.
const OF_ONE_MAX: usize = 4 << 20;
const OF_ALL_MAX: usize = 32 << 20;
/// A write that takes longer is not waited for; chosen: above what a busy machine needs.
const LATE: Duration = Duration::from_millis(100);
/// Lines that nothing waits for are gathered so long; chosen: a fraction of what any reader of a log notices.
const GATHERED: Duration = Duration::from_millis(1);
/// Threads: each but one may be held up by one log.
const THREADS_MAX: usize = 8;

/// Tests look for lines as soon as they have a response. To wait for each costs more than all else that is done for it.
const WAITS: bool = cfg!(debug_assertions);

static WRITER: OnceLock<Writer> = OnceLock::new();
/// Bytes in all queues.
static WAITING: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug, Default)]
struct Writer {
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Logs that have something to be written in this round.
    round: Vec<Arc<LogFile>>,
    /// And in the next one; whether a line of that is waited for.
    logs: Vec<Arc<LogFile>>,
    is_urgent: bool,
    /// When a thread began to wait for more of these.
    since: Option<Instant>,
    threads: usize,
    idle: usize,
    /// When a thread took the log that it is writing to, as the last one that did.
    taken: Option<Instant>,
}

/// What waits to be written to a log.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    lines: usize,
    /// Whether a thread has the log, or will.
    is_listed: bool,
    /// Bytes that were ever put here, and those that went, one way or the other.
    put: u64,
    gone: u64,
    /// Whether a line has been waited for in vain since the last one went.
    is_late: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use leaves it whole: a panic elsewhere cannot leave it half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has threads write to logs from here on.
///
/// # Errors
/// The system gives no thread: logs are written to directly.
pub fn start() -> io::Result<()> {
    if WRITER.get().is_none() {
        start_thread()?;
        locked(&WRITER.get_or_init(Writer::default).state).threads += 1;
    }
    Ok(())
}

fn start_thread() -> io::Result<()> {
    tasks::of_process("log writer", || WRITER.get_or_init(Writer::default).run())
}

/// Waits until all that was put is written, but no longer than `time`.
pub fn drain(time: Duration) {
    let begun = Instant::now();
    while WAITING.load(Ordering::Acquire) > 0 && begun.elapsed() < time {
        #[expect(clippy::disallowed_methods, reason = "the process is at its end")]
        std::thread::sleep(GATHERED);
    }
}

/// Puts lines into a log's queue, and waits for them, as long as that makes sense, if they are `urgent`. `false`: there is
/// no thread.
pub(super) fn put(log: &Arc<LogFile>, bytes: &[u8], lines: usize, is_urgent: bool) -> bool {
    let Some(writer) = WRITER.get() else { return false };
    let queue = log.queue();
    let mut waiting = locked(&queue.state);
    // An empty queue takes whatever comes at once.
    let is_full = !waiting.bytes.is_empty()
        && (waiting.bytes.len() + bytes.len() > OF_ONE_MAX
            || WAITING.load(Ordering::Relaxed) + bytes.len() > OF_ALL_MAX);
    if is_full {
        COUNTERS.log_lines_lost.fetch_add(lines as u64, Ordering::Relaxed);
    } else {
        WAITING.fetch_add(bytes.len(), Ordering::Relaxed);
        waiting.bytes.extend_from_slice(bytes);
        waiting.lines += lines;
        waiting.put += bytes.len() as u64;
    }
    let is_new = !std::mem::replace(&mut waiting.is_listed, true);
    let (place, is_late) = (waiting.put, waiting.is_late);
    drop(waiting);
    let is_waited_for = (is_urgent || WAITS) && !is_full && !is_late;
    writer.call(is_new.then(|| Arc::clone(log)), is_waited_for);
    if is_waited_for {
        queue.wait_for(place);
    }
    true
}

impl Queue {
    /// Waits until what was put up to `place` is gone, or it is late.
    fn wait_for(&self, place: u64) {
        let waiting = locked(&self.state);
        let is_there = |waiting: &mut Waiting| waiting.gone < place && !waiting.is_late;
        let waited = self.written.wait_timeout_while(waiting, LATE, is_there);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.is_late |= waiting.gone < place;
    }

    /// Writes what waits; `spare` is the room for what comes meanwhile. Whether there is any.
    fn write(&self, log: &LogFile, spare: &mut Vec<u8>) -> bool {
        let mut waiting = locked(&self.state);
        std::mem::swap(&mut waiting.bytes, spare);
        let lines = take(&mut waiting.lines);
        drop(waiting);
        log.write_directly(spare, lines);
        WAITING.fetch_sub(spare.len(), Ordering::Release);
        let mut waiting = locked(&self.state);
        waiting.gone += spare.len() as u64;
        spare.clear();
        (waiting.is_late, waiting.is_listed) = (false, !waiting.bytes.is_empty());
        self.written.notify_all();
        waiting.is_listed
    }
}

impl Writer {
    /// Has a thread look at a log that is not listed yet, at once if a line is waited for.
    fn call(&self, log: Option<Arc<LogFile>>, is_urgent: bool) {
        if log.is_none() && !is_urgent {
            return;
        }
        let mut state = locked(&self.state);
        let is_first = state.logs.is_empty();
        state.logs.extend(log);
        state.is_urgent |= is_urgent;
        drop(state);
        if is_first || is_urgent {
            self.called.notify_one();
        }
    }

    /// Writes what the queues have, without end.
    fn run(&self) {
        let mut spare = Vec::new();
        loop {
            let log = self.next();
            let has_more = log.queue().write(&log, &mut spare);
            locked(&self.state).taken = None;
            if has_more {
                self.call(Some(log), false);
            }
            // A queue that was very long leaves no more room than others need.
            spare.shrink_to(OF_ONE_MAX / 16);
        }
    }

    /// The next log of the round, or of the next round once there is one, while no other thread is writing that is not late.
    fn next(&self) -> Arc<LogFile> {
        let mut state = locked(&self.state);
        state.idle += 1;
        // A thread that watches does so until the round is over: it is woken once for each.
        let mut needs_watch = false;
        let log = loop {
            let has_work = !(state.logs.is_empty() && state.round.is_empty());
            let left = state.taken.and_then(|taken| LATE.checked_sub(taken.elapsed()));
            state = match (has_work, left) {
                (false, _) => self.called.wait(state).unwrap_or_else(PoisonError::into_inner),
                (true, Some(left)) => self.wait_for(state, left),
                (true, None) if state.round.is_empty() && !state.is_gathered() => {
                    self.wait_for(state, GATHERED)
                }
                (true, None) => {
                    if state.round.is_empty() {
                        let now = &mut *state;
                        std::mem::swap(&mut now.round, &mut now.logs);
                        (now.is_urgent, now.since) = (false, None);
                        needs_watch = true;
                    }
                    // It watched one that is late, and is itself to be watched from here on.
                    needs_watch |= state.taken.is_some();
                    if let Some(log) = state.round.pop() {
                        break log;
                    }
                    state
                }
            };
        };
        state.idle -= 1;
        state.taken = Some(Instant::now());
        let is_alone = state.idle == 0 && state.threads < THREADS_MAX;
        let has_work = !(state.logs.is_empty() && state.round.is_empty());
        state.threads += usize::from(is_alone);
        drop(state);
        if is_alone && start_thread().is_err() {
            locked(&self.state).threads -= 1;
        }
        if has_work && needs_watch {
            // Another one watches how long this takes.
            self.called.notify_one();
        }
        log
    }

    fn wait_for<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.called.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl State {
    /// Whether what is listed has waited for more long enough, or a line of that is waited for.
    fn is_gathered(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.is_urgent || since.elapsed() >= GATHERED
    }
}
