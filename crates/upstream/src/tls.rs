//! TLS towards a peer: rustls over a plain connection.

use crate::connection::Connection;
use crate::records::Records;
use bytes::BytesMut;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// How a connection is encrypted.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Versions, ciphers, certificates, sessions.
    pub config: Arc<ClientConfig>,
    /// The name that is asked for and verified.
    pub name: ServerName<'static>,
}

/// Bytes read from the socket at once by a connection that should be quiet: one TLS record.
const READ_BYTES: usize = 17 * 1024;

/// An encrypted connection.
#[derive(Debug)]
pub struct Tls {
    io: Connection,
    records: Records<ClientConnection>,
    /// What was decrypted before it was asked for.
    early: RefCell<BytesMut>,
}

impl Tls {
    /// Shakes hands over `io`; the caller bounds the time.
    ///
    /// # Errors
    /// As the system reports it; `InvalidData` when the handshake failed, with rustls's reason.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn handshake(io: Connection, options: &TlsOptions) -> io::Result<Self> {
        let session = ClientConnection::new(Arc::clone(&options.config), options.name.clone())
            .map_err(io::Error::other)?;
        let tls = Self { io, records: Records::new(session), early: RefCell::default() };
        loop {
            tls.flush().await?;
            if !tls.records.session().is_handshaking() {
                return Ok(tls);
            }
            let mut early = tls.early.take();
            let result = tls.receive(&mut early).await;
            tls.early.replace(early);
            match result {
                Ok(true) => {}
                Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(problem) => {
                    // The alert that says why.
                    let _ = tls.flush().await;
                    return Err(problem);
                }
            }
        }
    }

    /// The connection below.
    pub(crate) fn io(&self) -> &Connection {
        &self.io
    }

    /// Waits for records; decrypts them into `plain`. `false` at the end of the socket.
    async fn receive(&self, plain: &mut BytesMut) -> io::Result<bool> {
        let mut encrypted = BytesMut::new();
        if poll_fn(|context| self.io.poll_read(context, &mut encrypted)).await? == 0 {
            return Ok(false);
        }
        self.records.decrypt(&encrypted, plain)?;
        Ok(true)
    }

    /// Sends what the session has to say.
    async fn flush(&self) -> io::Result<()> {
        loop {
            match self.flush_now() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.io.writable().await?;
                }
                result => return result,
            }
        }
    }

    fn flush_now(&self) -> io::Result<()> {
        self.records.flush(|slices| self.io.try_write_of(slices))
    }

    /// As [`Connection::read`]. A connection cut without TLS's own end is an error.
    ///
    /// # Cancel safety
    /// Nothing is lost: bytes are in `into`, in the session or in the socket.
    pub(crate) async fn read(&self, into: &mut BytesMut) -> io::Result<usize> {
        let start = into.len();
        into.unsplit(self.early.take());
        while into.len() == start {
            if !self.receive(into).await? {
                return self.records.end().map(|()| 0);
            }
            self.flush().await?;
        }
        Ok(into.len() - start)
    }

    /// As [`Connection::write_all`].
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.records.write(&[IoSlice::new(bytes)])?;
            bytes = &bytes[count..];
            self.flush().await?;
        }
        Ok(())
    }

    /// As [`Connection::is_quiet`]: tickets that arrived meanwhile are taken up.
    pub(crate) fn is_quiet(&self) -> bool {
        if !self.early.borrow().is_empty() {
            return false;
        }
        let mut encrypted = [0; READ_BYTES];
        loop {
            match self.io.try_receive(&mut encrypted) {
                Ok(0) => return false,
                Ok(count) => {
                    let mut plain = BytesMut::new();
                    let decrypted = self.records.decrypt(&encrypted[..count], &mut plain);
                    if decrypted.is_err() || !plain.is_empty() {
                        return false;
                    }
                }
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // The notice that nothing more follows; a socket that takes no more is closed without it.
        self.records.notify_close();
        let _ = self.flush_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PeerAddress, SocketOptions};
    use std::io::Write as _;
    use std::net::TcpListener;
    use yorozu_testkit::tls;

    #[tokio::test]
    async fn what_a_peer_sends_behind_its_notice_of_the_end_is_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = PeerAddress::Tcp(listener.local_addr().unwrap());
        let peer = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut session = rustls::ServerConnection::new(tls::server("server")).unwrap();
            while session.is_handshaking() {
                session.complete_io(&mut socket).unwrap();
            }
            session.writer().write_all(b"text").unwrap();
            session.send_close_notify();
            let mut bytes = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut bytes).unwrap();
            }
            // More than a session takes in at once.
            bytes.extend_from_slice(&[b'x'; 8 * READ_BYTES]);
            socket.write_all(&bytes).unwrap();
        });
        let io = Connection::open(&address, SocketOptions::default()).await.unwrap();
        let hello = tls::Hello { alpn: b"http/1.1".to_vec(), ..tls::Hello::default() };
        let options = TlsOptions {
            config: tls::settings(&hello),
            name: ServerName::try_from("localhost").unwrap(),
        };
        let tls = Tls::handshake(io, &options).await.unwrap();
        let mut text = BytesMut::new();
        while tls.read(&mut text).await.unwrap() > 0 {}
        assert_eq!(&text[..], b"text");
        peer.join().unwrap();
    }
}
