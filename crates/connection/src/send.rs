//! What sending a response has in common in all protocols.

use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use yorozu_http::status::has_content;
use yorozu_kernel::base::limits;
use yorozu_kernel::base::pace::Pace;
use yorozu_kernel::config::http_core::Conf;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::error_page::server_name;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Response, Segment};
use yorozu_kernel::exchange::stream::{Stream, Torn};
use yorozu_kernel::exchange::variables::decimal;
use yorozu_kernel::files::read;
use yorozu_kernel::logging::clock;
use yorozu_kernel::logging::error::{self, Level};

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

/// Why a body was not sent whole.
pub enum Stop {
    Failed(io::Error),
    TimedOut,
    Torn,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Torn> for Stop {
    fn from(Torn: Torn) -> Self {
        Self::Torn
    }
}

/// Logs why a response was not sent whole.
pub(super) fn outcome(exchange: &Exchange, result: Result<(), Stop>) -> Sent {
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

/// Whether the response has content. Sets its length if it is known.
pub(super) fn set_content_length(exchange: &Exchange, response: &mut Response) -> bool {
    if !has_content(response.status) {
        if response.status != 304 {
            response.content_length = None;
        }
        return false;
    }
    if exchange.request.method == Method::Head {
        return false;
    }
    if let Some(length) = response.body.length() {
        response.content_length = Some(length);
    }
    true
}

/// A field that [`Response`] keeps apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// `Name: `
    pub(super) start: &'static [u8],
    /// Whether its value is spelled by the server itself, and has no line end.
    pub(super) is_own: bool,
}

impl Apart {
    const fn own(start: &'static [u8]) -> Self {
        Self { start, is_own: true }
    }

    const fn of_others(start: &'static [u8]) -> Self {
        Self { start, is_own: false }
    }

    pub(super) fn name(self) -> &'static [u8] {
        &self.start[..self.start.len() - b": ".len()]
    }
}

/// The fields that [`Response`] keeps apart, in nginx's order, up to where the connection's stand.
#[inline]
pub(super) fn first_fields(
    response: &Response,
    has_length: bool,
    core: &Conf,
    mut put: impl FnMut(Apart, &[u8]),
) {
    if !response.has_own_server {
        put(Apart::own(b"Server: "), server_name(core.server_tokens).as_bytes());
    }
    if !response.has_own_date {
        put(Apart::own(b"Date: "), clock::now().http.as_bytes());
    }
    if !response.content_type.is_empty() {
        put(Apart::of_others(b"Content-Type: "), &response.content_type);
    }
    if let Some(length) = response.content_length.filter(|_| has_length) {
        put(Apart::own(b"Content-Length: "), decimal(length, &mut [0; 20]));
    }
    if let Some(time) = response.last_modified {
        put(Apart::own(b"Last-Modified: "), &yorozu_http::date::text(time));
    }
    if let Some(location) = &response.location {
        put(Apart::of_others(b"Location: "), location);
    }
}

/// The fields behind the connection's own.
pub(super) fn last_fields(response: &Response, mut put: impl FnMut(&[u8], &[u8])) {
    if response.vary_encoding {
        put(b"Vary", b"Accept-Encoding");
    }
    if !response.etag.is_empty() {
        put(b"ETag", &response.etag);
    }
    for (name, value) in response.all_fields() {
        put(name, value);
    }
    if let Some(age) = response.age {
        put(b"Age", decimal(age, &mut [0; 20]));
    }
}

/// Keeps for the logs what the head said.
pub(super) fn keep_sent(exchange: &mut Exchange, response: Response, is_chunked: bool) {
    exchange.status = response.status;
    // One by one: as a whole it would be made, moved, and another one dropped.
    let sent = &mut exchange.sent;
    sent.content_type = response.content_type;
    sent.content_length = response.content_length;
    sent.last_modified = response.last_modified;
    sent.etag = response.etag;
    sent.location = response.location.unwrap_or_default();
    sent.age = response.age;
    sent.fields = response.fields;
    sent.stored = response.stored;
    sent.is_chunked = is_chunked;
    sent.is_keep_alive = exchange.keep_alive;
    sent.trailers.clear();
    sent.has_trailers = response.has_trailers;
    sent.is_made = true;
}

/// How fast a body may be sent (`limit_rate`).
#[derive(Default)]
pub(super) struct Limit {
    /// `None` for no limit.
    pace: Option<Pace>,
}

impl Limit {
    pub(super) fn of(exchange: &mut Exchange, core: &Conf) -> Self {
        Self { pace: rate(exchange, core).map(|(rate, after)| Pace::new(rate, after)) }
    }

