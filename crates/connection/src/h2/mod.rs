//! One HTTP/2 connection: streams in, responses out, many at a time. The protocol is the `h2`
//! crate's; here are the server's bounds on it, and the way between a stream and an exchange.

mod directives;
mod io;
mod request;
mod write;

pub use directives::{Conf, DIRECTIVES, Draft, OTHERS};

use super::head::{Bounds, Refusal};
use super::respond::{self, Answer, Begun, log};
use super::send::Sent;
use super::{ConnectionHandle, current_conf, default_core, first_core, rules};
use bytes::{Bytes, BytesMut};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::HeaderMap;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use yorozu_kernel::base::counters::{COUNTERS, Counted};
use yorozu_kernel::base::{limits, tasks};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::engine::Host;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::{Ended, Frames, Interim, RequestSource, Reset};
use yorozu_kernel::exchange::{Client, Exchange};
use yorozu_kernel::logging::error::Level;
use yorozu_upstream::Gauge;

/// The module.
pub const MODULE: Module =
    Module::new("http_v2", || [DIRECTIVES, OTHERS].concat()).with(&[silent::<Draft>]);

/// What a client begins with that speaks HTTP/2 without being asked (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream's way back, before its response begins.
pub struct ResponseHandle {
    respond: RefCell<SendResponse<Bytes>>,
    /// Whether the response has begun: then its sender notices that the client gives up.
    is_begun: Cell<bool>,
}

impl std::fmt::Debug for ResponseHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ResponseHandle").field(&self.respond.borrow().stream_id()).finish()
    }
}

