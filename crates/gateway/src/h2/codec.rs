//! Reads an answer: frames, the head, content, fields behind it.

use super::Asked;
use super::line::{Broken, Line};
use crate::protocol::codec::{BodyStep, Codec, CodecError, Head};
use bytes::{Buf as _, Bytes, BytesMut};
use std::any::Any;
use std::rc::Rc;
use yorozu_kernel::logging::error::verbatim;
use yorozu_wire::h2::frame::{self, Code, Frame, HEAD_BYTES, PAYLOAD_BYTES, flag, kind};
use yorozu_wire::h2::hpack::Stop;

/// What a field counts beside its bytes (RFC 9113, section 6.5.2).
const FIELD_BYTES: usize = 32;
/// How many times `*_buffer_size` the fields of a block may count, each with [`FIELD_BYTES`]: coded they have to fit into it once. Chosen.
const FIELDS_FACTOR: usize = 4;

/// State of one answer.
pub(super) struct H2Codec {
    line: Rc<Line>,
    asked: Asked,
    phase: Phase,
    /// The frame of content that is being read.
    data: Option<Data>,
    /// The block of fields that is being read.
    block: Option<Block>,
    /// What is to come of the content, if the head says so.
    left: Option<u64>,
    trailers: Vec<(Bytes, Bytes)>,
    /// Why it was given up: nothing after that is part of it.
    broken: Option<String>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Head,
    Body,
    Done,
}

/// A frame of content.
struct Data {
    content_bytes: usize,
    padding_bytes: usize,
    is_last: bool,
}

/// Fields that come in several frames.
struct Block {
    bytes: Vec<u8>,
    is_last: bool,
}

/// What a step through the input came to.
enum Step {
    /// More bytes are needed.
    More,
    /// A frame was read that is not the caller's concern.
    Again,
    Head(Head),
    Data(Bytes),
}

/// Why an answer is given up.
enum Fault {
    TooBig,
    /// The peer did nothing for the request.
    Refused(String),
    Broken(Broken),
}

impl From<Broken> for Fault {
    fn from(text: Broken) -> Self {
        Self::Broken(text)
    }
}

impl From<frame::Broken> for Fault {
    fn from(broken: frame::Broken) -> Self {
        Self::Broken(format!("upstream sent invalid http2 frame: {broken}"))
    }
}

fn broken<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Broken(text.into()))
}

impl H2Codec {
    pub(super) fn new(line: Rc<Line>, asked: Asked) -> Self {
        Self {
            line,
            asked,
            phase: Phase::Head,
            data: None,
            block: None,
            left: None,
            trailers: Vec::new(),
            broken: None,
        }
    }

    /// Reads the next frame, or what has arrived of its content.
    fn step(&mut self, input: &mut BytesMut) -> Result<Step, Fault> {
        if self.data.is_some() {
            return self.content(input);
        }
        let Some(head) = frame::Head::read(input) else { return Ok(Step::More) };
        if head.length > PAYLOAD_BYTES {
            return broken(format!("upstream sent too large http2 frame: {}", head.length));
        }
        let is_fields = matches!(head.kind, kind::HEADERS | kind::CONTINUATION);
        if (head.kind == kind::CONTINUATION) != self.block.is_some()
            || (head.kind == kind::DATA && self.phase == Phase::Head)
        {
            return broken(format!("upstream sent unexpected http2 frame: {}", head.kind));
        }
        let stream = self.line.stream();
        let is_ours = head.stream == stream;
        // Late words about a stream that is over; those of another are none of ours.
        let is_late = head.stream < stream
            && matches!(head.kind, kind::WINDOW_UPDATE | kind::RST_STREAM | kind::PRIORITY);
        if head.stream != 0 && !is_ours && !is_late {
            return broken(format!("upstream sent frame for unknown stream {}", head.stream));
        }
        if head.kind == kind::DATA {
            return self.begin_content(&head, input);
        }
        if input.len() < HEAD_BYTES + head.length {
            return Ok(Step::More);
        }
        input.advance(HEAD_BYTES);
        let payload = input.split_to(head.length);
        if is_late && head.stream != 0 {
            self.line.idle("late")?;
            return Ok(Step::Again);
        }
        match frame::read(&head, &payload)? {
            _ if self.phase == Phase::Done && is_fields => {
                broken("upstream sent fields after the end of its answer")
            }
            Frame::Headers(part) => self.fields(&head, part, head.has(flag::END_STREAM)),
            Frame::Continuation(part) => {
                let Block { is_last, .. } = *self.block.as_ref().expect("looked at above");
                self.line.idle("continuation")?;
                self.fields(&head, part, is_last)
            }
            other => self.control(&head, other),
        }
    }

