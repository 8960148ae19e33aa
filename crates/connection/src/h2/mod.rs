//! One HTTP/2 connection: streams in, responses out, many at a time.
//!
//! | file | what it has |
//! | --- | --- |
//! | `incoming.rs` | the client's frames |
//! | `streams/` | states and windows of streams |
//! | `out.rs` | frames that wait to be sent |
//! | `stream.rs` | one request and its response |
//! | `write.rs` | from a response to frames |
//!
//! Frames and fields themselves are `yorozu_wire::h2`'s.

mod directives;
mod incoming;
mod out;
mod stream;
mod streams;
mod write;

pub use directives::{Conf, DIRECTIVES, Draft, OTHERS};
pub use yorozu_wire::h2::frame::PREFACE;

use super::fields::{self, FieldList};
use super::head::Bounds;
use super::times::Times;
use super::{ConnectionHandle, Stage, current_conf, first_core, rules};
use bytes::BytesMut;
use incoming::{Block, Incoming};
use std::future::poll_fn;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use stream::Stream;
use streams::{Known, Streams};
use tokio::time::{Instant, Sleep};
use yorozu_kernel::base::counters::{self, Counted, Happened, Present};
use yorozu_kernel::base::{limits, tasks, turn};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::engine::Host;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::source::{Frames, Interim, RequestSource};
use yorozu_kernel::exchange::{Client, Exchange};
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error::Level;
use yorozu_wire::h1::Version;
use yorozu_wire::h2::frame::{Code, WINDOW_BYTES, WINDOW_MAX};
use yorozu_wire::h2::hpack::Stop;

/// The module.
pub const MODULE: Module =
    Module::new("http_v2", || [DIRECTIVES, OTHERS].concat()).with(&[silent::<Draft>]);

/// Heads and reads of one connection in a row; chosen: all streams of a usual client.
const STEPS_MAX: u32 = 128;

/// A stream's client.
#[derive(Debug)]
struct Asker {
    streams: Rc<Streams>,
    id: u32,
}

impl RequestSource for Asker {
    fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        self.streams.poll_reset(self.id, context)
    }

    fn interim<'a>(
        &'a self,
        what: Interim<'a>,
        _timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<()>> + 'a>> {
        // It waits with all else that does; a client that takes nothing gets none.
        if let (Interim::EarlyHints(fields), false) = (what, self.streams.is_busy()) {
            // A client that is gone is noticed by who answers it.
            let _ = self.streams.send_fields(self.id, Some(103), false, |block| {
                fields.iter().for_each(|(name, value)| block.put(name, value));
            });
        }
        Box::pin(std::future::ready(Ok(())))
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
    let (streams, incoming, told) = begin(&conf, &client, early);
    let latest = Latest::of(&conf, &client);
    // Each request takes its own.
    drop(conf);
    let loop_ = Loop {
        incoming,
        streams,
        told,
        client,
        handle,
        worker,
        latest,
        fields: FieldList::default(),
        sleep: None,
        stalled: None,
        quiet_since: None,
        has_asked: false,
        end: End::Open,
        lingers: true,
        steps: 0,
        opened: Instant::now(),
    };
    loop_.run().await;
}

/// Both sides of a connection, with the bounds of the server that its handshake named, else of the socket's default server.
fn begin(
    conf: &WorkerConf,
    client: &Client,
    early: BytesMut,
) -> (Rc<Streams>, Incoming, ToldBounds) {
    let server = find_config::first_server(conf, client);
    let settings = conf.location(conf.server(server).conf);
    let own = settings.of::<Conf>();
    let room = i64::try_from(own.http2_body_preread_size.bytes()).unwrap_or(WINDOW_MAX);
    let streams_max = u32::try_from(own.http2_max_concurrent_streams).unwrap_or(u32::MAX);
    let streams = Rc::new(Streams::new(room.min(WINDOW_MAX), streams_max));
    let block_bytes_max = Bounds::of_streams(settings.http_core()).head_bytes_max;
    let incoming = Incoming::new(early, Rc::clone(&streams), block_bytes_max);
    (streams, incoming, ToldBounds { streams_max, room })
}

