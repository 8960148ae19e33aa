//! TLS towards a peer: rustls over a plain connection.

use crate::connection::Connection;
use bytes::{Buf as _, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

/// How a connection is encrypted.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Versions, ciphers, certificates, sessions.
    pub config: Arc<ClientConfig>,
    /// The name that is asked for and verified.
    pub name: ServerName<'static>,
}

/// Bytes read from the socket at once: one TLS record.
const READ_BYTES: usize = 17 * 1024;

/// An encrypted connection.
#[derive(Debug)]
pub struct Tls {
    io: Connection,
    session: RefCell<ClientConnection>,
    /// What was decrypted before somebody asked for it.
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
        let tls = Self { io, session: RefCell::new(session), early: RefCell::default() };
        loop {
            tls.flush().await?;
            if !tls.session.borrow().is_handshaking() {
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
        if Box::pin(self.io.read(&mut encrypted)).await? == 0 {
            return Ok(false);
        }
        self.decrypt(&encrypted, plain)?;
        Ok(true)
    }

    /// Takes records in, and out of the session at once: it holds one record's worth at most.
    fn decrypt(&self, mut encrypted: &[u8], plain: &mut BytesMut) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        let mut record = [0; READ_BYTES];
        while encrypted.has_remaining() {
            session.read_tls(&mut encrypted)?;
            let state = session
                .process_new_packets()
                .map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let count = session.reader().read(&mut record)?;
                plain.extend_from_slice(&record[..count]);
                left -= count;
            }
        }
        Ok(())
    }

    /// Sends what the session has to say.
    async fn flush(&self) -> io::Result<()> {
        loop {
            let mut out = Vec::new();
            {
                let mut session = self.session.borrow_mut();
                while session.wants_write() {
                    session.write_tls(&mut out)?;
                }
            }
            if out.is_empty() {
                return Ok(());
            }
            Box::pin(self.io.write_all(&out)).await?;
        }
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
                // rustls tells the two ends apart: after the peer's notice 0, else an error.
                let mut session = self.session.borrow_mut();
                session.read_tls(&mut io::empty())?;
                return session.reader().read(&mut [0]);
            }
            self.flush().await?;
        }
        Ok(into.len() - start)
    }

    /// As [`Connection::write_all`].
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while bytes.has_remaining() {
            let count = self.session.borrow_mut().writer().write(bytes)?;
            bytes.advance(count);
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
            let result = match &self.io {
                Connection::Tcp(stream) => stream.try_read(&mut encrypted),
                Connection::Unix(socket) => socket.try_read_io(|fd| {
                    Ok(nix::sys::socket::recv(
                        fd,
                        &mut encrypted,
                        nix::sys::socket::MsgFlags::empty(),
                    )?)
                }),
                Connection::Tls(_) => return false,
            };
            match result {
                Ok(0) => return false,
                Ok(count) => {
                    let mut plain = BytesMut::new();
                    if self.decrypt(&encrypted[..count], &mut plain).is_err() || !plain.is_empty() {
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
        let mut out = Vec::new();
        {
            let mut session = self.session.borrow_mut();
            session.send_close_notify();
            while session.wants_write() && session.write_tls(&mut out).is_ok() {}
        }
        let _ = match &self.io {
            Connection::Tcp(stream) => stream.try_write(&out),
            Connection::Unix(socket) => socket.try_write(&[io::IoSlice::new(&out)]),
            Connection::Tls(_) => Ok(0),
        };
    }
}