    /// What concerns the connection, or ends the stream.
    fn control(&mut self, head: &frame::Head, frame: Frame<'_>) -> Result<Step, Fault> {
        match frame {
            Frame::Reset(code) => self.reset(code)?,
            Frame::Goaway(last, code) if last < self.line.stream() && self.phase != Phase::Done => {
                return Err(Fault::Refused(format!("upstream sent goaway with error {}", code.0)));
            }
            Frame::Goaway(..) => self.line.leave(),
            Frame::Settings(payload) => {
                self.line.idle("settings")?;
                self.line.set(payload)?;
            }
            Frame::Ping(content) => {
                self.line.idle("ping")?;
                self.line.pong(&content);
            }
            Frame::WindowUpdate(more) => {
                self.line.idle("window update")?;
                self.line.widen(head.stream, more)?;
            }
            Frame::SettingsAck | Frame::Pong(_) | Frame::Other => self.line.idle("other")?,
            Frame::Data(_) | Frame::Headers(_) | Frame::Continuation(_) => {
                unreachable!("read before")
            }
        }
        Ok(Step::Again)
    }

    fn reset(&mut self, code: Code) -> Result<(), Fault> {
        let text = format!("upstream rejected request with error {}", code.0);
        match self.phase {
            // It wants no more of the request than it has; the answer is whole.
            Phase::Done if code == Code::NO_ERROR => Ok(()),
            _ if code == Code::REFUSED_STREAM => Err(Fault::Refused(text)),
            _ => broken(text),
        }
    }

    /// Adds a part of a block of fields, and reads the block when it is whole.
    fn fields(&mut self, head: &frame::Head, part: &[u8], is_last: bool) -> Result<Step, Fault> {
        let so_far = self.block.take();
        let known_bytes = so_far.as_ref().map_or(0, |block| block.bytes.len());
        if known_bytes + part.len() > self.asked.head_bytes_max {
            return Err(Fault::TooBig);
        }
        let is_whole = head.has(flag::END_HEADERS);
        match so_far {
            None if is_whole => self.whole(part, is_last),
            so_far => {
                let mut bytes = so_far.map_or_else(Vec::new, |block| block.bytes);
                bytes.extend_from_slice(part);
                if is_whole {
                    return self.whole(&bytes, is_last);
                }
                self.block = Some(Block { bytes, is_last });
                Ok(Step::Again)
            }
        }
    }

    /// A block that is whole: an interim answer, the answer, or what stands behind its content.
    fn whole(&mut self, block: &[u8], is_last: bool) -> Result<Step, Fault> {
        let fields = self.decoded(block)?;
        if self.phase == Phase::Body {
            if !is_last {
                return broken("upstream sent trailer without end stream flag");
            }
            if let Some(text) = fields.status {
                return broken(format!("upstream sent trailer \":status: {text}\""));
            }
            self.trailers = fields.list;
            self.end()?;
            return Ok(Step::Again);
        }
        let Some(text) = fields.status else { return broken("upstream sent no :status header") };
        let status = text.parse().ok().filter(|status| text.len() == 3 && *status >= 100);
        let Some(status) = status else {
            return broken(format!("upstream sent invalid :status \"{text}\""));
        };
        let head = Head { status, reason: None, fields: fields.list.into() };
        if status < 200 {
            // HTTP/2 has no upgrades (RFC 9113, section 8.6), and an interim answer is not the last.
            if status == 101 || is_last {
                return broken(format!("upstream sent unexpected :status \"{text}\""));
            }
            self.line.idle("interim headers")?;
            return Ok(Step::Head(head));
        }
        self.begin_body(&head)?;
        if is_last {
            self.end()?;
        }
        Ok(Step::Head(head))
    }

