//! Reads a FastCGI response: records, the CGI head inside them, the body.

use crate::cgi::head::head;
use crate::protocol::codec::{BodyStep, Codec, CodecError, FieldSpans, Head};
use bytes::{Buf as _, Bytes, BytesMut};
use yorozu_kernel::logging::error::verbatim;
use yorozu_wire::fastcgi::{HEAD_BYTES, RecordHead, RecordKind, decode_head};

/// Longest text kept of an application's standard error per request; nginx logs 2048 bytes.
const STDERR_BYTES_MAX: usize = 2048;

/// State of one response.
///
/// | state | next |
/// | --- | --- |
/// | between records | in a record |
/// | in a record | between records, when content and padding are read |
/// | ended (END_REQUEST was read) | - |
#[derive(Debug)]
struct FastcgiCodec {
    head_bytes_max: usize,
    record: Option<RecordHead>,
    /// The CGI head, until it is complete; then the body that came in the same records.
    text: BytesMut,
    has_head: bool,
    /// Body bytes still to come, when the application announced a length.
    length_left: Option<u64>,
    is_ended: bool,
    /// Bytes that END_REQUEST has so far: four of the application's status, one of the protocol's, three unused.
    end_bytes: usize,
    /// Whether one of the first five was not 0.
    has_ended_badly: bool,
    /// Whether a message reported a fatal error.
    has_failed: bool,
    stderr: Vec<u8>,
}

/// How PHP's messages of errors that end a page begin.
const FATAL: &[u8] = b"PHP Fatal error: ";

/// A codec for one answer.
pub(super) fn codec(head_bytes_max: usize) -> Box<dyn Codec> {
    Box::new(FastcgiCodec {
        head_bytes_max,
        record: None,
        text: BytesMut::new(),
        has_head: false,
        length_left: None,
        is_ended: false,
        end_bytes: 0,
        has_ended_badly: false,
        has_failed: false,
        stderr: Vec::new(),
    })
}

enum Piece {
    Stdout(BytesMut),
    NeedMore,
    End,
}

impl FastcgiCodec {
    /// The next piece of the standard output.
    fn piece(&mut self, input: &mut BytesMut) -> Result<Piece, CodecError> {
        loop {
            if self.is_ended {
                return Ok(Piece::End);
            }
            let Some(record) = &mut self.record else {
                match decode_head(input)? {
                    None => return Ok(Piece::NeedMore),
                    Some(head) => {
                        input.advance(HEAD_BYTES);
                        self.record = Some(head);
                        continue;
                    }
                }
            };
            if record.content_bytes > 0 {
                if input.is_empty() {
                    return Ok(Piece::NeedMore);
                }
                let count = record.content_bytes.min(input.len());
                record.content_bytes -= count;
                match record.kind {
                    RecordKind::Stdout => return Ok(Piece::Stdout(input.split_to(count))),
                    RecordKind::Stderr => {
                        let room = STDERR_BYTES_MAX.saturating_sub(self.stderr.len());
                        self.stderr.extend_from_slice(&input[..count.min(room)]);
                        self.has_failed |= memchr::memmem::find(&self.stderr, FATAL).is_some();
                    }
                    _ => {
                        let statuses = &input[..count.min(5usize.saturating_sub(self.end_bytes))];
                        self.has_ended_badly |= statuses.iter().any(|byte| *byte != 0);
                        self.end_bytes += count;
                    }
                }
                input.advance(count);
                continue;
            }
            if record.padding_bytes > 0 {
                if input.is_empty() {
                    return Ok(Piece::NeedMore);
                }
                let count = record.padding_bytes.min(input.len());
                input.advance(count);
                record.padding_bytes -= count;
                continue;
            }
            self.is_ended = record.kind == RecordKind::EndRequest;
            self.record = None;
        }
    }
}

