//! Sends a response as frames.

use super::io::Stall;
use super::{Fields, is_of_connection};
use crate::send::{
    Limit, Sent, Stop, first_fields, keep_sent, last_fields, note_stream, outcome, read_file,
    set_content_length,
};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderName, HeaderValue, StatusCode};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_kernel::exchange::{Exchange, stream};

/// Bytes of a frame's head (RFC 9113, section 4.1).
const FRAME_HEAD_BYTES: u64 = 9;

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
    stall: Rc<Stall>,
}

struct Sender {
    stream: SendStream<Bytes>,
    send_timeout: Duration,
    chunk_bytes: usize,
}

/// Sends the head, and the body if the client takes all of it now.
pub(super) fn begin(
    exchange: &mut Exchange,
    back: &RefCell<SendResponse<Bytes>>,
    mut response: Response,
    stall: &Rc<Stall>,
) -> Begun {
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let has_content = set_content_length(exchange, &mut response);
    let mut head = http::Response::new(());
    *head.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::OK);
    let fields = head.headers_mut();
    fields.reserve(16);
    first_fields(&response, true, core, |name, value| put(fields, name, value));
    last_fields(exchange, &response, |name, value| put(fields, name, value));
    let head_bytes: usize =
        fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let body = std::mem::replace(&mut response.body, Body::empty());
    keep_sent(exchange, response, false);
    exchange.keep_alive = true;
    let is_empty = !has_content || matches!(body.length(), Some(0));
    exchange.bytes_sent = head_bytes as u64 + FRAME_HEAD_BYTES;
    let sent = back.borrow_mut().send_response(head, is_empty);
    let mut stream = match sent {
        Ok(stream) => stream,
        Err(problem) => return Begun::Done(outcome(exchange, Err(failed(problem)))),
    };
    if is_empty {
        return Begun::Done(Sent::Whole);
    }
    let limit = Limit::of(exchange, core);
    let chunk_bytes =
        conf.location(exchange.location).of::<super::Conf>().http2_chunk_size.bytes().max(1);
    if let Body::Memory(bytes) = &body {
        let length = bytes.len();
        if limit.is_free() && chunk_bytes >= limits::H2_FRAME_BYTES {
            stream.reserve_capacity(length);
            if stream.capacity() >= length {
                let sent = stream.send_data(bytes.clone(), true).map_err(failed);
                count(exchange, length);
                return Begun::Done(outcome(exchange, sent));
            }
        }
    }
    let sender = Sender { stream, send_timeout: core.send_timeout, chunk_bytes };
    Begun::Waits(Rest { body, sender, limit, stall: Rc::clone(stall) })
}

/// One field; those of the connection are HTTP/1's.
fn put(fields: &mut Fields, name: &[u8], value: &[u8]) {
    if is_of_connection(name) {
        return;
    }
    let Ok(name) = HeaderName::from_bytes(name) else { return };
    let value = HeaderValue::from_bytes(value).or_else(|_| {
        // What variables brought in: never a second line.
        let plain: Vec<u8> = value
            .iter()
            .map(|byte| if matches!(byte, 0..=8 | 10..=31 | 127) { b' ' } else { *byte })
            .collect();
        HeaderValue::from_bytes(&plain)
    });
    if let Ok(value) = value {
        fields.append(name, value);
    }
}

/// All fields of a list.
pub(super) fn put_all(fields: &mut Fields, list: &[(Bytes, Bytes)]) {
    for (name, value) in list {
        put(fields, name, value);
    }
}

fn failed(problem: h2::Error) -> Stop {
    Stop::Failed(io::Error::other(problem))
}

