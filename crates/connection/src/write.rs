//! Writes a response: head and body in one call where both are in memory.

use super::h1::Connection;
use super::send::{
    Limit, Sent, Stop, first_fields, keep_sent, last_fields, note_stream, outcome, read_file,
    set_content_length,
};
use bytes::Bytes;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write as _};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use yorozu_http::field;
use yorozu_http::status::reason;
use yorozu_kernel::base::batch::{self, TryWrite};
use yorozu_kernel::base::limits;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::config::http_core::Conf;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_kernel::exchange::source::ByteStream;
use yorozu_kernel::exchange::stream::Stream;
use yorozu_kernel::exchange::tunnel::Tunnel;
use yorozu_kernel::files::read;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_wire::h1::Version;

/// How the client finds the end of the body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Framing {
    None,
    Length,
    Chunked,
    UntilClose,
}

/// Room for a head before it has to grow; chosen: most are shorter.
const HEAD_BYTES: usize = 512;

/// Sends `response`.
pub(super) async fn response(
    connection: &mut Connection,
    exchange: &mut Exchange,
    mut response: Box<Response>,
    core: &Conf,
) -> Sent {
    let limit = Limit::of(exchange, core);
    if !limit.is_free() {
        // The limit is this response's alone.
        if let Err(stop) = flush(connection).await {
            return outcome(exchange, Err(stop));
        }
    }
    let held_bytes = connection.out.len() as u64;
    let framing = framing(exchange, &mut response, core);
    if exchange.request.version > Version::V09 {
        if connection.out.capacity() == 0 {
            connection.out = Scratch::take();
        }
        head(exchange, &response, framing, core, &mut connection.out);
    }
    let head_bytes = connection.out.len() as u64 - held_bytes;
    let body = std::mem::replace(&mut response.body, Body::empty());
    keep_sent(exchange, *response, framing == Framing::Chunked);
    let mut writer = Writer {
        limit,
        sent: 0,
        is_chunked: framing == Framing::Chunked,
        send_timeout: core.send_timeout,
        connection,
    };
    let result = if let Body::Tunnel(tunnel) = body {
        // Boxed, as everything rare: a connection is moved when it starts.
        Box::pin(writer.tunnel(exchange, tunnel)).await
    } else if framing == Framing::None && writer.is_held(exchange, 0) {
        writer.hold(b"");
        Ok(())
    } else if framing == Framing::None {
        let head = std::mem::take(&mut writer.connection.out);
        let result = writer.slices(&[&head]).await;
        writer.take_back(head);
        result
    } else {
        writer.body(exchange, body, core).await
    };
    let sent = writer.sent.saturating_sub(held_bytes);
    exchange.bytes_sent = sent;
    exchange.body_bytes_sent = sent.saturating_sub(head_bytes);
    outcome(exchange, result)
}

/// Sends the responses that are held back, if there are any.
pub(super) async fn flush(connection: &mut Connection) -> Result<(), Stop> {
    if connection.out.is_empty() {
        return Ok(());
    }
    let send_timeout = connection.send_timeout;
    let limit = Limit::default();
    let mut writer = Writer { limit, sent: 0, is_chunked: false, send_timeout, connection };
    let held = std::mem::take(&mut writer.connection.out);
    // Boxed, as everything rare: a connection is moved when it starts.
    let result = Box::pin(writer.slices(&[&held])).await;
    writer.take_back(held);
    result
}

fn framing(exchange: &mut Exchange, response: &mut Response, core: &Conf) -> Framing {
    if response.status == 101 {
        exchange.keep_alive = false;
        response.content_length = None;
        return Framing::None;
    }
    if !set_content_length(exchange, response) {
        return Framing::None;
    }
    let framing = if response.content_length.is_some() {
        Framing::Length
    } else if exchange.request.version == Version::V11 && core.chunked_transfer_encoding {
        Framing::Chunked
    } else {
        Framing::UntilClose
    };
    if exchange.request.version == Version::V09 || framing == Framing::UntilClose {
        exchange.keep_alive = false;
    }
    framing
}

/// One field line. Variables may bring line ends into a value (a decoded path in `add_header`):
/// they become spaces, never a second line.
fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    end_line(out, value);
}

