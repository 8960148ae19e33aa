//! The socket of a client: one read and one write per request where possible.

use nix::sys::socket::{MsgFlags, recv, send};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, RawFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A client's socket.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

thread_local! {
    /// Read into by every connection of the worker: idle connections own no buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; yorozu_kernel::base::limits::READ_BYTES]);
}

impl Socket {
    fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }

    fn try_io<T>(&self, interest: Interest, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, act),
            Self::Unix(stream) => stream.try_io(interest, act),
        }
    }

    async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_readable(context)).await
    }

    /// Returns when something may be written.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Gives what has arrived, `max` bytes at most, to `take`; 0 at the end of the client's bytes.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn read(&self, max: usize, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_take(context, max, &mut take)).await
    }

    /// As [`Socket::read`], for a task that is polled.
    pub fn poll_take(
        &self,
        context: &mut Context<'_>,
        max: usize,
        take: &mut impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_readable(context))?;
            let mut partial = None;
            let result = self.try_io(Interest::READABLE, || {
                SCRATCH.with_borrow_mut(|scratch| {
                    let room = max.min(scratch.len());
                    let scratch = &mut scratch[..room];
                    let count = recv(self.fd(), scratch, MsgFlags::empty())?;
                    take(&scratch[..count]);
                    if count == 0 || count == scratch.len() {
                        return Ok(count);
                    }
                    // The socket is drained: clearing its readiness now spares the read that would
                    // only say so. What arrives later is a new edge.
                    partial = Some(count);
                    Err(io::ErrorKind::WouldBlock.into())
                })
            });
            match (partial, result) {
                (Some(count), _) => return Poll::Ready(Ok(count)),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, result) => return Poll::Ready(result),
            }
        }
    }

    /// Ready when something may be read, or the client has closed; of those who ask, the last is woken.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    /// Reads as many bytes as `length` says once it can, and nothing behind them; looks again when more
    /// has come. 0 at the end of the client's bytes.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn read_part(
        &self,
        mut length: impl FnMut(&[u8]) -> Option<usize>,
    ) -> io::Result<usize> {
        loop {
            self.readable().await?;
            let result = self.try_io(Interest::READABLE, || {
                SCRATCH.with_borrow_mut(|scratch| {
                    let count = recv(self.fd(), scratch, MsgFlags::MSG_PEEK)?;
                    match length(&scratch[..count]) {
                        _ if count == 0 => Ok(0),
                        Some(length) => {
                            Ok(recv(self.fd(), &mut scratch[..length], MsgFlags::empty())?)
                        }
                        // Not enough yet: what comes is a new edge.
                        None => Err(io::ErrorKind::WouldBlock.into()),
                    }
                })
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Writes from the slices in order; how much went out.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Nothing is written when it is dropped while waiting.
    pub async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_write(context, slices)).await
    }

    /// As [`Socket::write`]; `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// As the system reports it.
    pub fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
        }
    }

    /// Fills `into` with what has arrived; nothing at the end of the client's bytes.
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_readable(context))?;
            let room = into.initialize_unfilled();
            let mut partial = None;
            let result = self.try_io(Interest::READABLE, || {
                let count = recv(self.fd(), room, MsgFlags::empty())?;
                if count == 0 || count == room.len() {
                    return Ok(count);
                }
                // Drained, as in `read`.
                partial = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            });
            match (partial, result) {
                (Some(count), _) | (None, Ok(count)) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, Err(error)) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// As [`Socket::write`], for a task that is polled.
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.poll_writable(context))?;
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// As [`Socket::writable`], for a task that is polled.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    /// Writes bytes that more will follow at once: the kernel may hold them back to fill a packet.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn write_more(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::from_bits_retain(MSG_MORE));
        loop {
            let result = self.try_io(Interest::WRITABLE, || Ok(send(self.fd(), bytes, flags)?));
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                result => return result,
            }
        }
    }

    /// Sends a part of a file; 0 if the file ends before it.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        loop {
            let result = self.try_io(Interest::WRITABLE, || {
                let mut at = i64::try_from(offset).map_err(io::Error::other)?;
                let socket = self.borrowed();
                Ok(nix::sys::sendfile::sendfile64(socket, file, Some(&mut at), count)?)
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                result => return result,
            }
        }
    }

    fn borrowed(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    /// Is ready when the client has closed its side and sent nothing more; never, if it sends.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.poll_readable(context)).is_err() {
                return Poll::Ready(());
            }
            let mut byte = [0];
            let result = self
                .try_io(Interest::READABLE, || Ok(recv(self.fd(), &mut byte, MsgFlags::MSG_PEEK)?));
            match result {
                Ok(0) => return Poll::Ready(()),
                // A pipelined request: it says nothing about this one.
                Ok(_) => return Poll::Pending,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
    }

    /// Ends one or both directions; a socket that is gone already is fine.
    pub fn shutdown(&self, how: Shutdown) {
        let socket = match self {
            Self::Tcp(stream) => socket2::SockRef::from(stream),
            Self::Unix(stream) => socket2::SockRef::from(stream),
        };
        let _ = socket.shutdown(how);
    }

    /// Closing will reset the connection and free its buffers at once.
    pub fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

/// Linux, send(2): `MSG_MORE`, which nix does not name.
const MSG_MORE: i32 = 0x8000;
