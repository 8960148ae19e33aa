//! Those who look at requests as they come: each has a bounded queue, out of which its own task takes.
//!
//! # Invariants
//! - Who serves a request neither waits for a viewer nor wakes one: a viewer looks into its queue now and then.
//! - A viewer's queue is bounded also while it does not look: its place for more it renews itself, by looking.
//! - Where there are more requests than a viewer may have, it gets a sample: each of them has the same chance.

use crate::base::turn;
use crate::exchange::Exchange;
use crate::exchange::cached::CacheStatus;
use crate::live::filter::{self, Filter};
use crate::live::reason::Reason;
use arc_swap::ArcSwapOption;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use yorozu_cache::{Key, Purge, PurgeMode};

/// Viewers of sites' consoles at once, and of the control socket; chosen.
pub const VIEWERS_MAX: usize = 16;
/// How often a viewer looks, in a second.
pub const LOOKS: u32 = 5;
/// Longest path and longest query that are shown, in bytes; chosen.
const TEXT_BYTES_MAX: usize = 500;

/// A request that is over.
#[derive(Debug)]
pub struct Line {
    /// Milliseconds since 1970.
    pub at: i64,
    pub method: Box<str>,
    pub is_tls: bool,
    pub host: Box<str>,
    pub path: Box<str>,
    /// Without `?`; `None`: the target had none.
    pub args: Option<Box<str>>,
    pub status: u16,
    pub cache: Option<CacheStatus>,
    /// Why the cache did not answer.
    pub reason: Option<Reason>,
    /// The header that did it, or that gave the page another address.
    pub header: Option<&'static str>,
    pub micros: u64,
    /// How long upstreams worked for it.
    pub upstream_micros: u64,
    pub bytes: u64,
}

/// A purge that was done.
#[derive(Clone, Debug)]
pub struct Purged {
    /// Milliseconds since 1970.
    pub at: i64,
    /// `page`, `prefix`, `tag` or `all`.
    pub kind: &'static str,
    /// The key, its beginning, or the host and the tag.
    pub what: Box<str>,
    pub pages: usize,
    pub is_soft: bool,
}

/// What came since a viewer looked last.
#[derive(Debug, Default)]
pub struct Seen {
    pub requests: Vec<Arc<Line>>,
    pub purges: Vec<Arc<Purged>>,
    /// Requests and purges that came besides.
    pub left_out: u64,
}

/// Whose viewers they are: those of one do not take the others' places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Of {
    Site,
    Control,
}

#[derive(Debug)]
struct Viewer {
    of: Of,
    filter: Filter,
    requests: Sample<Arc<Line>>,
    purges: Sample<Arc<Purged>>,
}

/// Some of what came since a viewer looked last: a reservoir (algorithm R: Vitter, 1985).
#[derive(Debug)]
struct Sample<T> {
    /// How many it has room for until it is looked at.
    room: AtomicU32,
    /// How many came.
    came: AtomicU64,
    /// What is in it, with its place among what came.
    queue: Mutex<Vec<(u64, T)>>,
}

impl<T> Sample<T> {
    fn new(room: u32) -> Self {
        Self { room: room.into(), came: AtomicU64::new(0), queue: Mutex::default() }
    }

    fn offer(&self, item: impl FnOnce() -> T) {
        let before = self.came.fetch_add(1, Ordering::Relaxed);
        let room = u64::from(self.room.load(Ordering::Relaxed));
        // Once it is full, the one that comes after `before` others has its place in it by this chance.
        let at = if before < room { before } else { fastrand::u64(..=before) };
        if at >= room {
            return;
        }
        // Who is in each other's way is left out.
        let Ok(mut queue) = self.queue.try_lock() else { return };
        let (at, length) = (usize::try_from(at).unwrap_or(usize::MAX), queue.len());
        if let Some(other) = queue.get_mut(at) {
            *other = (before, item());
        } else if (length as u64) < room {
            queue.push((before, item()));
        }
    }

    /// What is in it, in the order it came, and how many more came; there is room for `more` then, up to `most`.
    fn take(&self, more: u32, most: u32) -> (Vec<T>, u64) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut items = std::mem::take(&mut *queue);
        let came = self.came.swap(0, Ordering::Relaxed);
        let used = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let room = self.room.load(Ordering::Relaxed).saturating_sub(used).saturating_add(more);
        self.room.store(room.min(most), Ordering::Relaxed);
        drop(queue);
        items.sort_unstable_by_key(|(place, _)| *place);
        let left_out = came.saturating_sub(items.len() as u64);
        (items.into_iter().map(|(_, item)| item).collect(), left_out)
    }
}

type Viewers = Vec<Arc<Viewer>>;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static VIEWERS: ArcSwapOption<Viewers> = ArcSwapOption::const_empty();
/// Held by those who come and go.
static DOOR: Mutex<()> = Mutex::new(());

/// Whether there is a viewer.
#[inline]
pub fn is_watched() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn change(change: impl FnOnce(&mut Viewers) -> bool) -> bool {
    let _door = DOOR.lock().unwrap_or_else(PoisonError::into_inner);
    let mut viewers = VIEWERS.load().as_ref().map(|all| Viewers::clone(all)).unwrap_or_default();
    let is_done = change(&mut viewers);
    COUNT.store(viewers.len(), Ordering::Relaxed);
    VIEWERS.store((!viewers.is_empty()).then(|| Arc::new(viewers)));
    is_done
}

/// A viewer's place, given back when it is dropped.
#[derive(Debug)]
pub struct Seat {
    viewer: Arc<Viewer>,
    per_second: u32,
}

