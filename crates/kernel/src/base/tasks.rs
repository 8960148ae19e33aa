//! Tasks beside connections: whose they are, and what happens to them after a panic.
//!
//! A worker's own tasks live as long as the worker ([`of_worker`]). What keeps something going for a
//! configuration - names resolved, connections ready, certificates stapled - hangs from the worker's hold on it
//! ([`Generation`]) and ends when that is replaced. Both are begun again after a panic. What belongs to one
//! request ([`of_request`]) ends with the panic: what it held is given back as it is dropped.

use crate::base::limits;
use arc_swap::ArcSwapOption;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::Instant;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};

/// It panicked; the log has a line of that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Panicked;

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it panicked")
    }
}

/// Runs `work` to its end, or to a panic.
///
/// # Errors
/// It panicked: what that interrupted is dropped without being looked at.
pub async fn guarded<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

/// As [`guarded`], of what waits for nothing.
///
/// # Errors
/// It panicked.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

type Log = Box<dyn Fn(&str) + Send + Sync>;

/// Where panics are reported, whichever thread they happen on.
static LOG: ArcSwapOption<Log> = ArcSwapOption::const_empty();

fn tell(text: &str) {
    if let Some(log) = &*LOG.load() {
        log(text);
    }
}

/// From here on every panic is reported to `log`, with its place. What it ended is reported by the code that
/// started that.
pub fn tell_panics(log: impl Fn(&str) + Send + Sync + 'static) {
    static HOOK: Once = Once::new();
    LOG.store(Some(Arc::new(Box::new(log))));
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("unnamed");
            tell(&format!("thread \"{name}\" panicked{}; this is a bug", described(panic)));
            usual(panic);
        }));
    });
}

/// Where, and what it says.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    message.map_or_else(|| place.clone(), |message| format!("{place}: {message}"))
}

fn tell_restart(what: &str) {
    tell(&format!("{what} ended by a panic, starting it again"));
}

/// How soon one that panicked is begun again: at once, unless it did so just before.
#[derive(Debug, Default)]
struct Restarts(Option<Instant>);

impl Restarts {
    /// Notes a panic; returns whether a pause is due.
    fn needs_pause(&mut self) -> bool {
        let now = Instant::now();
        let last = self.0.replace(now);
        last.is_some_and(|last| now.duration_since(last) < limits::RESTART_INTERVAL)
    }
}

/// Runs what `make` makes to its end, and again after each panic.
async fn supervised<F: Future<Output = ()>>(what: &str, mut make: impl FnMut() -> F) {
    let mut restarts = Restarts::default();
    while guarded(async { make().await }).await.is_err() {
        tell_restart(what);
        if restarts.needs_pause() {
            tokio::time::sleep(limits::RESTART_INTERVAL).await;
        }
    }
}

/// Starts a task of the worker's own, that `make` begins and begins again after a panic.
pub fn of_worker<F: Future<Output = ()> + 'static>(
    what: &'static str,
    make: impl FnMut() -> F + 'static,
) -> JoinHandle<()> {
    start(supervised(what, make))
}

/// Starts a task for one request, that ends with a panic: what it held is given back as it is dropped.
pub fn of_request<F: Future + 'static>(work: F) -> JoinHandle<F::Output>
where
    F::Output: 'static,
{
    start(work)
}

#[expect(clippy::disallowed_methods, reason = "the one place where tasks are started")]
fn start<F: Future + 'static>(work: F) -> JoinHandle<F::Output>
where
    F::Output: 'static,
{
    tokio::task::spawn_local(work)
}

/// Starts a thread of the process's own, that runs `work` again after a panic.
///
/// # Errors
/// The system gives no thread.
pub fn of_process(what: &'static str, work: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(what.to_owned());
    let supervised = move || {
        let mut restarts = Restarts::default();
        while guard(&work).is_err() {
            tell_restart(what);
            if restarts.needs_pause() {
                #[expect(clippy::disallowed_methods, reason = "a thread that serves no clients")]
                std::thread::sleep(limits::RESTART_INTERVAL);
            }
        }
    };
    thread.spawn(supervised).map(drop)
}

/// The tasks of one worker for one configuration; they end when that is replaced.
#[derive(Debug, Default)]
pub struct Generation {
    tasks: RefCell<Vec<AbortHandle>>,
    ended: Rc<(Cell<bool>, Notify)>,
}

impl Generation {
    /// Starts one, that `make` begins and begins again after a panic.
    pub fn keep<F: Future<Output = ()> + 'static>(
        &self,
        what: &'static str,
        make: impl FnMut() -> F + 'static,
    ) {
        let task = start(supervised(what, make));
        self.tasks.borrow_mut().push(task.abort_handle());
    }

    /// Ends them all.
    pub fn end(&self) {
        self.tasks.take().iter().for_each(AbortHandle::abort);
        self.ended.0.set(true);
        self.ended.1.notify_waiters();
    }

    /// Is ready when it has ended, for what would go on as long as its reader likes.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        let ended = Rc::clone(&self.ended);
        async move {
            // No other task of this worker can end it between the two.
            if !ended.0.get() {
                ended.1.notified().await;
            }
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{LocalSet, yield_now};

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_is_told_from_an_end() {
        assert_eq!(guarded(async { 7 }).await, Ok(7));
        assert_eq!(guarded(async { panic!("on purpose") }).await, Err::<(), _>(Panicked));
        assert_eq!(guard(|| 7), Ok(7));
        assert_eq!(guard(|| panic!("on purpose")), Err::<(), _>(Panicked));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_task_is_begun_again_after_each_panic() {
        let begun = Rc::new(Cell::new(0));
        let count = Rc::clone(&begun);
        let work = move || {
            count.set(count.get() + 1);
            let number = count.get();
            // As well where it is made as where it runs.
            assert_ne!(number, 2, "on purpose");
            async move { assert!(number > 3, "on purpose") }
        };
        LocalSet::new().run_until(async { of_worker("a task", work).await }).await.unwrap();
        assert_eq!(begun.get(), 4);
    }

    #[test]
    fn a_thread_is_begun_again_after_each_panic() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let count = std::sync::atomic::AtomicU32::new(0);
        let work = move || {
            let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            sender.send(number).unwrap();
            assert_eq!(number, 2, "on purpose");
        };
        of_process("a thread", work).unwrap();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn tasks_end_with_their_generation() {
        for is_replaced in [true, false] {
            let held = Rc::new(());
            let of_task = Rc::clone(&held);
            let work = async {
                let generation = Generation::default();
                generation.keep("a task", move || {
                    let held = Rc::clone(&of_task);
                    async move {
                        std::future::pending::<()>().await;
                        drop(held);
                    }
                });
                yield_now().await;
                assert!(Rc::strong_count(&held) > 1);
                if is_replaced {
                    generation.end();
                } else {
                    drop(generation);
                }
                while Rc::strong_count(&held) > 1 {
                    yield_now().await;
                }
            };
            LocalSet::new().run_until(work).await;
        }
    }
}
