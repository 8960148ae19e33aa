//! A client's connection as the library reads and writes it.

use crate::transport::Transport;
use bytes::{Buf as _, BytesMut};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// Whether the client takes what is sent to it.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Since when it has taken nothing of what waits for it.
    since: Cell<Option<Instant>>,
    /// Whether that was too long.
    is_timed_out: Cell<bool>,
}

impl Stall {
    pub(super) fn since(&self) -> Option<Instant> {
        self.since.get()
    }

    pub(super) fn time_out(&self) {
        self.is_timed_out.set(true);
    }

    pub(super) fn is_timed_out(&self) -> bool {
        self.is_timed_out.get()
    }

    /// Notes the outcome of an attempt to send.
    fn note<T>(&self, sent: Poll<T>) -> Poll<T> {
        if sent.is_ready() {
            self.since.set(None);
        } else if self.since.get().is_none() {
            self.since.set(Some(Instant::now()));
        }
        sent
    }
}

/// The connection, with what was read of it before.
pub(super) struct Stream {
    io: Rc<Transport>,
    early: BytesMut,
    stall: Rc<Stall>,
}

impl Stream {
    pub(super) fn new(io: Rc<Transport>, early: BytesMut, stall: Rc<Stall>) -> Self {
        Self { io, early, stall }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return self.io.poll_read(context, into);
        }
        let count = into.remaining().min(self.early.len());
        into.put_slice(&self.early[..count]);
        self.early.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stall.note(self.io.poll_write(context, &[IoSlice::new(bytes)]))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stall.note(self.io.poll_write(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stall.note(self.io.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.shutdown(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}
