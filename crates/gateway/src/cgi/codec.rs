//! Reads an answer without frames: a head, then the body up to its announced end, or to the close.

use super::head::head;
use crate::pass;
use crate::protocol::codec::{Asked, BodyStep, Codec, CodecError, FieldSpans, Head, Reader};
use crate::protocol::family::Family;
use bytes::BytesMut;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::request::Method;
use yorozu_wire::WireError;
use yorozu_wire::h1::{slice, status_line};

/// What reads the answer to the exchange's request, in a location that speaks a protocol of this family.
pub fn reader(exchange: &Exchange, location: &LocationConf, family: &Family) -> Reader {
    let asked = Asked {
        head_bytes_max: pass::head_bytes_max(location, family),
        is_head_request: exchange.request.method == Method::Head,
        may_upgrade: exchange.request.field(b"upgrade").is_some(),
    };
    Reader { asked, make: |asked| Box::new(PlainCodec::new(asked)) }
}

/// State of one response.
#[derive(Debug)]
pub struct PlainCodec {
    asked: Asked,
    body: Body,
}

/// Where the body's end is.
#[derive(Debug)]
enum Body {
    /// The head is still to be read.
    Unknown,
    Length(u64),
    UntilClose,
    Done,
}

impl PlainCodec {
    pub fn new(asked: Asked) -> Self {
        Self { asked, body: Body::Unknown }
    }

    /// Which end the body of this head has.
    fn body_of(&self, head: &Head) -> Result<Body, CodecError> {
        let has_none = self.asked.is_head_request || matches!(head.status, 204 | 304);
        Ok(match (head.status, head.announced()?.length) {
            (101, _) if self.asked.may_upgrade => Body::UntilClose,
            // Unlike nginx: what follows an interim status would be read as a body.
            (..200, _) => return Err(WireError::UpstreamHead.into()),
            (_, Some(0)) => Body::Done,
            _ if has_none => Body::Done,
            (_, Some(length)) => Body::Length(length),
            (_, None) => Body::UntilClose,
        })
    }
}

