//! A request's head and body, as they arrive on its stream.

use super::{Shared, number};
use crate::fields::OTHER_LENGTH;
use crate::head::Bounds;
use bytes::{Buf as _, Bytes};
use quinn::{ReadError, RecvStream};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use yorozu_kernel::base::{limits, timer};
use yorozu_kernel::exchange::source::{Frames, Lost};
use yorozu_wire::h3::frame::{Broken, Code};
use yorozu_wire::h3::qpack::Section;
use yorozu_wire::h3::request::{Part, Reader};

/// Bytes read at once; chosen.
const CHUNK_BYTES: usize = 64 * 1024;

/// Why a head could not be read.
pub(super) enum NoHead {
    /// The client is gone, or has given the stream up.
    Gone,
    Broken(Broken),
}

impl From<Broken> for NoHead {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// What of a head was read.
pub(super) struct Head {
    /// Bytes on the wire.
    pub(super) length: usize,
    /// Whether there is more of it than may be.
    pub(super) is_too_large: bool,
}

/// A piece of a stream.
enum Piece {
    Data(Bytes),
    Fields { part: Bytes, is_last: bool },
}

/// The client's side of a stream.
pub(super) struct Incoming {
    shared: Rc<Shared>,
    id: u64,
    recv: RecvStream,
    reader: Reader,
    /// What has arrived and was not looked at.
    rest: Bytes,
    /// Whether the request is over.
    pub(super) is_ended: bool,
    /// What is to come of the body, if the client said it.
    announced: Option<u64>,
    /// A field section that is not whole, or waits.
    section: Vec<u8>,
    /// Whether there is one that was not read.
    has_unread_section: bool,
    /// Whether that one is whole, and waits for what the client's encoder says.
    waits_for_fields: bool,
    /// Of the fields behind a body: those of the head, whatever configuration came after it.
    bounds: Bounds,
    /// What the client is told if its request is not read to the end.
    pub(super) stop_code: Code,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_ended {
            // RFC 9114, section 4.1: the rest is not wanted.
            let _ = self.recv.stop(number(self.stop_code));
        }
        if self.has_unread_section || self.reader.sections() == 0 {
            self.shared.decoder.borrow_mut().cancel(self.id);
            self.shared.blocked.borrow_mut().retain(|(stream, _)| *stream != self.id);
            self.shared.acknowledge();
        }
    }
}

impl Incoming {
    pub(super) fn new(shared: Rc<Shared>, id: u64, recv: RecvStream) -> Self {
        Self {
            shared,
            id,
            recv,
            reader: Reader::default(),
            rest: Bytes::new(),
            is_ended: false,
            announced: None,
            section: Vec::new(),
            has_unread_section: false,
            waits_for_fields: false,
            bounds: Bounds::NONE,
            stop_code: Code::NO_ERROR,
        }
    }

    /// Whether it came before the handshake was over.
    pub(super) fn is_early(&self) -> bool {
        self.recv.is_0rtt()
    }

