//! Frames of a request's stream: fields, body, fields (RFC 9114, section 4.1).

use super::frame::{Broken, Code, kind};
use super::incoming::{Incoming, Step};

/// A part of a request. `left` says how many bytes of its frame are still to come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part<'a> {
    /// Of a field section, which ends with its frame. An empty one has one part, too.
    #[expect(missing_docs, reason = "said above")]
    Fields { part: &'a [u8], left: u64 },
    /// Of the body; never empty.
    #[expect(missing_docs, reason = "said above")]
    Data { part: &'a [u8], left: u64 },
}

/// What of a request has begun.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Nothing,
    Head,
    Body,
    Trailers,
}

/// Reads a request's stream as it arrives.
#[derive(Debug, Default)]
pub struct Reader {
    incoming: Incoming,
    stage: Stage,
    skipped: u64,
}

impl Reader {
    /// Takes of `bytes`; `None` when all of them are taken.
    ///
    /// # Errors
    /// [`Broken`]: a frame has no place on such a stream, or not there.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Part<'a>>, Broken> {
        while let Some(step) = self.incoming.next(bytes) {
            match step {
                Step::Begins { kind, length, head_bytes } => {
                    if self.begin(kind)? || length == 0 {
                        self.skipped += head_bytes as u64;
                    }
                }
                Step::Payload { kind: kind::HEADERS, part, left } => {
                    return Ok(Some(Part::Fields { part, left }));
                }
                Step::Payload { kind: kind::DATA, part, left } => {
                    if !part.is_empty() {
                        return Ok(Some(Part::Data { part, left }));
                    }
                }
                Step::Payload { part, .. } => self.skipped += part.len() as u64,
            }
        }
        Ok(None)
    }

    /// Judges a frame that begins: whether it is to be skipped.
    fn begin(&mut self, kind: u64) -> Result<bool, Broken> {
        let unexpected = |text| Err(Broken::Connection(Code::FRAME_UNEXPECTED, text));
        self.stage = match (kind, self.stage) {
            (kind::HEADERS, Stage::Nothing) => Stage::Head,
            (kind::HEADERS, Stage::Head | Stage::Body) => Stage::Trailers,
            (kind::HEADERS, Stage::Trailers) => {
                return unexpected("client sent HEADERS frame after trailers");
            }
            (kind::DATA, Stage::Head | Stage::Body) => Stage::Body,
            (kind::DATA, Stage::Nothing) => {
                return unexpected("client sent DATA frame before a head");
            }
            (kind::DATA, Stage::Trailers) => {
                return unexpected("client sent DATA frame after trailers");
            }
            (
                kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_OF_PUSH,
                _,
            ) => return unexpected("client sent unexpected frame on a request stream"),
            _ if kind::is_reserved(kind) => return unexpected("client sent frame of HTTP/2"),
            _ => return Ok(true),
        };
        Ok(false)
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// [`Broken`]: it must not end there.
    pub fn end(&self) -> Result<(), Broken> {
        if !self.incoming.is_between_frames() {
            let text = "client ended a stream within a frame";
            return Err(Broken::Connection(Code::FRAME_ERROR, text));
        }
        match self.stage {
            Stage::Nothing => {
                let text = "client ended a stream before a head";
                Err(Broken::Stream(Code::REQUEST_INCOMPLETE, text))
            }
            _ => Ok(()),
        }
    }

    /// How many field sections have begun: none, the head, the trailers.
    pub fn sections(&self) -> u8 {
        match self.stage {
            Stage::Nothing => 0,
            Stage::Head | Stage::Body => 1,
            Stage::Trailers => 2,
        }
    }

    /// Bytes that said nothing: frames of unknown kinds, and those that are empty. Nothing here bounds them.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::put_head;
    use super::*;

    fn stream(frames: &[(u64, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, payload) in frames {
            put_head(&mut out, *kind, payload.len() as u64);
            out.extend_from_slice(payload);
        }
        out
    }

    /// Sections, body, and bytes that said nothing.
    type Request = (Vec<Vec<u8>>, Vec<u8>, u64);

    /// Reads a stream that arrives in pieces.
    fn read(bytes: &[u8], size: usize) -> Result<Request, Broken> {
        let (mut reader, mut sections, mut body) = (Reader::default(), Vec::new(), Vec::new());
        let mut is_new = true;
        for mut piece in bytes.chunks(size) {
            while let Some(part) = reader.next(&mut piece)? {
                match part {
                    Part::Data { part, .. } => body.extend_from_slice(part),
                    Part::Fields { part, left } => {
                        if is_new {
                            sections.push(Vec::new());
                        }
                        sections.last_mut().unwrap().extend_from_slice(part);
                        is_new = left == 0;
                    }
                }
            }
        }
        reader.end()?;
        assert_eq!(usize::from(reader.sections()), sections.len());
        Ok((sections, body, reader.skipped()))
    }

    #[test]
    fn requests_are_fields_body_fields() {
        let bytes = stream(&[
            (33, b"grease"),
            (kind::HEADERS, b"head"),
            (kind::DATA, b"one"),
            (kind::DATA, b""),
            (0x1f * 7 + 0x21, b""),
            (kind::DATA, b"two"),
            (kind::HEADERS, b""),
            (33, b"end"),
        ]);
        for size in 1..=bytes.len() {
            let (sections, body, skipped) = read(&bytes, size).unwrap();
            assert_eq!(sections, [b"head".to_vec(), Vec::new()]);
            assert_eq!(body, b"onetwo");
            assert_eq!(skipped, 8 + 2 + 3 + 2 + 5);
        }
    }

    #[test]
    fn frames_have_their_order() {
        let orders: [&[u64]; 15] = [
            &[kind::DATA],
            &[kind::HEADERS, kind::HEADERS, kind::DATA],
            &[kind::HEADERS, kind::HEADERS, kind::HEADERS],
            &[kind::HEADERS, kind::DATA, kind::HEADERS, kind::DATA],
            &[kind::SETTINGS],
            &[kind::HEADERS, kind::SETTINGS],
            &[kind::GOAWAY],
            &[kind::MAX_PUSH_ID],
            &[kind::CANCEL_PUSH],
            &[kind::PUSH_PROMISE],
            &[kind::PRIORITY_UPDATE],
            &[2],
            &[kind::HEADERS, 6],
            &[8],
            &[9],
        ];
        for order in orders {
            let frames: Vec<_> = order.iter().map(|kind| (*kind, &b"0"[..])).collect();
            let result = read(&stream(&frames), 100);
            let is_expected = matches!(result, Err(Broken::Connection(Code::FRAME_UNEXPECTED, _)));
            assert!(is_expected, "{order:?}: {result:?}");
        }
    }

    #[test]
    fn streams_end_behind_a_head() {
        let end = |bytes: &[u8]| read(bytes, 1).unwrap_err();
        assert!(matches!(end(&[]), Broken::Stream(Code::REQUEST_INCOMPLETE, _)));
        assert!(matches!(end(&[33, 0]), Broken::Stream(Code::REQUEST_INCOMPLETE, _)));
        assert!(matches!(end(&[1]), Broken::Connection(Code::FRAME_ERROR, _)));
        assert!(matches!(end(&[1, 2, 0]), Broken::Connection(Code::FRAME_ERROR, _)));
        assert!(matches!(end(&[1, 0, 0, 1]), Broken::Connection(Code::FRAME_ERROR, _)));
        assert!(read(&[1, 0], 1).is_ok());
    }
}