impl RequestSource for ResponseHandle {
    fn closed(&self) -> Ended<'_> {
        Box::pin(poll_fn(|context| {
            // The library takes the question for an error later.
            if self.is_begun.get() {
                return Poll::Pending;
            }
            self.respond.borrow_mut().poll_reset(context).map(|_| ())
        }))
    }

    fn interim<'a>(
        &'a self,
        what: Interim<'a>,
        _timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<()>> + 'a>> {
        // The library queues it.
        if let Interim::EarlyHints(fields) = what {
            let mut response = http::Response::new(());
            *response.status_mut() = http::StatusCode::EARLY_HINTS;
            write::put_all(response.headers_mut(), fields);
            let _ = self.respond.borrow_mut().send_informational(response);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The body of a request, as the library hands it out.
#[derive(Debug)]
struct DataFrames(RecvStream);

impl Frames for DataFrames {
    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Reset>>> {
        self.0.poll_data(context).map(|frame| {
            frame.map(|frame| {
                let piece = frame.map_err(|_| Reset)?;
                let _ = self.0.flow_control().release_capacity(piece.len());
                Ok(piece)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// What the streams of a connection share.
struct Streams {
    client: Rc<Client>,
    handle: Rc<ConnectionHandle>,
    stall: Rc<io::Stall>,
    /// Streams whose response is not over.
    active: Cell<usize>,
    /// While there is one.
    counted: Cell<Option<Counted>>,
    /// Streams the client gave up.
    resets: Cell<u64>,
}

/// Counts a stream while it lives.
struct Active {
    streams: Rc<Streams>,
    _counted: Counted,
}

impl Active {
    fn new(streams: &Rc<Streams>) -> Self {
        let before = streams.active.get();
        streams.active.set(before + 1);
        if before == 0 {
            streams.counted.set(Some(Gauge::take(&COUNTERS.with_streams)));
        }
        streams.handle.is_idle.set(false);
        Self { streams: Rc::clone(streams), _counted: Gauge::take(&COUNTERS.streams) }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let left = self.streams.active.get() - 1;
        self.streams.active.set(left);
        if left == 0 {
            self.streams.counted.set(None);
        }
    }
}

/// Serves a connection to its end; `early` is what was read of it.
pub async fn serve(
    handle: Rc<ConnectionHandle>,
    client: Rc<Client>,
    worker: Rc<dyn Host>,
    early: BytesMut,
) {
    let Some(conf) = current_conf(&client, &worker) else { return };
    let listen = client.listen.get();
    let core = default_core(&conf, listen);
    let (timeout, keepalive_timeout) = (core.client_header_timeout, core.keepalive_timeout.timeout);
    let builder = builder(&conf, &client);
    // Each request takes its own.
    drop(conf);
    let stall = Rc::new(io::Stall::default());
    let io = io::Stream::new(Rc::clone(&handle.io), early, Rc::clone(&stall));
    let shaken = tokio::time::timeout(timeout, builder.handshake(io)).await;
    let Ok(Ok(connection)) = shaken else { return };
    let (active, counted, resets) = (Cell::new(0), Cell::new(None), Cell::new(0));
    let streams = Rc::new(Streams { client, handle, stall, active, counted, resets });
    let loop_ = Loop {
        connection,
        streams,
        worker,
        sleep: Box::pin(tokio::time::sleep(keepalive_timeout)),
        stalled: None,
        quiet_since: None,
        is_ending: false,
        is_agreed: false,
        opened: Instant::now(),
    };
    loop_.run().await;
}

/// The library's bounds, by the default server of the socket.
fn builder(conf: &WorkerConf, client: &Client) -> Builder {
    let server = match client.tls.get() {
        Some(session) => session.server(),
        None => conf.sockets[client.listen.get()].default_server,
    };
    let server = conf.server(server);
    let settings = conf.location(server.conf);
    let bounds = Bounds::of_h2(settings.http_core());
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let window =
        number(settings.of::<Conf>().http2_body_preread_size.bytes()).min(limits::H2_WINDOW_MAX);
    let mut builder = Builder::new();
    builder
        .initial_window_size(window)
        .initial_connection_window_size(limits::H2_WINDOW_MAX)
        .max_concurrent_streams(
            u32::try_from(settings.of::<Conf>().http2_max_concurrent_streams).unwrap_or(u32::MAX),
        )
        // The library counts 32 bytes more for each field; the bound itself is ours.
        .max_header_list_size(number(bounds.head_bytes_max).saturating_mul(2))
        .max_send_buffer_size(limits::H2_SEND_BYTES);
    builder
}

/// What happens next on a connection.
enum Event {
    Request(Box<(http::Request<RecvStream>, SendResponse<Bytes>)>),
    /// The client was silent for `keepalive_timeout`.
    Silent,
    /// The server stops, or has another configuration.
    Drain,
    /// The client took nothing for `send_timeout`.
    Stalled,
    /// It is over.
    End,
    /// It is over as it was agreed: the client may not have read all of it.
    Drained,
}

struct Loop {
    connection: Connection<io::Stream, Bytes>,
    streams: Rc<Streams>,
    worker: Rc<dyn Host>,
    sleep: Pin<Box<Sleep>>,
    /// Bounds how long the client may take nothing; most never need it.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Since when there is no stream.
    quiet_since: Option<Instant>,
    /// Whether GOAWAY was sent: no further stream is answered.
    is_ending: bool,
    /// Whether it was sent without an error.
    is_agreed: bool,
    opened: Instant,
}

/// Reads on for a while after the last frame, as over HTTP/1: what the client sends meanwhile, as the room that
/// the last answers took, would reset the connection and could take their end from it.
async fn linger(streams: &Streams, worker: &Rc<dyn Host>) {
    let Some(conf) = current_conf(&streams.client, worker) else { return };
    let core = default_core(&conf, streams.client.listen.get());
    let io = &streams.handle.io;
    io.shutdown(Shutdown::Write);
    let mut skipped = BytesMut::new();
    let read = async {
        while io.read(&mut skipped).await.is_ok_and(|count| count > 0) {
            skipped.clear();
        }
    };
    // A client that has all of it closes: the wait is short.
    let _ = tokio::time::timeout(core.lingering_timeout, read).await;
}

impl Loop {
    async fn run(mut self) {
        let changed = Rc::clone(&self.worker).changed();
        let mut changed = std::pin::pin!(changed);
        loop {
            let event = poll_fn(|context| {
                if let Poll::Ready(event) = self.poll(context) {
                    return Poll::Ready(event);
                }
                if !self.is_ending && changed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Event::Drain);
                }
                Poll::Pending
            });
            match event.await {
                Event::Request(stream) => {
                    let (request, respond) = *stream;
                    if !self.begin(request, respond) {
                        return;
                    }
                }
                Event::Silent if self.is_ending => return,
                Event::Silent | Event::Drain => self.end(),
                Event::Stalled => return self.give_up(),
                Event::End => return,
                Event::Drained => {
                    let (streams, worker) = (Rc::clone(&self.streams), Rc::clone(&self.worker));
                    // What the library still holds of the connection goes first.
                    drop(self);
                    return Box::pin(linger(&streams, &worker)).await;
                }
            }
        }
    }

    /// Tells the client to go; what has begun is finished.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.is_ending, true) {
            (self.is_agreed, self.quiet_since) = (true, None);
            self.connection.graceful_shutdown();
        }
    }

    /// Ends the connection of a client that asks too much.
    fn refuse(&mut self) {
        (self.is_agreed, self.is_ending) = (false, true);
        self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match self.connection.poll_accept(context) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                return Poll::Ready(Event::Request(Box::new((request, respond))));
            }
            Poll::Ready(Some(Err(problem))) => {
                self.note(&problem);
                return Poll::Ready(Event::End);
            }
            Poll::Ready(None) if self.is_agreed => return Poll::Ready(Event::Drained),
            Poll::Ready(None) => return Poll::Ready(Event::End),
            Poll::Pending => {}
        }
        if self.poll_stalled(context).is_ready() {
            return Poll::Ready(Event::Stalled);
        }
        if self.streams.active.get() > 0 {
            self.quiet_since = None;
            return Poll::Pending;
        }
        if self.quiet_since.is_none() {
            let Some(timeout) = self.idle_timeout() else { return Poll::Ready(Event::End) };
            let now = Instant::now();
            self.quiet_since = Some(now);
            self.streams.handle.is_idle.set(!self.is_ending);
            self.sleep.as_mut().reset(now + timeout);
        }
        self.sleep.as_mut().poll(context).map(|()| Event::Silent)
    }

    /// Ready when the client has taken nothing for `send_timeout`, even if it asked for more.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(since) = self.streams.stall.since() else { return Poll::Pending };
        let Some(conf) = current_conf(&self.streams.client, &self.worker) else {
            return Poll::Ready(());
        };
        let timeout = default_core(&conf, self.streams.client.listen.get()).send_timeout;
        let end = since + timeout;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if sleep.deadline() != end {
            sleep.as_mut().reset(end);
        }
        sleep.as_mut().poll(context)
    }

    /// Ends the connection with all its streams: what waits for the client goes with them.
    fn give_up(self) {
        self.streams.stall.time_out();
        let client = &self.streams.client;
        let Some(conf) = current_conf(client, &self.worker) else { return };
        let text =
            "client timed out (110: Connection timed out) while processing HTTP/2 connection";
        conf.error_log.connection(Level::Info, client, text);
        if default_core(&conf, client.listen.get()).reset_timedout_connection {
            self.streams.handle.io.reset_on_close();
        }
    }

    /// How long the client may have no stream; `None` without a configuration for its socket.
    fn idle_timeout(&self) -> Option<Duration> {
        let conf = current_conf(&self.streams.client, &self.worker)?;
        let core = default_core(&conf, self.streams.client.listen.get());
        Some(if self.is_ending {
            core.lingering_timeout
        } else if self.streams.client.requests.get() == 0 {
            core.client_header_timeout
        } else {
            core.keepalive_timeout.timeout
        })
    }

    fn note(&self, problem: &h2::Error) {
        // A client that is gone is not worth a line.
        if problem.is_io() {
            return;
        }
        if let Some(conf) = current_conf(&self.streams.client, &self.worker) {
            let text = format!("client sent invalid HTTP/2 frames ({problem})");
            conf.error_log.connection(Level::Info, &self.streams.client, &text);
        }
    }

    /// Begins to answer a request; `false` if the connection is over.
    fn begin(&mut self, request: http::Request<RecvStream>, respond: SendResponse<Bytes>) -> bool {
        let client = Rc::clone(&self.streams.client);
        let Some(conf) = current_conf(&client, &self.worker) else { return false };
        client.requests.set(client.requests.get() + 1);
        self.bound(&conf);
        let active = Active::new(&self.streams);
        let core = first_core(&conf, &client);
        let (parts, frames) = request.into_parts();
        let bounds = Bounds::of_h2(core);
        if request::is_too_large(&parts, &bounds) {
            let text = "client exceeded \"large_client_header_buffers\" limit";
            conf.error_log.connection(Level::Info, &client, text);
            self.refuse();
            return true;
        }
        let (mut request, mut refusal) = request::read(&parts, &bounds);
        if let Some(bounds) = rules::of_server(&conf, &client, &request, &bounds) {
            (request, refusal) = request::read(&parts, &bounds);
        }
        request.is_chunked = request.content_length.is_none() && !frames.is_end_stream();
        let back =
            Rc::new(ResponseHandle { respond: RefCell::new(respond), is_begun: Cell::new(false) });
        let frames =
            (!frames.is_end_stream()).then(|| Box::new(DataFrames(frames)) as Box<dyn Frames>);
        let source = Rc::clone(&back) as Rc<dyn RequestSource>;
        let body = RequestBody::of_stream(source, frames, request.content_length);
        COUNTERS.requests.fetch_add(1, Ordering::Relaxed);
        let exchange = Exchange::new(conf, client, request, body);
        let stream = Stream { exchange, back, active, _writing: Gauge::take(&COUNTERS.writing) };
        // A panic ends the one stream, as it does in its own task.
        if let Ok(Some(rest)) = tasks::guard(|| stream.start(refusal)) {
            tasks::of_request(rest);
        }
        true
    }

    /// Ends a connection that has had its share, or floods.
    fn bound(&mut self, conf: &WorkerConf) {
        let client = &self.streams.client;
        let core = default_core(conf, client.listen.get());
        let requests = client.requests.get();
        let resets = self.streams.resets.get();
        if resets > limits::H2_RESETS_MIN && resets > requests / 2 {
            let text = "client sent too many RST_STREAM frames";
            conf.error_log.connection(Level::Info, client, text);
            self.refuse();
        } else if requests >= core.keepalive_requests
            || self.opened.elapsed() >= core.keepalive_time
            || core.keepalive_timeout.timeout.is_zero()
        {
            self.end();
        }
    }
}

