//! Collects a body while it passes by, and stores it when it is whole.

use super::dry_run;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::time::Instant;
use yorozu_cache::{
    Entry, EntryBody, EntryHead, FillGuard, Filling, Key, Making, Refused, Spool, StoreError, Zone,
    on_disk, on_disk_behind,
};
use yorozu_kernel::base::{tasks, turn};
use yorozu_kernel::logging::error::{Context, Level};

/// A response on its way into a zone, of whose body nothing has come yet.
pub struct Collector {
    zone: Arc<Zone>,
    head: EntryHead,
    /// The claim, for those who wait.
    guard: Option<FillGuard>,
    /// Since the upstream was asked for it.
    making: Arc<Making>,
    /// It is not stored, but compared with this.
    compared: Option<Arc<Entry>>,
    /// When the upstream was asked, if the page shall remember what it cost.
    started: Option<Instant>,
    context: Context,
}

impl Collector {
    pub fn new(
        zone: Arc<Zone>,
        head: EntryHead,
        guard: Option<FillGuard>,
        making: Arc<Making>,
        context: Context,
    ) -> Self {
        let head = EntryHead { began: making.moment(), ..head };
        Self { zone, head, guard, making, compared: None, started: None, context }
    }

    /// It is not stored: that it differs from `stored` is logged once it is whole.
    #[must_use]
    pub fn comparing(self, stored: Arc<Entry>) -> Self {
        Self { compared: Some(stored), ..self }
    }

    /// The page remembers how long it took from then on until it was whole.
    #[must_use]
    pub fn since(self, started: Instant) -> Self {
        Self { started: Some(started), ..self }
    }

    /// The body is here, whole. `now` in seconds since 1970.
    pub fn store_whole(self, pieces: &[Bytes], now: i64) {
        let mut hasher = crc32fast::Hasher::new();
        pieces.iter().for_each(|piece| hasher.update(piece));
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes <= self.zone.memory_body_max() {
            let body = EntryBody::Memory(self.zone.hold(joined(pieces)));
            return self.store(body, bytes, hasher.finalize(), now);
        }
        let mut collecting = self.begin(Some(bytes));
        pieces.iter().for_each(|piece| collecting.push(piece));
        tasks::of_request(async move { collecting.finish(now).await.end() });
    }

    /// The body takes time: those who wait for it read along from here on, as does its maker, if it may answer them. `announced`: its
    /// length, if the origin said it.
    pub fn begin(mut self, announced: Option<u64>) -> Collecting {
        let filling = self.zone.filling(self.head.clone(), announced);
        self.guard = self.guard.and_then(|guard| guard.begin(filling.flow()));
        Collecting {
            collector: self,
            filling,
            hasher: crc32fast::Hasher::new(),
            spool: None,
            spooled: 0,
        }
    }

    fn store(self, body: EntryBody, body_bytes: u64, body_crc: u32, now: i64) {
        if let Some(stored) = &self.compared {
            if (stored.head.body_bytes, stored.head.body_crc) != (body_bytes, body_crc) {
                self.context.upstream(Level::Error, dry_run::DIFFERS, None);
            }
            return;
        }
        let made_in = self.started.map_or(self.head.made_in, made_in);
        let head = EntryHead { body_bytes, body_crc, made_in, ..self.head };
        let entry = Arc::new(Entry::new(head, body, now));
        let made = Made { entry, making: self.making, guard: self.guard };
        store(self.zone, made, now, self.context);
    }
}

/// A response on its way into a zone whose body arrives. All of it that is in memory is in its flow, and no more
/// than one body of the memory tier, or than is written at once to the file.
pub struct Collecting {
    collector: Collector,
    filling: Filling,
    hasher: crc32fast::Hasher,
    spool: Option<Spool>,
    /// Bytes in the spool.
    spooled: u64,
}

impl Collecting {
    /// Where the body can be read along.
    pub fn filling(&self) -> &Filling {
        &self.filling
    }

    /// Takes the next bytes of the body; [`Collecting::spill`] is due.
    pub fn push(&mut self, bytes: &Bytes) {
        self.hasher.update(bytes);
        self.filling.push(bytes);
    }

