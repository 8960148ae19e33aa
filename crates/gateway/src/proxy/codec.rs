//! Reads an HTTP/1 response: status line, fields, a body by length, by chunks or up to the close.

use crate::protocol::codec::{Announced, Asked, BodyStep, Codec, CodecError, FieldSpans, Head};
use crate::protocol::usual;
use bytes::{Bytes, BytesMut};
use yorozu_wire::WireError;
use yorozu_wire::h1::{BareLf, Chunked, ChunkedStep, StatusLine, Version, range, status_line};

/// State of one response. Its size is a power of two, of which the allocator has one at hand.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct HttpCodec {
    head_bytes_max: usize,
    is_head_request: bool,
    /// Whether an upgrade was asked for.
    may_upgrade: bool,
    body: Body,
    is_persistent: bool,
    trailers: Vec<u8>,
}

/// Where the body's end is.
#[derive(Debug)]
enum Body {
    /// The head is still to be read.
    Unknown,
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

impl HttpCodec {
    pub(super) fn new(asked: Asked) -> Self {
        Self {
            head_bytes_max: asked.head_bytes_max,
            is_head_request: asked.is_head_request,
            may_upgrade: asked.may_upgrade,
            body: Body::Unknown,
            is_persistent: false,
            trailers: Vec::new(),
        }
    }

    fn head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        let line = status_line(input)?;
        let found = match &line {
            None => None,
            Some(line) => FieldSpans::read(input, line.consumed)?,
        };
        let (Some(line), Some((fields, end))) = (line, found) else {
            let is_too_big = input.len() >= self.head_bytes_max;
            return if is_too_big { Err(CodecError::HeadTooBig) } else { Ok(None) };
        };
        if end > self.head_bytes_max {
            return Err(CodecError::HeadTooBig);
        }
        let text = input.split_to(end).freeze();
        let head = Head {
            status: line.status,
            reason: Some(usual::part(&text, range(&line.reason)))
                .filter(|reason| yorozu_http::status::is_reason(reason)),
            fields: fields.lines(&text),
        };
        self.begin_body(&line, &head)?;
        Ok(Some(head))
    }

    fn begin_body(&mut self, line: &StatusLine, head: &Head) -> Result<(), CodecError> {
        let Announced { length, is_chunked } = head.announced()?;
        self.is_persistent = line.version == Version::V11
            && !head
                .values(b"connection")
                .any(|value| yorozu_http::field::list_has(value, b"close"));
        self.body = match line.status {
            101 => Body::UntilClose,
            100..=199 => Body::Unknown,
            204 | 304 => Body::Done,
            _ if self.is_head_request => Body::Done,
            _ if is_chunked => Body::Chunked(Chunked::with_trailers(BareLf::Accept)),
            _ => match length {
                Some(0) => Body::Done,
                Some(length) => Body::Length(length),
                None => Body::UntilClose,
            },
        };
        if line.status == 101 && !self.may_upgrade {
            return Err(CodecError::Invalid("upstream sent unexpected status 101".to_owned()));
        }
        Ok(())
    }
}

