//! Sends a request while its answer may already be arriving.

use crate::protocol::call::{Framing, Outgoing};
use bytes::Bytes;
use std::cell::Cell;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use yorozu_kernel::base::batch::Ticket;
use yorozu_kernel::exchange::request_body::{BodyError, PieceBounds, RequestBody};
use yorozu_kernel::files::read;
use yorozu_upstream::Connection;

/// The body of a request, as far as it is not in memory with the head.
pub enum Source {
    None,
    /// What could not go with the head.
    Memory(Bytes),
    /// In a file, and its length in bytes.
    File(Arc<File>, u64),
    /// Still on its way from the client.
    Live(Box<RequestBody>, PieceBounds),
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

/// A request on its way.
pub struct Upload {
    /// Polled beside the reading of the answer.
    pub work: Pin<Box<dyn Future<Output = Uploaded>>>,
    /// Bytes sent so far, for `$upstream_bytes_sent`.
    pub sent: Rc<Cell<u64>>,
}

/// How far a request is on its way. Only on a connection where all of it was sent can another one follow.
pub enum Sending {
    Done,
    /// It is sent with others.
    Waiting(Ticket),
    UnderWay(Upload),
    /// It ended before all was sent.
    Broken,
}

impl Sending {
    /// After an upload ended so.
    pub fn of(result: &Result<(), UploadFault>) -> Self {
        if result.is_ok() { Self::Done } else { Self::Broken }
    }

    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

/// How pieces are framed.
pub enum Frames {
    /// As they come.
    Apart(Framing),
    /// As the peer has room for them.
    Within(Rc<dyn Outgoing>),
}

/// What one upload needs.
pub struct Plan {
    pub connection: Rc<Connection>,
    /// Bytes before the body, as far as they are not sent yet.
    pub head: Bytes,
    pub source: Source,
    pub framing: Frames,
    pub send_timeout: Duration,
    /// Bytes sent so far, for `$upstream_bytes_sent`.
    pub sent: Rc<Cell<u64>>,
}

/// Starts an upload.
pub fn start(plan: Plan) -> Upload {
    let sent = Rc::clone(&plan.sent);
    let work = Box::pin(async move {
        let Plan { connection, head, source, framing, send_timeout, sent } = plan;
        let before = Vec::new();
        let mut sender = Sender { connection, head, framing, send_timeout, sent, before };
        let mut body = None;
        let result = async {
            match source {
                Source::None => sender.head().await,
                Source::Memory(rest) => sender.pieces(vec![rest], true).await,
                Source::File(file, length) => sender.file(&file, length).await,
                Source::Live(live, bounds) => {
                    let live = body.insert(*live);
                    sender.live(live, &bounds).await
                }
            }
        }
        .await;
        Uploaded { body, result }
    });
    Upload { work, sent }
}

struct Sender {
    connection: Rc<Connection>,
    framing: Frames,
    send_timeout: Duration,
    sent: Rc<Cell<u64>>,
    /// What goes before the body, until it is sent: with the first piece, if that is there.
    head: Bytes,
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

    /// Sends what goes before the body, by itself.
    async fn head(&mut self) -> Result<(), UploadFault> {
        let head = std::mem::take(&mut self.head);
        if head.is_empty() { Ok(()) } else { self.write(&mut [IoSlice::new(&head)]).await }
    }

    /// Sends pieces, and the end behind them.
    async fn pieces(&mut self, pieces: Vec<Bytes>, is_last: bool) -> Result<(), UploadFault> {
        match &self.framing {
            Frames::Apart(framing) => {
                let framing = *framing;
                self.at_once(&pieces, framing, is_last).await
            }
            Frames::Within(outgoing) => {
                let outgoing = Rc::clone(outgoing);
                self.as_taken(&*outgoing, pieces, is_last).await
            }
        }
    }

    /// Sends pieces as the peer takes them.
    async fn as_taken(
        &mut self,
        outgoing: &dyn Outgoing,
        mut pieces: Vec<Bytes>,
        is_last: bool,
    ) -> Result<(), UploadFault> {
        pieces.retain(|piece| !piece.is_empty());
        if pieces.is_empty() && is_last {
            return self.end().await;
        }
        while !pieces.is_empty() {
            while outgoing.room() == 0 {
                self.words(outgoing).await?;
                let changed = tokio::time::timeout(self.send_timeout, outgoing.changed()).await;
                changed.map_err(|_| UploadFault::Peer(io::ErrorKind::TimedOut.into()))?;
            }
            let mut out = vec![std::mem::take(&mut self.head), outgoing.take_output().into()];
            outgoing.put(&mut pieces, is_last, &mut out);
            let mut slices: Vec<IoSlice<'_>> = out.iter().map(|part| IoSlice::new(part)).collect();
            self.write(&mut slices).await?;
        }
        Ok(())
    }