/// The value of a line, and its end.
fn end_line(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(&field::Value::new(value));
    out.extend_from_slice(b"\r\n");
}

/// Field lines in nginx's order.
fn head(
    exchange: &Exchange,
    response: &Response,
    framing: Framing,
    core: &Conf,
    out: &mut Vec<u8>,
) {
    out.reserve(HEAD_BYTES);
    out.extend_from_slice(b"HTTP/1.1 ");
    let digit = |scale: u16| b'0' + u8::try_from(response.status / scale % 10).unwrap_or(0);
    out.extend_from_slice(&[digit(100), digit(10), digit(1), b' ']);
    match &response.reason {
        Some(text) => out.extend_from_slice(text),
        None => out.extend_from_slice(reason(response.status).as_bytes()),
    }
    out.extend_from_slice(b"\r\n");
    let has_length = framing != Framing::Chunked;
    first_fields(response, has_length, core, |field, value| {
        out.extend_from_slice(field.start);
        if field.is_own {
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        } else {
            end_line(out, value);
        }
    });
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if response.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if exchange.keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        // As nginx: one of 0 is not sent.
        if let Some(timeout) = core.keepalive_timeout.header.filter(|time| !time.is_zero()) {
            let _ = write!(out, "Keep-Alive: timeout={}\r\n", timeout.as_secs());
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    last_fields(response, |name, value| line(out, name, value));
    out.extend_from_slice(b"\r\n");
}

/// Pieces of a stream that are written with one call; chosen: those of one read.
const TOGETHER: usize = 16;

struct Writer<'a> {
    connection: &'a mut Connection,
    limit: Limit,
    sent: u64,
    is_chunked: bool,
    send_timeout: Duration,
}