impl Seat {
    /// A place for one who wants what `filter` admits, `per_second` of it: as many at once after a pause, and a fifth of that
    /// with each look; `None`: all are taken.
    pub fn take(of: Of, filter: Filter, per_second: u32) -> Option<Self> {
        let viewer = Arc::new(Viewer {
            of,
            filter,
            requests: Sample::new(per_second),
            purges: Sample::new(per_second),
        });
        let is_taken = change(|all| {
            let is_room = all.iter().filter(|other| other.of == of).count() < VIEWERS_MAX;
            if is_room {
                all.push(Arc::clone(&viewer));
            }
            is_room
        });
        is_taken.then_some(Self { viewer, per_second })
    }

    /// What came since it was looked at last; to be called [`LOOKS`] times a second.
    pub fn look(&self) -> Seen {
        let (more, most) = (self.per_second.div_ceil(LOOKS), self.per_second);
        let (requests, requests_left) = self.viewer.requests.take(more, most);
        let (purges, purges_left) = self.viewer.purges.take(more, most);
        Seen { requests, purges, left_out: requests_left + purges_left }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        change(|all| {
            all.retain(|other| !Arc::ptr_eq(other, &self.viewer));
            true
        });
    }
}

fn shown(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into()
}

/// Tells viewers of a request that is over, which took `time`.
pub(super) fn tell_request(exchange: &Exchange, time: Duration) {
    let viewers = VIEWERS.load();
    let Some(viewers) = viewers.as_ref() else { return };
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let target = exchange.request.target();
    let end = target.iter().position(|byte| *byte == b'?');
    let seen = filter::Seen {
        host: &exchange.request.host,
        path: &target[..end.unwrap_or(target.len())],
        status: exchange.status,
        micros: micros(time),
        reason: Reason::of(exchange),
    };
    // Made for the first who may have one more.
    let mut line = None;
    let make = || Line {
        at: turn::unix_millis(),
        method: shown(exchange.request.method_text()),
        is_tls: exchange.is_https(),
        host: shown(seen.host),
        path: shown(seen.path),
        args: end.map(|end| shown(&target[end + 1..])),
        status: seen.status,
        cache: exchange.cache_status,
        reason: seen.reason,
        header: exchange.cache_report.header,
        micros: seen.micros,
        upstream_micros: micros(super::upstream_time(exchange)),
        bytes: exchange.bytes_sent,
    };
    for viewer in viewers.iter().filter(|viewer| viewer.filter.admits(&seen)) {
        viewer.requests.offer(|| Arc::clone(line.get_or_insert_with(|| Arc::new(make()))));
    }
}

/// Tells viewers of purges, and of how many pages each found.
pub fn tell_purges(purges: &[Purge], counts: &[usize], mode: PurgeMode) {
    let viewers = VIEWERS.load();
    let Some(viewers) = viewers.as_ref() else { return };
    for (purge, pages) in purges.iter().zip(counts) {
        let text = |key: &Key| shown(key.as_bytes().split(|byte| *byte == 0).next().unwrap_or(b""));
        let (kind, what) = match purge {
            Purge::Page(key) => ("page", text(key)),
            Purge::Prefix(prefix) => ("prefix", shown(prefix)),
            Purge::Tag(tag) => ("tag", shown(tag).replace('\0', " ").trim_start().into()),
            Purge::All => ("all", Box::default()),
        };
        let is_soft = mode == PurgeMode::Soft;
        let purged = Purged { at: turn::unix_millis(), kind, what, pages: *pages, is_soft };
        let purged = Arc::new(purged);
        viewers.iter().for_each(|viewer| viewer.purges.offer(|| Arc::clone(&purged)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_look_gets_no_more_than_a_seconds_events() {
        let seat = Seat::take(Of::Control, Filter::default(), 10).unwrap();
        assert!(is_watched());
        let tell = || tell_purges(&vec![Purge::All; 10_000], &vec![7; 10_000], PurgeMode::Soft);
        tell();
        tell();
        let seen = seat.look();
        assert_eq!((seen.purges.len(), seen.left_out), (10, 19_990));
        assert_eq!((seen.purges[0].kind, seen.purges[0].pages), ("all", 7));
        // There is room for a fifth of it with each look, and for no more than all of it.
        tell();
        assert_eq!(seat.look().purges.len(), 2);
        (0..20).for_each(|_| assert!(seat.look().purges.is_empty()));
        tell();
        assert_eq!(seat.look().purges.len(), 10);
    }

    #[test]
    fn what_is_shown_is_a_sample_of_all_that_came_and_in_its_order() {
        let sample = Sample::new(50);
        let mut tenths = [0; 10];
        for _ in 0..100 {
            (0..2000_usize).for_each(|number| sample.offer(|| number));
            let (items, left_out) = sample.take(50, 50);
            assert_eq!((items.len(), left_out), (50, 1950));
            assert!(items.is_sorted());
            items.iter().for_each(|number| tenths[number / 200] += 1);
        }
        // 500 of each are expected; 350 are seven deviations away.
        assert!(tenths.iter().all(|count| (350..650).contains(count)), "{tenths:?}");
    }

    #[test]
    fn where_there_is_room_nothing_is_left_out() {
        let sample = Sample::new(50);
        (0..50).for_each(|number| sample.offer(|| number));
        assert_eq!(sample.take(10, 50), ((0..50).collect(), 0));
        (0..10).for_each(|number| sample.offer(|| number));
        assert_eq!(sample.take(10, 50), ((0..10).collect(), 0));
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let take = || Seat::take(Of::Site, Filter::default(), 1);
        let seats: Vec<_> = (0..VIEWERS_MAX).map(|_| take().unwrap()).collect();
        assert!(take().is_none());
        drop(seats);
        assert!(take().is_some());
    }
}