impl Codec for PlainCodec {
    /// The head may begin with a status line, as that of HTTP; it comes before a field `Status`.
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        let line = match status_line(input) {
            Ok(Some(line)) => Some(line),
            Ok(None) if input.len() >= self.asked.head_bytes_max => {
                return Err(CodecError::HeadTooBig);
            }
            Ok(None) => return Ok(None),
            Err(_) => None,
        };
        let found = FieldSpans::read(input, line.as_ref().map_or(0, |line| line.consumed))?;
        let head_bytes = found.as_ref().map_or(input.len(), |(_, end)| *end);
        if head_bytes > self.asked.head_bytes_max
            || (found.is_none() && head_bytes == self.asked.head_bytes_max)
        {
            return Err(CodecError::HeadTooBig);
        }
        let Some((fields, end)) = found else { return Ok(None) };
        let text = input.split_to(end).freeze();
        let mut head = head(&text, &fields)?;
        if let Some(line) = line {
            let reason = Some(text.slice_ref(slice(&text, &line.reason)));
            head.status = line.status;
            head.reason = reason.filter(|reason| yorozu_http::status::is_reason(reason));
        }
        self.body = self.body_of(&head)?;
        Ok(Some(head))
    }

    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError> {
        match &mut self.body {
            Body::Unknown => unreachable!("the head is read first"),
            // As nginx: what goes beyond the announced length is cut off.
            Body::Done => Ok(BodyStep::End),
            Body::UntilClose | Body::Length(_) if input.is_empty() => Ok(BodyStep::NeedMore),
            Body::UntilClose => Ok(BodyStep::Data(input.split().freeze())),
            Body::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= count as u64;
                if *left == 0 {
                    self.body = Body::Done;
                }
                Ok(BodyStep::Data(input.split_to(count).freeze()))
            }
        }
    }

    fn is_whole_at_close(&self) -> bool {
        matches!(self.body, Body::UntilClose | Body::Done)
    }

    /// Each request has its own connection.
    fn is_reusable(&self) -> bool {
        false
    }

    fn is_tunnel(&self) -> bool {
        self.asked.may_upgrade
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked = Asked { head_bytes_max: 4096, is_head_request: false, may_upgrade: false };

    /// Status, reason, body, whole at close.
    fn run(
        text: &str,
        piece: usize,
        asked: Asked,
    ) -> Result<(u16, String, String, bool), CodecError> {
        let mut codec = PlainCodec::new(asked);
        let (mut input, mut head, mut body) = (BytesMut::new(), None, Vec::new());
        let mut is_ended = false;
        for piece in text.as_bytes().chunks(piece) {
            input.extend_from_slice(piece);
            if head.is_none() {
                head = codec.read_head(&mut input)?;
            }
            while head.is_some() && !is_ended {
                match codec.read_body(&mut input)? {
                    BodyStep::Data(bytes) => body.extend_from_slice(&bytes),
                    BodyStep::End => is_ended = true,
                    BodyStep::NeedMore => break,
                }
            }
        }
        let head = head.ok_or(CodecError::Incomplete)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let reason = text(&head.reason.unwrap_or_default());
        Ok((head.status, reason, text(&body), codec.is_whole_at_close()))
    }

    #[test]
    fn heads_and_bodies_are_read_whatever_the_pieces() {
        let table = [
            ("Status: 404 No\r\n\r\nbody", (404, "No", "body", true)),
            ("Status: 404 No\n\nbody", (404, "No", "body", true)),
            ("Location: /x\r\n\r\n", (302, "", "", true)),
            ("A: b\r\nContent-Length: 2\r\n\r\nbody", (200, "", "bo", true)),
            ("A: b\r\nContent-Length: 5\r\n\r\nbody", (200, "", "body", false)),
            ("HTTP/1.1 201 Made\r\nStatus: 404 No\r\n\r\nbody", (201, "Made", "body", true)),
            ("Status: 204 No\r\n\r\nbody", (204, "No", "", true)),
        ];
        for (text, (status, reason, body, is_whole)) in table {
            for piece in [1, 2, 7, 64] {
                let found = run(text, piece, ASKED).unwrap();
                let expected = (status, reason.to_owned(), body.to_owned(), is_whole);
                assert_eq!(found, expected, "{text:?} {piece}");
            }
        }
    }

    #[test]
    fn the_answer_to_head_has_no_body() {
        let asked = Asked { is_head_request: true, ..ASKED };
        let found = run("A: b\r\nContent-Length: 5\r\n\r\n", 64, asked).unwrap();
        assert_eq!(found, (200, String::new(), String::new(), true));
    }

    #[test]
    fn only_who_asked_for_it_gets_a_tunnel() {
        let text = "HTTP/1.1 101 Switching Protocols\r\n\r\nframe";
        assert!(run(text, 64, ASKED).is_err());
        let asked = Asked { may_upgrade: true, ..ASKED };
        assert_eq!(run(text, 64, asked).unwrap().2, "frame");
        assert!(run("HTTP/1.1 100 Continue\r\n\r\n", 64, asked).is_err());
    }

    #[test]
    fn nonsense_and_endless_heads_are_refused() {
        assert!(run("non\0sense\r\n\r\n", 9, ASKED).is_err());
        assert!(run("HTTP/x 200\r\n\r\n", 9, ASKED).is_err());
        assert!(run("Status: x\r\n\r\n", 9, ASKED).is_err());
        for start in ["HTTP/1.1 200 ", "A: "] {
            let text = format!("{start}{}", "x".repeat(5000));
            let refused = run(&text, 64, ASKED);
            assert!(matches!(refused, Err(CodecError::HeadTooBig)), "{start} {refused:?}");
        }
    }
}