    fn begin_body(&mut self, head: &Head) -> Result<(), Fault> {
        let mut lengths = head.values(b"content-length");
        let announced = match (lengths.next(), lengths.next()) {
            (Some(_), Some(_)) => {
                return broken("upstream sent duplicate header line: \"Content-Length\"");
            }
            (Some(text), None) => match yorozu_conf::value::number(text) {
                Some(length) => Some(length),
                None => return broken("upstream sent invalid \"Content-Length\" header"),
            },
            (None, _) => None,
        };
        let has_none = self.asked.is_head_request || matches!(head.status, 204 | 304);
        self.line.progress();
        self.left = if has_none { Some(0) } else { announced };
        self.phase = Phase::Body;
        Ok(())
    }

    /// The fields of a block.
    fn decoded(&mut self, block: &[u8]) -> Result<Fields, Fault> {
        let bytes_max = self.asked.head_bytes_max.saturating_mul(FIELDS_FACTOR);
        let (mut found, mut problem, mut counts) = (Found::default(), None, 0);
        let decoded = self.line.decode(block, |name, value| {
            counts += name.len() + value.len() + FIELD_BYTES;
            if counts > bytes_max {
                problem = Some(Fault::TooBig);
            } else if let Err(text) = found.put(name, value) {
                problem = Some(Fault::Broken(text));
            }
            problem.is_none()
        });
        match (problem, decoded) {
            (Some(problem), _) => Err(problem),
            (None, Ok(())) => Ok(found.fields()),
            (None, Err(Stop::Short)) => broken("upstream sent http2 headers that end too early"),
            (None, Err(_)) => broken("upstream sent invalid http2 headers"),
        }
    }

    fn begin_content(&mut self, head: &frame::Head, input: &mut BytesMut) -> Result<Step, Fault> {
        let is_padded = head.has(flag::PADDED);
        let head_bytes = HEAD_BYTES + usize::from(is_padded);
        if head.stream == 0 {
            return broken("upstream sent frame for unknown stream 0");
        }
        if self.phase == Phase::Done {
            return broken("upstream sent data after the end of its answer");
        }
        if is_padded && head.length == 0 {
            return broken("upstream sent too short http2 frame");
        }
        let Some(bytes) = input.get(..head_bytes) else { return Ok(Step::More) };
        let padding_bytes = if is_padded { usize::from(bytes[HEAD_BYTES]) } else { 0 };
        let Some(content_bytes) =
            (HEAD_BYTES + head.length - head_bytes).checked_sub(padding_bytes)
        else {
            return broken(format!(
                "upstream sent http2 frame with too long padding: {padding_bytes} in frame {}",
                head.length
            ));
        };
        input.advance(head_bytes);
        self.line.take(head.length)?;
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(content_bytes as u64) else {
                return broken("upstream sent response body larger than indicated content length");
            };
            *left = rest;
        }
        if content_bytes > 0 {
            self.line.progress();
        } else if !head.has(flag::END_STREAM) {
            self.line.idle("empty data")?;
        }
        self.data =
            Some(Data { content_bytes, padding_bytes, is_last: head.has(flag::END_STREAM) });
        self.content(input)
    }

    /// What has arrived of a frame of content.
    fn content(&mut self, input: &mut BytesMut) -> Result<Step, Fault> {
        let Some(data) = &mut self.data else { return Ok(Step::Again) };
        let piece = input.split_to(data.content_bytes.min(input.len()));
        data.content_bytes -= piece.len();
        let mut is_over = false;
        if data.content_bytes == 0 {
            let padding = data.padding_bytes.min(input.len());
            input.advance(padding);
            data.padding_bytes -= padding;
            is_over = data.padding_bytes == 0;
        }
        if is_over {
            let is_last = data.is_last;
            self.data = None;
            if is_last {
                self.end()?;
            }
        }
        Ok(match (piece.is_empty(), is_over) {
            (false, _) => Step::Data(piece.freeze()),
            (true, true) => Step::Again,
            (true, false) => Step::More,
        })
    }

    /// The stream's end from the peer's side.
    fn end(&mut self) -> Result<(), Fault> {
        self.phase = Phase::Done;
        match self.left {
            Some(left) if left > 0 => broken("upstream prematurely closed stream"),
            _ => Ok(()),
        }
    }

    /// Takes in what came behind the answer. A connection on which that is broken serves no other request; the
    /// answer is whole.
    fn settle(&mut self, input: &mut BytesMut) {
        loop {
            match self.step(input) {
                Ok(Step::Again) => {}
                Ok(Step::More) => return,
                Ok(Step::Head(_) | Step::Data(_)) | Err(_) => return self.line.leave(),
            }
        }
    }

    /// As [`H2Codec::step`]; what fails once fails for good.
    fn read(&mut self, input: &mut BytesMut) -> Result<Step, CodecError> {
        if let Some(text) = &self.broken {
            return Err(CodecError::Invalid(text.clone()));
        }
        self.step(input).map_err(|fault| {
            let problem = self.error(fault);
            self.broken = Some(problem.to_string());
            problem
        })
    }

    fn error(&self, fault: Fault) -> CodecError {
        match fault {
            Fault::TooBig if self.phase == Phase::Head => CodecError::HeadTooBig,
            Fault::TooBig => CodecError::Invalid("upstream sent too big trailers".to_owned()),
            Fault::Refused(text) if self.phase == Phase::Head => CodecError::Refused(text),
            Fault::Refused(text) | Fault::Broken(text) => CodecError::Invalid(text),
        }
    }
}