    /// Sends what goes before the content, and what is to be said beside it.
    async fn words(&mut self, outgoing: &dyn Outgoing) -> Result<(), UploadFault> {
        let (head, output) = (std::mem::take(&mut self.head), outgoing.take_output());
        match head.is_empty() && output.is_empty() {
            true => Ok(()),
            false => self.write(&mut [IoSlice::new(&head), IoSlice::new(&output)]).await,
        }
    }

    /// Sends pieces in one call, and the end behind them.
    async fn at_once(
        &mut self,
        pieces: &[Bytes],
        framing: Framing,
        is_last: bool,
    ) -> Result<(), UploadFault> {
        let parts: Vec<&[u8]> =
            pieces.iter().flat_map(|piece| piece.chunks(framing.piece_bytes_max)).collect();
        // What arrived together goes on as one chunk; a record holds one part.
        let frames: Vec<&[&[u8]]> = match framing.joins {
            false => parts.chunks(1).collect(),
            // A chunk of nothing, or a record, would be the end.
            true if parts.is_empty() => Vec::new(),
            true => vec![&parts],
        };
        self.before.clear();
        let mut marks = Vec::with_capacity(frames.len());
        for frame in &frames {
            let start = self.before.len();
            let bytes = frame.iter().map(|part| part.len()).sum();
            let after = (framing.around)(bytes, &mut self.before);
            marks.push((start..self.before.len(), after));
        }
        let mut end = Vec::new();
        if is_last {
            (framing.end)(&mut end);
        }
        let head = std::mem::take(&mut self.head);
        let mut slices = Vec::with_capacity(parts.len() + 2 * frames.len() + 2);
        slices.push(IoSlice::new(&head));
        for (frame, (before, after)) in frames.iter().zip(&marks) {
            slices.push(IoSlice::new(&self.before[before.clone()]));
            slices.extend(frame.iter().map(|part| IoSlice::new(part)));
            slices.push(IoSlice::new(after));
        }
        slices.push(IoSlice::new(&end));
        self.write(&mut slices).await
    }

    async fn end(&mut self) -> Result<(), UploadFault> {
        self.head().await?;
        let mut end = Vec::new();
        match &self.framing {
            Frames::Apart(framing) => (framing.end)(&mut end),
            Frames::Within(outgoing) => {
                end = outgoing.take_output();
                outgoing.end(&mut end);
            }
        }
        if end.is_empty() { Ok(()) } else { self.write(&mut [IoSlice::new(&end)]).await }
    }

    async fn file(&mut self, file: &Arc<File>, length: u64) -> Result<(), UploadFault> {
        let mut at = 0;
        if length == 0 {
            self.head().await?;
            return self.end().await;
        }
        while at < length {
            let left = usize::try_from(length - at).unwrap_or(usize::MAX);
            let count = left.min(yorozu_kernel::base::limits::FILE_CHUNK_BYTES);
            let piece = read::read(file, at, count).await.map_err(UploadFault::Peer)?;
            at += count as u64;
            self.pieces(vec![piece], at >= length).await?;
        }
        Ok(())
    }

    /// What arrives next from the client; meanwhile the peer is told what it has to know, and gets the head.
    async fn arriving(
        &mut self,
        body: &mut RequestBody,
        bounds: &PieceBounds,
    ) -> Result<Vec<Bytes>, UploadFault> {
        let mut next = pin!(body.pieces(bounds));
        let first = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
        if let Poll::Ready(pieces) = first {
            return pieces.map_err(UploadFault::Client);
        }
        // Of the content there may be bytes, and yet none of its own: half a chunk's size.
        self.head().await?;
        let outgoing = match &self.framing {
            Frames::Apart(_) => return next.await.map_err(UploadFault::Client),
            Frames::Within(outgoing) => Rc::clone(outgoing),
        };
        loop {
            tokio::select! {
                biased;
                pieces = &mut next => return pieces.map_err(UploadFault::Client),
                () = outgoing.changed() => self.words(&*outgoing).await?,
            }
        }
    }

    async fn live(
        &mut self,
        body: &mut RequestBody,
        bounds: &PieceBounds,
    ) -> Result<(), UploadFault> {
        loop {
            let pieces = self.arriving(body, bounds).await?;
            if pieces.is_empty() {
                return self.end().await;
            }
            let is_last = body.is_finished();
            self.pieces(pieces, is_last).await?;
            if is_last {
                return Ok(());
            }
        }
    }
}
