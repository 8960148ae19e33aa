//! The pages that upstreams work longest for: a sketch of bounded size for each worker.
//!
//! A new page takes the place of the one that cost least and begins with that one's weight, so that what costs much is never
//! pushed out by many that cost little (space-saving: Metwally, Agrawal, El Abbadi, 2005). What is shown is what a page cost
//! since it has its place: never too much.

use crate::base::turn;
use crate::exchange::Exchange;
use crate::live::reason::Reason;
use foldhash::{HashMap, HashMapExt as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pages of one worker and window; chosen: far more than are shown.
const PAGES_MAX: usize = 512;
/// Longest host and longest path that are told apart, in bytes; chosen.
const NAME_BYTES_MAX: usize = 200;
/// Length of a window in milliseconds; chosen. The one under way and the one before it are shown.
const WINDOW_MILLIS: i64 = 10 * 60 * 1000;

/// A page's host and path, without arguments.
type Name = (Box<[u8]>, Box<[u8]>);

/// What one page cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub requests: u64,
    /// Microseconds that upstreams worked for it.
    pub micros: u64,
    /// Of the last request, and when that was, in milliseconds since 1970.
    pub reason: Reason,
    pub last: i64,
    /// What it began with in its place.
    inherited: u64,
}

#[derive(Debug, Default)]
struct Sketch(HashMap<Name, Cost>);

impl Sketch {
    fn add(&mut self, name: Name, reason: Reason, micros: u64) {
        let last = turn::unix_millis();
        let own = Cost { requests: 1, micros, reason, last, inherited: 0 };
        if let Some(cost) = self.0.get_mut(&name) {
            cost.requests += 1;
            cost.micros += micros;
            cost.reason = reason;
            cost.last = last;
        } else if self.0.len() < PAGES_MAX {
            self.0.insert(name, own);
        } else {
            let weight = |cost: &Cost| cost.inherited + cost.micros;
            let least = self.0.iter().min_by_key(|(_, cost)| weight(cost));
            if let Some((least, inherited)) = least.map(|(name, cost)| (name.clone(), weight(cost)))
            {
                self.0.remove(&least);
                self.0.insert(name, Cost { inherited, ..own });
            }
        }
    }
}

/// What one worker keeps.
#[derive(Debug, Default)]
struct Windows {
    number: i64,
    now: Sketch,
    before: Sketch,
}

impl Windows {
    fn turn_to(&mut self, millis: i64) {
        let number = millis.div_euclid(WINDOW_MILLIS);
        if number != self.number {
            let last = std::mem::take(&mut self.now);
            self.before = if number == self.number + 1 { last } else { Sketch::default() };
            self.number = number;
        }
    }
}

static ALL: Mutex<Vec<Arc<Mutex<Windows>>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<Mutex<Windows>> = {
        let own = Arc::<Mutex<Windows>>::default();
        locked(&ALL).push(Arc::clone(&own));
        own
    };
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Figures only: a panic between two of them costs at most a count.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds what a request cost.
pub(super) fn add(exchange: &Exchange, reason: Reason, time: Duration) {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let path = exchange.request.target();
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    add_named(&exchange.request.host, path, reason, micros);
}

fn add_named(host: &[u8], path: &[u8], reason: Reason, micros: u64) {
    let short = |text: &[u8]| text[..text.len().min(NAME_BYTES_MAX)].into();
    // The thread may be at its end, and what it had with it.
    let _ = OWN.try_with(|own| {
        let mut own = locked(own);
        own.turn_to(turn::unix_millis());
        own.now.add((short(host), short(path)), reason, micros);
    });
}

/// The pages that cost most within the last ten to twenty minutes, the dearest first; of one host, or of all.
pub fn dearest(count: usize, host: Option<&[u8]>) -> Vec<(String, String, Cost)> {
    let now = turn::unix_millis();
    let mut all: HashMap<Name, Cost> = HashMap::new();
    let mut workers = locked(&ALL);
    // Of threads that have ended.
    workers.retain(|windows| Arc::strong_count(windows) > 1);
    for windows in workers.iter() {
        let mut windows = locked(windows);
        windows.turn_to(now);
        let all_of = windows.now.0.iter().chain(&windows.before.0);
        for (name, cost) in all_of.filter(|(name, _)| host.is_none_or(|host| *name.0 == *host)) {
            let sum = all.entry(name.clone());
            sum.and_modify(|sum| {
                sum.requests += cost.requests;
                sum.micros += cost.micros;
                if cost.last > sum.last {
                    (sum.last, sum.reason) = (cost.last, cost.reason);
                }
            })
            .or_insert(*cost);
        }
    }
    drop(workers);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found: Vec<_> = all.into_iter().collect();
    found.sort_by(|a, b| b.1.micros.cmp(&a.1.micros).then_with(|| a.0.cmp(&b.0)));
    found.truncate(count);
    found.into_iter().map(|((host, path), cost)| (text(&host), text(&path), cost)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: Reason = Reason::Uncached;

    #[test]
    fn ten_thousand_hosts_take_no_more_room_than_some_and_the_dearest_page_stays() {
        for number in 0..10_000_u64 {
            add_named(format!("host-{number}").as_bytes(), &[b'/'; 5000], WHY, 10);
            if number % 10 == 0 {
                add_named(b"shop", b"/slow", WHY, 1000);
            }
        }
        OWN.with(|own| {
            let own = locked(own);
            assert!(own.now.0.len() <= PAGES_MAX && own.before.0.len() <= PAGES_MAX);
            assert!(own.now.0.keys().all(|(_, path)| path.len() <= NAME_BYTES_MAX));
        });
        assert!(dearest(3, Some(b"none")).is_empty());
        assert_eq!(dearest(3, Some(b"shop")).len(), 1);
        let found = dearest(3, None);
        let (host, path, cost) = &found[0];
        assert_eq!((host.as_str(), path.as_str()), ("shop", "/slow"));
        assert_eq!((cost.requests, cost.micros), (1000, 1_000_000), "not what it inherited");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_older_than_two_windows_is_forgotten() {
        let mut windows = Windows::default();
        let name = || (b"h".as_slice().into(), b"/".as_slice().into());
        windows.turn_to(WINDOW_MILLIS);
        windows.now.add(name(), WHY, 1);
        windows.turn_to(2 * WINDOW_MILLIS);
        assert_eq!((windows.now.0.len(), windows.before.0.len()), (0, 1));
        windows.now.add(name(), WHY, 1);
        windows.turn_to(4 * WINDOW_MILLIS);
        assert_eq!((windows.now.0.len(), windows.before.0.len()), (0, 0));
    }
}
