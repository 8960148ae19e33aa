//! Sends a response as frames.

use super::outgoing::{Fields, Outgoing};
use crate::send::{
    self, Limit, Pieces, Sent, Stop, first_fields, keep_sent, last_fields, outcome, read_file,
    set_content_length,
};
use bytes::Bytes;
use std::rc::Rc;
use std::time::Duration;
use yorozu_http::field::is_of_head;
use yorozu_kernel::base::limits;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_kernel::exchange::{Exchange, stream};
use yorozu_wire::h3::frame::{Code, kind, put_head};

/// How a response is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    Frames,
    /// As HTTP/0.9: the content alone.
    Bare,
}

struct Sender<'a> {
    stream: &'a Rc<Outgoing>,
    timeout: Duration,
    limit: Limit,
    form: Form,
}

/// Sends a response; the stream is over then.
pub(super) async fn send(
    exchange: &mut Exchange,
    stream: &Rc<Outgoing>,
    mut response: Response,
    form: Form,
) -> Sent {
    let conf = Rc::clone(&exchange.conf);
    let core = conf.location(exchange.location).http_core();
    let has_content = set_content_length(exchange, &mut response);
    let head = (form == Form::Frames).then(|| {
        let mut fields = Fields::new(Some(response.status));
        first_fields(&response, true, core, |field, value| fields.put(field.name(), value));
        last_fields(&response, |name, value| fields.put(name, value));
        fields
    });
    let body = std::mem::replace(&mut response.body, Body::empty());
    keep_sent(exchange, response, false);
    exchange.keep_alive = true;
    let limit = Limit::of(exchange, core);
    let mut sender = Sender { stream, timeout: core.send_timeout, limit, form };
    let result = sender.all(exchange, head, has_content, body).await;
    match &result {
        Ok(()) => stream.finish(),
        Err(Stop::Torn) => stream.reset(Code::INTERNAL_ERROR),
        Err(_) => stream.reset(Code::REQUEST_CANCELLED),
    }
    outcome(exchange, result)
}

impl Sender<'_> {
    async fn all(
        &mut self,
        exchange: &mut Exchange,
        head: Option<Fields>,
        has_content: bool,
        body: Body,
    ) -> Result<(), Stop> {
        match body {
            Body::Memory(bytes) if has_content && self.limit.is_free() && !bytes.is_empty() => {
                // All of it at once.
                let length = bytes.len() as u64;
                let (heads, first) = head.map(|head| head.before(Some(length))).unwrap_or_default();
                exchange.bytes_sent = first as u64;
                self.put(exchange, (heads, first), bytes).await
            }
            body => {
                let head = head.map(Fields::frame).unwrap_or_default();
                exchange.bytes_sent = head.len() as u64;
                self.stream.write(&mut [head], self.timeout).await?;
                match body {
                    _ if !has_content => Ok(()),
                    Body::Memory(bytes) => self.piece(exchange, bytes).await,
                    Body::Segments(segments) => {
                        for segment in segments {
                            self.segment(exchange, segment).await?;
                        }
                        Ok(())
                    }
                    Body::Stream(stream) => self.stream(exchange, *stream).await,
                    Body::Tunnel(_) => unreachable!("HTTP/3 has no upgrades"),
                }
            }
        }
    }

    /// Sends content, and what stands before it, of which some bytes were counted.
    async fn put(
        &self,
        exchange: &mut Exchange,
        (heads, counted): (Bytes, usize),
        bytes: Bytes,
    ) -> Result<(), Stop> {
        let (length, rest) = (bytes.len() as u64, (heads.len() - counted) as u64);
        self.stream.write(&mut [heads, bytes], self.timeout).await?;
        exchange.body_bytes_sent += length;
        exchange.bytes_sent += rest + length;
        Ok(())
    }

    async fn stream(
        &mut self,
        exchange: &mut Exchange,
        stream: stream::Stream,
    ) -> Result<(), Stop> {
        send::stream(self, exchange, stream).await?;
        let trailers = &exchange.sent.trailers;
        let allowed: Vec<_> = trailers.iter().filter(|(name, _)| !is_of_head(name)).collect();
        if allowed.is_empty() || self.form == Form::Bare {
            return Ok(());
        }
        let mut fields = Fields::new(None);
        allowed.iter().for_each(|(name, value)| fields.put(name, value));
        self.stream.write(&mut [fields.frame()], self.timeout).await
    }
}

impl Pieces for Sender<'_> {
    async fn piece(&mut self, exchange: &mut Exchange, mut bytes: Bytes) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let allowed = self.limit.allowance(exchange.body_bytes_sent).await;
            let piece = bytes.split_to(bytes.len().min(allowed));
            let mut head = Vec::new();
            if self.form == Form::Frames {
                put_head(&mut head, kind::DATA, piece.len() as u64);
            }
            self.put(exchange, (head.into(), 0), piece).await?;
        }
        Ok(())
    }

    async fn segment(&mut self, exchange: &mut Exchange, segment: Segment) -> Result<(), Stop> {
        match segment {
            Segment::Memory(bytes) => self.piece(exchange, bytes).await,
            Segment::File(file, range) => {
                let mut at = range.start;
                while at < range.end {
                    let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                    let bytes = read_file(&file, at, left.min(limits::FILE_CHUNK_BYTES)).await?;
                    at += bytes.len() as u64;
                    self.piece(exchange, bytes).await?;
                }
                Ok(())
            }
        }
    }

    async fn given_up(&self) {
        self.stream.closed().await;
    }
}
