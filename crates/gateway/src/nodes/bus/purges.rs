//! What purges have to do with the bus: they are foreseen, and queued once they are done.

use super::super::marks::Outstanding;
use super::super::message::Purged;
use super::super::place::Id;
use super::super::told::Told;
use super::super::wait::UNKNOWN;
use super::{Bus, Item, QUEUE_MAX, Side, State, Waiting};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use yorozu_cache::{Purge, PurgeMode};
use yorozu_kernel::logging::error::Level;

/// A purge that is about to be done; dropped, it is not done after all.
#[derive(Debug)]
pub struct Foreseen {
    purged: Purged,
    number: u64,
    outstanding: Arc<Outstanding>,
}

impl Drop for Foreseen {
    fn drop(&mut self) {
        self.outstanding.forget(self.number);
    }
}

impl Bus {
    /// This node is about to purge this: no page of the tier that nodes share is taken from here on if it is older.
    pub fn foreseen(&self, zone: &str, purges: Arc<[Purge]>, mode: PurgeMode) -> Foreseen {
        let purged = Purged { zone: zone.to_owned(), mode, purges };
        let number = self.foresee(purged.clone());
        Foreseen { number, purged, outstanding: Arc::clone(&self.outstanding) }
    }

    pub(super) fn foresee(&self, purged: Purged) -> u64 {
        self.outstanding.foresee(purged)
    }

    /// Waits until this node has read its own entry, if pages are shared: one that begins to be made before that counts
    /// as older than the purge for all others.
    async fn wait_for_own(&self, id: Id) {
        /// Redis answers one connection of this node as soon as the other; chosen.
        const WAIT: Duration = Duration::from_millis(50);
        if self.shares.load(Ordering::Relaxed) {
            let mut read = self.read.subscribe();
            // What is made meanwhile is only not shared.
            let _ = tokio::time::timeout(WAIT, read.wait_for(|(_, read)| *read >= id)).await;
        }
    }

    /// The bus of the present configuration: that of a request may have been replaced.
    fn latest(self: &Arc<Self>) -> Arc<Self> {
        let mut latest = Arc::clone(self);
        loop {
            let next = latest.state().next.clone();
            match next {
                Some(next) => latest = next,
                None => return latest,
            }
        }
    }

    /// From here on `next` sends what this one would have sent.
    pub(in super::super) fn hand_over(&self, next: &Arc<Self>) {
        let mut state = self.state();
        state.next = Some(Arc::clone(next));
        let queue = std::mem::take(&mut state.queue);
        self.count(&state);
        drop(state);
        for item in queue.into_iter().filter(|item| item.purged.is_some()) {
            next.put(item.purged, item.foreseen, item.is_noted, item.answer);
        }
    }

    /// Tells the other nodes of purges that were done on this one.
    pub async fn publish(self: &Arc<Self>, foreseen: Foreseen) -> Told {
        self.latest().send(foreseen).await
    }

    async fn send(self: &Arc<Self>, foreseen: Foreseen) -> Told {
        let purged = foreseen.purged.clone();
        let kept = self.foresee(purged.clone());
        drop(foreseen);
        let (number, answer) = self.enqueue(Some(purged), Some(kept), false);
        if !self.state().away[Side::Sender as usize] {
            if let Ok(Ok(id)) = tokio::time::timeout(self.spec.timeout, answer).await {
                self.wait_for_own(id).await;
                return Told { last: Some(id), ..Told::default() };
            }
        }
        let bus = Arc::clone(self);
        // Should it be interrupted, the queue in memory still has it.
        let _ = tokio::task::spawn_blocking(move || bus.note(number)).await;
        Told { is_queued: true, ..Told::default() }
    }

    /// Waits for the other nodes, where the configuration says so.
    pub async fn settle(self: &Arc<Self>, mut told: Told) -> Told {
        let bus = self.latest();
        let (Some(id), Some(wait)) = (told.last, bus.spec.wait) else { return told };
        let (answer, late) = oneshot::channel();
        let until = Instant::now() + wait;
        bus.state().waiting.push(Waiting { id, until, answer });
        bus.to_wait.notify_one();
        /// For the question itself.
        const MORE: Duration = Duration::from_millis(100);
        match tokio::time::timeout(wait + MORE, late).await {
            Ok(Ok(late)) => told.late = late,
            // Who has done it is not known.
            _ => told.late = vec![UNKNOWN.to_owned()],
        }
        told
    }

