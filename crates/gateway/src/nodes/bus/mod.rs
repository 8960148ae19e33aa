//! What a node has to send, has sent, and has read: shared by those who purge and the thread that speaks with Redis.
//!
//! # Invariants
//! - A purge is done on its own node before it is given to the bus.
//! - An entry is in the queue until Redis has taken it, and then known as unseen until this node reads it in the stream:
//!   what a Redis that came back without it has lost is sent again.
//! - A place is noted beside the pages of a zone after all purges up to it were done there.

mod purges;

use super::here::{self, By};
use super::marks::{Marks, Outstanding};
use super::members::{self, Members};
use super::message::{About, Message, Purged, Secret, purged};
use super::outbox::{self, OnDisk};
use super::place::{self, Epoch, Id, Place};
use super::spec::Spec;
use bytes::Bytes;
pub use purges::Foreseen;
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot, watch};
use yorozu_cache::{Key, Purge, PurgeMode, Zone};
use yorozu_kernel::base::turn;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error_log::ErrorLogs;

/// Purges that wait for Redis; of more everything is purged instead. As documented.
const QUEUE_MAX: usize = 10_000;
/// Between two lines of the log about entries that are not believed.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Between two notes of the place in the zones' folders; chosen: what was read meanwhile is done again by a process that begins.
pub(super) const NOTES_PAUSE: Duration = Duration::from_millis(100);

/// An entry that shall be in the stream.
#[derive(Debug)]
pub(super) struct Item {
    pub number: u64,
    /// `None`: it only takes a place.
    pub purged: Option<Purged>,
    pub waits: bool,
    /// The epoch that begins with it.
    epoch: Option<u64>,
    /// Whether it is in the file of those that wait.
    is_noted: bool,
    /// Its number among the marks of what has no place yet.
    foreseen: Option<u64>,
    answer: Option<oneshot::Sender<Id>>,
}

/// An entry that Redis has, and that was not read yet.
#[derive(Debug)]
struct Unseen {
    id: Id,
    since: Instant,
    item: Item,
}

/// A purge that waits for the other nodes.
#[derive(Debug)]
pub(super) struct Waiting {
    pub id: Id,
    pub until: Instant,
    pub answer: oneshot::Sender<Vec<String>>,
}

/// Who speaks with Redis: each has a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Sender,
    Reader,
}

#[derive(Default)]
struct State {
    zones: Vec<(String, Weak<Zone>)>,
    log: ErrorLogs,
    /// Of the last entry.
    number: u64,
    queue: VecDeque<Item>,
    unseen: VecDeque<Unseen>,
    /// The highest own number that Redis took, and the last name that it gave to one.
    taken: Option<(u64, Id)>,
    /// The highest own number that was read.
    last_seen: u64,
    place: Option<Place>,
    /// When it was noted last, and whether it has been another one since.
    noted: Option<Instant>,
    is_to_note: bool,
    is_caught_up: bool,
    /// For each [`Side`], whether Redis does not answer it.
    away: [bool; 2],
    refused: Option<Instant>,
    waiting: Vec<Waiting>,
    members: Members,
    marks: Marks,
    /// What pages of the tier must be of.
    epoch: u64,
    /// Zones whose files shall only have that everything is purged.
    overflowed: Vec<String>,
    /// The bus that has replaced this one.
    next: Option<Arc<Bus>>,
    /// A purge may not outlast the process: the next one shall read it again.
    is_place_kept: bool,
}

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub is_connected: AtomicBool,
    pub sent: AtomicU64,
    pub queued: AtomicU64,
    pub read: AtomicU64,
    pub refused: AtomicU64,
    pub lost: AtomicU64,
}

