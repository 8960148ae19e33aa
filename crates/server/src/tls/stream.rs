//! TLS over a client's socket: records in, records out.

use crate::connection::socket::Socket;
use bytes::{Buf as _, BytesMut};
use rustls::ServerConnection;
use std::cell::{Cell, OnceCell, RefCell};
use std::io::{self, BufRead as _, IoSlice, Write};
use std::task::{Context, Poll, ready};
use tokio::io::ReadBuf;

thread_local! {
    /// Records are read into it by every connection of the worker.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; crate::limits::READ_BYTES]);
}

/// A client's connection with TLS, before and after its handshake.
#[derive(Debug)]
pub struct Tls {
    socket: Socket,
    /// Unset until the client has said which server it wants.
    session: OnceCell<RefCell<ServerConnection>>,
    /// Decrypted, and not asked for yet.
    early: RefCell<BytesMut>,
    /// The client does not speak TLS, and is told so.
    is_plain: Cell<bool>,
    /// Nothing follows the next write.
    is_last: Cell<bool>,
}

impl Tls {
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            session: OnceCell::new(),
            early: RefCell::default(),
            is_plain: Cell::new(false),
            is_last: Cell::new(false),
        }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The session of a connection whose handshake has begun.
    pub(super) fn begin(&self, session: ServerConnection) {
        let is_first = self.session.set(RefCell::new(session)).is_ok();
        debug_assert!(is_first, "a connection shakes hands once");
    }

    /// Looks at the session.
    pub(super) fn with_session<T>(&self, look: impl FnOnce(&ServerConnection) -> T) -> Option<T> {
        self.session.get().map(|session| look(&session.borrow()))
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

    fn session(&self) -> io::Result<&RefCell<ServerConnection>> {
        self.session.get().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// As [`crate::connection::transport::Transport::poll_read_at_most`].
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
        let session = self.session()?;
        let mut result = Ok(false);
        let start = plain.len();
        let mut take = |encrypted: &[u8]| result = decrypt(session, encrypted, plain);
        let count = ready!(self.socket.poll_take(context, usize::MAX, &mut take))?;
        Poll::Ready(match result {
            Err(problem) => {
                // The alert that says why.
                let _ = self.flush_now();
                Err(problem)
            }
            // What the session has to say now (tickets, new keys) goes with the next response.
            Ok(is_closed) => Ok(count > 0 && (!is_closed || plain.len() > start)),
        })
    }

    /// As [`crate::connection::transport::Transport::write`]; what it took is on its way.
    pub async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_plain.get() {
            return self.socket.write(slices).await;
        }
        let taken = {
            let mut session = self.session()?.borrow_mut();
            let taken = session.writer().write_vectored(slices)?;
            let length: usize = slices.iter().map(|slice| slice.len()).sum();
            if self.is_last.get() && taken == length {
                session.send_close_notify();
            }
            taken
        };
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
        let mut session = self.session()?.borrow_mut();
        while session.wants_write() {
            session.write_tls(&mut Out(&self.socket))?;
        }
        Ok(())
    }

    /// As [`crate::connection::transport::Transport::poll_read`].
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut early = self.early.borrow_mut();
        while early.is_empty() {
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let mut encrypted = ReadBuf::new(scratch);
                ready!(self.socket.poll_read(context, &mut encrypted))?;
                let bytes = encrypted.filled();
                if bytes.is_empty() {
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(decrypt(self.session()?, bytes, &mut early))
            });
            match ready!(read) {
                Ok(is_closed) => {
                    // An answer to what the client said about keys; the socket's next turn sends it
                    // if it does not go now.
                    let _ = self.flush_now();
                    if is_closed {
                        break;
                    }
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

    /// As [`crate::connection::transport::Transport::poll_write`].
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One write's worth waits in the session at most.
        ready!(self.poll_flush(context))?;
        let taken = self.session()?.borrow_mut().writer().write_vectored(slices)?;
        match self.flush_now() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    /// As [`crate::connection::transport::Transport::poll_flush`].
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
        if let Some(session) = self.session.get() {
            session.borrow_mut().send_close_notify();
            let _ = self.flush_now();
        }
    }

    /// As [`crate::connection::transport::Transport::closed`].
    pub async fn closed(&self) {
        let mut plain = BytesMut::new();
        if !self.early.borrow().is_empty() {
            return std::future::pending().await;
        }
        while let Ok(true) = self.receive(&mut plain).await {
            if !plain.is_empty() {
                // The next request: it says nothing about this one.
                self.early.borrow_mut().unsplit(plain);
                return std::future::pending().await;
            }
        }
    }
}

/// Takes records into the session and their content out of it; `true` after the client's notice that
/// nothing follows.
fn decrypt(
    session: &RefCell<ServerConnection>,
    mut encrypted: &[u8],
    plain: &mut BytesMut,
) -> io::Result<bool> {
    let mut session = session.borrow_mut();
    let mut is_closed = false;
    while !encrypted.is_empty() {
        if session.read_tls(&mut encrypted)? == 0 {
            break;
        }
        let state = session
            .process_new_packets()
            .map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
        is_closed = state.peer_has_closed();
        let mut left = state.plaintext_bytes_to_read();
        while left > 0 {
            let mut reader = session.reader();
            let piece = reader.fill_buf()?;
            let count = piece.len();
            plain.extend_from_slice(piece);
            reader.consume(count);
            left -= count;
        }
    }
    Ok(is_closed)
}

/// Records to the socket, without waiting.
struct Out<'a>(&'a Socket);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
