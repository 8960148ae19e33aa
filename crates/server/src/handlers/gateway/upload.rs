//! Sends a request while its answer may already be arriving.

use super::Framing;
use crate::connection::body::{BodyError, PieceBounds, RequestBody};
use bytes::Bytes;
use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use yorozu_upstream::Connection;

/// The body of a request, as far as it is not in memory with the head.
pub enum Source {
    None,
    /// In a file of so many bytes.
    File(Arc<File>, u64),
    /// Still on its way from the client.
    Live(RequestBody, PieceBounds),
}

/// What is left of an upload that ended.
pub struct Uploaded {
    /// The client's body, for what comes after it on its connection.
    pub body: Option<RequestBody>,
    pub result: Result<(), UploadFault>,
}

/// Why an upload ended early.
#[derive(Debug)]
pub enum UploadFault {
    /// The client's part.
    Client(BodyError),
    /// The peer's part.
    Peer(io::Error),
}

/// A request on its way, polled beside the reading of the answer.
pub type Upload = Pin<Box<dyn Future<Output = Uploaded>>>;

/// What one upload needs.
pub struct Plan {
    pub connection: Rc<Connection>,
    /// Bytes before the body, as far as they are not sent yet.
    pub head: Bytes,
    pub source: Source,
    pub framing: Framing,
    pub send_timeout: Duration,
    /// Bytes sent so far, for `$upstream_bytes_sent`.
    pub sent: Rc<Cell<u64>>,
}

/// Starts an upload.
pub fn start(plan: Plan) -> Upload {
    Box::pin(async move {
        let Plan { connection, head, source, framing, send_timeout, sent } = plan;
        let mut sender = Sender { connection, framing, send_timeout, sent, before: Vec::new() };
        let mut body = None;
        let result = async {
            sender.write(&mut [IoSlice::new(&head)]).await?;
            match source {
                Source::None => Ok(()),
                Source::File(file, length) => sender.file(&file, length).await,
                Source::Live(live, bounds) => {
                    let live = body.insert(live);
                    sender.live(live, &bounds).await
                }
            }
        }
        .await;
        Uploaded { body, result }
    })
}

struct Sender {
    connection: Rc<Connection>,
    framing: Framing,
    send_timeout: Duration,
    sent: Rc<Cell<u64>>,
    /// The frame before a piece; kept for its allocation.
    before: Vec<u8>,
}

impl Sender {
    async fn write(&self, slices: &mut [IoSlice<'_>]) -> Result<(), UploadFault> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let write = self.connection.write_all_of(slices);
        let result = tokio::time::timeout(self.send_timeout, write).await;
        result
            .map_err(|_| UploadFault::Peer(io::ErrorKind::TimedOut.into()))?
            .map_err(UploadFault::Peer)?;
        self.sent.set(self.sent.get() + bytes as u64);
        Ok(())
    }

    async fn piece(&mut self, piece: &[u8]) -> Result<(), UploadFault> {
        for part in piece.chunks(self.framing.piece_bytes_max()) {
            self.before.clear();
            let after = self.framing.around(part.len(), &mut self.before);
            let slices = &mut [IoSlice::new(&self.before), IoSlice::new(part), IoSlice::new(after)];
            self.write(slices).await?;
        }
        Ok(())
    }

    async fn end(&self) -> Result<(), UploadFault> {
        match self.framing.end() {
            end if end.is_empty() => Ok(()),
            end => self.write(&mut [IoSlice::new(&end)]).await,
        }
    }

    async fn file(&mut self, file: &File, length: u64) -> Result<(), UploadFault> {
        let mut piece = vec![0; crate::limits::FILE_CHUNK_BYTES];
        let mut at = 0;
        while at < length {
            let count = file.read_at(&mut piece, at).map_err(UploadFault::Peer)?;
            if count == 0 {
                return Err(UploadFault::Peer(io::ErrorKind::UnexpectedEof.into()));
            }
            self.piece(&piece[..count]).await?;
            at += count as u64;
        }
        self.end().await
    }

    async fn live(
        &mut self,
        body: &mut RequestBody,
        bounds: &PieceBounds,
    ) -> Result<(), UploadFault> {
        while let Some(piece) = body.piece(bounds).await.map_err(UploadFault::Client)? {
            self.piece(&piece).await?;
        }
        self.end().await
    }
}