impl Writer<'_> {
    async fn body(&mut self, exchange: &mut Exchange, body: Body, core: &Conf) -> Result<(), Stop> {
        let body = match body {
            Body::Memory(bytes) => return self.memory(bytes, exchange).await,
            Body::Segments(mut segments) => match &mut segments[..] {
                [Segment::Memory(bytes)] => {
                    let bytes = std::mem::take(bytes);
                    return self.memory(bytes, exchange).await;
                }
                _ => Body::Segments(segments),
            },
            other => other,
        };
        let head = std::mem::take(&mut self.connection.out);
        let result = match body {
            Body::Segments(segments) => Box::pin(self.segments(&head, &segments, core)).await,
            Body::Stream(stream) => Box::pin(self.stream(&head, exchange, *stream, core)).await,
            Body::Memory(_) | Body::Tunnel(_) => unreachable!("handled before"),
        };
        self.take_back(head);
        result
    }

    /// Keeps the allocation of what was sent.
    fn take_back(&mut self, mut head: Scratch) {
        head.clear();
        self.connection.out = head;
    }

    /// Whether a response is held back to be sent with the next one: its request has come already.
    fn is_held(&self, exchange: &Exchange, body_bytes: usize) -> bool {
        exchange.keep_alive
            && exchange.body.is_finished()
            && !exchange.body.unread.is_empty()
            && self.limit.is_free()
            && self.connection.out.len() + body_bytes <= limits::PIPELINED_BYTES
    }

    fn hold(&mut self, body: &[u8]) {
        self.connection.out.extend_from_slice(body);
        self.sent = self.connection.out.len() as u64;
    }

    async fn memory(&mut self, mut bytes: Bytes, exchange: &Exchange) -> Result<(), Stop> {
        if self.is_held(exchange, bytes.len()) {
            self.hold(&bytes);
            return Ok(());
        }
        if !exchange.keep_alive {
            self.connection.io.end_with_next_write();
        }
        let mut head = std::mem::take(&mut self.connection.out);
        let mut done = 0;
        if self.limit.is_free() && self.connection.io.is_plain() {
            let to = Rc::clone(&self.connection.io) as Rc<dyn TryWrite>;
            let written = batch::write(to, head, bytes).await;
            (head, bytes) = (written.head, written.body);
            done = match written.count {
                Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => 0,
                count => count?,
            };
            self.sent += done as u64;
        }
        if done == head.len() + bytes.len() {
            self.take_back(head);
            return Ok(());
        }
        let in_body = done.saturating_sub(head.len());
        let result = self.slices(&[&head[done - in_body..], &bytes[in_body..]]).await;
        self.take_back(head);
        result
    }

    /// Sends the head, then carries bytes both ways until one side ends.
    async fn tunnel(
        &mut self,
        exchange: &mut Exchange,
        tunnel: Box<dyn Tunnel>,
    ) -> Result<(), Stop> {
        let head = std::mem::take(&mut self.connection.out);
        self.slices(&[&head]).await?;
        let early = std::mem::take(&mut exchange.body.unread);
        let carried =
            tunnel.carry(Rc::clone(&self.connection.io) as Rc<dyn ByteStream>, early).await;
        self.sent += carried.to_client;
        if let Some(attempt) = exchange.attempts.last_mut() {
            attempt.bytes_sent += carried.to_upstream;
            attempt.bytes_received += carried.from_upstream;
            attempt.response_time = Some(carried.time);
        }
        if carried.is_timed_out {
            let text =
                "upstream timed out (110: Connection timed out) while proxying upgraded connection";
            error::request(exchange, Level::Info, text);
        }
        Ok(())
    }

    /// How much may be sent now. A client that closes while it has to wait is gone, which nothing else would tell.
    async fn allowance(&self) -> Result<usize, Stop> {
        if self.limit.is_free() {
            return Ok(usize::MAX);
        }
        tokio::select! {
            biased;
            allowed = self.limit.allowance(self.sent) => Ok(allowed),
            () = poll_fn(|context| self.connection.io.poll_closed(context)) => {
                Err(Stop::Failed(io::ErrorKind::ConnectionAborted.into()))
            }
        }
    }

    /// Writes up to four slices, all of them, within `send_timeout` per progress.
    fn slices(&mut self, slices: &[&[u8]]) -> impl Future<Output = Result<(), Stop>> {
        self.many::<4>(slices)
    }

    /// As [`Writer::slices`], up to `MAX`.
    async fn many<const MAX: usize>(&mut self, slices: &[&[u8]]) -> Result<(), Stop> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut done = 0;
        while done < total {
            let mut skip = done;
            let mut left = self.allowance().await?;
            let mut parts = [IoSlice::new(b""); MAX];
            let mut count = 0;
            for slice in slices {
                let from = skip.min(slice.len());
                skip -= from;
                let rest = &slice[from..];
                let rest = &rest[..rest.len().min(left)];
                left -= rest.len();
                if !rest.is_empty() {
                    parts[count] = IoSlice::new(rest);
                    count += 1;
                }
            }
            let connection = &mut *self.connection;
            let write = connection.io.write(&parts[..count]);
            let written = connection
                .timer
                .within(self.send_timeout, pin!(write))
                .await
                .ok_or(Stop::TimedOut)??;
            if written == 0 {
                return Err(Stop::Failed(io::ErrorKind::WriteZero.into()));
            }
            done += written;
            self.sent += written as u64;
        }
        Ok(())
    }

    async fn segments(
        &mut self,
        head: &[u8],
        segments: &[Segment],
        core: &Conf,
    ) -> Result<(), Stop> {
        let mut head = head;
        for segment in segments {
            match segment {
                Segment::Memory(bytes) => self.slices(&[std::mem::take(&mut head), bytes]).await?,
                Segment::File(file, range) => {
                    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                    if length <= limits::FILE_CHUNK_BYTES {
                        // Small files are cheaper to read than to hand over: one write for both.
                        let bytes = read_file(file, range.start, length).await?;
                        self.slices(&[std::mem::take(&mut head), &bytes]).await?;
                    } else {
                        self.head_before_file(std::mem::take(&mut head)).await?;
                        self.file(file, range.start, range.end, core).await?;
                    }
                }
            }
        }
        self.slices(&[head]).await
    }

    async fn head_before_file(&mut self, mut head: &[u8]) -> Result<(), Stop> {
        while !head.is_empty() {
            let connection = &mut *self.connection;
            let write = connection.io.write_more(head);
            let written = connection
                .timer
                .within(self.send_timeout, pin!(write))
                .await
                .ok_or(Stop::TimedOut)??;
            head = &head[written..];
            self.sent += written as u64;
        }
        Ok(())
    }

    /// Whether the system may send files by itself.
    fn sends_files(&self, core: &Conf) -> bool {
        core.sendfile && self.connection.io.is_plain()
    }

    async fn file(
        &mut self,
        file: &Arc<File>,
        mut at: u64,
        end: u64,
        core: &Conf,
    ) -> Result<(), Stop> {
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.allowance().await?);
            if self.sends_files(core) {
                let count = left.min(match core.sendfile_max_chunk.bytes() {
                    0 => usize::MAX,
                    max => max,
                });
                let count = read::bring(file, at, count).await?;
                if count == 0 {
                    return Err(Stop::Torn);
                }
                let connection = &mut *self.connection;
                let send = connection.io.send_file(file, at, count);
                let sent = connection
                    .timer
                    .within(self.send_timeout, pin!(send))
                    .await
                    .ok_or(Stop::TimedOut)??;
                if sent == 0 {
                    // Truncated while it is sent: the length is promised, so the connection ends.
                    return Err(Stop::Torn);
                }
                at += sent as u64;
                self.sent += sent as u64;
            } else {
                let bytes = read_file(file, at, left.min(limits::FILE_CHUNK_BYTES)).await?;
                self.slices(&[&bytes]).await?;
                at += bytes.len() as u64;
            }
        }
        Ok(())
    }

    async fn stream(
        &mut self,
        head: &[u8],
        exchange: &mut Exchange,
        mut stream: Stream,
        core: &Conf,
    ) -> Result<(), Stop> {
        let mut head = head;
        stream.announced = exchange.sent.content_length;
        if stream.is_waiting() {
            // The client may have the head while PHP works on the body.
            self.slices(&[std::mem::take(&mut head)]).await?;
        }
        let result = self.pieces(&mut head, &mut stream, core).await;
        note_stream(exchange, &mut stream);
        result?;
        if self.is_chunked {
            let mut end = b"0\r\n".to_vec();
            for (name, value) in &exchange.sent.trailers {
                line(&mut end, name, value);
            }
            end.extend_from_slice(b"\r\n");
            self.slices(&[head, &end]).await
        } else {
            self.slices(&[head]).await
        }
    }

    /// Sends a stream's pieces, the first behind `head`, which is empty afterwards.
    async fn pieces(
        &mut self,
        head: &mut &[u8],
        stream: &mut Stream,
        core: &Conf,
    ) -> Result<(), Stop> {
        while let Some(segment) = stream.next().await? {
            match segment {
                Segment::File(file, range) if !self.is_chunked && self.sends_files(core) => {
                    self.head_before_file(std::mem::take(head)).await?;
                    self.file(&file, range.start, range.end, core).await?;
                }
                Segment::Memory(first) => {
                    let mut pieces: [Bytes; TOGETHER] = Default::default();
                    pieces[0] = first;
                    let mut count = 1;
                    while let Some(place) = pieces.get_mut(count) {
                        let Some(piece) = stream.at_hand() else { break };
                        *place = piece;
                        count += 1;
                    }
                    self.together(std::mem::take(head), &pieces[..count]).await?;
                }
                Segment::File(file, range) => {
                    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                    let bytes = read_file(&file, range.start, length).await?;
                    self.together(std::mem::take(head), &[bytes]).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes pieces, [`TOGETHER`] at most, as one chunk if the content is chunked.
    async fn together(&mut self, head: &[u8], pieces: &[Bytes]) -> Result<(), Stop> {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let mut slices: [&[u8]; TOGETHER + 3] = [b""; TOGETHER + 3];
        let size;
        slices[0] = head;
        if self.is_chunked && length > 0 {
            size = format!("{length:x}\r\n");
            slices[1] = size.as_bytes();
            slices[TOGETHER + 2] = b"\r\n";
        }
        slices[2..].iter_mut().zip(pieces).for_each(|(slice, piece)| *slice = piece);
        self.many::<{ TOGETHER + 3 }>(&slices).await
    }
}