/// The bus of a configuration; the next one goes on with it if it says the same.
pub struct Bus {
    pub(super) spec: Spec,
    pub(super) secret: Option<Secret>,
    tls: Mutex<Option<Arc<ClientConfig>>>,
    /// Tells this process's entries from those of others.
    pub(super) run: u64,
    state: Mutex<State>,
    /// Asked before the marks are: what is gone from here is there.
    outstanding: Arc<Outstanding>,
    caught_up: Condvar,
    on_disk: Mutex<OnDisk>,
    /// There is something to send.
    pub(super) to_send: Notify,
    /// A purge waits for other nodes.
    pub(super) to_wait: Notify,
    pub(super) figures: Figures,
    /// Whether pages are shared with other nodes.
    pub(super) shares: AtomicBool,
    /// How far the stream was read, and in which epoch.
    read: watch::Sender<(u64, Id)>,
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bus").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Bus {
    /// `earlier`: the one that it replaces.
    pub(super) fn new(
        spec: Spec,
        tls: Option<Arc<ClientConfig>>,
        earlier: Option<&Arc<Self>>,
    ) -> Self {
        Self {
            outstanding: earlier.map(|it| Arc::clone(&it.outstanding)).unwrap_or_default(),
            secret: spec.secret.as_deref().map(Secret::new),
            spec,
            tls: Mutex::new(tls),
            run: fastrand::u64(1..),
            state: Mutex::default(),
            caught_up: Condvar::new(),
            on_disk: Mutex::default(),
            to_send: Notify::new(),
            to_wait: Notify::new(),
            figures: Figures::default(),
            shares: AtomicBool::new(false),
            read: watch::Sender::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole: a panic elsewhere cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How Redis is believed, by the present files.
    pub(super) fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_tls(&self, tls: Option<Arc<ClientConfig>>) {
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    pub(super) fn log(&self, level: Level, text: &str) {
        let log = self.state().log.clone();
        log.process(level, &format!("purge bus: {text}"));
    }

    /// The zones of the present configuration.
    pub(super) fn zones(&self) -> Vec<(String, Arc<Zone>)> {
        let state = self.state();
        let zones = state.zones.iter();
        zones.filter_map(|(name, zone)| Some((name.clone(), zone.upgrade()?))).collect()
    }

    /// Takes over the zones of a configuration. The first one says where in the stream this process begins; a zone that a
    /// later one adds is purged softly, unless its folder is known or stands at the same place. Blocks.
    pub(super) fn watch(&self, config: &Config) {
        let known = self.zones();
        // One whose folder is back after a reload is new then: it may have missed purges.
        let zones = config.zones.iter().filter(|(_, zone)| zone.fault().is_none());
        let zones: Vec<_> = zones.map(|(name, zone)| (name.clone(), Arc::clone(zone))).collect();
        let mut state = self.state();
        state.log = config.error_log.clone();
        state.zones = zones.iter().map(|(n, z)| (n.clone(), Arc::downgrade(z))).collect();
        drop(state);
        let is_first = known.is_empty() && self.place().is_none();
        if is_first {
            let places: Vec<_> = zones.iter().filter_map(|(_, zone)| noted_place(zone)).collect();
            if let Some(place) = places.into_iter().min_by_key(|place| place.id) {
                self.read.send_replace((place.epoch, place.id));
                let mut state = self.state();
                state.epoch = place.epoch;
                state.place = Some(place);
            }
        }
        let place = self.place();
        for (name, zone) in &zones {
            let is_known = known.iter().any(|(_, other)| path_of(other) == path_of(zone));
            let has_place = noted_place(zone).is_some_and(|noted| match is_first {
                true => true,
                false => place.as_ref().is_some_and(|place| noted.id == place.id),
            });
            if !is_known {
                self.load_members(zone);
                self.load_queue(zone);
            }
            // Without any place everything is purged before anything is read.
            if !is_known && !has_place && place.is_some() {
                self.purge_softly(name, zone);
            }
        }
    }

    /// Nodes that an earlier process knew.
    fn load_members(&self, zone: &Zone) {
        if let Ok(Some(bytes)) = zone.read_note(members::NAME) {
            self.state().members.read(&bytes, turn::unix_seconds());
        }
    }

    /// Purges that an earlier process could not send.
    fn load_queue(&self, zone: &Arc<Zone>) {
        match outbox::read(zone) {
            Ok(lines) if lines.is_empty() => {}
            Ok(lines) => {
                self.on_disk().note(zone);
                for purged in purged(&lines) {
                    let foreseen = self.foresee(purged.clone());
                    drop(self.enqueue(Some(purged), Some(foreseen), true));
                }
            }
            Err(problem) => self.log(Level::Crit, &problem.to_string()),
        }
    }

    fn purge_softly(&self, name: &str, zone: &Zone) {
        if let Err(problem) = here::purge(zone, &[Purge::All], PurgeMode::Soft, By::Operator) {
            self.log(Level::Crit, &format!("zone \"{name}\": {problem}"));
        }
    }

    /// Purges everything softly in all zones. Blocks.
    pub(super) fn purge_all(&self) {
        self.zones().iter().for_each(|(name, zone)| self.purge_softly(name, zone));
    }

    /// Does the purges of others. Blocks.
    pub(super) fn purge(&self, lines: &str) {
        let zones = self.zones();
        for purged in purged(lines) {
            // A zone that only other nodes have is theirs.
            let Some((_, zone)) = zones.iter().find(|(name, _)| *name == purged.zone) else {
                continue;
            };
            if let Err(problem) = here::purge(zone, &purged.purges, purged.mode, By::Operator) {
                self.state().is_place_kept = true;
                self.log(Level::Crit, &problem.to_string());
            }
        }
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.state().place.clone()
    }

    /// All up to `place` is done.
    pub(super) fn reached(&self, place: Place) {
        let read = (place.epoch, place.id);
        let mut state = self.state();
        state.epoch = place.epoch;
        state.place = Some(place);
        state.is_to_note = true;
        self.read.send_replace(read);
    }

    /// Whether the place is another one than was noted, or nodes are known that are not.
    pub(super) fn is_to_note(&self) -> bool {
        let state = self.state();
        state.is_to_note || state.members.is_to_note()
    }

    /// The same, and the last note is some time ago.
    pub(super) fn is_note_due(&self) -> bool {
        let state = self.state();
        state.is_to_note && state.noted.is_none_or(|last| last.elapsed() >= NOTES_PAUSE)
    }

    /// Notes the place and the nodes, for the next process. Blocks.
    pub(super) fn note_place(&self) {
        let mut state = self.state();
        let members = state.members.noted();
        state.is_to_note = false;
        state.noted = Some(Instant::now());
        let text = state.place.as_ref().map(Place::to_text);
        let is_kept = state.is_place_kept;
        drop(state);
        // Without its place the next process reads more again.
        let place = text.filter(|_| !is_kept).map(|text| (place::NAME, text));
        for (name, text) in place.into_iter().chain(members.map(|text| (members::NAME, text))) {
            for (_, zone) in self.zones() {
                if let Err(problem) = zone.replace_note(name, text.as_bytes()) {
                    self.log(Level::Crit, &problem.to_string());
                }
            }
        }
    }

    /// Everything that was in the stream has been done.
    pub(super) fn is_caught_up(&self) {
        self.state().is_caught_up = true;
        self.caught_up.notify_all();
    }

    /// Waits until this process knows all that the others purged; `false` if that takes too long. Blocks.
    pub(super) fn wait_for_start(&self) -> bool {
        let is_behind = |state: &mut State| !state.is_caught_up;
        let waited =
            self.caught_up.wait_timeout_while(self.state(), self.spec.start_timeout, is_behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn on_disk(&self) -> MutexGuard<'_, OnDisk> {
        self.on_disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the sender has to do with it.
impl Bus {
    /// The first of those that wait, as messages.
    pub(super) fn next(&self, count: usize) -> Vec<Message> {
        let state = self.state();
        let (taken, present) = (state.taken, state.epoch);
        let first = state.queue.iter().take(count);
        let items: Vec<_> =
            first.map(|it| (it.number, it.purged.clone(), it.waits, it.epoch)).collect();
        // Text is made of them while others may go on.
        drop(state);
        let message = |(number, purged, waits, begins)| {
            let purged: Option<Purged> = purged;
            let present = (present != 0).then_some(Epoch::Present(present));
            let epoch = Option::map(begins, Epoch::Begins).or(present);
            let lines = purged.as_ref().map(Purged::to_lines).unwrap_or_default();
            Message::new(&self.spec.node, self.run, number, &lines, About { waits, taken, epoch })
        };
        items.into_iter().map(message).collect()
    }

    /// Redis has an entry.
    pub(super) fn sent(&self, number: u64, id: Id) {
        let mut state = self.state();
        let Some(at) = state.queue.iter().position(|item| item.number == number) else { return };
        let Some(mut item) = state.queue.remove(at) else { return };
        self.count(&state);
        state.taken =
            state.taken.max(Some((number, id))).map(|(number, last)| (number, last.max(id)));
        self.figures.sent.fetch_add(1, Ordering::Relaxed);
        if let Some(purged) = item.purged.clone() {
            state.marks.note(id, purged);
        }
        if let Some(foreseen) = item.foreseen.take() {
            self.outstanding.forget(foreseen);
        }
        if let Some(answer) = item.answer.take() {
            // Whoever asked may have stopped waiting.
            let _ = answer.send(id);
        }
        if item.purged.is_some() && number > state.last_seen && state.unseen.len() < QUEUE_MAX {
            state.unseen.push_back(Unseen { id, since: Instant::now(), item });
        }
    }

    /// Whether there may be files of purges that waited.
    pub(super) fn has_files(&self) -> bool {
        // Who has it locked writes one.
        self.on_disk.try_lock().map_or(true, |on_disk| !on_disk.is_empty())
    }

    /// Removes the files of purges that waited, once none does. Blocks.
    pub(super) fn tidy(&self) {
        let mut on_disk = self.on_disk();
        let has_noted = self.state().queue.iter().any(|item| item.is_noted);
        if has_noted || on_disk.is_empty() {
            return;
        }
        if let Err(problem) = on_disk.clear(&self.zones()) {
            self.log(Level::Crit, &problem.to_string());
        }
    }

    pub(super) fn has_queue(&self) -> bool {
        !self.state().queue.is_empty()
    }

    /// Redis answers one of both.
    pub(super) fn here(&self, side: Side) {
        let (was_away, is_away) = self.set_away(side, false);
        self.figures.is_connected.store(!is_away, Ordering::Relaxed);
        if was_away && !is_away {
            self.log(Level::Notice, &format!("{} answers again", self.spec.target.shown()));
        }
    }

    /// Redis does not answer one of both, or not as it should: `what` it does instead.
    pub(super) fn away(&self, side: Side, what: &str) {
        let (was_away, _) = self.set_away(side, true);
        self.figures.is_connected.store(false, Ordering::Relaxed);
        if !was_away {
            self.log(Level::Error, &format!("{} {what}", self.spec.target.shown()));
        }
    }

    /// Whether Redis was away for any of both, and whether it is now.
    fn set_away(&self, side: Side, is_away: bool) -> (bool, bool) {
        let mut state = self.state();
        let was_away = state.away.contains(&true);
        state.away[side as usize] = is_away;
        (was_away, state.away.contains(&true))
    }
}

/// What the reader has to do with it.
impl Bus {
    /// This process's entry was read.
    pub(super) fn seen(&self, number: u64) {
        let mut state = self.state();
        state.last_seen = state.last_seen.max(number);
        state.unseen.retain(|unseen| unseen.item.number != number);
    }

    /// Has entries sent again that Redis had taken and that are not in the stream: those before the place that is
    /// reached, and those of before `since` if nothing more is in it. How many.
    pub(super) fn send_again(&self, since: Option<Instant>) -> usize {
        let mut state = self.state();
        let place = state.place.as_ref().map(|place| place.id);
        let is_lost = |unseen: &Unseen| {
            since.is_some_and(|since| unseen.since < since)
                || place.is_some_and(|place| unseen.id <= place)
        };
        let (lost, rest): (VecDeque<_>, _) = state.unseen.drain(..).partition(is_lost);
        state.unseen = rest;
        let count = lost.len();
        for unseen in lost.into_iter().rev() {
            state.queue.push_front(unseen.item);
        }
        self.count(&state);
        drop(state);
        if count > 0 {
            self.to_send.notify_one();
        }
        count
    }

    /// Counts an entry that is not believed.
    pub(super) fn refuse(&self, id: Id, why: &str) {
        self.figures.refused.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let is_due = state.refused.is_none_or(|last| last.elapsed() > REFUSED_PAUSE);
        if is_due {
            state.refused = Some(Instant::now());
            drop(state);
            self.log(Level::Error, &format!("entry {id} is not believed: {why}"));
        }
    }

    /// How much of the stream this node has read and done.
    pub(super) fn known(&self) -> (u64, Id) {
        *self.read.borrow()
    }

    /// A stream begins whose order has nothing to do with that of earlier ones: pages of before are of no use.
    pub(super) fn enter(&self, epoch: u64) {
        self.state().epoch = epoch;
    }

    /// Whether pages can be compared with purges.
    pub(super) fn has_marks(&self) -> bool {
        self.state().marks.is_known()
    }

    /// Nothing is known of purges before `floor`; those of entries from there on.
    pub(super) fn mark(&self, floor: Option<Id>, entries: Vec<(Id, String)>) {
        let mut state = self.state();
        for (id, lines) in entries {
            purged(&lines).into_iter().for_each(|purged| state.marks.note(id, purged));
        }
        if let Some(floor) = floor {
            state.marks.begin(floor);
        }
    }

    /// No page that this node made or found until now is taken from the tier that nodes share, if the purge matches it;
    /// others do not hear of it.
    pub(super) fn mark_here(&self, zone: &str, purge: Purge) {
        let mut state = self.state();
        let Id(milliseconds, number) = state.place.as_ref().map(|it| it.id).unwrap_or_default();
        state.marks.note_once(Id(milliseconds, number + 1), zone, purge);
    }

    /// Whether a page that another node made may be older than a purge.
    pub(super) fn is_older(
        &self,
        zone: &str,
        key: &Key,
        tags: &[Bytes],
        (epoch, known): (u64, Id),
    ) -> bool {
        if self.outstanding.has(zone, key, tags) {
            return true;
        }
        let state = self.state();
        state.epoch != epoch || state.marks.is_older(zone, key, tags, known)
    }

    /// A node was there at this time.
    pub(super) fn heard(&self, node: &str, at: i64) {
        self.state().members.heard(node, at, turn::unix_seconds());
    }

    /// The nodes that this one has heard of, itself among them.
    pub(super) fn members(&self) -> Vec<String> {
        self.state().members.present(turn::unix_seconds())
    }

    /// Takes those who wait for other nodes.
    pub(super) fn take_waiting(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.state().waiting)
    }
}

fn path_of(zone: &Zone) -> &Path {
    &zone.options().disk.path
}

/// Where the folder of a zone stands. Blocks.
fn noted_place(zone: &Zone) -> Option<Place> {
    Place::parse(&zone.read_note(place::NAME).ok()??)
}

#[cfg(test)]
mod tests {
    use super::super::target::Target;
    use super::*;

    fn bus() -> Bus {
        let spec = Spec {
            target: Target::parse("redis://a").unwrap().0,
            stream: "s".to_owned(),
            node: "n".to_owned(),
            secret: None,
            wait: None,
            timeout: Duration::ZERO,
            start_timeout: Duration::ZERO,
            authorities: None,
        };
        Bus::new(spec, None, None)
    }

    fn tag(zone: &str, text: &'static str) -> Option<Purged> {
        let purges = [Purge::Tag(text.into())].into();
        Some(Purged { zone: zone.to_owned(), mode: PurgeMode::Hard, purges })
    }

    fn numbers(bus: &Bus) -> Vec<u64> {
        bus.next(10).iter().map(|message| message.number).collect()
    }

    #[test]
    fn of_too_many_purges_everything_is_left() {
        let bus = bus();
        for number in 0..QUEUE_MAX {
            drop(bus.enqueue(tag(if number == 7 { "b" } else { "a" }, "t"), None, false));
        }
        assert_eq!(bus.state().queue.len(), QUEUE_MAX);
        drop(bus.enqueue(tag("a", "last"), None, false));
        let lines: Vec<_> = bus.next(10).into_iter().map(|message| message.lines).collect();
        let last = tag("a", "last").unwrap().to_lines();
        assert_eq!(lines, ["soft all: a\n", "soft all: b\n", &last]);
        assert_eq!(bus.state().overflowed, ["a", "b"], "for the files");
    }

    #[test]
    fn a_bus_that_replaces_another_one_goes_on_with_its_purges() {
        let old = Arc::new(bus());
        let key = Key::new(Bytes::from_static(b"k"));
        let is_old = |bus: &Bus| bus.is_older("a", &key, &["t".into()], (0, Id(99, 0)));
        let queued = old.foresee(tag("a", "t").unwrap());
        let (_, mut answer) = old.enqueue(tag("a", "t"), Some(queued), false);
        let spec = old.spec.clone();
        let new = Arc::new(Bus::new(spec, None, Some(&old)));
        new.mark(Some(Id(1, 0)), Vec::new());
        old.hand_over(&new);
        let begun = old.foresee(tag("a", "t").unwrap());
        drop(old.enqueue(tag("a", "t"), Some(begun), false));
        assert!(!old.has_queue() && numbers(&new) == [1, 2] && is_old(&new));
        new.sent(1, Id(5, 0));
        assert!(is_old(&new) && answer.try_recv() == Ok(Id(5, 0)));
        new.sent(2, Id(6, 0));
        assert!(!is_old(&new) && new.is_older("a", &key, &["t".into()], (0, Id(5, 0))));
        new.enter(7);
        assert!(is_old(&new), "of another epoch");
    }

    #[test]
    fn what_was_sent_and_is_not_in_the_stream_is_sent_again_in_order() {
        let bus = bus();
        for _ in 0..4 {
            drop(bus.enqueue(tag("a", "t"), None, false));
        }
        for number in 1..=3 {
            bus.sent(number, Id(number, 0));
        }
        assert_eq!(numbers(&bus), [4]);
        bus.seen(2);
        assert_eq!(bus.send_again(None), 0, "the reader is before them");
        bus.state().place = Some(Place::new(Id(2, 0)));
        assert_eq!(bus.send_again(None), 1);
        assert_eq!(numbers(&bus), [1, 4]);
        assert_eq!(bus.send_again(Some(Instant::now())), 1, "there is nothing behind");
        assert_eq!(numbers(&bus), [3, 1, 4]);
    }

    #[test]
    fn an_entry_that_is_read_before_it_is_known_to_be_sent_is_seen() {
        let bus = bus();
        let (number, mut answer) = bus.enqueue(tag("a", "t"), None, false);
        bus.seen(number);
        bus.sent(number, Id(5, 0));
        assert_eq!(answer.try_recv(), Ok(Id(5, 0)));
        assert!(bus.state().unseen.is_empty() && !bus.has_queue());
    }

    #[test]
    fn a_place_is_noted_now_and_then() {
        let bus = bus();
        assert!(!bus.is_to_note() && !bus.is_note_due());
        bus.reached(Place::new(Id(1, 0)));
        assert!(bus.is_note_due(), "the first one is noted at once");
        bus.note_place();
        assert!(!bus.is_to_note());
        bus.reached(Place::new(Id(2, 0)));
        assert!(bus.is_to_note() && !bus.is_note_due(), "others follow together");
        bus.state().noted = Instant::now().checked_sub(NOTES_PAUSE);
        assert!(bus.is_note_due());
    }

    #[tokio::test(start_paused = true)]
    async fn where_pages_are_shared_a_purge_waits_until_its_own_node_has_read_it() {
        let mut bus = bus();
        bus.spec.timeout = Duration::from_secs(1);
        bus.shares.store(true, Ordering::Relaxed);
        let bus = Arc::new(bus);
        let foreseen = bus.foreseen("a", [Purge::All].into(), PurgeMode::Hard);
        let mut publish = std::pin::pin!(bus.publish(foreseen));
        for step in [|_: &Bus| {}, |bus: &Bus| bus.sent(1, Id(9, 0))] {
            step(&bus);
            tokio::select! {
                biased;
                told = &mut publish => panic!("{told:?}"),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
        }
        bus.reached(Place::new(Id(9, 0)));
        assert_eq!(publish.await.text(), "sent");
    }
}
