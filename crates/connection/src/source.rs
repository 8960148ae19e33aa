//! A client's connection as the source of requests.

use super::transport::Transport;
use bytes::BytesMut;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use yorozu_kernel::base::batch::TryWrite;
use yorozu_kernel::base::timer;
use yorozu_kernel::exchange::source::{ByteStream, Interim, RequestSource};

impl RequestSource for Transport {
    fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        Transport::poll_closed(self, context)
    }

    fn interim<'a>(
        &'a self,
        what: Interim<'a>,
        timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = io::Result<()>> + 'a>> {
        let text = match what {
            Interim::Continue => b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(),
            Interim::EarlyHints(fields) => {
                let lines =
                    fields.iter().map(|(name, value)| [name, &b": "[..], value, b"\r\n"].concat());
                let lines: Vec<u8> = lines.flatten().collect();
                [b"HTTP/1.1 103 Early Hints\r\n", &lines[..], b"\r\n"].concat()
            }
        };
        Box::pin(send(self, text, timeout))
    }
}

impl TryWrite for Transport {
    fn try_write(&self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        self.socket().try_write(&[IoSlice::new(head), IoSlice::new(body)])
    }
}

impl ByteStream for Transport {
    fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_read_at_most(context, into, max)
    }

    fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Transport::poll_write(self, context, slices)
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Transport::poll_flush(self, context)
    }
}

async fn send(io: &Transport, text: Vec<u8>, timeout: Duration) -> io::Result<()> {
    let sending = async {
        let mut rest = &text[..];
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
