//! FastCGI: records, and the name-value pairs of a request.
//!
//! One request per connection at a time, with request id 1, as every known FastCGI server expects.
//!
//! # Source
//! FastCGI specification 1.0, sections 3 and 8.

use crate::WireError;

/// Bytes of a record's head.
pub const HEAD_BYTES: usize = 8;
/// Most content bytes of one record that stay a multiple of 8 (no padding needed).
pub const CONTENT_BYTES_MAX: usize = 65528;
/// The id of the one request on a connection.
pub const REQUEST_ID: u16 = 1;

const VERSION_1: u8 = 1;
const ROLE_RESPONDER: u8 = 1;
const FLAG_KEEP_CONN: u8 = 1;

/// Record types this side writes or reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordKind {
    /// Starts a request.
    BeginRequest,
    /// Ends a response.
    EndRequest,
    /// Name-value pairs.
    Params,
    /// The request's body.
    Stdin,
    /// The response: head and body.
    Stdout,
    /// Text for the error log.
    Stderr,
}

impl RecordKind {
    const fn code(self) -> u8 {
        match self {
            Self::BeginRequest => 1,
            Self::EndRequest => 3,
            Self::Params => 4,
            Self::Stdin => 5,
            Self::Stdout => 6,
            Self::Stderr => 7,
        }
    }
}

/// The head of a record an application sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordHead {
    /// `Stdout`, `Stderr` or `EndRequest`.
    pub kind: RecordKind,
    /// Content bytes that follow.
    pub content_bytes: usize,
    /// Padding bytes behind the content.
    pub padding_bytes: usize,
}

/// Reads the head of one record. `Ok(None)`: not enough bytes yet, nothing consumed.
///
/// # Errors
/// Another version, type or request id than a responder may send.
pub fn decode_head(input: &[u8]) -> Result<Option<RecordHead>, WireError> {
    let Some((bytes, _)) = input.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [version, kind, id_high, id_low, length_high, length_low, padding, _reserved] = *bytes;
    if version != VERSION_1 {
        return Err(WireError::FastcgiVersion(version));
    }
    let kind = match kind {
        3 => RecordKind::EndRequest,
        6 => RecordKind::Stdout,
        7 => RecordKind::Stderr,
        other => return Err(WireError::FastcgiType(other)),
    };
    let request_id = u16::from_be_bytes([id_high, id_low]);
    if request_id != REQUEST_ID {
        return Err(WireError::FastcgiRequestId(request_id));
    }
    Ok(Some(RecordHead {
        kind,
        content_bytes: usize::from(u16::from_be_bytes([length_high, length_low])),
        padding_bytes: usize::from(padding),
    }))
}

/// The head of a record that [`padding`] follows.
fn head(kind: RecordKind, content_bytes: usize) -> [u8; HEAD_BYTES] {
    let padding_bytes = u8::try_from(padding(content_bytes).len()).expect("below 8");
    let content = u16::try_from(content_bytes).expect("records are cut at CONTENT_BYTES_MAX");
    let [id_high, id_low] = REQUEST_ID.to_be_bytes();
    let [length_high, length_low] = content.to_be_bytes();
    [VERSION_1, kind.code(), id_high, id_low, length_high, length_low, padding_bytes, 0]
}

/// What makes the content of a record a multiple of 8.
fn padding(content_bytes: usize) -> &'static [u8] {
    &[0; 8][..(8 - content_bytes % 8) % 8]
}

/// Starts a request in the responder role.
pub fn begin_request(out: &mut Vec<u8>, keep_conn: bool) {
    out.extend(head(RecordKind::BeginRequest, 8));
    let flags = if keep_conn { FLAG_KEEP_CONN } else { 0 };
    out.extend([0, ROLE_RESPONDER, flags, 0, 0, 0, 0, 0]);
}

/// Appends one name-value pair to the text of the params stream.
pub fn pair(params: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    pair_length(params, name.len());
    pair_length(params, value.len());
    params.extend_from_slice(name);
    params.extend_from_slice(value);
}

/// Appends one name-value pair whose value `write` appends itself, and says whether it is wanted.
pub fn pair_with(params: &mut Vec<u8>, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
    let start = params.len();
    let length_at = begin_pair(params, name);
    value_with(params, start, length_at, write);
}

/// Appends a pair up to its value; where the value's length stands.
fn begin_pair(params: &mut Vec<u8>, name: &[u8]) -> usize {
    pair_length(params, name.len());
    // Room for a short length; a long one moves the value.
    let length_at = params.len();
    params.push(0);
    params.extend_from_slice(name);
    length_at
}

/// A name-value pair up to its value, to be appended often.
#[derive(Clone, Debug)]
pub struct PairStart {
    text: Box<[u8]>,
    length_at: usize,
}

impl PairStart {
    /// Of a pair with this name.
    pub fn new(name: &[u8]) -> Self {
        let mut text = Vec::new();
        let length_at = begin_pair(&mut text, name);
        Self { text: text.into(), length_at }
    }

    /// As [`pair_with`].
    pub fn put(&self, params: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = params.len();
        params.extend_from_slice(&self.text);
        value_with(params, start, start + self.length_at, write);
    }
}

