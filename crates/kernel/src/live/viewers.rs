//! Those who look at requests as they come: each has a bounded queue, out of which its own task takes.
//!
//! # Invariants
//! - Who serves a request neither waits for a viewer nor wakes one: a viewer looks into its queue now and then.
//! - A viewer that does not look gets nothing more: what it may have in a second it renews itself.

use crate::base::turn;
use crate::exchange::Exchange;
use crate::exchange::cached::CacheStatus;
use crate::live::filter::{Filter, Seen};
use crate::live::reason::Reason;
use arc_swap::ArcSwapOption;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use yorozu_cache::{Key, Purge, PurgeMode};

/// Viewers of sites' consoles at once, and of the control socket; chosen.
pub const VIEWERS_MAX: usize = 16;
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

/// What viewers are told.
#[derive(Clone, Debug)]
pub enum Event {
    Request(Arc<Line>),
    Purge(Arc<Purged>),
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
    /// Events that it may still have in this second.
    left: AtomicU32,
    left_out: AtomicU64,
    queue: Mutex<Vec<Event>>,
}

impl Viewer {
    fn offer(&self, event: impl FnOnce() -> Event) {
        let one_less = |left: u32| left.checked_sub(1);
        let is_left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        let queue = if is_left { self.queue.try_lock().ok() } else { None };
        match queue {
            Some(mut queue) => queue.push(event()),
            None => _ = self.left_out.fetch_add(1, Ordering::Relaxed),
        }
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
    /// A place for one who wants what `filter` admits, `per_second` events at most; `None`: all are taken.
    pub fn take(of: Of, filter: Filter, per_second: u32) -> Option<Self> {
        let viewer = Arc::new(Viewer {
            of,
            filter,
            left: AtomicU32::new(per_second),
            left_out: AtomicU64::new(0),
            queue: Mutex::default(),
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

    /// What came since it was looked at last, and how many events were left out.
    pub fn look(&self) -> (Vec<Event>, u64) {
        let mut queue = self.viewer.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let events = std::mem::take(&mut *queue);
        drop(queue);
        (events, self.viewer.left_out.swap(0, Ordering::Relaxed))
    }

    /// Another second has begun.
    pub fn renew(&self) {
        self.viewer.left.store(self.per_second, Ordering::Relaxed);
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

/// Tells viewers of a request that is over.
pub(super) fn tell_request(exchange: &Exchange, upstream_time: Duration) {
    let viewers = VIEWERS.load();
    let Some(viewers) = viewers.as_ref() else { return };
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let target = exchange.request.target();
    let end = target.iter().position(|byte| *byte == b'?');
    let seen = Seen {
        host: &exchange.request.host,
        path: &target[..end.unwrap_or(target.len())],
        status: exchange.status,
        micros: micros(exchange.request_time()),
        reason: Reason::of(exchange),
    };
    // Made for the first who may have one more.
    let mut line = None;
    let make = || Line {
        at: turn::unix_millis(),
        method: shown(exchange.request.method_text()),
        is_tls: exchange.client.scheme() == b"https",
        host: shown(seen.host),
        path: shown(seen.path),
        args: end.map(|end| shown(&target[end + 1..])),
        status: seen.status,
        cache: exchange.cache_status,
        reason: seen.reason,
        micros: seen.micros,
        upstream_micros: micros(upstream_time),
        bytes: exchange.bytes_sent,
    };
    for viewer in viewers.iter().filter(|viewer| viewer.filter.admits(&seen)) {
        viewer.offer(|| Event::Request(Arc::clone(line.get_or_insert_with(|| Arc::new(make())))));
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
        viewers.iter().for_each(|viewer| viewer.offer(|| Event::Purge(Arc::clone(&purged))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_look_gets_no_more_than_a_seconds_events() {
        let seat = Seat::take(Of::Control, Filter::default(), 3).unwrap();
        assert!(is_watched());
        let tell = || tell_purges(&vec![Purge::All; 10_000], &vec![7; 10_000], PurgeMode::Soft);
        tell();
        tell();
        let (events, left_out) = seat.look();
        assert!(
            matches!(&events[..], [Event::Purge(one), _, _] if one.kind == "all" && one.pages == 7)
        );
        assert_eq!(left_out, 19_997);
        assert!(seat.look().0.is_empty());
        seat.renew();
        tell();
        assert_eq!(seat.look().0.len(), 3);
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
