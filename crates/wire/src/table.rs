//! The dynamic table of compressed fields (RFC 7541, sections 2.3.2 and 4), which QPACK shares.

use std::collections::VecDeque;

/// What an entry counts beside its bytes (section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// A field: the name, and the value behind it.
#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn field(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name_bytes)
    }

    fn counts(&self) -> usize {
        self.text.len() + ENTRY_BYTES
    }
}

/// Fields that were said, as many as fit.
#[derive(Debug)]
pub(crate) struct Table {
    /// The newest first.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Table {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// The field before which `newer` others were put in last.
    pub(crate) fn get(&self, newer: usize) -> Option<(&[u8], &[u8])> {
        self.entries.get(newer).map(Entry::field)
    }

    /// Puts a field in, whose name has the first bytes of `text`. One that is larger than the table empties it
    /// (section 4.4); whether it was in.
    pub(crate) fn insert(&mut self, text: &[u8], name_bytes: usize) -> bool {
        let counts = text.len() + ENTRY_BYTES;
        self.shrink(counts);
        let fits = counts <= self.bytes_max;
        if fits {
            self.bytes += counts;
            self.entries.push_front(Entry { text: text.into(), name_bytes });
        }
        fits
    }

    pub(crate) fn resize(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.shrink(0);
    }

    /// Makes room.
    fn shrink(&mut self, wanted: usize) {
        while self.bytes + wanted > self.bytes_max {
            let Some(oldest) = self.entries.pop_back() else { return };
            self.bytes -= oldest.counts();
        }
    }

    /// How many entries there are, and how many bytes they count.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}
