//! Writes a response: head and body in one call where both are in memory.

use super::h1::Connection;
use crate::config::http_core::Conf;
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::{Body, Response, Segment, SentHead};
use crate::handlers::error_page::server_name;
use crate::handlers::gateway::tunnel::Tunnel;
use crate::limits;
use crate::logging::clock;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_http::status::{has_content, reason};
use yorozu_wire::h1::Version;

/// How the sending ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    Whole,
    /// The client is gone.
    Failed,
    /// The client did not take it in time.
    TimedOut,
    /// The upstream failed in the middle: the client must not take it for the whole.
    Torn,
}

/// How the client finds the end of the body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Framing {
    None,
    Length,
    Chunked,
    UntilClose,
}

/// Sends `response`.
pub(super) async fn response(
    connection: &mut Connection,
    exchange: &mut Exchange,
    mut response: Response,
    core: &Conf,
) -> Sent {
    let framing = framing(exchange, &mut response, core);
    connection.out.clear();
    if exchange.request.version > Version::V09 {
        let mut out = std::mem::take(&mut connection.out);
        head(exchange, &response, framing, core, &mut out);
        connection.out = out;
    }
    let head_bytes = connection.out.len() as u64;
    let body = std::mem::replace(&mut response.body, Body::empty());
    keep_sent(exchange, response, framing);
    let mut writer = Writer {
        rate: rate(exchange, core),
        begun: Instant::now(),
        sent: 0,
        is_chunked: framing == Framing::Chunked,
        send_timeout: core.send_timeout,
        connection,
    };
    let result = if let Body::Tunnel(tunnel) = body {
        // Boxed, as everything rare: a connection is moved when it starts.
        Box::pin(writer.tunnel(exchange, *tunnel)).await
    } else if framing == Framing::None {
        let head = std::mem::take(&mut writer.connection.out);
        let result = writer.slices(&[&head]).await;
        writer.connection.out = head;
        result
    } else {
        writer.body(exchange, body, core).await
    };
    let sent = writer.sent;
    exchange.bytes_sent = sent;
    exchange.body_bytes_sent = sent.saturating_sub(head_bytes);
    match result {
        Ok(()) => Sent::Whole,
        Err(Stop::TimedOut) => {
            error::request(
                exchange,
                Level::Info,
                "client timed out (110: Connection timed out) while sending response to client",
            );
            Sent::TimedOut
        }
        Err(Stop::Torn) => Sent::Torn,
        Err(Stop::Failed(problem)) => {
            let text = format!(
                "writev() failed ({}) while sending response to client",
                error::os_error(&problem)
            );
            error::request(exchange, Level::Info, &text);
            Sent::Failed
        }
    }
}