/// Fields of a block, in order.
struct Fields {
    status: Option<String>,
    list: Vec<(Bytes, Bytes)>,
}

/// The same while they are read: names and values behind one another.
#[derive(Default)]
struct Found {
    status: Option<String>,
    text: Vec<u8>,
    ends: Vec<(usize, usize)>,
}

impl Found {
    fn put(&mut self, name: &[u8], value: &[u8]) -> Result<(), Broken> {
        let invalid =
            || format!("upstream sent invalid header: \"{}: {}\"", verbatim(name), verbatim(value));
        if name == b":status" {
            if self.status.is_some() {
                return Err("upstream sent duplicate :status header".to_owned());
            }
            if !self.ends.is_empty() {
                return Err(invalid());
            }
            self.status = Some(String::from_utf8_lossy(value).into_owned());
            return Ok(());
        }
        let is_name = !name.is_empty()
            && name.iter().all(|byte| {
                byte.is_ascii_lowercase()
                    || byte.is_ascii_digit()
                    || b"!#$%&'*+-.^_`|~".contains(byte)
            });
        let is_value = !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
        if !is_name || !is_value || is_of_connection(name) {
            return Err(invalid());
        }
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len()));
        Ok(())
    }

    fn fields(self) -> Fields {
        let text = Bytes::from(self.text);
        let mut at = 0;
        let part = |&(name_end, end): &(usize, usize)| {
            let field = (text.slice(at..name_end), text.slice(name_end..end));
            at = end;
            field
        };
        Fields { status: self.status, list: self.ends.iter().map(part).collect() }
    }
}

