//! What a client sends on a connection, frame by frame.

use super::streams::{FAREWELL, Streams};
use bytes::{Buf as _, BytesMut};
use std::rc::Rc;
use yorozu_wire::h2::frame::{self, Broken, Code, Frame, Head, PREFACE, flag, kind};
use yorozu_wire::h2::hpack::{Decoder, Stop};

/// Frames of one block of fields at most; chosen: clients need one or two.
const FRAMES_MAX: usize = 64;
/// What a client may send that is neither fields nor content, in bytes, beside eight times as much of those both ways;
/// as nginx.
const IDLE_TALK_BYTES: u64 = 1024 * 1024;

/// A block of fields.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    /// Whether nothing follows on its stream.
    pub(super) is_last: bool,
    bytes: Vec<u8>,
    frames: usize,
}

/// The client's side of a connection.
#[derive(Debug)]
pub(super) struct Incoming {
    buffer: BytesMut,
    streams: Rc<Streams>,
    decoder: Decoder,
    /// Of which not all has arrived.
    block: Option<Block>,
    /// Longest block, in bytes.
    block_bytes_max: usize,
    has_preface: bool,
    /// Whether the client knows our settings.
    pub(super) is_settled: bool,
    /// Whether the client answered the PING behind the first GOAWAY.
    pub(super) knows_end: bool,
    /// All bytes, and those of fields and content; the client's.
    bytes: u64,
    useful: u64,
}

const fn broken(text: &'static str) -> Broken {
    Broken::Connection(Code::PROTOCOL_ERROR, text)
}

impl Incoming {
    /// `early`: what was read before.
    pub(super) fn new(early: BytesMut, streams: Rc<Streams>, block_bytes_max: usize) -> Self {
        Self {
            buffer: early,
            streams,
            decoder: Decoder::default(),
            block: None,
            block_bytes_max,
            has_preface: false,
            is_settled: false,
            knows_end: false,
            bytes: 0,
            useful: 0,
        }
    }

    /// Where further bytes go.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Gives memory back while nothing happens.
    pub(super) fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Obeys all frames that have arrived, up to a whole block of fields. A frame that ends its stream is obeyed so;
    /// `note` is told which stream, and why.
    ///
    /// # Errors
    /// The connection is over: with this code, for this reason.
    pub(super) fn next(
        &mut self,
        note: impl Fn(u32, &str),
    ) -> Result<Option<Block>, (Code, &'static str)> {
        loop {
            let (stream, read) = match self.frame() {
                Ok(None) => return Ok(None),
                Ok(Some((stream, read))) => (stream, read),
                Err(Broken::Connection(code, text)) => return Err((code, text)),
                Err(Broken::Stream(..)) => {
                    unreachable!("only what a frame says concerns its stream")
                }
            };
            match read {
                Ok(()) => {}
                Err(Broken::Connection(code, text)) => return Err((code, text)),
                // A stream that was never begun cannot end (RFC 9113, section 6.4).
                Err(Broken::Stream(code, text)) if self.streams.is_idle(stream) => {
                    return Err((code, text));
                }
                Err(Broken::Stream(code, text)) => {
                    note(stream, text);
                    self.streams.break_off(stream, code);
                }
            }
            if let Some(block) = self.block.take_if(|block| block.frames == 0) {
                return Ok(Some(block));
            }
        }
    }

