//! The pages that upstreams work longest for: a sketch of bounded size for each worker.
//!
//! A new page takes the place of the one that cost least and begins with that one's weight, so that what costs much is never
//! pushed out by many that cost little (space-saving: Metwally, Agrawal, El Abbadi, 2005). What is shown is what a page cost
//! since it has its place: never too much.
//!
//! # Invariants
//! - A worker does not wait for who reads its sketch: what it counts meanwhile is kept beside it, and added by whoever has
//!   the sketch next.

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

/// Requests that are kept beside a sketch that is being read; chosen: more come in no such moment.
const ASIDE_MAX: usize = 256;

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
    /// The header or the cookie that it lay in.
    pub header: Option<&'static str>,
    pub last: i64,
    /// What it began with in its place.
    inherited: u64,
}

/// A request that is to be counted.
#[derive(Debug)]
struct Miss {
    name: Name,
    reason: Reason,
    header: Option<&'static str>,
    micros: u64,
    /// When it was, in milliseconds since 1970.
    last: i64,
}

#[derive(Debug, Default)]
struct Sketch(HashMap<Name, Cost>);

impl Sketch {
    fn add(&mut self, Miss { name, reason, header, micros, last }: Miss) {
        let own = Cost { requests: 1, micros, reason, header, last, inherited: 0 };
        if let Some(cost) = self.0.get_mut(&name) {
            cost.requests += 1;
            cost.micros += micros;
            (cost.reason, cost.header, cost.last) = (reason, header, last);
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

/// What one worker keeps, and what it counted while that was read.
#[derive(Debug, Default)]
struct Own {
    windows: Mutex<Windows>,
    aside: Mutex<Vec<Miss>>,
}

impl Own {
    /// Counts without waiting. What finds no room, or finds both in use, is left out: what is shown is never too much.
    fn add(&self, miss: Miss) {
        if let Ok(mut windows) = self.windows.try_lock() {
            windows.turn_to(miss.last);
            self.take_in(&mut windows);
            windows.now.add(miss);
        } else if let Ok(mut aside) = self.aside.try_lock() {
            if aside.len() < ASIDE_MAX {
                aside.push(miss);
            }
        }
    }

    /// Adds what was kept aside.
    fn take_in(&self, windows: &mut Windows) {
        let Ok(mut aside) = self.aside.try_lock() else { return };
        let misses = std::mem::take(&mut *aside);
        drop(aside);
        misses.into_iter().for_each(|miss| windows.now.add(miss));
    }
}

static ALL: Mutex<Vec<Arc<Own>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Arc<Own> = {
        let own = Arc::<Own>::default();
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
    let why = (reason, exchange.cache_report.header);
    add_named(&exchange.request.host, exchange.request.target(), why, micros);
}

/// The name of the page of a target.
fn named(host: &[u8], target: &[u8]) -> Name {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let short = |text: &[u8]| text[..text.len().min(NAME_BYTES_MAX)].into();
    (short(host), short(path))
}

fn add_named(
    host: &[u8],
    target: &[u8],
    (reason, header): (Reason, Option<&'static str>),
    micros: u64,
) {
    // The thread may be at its end, and what it had with it.
    let last = turn::unix_millis();
    let name = named(host, target);
    let _ = OWN.try_with(|own| own.add(Miss { name, reason, header, micros, last }));
}

/// A page's host and path, and what it cost.
pub type Page = (String, String, Cost);

/// The pages that cost most within the last ten to twenty minutes, the dearest first.
pub fn dearest(count: usize) -> Vec<Page> {
    let mut found = all(None);
    found.sort_by(|a, b| b.1.micros.cmp(&a.1.micros).then_with(|| a.0.cmp(&b.0)));
    shown(found, count)
}

/// The pages of a host that upstreams were asked for last, the latest first.
pub fn latest(count: usize, host: &[u8]) -> Vec<Page> {
    let mut found = all(Some(host));
    found.sort_by(|a, b| b.1.last.cmp(&a.1.last).then_with(|| a.0.cmp(&b.0)));
    shown(found, count)
}

/// What a page cost within the last ten to twenty minutes, by the host and target of its requests.
pub fn of_page(host: &[u8], target: &[u8]) -> Option<Cost> {
    let name = named(host, target);
    all(Some(host)).into_iter().find(|(other, _)| *other == name).map(|(_, cost)| cost)
}

fn shown(mut found: Vec<(Name, Cost)>, count: usize) -> Vec<Page> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    found.truncate(count);
    found.into_iter().map(|((host, path), cost)| (text(&host), text(&path), cost)).collect()
}

fn all(host: Option<&[u8]>) -> Vec<(Name, Cost)> {
    let now = turn::unix_millis();
    let mut all: HashMap<Name, Cost> = HashMap::new();
    let mut workers = locked(&ALL);
    // Of threads that have ended.
    workers.retain(|windows| Arc::strong_count(windows) > 1);
    for windows in workers.iter() {
        let own = windows;
        let mut windows = locked(&own.windows);
        windows.turn_to(now);
        own.take_in(&mut windows);
        let all_of = windows.now.0.iter().chain(&windows.before.0);
        for (name, cost) in all_of.filter(|(name, _)| host.is_none_or(|host| *name.0 == *host)) {
            let sum = all.entry(name.clone());
            sum.and_modify(|sum| {
                sum.requests += cost.requests;
                sum.micros += cost.micros;
                if cost.last > sum.last {
                    (sum.last, sum.reason, sum.header) = (cost.last, cost.reason, cost.header);
                }
            })
            .or_insert(*cost);
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: (Reason, Option<&str>) = (Reason::Uncached, None);

    fn miss(name: Name, micros: u64, last: i64) -> Miss {
        Miss { name, reason: WHY.0, header: WHY.1, micros, last }
    }

    #[test]
    fn ten_thousand_hosts_take_no_more_room_than_some_and_the_dearest_page_stays() {
        for number in 0..10_000_u64 {
            add_named(format!("host-{number}").as_bytes(), &[b'/'; 5000], WHY, 10);
            if number % 10 == 0 {
                add_named(b"shop", b"/slow", WHY, 1000);
            }
        }
        OWN.with(|own| {
            let own = locked(&own.windows);
            assert!(own.now.0.len() <= PAGES_MAX && own.before.0.len() <= PAGES_MAX);
            assert!(own.now.0.keys().all(|(_, path)| path.len() <= NAME_BYTES_MAX));
        });
        assert!(latest(3, b"none").is_empty());
        assert_eq!(latest(3, b"shop").len(), 1);
        let found = dearest(3);
        let (host, path, cost) = &found[0];
        assert_eq!((host.as_str(), path.as_str()), ("shop", "/slow"));
        assert_eq!((cost.requests, cost.micros), (1000, 1_000_000), "not what it inherited");
        assert_eq!(found.len(), 3);
        assert_eq!(of_page(b"shop", b"/slow?a").map(|cost| cost.requests), Some(1000));
        assert!(of_page(b"shop", b"/").is_none());
    }

    #[test]
    fn a_worker_waits_for_no_reader_and_what_it_counts_meanwhile_is_not_lost() {
        let count = |path: &[u8]| add_named(b"read.example", path, WHY, 1);
        count(b"/before");
        OWN.with(|own| {
            let reader = locked(&own.windows);
            // This thread holds the lock: to wait for it would be for ever.
            (0..2 * ASIDE_MAX).for_each(|_| count(b"/meanwhile"));
            drop(reader);
        });
        let found = latest(9, b"read.example");
        let mut found: Vec<_> =
            found.iter().map(|(_, path, cost)| (&path[..], cost.requests)).collect();
        found.sort_unstable();
        assert_eq!(found, [("/before", 1), ("/meanwhile", ASIDE_MAX as u64)]);
    }

    #[test]
    fn the_latest_are_shown_however_little_they_cost() {
        for number in 0..50_i64 {
            let micros = if number < 40 { 1_000_000 } else { 1 };
            let name: Name =
                (b"late.example".as_slice().into(), format!("/{number}").into_bytes().into());
            OWN.with(|own| {
                own.add(miss(name, micros, turn::unix_millis() + number));
            });
        }
        let found = latest(2, b"late.example");
        assert_eq!(found.iter().map(|(_, path, _)| &path[..]).collect::<Vec<_>>(), ["/49", "/48"]);
    }

    #[test]
    fn what_is_older_than_two_windows_is_forgotten() {
        let mut windows = Windows::default();
        let name = || (b"h".as_slice().into(), b"/".as_slice().into());
        windows.turn_to(WINDOW_MILLIS);
        let miss = || miss(name(), 1, 0);
        windows.now.add(miss());
        windows.turn_to(2 * WINDOW_MILLIS);
        assert_eq!((windows.now.0.len(), windows.before.0.len()), (0, 1));
        windows.now.add(miss());
        windows.turn_to(4 * WINDOW_MILLIS);
        assert_eq!((windows.now.0.len(), windows.before.0.len()), (0, 0));
    }
}