    /// Whether there is no limit.
    pub(super) fn is_free(&self) -> bool {
        self.pace.is_none()
    }

    /// How much may be sent now; waits while `limit_rate` allows nothing.
    pub(super) async fn allowance(&self, sent: u64) -> usize {
        match &self.pace {
            Some(pace) => pace.due(sent).await,
            None => usize::MAX,
        }
    }
}

/// Bytes per second and bytes before the limit begins; `None` for no limit.
fn rate(exchange: &mut Exchange, core: &Conf) -> Option<(u64, u64)> {
    // As most locations have it: nothing has to be computed.
    if exchange.limit_rate.is_none() && core.limit_rate.0.is_text(b"0") {
        return None;
    }
    let rate = match exchange.limit_rate {
        Some(rate) => rate,
        None => {
            let rate = core.limit_rate.bytes(exchange);
            // As nginx: `$limit_rate` says it from now on.
            *exchange.limit_rate.insert(rate)
        }
    };
    (rate > 0).then(|| (rate, core.limit_rate_after.bytes(exchange)))
}

/// Notes the outcome of a body that came while it was sent.
pub(super) fn note_stream(exchange: &mut Exchange, stream: &mut Stream) {
    let totals = stream.totals();
    if let Some(attempt) = exchange.attempts.last_mut() {
        if totals.time > Duration::ZERO {
            attempt.response_time = Some(totals.time);
        }
        attempt.response_bytes = totals.body_bytes;
        attempt.bytes_received = totals.received;
    }
    if let Some(bytes) = stream.coded_bytes {
        exchange.coded_bytes = Some(bytes);
    }
    exchange.upstream_trailers.append(&mut stream.take_trailers());
    if let Some(passes) = exchange.passes_trailer {
        let is_passed = |(name, _): &&(Bytes, Bytes)| passes(exchange, name);
        let passed: Vec<_> = exchange.upstream_trailers.iter().filter(is_passed).cloned().collect();
        exchange.sent.trailers.extend(passed);
    }
    let add_trailers = exchange.conf.engine.add_trailers;
    add_trailers(exchange);
}

/// As [`read::read`]; a file that ends too early is a body that is torn.
pub async fn read_file(file: &Arc<File>, at: u64, length: usize) -> Result<Bytes, Stop> {
    read::read(file, at, length).await.map_err(|problem| match problem.kind() {
        io::ErrorKind::UnexpectedEof => Stop::Torn,
        _ => Stop::Failed(problem),
    })
}

/// How a stream of HTTP/2 or HTTP/3 sends content.
pub(super) trait Pieces {
    /// Sends a piece as the client takes it and `limit_rate` allows.
    async fn piece(&mut self, exchange: &mut Exchange, bytes: Bytes) -> Result<(), Stop>;

    /// The same of one that may be in a file.
    async fn segment(&mut self, exchange: &mut Exchange, segment: Segment) -> Result<(), Stop>;

    /// Returns when the client does not want the response any more.
    async fn given_up(&self);
}

/// Sends content that comes piece by piece.
pub(super) async fn stream(
    to: &mut impl Pieces,
    exchange: &mut Exchange,
    mut stream: Stream,
) -> Result<(), Stop> {
    stream.announced = exchange.sent.content_length;
    let result = pieces(to, exchange, &mut stream).await;
    note_stream(exchange, &mut stream);
    result
}

async fn pieces(
    to: &mut impl Pieces,
    exchange: &mut Exchange,
    stream: &mut Stream,
) -> Result<(), Stop> {
    loop {
        let next = tokio::select! {
            biased;
            next = stream.next() => next?,
            () = to.given_up() => {
                return Err(Stop::Failed(io::ErrorKind::ConnectionReset.into()));
            }
        };
        match next {
            None => return Ok(()),
            Some(Segment::Memory(bytes)) if bytes.len() < limits::H2_SMALL_BYTES => {
                let (bytes, after) = gather(bytes, stream).await;
                to.piece(exchange, bytes).await?;
                match after.transpose()? {
                    Some(Some(segment)) => to.segment(exchange, segment).await?,
                    Some(None) => return Ok(()),
                    None => {}
                }
            }
            Some(segment) => to.segment(exchange, segment).await?,
        }
    }
}

/// Joins a small piece with those that are there already behind it, or will be once the tasks that are ready have run:
/// clients take many small frames for an attack. With what came in the place of one that can be joined.
async fn gather(
    first: Bytes,
    stream: &mut Stream,
) -> (Bytes, Option<Result<Option<Segment>, Torn>>) {
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