    /// Puts an entry behind the others: its number, and what says its name once Redis has it.
    pub(in super::super) fn enqueue(
        &self,
        purged: Option<Purged>,
        foreseen: Option<u64>,
        is_noted: bool,
    ) -> (u64, oneshot::Receiver<Id>) {
        let (answer, answered) = oneshot::channel();
        let number = self.put(purged, foreseen, is_noted, Some(answer));
        (number, answered)
    }

    /// Has an epoch begin for all nodes.
    pub(in super::super) fn begin(&self, epoch: u64) {
        let mut state = self.state();
        state.push(None, false, false, None, None);
        if let Some(item) = state.queue.back_mut() {
            item.epoch = Some(epoch);
        }
        drop(state);
        self.to_send.notify_one();
    }

    fn put(
        &self,
        purged: Option<Purged>,
        foreseen: Option<u64>,
        is_noted: bool,
        answer: Option<oneshot::Sender<Id>>,
    ) -> u64 {
        let mut state = self.state();
        if let Some(next) = state.next.clone() {
            drop(state);
            return next.put(purged, foreseen, is_noted, answer);
        }
        if state.queue.len() >= QUEUE_MAX {
            state.overflow(&self.outstanding);
        }
        let waits = purged.is_some() && self.spec.wait.is_some();
        let number = state.push(purged, waits, is_noted, foreseen, answer);
        self.count(&state);
        drop(state);
        self.to_send.notify_one();
        number
    }

    pub(super) fn count(&self, state: &State) {
        self.figures.queued.store(state.queue.len() as u64, Ordering::Relaxed);
    }

    /// Notes a purge that Redis has not taken, for the next process. Blocks.
    fn note(&self, number: u64) {
        let mut on_disk = self.on_disk();
        let mut state = self.state();
        let overflowed = std::mem::take(&mut state.overflowed);
        let item = state.queue.iter_mut().find(|item| item.number == number);
        let purged = item.and_then(|item| {
            item.is_noted = true;
            item.purged.clone()
        });
        drop(state);
        let zones = self.zones();
        let zone = |name: &str| zones.iter().find(|(other, _)| other == name).map(|(_, zone)| zone);
        let all = overflowed.iter().filter_map(|name| Some((name, zone(name)?)));
        let mut noted: Vec<_> =
            all.map(|(name, zone)| on_disk.replace(zone, &everything(name))).collect();
        if let Some((purged, zone)) = purged.and_then(|it| zone(&it.zone).map(|zone| (it, zone))) {
            noted.push(on_disk.append(zone, &purged));
        }
        for problem in noted.into_iter().filter_map(Result::err) {
            self.log(Level::Crit, &format!("a purge may be lost with this process: {problem}"));
        }
    }
}

fn everything(zone: &str) -> Purged {
    Purged { zone: zone.to_owned(), mode: PurgeMode::Soft, purges: [Purge::All].into() }
}

impl State {
    fn push(
        &mut self,
        purged: Option<Purged>,
        waits: bool,
        is_noted: bool,
        foreseen: Option<u64>,
        answer: Option<oneshot::Sender<Id>>,
    ) -> u64 {
        self.number += 1;
        let number = self.number;
        let epoch = None;
        self.queue.push_back(Item { number, purged, waits, epoch, is_noted, foreseen, answer });
        number
    }

    /// Has everything purged instead of what waits.
    fn overflow(&mut self, outstanding: &Outstanding) {
        let dropped: Vec<Item> = self.queue.drain(..).collect();
        let mut zones: Vec<String> =
            dropped.iter().filter_map(|item| Some(item.purged.as_ref()?.zone.clone())).collect();
        zones.sort_unstable();
        zones.dedup();
        for zone in &zones {
            let foreseen = outstanding.foresee(everything(zone));
            self.push(Some(everything(zone)), false, true, Some(foreseen), None);
        }
        dropped.iter().filter_map(|item| item.foreseen).for_each(|it| outstanding.forget(it));
        self.overflowed = zones;
    }
}
