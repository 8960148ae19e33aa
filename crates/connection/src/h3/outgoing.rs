//! What is sent on a stream.

use super::{Shared, number, stream_number};
use crate::fields::may_send;
use crate::send::Stop;
use bytes::{Buf as _, Bytes};
use quinn::{SendStream, StoppedError, VarInt, WriteError};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use yorozu_http::field;
use yorozu_kernel::base::timer;
use yorozu_kernel::exchange::source::{Interim, RequestSource};
use yorozu_wire::h3::frame::{Code, kind, put_head};
use yorozu_wire::h3::qpack::{put_field, put_prefix, put_status};

/// Our side of a stream.
pub(super) struct Outgoing {
    shared: Rc<Shared>,
    pub(super) id: u64,
    send: RefCell<Option<SendStream>>,
    /// What could not be sent of what comes before a response.
    early: Cell<Bytes>,
    /// Whether the client has given it up.
    is_stopped: Cell<bool>,
    /// Waits for that.
    stopped: Cell<Option<Stopped>>,
}

/// What the client did with a stream: read all of it, or stopped.
type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>>>>;

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // What answered it has ended by a panic: left alone it would look whole.
        self.reset(Code::INTERNAL_ERROR);
    }
}

/// Room for the head of a frame: its type, and its length.
const HEAD_BYTES_MAX: usize = 1 + 8;

/// A section of fields under construction, behind room for its frame's head.
pub(super) struct Fields {
    bytes: Vec<u8>,
}

impl Fields {
    pub(super) fn new(status: Option<u16>) -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&[0; HEAD_BYTES_MAX]);
        put_prefix(&mut bytes);
        if let Some(status) = status {
            put_status(&mut bytes, status);
        }
        Self { bytes }
    }

    /// Appends a field, if HTTP/3 has it (RFC 9114, section 4.2).
    pub(super) fn put(&mut self, name: &[u8], value: &[u8]) {
        if may_send(name) {
            put_field(&mut self.bytes, name, &field::Value::new(value));
        }
    }

    /// As a frame.
    pub(super) fn frame(self) -> Bytes {
        self.before(None).0
    }

    /// As a frame, and the head of one with this much content behind it; with the first one's length.
    pub(super) fn before(self, content: Option<u64>) -> (Bytes, usize) {
        let Self { mut bytes } = self;
        let (end, length) = (bytes.len(), bytes.len() - HEAD_BYTES_MAX);
        put_head(&mut bytes, kind::HEADERS, length as u64);
        let begin = HEAD_BYTES_MAX - (bytes.len() - end);
        bytes.copy_within(end.., begin);
        bytes.truncate(end);
        if let Some(content) = content {
            put_head(&mut bytes, kind::DATA, content);
        }
        let mut bytes = Bytes::from(bytes);
        bytes.advance(begin);
        (bytes, end - begin)
    }
}

impl Outgoing {
    pub(super) fn new(shared: Rc<Shared>, send: SendStream) -> Rc<Self> {
        let id = stream_number(send.id());
        let send = RefCell::new(Some(send));
        Rc::new(Self {
            shared,
            id,
            send,
            early: Cell::default(),
            stopped: Cell::default(),
            is_stopped: Cell::new(false),
        })
    }

    fn note_stopped(&self) {
        if !self.is_stopped.replace(true) {
            self.shared.note_reset();
        }
    }

    /// Gives the library what it takes of `parts`; `Ready` when that is all.
    fn poll_write(&self, context: &mut Context<'_>, parts: &mut [Bytes]) -> Poll<Result<(), Stop>> {
        let gone = || Stop::Failed(io::ErrorKind::ConnectionReset.into());
        let mut send = self.send.borrow_mut();
        let Some(send) = &mut *send else { return Poll::Ready(Err(gone())) };
        let mut early = [self.early.take()];
        while !early[0].is_empty() || parts.iter().any(|part| !part.is_empty()) {
            let rest = if early[0].is_empty() { &mut *parts } else { &mut early };
            let polled = { pin!(send.write_chunks(rest)).poll(context) };
            match polled {
                Poll::Pending => {
                    let [early] = early;
                    self.early.set(early);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(written)) => self.shared.note_useful(written.bytes),
                Poll::Ready(Err(problem)) => {
                    if matches!(problem, WriteError::Stopped(_)) {
                        self.note_stopped();
                    }
                    return Poll::Ready(Err(gone()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends bytes, as the client takes them; `timeout`: how long it may take none.
    ///
    /// # Errors
    /// The client is gone, or does not take them.
    pub(super) async fn write(&self, parts: &mut [Bytes], timeout: Duration) -> Result<(), Stop> {
        let left = |parts: &[Bytes]| parts.iter().map(Bytes::len).sum::<usize>();
        loop {
            let before = left(parts);
            let work = poll_fn(|context| match self.poll_write(context, parts) {
                Poll::Ready(written) => Poll::Ready(Some(written)),
                // Some of it went: the time begins again.
                Poll::Pending if left(parts) < before => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            match timer::within(timeout, work).await {
                Some(Some(written)) => return written,
                Some(None) => {}
                None => return Err(Stop::TimedOut),
            }
        }
    }

    /// The response is whole.
    pub(super) fn finish(&self) {
        if let Some(mut send) = self.send.take() {
            if send.finish().is_ok() {
                self.shared.keep(send);
            }
        }
    }

    /// Returns when the client has given it up: for who sends it, beside those who ask for the client.
    pub(super) async fn closed(&self) {
        let stopped = self.send.borrow().as_ref().map(SendStream::stopped);
        let Some(stopped) = stopped else { return };
        match stopped.await {
            // All of it has arrived.
            Ok(None) => std::future::pending().await,
            Ok(Some(_)) => self.note_stopped(),
            Err(_) => {}
        }
    }

    /// Ends the stream before its end.
    pub(super) fn reset(&self, code: Code) {
        if let Some(mut send) = self.send.take() {
            let _ = send.reset(number(code));
        }
    }
}

impl RequestSource for Outgoing {
    fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        let begun = || {
            let send = self.send.borrow();
            send.as_ref().map(|send| -> Stopped { Box::pin(send.stopped()) })
        };
        let Some(mut stopped) = self.stopped.take().or_else(begun) else { return Poll::Ready(()) };
        match stopped.as_mut().poll(context) {
            Poll::Pending => self.stopped.set(Some(stopped)),
            // All of it has arrived.
            Poll::Ready(Ok(None)) => self.stopped.set(Some(Box::pin(std::future::pending()))),
            Poll::Ready(Ok(Some(_))) => {
                self.note_stopped();
                return Poll::Ready(());
            }
            Poll::Ready(Err(_)) => return Poll::Ready(()),
        }
        Poll::Pending
    }

    fn interim<'a>(
        &'a self,
        what: Interim<'a>,
        _timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = io::Result<()>> + 'a>> {
        let before = self.early.take();
        let is_free = before.is_empty();
        self.early.set(before);
        if let (Interim::EarlyHints(hints), true) = (what, is_free) {
            let mut fields = Fields::new(Some(103));
            hints.iter().for_each(|(name, value)| fields.put(name, value));
            self.early.set(fields.frame());
            // The rest of it goes before the response; a client that is gone is noticed by who answers it.
            let _ = self.poll_write(&mut Context::from_waker(Waker::noop()), &mut []);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
