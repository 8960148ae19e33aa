//! Collects a body while it passes by, and stores it when it is whole.

use crate::logging::error::{Context, Level};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use yorozu_cache::{Entry, EntryBody, EntryHead, FillGuard, Key, Making, Spool, StoreError, Zone};

/// A response on its way into a zone.
pub struct Collector {
    zone: Arc<Zone>,
    head: EntryHead,
    chunks: Vec<Bytes>,
    bytes: u64,
    hasher: crc32fast::Hasher,
    spool: Option<Spool>,
    /// Waiters read along, and are woken when the entry is in place.
    guard: Option<FillGuard>,
    /// Since the upstream was asked for it.
    making: Arc<Making>,
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
        Self {
            zone,
            head,
            chunks: Vec::new(),
            bytes: 0,
            hasher: crc32fast::Hasher::new(),
            spool: None,
            guard,
            making,
            context,
        }
    }

    /// The body takes time: those who wait for it read along from here on. `announced`: its length, if
    /// the origin said it.
    pub fn let_others_read(&mut self, announced: Option<u64>) {
        if let Some(guard) = &mut self.guard {
            guard.begin(self.head.clone(), announced);
            for chunk in &self.chunks {
                guard.push(chunk);
            }
            if let Some(spool) = &self.spool {
                guard.move_to(spool.file(), self.bytes);
            }
        }
    }

    /// Takes the next bytes of the body; `false` if it cannot be stored any more.
    pub fn push(&mut self, bytes: &Bytes) -> bool {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        let result = if let Some(spool) = &mut self.spool {
            spool.write(bytes)
        } else {
            self.chunks.push(bytes.clone());
            if self.bytes > self.zone.memory_body_max() {
                return self.logged(Self::move_to_disk);
            }
            Ok(())
        };
        if let Some(guard) = self.guard.as_ref().filter(|_| result.is_ok()) {
            guard.push(bytes);
        }
        self.logged(|_| result)
    }

    fn logged(&mut self, step: impl FnOnce(&mut Self) -> Result<(), StoreError>) -> bool {
        let result = step(self);
        if let Err(problem) = &result {
            self.context.upstream(Level::Crit, &problem.to_string(), None);
        }
        result.is_ok()
    }

    fn move_to_disk(&mut self) -> Result<(), StoreError> {
        let mut spool = self.zone.spool()?;
        for chunk in self.chunks.drain(..) {
            spool.write(&chunk)?;
        }
        if let Some(guard) = &self.guard {
            guard.move_to(spool.file(), self.bytes);
        }
        self.spool = Some(spool);
        Ok(())
    }

    /// The body is whole: the entry is a hit from here on; its file is written behind it. `now` in
    /// seconds since 1970.
    pub fn finish(mut self, now: i64) {
        let head = EntryHead {
            body_bytes: self.bytes,
            body_crc: std::mem::take(&mut self.hasher).finalize(),
            ..std::mem::take(&mut self.head)
        };
        let body = match self.spool.take() {
            Some(spool) => spool.into_body(),
            None => EntryBody::Memory(joined(std::mem::take(&mut self.chunks))),
        };
        let entry = Arc::new(Entry::new(head, body, now));
        let made = Made { entry, making: self.making, guard: self.guard.take() };
        store(Arc::clone(&self.zone), made, now, self.context.clone());
    }
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
    let key = Key::primary(entry.head.key.clone());
    if !zone.insert(&key, &entry, &making) {
        if let Some(guard) = guard {
            guard.not_stored();
        }
        return;
    }
    if let Some(guard) = guard {
        guard.stored(Arc::clone(&entry));
    }
    let written = tokio::task::spawn_blocking(move || zone.write(&key, &entry, now, &making));
    tokio::task::spawn_local(async move {
        if let Ok(Err(problem)) = written.await {
            context.upstream(Level::Crit, &problem.to_string(), None);
        }
    });
}

fn joined(mut chunks: Vec<Bytes>) -> Bytes {
    if chunks.len() == 1 {
        // A slice of a read buffer would keep the whole buffer alive.
        return Bytes::copy_from_slice(&chunks.remove(0));
    }
    let mut body = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    for chunk in chunks {
        body.extend_from_slice(&chunk);
    }
    body.freeze()
}
