//! A response on its way into the store, shared with those who wait for it while it arrives.

use crate::entry::EntryHead;
use bytes::Bytes;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The maker ended before the body did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// Bytes of a body.
#[derive(Clone, Debug)]
pub enum Piece {
    /// In memory.
    Memory(Bytes),
    /// In the maker's temporary file, since the body outgrew memory.
    File(Arc<File>, Range<u64>),
}

/// How far a follower has read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    bytes: u64,
    chunk: usize,
}

#[derive(Debug, Default)]
struct Arrived {
    chunks: Vec<Bytes>,
    bytes: u64,
    file: Option<Arc<File>>,
    ended: Option<Result<(), Broken>>,
}

/// A body that arrives, from its first byte on.
#[derive(Debug)]
pub struct Flow {
    /// What is stored about the response, but for length and checksum.
    pub head: EntryHead,
    /// The length the origin announced.
    pub announced: Option<u64>,
    arrived: Mutex<Arrived>,
    changed: Notify,
}

impl Flow {
    pub(crate) fn new(head: EntryHead, announced: Option<u64>) -> Self {
        Self { head, announced, arrived: Mutex::default(), changed: Notify::new() }
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        // Each use leaves the state whole: a panic elsewhere cannot leave it half changed.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, bytes: &Bytes) {
        let mut arrived = self.arrived();
        arrived.bytes += bytes.len() as u64;
        if arrived.file.is_none() {
            arrived.chunks.push(bytes.clone());
        }
        drop(arrived);
        self.changed.notify_waiters();
    }

    /// From here on the body is read from `file`, which holds its first `bytes` bytes.
    pub(crate) fn move_to(&self, file: Arc<File>, bytes: u64) {
        let mut arrived = self.arrived();
        arrived.chunks.clear();
        arrived.file = Some(file);
        arrived.bytes = bytes;
        drop(arrived);
        self.changed.notify_waiters();
    }

    pub(crate) fn end(&self, result: Result<(), Broken>) {
        self.arrived().ended.get_or_insert(result);
        self.changed.notify_waiters();
    }

    /// Would [`Flow::next`] have to wait?
    pub fn is_waiting(&self, place: &Place) -> bool {
        let arrived = self.arrived();
        arrived.bytes == place.bytes && arrived.ended.is_none()
    }

    /// The next bytes behind `place`; `None` at the end.
    ///
    /// # Errors
    /// The maker ended early.
    ///
    /// # Cancel safety
    /// `place` moves only when bytes are returned.
    pub async fn next(&self, place: &mut Place) -> Result<Option<Piece>, Broken> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(piece) = self.behind(place) {
                return Ok(Some(piece));
            }
            let ended = self.arrived().ended;
            if let Some(ended) = ended {
                // What came before the end may have come since it was looked for.
                return match self.behind(place) {
                    Some(piece) => Ok(Some(piece)),
                    None => ended.map(|()| None),
                };
            }
            changed.await;
        }
    }

    fn behind(&self, place: &mut Place) -> Option<Piece> {
        let arrived = self.arrived();
        if arrived.bytes == place.bytes {
            return None;
        }
        if let Some(file) = &arrived.file {
            let range = place.bytes..arrived.bytes;
            place.bytes = arrived.bytes;
            return Some(Piece::File(Arc::clone(file), range));
        }
        let chunk = arrived.chunks.get(place.chunk)?;
        place.chunk += 1;
        place.bytes += chunk.len() as u64;
        Some(Piece::Memory(chunk.clone()))
    }
}
