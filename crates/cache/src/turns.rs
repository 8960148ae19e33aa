//! Who works on the disk of a zone: few of each worker's threads at a time, so that a disk which hangs, as that of a
//! network may, leaves the others to other work; and nothing waits for such a disk for long.
//!
//! Work that gets on may take its time: each call to the system is a beat, and a disk hangs where none comes.

use crate::Zone;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Pieces of work of one worker on the disk of a zone; chosen: half of the threads of a worker that may block.
const AT_ONCE: usize = 4;
/// How long one call to the system takes on a disk that counts as one that hangs; chosen: far beyond a busy one's.
const HUNG_AFTER: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };

/// When a piece of work began its last call to the system, in milliseconds since the process's first one.
#[derive(Debug)]
struct Beat(AtomicU64);

thread_local! {
    /// That of the work which this thread does.
    static OWN: RefCell<Option<Arc<Beat>>> = const { RefCell::new(None) };
    static WORKER: ThreadId = thread::current().id();
}

#[expect(clippy::disallowed_methods, reason = "a disk is waited for by the clock")]
fn millis() -> u64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGUN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Beat {
    fn now() -> Self {
        Self(AtomicU64::new(millis()))
    }

    fn is_missing(&self) -> bool {
        let since = millis().saturating_sub(self.0.load(Ordering::Relaxed));
        Duration::from_millis(since) >= HUNG_AFTER
    }
}

/// The thread is about to call the system for the disk.
pub(crate) fn beat() {
    OWN.with_borrow(|own| {
        if let Some(own) = own {
            own.0.store(millis(), Ordering::Relaxed);
        }
    });
}

/// The work on the disk of one zone.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Whose it is.
    running: Mutex<Vec<(ThreadId, Arc<Beat>)>>,
    ended: Notify,
}

/// A piece of work, until it has ended.
struct Turn {
    zone: Arc<Zone>,
    beat: Arc<Beat>,
}

enum Entered {
    Yes(Turn),
    /// The worker has as many as it may.
    Full,
    Hung,
}

impl Turns {
    fn running(&self) -> MutexGuard<'_, Vec<(ThreadId, Arc<Beat>)>> {
        // Each use leaves it whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a piece of work does not get on.
    pub(crate) fn is_hung(&self) -> bool {
        self.running().iter().any(|(_, beat)| beat.is_missing())
    }

    fn enter(zone: &Arc<Zone>) -> Entered {
        let turns = zone.turns();
        if turns.is_hung() {
            return Entered::Hung;
        }
        let (worker, beat) = (WORKER.with(|id| *id), Arc::new(Beat::now()));
        let mut running = turns.running();
        if running.iter().filter(|(other, _)| *other == worker).count() >= AT_ONCE {
            return Entered::Full;
        }
        running.push((worker, Arc::clone(&beat)));
        Entered::Yes(Turn { zone: Arc::clone(zone), beat })
    }
}

impl Turn {
    fn run<T>(&self, work: impl FnOnce(&Arc<Zone>) -> T) -> T {
        OWN.set(Some(Arc::clone(&self.beat)));
        beat();
        work(&self.zone)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        OWN.set(None);
        let turns = self.zone.turns();
        turns.running().retain(|(_, beat)| !Arc::ptr_eq(beat, &self.beat));
        turns.ended.notify_waiters();
    }
}

/// A turn, once the worker has one more; `None`: the disk hangs.
async fn turn(zone: &Arc<Zone>) -> Option<Turn> {
    loop {
        match Turns::enter(zone) {
            Entered::Yes(turn) => return Some(turn),
            Entered::Hung => return None,
            Entered::Full => {}
        }
        let mut ended = std::pin::pin!(zone.turns().ended.notified());
        ended.as_mut().enable();
        // One may have ended just before.
        match Turns::enter(zone) {
            Entered::Yes(turn) => return Some(turn),
            Entered::Hung => return None,
            // Whichever comes first: it may be hung by then.
            Entered::Full => _ = timeout(HUNG_AFTER, ended).await,
        }
    }
}

