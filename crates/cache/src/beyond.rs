//! A tier beyond this machine's, which is its user's: what the zone tells it, and entries as bytes for it.
//!
//! Purges of other machines have an order of their own. What is known of them when a response begins to be made
//! ([`Known`]) goes with it, so that who finds it there can tell which of them it is older than.

use crate::entry::{Entry, EntryBody, EntryHead, PREFIX_BYTES, Prefix, decode_forms, encode_form};
use crate::purge_list::Making;
use crate::{Key, Zone};
use bytes::Bytes;
use std::sync::{Arc, PoisonError};

/// How much is known of the purges of other machines: the epoch of their order, and in it later is greater.
pub type Known = (u64, u64, u64);

/// The tier, as its user has it.
pub trait Beyond: Send + Sync {
    /// What is known at this moment.
    fn known(&self) -> Known;

    /// The entry is in its place, or has another coding by now.
    fn stored(&self, key: &Key, entry: &Arc<Entry>, known: Known);
}

impl Zone {
    /// From here on `beyond` is told what is stored; `None`: no tier is.
    pub fn set_beyond(&self, beyond: Option<Arc<dyn Beyond>>) {
        *self.beyond.write().unwrap_or_else(PoisonError::into_inner) = beyond;
    }

    fn beyond(&self) -> Option<Arc<dyn Beyond>> {
        self.beyond.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known now of purges of other machines, if there is a tier beyond this one's.
    pub(crate) fn known(&self) -> Option<Known> {
        self.beyond().map(|beyond| beyond.known())
    }

    /// Has the tier beyond have an entry that was made here, and later its other codings. One that came from there is there.
    pub fn tell(&self, key: &Key, entry: &Arc<Entry>, making: &Making) {
        let Some(known) = making.known else { return };
        if entry.known.set(known).is_ok() {
            self.tell_again(key, entry);
        }
    }

    /// The same of one that was shared before, or came from there.
    pub(crate) fn tell_again(&self, key: &Key, entry: &Arc<Entry>) {
        if let (Some(known), Some(beyond)) = (entry.known.get(), self.beyond()) {
            beyond.stored(key, entry, *known);
        }
    }

    /// The entry of a key that [`Entry::to_bytes`] wrote, as one that is made here with `making`; `known`: when it began
    /// to be made there. `None` if any byte is not as it was written, or it is another key's.
    pub fn entry_of(
        &self,
        bytes: &Bytes,
        key: &Key,
        (making, known): (&Making, Known),
        now: i64,
    ) -> Option<Entry> {
        let Prefix::Head(head_bytes, crc) = EntryHead::prefix(bytes.first_chunk()?) else {
            return None;
        };
        let rest = &bytes[PREFIX_BYTES..];
        let head = EntryHead::decode(rest.get(..head_bytes)?, crc)?;
        let body_bytes = usize::try_from(head.body_bytes).ok()?;
        let body = rest.get(head_bytes..head_bytes.checked_add(body_bytes)?)?;
        let is_good = head.key == key.as_bytes() && crc32fast::hash(body) == head.body_crc;
        if !is_good || head.body_bytes > self.memory_body_max() {
            return None;
        }
        // Owned: the rest of what came with it is let go.
        let both = self.hold(Bytes::copy_from_slice(&rest[head_bytes..]));
        let (body, forms) = (both.slice(0..body_bytes), both.slice(body_bytes..both.len()));
        let head = EntryHead { began: making.moment(), is_purged: false, ..head };
        let entry = Entry::new(head, EntryBody::Memory(body), now);
        decode_forms(&forms, &entry)?;
        let _ = entry.known.set(known);
        Some(entry)
    }
}

impl Making {
    /// The same, with what was known before it began.
    pub(crate) fn with_known(self, known: Option<Known>) -> Self {
        let mut made = self;
        made.known = known;
        made
    }
}

impl Entry {
    /// The entry as its file has it, in one piece; `None` if its body is not in memory.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let EntryBody::Memory(body) = &self.body else { return None };
        let mut out = self.head.encode();
        out.extend_from_slice(body);
        for (place, form) in self.forms.iter().enumerate() {
            if let Some(made) = form.made() {
                out.extend(encode_form(place, made));
                out.extend_from_slice(&made.1);
            }
        }
        Some(out)
    }
}
