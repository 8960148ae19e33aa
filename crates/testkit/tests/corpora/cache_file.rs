//! Heads of cache files: what is read back is what was written, anything else is refused.

use bytes::Bytes;
use yorozu_cache::EntryHead;

pub(crate) fn check(input: &[u8]) {
    let (Some((crc, rest)), Some(whole)) = (input.split_first_chunk::<4>(), input.get(4..)) else {
        return;
    };
    // Checksums guard the door; give the decoder behind it the bytes all the same.
    let _ = EntryHead::decode(rest, u32::from_le_bytes(*crc));
    if let Some(head) = EntryHead::decode(whole, crc32(whole)) {
        assert_eq!(&head.encode()[16..], whole);
    }
    let head =
        EntryHead { key: Bytes::copy_from_slice(whole), status: 200, ..EntryHead::default() };
    let file = head.encode();
    let stored = u32::from_le_bytes([file[12], file[13], file[14], file[15]]);
    assert_eq!(EntryHead::decode(&file[16..], stored), Some(head));
}

/// CRC-32 (IEEE), bit by bit: the decoder's own must not be asked about itself.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}