    /// Reads what has arrived into `rest`; `false` at the end.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, NoHead>> {
        let read = pin!(self.recv.read_chunk(CHUNK_BYTES, true)).poll(context);
        Poll::Ready(match ready!(read) {
            Ok(Some(chunk)) => {
                self.shared.note_bytes(chunk.bytes.len());
                self.rest = chunk.bytes;
                Ok(true)
            }
            Ok(None) => {
                self.is_ended = true;
                self.reader.end()?;
                match self.announced {
                    Some(left) if left > 0 => Err(NoHead::Broken(other_length())),
                    _ => Ok(false),
                }
            }
            Err(problem) => {
                self.is_ended = true;
                if matches!(problem, ReadError::Reset(_)) {
                    self.shared.note_reset();
                }
                Err(NoHead::Gone)
            }
        })
    }

    /// The next piece of what has arrived.
    fn piece(&mut self) -> Result<Option<Piece>, Broken> {
        let all = self.rest.clone();
        let mut left = &all[..];
        let part = self.reader.next(&mut left)?;
        self.rest.advance(all.len() - left.len());
        Ok(part.map(|part| match part {
            Part::Data { part, .. } => Piece::Data(all.slice_ref(part)),
            Part::Fields { part, left } => {
                Piece::Fields { part: all.slice_ref(part), is_last: left == 0 }
            }
        }))
    }

    /// Appends a piece of a section; `false` if that is longer than it may be.
    fn collect(&mut self, part: &[u8], bytes_max: usize) -> bool {
        self.has_unread_section = true;
        self.shared.note_useful(part.len());
        let fits = self.section.len() + part.len() <= bytes_max;
        if fits {
            self.section.extend_from_slice(part);
        }
        fits
    }

    /// Reads the head's fields into the connection's list, which holds them until others have their turn.
    ///
    /// # Cancel safety
    /// Drop the stream.
    pub(super) async fn head(&mut self, bounds: &Bounds) -> Result<Head, NoHead> {
        self.bounds = *bounds;
        let mut length = 0;
        loop {
            match self.piece()? {
                Some(Piece::Fields { part, is_last }) => {
                    length += part.len();
                    if !self.collect(&part, bounds.head_bytes_max) {
                        return Ok(Head { length, is_too_large: true });
                    }
                    if is_last {
                        break;
                    }
                }
                Some(Piece::Data(_)) => unreachable!("the reader wants a head first"),
                None if !poll_fn(|context| self.poll_fill(context)).await? => {
                    unreachable!("the reader wants a head")
                }
                None => {}
            }
        }
        let is_whole = poll_fn(|context| self.poll_section(context, bounds)).await?;
        Ok(Head { length, is_too_large: !is_whole })
    }

    /// Decodes the section into the connection's list; whether all of it was within the bounds.
    fn poll_section(
        &mut self,
        context: &mut Context<'_>,
        bounds: &Bounds,
    ) -> Poll<Result<bool, Broken>> {
        let shared = Rc::clone(&self.shared);
        let mut list = shared.fields.borrow_mut();
        list.clear();
        let mut decoder = shared.decoder.borrow_mut();
        let take = |name: &[u8], value: &[u8]| list.put(name, value, bounds);
        match decoder.section(self.id, &self.section, take)? {
            Section::Blocked => {
                self.waits_for_fields = true;
                shared.wait_for_fields(self.id, context.waker());
                Poll::Pending
            }
            read => {
                self.section = Vec::new();
                (self.has_unread_section, self.waits_for_fields) = (false, false);
                drop(decoder);
                shared.acknowledge();
                Poll::Ready(Ok(matches!(read, Section::Whole)))
            }
        }
    }

    /// Whether the request ends with its head; `announced`: the length of its body. Where the client does not say one,
    /// the end of the stream may come a moment later than the head.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn ends_here(&mut self, announced: Option<u64>) -> Result<bool, NoHead> {
        self.announced = announced;
        if self.rest.is_empty() && !self.is_ended {
            let filled = match announced {
                None => {
                    let filled = poll_fn(|context| self.poll_fill(context));
                    timer::within(limits::H3_END_WAIT, filled).await
                }
                Some(_) => poll_fn(|context| Poll::Ready(poll_now(self.poll_fill(context)))).await,
            };
            filled.transpose()?;
        }
        Ok(self.is_ended)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NoHead>> {
        loop {
            if self.waits_for_fields {
                ready!(self.poll_trailers(context))?;
            }
            match self.piece()? {
                Some(Piece::Data(content)) => {
                    if let Some(left) = &mut self.announced {
                        *left = left.checked_sub(content.len() as u64).ok_or_else(other_length)?;
                    }
                    self.shared.note_useful(content.len());
                    return Poll::Ready(Ok(Some(content)));
                }
                Some(Piece::Fields { part, is_last }) => {
                    let bounds = self.bounds;
                    if !self.collect(&part, bounds.head_bytes_max) {
                        let text = "client sent too large trailers";
                        return Poll::Ready(Err(Broken::Stream(Code::EXCESSIVE_LOAD, text).into()));
                    }
                    if is_last {
                        ready!(self.poll_trailers(context))?;
                    }
                }
                None if self.is_ended => return Poll::Ready(Ok(None)),
                None => _ = ready!(self.poll_fill(context))?,
            }
        }
    }

    fn poll_trailers(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let bounds = self.bounds;
        let is_whole = ready!(self.poll_section(context, &bounds))?;
        let are_trailers = self.shared.fields.borrow().are_trailers();
        Poll::Ready(match is_whole && are_trailers {
            true => Ok(()),
            false => Err(Broken::Stream(Code::MESSAGE_ERROR, "client sent invalid trailers")),
        })
    }
}

fn poll_now<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn other_length() -> Broken {
    Broken::Stream(Code::MESSAGE_ERROR, OTHER_LENGTH)
}

impl Frames for Incoming {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>> {
        match ready!(self.poll_next(context)) {
            Ok(content) => Poll::Ready(content.map(Ok)),
            Err(NoHead::Gone) => Poll::Ready(Some(Err(Lost::Reset))),
            Err(NoHead::Broken(broken)) => {
                self.shared.broken(broken);
                let Broken::Stream(code, _) = broken else {
                    return Poll::Ready(Some(Err(Lost::Reset)));
                };
                self.stop_code = code;
                self.shared.note_reset();
                Poll::Ready(Some(Err(Lost::Malformed)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended && self.rest.is_empty()
    }
}