/// What HTTP/2 forbids: it would be about HTTP/1's connections (RFC 9113, section 8.2.2).
pub(super) fn is_of_connection(name: &[u8]) -> bool {
    [&b"connection"[..], b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}

impl Codec for H2Codec {
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        loop {
            match self.read(input)? {
                // Early hints (RFC 8297) may be meant for the client; other interim answers are not.
                Step::Head(head) if head.status >= 200 || head.status == 103 => {
                    return Ok(Some(head));
                }
                Step::Head(_) | Step::Again => {}
                Step::More => return Ok(None),
                Step::Data(_) => unreachable!("refused before the head"),
            }
        }
    }

    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError> {
        while self.phase != Phase::Done || self.broken.is_some() {
            match self.read(input)? {
                Step::Data(piece) => return Ok(BodyStep::Data(piece)),
                Step::Again => {}
                Step::More => return Ok(BodyStep::NeedMore),
                Step::Head(_) => unreachable!("it came before"),
            }
        }
        self.settle(input);
        Ok(BodyStep::End)
    }

    fn is_of_head_request(&self) -> bool {
        self.asked.is_head_request
    }

    fn is_whole_at_close(&self) -> bool {
        self.phase == Phase::Done && self.broken.is_none()
    }

    fn is_reusable(&self) -> bool {
        self.is_whole_at_close() && self.line.is_reusable()
    }

    fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        std::mem::take(&mut self.trailers)
    }

    fn take_output(&mut self) -> Vec<u8> {
        self.line.take_output()
    }

    fn leave(&mut self) -> Option<Box<dyn Any>> {
        Some(Box::new(Rc::clone(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_wire::h2::frame::{Code, write};
    use yorozu_wire::h2::hpack::{put_field, put_status};

    const ASKED: Asked = Asked { head_bytes_max: 4096, is_head_request: false };

    fn block(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        if status > 0 {
            put_status(&mut out, status);
        }
        for (name, value) in fields {
            put_field(&mut out, name.as_bytes(), value.as_bytes());
        }
        out
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, kind, flags, stream, payload);
        out
    }

    const END: u8 = flag::END_STREAM;
    const WHOLE: u8 = flag::END_HEADERS;

    fn head(status: u16, fields: &[(&str, &str)], is_last: bool) -> Vec<u8> {
        let flags = WHOLE | if is_last { END } else { 0 };
        frame(kind::HEADERS, flags, 1, &block(status, fields))
    }

    fn data(text: &str, flags: u8) -> Vec<u8> {
        frame(kind::DATA, flags, 1, text.as_bytes())
    }

    fn begun(asked: Asked) -> H2Codec {
        let line = Rc::new(Line::default());
        line.begin(&[], true, &mut Vec::new());
        H2Codec::new(line, asked)
    }

    /// What came of an answer.
    #[derive(Debug, PartialEq)]
    struct Answer {
        status: u16,
        body: String,
        trailers: usize,
        is_reusable: bool,
    }

    fn answer(
        status: u16,
        body: &str,
        trailers: usize,
        is_reusable: bool,
    ) -> Result<Answer, String> {
        Ok(Answer { status, body: body.to_owned(), trailers, is_reusable })
    }

    /// Reads an answer that arrives in pieces of this many bytes.
    fn run(bytes: &[u8], piece: usize, asked: Asked) -> Result<Answer, String> {
        let mut codec = begun(asked);
        let (mut input, mut head, mut body, mut is_ended) =
            (BytesMut::new(), None::<Head>, Vec::new(), false);
        for piece in bytes.chunks(piece) {
            input.extend_from_slice(piece);
            while head.as_ref().is_none_or(|head| head.status < 200) {
                head = codec.read_head(&mut input).map_err(|problem| problem.to_string())?;
                if head.is_none() {
                    break;
                }
            }
            while head.is_some() {
                match codec.read_body(&mut input).map_err(|problem| problem.to_string())? {
                    BodyStep::Data(bytes) => body.extend_from_slice(&bytes),
                    BodyStep::End => is_ended = true,
                    BodyStep::NeedMore => {}
                }
                if is_ended || input.is_empty() || piece.len() < bytes.len() {
                    break;
                }
            }
        }
        while !is_ended {
            match codec.read_body(&mut input).map_err(|problem| problem.to_string())? {
                BodyStep::Data(bytes) => body.extend_from_slice(&bytes),
                BodyStep::End => is_ended = true,
                BodyStep::NeedMore => return Err("no end".to_owned()),
            }
        }
        Ok(Answer {
            status: head.ok_or("no head")?.status,
            body: String::from_utf8(body).unwrap(),
            trailers: codec.take_trailers().len(),
            is_reusable: codec.is_reusable() && input.is_empty(),
        })
    }

    #[test]
    fn answers_are_read_whatever_the_pieces() {
        let padded = [&[3][..], b"hello", &[0; 3]].concat();
        let fields = block(200, &[("x-a", "b"), ("x-c", "d")]);
        let (first, second) = fields.split_at(3);
        let split = [
            frame(kind::HEADERS, 0, 1, first),
            frame(kind::CONTINUATION, 0, 1, b""),
            frame(kind::CONTINUATION, WHOLE, 1, second),
        ]
        .concat();
        let table = [
            ([head(200, &[], false), data("hello", END)].concat(), "hello", 0),
            (
                [head(200, &[], false), data("hel", 0), data("", 0), data("lo", END)].concat(),
                "hello",
                0,
            ),
            (
                [head(200, &[("content-length", "5")], false), data("hello", 0), data("", END)]
                    .concat(),
                "hello",
                0,
            ),
            (
                [head(200, &[], false), frame(kind::DATA, END | flag::PADDED, 1, &padded)].concat(),
                "hello",
                0,
            ),
            (
                [head(103, &[("link", "a")], false), head(100, &[], false), head(200, &[], true)]
                    .concat(),
                "",
                0,
            ),
            ([split, data("", END)].concat(), "", 0),
            (
                [head(200, &[], false), data("hello", 0), head(0, &[("a", "b"), ("c", "d")], true)]
                    .concat(),
                "hello",
                2,
            ),
            (
                [
                    frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9]),
                    frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9]),
                    frame(77, 0, 0, b"unknown"),
                    head(200, &[], false),
                    frame(kind::PING, 0, 0, b"12345678"),
                    data("hello", END),
                    frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
                    frame(kind::RST_STREAM, 0, 1, &[0; 4]),
                ]
                .concat(),
                "hello",
                0,
            ),
        ];
        for (bytes, body, trailers) in table {
            for piece in [1, 2, 7, 4096] {
                let mut found = run(&bytes, piece, ASKED);
                if let Ok(found) = &mut found {
                    // What comes behind the end is not looked at here when it comes later.
                    found.is_reusable |= piece < 4096;
                }
                assert_eq!(found, answer(200, body, trailers, true), "{bytes:?} {piece}");
            }
        }
    }

    #[test]
    fn some_answers_have_no_content() {
        let asked = Asked { is_head_request: true, ..ASKED };
        let bytes = head(200, &[("content-length", "5")], true);
        assert_eq!(run(&bytes, 64, asked), answer(200, "", 0, true));
        let bytes = head(304, &[("content-length", "5")], true);
        assert_eq!(run(&bytes, 64, ASKED), answer(304, "", 0, true));
    }

    #[test]
    fn a_connection_that_is_leaving_ends_with_the_answer() {
        let last = |last: u8| frame(kind::GOAWAY, 0, 0, &[0, 0, 0, last, 0, 0, 0, 7]);
        let bytes = [last(1), head(200, &[], true)].concat();
        assert_eq!(run(&bytes, 4096, ASKED), answer(200, "", 0, false));
        let bytes = [head(200, &[], true), last(0)].concat();
        assert_eq!(run(&bytes, 4096, ASKED), answer(200, "", 0, false));
        let mut codec = begun(ASKED);
        let refused = codec.read_head(&mut BytesMut::from(&last(0)[..]));
        assert!(
            matches!(refused, Err(CodecError::Refused(text)) if text == "upstream sent goaway with error 7")
        );
    }

    #[test]
    fn what_breaks_the_rules_is_refused_with_a_reason() {
        let good = || head(200, &[], false);
        let code = |code: Code| code.0.to_be_bytes();
        let table: &[(Vec<u8>, &str)] = &[
            (data("a", 0), "unexpected http2 frame: 0"),
            (frame(kind::CONTINUATION, WHOLE, 1, b""), "unexpected http2 frame: 9"),
            ([frame(kind::HEADERS, 0, 1, b""), data("", 0)].concat(), "unexpected http2 frame: 0"),
            (frame(kind::HEADERS, WHOLE, 3, b""), "unknown stream 3"),
            (frame(kind::HEADERS, WHOLE, 0, b""), "HEADERS frame without a stream"),
            (frame(kind::PUSH_PROMISE, WHOLE, 1, b""), "PUSH_PROMISE"),
            (frame(kind::PING, 0, 0, b"1"), "PING frame of incorrect length"),
            ([0, 255, 255, 0, 0, 0, 0, 0, 1].to_vec(), "too large http2 frame: 65535"),
            (head(0, &[("a", "b")], true), "no :status header"),
            (frame(kind::HEADERS, WHOLE, 1, &[0x88, 0x88]), "duplicate :status"),
            (head(99, &[], true), "invalid :status \"099\""),
            (head(101, &[], false), "unexpected :status \"101\""),
            (head(100, &[], true), "unexpected :status \"100\""),
            (head(200, &[("a b", "c")], true), "invalid header: \"a b: c\""),
            (head(200, &[("a", "b\nc")], true), "invalid header: \"a: b\nc\""),
            (head(200, &[(":path", "/")], true), "invalid header: \":path: /\""),
            (head(200, &[("connection", "close")], true), "invalid header: \"connection: close\""),
            (head(200, &[("content-length", "x")], true), "invalid \"Content-Length\""),
            (
                head(200, &[("content-length", "1"), ("content-length", "1")], true),
                "duplicate header line",
            ),
            (head(200, &[("content-length", "5")], true), "prematurely closed stream"),
            (frame(kind::HEADERS, WHOLE, 1, &[0xff, 0xff]), "end too early"),
            (frame(kind::HEADERS, WHOLE, 1, &[0x80]), "invalid http2 headers"),
            (head(200, &[("x", &"y".repeat(9000))], true), "too big header"),
            (
                frame(kind::RST_STREAM, 0, 1, &code(Code::INTERNAL_ERROR)),
                "rejected request with error 2",
            ),
            (frame(kind::WINDOW_UPDATE, 0, 1, &[127, 255, 255, 255]), "too large window update"),
            (frame(kind::SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255]), "INITIAL_WINDOW_SIZE"),
            (frame(kind::PING, 0, 0, &[0; 8]).repeat(1001), "too many ping frames"),
            (frame(kind::SETTINGS, 0, 0, &[]).repeat(1001), "too many settings frames"),
            (head(100, &[], false).repeat(1100), "too many"),
            ([good(), data("", 0).repeat(1001)].concat(), "too many empty data frames"),
            ([good(), good()].concat(), "trailer without end stream"),
            ([good(), head(200, &[], true)].concat(), "trailer \":status: 200\""),
            ([good(), head(0, &[("x", &"y".repeat(9000))], true)].concat(), "too big trailers"),
            (
                [good(), frame(kind::RST_STREAM, 0, 1, &[0; 4])].concat(),
                "rejected request with error 0",
            ),
            (
                [good(), frame(kind::DATA, flag::PADDED, 1, b"\x05ab")].concat(),
                "too long padding: 5 in frame 3",
            ),
            ([good(), frame(kind::DATA, flag::PADDED, 1, b"")].concat(), "too short http2 frame"),
            (
                [head(200, &[("content-length", "1")], false), data("ab", 0)].concat(),
                "larger than indicated",
            ),
            (
                [head(200, &[("content-length", "3")], false), data("ab", END)].concat(),
                "prematurely closed stream",
            ),
            ([head(204, &[], false), data("a", END)].concat(), "larger than indicated"),
        ];
        for (bytes, why) in table {
            let problem = run(bytes, 1 << 20, ASKED).expect_err(why);
            assert!(problem.contains(why), "{problem:?} for {why:?}");
        }
    }

    #[test]
    fn what_is_broken_stays_so() {
        let mut codec = begun(ASKED);
        let bytes = [head(200, &[("content-length", "3")], false), data("a", END)].concat();
        let mut input = BytesMut::from(&bytes[..]);
        codec.read_head(&mut input).unwrap().unwrap();
        assert!(matches!(codec.read_body(&mut input), Ok(BodyStep::Data(_)) | Err(_)));
        for _ in 0..3 {
            let problem = codec.read_body(&mut input).unwrap_err().to_string();
            assert_eq!(problem, "upstream prematurely closed stream");
        }
        assert!(!codec.is_whole_at_close() && !codec.is_reusable());
    }

    #[test]
    fn a_window_is_not_overrun_and_opens_again() {
        let mut codec = begun(ASKED);
        let mut input = BytesMut::from(&head(200, &[], false)[..]);
        codec.read_head(&mut input).unwrap().unwrap();
        let frames = (1 << 31) / PAYLOAD_BYTES * 3 / 4 + 2;
        let piece = frame(kind::DATA, 0, 1, &vec![0; PAYLOAD_BYTES]);
        let mut said = Vec::new();
        for _ in 0..frames {
            input.extend_from_slice(&piece);
            assert!(matches!(codec.read_body(&mut input), Ok(BodyStep::Data(_))));
            said.extend(codec.take_output());
        }
        // One for the stream, one for the connection.
        assert_eq!(said.len(), 2 * (HEAD_BYTES + 4));
    }

    #[test]
    fn what_the_peer_asks_is_answered() {
        let mut codec = begun(ASKED);
        let bytes =
            [frame(kind::SETTINGS, 0, 0, &[]), frame(kind::PING, 0, 0, b"12345678")].concat();
        assert!(matches!(codec.read_head(&mut BytesMut::from(&bytes[..])), Ok(None)));
        let expected = [
            frame(kind::SETTINGS, flag::ACK, 0, &[]),
            frame(kind::PING, flag::ACK, 0, b"12345678"),
        ];
        assert_eq!(codec.take_output(), expected.concat());
    }
}
