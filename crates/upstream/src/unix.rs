//! A Unix socket whose loop hears of what arrives, and of room to write only when that was missing.
//!
//! tokio's own socket is also woken whenever the peer has read something: with PHP-FPM that is once
//! per request, for nothing.

use bytes::BytesMut;
use nix::sys::socket::{MsgFlags, recv};
use std::cell::RefCell;
use std::io::{self, IoSlice, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Most bytes read at once.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// Read into by every Unix socket of the worker, so that what is kept is as long as what came.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Watches a socket for one kind of event.
#[expect(
    deprecated,
    reason = "the safe constructor; what its successor makes the caller promise, std's own UnixStream keeps"
)]
fn watch(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}

/// A connected Unix socket.
#[derive(Debug)]
pub struct UnixSocket(AsyncFd<UnixStream>);

impl UnixSocket {
    /// Connects; a server whose backlog is full refuses at once.
    ///
    /// # Errors
    /// As the system reports it.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let kind = socket2::Type::STREAM.nonblocking().cloexec();
        let socket = socket2::Socket::new(socket2::Domain::UNIX, kind, None)?;
        socket.connect(&socket2::SockAddr::unix(path)?)?;
        Self::new(UnixStream::from(OwnedFd::from(socket)))
    }

    /// From a socket that does not block.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        watch(stream, Interest::READABLE).map(Self)
    }

    /// Ready when something may have arrived; of those who ask, the last is woken.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(context).map_ok(|mut guard| guard.retain_ready())
    }

    /// Runs `read` if something may have arrived; its `WouldBlock` says that nothing has.
    pub(crate) fn try_read_io<R>(
        &self,
        read: impl FnOnce(RawFd) -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.try_io(Interest::READABLE, |stream| read(stream.as_raw_fd()))
    }

    /// Appends what is there, as [`crate::Connection::read`].
    pub(crate) fn try_read(&self, into: &mut BytesMut) -> io::Result<usize> {
        let mut partial = None;
        let result = self.try_read_io(|fd| {
            SCRATCH.with_borrow_mut(|scratch| {
                let count = recv(fd, scratch, MsgFlags::empty())?;
                into.extend_from_slice(&scratch[..count]);
                if count == 0 || count == scratch.len() {
                    return Ok(count);
                }
                partial = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            })
        });
        partial.map_or(result, Ok)
    }

    pub(crate) fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut stream = self.0.get_ref();
        stream.write_vectored(slices)
    }

    /// Waits for room: so rarely that a separate watch is cheap.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        let watched = watch(self.0.get_ref().try_clone()?, Interest::WRITABLE)?;
        watched.writable().await.map(|mut guard| guard.retain_ready())
    }

    pub(crate) fn socket(&self) -> socket2::SockRef<'_> {
        socket2::SockRef::from(self.0.get_ref())
    }
}
