//! A body joins its response: whole, if it came with its head or right after it; else with a pump that reads on.

use super::Conf;
use super::fetch::Fetched;
use super::pace::Paced;
use super::pump::{self, PumpEnd, ReadAhead};
use super::store::Saver;
use crate::cache::Collector;
use crate::protocol::codec::CodecError;
use bytes::Bytes;
use std::time::{Duration, Instant};
use yorozu_kernel::base::spare::SpareLists;
use yorozu_kernel::base::turn;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::{Exchange, stream};
use yorozu_kernel::logging::error::{self, Context, Level};

/// Longest body whose end is waited for before its head is sent; chosen: a page in one write, which is
/// cheaper than a task that pumps it.
const GATHERED_BYTES_MAX: u64 = 64 * 1024;
/// How long it is waited for. An application that flushes a part and works on is not held up.
const GATHER_TIME: Duration = Duration::from_millis(2);

thread_local! {
    static PIECES: SpareLists<Bytes> = const { SpareLists::empty() };
}

/// Pieces of a body whose list the worker has room for again; chosen: those that were gathered are fewer.
const PIECES_USUAL: usize = 64;

/// Whether its length is known, and short.
fn is_short(response: &Response) -> bool {
    response.content_length.is_some_and(|length| length <= GATHERED_BYTES_MAX)
}

/// Those who keep what passes by.
pub struct StoreTargets {
    pub collector: Option<Box<Collector>>,
    pub saver: Option<Box<Saver>>,
}

impl StoreTargets {
    fn is_empty(&self) -> bool {
        self.collector.is_none() && self.saver.is_none()
    }
}

/// A body, as far as it has arrived.
pub struct ArrivingBody {
    fetched: Box<Fetched>,
    targets: StoreTargets,
    pieces: Vec<Bytes>,
    is_whole: Result<bool, CodecError>,
    has_no_content: bool,
    is_buffered: bool,
    /// `*_limit_rate`; 0 for none.
    rate: u64,
}

impl ArrivingBody {
    pub fn new(
        exchange: &mut Exchange,
        conf: &Conf,
        is_buffered: bool,
        mut fetched: Box<Fetched>,
        targets: StoreTargets,
    ) -> Self {
        let has_no_content = exchange.request.method == Method::Head && targets.is_empty();
        let is_limited = is_buffered && !has_no_content;
        let rate = if is_limited { conf.limit_rate.bytes(exchange) } else { 0 };
        let mut pieces = PIECES.with(SpareLists::take);
        pieces.extend(fetched.before.take());
        let is_whole = fetched.source.arrived(&mut pieces);
        Self { fetched, targets, pieces, is_whole, has_no_content, is_buffered, rate }
    }

    /// Waits for a short rest that comes right after the head.
    pub async fn gather(&mut self, response: &Response) {
        let source = &mut self.fetched.source;
        let may_wait = self.is_buffered
            && is_short(response)
            && self.rate == 0
            && !self.has_no_content
            && source.sending.is_done();
        if matches!(self.is_whole, Ok(false)) && may_wait {
            self.is_whole = Box::pin(source.gather(&mut self.pieces, GATHER_TIME)).await;
        }
    }

    /// Gives it to the response: whole, or with a pump that reads on. What is returned has all of it, and is to be
    /// finished.
    #[must_use]
    pub async fn attach(
        self,
        exchange: &mut Exchange,
        conf: &Conf,
        response: &mut Response,
    ) -> Option<Box<Saver>> {
        let Self { mut fetched, mut targets, mut pieces, is_whole, has_no_content, .. } = self;
        let Self { is_buffered, rate, .. } = self;
        if let Some(text) = fetched.source.codec.take_stderr() {
            log_stderr(exchange, &fetched, &text);
        }
        let free = room_beside_head(conf, &fetched, &pieces);
        let pace = (rate > 0).then(|| Paced::new(rate, &mut pieces, free));
        let is_held = pace.as_ref().is_some_and(Paced::holds);
        let is_whole = matches!(is_whole, Ok(true));
        if is_whole && !is_held {
            let Fetched { mut source, lease, started, .. } = *fetched;
            if !source.codec.may_be_stored() {
                (targets.collector, targets.saver) = (None, None);
            }
            // As nginx: content that is not wanted is none, and an end counts.
            let beside = (!has_no_content).then(|| source.codec.end_bytes());
            let saver = finish_whole(exchange, pieces, targets, response, (started, beside));
            place_trailers(exchange, source.codec.take_trailers(), response);
            lease.release(source.rest(true).await);
            return saver;
        }
        if has_no_content {
            // The content is not wanted; PHP may be cut short.
            fetched.end();
        } else {
            let memory_bytes_max =
                if is_buffered { conf.buffers.total() } else { conf.buffer_size.bytes() };
            let temp_bytes_max = conf.max_temp_file_size.0;
            let file = (is_buffered && temp_bytes_max > 0)
                .then(|| (conf.temp_path.0.clone(), temp_bytes_max));
            let read_timeout = conf.read_timeout;
            let ahead = ReadAhead { read_timeout, memory_bytes_max, file, pace, is_whole };
            start_pump(exchange, *fetched, targets, pieces, ahead, response);
        }
        None
    }
}

