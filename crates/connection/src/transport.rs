//! What a client's bytes come through: its socket, or TLS over it.

use super::socket::Socket;
use crate::tls::stream::Tls;
use bytes::BytesMut;
use std::fs::File;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;
use yorozu_kernel::base::spare::Spare;

/// Room for what a client sends at once; chosen: most heads are shorter.
const HEAD_BYTES: usize = 4096;

thread_local! {
    /// Read into while a request lasts: idle connections own no buffer.
    pub(super) static HEADS: Spare = const { Spare::of(HEAD_BYTES) };
}

/// A client's end of a connection.
#[derive(Debug)]
pub enum Transport {
    Plain(Socket),
    Tls(Box<Tls>),
}

impl Transport {
    /// Whether the client's bytes go over its socket as they are.
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// The socket below.
    pub fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.socket(),
        }
    }

    /// Appends what has arrived; 0 at the end of the client's bytes.
    ///
    /// # Errors
    /// As the system reports it; `InvalidData` for broken TLS records.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        self.read_at_most(into, usize::MAX).await
    }

    /// As [`Transport::read`], no more than `max` bytes.
    ///
    /// # Errors
    /// As [`Transport::read`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn read_at_most(&self, into: &mut BytesMut, max: usize) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_read_at_most(context, into, max)).await
    }

    /// As [`Transport::read_at_most`], for a task that is polled.
    pub fn poll_read_at_most(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_take(context, max, &mut |bytes| {
                if into.capacity() == 0 {
                    *into = HEADS.with(Spare::take);
                }
                into.extend_from_slice(bytes);
            }),
            Self::Tls(tls) => tls.poll_read_at_most(context, into, max),
        }
    }

    /// Writes from the slices in order; how much went out.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Nothing is written to a plain socket when it is dropped while waiting; a TLS connection cannot
    /// be used any more.
    pub async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(slices).await,
            Self::Tls(tls) => tls.write(slices).await,
        }
    }

    /// Writes bytes that more will follow at once: they may be held back to fill a packet.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn write_more(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_more(bytes).await,
            Self::Tls(tls) => tls.write(&[IoSlice::new(bytes)]).await,
        }
    }

    /// Sends a part of a file; 0 if the file ends before it. Only a plain socket can.
    ///
    /// # Errors
    /// As the system reports it; `Unsupported` over TLS.
    pub async fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.send_file(file, offset, count).await,
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Fills `into` with what has arrived; nothing at the end of the client's bytes.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read(context, into),
            Self::Tls(tls) => tls.poll_read(context, into),
        }
    }

    /// Takes bytes to send; [`Transport::poll_flush`] sees to it that they go.
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write(context, slices),
            Self::Tls(tls) => tls.poll_write(context, slices),
        }
    }

    /// Sends what was taken.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => tls.poll_flush(context),
        }
    }

    /// Is ready when the client has closed its side and sent nothing more; never, if it sends.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_closed(context),
            Self::Tls(tls) => tls.poll_closed(context),
        }
    }

    /// Ends one or both directions; a socket that is gone already is fine.
    pub fn shutdown(&self, how: Shutdown) {
        if let (Self::Tls(tls), Shutdown::Write | Shutdown::Both) = (self, how) {
            tls.notify_close();
        }
        self.socket().shutdown(how);
    }

    /// The next write is the last: what a protocol has to say at its end may go with it.
    pub fn end_with_next_write(&self) {
        if let Self::Tls(tls) = self {
            tls.end_with_next_write();
        }
    }

    /// Says the last word of TLS, as far as the socket takes it at once.
    pub fn notify_close(&self) {
        if let Self::Tls(tls) = self {
            tls.notify_close();
        }
    }

    /// Closing will reset the connection and free its buffers at once.
    pub fn reset_on_close(&self) {
        self.socket().reset_on_close();
    }
}