impl Codec for FastcgiCodec {
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        loop {
            if !self.text.is_empty() {
                let found = FieldSpans::read(&self.text, 0)?;
                let head_bytes = found.as_ref().map_or(self.text.len(), |(_, end)| *end);
                if head_bytes > self.head_bytes_max {
                    return Err(CodecError::HeadTooBig);
                }
                if let Some((fields, end)) = found {
                    let text = self.text.split_to(end).freeze();
                    let head = head(&text, &fields)?;
                    self.has_head = true;
                    self.length_left = head.announced()?.length;
                    return Ok(Some(head));
                }
            }
            match self.piece(input)? {
                Piece::Stdout(bytes) if self.text.is_empty() => self.text = bytes,
                Piece::Stdout(bytes) => self.text.extend_from_slice(&bytes),
                Piece::NeedMore => return Ok(None),
                Piece::End => return Err(CodecError::Incomplete),
            }
        }
    }

    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError> {
        let bytes = if self.text.is_empty() {
            match self.piece(input)? {
                Piece::Stdout(bytes) => bytes.freeze(),
                Piece::NeedMore => return Ok(BodyStep::NeedMore),
                Piece::End => {
                    let is_short = self.length_left.is_some_and(|left| left > 0);
                    return if is_short { Err(CodecError::Incomplete) } else { Ok(BodyStep::End) };
                }
            }
        } else {
            self.text.split().freeze()
        };
        match &mut self.length_left {
            None => Ok(BodyStep::Data(bytes)),
            Some(left) => {
                // As nginx: what goes beyond the announced length is cut off.
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                if count == 0 {
                    self.read_body(input)
                } else {
                    Ok(BodyStep::Data(bytes.slice(..count)))
                }
            }
        }
    }

    fn is_whole_at_close(&self) -> bool {
        // Only END_REQUEST says that the application finished.
        self.is_ended
    }

    fn is_reusable(&self) -> bool {
        self.is_ended && self.record.is_none()
    }

    fn may_be_stored(&self) -> bool {
        // PHP says 0 even after a fatal error in the middle of a page; its message tells.
        !self.has_failed && !self.has_ended_badly
    }

    fn closed_early(&self) -> &'static str {
        "upstream prematurely closed FastCGI stdout"
    }

    fn in_nginx_words(&self, text: &[u8]) -> String {
        format!("FastCGI sent in stderr: \"{}\"", verbatim(text.trim_ascii_end()))
    }

    fn take_stderr(&mut self) -> Option<Bytes> {
        let text = std::mem::take(&mut self.stderr);
        (!text.is_empty()).then(|| text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_wire::fastcgi::stream;

    fn end(out: &mut Vec<u8>) {
        out.extend([1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    fn run(bytes: &[u8], piece: usize) -> Result<(Head, Vec<u8>, Option<Bytes>), CodecError> {
        let mut codec = codec(4096);
        let (mut input, mut rest) = (BytesMut::new(), bytes);
        let mut head = None;
        let mut body = Vec::new();
        loop {
            if head.is_none() {
                head = codec.read_head(&mut input)?;
            }
            if let Some(head) = &head {
                loop {
                    match codec.read_body(&mut input)? {
                        BodyStep::Data(bytes) => body.extend_from_slice(&bytes),
                        BodyStep::End => return Ok((head.clone(), body, codec.take_stderr())),
                        BodyStep::NeedMore => break,
                    }
                }
            }
            if rest.is_empty() {
                return Err(CodecError::Incomplete);
            }
            let (next, after) = rest.split_at(piece.min(rest.len()));
            input.extend_from_slice(next);
            rest = after;
        }
    }

    #[test]
    fn a_response_is_read_whatever_the_pieces() {
        let mut bytes = Vec::new();
        stream(&mut bytes, RecordKind::Stdout, b"Status: 404 Not Found\r\nX-A: ");
        stream(&mut bytes, RecordKind::Stderr, b"warning");
        stream(&mut bytes, RecordKind::Stdout, b"1\r\n\r\nbo");
        stream(&mut bytes, RecordKind::Stdout, b"dy");
        end(&mut bytes);
        for piece in 1..bytes.len() {
            let (head, body, stderr) = run(&bytes, piece).unwrap();
            assert_eq!((head.status, &body[..]), (404, &b"body"[..]), "{piece}");
            assert_eq!(head.reason.as_deref(), Some(&b"Not Found"[..]));
            assert_eq!(&head.fields[1].1[..], b"1");
            assert_eq!(stderr.as_deref(), Some(&b"warning"[..]));
        }
    }

    #[test]
    fn a_response_without_its_end_is_incomplete() {
        let mut bytes = Vec::new();
        stream(&mut bytes, RecordKind::Stdout, b"A: b\r\n\r\nbody");
        assert!(matches!(run(&bytes, 7), Err(CodecError::Incomplete)));
        let mut short = Vec::new();
        stream(&mut short, RecordKind::Stdout, b"Content-Length: 9\r\n\r\nbody");
        end(&mut short);
        assert!(matches!(run(&short, 7), Err(CodecError::Incomplete)));
    }

    #[test]
    fn what_ended_badly_may_not_be_stored() {
        let ended = |application: u8, protocol: u8, message: &[u8]| {
            let mut bytes = Vec::new();
            stream(&mut bytes, RecordKind::Stdout, b"A: b\r\n\r\nbody");
            stream(&mut bytes, RecordKind::Stderr, message);
            bytes.extend([1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, application, protocol, 7, 7, 7]);
            let (mut codec, mut input) = (codec(4096), BytesMut::from(&bytes[..]));
            codec.read_head(&mut input).unwrap().unwrap();
            while !matches!(codec.read_body(&mut input).unwrap(), BodyStep::End) {}
            codec.may_be_stored()
        };
        assert!(ended(0, 0, b"PHP message: PHP Warning:  x"));
        assert!(!ended(255, 0, b"-") && !ended(0, 1, b"-"));
        assert!(!ended(0, 0, b"PHP message: PHP Fatal error:  Uncaught Error"));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bytes = Vec::new();
        stream(&mut bytes, RecordKind::Stdout, b"Status: x\r\n\r\n");
        end(&mut bytes);
        assert!(run(&bytes, 9).is_err());
        assert!(run(b"HTTP/1.1 200 OK\r\n\r\n", 9).is_err());
        let mut empty = Vec::new();
        end(&mut empty);
        assert!(run(&empty, 9).is_err());
    }

    #[test]
    fn what_goes_beyond_the_announced_length_is_cut() {
        let mut bytes = Vec::new();
        stream(&mut bytes, RecordKind::Stdout, b"Content-Length: 2\r\n\r\nbody");
        end(&mut bytes);
        assert_eq!(run(&bytes, 64).unwrap().1, b"bo");
    }

    #[test]
    fn a_redirect_without_status_is_302() {
        let mut bytes = Vec::new();
        stream(&mut bytes, RecordKind::Stdout, b"Location: /x\r\n\r\n");
        end(&mut bytes);
        assert_eq!(run(&bytes, 64).unwrap().0.status, 302);
    }
}
