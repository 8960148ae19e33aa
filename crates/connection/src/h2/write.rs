//! Sends a response as frames.

use super::streams::{Gone, Handle};
use crate::send::{
    self, Limit, Pieces, Sent, Stop, first_fields, keep_sent, last_fields, outcome, read_file,
    set_content_length,
};
use bytes::Bytes;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use yorozu_http::field::is_of_head;
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_kernel::exchange::{Exchange, stream};
use yorozu_wire::h2::frame::{Code, HEAD_BYTES};

/// How far the sending came without waiting.
pub(super) enum Begun {
    Done(Sent),
    Waits(Rest),
}

/// What is still to be sent.
pub(super) struct Rest {
    body: Body,
    sender: Sender,
    limit: Limit,
}

struct Sender {
    stream: Rc<Handle>,
    send_timeout: Duration,
    chunk_bytes: usize,
}

impl From<Gone> for Stop {
    fn from(Gone: Gone) -> Self {
        Self::Failed(io::ErrorKind::ConnectionReset.into())
    }
}

/// Sends the head, and the body if the client takes all of it now.
pub(super) fn begin(exchange: &mut Exchange, stream: &Rc<Handle>, mut response: Response) -> Begun {
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let has_content = set_content_length(exchange, &mut response);
    let is_empty = !has_content || matches!(response.body.length(), Some(0));
    let streams = &stream.streams;
    let sent = streams.send_fields(stream.id, Some(response.status), is_empty, |fields| {
        first_fields(&response, true, core, |field, value| fields.put(field.name(), value));
        last_fields(&response, |name, value| fields.put(name, value));
    });
    let body = std::mem::replace(&mut response.body, Body::empty());
    keep_sent(exchange, response, false);
    exchange.keep_alive = true;
    match sent {
        Ok(bytes) => exchange.bytes_sent = bytes as u64,
        Err(gone) => return Begun::Done(outcome(exchange, Err(gone.into()))),
    }
    if is_empty {
        return Begun::Done(Sent::Whole);
    }
    let limit = Limit::of(exchange, core);
    let chunk_bytes =
        conf.location(exchange.location).of::<super::Conf>().http2_chunk_size.bytes().max(1);
    if let Body::Memory(bytes) = &body {
        if limit.is_free() && streams.room(stream.id) >= bytes.len() {
            let sent = send_now(exchange, stream, bytes.clone(), chunk_bytes, true);
            return Begun::Done(outcome(exchange, sent));
        }
    }
    let stream = Rc::clone(stream);
    let sender = Sender { stream, send_timeout: core.send_timeout, chunk_bytes };
    Begun::Waits(Rest { body, sender, limit })
}

/// Sends bytes for which there is room.
fn send_now(
    exchange: &mut Exchange,
    stream: &Handle,
    bytes: Bytes,
    frame_bytes: usize,
    is_last: bool,
) -> Result<(), Stop> {
    let length = bytes.len();
    let frames = stream.streams.send_data(stream.id, bytes, frame_bytes, is_last)?;
    exchange.body_bytes_sent += length as u64;
    exchange.bytes_sent += (length + frames * HEAD_BYTES) as u64;
    Ok(())
}

impl Rest {
    pub(super) async fn run(mut self, exchange: &mut Exchange) -> Sent {
        let body = std::mem::replace(&mut self.body, Body::empty());
        let result = match body {
            Body::Memory(bytes) => self.bytes(exchange, bytes, true).await,
            Body::Segments(segments) => self.segments(exchange, segments).await,
            Body::Stream(stream) => self.stream(exchange, *stream).await,
            Body::Tunnel(_) => unreachable!("HTTP/2 has no upgrades"),
        };
        let stream = &self.sender.stream;
        let result = match result {
            // The connection was ended for that.
            Err(Stop::Failed(_)) if stream.streams.is_timed_out() => Err(Stop::TimedOut),
            other => other,
        };
        match &result {
            Ok(()) => {}
            Err(Stop::Torn) => stream.streams.send_reset(stream.id, Code::INTERNAL_ERROR),
            // As nginx.
            Err(Stop::TimedOut) => stream.streams.send_reset(stream.id, Code::PROTOCOL_ERROR),
            Err(_) => stream.streams.send_reset(stream.id, Code::CANCEL),
        }
        outcome(exchange, result)
    }

