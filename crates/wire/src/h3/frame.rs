//! Integers, the numbers that have names, and the frames that a server writes (RFC 9114, sections 7, 8 and 11).

/// Most bytes of a frame's head.
pub const HEAD_BYTES_MAX: usize = 16;
/// One more than the greatest integer (RFC 9000, section 16).
const INTEGERS: u64 = 1 << 62;

/// Types of frames (section 11.2.1; RFC 9218, section 7.2).
#[expect(missing_docs, reason = "the RFCs' names")]
pub mod kind {
    pub const DATA: u64 = 0;
    pub const HEADERS: u64 = 1;
    pub const CANCEL_PUSH: u64 = 3;
    pub const SETTINGS: u64 = 4;
    pub const PUSH_PROMISE: u64 = 5;
    pub const GOAWAY: u64 = 7;
    pub const MAX_PUSH_ID: u64 = 13;
    pub const PRIORITY_UPDATE: u64 = 0xf0700;
    pub const PRIORITY_UPDATE_OF_PUSH: u64 = 0xf0701;

    /// Whether it is one of HTTP/2's that HTTP/3 has no use for: PRIORITY, PING, WINDOW_UPDATE, CONTINUATION.
    pub(crate) const fn is_reserved(kind: u64) -> bool {
        matches!(kind, 2 | 6 | 8 | 9)
    }
}

/// Types of unidirectional streams (section 6.2; RFC 9204, section 4.2).
#[expect(missing_docs, reason = "the RFCs' names")]
pub mod stream_kind {
    pub const CONTROL: u64 = 0;
    pub const PUSH: u64 = 1;
    pub const ENCODER: u64 = 2;
    pub const DECODER: u64 = 3;
}

/// Settings (section 7.2.4.1; RFC 9204, section 5).
#[expect(missing_docs, reason = "the RFCs' names")]
pub mod setting {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 6;
    pub const QPACK_BLOCKED_STREAMS: u64 = 7;

    /// Whether it is one of HTTP/2's that HTTP/3 has no use for.
    pub(crate) const fn is_reserved(name: u64) -> bool {
        matches!(name, 0 | 2..=5)
    }
}

/// Why a stream or a connection ends (section 8.1; RFC 9204, section 6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Code(pub u64);

#[expect(missing_docs, reason = "the RFCs' names, without H3_")]
impl Code {
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const CONNECT_ERROR: Self = Self(0x10f);
    pub const VERSION_FALLBACK: Self = Self(0x110);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);
}

/// What breaks the rules, and what it ends.
pub type Broken = crate::Broken<Code>;

/// The integer that bytes begin with, as soon as all of it is there, and how many bytes it has: 1, 2, 4 or 8. A
/// unidirectional stream begins with one, its type.
pub fn read_integer(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value =
        rest.iter().fold(u64::from(first & 63), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Appends an integer.
///
/// # Panics
/// It has more than 62 bits.
pub fn put_integer(out: &mut Vec<u8>, value: u64) {
    assert!(value < INTEGERS, "an integer of 62 bits");
    let length = integer_bytes(value);
    let bytes = (value | u64::from(length.trailing_zeros()) << (8 * length - 2)).to_be_bytes();
    out.extend_from_slice(&bytes[8 - length..]);
}

const fn integer_bytes(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends the head of a frame whose payload has `length` bytes.
///
/// # Panics
/// One of them has more than 62 bits.
pub fn put_head(out: &mut Vec<u8>, kind: u64, length: u64) {
    put_integer(out, kind);
    put_integer(out, length);
}

/// How many bytes the head of a frame has.
pub const fn head_bytes(kind: u64, length: u64) -> usize {
    integer_bytes(kind) + integer_bytes(length)
}

/// Appends what a control stream begins with: its type, and SETTINGS that allow requests a dynamic table of this many bytes
/// and this many streams that wait for its entries.
///
/// # Panics
/// One of them has more than 62 bits.
pub fn put_control_start(out: &mut Vec<u8>, table_capacity: u64, blocked_streams: u64) {
    put_integer(out, stream_kind::CONTROL);
    let mut pairs = Vec::with_capacity(18);
    let settings = [
        (setting::QPACK_MAX_TABLE_CAPACITY, table_capacity),
        (setting::QPACK_BLOCKED_STREAMS, blocked_streams),
    ];
    for (name, value) in settings {
        put_integer(&mut pairs, name);
        put_integer(&mut pairs, value);
    }
    put_head(out, kind::SETTINGS, pairs.len() as u64);
    out.extend_from_slice(&pairs);
}

/// Appends GOAWAY: requests on streams with `stream` or a higher number are not answered.
///
/// # Panics
/// It has more than 62 bits.
pub fn put_goaway(out: &mut Vec<u8>, stream: u64) {
    put_head(out, kind::GOAWAY, integer_bytes(stream) as u64);
    put_integer(out, stream);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_the_rfc() {
        // RFC 9000, section A.1.
        let examples: [(u64, &[u8]); 4] = [
            (151_288_809_941_952_652, &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (15_293, &[0x7b, 0xbd]),
            (37, &[0x25]),
        ];
        for (value, bytes) in examples {
            let mut out = Vec::new();
            put_integer(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(read_integer(bytes), Some((value, bytes.len())));
            assert_eq!(read_integer(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(read_integer(&[0x40, 0x25]), Some((37, 2)));
        assert_eq!(read_integer(&[]), None);
    }

    #[test]
    fn integers_take_as_few_bytes_as_they_can() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, INTEGERS - 1] {
            let mut out = Vec::new();
            put_integer(&mut out, value);
            assert_eq!(read_integer(&out), Some((value, out.len())));
            assert_eq!(integer_bytes(value), out.len());
        }
    }

    #[test]
    fn a_server_says_what_it_takes() {
        let mut out = Vec::new();
        put_control_start(&mut out, 4096, 128);
        assert_eq!(out, [0, 4, 6, 1, 0x50, 0, 7, 0x40, 0x80]);
        out.clear();
        put_goaway(&mut out, 400);
        assert_eq!(out, [7, 2, 0x41, 0x90]);
    }
}