/// Logs what the application wrote for that behind its head.
fn log_stderr(exchange: &Exchange, fetched: &Fetched, text: &[u8]) {
    let text = format!("{} while reading upstream", fetched.source.codec.in_nginx_words(text));
    error::upstream(exchange, Level::Error, &text, || fetched.url.at(fetched.lease.peer().text()));
}

/// How much of a body nginx would have read with the head.
fn room_beside_head(conf: &Conf, fetched: &Fetched, pieces: &[Bytes]) -> usize {
    let body_bytes: usize = pieces.iter().map(Bytes::len).sum();
    let head_bytes = usize::try_from(fetched.received).unwrap_or(0).saturating_sub(body_bytes);
    conf.buffer_size.bytes().saturating_sub(head_bytes)
}

/// Leaves the rest of a body to a task that reads ahead of the client.
fn start_pump(
    exchange: &Exchange,
    fetched: Fetched,
    targets: StoreTargets,
    pieces: Vec<Bytes>,
    ahead: ReadAhead,
    response: &mut Response,
) {
    let Fetched { source, lease, started, received, url, .. } = fetched;
    let end = PumpEnd {
        collecting: targets.collector.map(|collector| collector.begin(response.content_length)),
        saver: targets.saver.map(|saver| *saver),
        context: Context::of(exchange),
        url,
        started,
        lease,
    };
    let stream = pump::start_with(pieces, source, ahead, end, received);
    response.body = Body::Stream(Box::new(stream));
}

/// Fields behind a body that is whole: to the client, if they are let.
fn place_trailers(exchange: &mut Exchange, trailers: Vec<(Bytes, Bytes)>, response: &mut Response) {
    if exchange.passes_trailer.is_some() && !trailers.is_empty() {
        response.content_length = None;
        let body = std::mem::replace(&mut response.body, Body::empty());
        response.body = Body::Stream(Box::new(stream::of_whole(body, trailers)));
    } else {
        exchange.upstream_trailers = trailers;
    }
}

/// Gives a body that is there to the response, and to those who keep it; a saver is to be finished. `beside`: bytes that count as
/// the upstream's answer with it; `None`: nor does the body.
fn finish_whole(
    exchange: &mut Exchange,
    mut pieces: Vec<Bytes>,
    targets: StoreTargets,
    response: &mut Response,
    (started, beside): (Instant, Option<usize>),
) -> Option<Box<Saver>> {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    if let Some(collector) = targets.collector {
        collector.store_whole(&pieces, turn::unix_seconds());
    }
    let mut saver = targets.saver;
    saver.take_if(|saver| !pieces.iter().all(|piece| saver.push(piece)));
    if let Some(attempt) = exchange.attempts.last_mut() {
        attempt.response_time = Some(turn::since(started));
        attempt.response_bytes = beside.map_or(0, |beside| (length + beside) as u64);
    }
    let body = match &mut pieces[..] {
        [] => Bytes::new(),
        [all] => std::mem::take(all),
        pieces => pieces.concat().into(),
    };
    PIECES.with(|lists| lists.give(pieces, PIECES_USUAL));
    let is_head = exchange.request.method == Method::Head;
    let announced = response.content_length;
    if announced.is_none() && !is_head && yorozu_http::status::has_content(response.status) {
        response.content_length = Some(length as u64);
    }
    response.body = Body::Memory(body);
    saver
}
