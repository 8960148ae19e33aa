//! memcached's text protocol, as far as reading one value needs it.
//!
//! # Source
//! memcached, `doc/protocol.txt`, "Retrieval command".

use crate::WireError;
use std::ops::Range;

/// Longest key memcached takes, in bytes.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest first line of an answer: `VALUE`, a key, flags, length and a unique number.
const LINE_BYTES_MAX: usize = 512;

/// What [`get`] sends beside the key, in bytes.
pub const GET_BYTES: usize = b"get \r\n".len();
/// What stands behind a value, in bytes.
pub const VALUE_END_BYTES: usize = VALUE_END.len();
const VALUE_END: &[u8] = b"\r\nEND\r\n";

/// Appends `get key`.
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// Appends `set key`, or `add key` where there is none, with a value and how many seconds it lives.
pub fn put(out: &mut Vec<u8>, is_new: bool, key: &[u8], seconds: u32, value: &[u8]) {
    out.extend_from_slice(if is_new { b"add " } else { b"set " });
    out.extend_from_slice(key);
    out.extend_from_slice(format!(" 0 {seconds} {}\r\n", value.len()).as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `delete key`.
pub fn delete(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"delete ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// The answer to [`put`] or [`delete`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Done {
    /// It was done.
    Yes,
    /// It was not: there is one already, or none.
    No,
    /// `SERVER_ERROR …`: it has no memory for it, or takes none so large. The value was read all the same.
    Refused(String),
    /// `ERROR` or `CLIENT_ERROR …`: the line. What was read of the command is not known.
    Error(String),
}

/// Reads the answer to [`put`] or [`delete`] and says how long it is; `Ok(None)` if its end has not arrived.
///
/// # Errors
/// [`WireError::Memcached`]
pub fn done(input: &[u8]) -> Result<Option<(Done, usize)>, WireError> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > LINE_BYTES_MAX { Err(WireError::Memcached) } else { Ok(None) };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(WireError::Memcached)?;
    let shown = || String::from_utf8_lossy(line).into_owned();
    let done = match line {
        b"STORED" | b"DELETED" => Done::Yes,
        b"NOT_STORED" | b"NOT_FOUND" => Done::No,
        _ if line.starts_with(b"SERVER_ERROR") => Done::Refused(shown()),
        _ if is_error(line) => Done::Error(shown()),
        _ => return Err(WireError::Memcached),
    };
    Ok(Some((done, end + 1)))
}

fn is_error(line: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| line.starts_with(word))
}

/// The first line of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// There is no such key.
    NotFound,
    /// A value of this many bytes follows, then what [`value_end`] reads.
    Value {
        /// Where the key stands.
        key: Range<usize>,
        /// What the client that stored it set.
        flags: u32,
        /// Bytes of the value.
        length: u64,
    },
    /// `ERROR`, `CLIENT_ERROR …` or `SERVER_ERROR …`: the line.
    Error(Range<usize>),
}

/// Reads the first line of an answer and says how long it is; `Ok(None)` if its end has not arrived.
///
/// # Errors
/// [`WireError::Memcached`]
pub fn reply(input: &[u8]) -> Result<Option<(Reply, usize)>, WireError> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > LINE_BYTES_MAX { Err(WireError::Memcached) } else { Ok(None) };
    };
    let line = input[..end].strip_suffix(b"\r").ok_or(WireError::Memcached)?;
    let consumed = end + 1;
    if line == b"END" {
        return Ok(Some((Reply::NotFound, consumed)));
    }
    if is_error(line) {
        return Ok(Some((Reply::Error(0..line.len()), consumed)));
    }
    let broken = WireError::Memcached;
    let rest = line.strip_prefix(b"VALUE ").ok_or(broken)?;
    let key_bytes = rest.iter().position(|byte| *byte == b' ').ok_or(broken)?;
    let mut numbers = rest[key_bytes + 1..].split(|byte| *byte == b' ');
    let flags =
        numbers.next().and_then(number).and_then(|n| u32::try_from(n).ok()).ok_or(broken)?;
    let length = numbers.next().and_then(number).ok_or(broken)?;
    Ok(Some((Reply::Value { key: 6..6 + key_bytes, flags, length }, consumed)))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads what stands behind a value; how long it is, `Ok(None)` if it has not arrived.
///
/// # Errors
/// [`WireError::Memcached`]
pub fn value_end(input: &[u8]) -> Result<Option<usize>, WireError> {
    let length = input.len().min(VALUE_END_BYTES);
    if input[..length] != VALUE_END[..length] {
        return Err(WireError::Memcached);
    }
    Ok((length == VALUE_END_BYTES).then_some(VALUE_END_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let value = Reply::Value { key: 6..8, flags: 2, length: 5 };
        assert_eq!(reply(b"VALUE /a 2 5\r\nhello"), Ok(Some((value.clone(), 14))));
        assert_eq!(reply(b"VALUE /a 2 5 99\r\n"), Ok(Some((value, 17))));
        assert_eq!(reply(b"END\r\n"), Ok(Some((Reply::NotFound, 5))));
        assert_eq!(reply(b"SERVER_ERROR x\r\n"), Ok(Some((Reply::Error(0..14), 16))));
        assert_eq!(reply(b"VALUE /a 2"), Ok(None));
        assert_eq!(value_end(b"\r\nEND\r\nVALUE"), Ok(Some(7)));
        assert_eq!(value_end(b"\r\nEN"), Ok(None));
    }

    #[test]
    fn values_are_stored() {
        let mut out = Vec::new();
        put(&mut out, false, b"a", 60, b"x\r\ny");
        put(&mut out, true, b"b", 0, b"");
        delete(&mut out, b"a");
        assert_eq!(out, b"set a 0 60 4\r\nx\r\ny\r\nadd b 0 0 0\r\n\r\ndelete a\r\n");
        assert_eq!(done(b"STORED\r\nN"), Ok(Some((Done::Yes, 8))));
        assert_eq!(done(b"NOT_FOUND\r\n"), Ok(Some((Done::No, 11))));
        let refused = Done::Refused("SERVER_ERROR out of memory".to_owned());
        assert_eq!(done(b"SERVER_ERROR out of memory\r\n"), Ok(Some((refused, 28))));
        assert_eq!(
            done(b"CLIENT_ERROR x\r\n"),
            Ok(Some((Done::Error("CLIENT_ERROR x".to_owned()), 16)))
        );
        assert_eq!(done(b"ERROR\r\n"), Ok(Some((Done::Error("ERROR".to_owned()), 7))));
        assert_eq!(done(b"STOR"), Ok(None));
        assert_eq!(done(b"END\r\n"), Err(WireError::Memcached));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["HTTP/1.1 200 OK\r\n", "VALUE a\r\n", "VALUE a b 5\r\n", "END\n"] {
            assert_eq!(reply(text.as_bytes()), Err(WireError::Memcached), "{text}");
        }
        assert_eq!(reply(&[b'x'; 600]), Err(WireError::Memcached));
        assert_eq!(value_end(b"x"), Err(WireError::Memcached));
    }
}