/// One request and its response.
struct Stream {
    exchange: Exchange,
    back: Rc<ResponseHandle>,
    active: Active,
    _writing: Counted,
}

impl Stream {
    /// Answers at once if nothing has to be waited for; else the rest of the work.
    fn start(mut self, refusal: Option<Refusal>) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        match respond::begin(&mut self.exchange, refusal) {
            Begun::Waits(pending) => Some(Box::pin(async move {
                let answer = respond::wait(&mut self.exchange, pending).await;
                if let Some(rest) = self.send(answer) {
                    rest.await;
                }
            })),
            Begun::Done(answer) => self.send(answer),
        }
    }

    fn send(mut self, answer: Answer) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let response = match answer {
            Ok(response) => *response,
            Err(status) => {
                self.exchange.status = status;
                self.back.respond.borrow_mut().send_reset(Reason::CANCEL);
                self.finish(Sent::Failed);
                return None;
            }
        };
        let stall = &self.active.streams.stall;
        self.back.is_begun.set(true);
        match write::begin(&mut self.exchange, &self.back.respond, response, stall) {
            write::Begun::Done(sent) => {
                self.finish(sent);
                None
            }
            write::Begun::Waits(rest) => Some(Box::pin(async move {
                let sent = rest.run(&mut self.exchange).await;
                self.finish(sent);
            })),
        }
    }

    fn finish(mut self, sent: Sent) {
        self.exchange.is_complete = sent == Sent::Whole;
        if sent == Sent::Failed {
            let resets = &self.active.streams.resets;
            resets.set(resets.get() + 1);
        }
        log(&mut self.exchange);
        let body = std::mem::replace(&mut self.exchange.body, RequestBody::none());
        if !body.is_finished() && !body.is_lent() {
            // Kept for a moment: what is wrong with the rest of the request is still reported, and a
            // client that is about to end it is not cut short.
            tasks::of_request(async move {
                tokio::time::sleep(limits::H2_LINGERING).await;
                drop(body);
            });
        }
    }
}

/// Fields of a map that HTTP/2 forbids are left out (RFC 9113, section 8.2.2).
fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] =
        [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Fields of a request or response.
type Fields = HeaderMap;
