//! Where requests come from, and what is sent there before their responses.

use super::transport::Transport;
use super::{h2, timer};
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

/// Where a request came from, and what can be sent there before its response.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Nowhere: a request of the server's own.
    Nobody,
    H1(Rc<Transport>),
    H2(Rc<h2::Back>),
}

impl Origin {
    /// Returns when the client has given the request up.
    pub async fn closed(&self) {
        match self {
            Self::Nobody => std::future::pending().await,
            Self::H1(io) => io.closed().await,
            Self::H2(back) => back.reset().await,
        }
    }
}

/// Sends an interim response over HTTP/1 (RFC 9110, section 15.2), in no more than `timeout`: answers before it may fill
/// the way to a client that does not read. What is out of it then cannot be taken back, so the connection is over.
///
/// # Errors
/// The client is gone, or `TimedOut`.
pub async fn interim(io: &Transport, text: &[u8], timeout: Duration) -> io::Result<()> {
    let sending = async {
        let mut rest = text;
        while !rest.is_empty() {
            match io.write(&[IoSlice::new(rest)]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => rest = &rest[count..],
            }
        }
        Ok(())
    };
    match timer::within(timeout, sending).await {
        Some(sent) => sent,
        None => {
            io.shutdown(Shutdown::Both);
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}
