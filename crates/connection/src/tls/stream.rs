//! TLS over a client's socket: records in, records out.

use crate::socket::Socket;
use bytes::{Buf as _, BytesMut};
use rustls::ServerConnection;
use std::cell::{Cell, OnceCell, RefCell};
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use tokio::io::ReadBuf;
use yorozu_upstream::Records;

thread_local! {
    /// Records are read into it by every connection of the worker.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; yorozu_kernel::base::limits::READ_BYTES]);
}

/// A client's connection with TLS, before and after its handshake.
#[derive(Debug)]
pub struct Tls {
    socket: Socket,
    /// Unset until the client has said which server it wants.
    records: OnceCell<Records<ServerConnection>>,
    /// Decrypted, and not asked for yet.
    early: RefCell<BytesMut>,
    /// The client does not speak TLS, and gets an answer that says so.
    is_plain: Cell<bool>,
    /// The client has said that nothing follows.
    has_ended: Cell<bool>,
    /// Nothing follows the next write.
    is_last: Cell<bool>,
}

impl Tls {
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            records: OnceCell::new(),
            early: RefCell::default(),
            is_plain: Cell::new(false),
            has_ended: Cell::new(false),
            is_last: Cell::new(false),
        }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The session of a connection whose handshake has begun.
    pub(super) fn begin(&self, session: ServerConnection) {
        let is_first = self.records.set(Records::new(session)).is_ok();
        debug_assert!(is_first, "a connection shakes hands once");
    }

    /// Looks at the session.
    pub(super) fn with_session<T>(&self, look: impl FnOnce(&ServerConnection) -> T) -> Option<T> {
        self.records.get().map(|records| look(&records.session()))
    }

    /// From here on bytes pass as they are; `early` are the first.
    pub fn speak_plainly(&self, early: BytesMut) {
        self.is_plain.set(true);
        self.keep_early(early);
    }

    /// Keeps what came behind the handshake.
    pub(super) fn keep_early(&self, plain: BytesMut) {
        self.early.borrow_mut().unsplit(plain);
    }

    fn records(&self) -> io::Result<&Records<ServerConnection>> {
        self.records.get().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// As [`crate::transport::Transport::poll_read_at_most`].
    pub fn poll_read_at_most(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        let start = into.len();
        loop {
            {
                let mut early = self.early.borrow_mut();
                if !early.is_empty() {
                    let count = max.min(early.len());
                    let part = early.split_to(count);
                    if early.is_empty() {
                        *early = BytesMut::new();
                    }
                    into.unsplit(part);
                    return Poll::Ready(Ok(count));
                }
            }
            if !ready!(self.poll_receive(context, into))? {
                return Poll::Ready(Ok(0));
            }
            let count = into.len() - start;
            if count > max {
                self.early.borrow_mut().unsplit(into.split_off(start + max));
            }
            if count > 0 {
                return Poll::Ready(Ok(count.min(max)));
            }
        }
    }

    /// Waits for records; decrypts them into `plain`. `false` at the end of the client's bytes.
    ///
    /// # Errors
    /// As the system reports it; `InvalidData` for what TLS does not allow, with rustls's reason.
    pub(super) async fn receive(&self, plain: &mut BytesMut) -> io::Result<bool> {
        std::future::poll_fn(|context| self.poll_receive(context, plain)).await
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        plain: &mut BytesMut,
    ) -> Poll<io::Result<bool>> {
        if self.is_plain.get() {
            let mut take = |bytes: &[u8]| plain.extend_from_slice(bytes);
            return self.socket.poll_take(context, usize::MAX, &mut take).map_ok(|count| count > 0);
        }
        let records = self.records()?;
        // It may have said so together with its request.
        if self.has_ended.get() {
            return Poll::Ready(Ok(false));
        }
        let mut result = Ok(false);
        let start = plain.len();
        let mut take = |encrypted: &[u8]| result = records.decrypt(encrypted, plain);
        let count = ready!(self.socket.poll_take(context, usize::MAX, &mut take))?;
        Poll::Ready(match result {
            Err(problem) => {
                // The alert that says why.
                let _ = self.flush_now();
                Err(problem)
            }
            // What the session has to say now (tickets, new keys) goes with the next response.
            Ok(is_closed) => {
                self.has_ended.set(is_closed);
                Ok(count > 0 && (!is_closed || plain.len() > start))
            }
        })
    }

    /// As [`crate::transport::Transport::write`]; what it took is on its way.
    pub async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_plain.get() {
            return self.socket.write(slices).await;
        }
        let records = self.records()?;
        let taken = records.write(slices)?;
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.is_last.get() && taken == length {
            records.notify_close();
        }
        self.flush().await?;
        Ok(taken)
    }

    /// The next write is the last: TLS's own end goes with it.
    pub fn end_with_next_write(&self) {
        self.is_last.set(true);
    }

    /// Sends what the session has to say.
    pub(super) async fn flush(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    fn flush_now(&self) -> io::Result<()> {
        self.records()?.flush(|slices| self.socket.try_write(slices))
    }

    /// As [`crate::transport::Transport::poll_read`].
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut early = self.early.borrow_mut();
        while early.is_empty() && !self.has_ended.get() {
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let mut encrypted = ReadBuf::new(scratch);
                ready!(self.socket.poll_read(context, &mut encrypted))?;
                let bytes = encrypted.filled();
                if bytes.is_empty() {
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(self.records()?.decrypt(bytes, &mut early))
            });
            match ready!(read) {
                Ok(is_closed) => {
                    // An answer to what the client said about keys; the socket's next turn sends it
                    // if it does not go now.
                    let _ = self.flush_now();
                    self.has_ended.set(is_closed);
                }
                Err(problem) => {
                    let _ = self.flush_now();
                    return Poll::Ready(Err(problem));
                }
            }
        }
        let count = into.remaining().min(early.len());
        into.put_slice(&early[..count]);
        early.advance(count);
        if early.is_empty() {
            *early = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    /// As [`crate::transport::Transport::poll_write`].
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One write's worth waits in the session at most.
        ready!(self.poll_flush(context))?;
        let taken = self.records()?.write(slices)?;
        match self.flush_now() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    /// As [`crate::transport::Transport::poll_flush`].
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.flush_now() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_writable(context))?;
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// Tells the client that nothing follows, as far as the socket takes it at once.
    pub fn notify_close(&self) {
        if let Some(records) = self.records.get() {
            records.notify_close();
            let _ = self.flush_now();
        }
    }

    /// As [`crate::transport::Transport::poll_closed`].
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        // What is there is of the next request: it says nothing about this one.
        while self.early.borrow().is_empty() {
            let mut plain = BytesMut::new();
            match ready!(self.poll_receive(context, &mut plain)) {
                Ok(true) => self.early.borrow_mut().unsplit(plain),
                _ => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}