    /// Obeys one frame: its stream, and what came of it.
    #[expect(clippy::type_complexity, reason = "a frame's stream, and its outcome")]
    fn frame(&mut self) -> Result<Option<(u32, Result<(), Broken>)>, Broken> {
        if !self.has_preface {
            let length = self.buffer.len().min(PREFACE.len());
            if self.buffer[..length] != PREFACE[..length] {
                return Err(broken("invalid connection preface"));
            }
            if length < PREFACE.len() {
                return Ok(None);
            }
            self.buffer.advance(PREFACE.len());
            self.has_preface = true;
        }
        let Some(head) = Head::read(&self.buffer) else { return Ok(None) };
        self.judge(&head)?;
        let length = frame::HEAD_BYTES + head.length;
        if self.buffer.len() < length {
            return Ok(None);
        }
        // Out of the way while the frame is obeyed.
        let mut buffer = std::mem::take(&mut self.buffer);
        let payload = &buffer[frame::HEAD_BYTES..length];
        self.bytes += length as u64;
        if matches!(head.kind, kind::DATA | kind::HEADERS | kind::CONTINUATION) {
            self.useful += head.length as u64;
        }
        if self.bytes / 8 > self.useful + self.streams.useful() + IDLE_TALK_BYTES {
            return Err(Broken::Connection(Code::ENHANCE_YOUR_CALM, "http2 flood detected"));
        }
        let done = frame::read(&head, payload).and_then(|read| self.obey(&head, &read));
        buffer.advance(length);
        self.buffer = buffer;
        Ok(Some((head.stream, done)))
    }

    /// What must not come here at all.
    fn judge(&self, head: &Head) -> Result<(), Broken> {
        if head.length > frame::PAYLOAD_BYTES {
            let text = "client sent too large frame";
            return Err(Broken::Connection(Code::FRAME_SIZE_ERROR, text));
        }
        let continues =
            |block: &Block| head.kind == kind::CONTINUATION && head.stream == block.stream;
        match &self.block {
            Some(block) if !continues(block) => {
                Err(broken("client sent another frame in place of CONTINUATION"))
            }
            None if head.kind == kind::CONTINUATION => {
                Err(broken("client sent unexpected CONTINUATION frame"))
            }
            _ => Ok(()),
        }
    }

    fn obey(&mut self, head: &Head, read: &Frame<'_>) -> Result<(), Broken> {
        let streams = &self.streams;
        match *read {
            Frame::Data(content) => {
                let is_last = head.has(flag::END_STREAM);
                streams.data(head.stream, content, head.length, is_last)
            }
            Frame::Headers(part) => {
                let is_last = head.has(flag::END_STREAM);
                let stream = head.stream;
                self.block = Some(Block { stream, is_last, bytes: Vec::new(), frames: 1 });
                self.collect(head, part)
            }
            Frame::Continuation(part) => self.collect(head, part),
            Frame::Reset(code) => streams.give_up(head.stream, code),
            Frame::Settings(payload) => streams.set(payload),
            Frame::SettingsAck => {
                self.is_settled = true;
                Ok(())
            }
            Frame::Ping(content) => {
                streams.pong(content);
                Ok(())
            }
            Frame::Pong(content) => {
                self.knows_end |= content == FAREWELL;
                Ok(())
            }
            Frame::WindowUpdate(more) => streams.widen(head.stream, more),
            Frame::Goaway(..) | Frame::Other => Ok(()),
        }
    }

    /// A part of a block of fields. One that is whole counts no frames.
    fn collect(&mut self, head: &Head, part: &[u8]) -> Result<(), Broken> {
        let block = self.block.as_mut().expect("a part belongs to one");
        block.frames += 1;
        block.bytes.extend_from_slice(part);
        if block.bytes.len() > self.block_bytes_max || block.frames > FRAMES_MAX {
            let text = "client exceeded \"large_client_header_buffers\" limit";
            return Err(Broken::Connection(Code::ENHANCE_YOUR_CALM, text));
        }
        if head.has(flag::END_HEADERS) {
            block.frames = 0;
        }
        Ok(())
    }

    /// The fields of a block; `put` says whether it wants more.
    ///
    /// # Errors
    /// [`Stop`]: no further block can be decoded.
    pub(super) fn fields(
        &mut self,
        block: &Block,
        put: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Stop> {
        self.decoder.decode(&block.bytes, put)
    }
}

impl Block {
    /// Bytes on the wire.
    pub(super) fn length(&self) -> usize {
        self.bytes.len()
    }
}