/// Does work on the disk of a zone, on a thread that may block. `None`: the disk hangs, or the work panicked, which is logged;
/// it may come to its end later.
///
/// # Cancel safety
/// Work that has begun goes on.
pub async fn on_disk<T: Send + 'static>(
    zone: &Arc<Zone>,
    work: impl FnOnce(&Arc<Zone>) -> T + Send + 'static,
) -> Option<T> {
    let turn = turn(zone).await?;
    let beat = Arc::clone(&turn.beat);
    let mut done = tokio::task::spawn_blocking(move || turn.run(work));
    loop {
        match timeout(HUNG_AFTER, &mut done).await {
            Ok(done) => return done.ok(),
            Err(_) if beat.is_missing() => return None,
            Err(_) => {}
        }
    }
}

/// The same for work that no client waits for: however long it takes.
///
/// # Cancel safety
/// As [`on_disk`].
pub async fn on_disk_behind<T: Send + 'static>(
    zone: &Arc<Zone>,
    work: impl FnOnce(&Arc<Zone>) -> T + Send + 'static,
) -> Option<T> {
    let turn = turn(zone).await?;
    tokio::task::spawn_blocking(move || turn.run(work)).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskOptions, Levels, Pace, ZoneOptions};
    use std::sync::mpsc;

    fn zone() -> Arc<Zone> {
        let path = std::env::temp_dir().join(format!(
            "yorozu-turns.{}.{:?}",
            std::process::id(),
            thread::current().id()
        ));
        let disk = DiskOptions {
            path,
            levels: Levels::parse("1").unwrap(),
            max_size: None,
            min_free: None,
            files_max: 10,
            inactive: 600,
            loader: Pace::default(),
            manager: Pace::default(),
        };
        Arc::new(Zone::open(ZoneOptions { memory_bytes: 1 << 20, disk }).unwrap())
    }

    #[test]
    fn a_disk_that_hangs_is_left_alone_until_it_answers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let zone = zone();
            assert_eq!(on_disk(&zone, |_| 1).await, Some(1));
            // One more than have a turn: that waits for one until the disk counts as hung.
            let (senders, stuck): (Vec<_>, Vec<_>) = (0..=AT_ONCE)
                .map(|_| {
                    let (sender, stop) = mpsc::channel::<()>();
                    let zone = Arc::clone(&zone);
                    let work = async move { on_disk(&zone, move |_| stop.recv().is_ok()).await };
                    (sender, tokio::spawn(work))
                })
                .unzip();
            for stuck in stuck {
                assert_eq!(stuck.await.unwrap(), None);
            }
            assert_eq!(zone.turns().running().len(), AT_ONCE);
            assert!(zone.is_hung());
            assert_eq!(on_disk(&zone, |_| unreachable!("it is left alone")).await, None::<()>);
            drop(senders);
            while zone.is_hung() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            while on_disk(&zone, |_| ()).await.is_none() {}
            assert!(zone.turns().running().is_empty());
            std::fs::remove_dir_all(&zone.options().disk.path).unwrap();
        });
    }

    #[test]
    fn work_that_gets_on_may_take_its_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let zone = zone();
            let slow = |_: &Arc<Zone>| {
                let begun = millis();
                while Duration::from_millis(millis() - begun) < 3 * HUNG_AFTER {
                    beat();
                    thread::yield_now();
                }
            };
            // A machine may stand still meanwhile, for which the disk is taken to hang.
            let mut is_done = false;
            for _ in 0..20 {
                is_done = is_done || on_disk(&zone, slow).await.is_some();
            }
            assert!(is_done);
        });
    }

    #[test]
    fn work_that_panics_gives_its_turn_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let zone = zone();
            for _ in 0..2 * AT_ONCE {
                assert_eq!(on_disk(&zone, |_| -> () { panic!("of a test") }).await, None);
            }
            while on_disk(&zone, |_| ()).await.is_none() {}
        });
    }
}
