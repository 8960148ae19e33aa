//! The pages in memory that were used last, by a list beside their files: after a start they are the first to be in
//! memory again.
//!
//! The list is a hint. What is read by it is judged like any other file; one that is damaged or missing costs nothing
//! but the pages' first reading.

use crate::Key;
use crate::StoreError;
use crate::files;
use crate::tiers::Tiers;
use bytes::Bytes;
use std::sync::atomic::{AtomicU32, Ordering};

const NAME: &str = "yorozu.hottest";
/// Most keys of a list; chosen: what a few seconds of reading bring.
const KEYS_MAX: usize = 10_000;
/// Longest list, in bytes; chosen: keys of 400 bytes.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// What is known of the list on the disk.
#[derive(Debug, Default)]
pub(crate) struct Hottest {
    /// The checksum of what was written last; 0 before.
    written: AtomicU32,
}

impl Hottest {
    /// Writes the list, if it is another one than before. Blocks.
    ///
    /// # Errors
    /// As the disk has it.
    pub(crate) fn write(&self, tiers: &Tiers) -> Result<(), StoreError> {
        let mut keys: Vec<_> = tiers.all_in_memory().collect();
        keys.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.last_used()));
        let list = encoded(keys.iter().map(|(key, _)| key));
        let sum = crc32fast::hash(&list).max(1);
        if self.written.load(Ordering::Relaxed) == sum {
            return Ok(());
        }
        let path = tiers.options.path.join(NAME);
        files::replace(&path, &tiers.temporary_path(), &list, false)?;
        self.written.store(sum, Ordering::Relaxed);
        Ok(())
    }
}

/// The keys of the list, the one that was used last first. Blocks.
pub(crate) fn read(tiers: &Tiers) -> Vec<Key> {
    match files::read_all(&tiers.options.path.join(NAME)) {
        Ok(list) => decoded(&list),
        Err(_) => Vec::new(),
    }
}

/// Each key behind its length.
fn encoded<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<u8> {
    let mut list = Vec::new();
    for key in keys.take(KEYS_MAX) {
        let bytes = key.as_bytes();
        if list.len() + 4 + bytes.len() > BYTES_MAX {
            break;
        }
        let length = u32::try_from(bytes.len()).expect("shorter than the list");
        list.extend(length.to_le_bytes());
        list.extend(bytes);
    }
    list
}

/// What is whole of a list.
fn decoded(mut list: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((length, rest)) = list.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((key, rest)) = rest.split_at_checked(length) else { break };
        list = rest;
        keys.push(Key::new(Bytes::copy_from_slice(key)));
        if keys.len() == KEYS_MAX {
            break;
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_whole_of_a_list_is_read() {
        let keys =
            ["a", "", "a longer key"].map(|text| Key::new(Bytes::from_static(text.as_bytes())));
        let list = encoded(keys.iter());
        assert_eq!(decoded(&list), keys);
        assert_eq!(decoded(&list[..list.len() - 1]), keys[..2]);
        assert_eq!(decoded(&[255; 9]), []);
        let long = Key::new(Bytes::from(vec![b'x'; BYTES_MAX / 2]));
        assert_eq!(decoded(&encoded([&long, &long].into_iter())).len(), 1);
    }
}