fn count(exchange: &mut Exchange, bytes: usize) {
    exchange.body_bytes_sent += bytes as u64;
    exchange.bytes_sent += bytes as u64 + FRAME_HEAD_BYTES;
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
        let result = match result {
            // The connection was ended for that.
            Err(Stop::Failed(_)) if self.stall.is_timed_out() => Err(Stop::TimedOut),
            other => other,
        };
        match &result {
            Ok(()) => {}
            Err(Stop::Torn) => self.sender.stream.send_reset(Reason::INTERNAL_ERROR),
            Err(_) => self.sender.stream.send_reset(Reason::CANCEL),
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
                    let room = self.sender.room(wanted).await?.min(wanted);
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
        mut stream: stream::Stream,
    ) -> Result<(), Stop> {
        stream.announced = exchange.sent.content_length;
        let result = self.pieces(exchange, &mut stream).await;
        note_stream(exchange, &mut stream);
        result?;
        if exchange.sent.trailers.is_empty() {
            return self.sender.stream.send_data(Bytes::new(), true).map_err(failed);
        }
        let mut trailers = Fields::new();
        put_all(&mut trailers, &exchange.sent.trailers);
        self.sender.stream.send_trailers(trailers).map_err(failed)
    }

    async fn pieces(
        &mut self,
        exchange: &mut Exchange,
        stream: &mut stream::Stream,
    ) -> Result<(), Stop> {
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next?,
                () = self.sender.reset() => {
                    return Err(Stop::Failed(io::ErrorKind::ConnectionReset.into()));
                }
            };
            match next {
                None => return Ok(()),
                Some(Segment::Memory(bytes)) if bytes.len() < limits::H2_SMALL_BYTES => {
                    let (bytes, after) = gather(bytes, stream).await;
                    self.bytes(exchange, bytes, false).await?;
                    match after.transpose()? {
                        Some(Some(segment)) => self.segment(exchange, segment, false).await?,
                        Some(None) => return Ok(()),
                        None => {}
                    }
                }
                Some(segment) => self.segment(exchange, segment, false).await?,
            }
        }
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
            let count_ = self.sender.room(wanted).await?.min(wanted);
            let piece = bytes.split_to(count_);
            let is_end = is_last && bytes.is_empty();
            self.sender.stream.send_data(piece, is_end).map_err(failed)?;
            count(exchange, count_);
        }
        Ok(())
    }
}

/// Joins a small piece with those that are there already behind it, or will be once the tasks that are ready have run:
/// clients take many small frames for an attack. With what came in the place of one that can be joined.
async fn gather(
    first: Bytes,
    stream: &mut stream::Stream,
) -> (Bytes, Option<Result<Option<Segment>, stream::Torn>>) {
    let mut joined = BytesMut::from(first);
    let mut has_waited = false;
    while joined.len() < limits::H2_FRAME_BYTES {
        let next = poll_fn(|context| Poll::Ready(pin!(stream.next()).poll(context))).await;
        match next {
            Poll::Ready(Ok(Some(Segment::Memory(bytes)))) => {
                joined.extend_from_slice(&bytes);
                has_waited = false;
            }
            Poll::Ready(other) => return (joined.freeze(), Some(other)),
            Poll::Pending if has_waited || joined.len() >= limits::H2_SMALL_BYTES => break,
            Poll::Pending => {
                tokio::task::yield_now().await;
                has_waited = true;
            }
        }
    }
    (joined.freeze(), None)
}

impl Sender {
    /// Returns when the client has given the stream up.
    async fn reset(&mut self) {
        let _ = poll_fn(|context| self.stream.poll_reset(context)).await;
    }

    /// Waits for room for some of `wanted` bytes.
    async fn room(&mut self, wanted: usize) -> Result<usize, Stop> {
        self.stream.reserve_capacity(wanted);
        if self.stream.capacity() > 0 {
            return Ok(self.stream.capacity());
        }
        let room = poll_fn(|context| self.stream.poll_capacity(context));
        match tokio::time::timeout(self.send_timeout, room).await {
            Err(_) => Err(Stop::TimedOut),
            Ok(None) => Err(Stop::Failed(io::ErrorKind::ConnectionReset.into())),
            Ok(Some(room)) => room.map_err(failed),
        }
    }
}