    /// Writes to the disk what is too much for memory; `false` if the body cannot be stored any more.
    ///
    /// # Cancel safety
    /// None: the body cannot be stored any more.
    pub async fn spill(&mut self) -> bool {
        let bytes = self.filling.bytes();
        let arriving_max = self.collector.zone.arriving_max();
        if self.collector.zone.body_max().is_some_and(|max| bytes > max) {
            return false;
        }
        bytes - self.spooled <= arriving_max || self.write().await
    }

    /// Writes what is in memory to the spool, on a thread that may block.
    async fn write(&mut self) -> bool {
        let spool = self.spool.take();
        let (bytes, pieces) = (self.filling.bytes(), self.filling.in_memory());
        let written = on_disk(&self.collector.zone, move |zone| {
            let mut spool = spool.map_or_else(|| zone.spool(), Ok)?;
            pieces.iter().try_for_each(|piece| spool.write(piece))?;
            Ok::<_, StoreError>(spool)
        });
        match written.await {
            Some(Ok(spool)) => {
                self.filling.move_to(&spool.file(), bytes);
                (self.spool, self.spooled) = (Some(spool), bytes);
                true
            }
            Some(Err(problem)) => {
                self.collector.context.upstream(Level::Crit, &problem.to_string(), None);
                false
            }
            None => false,
        }
    }

    /// It is not stored: those who wait for the page make it, readers have what is passed on to the flow.
    pub fn give_up(self) -> Filling {
        // First of all, so that no further reader joins.
        drop(self.collector.guard);
        self.filling.pass_on();
        self.filling
    }

    /// The body is whole: the entry is a hit from here on; its file is written behind it. If it cannot be stored
    /// after all, its readers get all of it. They are at its end when what is returned has ended: a reader that asks
    /// again then finds the page. `now` in seconds since 1970.
    #[must_use = "its readers wait for the end"]
    pub async fn finish(mut self, now: i64) -> Filling {
        let bytes = self.filling.bytes();
        let is_spooled = |this: &Self| this.spool.is_none() || bytes == this.spooled;
        if !self.spill().await || !(is_spooled(&self) || self.write().await) {
            return self.give_up();
        }
        let body = match self.spool {
            Some(spool) => spool.into_body(),
            None => {
                let whole = self.collector.zone.hold(joined(&self.filling.in_memory()));
                self.filling.move_into(&whole.bytes());
                EntryBody::Memory(whole)
            }
        };
        self.collector.store(body, bytes, self.hasher.finalize(), now);
        self.filling
    }
}

/// Milliseconds since the upstream was asked.
pub fn made_in(started: Instant) -> u32 {
    u32::try_from(turn::since(started).as_millis()).unwrap_or(u32::MAX)
}

/// An entry that is whole.
pub struct Made {
    pub entry: Arc<Entry>,
    /// Its own, which its head says.
    pub making: Arc<Making>,
    /// The claim, for those who wait.
    pub guard: Option<FillGuard>,
}

/// Puts an entry into its place: a hit from here on; its file is written behind it. `now` in seconds
/// since 1970.
pub fn store(zone: Arc<Zone>, made: Made, now: i64, context: Context) {
    let Made { entry, making, guard } = made;
    // The entry's own key: a variant does not take the place of the first one.
    let key = Key::new(entry.head.key.clone());
    if !zone.insert(&key, &entry, &making) {
        // Without it: those who wait look again.
        return drop(guard);
    }
    // Before the claim is given up, and with it the one of all nodes.
    zone.tell(&key, &entry, &making);
    if let Some(guard) = guard {
        guard.stored(Arc::clone(&entry));
    }
    let place = match zone.queue(&entry) {
        Ok(place) => place,
        Err(Refused { is_first }) => {
            if is_first {
                let path = zone.options().disk.path.display();
                let text =
                    format!("the disk of \"{path}\" cannot keep up: pages are kept in memory only");
                context.upstream(Level::Warn, &text, None);
            }
            return;
        }
    };
    tasks::of_request(async move {
        let written = on_disk_behind(&zone, move |zone| {
            let written = zone.write(&key, &entry, now, &making);
            drop((entry, place));
            written
        });
        if let Some(Err(problem)) = written.await {
            context.upstream(Level::Crit, &problem.to_string(), None);
        }
    });
}

fn joined(pieces: &[Bytes]) -> Bytes {
    if let [piece] = pieces {
        // A slice of a read buffer would keep the whole buffer alive.
        return Bytes::copy_from_slice(piece);
    }
    let mut body = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| body.extend_from_slice(piece));
    body.freeze()
}
