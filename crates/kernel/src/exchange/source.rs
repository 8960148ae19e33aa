//! Where a request comes from, as far as what answers it has to know: the connection implements it.

use bytes::{Bytes, BytesMut};
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What is said before a response (RFC 9110, section 15.2).
#[derive(Clone, Copy, Debug)]
pub enum Interim<'a> {
    /// 100: the body is wanted.
    Continue,
    /// 103, with its fields (RFC 8297).
    EarlyHints(&'a [(Bytes, Bytes)]),
}

/// The client of one request, as its connection or stream has it.
pub trait RequestSource: Debug {
    /// Is ready when the client has given the request up; of those who ask, the last is woken.
    fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()>;

    /// Says something before the response, in no more than `timeout`: answers before it may fill the way to a client
    /// that does not read. What is out of it then cannot be taken back, so the connection is over.
    ///
    /// # Errors
    /// The client is gone, or `TimedOut`.
    fn interim<'a>(
        &'a self,
        what: Interim<'a>,
        timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = io::Result<()>> + 'a>>;
}

/// Bytes both ways, past TLS.
pub trait ByteStream: RequestSource {
    /// Appends what has arrived, no more than `max` bytes; 0 at the end of the client's bytes.
    fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>>;

    /// Takes bytes to send; [`ByteStream::poll_flush`] sees to it that they go.
    fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Sends what was taken.
    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl dyn ByteStream + '_ {
    /// As [`ByteStream::poll_read`], awaited.
    ///
    /// # Errors
    /// As the system reports it; `InvalidData` for broken TLS records.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn read(&self, into: &mut BytesMut, max: usize) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, into, max)).await
    }

    /// Sends what it can of `bytes`; how much that was.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let count = poll_fn(|context| self.poll_write(context, &[IoSlice::new(bytes)])).await?;
        poll_fn(|context| self.poll_flush(context)).await?;
        Ok(count)
    }
}

/// The data frames of an HTTP/2 stream's request.
pub trait Frames: Debug {
    /// The next one, whose room is given back to the client at once; `None` at the end.
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Lost>>>;

    /// Whether none follows, and none waits.
    fn is_end_stream(&self) -> bool;
}

/// Why the rest of a request's content does not come.
#[derive(Clone, Copy, Debug)]
pub enum Lost {
    /// The stream was reset, or its connection ended.
    Reset,
    /// It is malformed, as one that is not as long as the head says: the client can still be told.
    Malformed,
}