    async fn segments(
        &mut self,
        exchange: &mut Exchange,
        segments: Vec<Segment>,
    ) -> Result<(), Stop> {
        let last = segments.len().saturating_sub(1);
        for (index, segment) in segments.into_iter().enumerate() {
            self.segment(exchange, segment, index == last).await?;
        }
        Ok(())
    }

    async fn segment(
        &mut self,
        exchange: &mut Exchange,
        segment: Segment,
        is_last: bool,
    ) -> Result<(), Stop> {
        match segment {
            Segment::Memory(bytes) => self.bytes(exchange, bytes, is_last).await,
            Segment::File(file, range) => {
                let mut at = range.start;
                while at < range.end {
                    let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                    // What the client has no room for is not read: one that takes nothing holds none of it.
                    let wanted = left.min(limits::FILE_CHUNK_BYTES);
                    let room = self.sender.room().await?.min(wanted);
                    let bytes = read_file(&file, at, room).await?;
                    at += bytes.len() as u64;
                    self.bytes(exchange, bytes, is_last && at == range.end).await?;
                }
                Ok(())
            }
        }
    }

    async fn stream(
        &mut self,
        exchange: &mut Exchange,
        stream: stream::Stream,
    ) -> Result<(), Stop> {
        send::stream(self, exchange, stream).await?;
        let stream = &self.sender.stream;
        if exchange.sent.trailers.is_empty() {
            let frames = stream.streams.send_data(stream.id, Bytes::new(), 1, true)?;
            exchange.bytes_sent += (frames * HEAD_BYTES) as u64;
        } else {
            let sent = stream.streams.send_fields(stream.id, None, true, |fields| {
                let trailers = exchange.sent.trailers.iter();
                let allowed = trailers.filter(|(name, _)| !is_of_head(name));
                allowed.for_each(|(name, value)| fields.put(name, value));
            })?;
            exchange.bytes_sent += sent as u64;
        }
        Ok(())
    }

    /// Sends bytes as the client's windows and `limit_rate` allow.
    async fn bytes(
        &mut self,
        exchange: &mut Exchange,
        mut bytes: Bytes,
        is_last: bool,
    ) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let allowed = self.limit.allowance(exchange.body_bytes_sent).await;
            let wanted = bytes.len().min(allowed).min(self.sender.chunk_bytes);
            let count = self.sender.room().await?.min(wanted);
            let piece = bytes.split_to(count);
            let is_end = is_last && bytes.is_empty();
            send_now(exchange, &self.sender.stream, piece, self.sender.chunk_bytes, is_end)?;
        }
        Ok(())
    }
}

impl Pieces for Rest {
    async fn piece(&mut self, exchange: &mut Exchange, bytes: Bytes) -> Result<(), Stop> {
        self.bytes(exchange, bytes, false).await
    }

    async fn segment(&mut self, exchange: &mut Exchange, segment: Segment) -> Result<(), Stop> {
        Self::segment(self, exchange, segment, false).await
    }

    async fn given_up(&self) {
        let stream = &self.sender.stream;
        poll_fn(|context| stream.streams.poll_reset(stream.id, context)).await;
    }
}

impl Sender {
    /// Waits for room: how much there is.
    async fn room(&self) -> Result<usize, Stop> {
        let streams = &self.stream.streams;
        match streams.room(self.stream.id) {
            0 => {}
            room => return Ok(room),
        }
        let room = poll_fn(|context| streams.poll_room(self.stream.id, context));
        match tokio::time::timeout(self.send_timeout, room).await {
            Err(_) => Err(Stop::TimedOut),
            Ok(room) => Ok(room?),
        }
    }
}
