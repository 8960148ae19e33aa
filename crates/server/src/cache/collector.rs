//! Collects a body while it passes by, and stores it when it is whole.

use crate::logging::error::{Context, Level};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use yorozu_cache::{Entry, EntryHead, FillGuard, Key, Spool, StoreError, Zone};

/// A response on its way into a zone.
pub struct Collector {
    zone: Arc<Zone>,
    head: EntryHead,
    chunks: Vec<Bytes>,
    bytes: u64,
    hasher: crc32fast::Hasher,
    spool: Option<Spool>,
    /// Waiters are woken when this is dropped, after the entry is in place.
    _guard: Option<FillGuard>,
    context: Context,
}

impl Collector {
    pub fn new(
        zone: Arc<Zone>,
        head: EntryHead,
        guard: Option<FillGuard>,
        context: Context,
    ) -> Self {
        Self {
            zone,
            head,
            chunks: Vec::new(),
            bytes: 0,
            hasher: crc32fast::Hasher::new(),
            spool: None,
            _guard: guard,
            context,
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
            if self.bytes > self.zone.memory_body_max() { self.move_to_disk() } else { Ok(()) }
        };
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
        self.spool = Some(spool);
        Ok(())
    }

    /// The body is whole: the entry is a hit from here on; its file is written behind it.
    pub fn finish(mut self, now: i64) {
        let head = EntryHead {
            body_bytes: self.bytes,
            body_crc: std::mem::take(&mut self.hasher).finalize(),
            ..std::mem::take(&mut self.head)
        };
        let body = match self.spool.take() {
            Some(spool) => match spool.into_body() {
                Ok(body) => body,
                Err(problem) => {
                    return self.context.upstream(Level::Crit, &problem.to_string(), None);
                }
            },
            None => yorozu_cache::EntryBody::Memory(joined(std::mem::take(&mut self.chunks))),
        };
        let entry = Arc::new(Entry::new(head, body, now));
        store(Arc::clone(&self.zone), entry, now, self.context.clone());
    }
}

/// Puts an entry into its place: a hit from here on; its file is written behind it.
pub fn store(zone: Arc<Zone>, entry: Arc<Entry>, now: i64, context: Context) {
    // The entry's own key: a variant does not take the place of the first one.
    let key = Key::primary(entry.head.key.clone());
    zone.insert(&key, Arc::clone(&entry));
    let written = tokio::task::spawn_blocking(move || zone.write(&key, &entry, now));
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