/// What the client was told in our settings: it counts on that, whatever a server of its requests or a later configuration says.
#[derive(Clone, Copy, Debug)]
struct ToldBounds {
    streams_max: u32,
    /// How much of a body it may send before that is read.
    room: i64,
}

/// What happens next on a connection.
enum Event {
    Fields(Block),
    /// The client broke the protocol.
    Broken(Code, &'static str),
    /// The client was silent for `keepalive_timeout`.
    Silent,
    /// The server stops, or has another configuration.
    Drain,
    /// The client knows that the connection ends, or had time to.
    Told,
    /// The client took nothing for `send_timeout`.
    Stalled,
    /// The client is gone.
    Gone,
    /// All is said: the client may not have read all of it.
    Drained,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Open,
    /// A first GOAWAY was sent, which names no stream: what the client begins before it knows is answered.
    Announced {
        until: Instant,
    },
    /// GOAWAY was sent: no further stream is answered.
    Agreed,
    /// It was sent for an error: nothing is read any more.
    Over,
}

/// What the newest configuration that had the connection's socket says: it holds to the end of a connection that has none any more.
struct Latest {
    /// Not kept for that.
    conf: Weak<WorkerConf>,
    bounds: Bounds,
    times: Times,
}

impl Latest {
    fn of(conf: &Rc<WorkerConf>, client: &Client) -> Self {
        Self {
            conf: Rc::downgrade(conf),
            bounds: Bounds::of_streams(first_core(conf, client)),
            times: Times::of(conf, client),
        }
    }
}

struct Loop {
    incoming: Incoming,
    streams: Rc<Streams>,
    client: Rc<Client>,
    handle: Rc<ConnectionHandle>,
    worker: Rc<dyn Host>,
    told: ToldBounds,
    latest: Latest,
    /// Those of the head that is read; kept for its allocation.
    fields: FieldList,
    /// Bounds how long there may be no stream, and how long the client may take to know of the end.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Bounds how long the client may take nothing; most never need it.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Since when there is no stream, and nothing waits to be sent.
    quiet_since: Option<Instant>,
    /// Whether there was a request since the last look.
    has_asked: bool,
    end: End,
    /// Whether the client has time to read the last frame.
    lingers: bool,
    /// What was done since others had their turn.
    steps: u32,
    opened: Instant,
}

/// Reads on for a while after the last frame, as over HTTP/1: what the client sends meanwhile, as the room that
/// the last answers took, would reset the connection and could take their end from it.
async fn linger(handle: &ConnectionHandle, timeout: Duration) {
    let io = &handle.io;
    io.shutdown(Shutdown::Write);
    let mut skipped = BytesMut::new();
    let read = async {
        while io.read(&mut skipped).await.is_ok_and(|count| count > 0) {
            skipped.clear();
        }
    };
    // A client that has all of it closes: the wait is short.
    let _ = tokio::time::timeout(timeout, read).await;
}

/// Notes what a client did that ends its connection, or a stream.
fn log(client: &Client, worker: &Rc<dyn Host>, text: &str) {
    if let Some(conf) = current_conf(client, worker) {
        let text = format!("{text} while processing HTTP/2 connection");
        conf.error_log.connection(Level::Info, client, &text);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.streams.close();
    }
}

impl Loop {
    async fn run(mut self) {
        let changed = Rc::clone(&self.worker).changed();
        let mut changed = std::pin::pin!(changed);
        loop {
            let event = poll_fn(|context| {
                if let Poll::Ready(event) = self.poll(context) {
                    self.streams.unregister();
                    return Poll::Ready(event);
                }
                if self.end == End::Open && changed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Event::Drain);
                }
                Poll::Pending
            });
            match event.await {
                Event::Fields(block) => self.fields(&block),
                Event::Broken(code, text) => self.refuse(code, text),
                Event::Silent if self.end != End::Open => return,
                Event::Silent | Event::Told => self.end(),
                Event::Drain => self.announce_end(),
                Event::Stalled => return self.give_up(),
                Event::Gone => return,
                Event::Drained if !self.lingers => return,
                Event::Drained => {
                    let timeout = self.times().lingering;
                    let handle = Rc::clone(&self.handle);
                    drop(self);
                    return Box::pin(linger(&handle, timeout)).await;
                }
            }
        }
    }

    /// The worker's configuration; `None` if it no longer has this connection's socket.
    fn conf(&mut self) -> Option<Rc<WorkerConf>> {
        let conf = self.worker.conf();
        if std::ptr::eq(self.latest.conf.as_ptr(), Rc::as_ptr(&conf)) {
            return Some(conf);
        }
        let conf = current_conf(&self.client, &self.worker)?;
        self.latest = Latest::of(&conf, &self.client);
        Some(conf)
    }

    fn times(&mut self) -> Times {
        let _ = self.conf();
        self.latest.times
    }

    /// Tells a client to go that may be about to begin a stream. One without streams is told as nginx tells it, and one whose
    /// socket is gone at once: nothing could answer that stream.
    fn announce_end(&mut self) {
        if self.streams.count() == 0 || self.conf().is_none() {
            return self.end();
        }
        self.end = End::Announced { until: Instant::now() + limits::H2_FAREWELL };
        self.streams.announce_end();
    }

    /// Tells the client to go; what has begun is finished.
    fn end(&mut self) {
        if self.is_open() {
            (self.end, self.quiet_since) = (End::Agreed, None);
            self.streams.go_away(Code::NO_ERROR);
        }
    }

    /// Whether the first GOAWAY was sent, and not the last one.
    fn is_announced(&self) -> bool {
        matches!(self.end, End::Announced { .. })
    }

    /// Whether new streams are answered.
    fn is_open(&self) -> bool {
        self.end == End::Open || self.is_announced()
    }

    /// Ends the connection of a client that breaks the protocol, or asks too much.
    fn refuse(&mut self, code: Code, text: &str) {
        log(&self.client, &self.worker, text);
        if self.end != End::Over {
            self.end = End::Over;
            // One that asks too much is not waited for.
            self.lingers = code != Code::ENHANCE_YOUR_CALM;
            self.streams.go_away(code);
            self.streams.close();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.streams.register(context);
        loop {
            let was_full = self.streams.is_full();
            if self.end != End::Over && self.has_steps() && !was_full {
                let (client, worker) = (&self.client, &self.worker);
                let note = |stream: u32, text: &str| {
                    log(client, worker, &format!("{text} (stream {stream})"));
                };
                match self.incoming.next(note) {
                    Ok(_) if self.is_flooding() => {
                        let text = "client sent too many RST_STREAM frames";
                        return Poll::Ready(Event::Broken(Code::ENHANCE_YOUR_CALM, text));
                    }
                    Ok(Some(block)) => {
                        self.steps += 1;
                        return Poll::Ready(Event::Fields(block));
                    }
                    Ok(None) if self.is_announced() && self.incoming.knows_end => {
                        return Poll::Ready(Event::Told);
                    }
                    Ok(None) => {}
                    Err((code, text)) => return Poll::Ready(Event::Broken(code, text)),
                }
            }
            let sent = self.streams.poll_send(context, &self.handle.io);
            if matches!(sent, Poll::Ready(Err(_))) {
                return Poll::Ready(Event::Gone);
            }
            let has_ended = self.end == End::Agreed && self.streams.count() == 0;
            if sent.is_ready() && (has_ended || self.end == End::Over) {
                return Poll::Ready(Event::Drained);
            }
            if self.end == End::Over || self.streams.is_full() {
                break;
            }
            if was_full {
                continue;
            }
            if !self.has_steps() {
                // Others' turn.
                self.steps = 0;
                context.waker().wake_by_ref();
                break;
            }
            match self.handle.io.poll_read_at_most(context, self.incoming.buffer(), usize::MAX) {
                Poll::Ready(Ok(count)) if count > 0 => self.steps += 1,
                Poll::Ready(_) => return Poll::Ready(Event::Gone),
                Poll::Pending => {
                    self.steps = 0;
                    break;
                }
            }
        }
        self.poll_times(context)
    }

    /// Whether it may go on: a client that is never done must not hold up others. Counts heads and reads.
    fn has_steps(&self) -> bool {
        self.steps < STEPS_MAX
    }

    fn poll_times(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if self.poll_stalled(context).is_ready() {
            return Poll::Ready(Event::Stalled);
        }
        if let End::Announced { until } = self.end {
            return self.poll_until(until, context).map(|()| Event::Told);
        }
        // An answer that is made is under way until it is sent: `send_timeout` bounds that.
        let has_asked = std::mem::take(&mut self.has_asked);
        let is_answering = has_asked || self.quiet_since.is_none();
        if self.streams.count() > 0 || is_answering && self.streams.is_waiting() {
            self.quiet_since = None;
            self.handle.stage.set(Stage::Busy);
            return Poll::Pending;
        }
        let since = match self.quiet_since {
            Some(since) if !has_asked => since,
            // Requests that were answered at once: nothing is given back, as more are likely.
            Some(_) => turn::instant().into(),
            None => {
                let is_idle = self.end == End::Open;
                self.handle.stage.set(if is_idle { Stage::Idle } else { Stage::Busy });
                self.incoming.rest();
                self.streams.rest();
                self.fields = FieldList::default();
                Instant::now()
            }
        };
        let is_new = self.quiet_since.replace(since).is_none();
        let end = since + self.times().silence(&self.client);
        // The timer of a client that asks again and again is set when it is over, not with each request.
        let set = self.sleep.as_mut().filter(|sleep| !is_new && sleep.deadline() <= end);
        if set.is_some_and(|sleep| sleep.as_mut().poll(context).is_pending()) {
            return Poll::Pending;
        }
        self.poll_until(end, context).map(|()| Event::Silent)
    }

    /// Ready at this moment.
    fn poll_until(&mut self, end: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if sleep.deadline() != end {
            sleep.as_mut().reset(end);
        }
        sleep.as_mut().poll(context)
    }

    /// Ready when the client has taken nothing for `send_timeout`, even if it asked for more.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(since) = self.streams.stalled() else { return Poll::Pending };
        let end = since + self.times().send;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if sleep.deadline() != end {
            sleep.as_mut().reset(end);
        }
        sleep.as_mut().poll(context)
    }

    /// Ends the connection with all its streams: what waits for the client goes with them.
    fn give_up(self) {
        self.streams.time_out();
        let client = &self.client;
        let Some(conf) = current_conf(client, &self.worker) else { return };
        let text =
            "client timed out (110: Connection timed out) while processing HTTP/2 connection";
        conf.error_log.connection(Level::Info, client, text);
        if first_core(&conf, client).reset_timedout_connection {
            self.handle.io.reset_on_close();
        }
    }

    /// Takes a block of fields: a head, or what is behind a body.
    fn fields(&mut self, block: &Block) {
        let conf = self.conf();
        if conf.is_none() {
            // What has begun is finished; nothing can answer what begins now.
            self.end();
        }
        let bounds = self.latest.bounds;
        let id = block.stream;
        let known = self.streams.known(id);
        if known == Known::New && self.is_open() && !id.is_multiple_of(2) {
            self.streams.note(id);
        }
        let (incoming, list) = (&mut self.incoming, &mut self.fields);
        list.clear();
        let read = incoming.fields(block, |name, value| list.put(name, value, &bounds));
        if let Err(stop) = read {
            let (code, text) = match stop {
                Stop::Broken => (Code::COMPRESSION_ERROR, "client sent invalid header block"),
                Stop::Short => {
                    (Code::FRAME_SIZE_ERROR, "client sent header block with incorrect length")
                }
                Stop::Enough => (
                    Code::ENHANCE_YOUR_CALM,
                    "client exceeded \"large_client_header_buffers\" limit",
                ),
            };
            return self.refuse(code, text);
        }
        match known {
            Known::New if id.is_multiple_of(2) => {
                self.refuse(Code::PROTOCOL_ERROR, "client began a stream of an even number");
            }
            Known::Skipped => {
                self.refuse(Code::PROTOCOL_ERROR, "client began a stream of a lower number");
            }
            Known::Closed => {
                self.refuse(Code::PROTOCOL_ERROR, "client sent HEADERS frame for a closed stream");
            }
            Known::Ignored => {}
            Known::Receiving => {
                let is_end = block.is_last && self.fields.are_trailers();
                if !is_end || self.streams.end(id).is_err() {
                    self.streams.break_off(id, Code::PROTOCOL_ERROR);
                }
            }
            // One that is ignored: the client was told that it will not be answered.
            Known::New => match conf.filter(|_| self.is_open()) {
                Some(conf) => self.request(conf, block, &bounds),
                None => self.streams.ignore(id),
            },
        }
    }

    /// Begins to answer a request.
    fn request(&mut self, conf: Rc<WorkerConf>, block: &Block, bounds: &Bounds) {
        let (id, client) = (block.stream, Rc::clone(&self.client));
        let ToldBounds { streams_max, room } = self.told;
        let is_early = !self.incoming.is_settled && !block.is_last && room < WINDOW_BYTES;
        if self.streams.open_count() >= streams_max as usize || is_early {
            return self.streams.refuse(id);
        }
        client.requests.set(client.requests.get() + 1);
        // Also if it is answered before the next look.
        self.has_asked = true;
        self.bound(&conf);
        let mut read = fields::read(&self.fields, Version::V20, bounds);
        if let Some(bounds) = rules::of_server(&conf, &client, &read.request, bounds) {
            read = fields::read(&self.fields, Version::V20, &bounds);
        }
        let fields::Read { mut request, mut refusal, mut is_malformed } = read;
        let length = request.content_length;
        if block.is_last && length.is_some_and(|length| length > 0) {
            // RFC 9113, section 8.1.1: a malformed request may be answered before its stream ends.
            refusal.get_or_insert((400, fields::OTHER_LENGTH.to_owned()));
            is_malformed = true;
        }
        request.is_chunked = length.is_none() && !block.is_last;
        request.sent_bytes = block.length() as u64;
        let handle = Rc::new(self.streams.begin(id, block.is_last, length));
        let frames = (!block.is_last)
            .then(|| Box::new(streams::Body(Rc::clone(&handle))) as Box<dyn Frames>);
        let source = Rc::new(Asker { streams: Rc::clone(&self.streams), id });
        let body = RequestBody::of_stream(source as Rc<dyn RequestSource>, frames, length);
        counters::count(Happened::Request);
        let exchange = Exchange::new(conf, client, request, body);
        let _writing = Counted::of(Present::Writing);
        let stream = Stream { exchange, handle, is_malformed, _writing };
        // A panic ends the one stream, as it does in its own task.
        if let Ok(Some(rest)) = tasks::guard(|| stream.start(refusal)) {
            tasks::of_request(rest);
        }
    }

    /// Whether the client gives up or breaks more than every second stream.
    fn is_flooding(&self) -> bool {
        let resets = self.streams.resets();
        resets > limits::H2_RESETS_MIN && resets > self.client.requests.get() / 2
    }

    /// Ends a connection that has had its share.
    fn bound(&mut self, conf: &WorkerConf) {
        let core = first_core(conf, &self.client);
        let requests = self.client.requests.get();
        if requests >= core.keepalive_requests
            || self.opened.elapsed() >= core.keepalive_time
            || core.keepalive_timeout.timeout.is_zero()
        {
            self.end();
        }
    }
}
