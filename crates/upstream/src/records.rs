//! TLS records between bytes and a session; the socket, and waiting for it, are the caller's.

use bytes::BytesMut;
use rustls::ConnectionCommon;
use std::cell::{Ref, RefCell};
use std::io::{self, BufRead as _, IoSlice, Write};
use std::ops::DerefMut;

/// A session of rustls, a client's or a server's.
#[derive(Debug)]
pub struct Records<C>(RefCell<C>);

impl<C, Side> Records<C>
where
    C: DerefMut<Target = ConnectionCommon<Side>>,
{
    /// Of a session, whose handshake may be under way.
    pub fn new(session: C) -> Self {
        Self(RefCell::new(session))
    }

    /// The session, to look at.
    pub fn session(&self) -> Ref<'_, C> {
        self.0.borrow()
    }

    /// Takes records in, and their content out at once, so that the session holds one record's worth at most.
    /// `true` after the peer's notice that nothing follows; what follows nevertheless is left out.
    ///
    /// # Errors
    /// `InvalidData` for what TLS does not allow, with rustls's reason; the alert that says why is to be flushed.
    pub fn decrypt(&self, mut encrypted: &[u8], plain: &mut BytesMut) -> io::Result<bool> {
        let mut session = self.0.borrow_mut();
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

    /// Takes content to encrypt, as much as the session has room for.
    ///
    /// # Errors
    /// None that rustls documents.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.borrow_mut().writer().write_vectored(slices)
    }

    /// Gives `write` what the session has to say.
    ///
    /// # Errors
    /// As `write` has it; after `WouldBlock` the rest is still to be flushed.
    pub fn flush(&self, write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        let mut session = self.0.borrow_mut();
        let mut out = Out(write);
        while session.wants_write() {
            session.write_tls(&mut out)?;
        }
        Ok(())
    }

    /// Has the session say that nothing follows.
    pub fn notify_close(&self) {
        self.0.borrow_mut().send_close_notify();
    }

    /// The socket has come to its end.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer had not said that nothing follows.
    pub fn end(&self) -> io::Result<()> {
        let mut session = self.0.borrow_mut();
        session.read_tls(&mut io::empty())?;
        session.reader().fill_buf().map(|_| ())
    }
}

/// rustls writes to a [`Write`].
struct Out<W>(W);

impl<W: FnMut(&[IoSlice<'_>]) -> io::Result<usize>> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