impl Codec for HttpCodec {
    fn is_tunnel(&self) -> bool {
        self.may_upgrade
    }

    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        loop {
            let head = self.head(input)?;
            // Interim answers (RFC 9110, section 15.2) announce the one that is asked for. Early
            // hints (RFC 8297) may be meant for the client.
            match &head {
                Some(interim) if interim.status < 200 && !matches!(interim.status, 101 | 103) => {}
                _ => return Ok(head),
            }
        }
    }

    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError> {
        match &mut self.body {
            Body::Unknown => unreachable!("the head is read first"),
            Body::Done => Ok(BodyStep::End),
            Body::UntilClose if input.is_empty() => Ok(BodyStep::NeedMore),
            Body::UntilClose => Ok(BodyStep::Data(input.split().freeze())),
            Body::Length(_) if input.is_empty() => Ok(BodyStep::NeedMore),
            Body::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= count as u64;
                if *left == 0 {
                    self.body = Body::Done;
                }
                Ok(BodyStep::Data(input.split_to(count).freeze()))
            }
            Body::Chunked(chunked) => {
                let step = chunked.next(input).map_err(|problem| match problem {
                    WireError::Chunk => {
                        CodecError::Invalid("upstream sent invalid chunked response".to_owned())
                    }
                    other => other.into(),
                })?;
                match step {
                    ChunkedStep::Data(range) => {
                        let mut piece = input.split_to(range.end);
                        Ok(BodyStep::Data(piece.split_off(range.start).freeze()))
                    }
                    ChunkedStep::Partial(used) => {
                        drop(input.split_to(used));
                        Ok(BodyStep::NeedMore)
                    }
                    ChunkedStep::Done(used) => {
                        drop(input.split_to(used));
                        self.trailers = chunked.take_trailers();
                        self.body = Body::Done;
                        Ok(BodyStep::End)
                    }
                }
            }
        }
    }

    fn is_of_head_request(&self) -> bool {
        self.is_head_request
    }

    fn is_whole_at_close(&self) -> bool {
        matches!(self.body, Body::UntilClose | Body::Done)
    }

    fn is_reusable(&self) -> bool {
        self.is_persistent && matches!(self.body, Body::Done)
    }

    fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        if self.trailers.is_empty() {
            return Vec::new();
        }
        let text = Bytes::from(std::mem::take(&mut self.trailers));
        let Ok(Some((fields, _))) = FieldSpans::read(&text, 0) else { return Vec::new() };
        fields.lines(&text).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { head_bytes_max: 4096, is_head_request: false, may_upgrade: false };

    /// Status, body, whole at close, reusable.
    fn run(text: &str, piece: usize, asked: Asked) -> Result<(u16, String, bool, bool), String> {
        let mut codec = HttpCodec::new(asked);
        let (mut input, mut head, mut body) = (BytesMut::new(), None, Vec::new());
        let mut is_ended = false;
        for piece in text.as_bytes().chunks(piece) {
            input.extend_from_slice(piece);
            while head.as_ref().is_none_or(|head: &Head| head.status == 103) {
                head = codec.read_head(&mut input).map_err(|e| e.to_string())?;
                if head.is_none() {
                    break;
                }
            }
            while head.is_some() && !is_ended {
                match codec.read_body(&mut input).map_err(|e| e.to_string())? {
                    BodyStep::Data(bytes) => body.extend_from_slice(&bytes),
                    BodyStep::End => is_ended = true,
                    BodyStep::NeedMore => break,
                }
            }
        }
        let status = head.ok_or("no head")?.status;
        let is_whole = is_ended || codec.is_whole_at_close();
        let is_reusable = codec.is_reusable() && input.is_empty();
        Ok((status, String::from_utf8(body).unwrap(), is_whole, is_reusable))
    }

    #[test]
    fn bodies_end_where_their_framing_says_whatever_the_pieces() {
        let table = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", true, true),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", true, false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", "hello", false, false),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "hello", true, false),
            (
                "HTTP/1.1 200 OK\nContent-Length: 5\nConnection: close\n\nhello",
                "hello",
                true,
                false,
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\nX: y\r\n\r\n",
                "hello",
                true,
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                "hello",
                false,
                false,
            ),
        ];
        for (text, body, is_whole, is_reusable) in table {
            for piece in [1, 2, 3, 7, 4096] {
                let found = run(text, piece, ASKED);
                assert_eq!(
                    found,
                    Ok((200, body.into(), is_whole, is_reusable)),
                    "{text:?} {piece}"
                );
            }
        }
    }

    #[test]
    fn some_answers_have_no_body() {
        let asked = Asked { is_head_request: true, ..ASKED };
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(run(text, 64, asked), Ok((200, String::new(), true, true)));
        let text = "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(run(text, 64, ASKED), Ok((304, String::new(), true, true)));
    }

    #[test]
    fn what_two_readers_could_understand_differently_is_refused() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 200 OK\r\nbad header: x\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "<html>",
        ] {
            assert!(run(text, 4096, ASKED).is_err(), "{text:?}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let text = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(5000));
        assert!(run(&text, 64, ASKED).unwrap_err().contains("too big header"));
    }

    #[test]
    fn trailers_are_kept() {
        let mut codec = HttpCodec::new(ASKED);
        let text =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: b\r\nX-C: d\r\n\r\n";
        let mut input = BytesMut::from(text);
        codec.read_head(&mut input).unwrap().unwrap();
        assert!(matches!(codec.read_body(&mut input), Ok(BodyStep::End)));
        let trailers = codec.take_trailers();
        assert_eq!(trailers[1], (Bytes::from("X-C"), Bytes::from("d")));
    }
}