fn framing(exchange: &mut Exchange, response: &mut Response, core: &Conf) -> Framing {
    if response.status == 101 {
        exchange.keep_alive = false;
        response.content_length = None;
        return Framing::None;
    }
    if !has_content(response.status) {
        if response.status != 304 {
            response.content_length = None;
        }
        return Framing::None;
    }
    if exchange.request.method == Method::Head {
        return Framing::None;
    }
    if let Some(length) = response.body.length() {
        response.content_length = Some(length);
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
    let start = out.len();
    out.extend_from_slice(value);
    if memchr::memchr3(b'\r', b'\n', 0, &out[start..]).is_some() {
        out[start..]
            .iter_mut()
            .filter(|byte| matches!(byte, b'\r' | b'\n' | 0))
            .for_each(|byte| *byte = b' ');
    }
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
    out.extend_from_slice(b"HTTP/1.1 ");
    let _ = write!(out, "{:03} ", response.status);
    match &response.reason {
        Some(text) => out.extend_from_slice(text),
        None => out.extend_from_slice(reason(response.status).as_bytes()),
    }
    out.extend_from_slice(b"\r\n");
    if !response.has_own_server {
        line(out, b"Server", server_name(core.server_tokens).as_bytes());
    }
    if !response.has_own_date {
        line(out, b"Date", clock::now().http.as_bytes());
    }
    if !response.content_type.is_empty() {
        line(out, b"Content-Type", &response.content_type);
    }
    if let Some(length) = response.content_length.filter(|_| framing != Framing::Chunked) {
        let _ = write!(out, "Content-Length: {length}\r\n");
    }
    if let Some(time) = response.last_modified {
        line(out, b"Last-Modified", yorozu_http::date::format(time).as_bytes());
    }
    if let Some(location) = &response.location {
        line(out, b"Location", location);
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if response.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if exchange.keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        if let Some(timeout) = core.keepalive_timeout.header {
            let _ = write!(out, "Keep-Alive: timeout={}\r\n", timeout.as_secs());
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    if response.vary_encoding {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if !response.etag.is_empty() {
        line(out, b"ETag", &response.etag);
    }
    for (name, value) in response.all_fields() {
        line(out, name, value);
    }
    for (name, value) in &exchange.accel_fields {
        if response.field(name).is_none() && !name.eq_ignore_ascii_case(b"content-type") {
            line(out, name, value);
        }
    }
    if !response.trailers.is_empty() && framing == Framing::Chunked {
        for (name, _) in &response.trailers {
            line(out, b"Trailer", name);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Keeps for the logs what the head said.
fn keep_sent(exchange: &mut Exchange, response: Response, framing: Framing) {
    exchange.status = response.status;
    exchange.sent = SentHead {
        content_type: response.content_type,
        content_length: response.content_length,
        last_modified: response.last_modified,
        etag: response.etag,
        location: response.location.unwrap_or_default(),
        fields: response.fields,
        stored: response.stored,
        is_chunked: framing == Framing::Chunked,
        is_keep_alive: exchange.keep_alive,
        trailers: response.trailers,
    };
}

/// Bytes per second and bytes before the limit begins; `None` for no limit.
fn rate(exchange: &mut Exchange, core: &Conf) -> Option<(u64, u64)> {
    let size = |template: &crate::config::template::Template, exchange: &mut Exchange| {
        yorozu_conf::value::size(&template.value(exchange)).unwrap_or(0)
    };
    let rate = match exchange.limit_rate {
        Some(rate) => rate,
        None => size(&core.limit_rate.0, exchange),
    };
    (rate > 0).then(|| (rate, size(&core.limit_rate_after.0, exchange)))
}

enum Stop {
    Failed(io::Error),
    TimedOut,
    Torn,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

struct Writer<'a> {
    connection: &'a mut Connection,
    rate: Option<(u64, u64)>,
    begun: Instant,
    sent: u64,
    is_chunked: bool,
    send_timeout: Duration,
}

impl Writer<'_> {
    async fn body(&mut self, exchange: &mut Exchange, body: Body, core: &Conf) -> Result<(), Stop> {
        let head = std::mem::take(&mut self.connection.out);
        let result = match body {
            Body::Memory(bytes) => self.slices(&[&head, &bytes]).await,
            Body::Segments(segments) => Box::pin(self.segments(&head, &segments, core)).await,
            Body::Stream(stream) => Box::pin(self.stream(&head, exchange, *stream)).await,
            Body::Tunnel(_) => unreachable!("handled before"),
        };
        self.connection.out = head;
        result
    }

    /// Sends the head, then carries bytes both ways until one side ends.
    async fn tunnel(&mut self, exchange: &mut Exchange, tunnel: Tunnel) -> Result<(), Stop> {
        let head = std::mem::take(&mut self.connection.out);
        self.slices(&[&head]).await?;
        let early = std::mem::take(&mut exchange.body.unread);
        let carried = tunnel.carry(&self.connection.io, early).await;
        self.sent += carried.to_client;
        if carried.is_timed_out {
            let text =
                "upstream timed out (110: Connection timed out) while proxying upgraded connection";
            error::request(exchange, Level::Info, text);
        }
        Ok(())
    }

    /// Writes slices, all of them, within `send_timeout` per progress.
    async fn slices(&mut self, slices: &[&[u8]]) -> Result<(), Stop> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut done = 0;
        while done < total {
            let mut skip = done;
            let mut left = self.allowance().await;
            let mut parts = [IoSlice::new(b""); 4];
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
            let written =
                connection.timer.within(self.send_timeout, write).await.ok_or(Stop::TimedOut)??;
            if written == 0 {
                return Err(Stop::Failed(io::ErrorKind::WriteZero.into()));
            }
            done += written;
            self.sent += written as u64;
        }
        Ok(())
    }

    /// How much may be sent now; waits while `limit_rate` allows nothing.
    async fn allowance(&mut self) -> usize {
        let Some((rate, after)) = self.rate else { return usize::MAX };
        loop {
            // As nginx: one second's worth is allowed from the start.
            let seconds = self.begun.elapsed().as_secs() + 1;
            let allowed = rate.saturating_mul(seconds).saturating_add(after);
            if allowed > self.sent {
                return usize::try_from(allowed - self.sent).unwrap_or(usize::MAX);
            }
            let excess = self.sent - allowed + 1;
            tokio::time::sleep(Duration::from_millis(excess.saturating_mul(1000) / rate + 1)).await;
        }
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
            let written =
                connection.timer.within(self.send_timeout, write).await.ok_or(Stop::TimedOut)??;
            head = &head[written..];
            self.sent += written as u64;
        }
        Ok(())
    }

    async fn file(
        &mut self,
        file: &Arc<File>,
        mut at: u64,
        end: u64,
        core: &Conf,
    ) -> Result<(), Stop> {
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(self.allowance().await);
            if core.sendfile && self.connection.io.sends_files() {
                let count = left.min(match core.sendfile_max_chunk.bytes() {
                    0 => usize::MAX,
                    max => max,
                });
                let connection = &mut *self.connection;
                let send = connection.io.send_file(file, at, count);
                let sent = connection
                    .timer
                    .within(self.send_timeout, send)
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
        mut stream: crate::handlers::gateway::stream::Stream,
    ) -> Result<(), Stop> {
        let mut head = head;
        let mut announced = exchange.sent.content_length;
        if stream.is_waiting() {
            // The client may have the head while PHP works on the body.
            self.slices(&[std::mem::take(&mut head)]).await?;
        }
        let result = loop {
            match stream.next().await {
                Err(_) => break Err(Stop::Torn),
                Ok(None) => break Ok(()),
                Ok(Some(segment)) => {
                    if let Some(left) = &mut announced {
                        *left = left.saturating_sub(segment.bytes());
                    }
                    if let Err(stop) = self.piece(std::mem::take(&mut head), segment).await {
                        break Err(stop);
                    }
                }
            }
        };
        let totals = stream.totals();
        if let Some(attempt) = exchange.attempts.last_mut() {
            if totals.time > Duration::ZERO {
                attempt.response_time = Some(totals.time);
            }
            attempt.response_bytes = totals.body_bytes;
            attempt.bytes_received = totals.received;
        }
        if let Some(bytes) = stream.gzip_bytes {
            exchange.gzip_bytes = Some(bytes);
        }
        exchange.upstream_trailers.append(&mut stream.take_trailers());
        if exchange.conf.location(exchange.location).proxy.proxy_pass_trailers {
            exchange.sent.trailers.extend(exchange.upstream_trailers.iter().cloned());
        }
        result?;
        if announced.is_some_and(|left| left > 0) {
            return Err(Stop::Torn);
        }
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

    async fn piece(&mut self, head: &[u8], segment: Segment) -> Result<(), Stop> {
        let length = segment.bytes();
        if length == 0 {
            return self.slices(&[head]).await;
        }
        let bytes = match segment {
            Segment::Memory(bytes) => bytes,
            Segment::File(file, range) => {
                read_file(&file, range.start, usize::try_from(length).unwrap_or(usize::MAX)).await?
            }
        };
        if self.is_chunked {
            let size = format!("{length:x}\r\n");
            self.slices(&[head, size.as_bytes(), &bytes, b"\r\n"]).await
        } else {
            self.slices(&[head, &bytes]).await
        }
    }
}

/// Reads a part of a file: from the page cache if it is there, else on a thread that may block.
async fn read_file(file: &Arc<File>, at: u64, length: usize) -> Result<Bytes, Stop> {
    let mut buffer = vec![0; length];
    // Files of a page cache are nearly always in memory; a cold read moves to another thread.
    let read = file.read_at(&mut buffer, at)?;
    if read == length {
        return Ok(buffer.into());
    }
    let file = Arc::clone(file);
    let rest = tokio::task::spawn_blocking(move || {
        file.read_exact_at(&mut buffer[read..], at + read as u64).map(|()| buffer)
    });
    match rest.await {
        Ok(Ok(buffer)) => Ok(buffer.into()),
        _ => Err(Stop::Torn),
    }
}
