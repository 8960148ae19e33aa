//! Bodies in chunks (RFC 9112, section 7.1).

use super::trimmed;
use crate::WireError;
use memchr::memchr;
use std::ops::Range;

/// Decodes a chunked body.
///
/// | state | next |
/// | --- | --- |
/// | size line | data, or the trailer when the size is 0 |
/// | data | end of data |
/// | end of data | size line |
/// | trailer | done at the empty line |
#[derive(Clone, Debug)]
pub struct Chunked {
    state: ChunkedState,
    line_bytes: usize,
    lf: BareLf,
    /// The trailer section, if it is wanted.
    trailers: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ChunkedState {
    Size,
    Data { left: u64 },
    DataEnd,
    Trailer,
    Done,
}

/// Whether a line of the chunked framing may end with LF alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BareLf {
    /// From an upstream, as nginx.
    Accept,
    /// From a client, as nginx since 1.29.4: two readers could disagree.
    Refuse,
}

/// One step of [`Chunked::next`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ChunkedStep {
    /// Body bytes at this range of the input; continue behind it.
    Data(Range<usize>),
    /// The body ended; this many bytes of the input belong to it.
    Done(usize),
    /// This many bytes are used up; more are needed.
    Partial(usize),
}

/// Longest size or trailer line; chosen: extensions and trailers are ignored, not stored.
const CHUNK_LINE_BYTES_MAX: usize = 8192;

impl Chunked {
    /// At the start of a body.
    pub fn new(lf: BareLf) -> Self {
        Self { state: ChunkedState::Size, line_bytes: 0, lf, trailers: None }
    }

    /// At the start of a body whose trailer section is kept.
    pub fn with_trailers(lf: BareLf) -> Self {
        Self { trailers: Some(Vec::new()), ..Self::new(lf) }
    }

    /// The trailer section, lines with their ends, up to and including the empty line.
    pub fn take_trailers(&mut self) -> Vec<u8> {
        self.trailers.take().unwrap_or_default()
    }

    /// Whether the end was read.
    pub fn is_done(&self) -> bool {
        self.state == ChunkedState::Done
    }

    /// Reads on; the caller drops the bytes used up and calls again.
    ///
    /// # Errors
    /// [`WireError::Chunk`].
    pub fn next(&mut self, input: &[u8]) -> Result<ChunkedStep, WireError> {
        let mut at = 0;
        loop {
            match self.state {
                ChunkedState::Done => return Ok(ChunkedStep::Done(at)),
                ChunkedState::Data { left } => {
                    if at == input.len() {
                        return Ok(ChunkedStep::Partial(at));
                    }
                    let available = u64::try_from(input.len() - at).unwrap_or(u64::MAX).min(left);
                    let end = at + usize::try_from(available).unwrap_or(usize::MAX);
                    self.state = match left - available {
                        0 => ChunkedState::DataEnd,
                        left => ChunkedState::Data { left },
                    };
                    return Ok(ChunkedStep::Data(at..end));
                }
                ChunkedState::Size | ChunkedState::DataEnd | ChunkedState::Trailer => {
                    let Some(line) = self.line(&input[at..])? else {
                        return Ok(ChunkedStep::Partial(at));
                    };
                    let text = &input[at..at + line.text];
                    self.line_read(text)?;
                    at += line.consumed;
                }
            }
        }
    }

    fn line_read(&mut self, text: &[u8]) -> Result<(), WireError> {
        if let (ChunkedState::Trailer, Some(trailers)) = (self.state, &mut self.trailers) {
            trailers.extend_from_slice(text);
            trailers.extend_from_slice(b"\r\n");
        }
        self.state = match self.state {
            ChunkedState::DataEnd if text.is_empty() => ChunkedState::Size,
            ChunkedState::DataEnd => return Err(WireError::Chunk),
            ChunkedState::Trailer if text.is_empty() => ChunkedState::Done,
            ChunkedState::Trailer => {
                self.line_bytes += text.len();
                if self.line_bytes > CHUNK_LINE_BYTES_MAX {
                    return Err(WireError::Chunk);
                }
                ChunkedState::Trailer
            }
            _ => match chunk_size(text)? {
                0 => ChunkedState::Trailer,
                left => ChunkedState::Data { left },
            },
        };
        Ok(())
    }

    fn line(&self, input: &[u8]) -> Result<Option<Line>, WireError> {
        // What can be refused early is: a data end must be CRLF, a size starts with a digit.
        match (self.state, input.first()) {
            (ChunkedState::DataEnd, Some(byte)) if !b"\r\n".contains(byte) => {
                return Err(WireError::Chunk);
            }
            (ChunkedState::Size, Some(byte)) if !byte.is_ascii_hexdigit() => {
                return Err(WireError::Chunk);
            }
            _ => {}
        }
        let Some(end) = memchr(b'\n', input) else {
            let too_long = input.len() > CHUNK_LINE_BYTES_MAX;
            return if too_long { Err(WireError::Chunk) } else { Ok(None) };
        };
        let text = match input[..end].strip_suffix(b"\r") {
            Some(text) => text,
            None if self.lf == BareLf::Accept => &input[..end],
            None => return Err(WireError::Chunk),
        };
        if text.contains(&b'\r') {
            return Err(WireError::Chunk);
        }
        Ok(Some(Line { text: text.len(), consumed: end + 1 }))
    }
}

struct Line {
    text: usize,
    consumed: usize,
}

/// RFC 9112, section 7.1: nothing but spaces, tabs and extensions follows the size.
pub(super) fn chunk_size(line: &[u8]) -> Result<u64, WireError> {
    let count = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, after) = line.split_at(count);
    let extension = &after[trimmed(after, |byte| matches!(byte, b' ' | b'\t')).start..];
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if count == 0 || !matches!(extension.first(), None | Some(b';')) || after.iter().any(is_control)
    {
        return Err(WireError::Chunk);
    }
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    // 15 digits keep the value below 2^60, so that sums of sizes cannot overflow.
    let digits = std::str::from_utf8(&digits[zeros..]).map_err(|_| WireError::Chunk)?;
    match digits.len() {
        0 => Ok(0),
        1..=15 => u64::from_str_radix(digits, 16).map_err(|_| WireError::Chunk),
        _ => Err(WireError::Chunk),
    }
}