/// Appends the value of the pair from `start` on, or takes the pair away.
fn value_with(
    params: &mut Vec<u8>,
    start: usize,
    length_at: usize,
    write: impl FnOnce(&mut Vec<u8>) -> bool,
) {
    let value_at = params.len();
    if !write(params) {
        params.truncate(start);
        return;
    }
    let length = params.len() - value_at;
    match u8::try_from(length) {
        Ok(short @ 0..=127) => params[length_at] = short,
        _ => {
            let mut long = Vec::with_capacity(4);
            pair_length(&mut long, length);
            params.splice(length_at..=length_at, long);
        }
    }
}

fn pair_length(params: &mut Vec<u8>, length: usize) {
    match u8::try_from(length) {
        Ok(short @ 0..=127) => params.push(short),
        _ => {
            let long = u32::try_from(length).expect("names and values come from bounded heads");
            params.extend((long | 1 << 31).to_be_bytes());
        }
    }
}

/// Appends the head of a stdin record of `length` content bytes; returns the padding behind them.
pub fn stdin_head(out: &mut Vec<u8>, length: usize) -> &'static [u8] {
    out.extend(head(RecordKind::Stdin, length));
    padding(length)
}

/// Appends `content` as records of a stream; an empty `content` ends the stream.
pub fn stream(out: &mut Vec<u8>, kind: RecordKind, content: &[u8]) {
    if content.is_empty() {
        out.extend(head(kind, 0));
        return;
    }
    for part in content.chunks(CONTENT_BYTES_MAX) {
        out.extend(head(kind, part.len()));
        out.extend_from_slice(part);
        out.extend_from_slice(padding(part.len()));
    }
}

/// As [`stream`], of content that `write` appends itself.
pub fn stream_with(out: &mut Vec<u8>, kind: RecordKind, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    let content_at = start + HEAD_BYTES;
    // Room for the head of one record; content of several moves.
    out.extend([0; HEAD_BYTES]);
    write(out);
    let length = out.len() - content_at;
    if length > CONTENT_BYTES_MAX {
        let content = out.split_off(content_at);
        out.truncate(start);
        stream(out, kind, &content);
    } else {
        out[start..content_at].copy_from_slice(&head(kind, length));
        out.extend_from_slice(padding(length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_back() {
        let mut out = Vec::new();
        stream(&mut out, RecordKind::Stdout, b"hello");
        assert_eq!(out.len(), HEAD_BYTES + 8);
        let head = decode_head(&out).unwrap().unwrap();
        let expected = RecordHead { kind: RecordKind::Stdout, content_bytes: 5, padding_bytes: 3 };
        assert_eq!(head, expected);
        for cut in 0..HEAD_BYTES {
            assert_eq!(decode_head(&out[..cut]), Ok(None));
        }
    }

    #[test]
    fn foreign_records_are_refused() {
        assert_eq!(decode_head(&[2, 6, 0, 1, 0, 0, 0, 0]), Err(WireError::FastcgiVersion(2)));
        assert_eq!(decode_head(&[1, 1, 0, 1, 0, 0, 0, 0]), Err(WireError::FastcgiType(1)));
        assert_eq!(decode_head(&[1, 6, 0, 2, 0, 0, 0, 0]), Err(WireError::FastcgiRequestId(2)));
    }

    #[test]
    fn long_pairs_take_four_length_bytes() {
        let mut params = Vec::new();
        pair(&mut params, b"A", &[b'x'; 200]);
        assert_eq!(&params[..6], &[1, 0x80, 0, 0, 200, b'A']);
        assert_eq!(params.len(), 206);
    }

    #[test]
    fn pairs_may_be_written_in_place() {
        for value in [&[b'x'; 5][..], &[b'x'; 127], &[b'x'; 128], &[b'x'; 70_000], b""] {
            let (mut direct, mut in_place) = (b"before".to_vec(), b"before".to_vec());
            pair(&mut direct, b"NAME", value);
            pair_with(&mut in_place, b"NAME", |out| {
                out.extend_from_slice(value);
                true
            });
            assert_eq!(direct, in_place, "{}", value.len());
            pair_with(&mut in_place, b"NAME", |out| {
                out.extend_from_slice(b"unwanted");
                false
            });
            assert_eq!(direct, in_place);
        }
    }

    #[test]
    fn streams_may_be_written_in_place() {
        for length in [0, 1, 8, 9, CONTENT_BYTES_MAX, CONTENT_BYTES_MAX + 1, 200_000] {
            let (mut direct, mut in_place) = (b"before".to_vec(), b"before".to_vec());
            stream(&mut direct, RecordKind::Params, &vec![7; length]);
            stream_with(&mut in_place, RecordKind::Params, |out| out.extend(vec![7; length]));
            assert!(direct == in_place, "{length}");
        }
    }

    #[test]
    fn long_streams_are_cut_into_records() {
        let mut out = Vec::new();
        stream(&mut out, RecordKind::Stdin, &vec![7; CONTENT_BYTES_MAX + 1]);
        assert_eq!(out.len(), CONTENT_BYTES_MAX + 1 + 2 * HEAD_BYTES + 7);
        out.clear();
        stream(&mut out, RecordKind::Stdin, b"");
        assert_eq!(out, [1, 5, 0, 1, 0, 0, 0, 0]);
    }
}
