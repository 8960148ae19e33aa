//! One connection to a peer over TCP or a Unix socket.

use crate::tls::Tls;
use crate::unix::UnixSocket;
use bytes::BytesMut;
use nix::sys::socket::{MsgFlags, recv};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::{TcpSocket, TcpStream};

/// A buffer for what a peer sends; chosen: a page in one read.
const BUFFER_BYTES: usize = 32 * 1024;
/// With less room than this a buffer is not filled further.
const ROOM_BYTES_MIN: usize = 4 * 1024;

/// Where a peer listens.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PeerAddress {
    /// `unix:/path`
    Unix(PathBuf),
    /// `address:port`
    Tcp(SocketAddr),
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// What `*_socket_keepalive`, `*_socket_sndbuf` and `*_socket_rcvbuf` ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SocketOptions {
    /// SO_KEEPALIVE
    pub keepalive: bool,
    /// SO_SNDBUF, in bytes
    pub send_bytes: Option<usize>,
    /// SO_RCVBUF, in bytes
    pub receive_bytes: Option<usize>,
    /// Address to connect from; of the peer's family, else it is not used.
    pub from: Option<SocketAddr>,
    /// IP_TRANSPARENT: `from` need not be an address of this machine.
    pub transparent: bool,
}

/// An open connection.
#[derive(Debug)]
pub enum Connection {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixSocket),
    /// Encrypted, over one of the others.
    Tls(Box<Tls>),
}

impl Connection {
    /// Connects; the caller bounds the time.
    ///
    /// # Errors
    /// As the system refused it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn open(address: &PeerAddress, options: SocketOptions) -> io::Result<Self> {
        let connection = match address {
            PeerAddress::Unix(path) => return Self::open_unix(path, options),
            PeerAddress::Tcp(address) => {
                let stream = match options.from.filter(|from| from.is_ipv4() == address.is_ipv4()) {
                    None => TcpStream::connect(address).await?,
                    Some(from) => {
                        let socket = if from.is_ipv4() {
                            TcpSocket::new_v4()?
                        } else {
                            TcpSocket::new_v6()?
                        };
                        if options.transparent {
                            let socket = socket2::SockRef::from(&socket);
                            if from.is_ipv4() {
                                socket.set_ip_transparent_v4(true)?;
                            } else {
                                // socket2 names only the IPv4 option.
                                let text = "transparent binding to IPv6 addresses";
                                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
                            }
                        }
                        socket.bind(from)?;
                        socket.connect(*address).await?
                    }
                };
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        };
        connection.with(options)
    }

    /// As [`Connection::open`], of a Unix socket: that takes no time. `None` for others.
    ///
    /// # Errors
    /// As the system refused it.
    pub fn open_at_once(address: &PeerAddress, options: SocketOptions) -> Option<io::Result<Self>> {
        match address {
            PeerAddress::Unix(path) => Some(Self::open_unix(path, options)),
            PeerAddress::Tcp(_) => None,
        }
    }

    fn open_unix(path: &Path, options: SocketOptions) -> io::Result<Self> {
        Self::Unix(UnixSocket::connect(path)?).with(options)
    }

    fn with(self, options: SocketOptions) -> io::Result<Self> {
        if options != SocketOptions::default() {
            self.apply(options)?;
        }
        Ok(self)
    }

    fn apply(&self, options: SocketOptions) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(stream) => socket2::SockRef::from(stream),
            Self::Unix(socket) => socket.socket(),
            Self::Tls(tls) => return tls.io().apply(options),
        };
        if options.keepalive {
            socket.set_keepalive(true)?;
        }
        if let Some(bytes) = options.send_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = options.receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(())
    }

    /// Appends what has arrived to `into`, one buffer at most; 0 at the end.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Nothing is lost: bytes are either in `into` or still in the socket.
    pub async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        if let Self::Tls(tls) = self {
            // Boxed: every reader's future would be as large as this one.
            return Box::pin(tls.read(into)).await;
        }
        std::future::poll_fn(|context| self.poll_read(context, into)).await
    }

    /// As [`Connection::read`] of one that is not encrypted. Its one reader is woken: a list of those who
    /// wait, as tokio's `readable` keeps, costs more than the rest of it.
    pub(crate) fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Self::Tcp(stream) => ready!(stream.poll_read_ready(context))?,
                Self::Unix(socket) => ready!(socket.poll_readable(context))?,
                Self::Tls(_) => unreachable!("reads from the connection below"),
            }
            match self.try_read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Whether something may have arrived. Its one reader is woken when that is so; one that is encrypted says yes.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context).map(drop),
            Self::Unix(socket) => socket.poll_readable(context).map(drop),
            Self::Tls(_) => Poll::Ready(()),
        }
    }

    /// Reads what is there. A plain socket that gave less than there was room for is drained:
    /// forgetting its readiness now spares the call that would only say so.
    fn try_read(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => {
                if into.capacity() - into.len() < ROOM_BYTES_MIN {
                    into.reserve(BUFFER_BYTES);
                }
                let room = into.capacity() - into.len();
                let count = stream.try_read_buf(into)?;
                if count > 0 && count < room {
                    let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                    let _ = stream.try_io(Interest::READABLE, nothing);
                }
                Ok(count)
            }
            Self::Unix(socket) => socket.try_read(into),
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Writes what the socket takes at once; a TLS connection takes nothing this way.
    ///
    /// # Errors
    /// As the system reports it, `WouldBlock` included.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_of(&[IoSlice::new(bytes)])
    }

    /// As [`Connection::try_write`], from several places in one call.
    pub(crate) fn try_write_of(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(socket) => socket.try_write(slices),
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Not safe: a part may be written. Drop the connection then.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_all_of(&mut [IoSlice::new(bytes)]).await
    }

    /// As [`Connection::write_all`], from several places in one call.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// As [`Connection::write_all`].
    pub async fn write_all_of(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            for slice in slices {
                Box::pin(tls.write_all(slice)).await?;
            }
            return Ok(());
        }
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            // Tried at once: a socket is nearly always writable.
            match self.try_write_of(slices) {
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until it takes more bytes.
    ///
    /// # Errors
    /// As the system reports it.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
            Self::Tls(_) => Ok(()),
        }
    }

    /// Whether the peer has neither closed nor sent anything, as it must while the connection is idle.
    pub fn is_quiet(&self) -> bool {
        if let Self::Tls(tls) = self {
            return tls.is_quiet();
        }
        let received = self.try_receive(&mut [0]);
        matches!(received, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Takes what is there, as much as `buffer` holds; 0 at the end. A TLS connection gives nothing this way.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(socket) => socket.try_read_io(|fd| Ok(recv(fd, buffer, MsgFlags::empty())?)),
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
