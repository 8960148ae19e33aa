//! Housekeeping of the cache zones, on four threads that live as long as the process: as nginx's cache loader and cache
//! manager, one reads folders after a start, and one keeps the zones within their bounds; one looks for what others
//! delete; one, which touches no disk, divides the memory that zones share.
//!
//! A reload tells them which zones there are from then on. What they are doing in one that stays goes on.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};
use yorozu_cache::Zone;
use yorozu_gateway::cache::memory::Memory;
use yorozu_kernel::base::{faults, limits, tasks};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_kernel::logging::error_log::ErrorLogs;

/// The zones of the present configuration.
#[derive(Default)]
struct Watched {
    /// Gone with their configuration.
    zones: Vec<(String, Weak<Zone>)>,
    log: ErrorLogs,
    /// What their memory tiers may take together.
    memory: Memory,
    /// How often they were replaced.
    generation: u64,
    /// Whether another process is known to use their folders, too.
    may_share: bool,
}

#[derive(Default)]
struct Shared {
    watched: Mutex<Watched>,
    replaced: Condvar,
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        // Replaced as a whole: a panic elsewhere cannot leave it half changed.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn zones(&self) -> (u64, Vec<(String, Weak<Zone>)>) {
        let watched = self.watched();
        (watched.generation, watched.zones.clone())
    }

    /// Whether it is still a zone of the configuration.
    fn watches(&self, zone: &Arc<Zone>) -> bool {
        let zone = Arc::downgrade(zone);
        self.watched().zones.iter().any(|(_, other)| other.ptr_eq(&zone))
    }

    fn log(&self, level: Level, text: &str) {
        let log = self.watched().log.clone();
        log.process(level, text);
    }

    /// Waits for the next round, or for other zones than those of the `generation`.
    fn wait(&self, generation: u64, pause: Duration) {
        let is_same = |watched: &mut Watched| watched.generation == generation;
        // Either is as good a reason to look.
        let _ = self.replaced.wait_timeout_while(self.watched(), pause, is_same);
    }

    /// Runs `work` on each zone; what panics in one keeps the others from nothing.
    fn each(&self, zones: &[(String, Weak<Zone>)], work: impl Fn(&str, &Arc<Zone>)) {
        for (name, zone) in zones {
            let Some(zone) = zone.upgrade() else { continue };
            if tasks::guard(|| work(name, &zone)).is_err() {
                let text = format!("housekeeping of the cache zone \"{name}\" ended by a panic");
                self.log(Level::Alert, &text);
            }
        }
    }
}

fn now() -> i64 {
    yorozu_kernel::base::turn::unix_seconds_of(SystemTime::now())
}

/// The threads, as the main thread holds them.
#[derive(Default)]
pub(super) struct CacheManager {
    shared: Arc<Shared>,
    has_loader: bool,
    has_manager: bool,
    has_watcher: bool,
    has_looker: bool,
}

impl CacheManager {
    /// Takes over the zones of a configuration; `may_share`: the server before this one still uses their folders.
    pub(super) fn watch(&mut self, config: &Config, may_share: bool) {
        let zones = config.zones.iter().filter(|(_, zone)| zone.fault().is_none());
        let zones: Vec<_> =
            zones.map(|(name, zone)| (name.clone(), Arc::downgrade(zone))).collect();
        let is_needed = !zones.is_empty();
        let mut watched = self.shared.watched();
        let generation = watched.generation + 1;
        let memory = config.shared.of::<Memory>().clone();
        *watched = Watched { zones, log: config.error_log.clone(), memory, generation, may_share };
        drop(watched);
        self.shared.replaced.notify_all();
        if is_needed {
            start(&self.shared, &mut self.has_loader, "cache loader", load);
            start(&self.shared, &mut self.has_manager, "cache manager", manage);
            start(&self.shared, &mut self.has_watcher, "cache watcher", watch);
            start(&self.shared, &mut self.has_looker, "cache files watcher", look);
        }
    }
}

/// Starts a thread, unless it runs already.
fn start(shared: &Arc<Shared>, is_there: &mut bool, what: &'static str, work: fn(&Shared)) {
    if *is_there {
        return;
    }
    let of_thread = Arc::clone(shared);
    let started = tasks::of_process(what, move || work(&of_thread));
    match started {
        Ok(()) => *is_there = true,
        // Without it the zones still work; they are only not looked after.
        Err(problem) => {
            let text = format!("cannot start the {what} ({})", error::os_error(&problem));
            shared.log(Level::Alert, &text);
        }
    }
}

