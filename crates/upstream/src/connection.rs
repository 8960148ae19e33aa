//! One connection to a peer over TCP or a Unix socket.

use bytes::{Buf as _, BytesMut};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::{TcpSocket, TcpStream, UnixStream};

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
}

/// An open connection.
#[derive(Debug)]
pub enum Connection {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
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
            PeerAddress::Unix(path) => Self::Unix(UnixStream::connect(path).await?),
            PeerAddress::Tcp(address) => {
                let stream = match options.from.filter(|from| from.is_ipv4() == address.is_ipv4()) {
                    None => TcpStream::connect(address).await?,
                    Some(from) => {
                        let socket = if from.is_ipv4() {
                            TcpSocket::new_v4()?
                        } else {
                            TcpSocket::new_v6()?
                        };
                        socket.bind(from)?;
                        socket.connect(*address).await?
                    }
                };
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        };
        if options != SocketOptions::default() {
            connection.apply(options)?;
        }
        Ok(connection)
    }

    fn apply(&self, options: SocketOptions) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(stream) => socket2::SockRef::from(stream),
            Self::Unix(stream) => socket2::SockRef::from(stream),
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

    /// Appends what has arrived to `into`, at most its spare capacity; 0 at the end.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Nothing is lost: bytes are either in `into` or still in the socket.
    pub async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        debug_assert!(into.capacity() > into.len(), "the caller reserves room");
        loop {
            let result = match self {
                Self::Tcp(stream) => {
                    stream.readable().await?;
                    stream.try_read_buf(into)
                }
                Self::Unix(stream) => {
                    stream.readable().await?;
                    stream.try_read_buf(into)
                }
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Writes all of `bytes`; `on_progress` is told after each successful write.
    ///
    /// # Errors
    /// As the system reports it.
    ///
    /// # Cancel safety
    /// Not safe: a part may be written. Drop the connection then.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while bytes.has_remaining() {
            let result = match self {
                Self::Tcp(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
                Self::Unix(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
            };
            match result {
                Ok(count) => bytes.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has the peer neither closed nor sent anything? An idle connection must be quiet.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let result = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
        };
        matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