/// Reads the folders of zones that are new, and again those that could not be read.
fn load(shared: &Shared) {
    let mut last = 0;
    loop {
        faults::point("cache loader");
        let (generation, zones) = shared.zones();
        shared.each(&zones, |name, zone| {
            if generation != last && !zone.is_alone() && !shared.watched().may_share {
                let folder = zone.options().disk.path.display();
                let text = format!(
                    "cache folder \"{folder}\" of zone \"{name}\" is used by another process: give each its own"
                );
                shared.log(Level::Warn, &text);
            }
            faults::point("scan");
            zone.scan(now(), &|| shared.watches(zone));
        });
        last = generation;
        shared.wait(generation, limits::CACHE_MANAGER_PAUSE);
    }
}

/// Keeps the zones within their bounds.
fn manage(shared: &Shared) {
    let mut clock = Clock::new();
    loop {
        faults::point("cache manager");
        if let Some(text) = clock.check() {
            shared.log(Level::Warn, &text);
        }
        let (generation, zones) = shared.zones();
        let (begun, due) = (Instant::now(), Cell::new(i64::MAX));
        shared.each(&zones, |_, zone| {
            faults::point("evict");
            let kept = zone.evict(now(), &|| shared.watches(zone));
            due.set(kept.due.map_or(due.get(), |of_zone| of_zone.min(due.get())));
            for problem in kept.problems {
                shared.log(Level::Crit, &problem.to_string());
            }
        });
        shared.wait(generation, pause(due.get().saturating_sub(now()), begun.elapsed()));
    }
}

/// How long until the next round, where a page is due in `due` seconds and this round `took` some time. As nginx: until
/// that page is due, and no longer than usual. Each round looks at every page: twentyfold of what that takes is rest.
fn pause(due: i64, took: Duration) -> Duration {
    let due = Duration::from_secs(u64::try_from(due).unwrap_or_default());
    let least = took.saturating_mul(20).max(Duration::from_secs(1));
    due.max(least).min(limits::CACHE_MANAGER_PAUSE)
}

/// Drops the pages whose files were deleted by others.
fn look(shared: &Shared) {
    let said = Said::default();
    loop {
        faults::point("cache watcher");
        let (generation, zones) = shared.zones();
        shared.each(&zones, |name, zone| {
            said.tell(shared, name, zone.drop_deleted().err().map(|problem| problem.to_string()));
        });
        shared.wait(generation, limits::CACHE_WATCHER_PAUSE);
    }
}

/// Divides the memory that zones share, and says which disk hangs: waits for none.
fn watch(shared: &Shared) {
    let said = Said::default();
    loop {
        let (generation, zones) = shared.zones();
        let there = |(name, zone): &(String, Weak<Zone>)| Some((name.clone(), zone.upgrade()?));
        let memory = shared.watched().memory.clone();
        memory.divide(&zones.iter().filter_map(there).collect::<Vec<_>>());
        shared.each(&zones, |name, zone| {
            let hung = || {
                let folder = zone.options().disk.path.display();
                format!("cache folder \"{folder}\" does not respond: its disk is left alone, pages are kept in memory only")
            };
            said.tell(shared, name, zone.is_hung().then(hung));
        });
        shared.wait(generation, limits::CACHE_WATCHER_PAUSE);
    }
}

/// What was said last of each zone.
#[derive(Default)]
struct Said(RefCell<HashMap<String, Option<String>>>);

impl Said {
    /// Logs a problem, unless it is the one that was logged last.
    fn tell(&self, shared: &Shared, zone: &str, problem: Option<String>) {
        let last = self.0.borrow_mut().insert(zone.to_owned(), problem.clone()).flatten();
        if let Some(problem) = problem.filter(|problem| last.as_ref() != Some(problem)) {
            shared.log(Level::Crit, &problem);
        }
    }
}

/// Notices a system clock that is set back: stored pages from its future are refreshed then.
struct Clock {
    wall: SystemTime,
    steady: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// What to say about it; once for each step back.
    fn check(&mut self) -> Option<String> {
        /// Smaller steps are adjustments.
        const SLACK: Duration = Duration::from_secs(2);
        let expected = self.wall + self.steady.elapsed();
        *self = Self::new();
        let back = expected.duration_since(self.wall).ok().filter(|back| *back > SLACK)?;
        let seconds = back.as_secs();
        Some(format!(
            "the system clock was set back by {seconds} s: pages stored in its future count as expired"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_round_comes_when_a_page_is_due_within_bounds() {
        let pause = |due, took| pause(due, Duration::from_millis(took)).as_millis();
        assert_eq!(pause(3, 0), 3_000);
        assert_eq!(pause(0, 0), 1_000, "not without rest");
        assert_eq!(pause(-5, 0), 1_000);
        assert_eq!(pause(i64::MAX, 0), 10_000);
        assert_eq!(pause(2, 200), 4_000, "many pages");
        assert_eq!(pause(2, 3_000), 10_000);
    }
}
