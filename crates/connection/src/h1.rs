//! One HTTP/1 connection: requests in, responses out, one at a time, in order.
//!
//! | state | next |
//! | --- | --- |
//! | idle | reading a head; closed by keepalive_timeout, a stop, or the client |
//! | reading a head | answering |
//! | answering | idle (keep-alive), lingering, or closed |
//! | lingering (reading what the client still sends, so that it sees the answer) | closed |

use super::head::{Arrived, Bounds, begun, receive};
use super::respond::{self, Begun, log};
use super::send::Sent;
use super::transport::{HEADS, Transport};
use super::write;
use super::{ConnectionHandle, Stage, current_conf, first_core, rules};
use bytes::{Bytes, BytesMut};
use std::future::Future;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::time::Duration;
use yorozu_kernel::base::counters::{self, Counted, Happened, Present};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::base::timer::Timer;
use yorozu_kernel::config::http_core::{self, LingeringClose};
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::engine::Host;
use yorozu_kernel::exchange::keep_alive;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::exchange::source::ByteStream;
use yorozu_kernel::exchange::{Client, Exchange};
use yorozu_kernel::logging::error::{self, Level};
use yorozu_wire::h1::Version;

/// How long what a client still sends is read: `lingering_time`, and `lingering_timeout` between two pieces.
#[derive(Clone, Copy)]
struct Lingering {
    time: Duration,
    timeout: Duration,
}

impl Lingering {
    fn of(core: &http_core::Conf) -> Self {
        Self { time: core.lingering_time, timeout: core.lingering_timeout }
    }
}

/// What to do after a response.
enum Next {
    Request,
    Linger(Lingering),
    Close,
}

/// Serves a connection to its end; `early` is what was read of it.
pub fn serve(
    handle: Rc<ConnectionHandle>,
    client: Rc<Client>,
    worker: Rc<dyn Host>,
    early: BytesMut,
) -> impl Future<Output = ()> {
    let mut connection = Connection {
        io: Rc::clone(&handle.io),
        handle,
        client,
        worker,
        timer: Timer::default(),
        buffer: early,
        out: Scratch::default(),
        send_timeout: Duration::ZERO,
        keepalive_timeout: Duration::ZERO,
        known: Weak::new(),
        is_pipelined: false,
    };
    // Not an async function: that would hold what it is given twice.
    async move { connection.run().await }
}

pub(super) struct Connection {
    pub(super) io: Rc<Transport>,
    handle: Rc<ConnectionHandle>,
    pub(super) client: Rc<Client>,
    pub(super) worker: Rc<dyn Host>,
    pub(super) timer: Timer,
    buffer: BytesMut,
    /// Responses to pipelined requests that are held back to be sent together, and behind them the head under construction;
    /// kept for its allocation while requests follow closely.
    pub(super) out: Scratch,
    /// How long the client may take nothing of what is held back.
    pub(super) send_timeout: Duration,
    /// What the last request's location allows.
    keepalive_timeout: Duration,
    /// The configuration in which the connection's socket was found; not kept for that.
    known: Weak<WorkerConf>,
    /// Whether the present request arrived before the last one was answered.
    is_pipelined: bool,
}

impl Connection {
    async fn run(&mut self) {
        // Boxed, so that a connection without a request is small.
        loop {
            self.is_pipelined = self.client.requests.get() > 0 && !self.buffer.is_empty();
            if self.buffer.is_empty() && !self.wait().await {
                return;
            }
            // Written where it stays: it has thousands of bytes, which would be moved there.
            let request = Box::write(Box::new_uninit(), self.request());
            match Box::into_pin(request).await {
                Next::Request => {}
                Next::Linger(bounds) => return Box::pin(self.linger(bounds)).await,
                Next::Close => return,
            }
        }
    }

    /// Waits for the first bytes of a request, keeping no memory; `false` if none came in time.
    async fn wait(&mut self) -> bool {
        debug_assert!(self.out.is_empty(), "what is held back has a request behind it");
        let Some(conf) = self.conf() else { return false };
        let limit = self.silence_allowed(&conf);
        drop(conf);
        HEADS.with(|spare| spare.give(std::mem::take(&mut self.buffer)));
        self.out = Scratch::default();
        let is_first = self.client.requests.get() == 0;
        self.handle.stage.set(if is_first { Stage::Silent } else { Stage::Idle });
        self.timer.begin(limit);
        let read = std::future::poll_fn(|context| {
            let read = self.io.poll_read_at_most(context, &mut self.buffer, usize::MAX);
            self.timer.poll_wait(context, read)
        })
        .await;
        self.handle.stage.set(if is_first { Stage::Beginning } else { Stage::Busy });
        matches!(read, Some(Ok(count)) if count > 0)
    }

    /// How long the client may be silent before its next request.
    fn silence_allowed(&self, conf: &WorkerConf) -> Duration {
        match self.client.requests.get() {
            0 => first_core(conf, &self.client).client_header_timeout,
            _ => self.keepalive_timeout,
        }
    }

    /// Reads one request and answers it.
    async fn request(&mut self) -> Next {
        let Some(conf) = self.conf() else { return Next::Close };
        let core = first_core(&conf, &self.client);
        let (bounds, timeout) = (Bounds::of(core), core.client_header_timeout);
        drop(conf);
        let (io, timer) = (&self.io, &mut self.timer);
        let may_wait = self.out.is_empty();
        let (buffer, mut request) = (&mut self.buffer, Request::unread(Bytes::new()));
        let mut arrived =
            receive(io, buffer, timer, &bounds, timeout, may_wait, &mut request).await;
        if matches!(arrived, Arrived::NotYet) {
            if write::flush(self).await.is_err() {
                return Next::Close;
            }
            let (io, buffer, timer) = (&self.io, &mut self.buffer, &mut self.timer);
            arrived = receive(io, buffer, timer, &bounds, timeout, true, &mut request).await;
        }
        self.handle.stage.set(Stage::Busy);
        // A request that arrives after a reload is answered by the new configuration.
        let Some(conf) = self.conf() else { return Next::Close };
        if matches!(arrived, Arrived::Request) {
            arrived = rules::by_server(&conf, &self.client, &mut request, &bounds);
        }
        let refusal = match arrived {
            Arrived::Request => None,
            Arrived::Bad { status, text } => Some((status, text)),
            // Both have a status in the log only.
            Arrived::Closed | Arrived::NotYet => {
                let text = "client prematurely closed connection";
                self.unanswered(conf, &bounds, 400, text);
                return Next::Close;
            }
            Arrived::TimedOut => {
                let text = "client timed out (110: Connection timed out)";
                self.unanswered(conf, &bounds, 408, text);
                return Next::Close;
            }
        };
        let _writing = Counted::of(Present::Writing);
        let mut exchange = self.exchange(conf, request);
        self.answer(&mut exchange, refusal).await
    }

    /// The worker's configuration; `None` if it no longer has this connection's socket.
    fn conf(&mut self) -> Option<Rc<WorkerConf>> {
        let conf = self.worker.conf();
        if std::ptr::eq(self.known.as_ptr(), Rc::as_ptr(&conf)) {
            return Some(conf);
        }
        let conf = current_conf(&self.client, &self.worker)?;
        self.known = Rc::downgrade(&conf);
        Some(conf)
    }

    fn exchange(&mut self, conf: Rc<WorkerConf>, request: Request) -> Exchange {
        // Without content there is nothing to wait for, and the connection stays.
        let expects = request.version == Version::V11
            && request.has_content()
            && request
                .known(request.known.expect)
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        let body = RequestBody::new(
            Rc::clone(&self.io) as Rc<dyn ByteStream>,
            std::mem::take(&mut self.buffer),
            request.content_length,
            request.is_chunked,
            expects,
        );
        counters::count(Happened::Request);
        self.client.requests.set(self.client.requests.get() + 1);
        let mut exchange = Exchange::new(conf, Rc::clone(&self.client), request, body);
        exchange.is_pipelined = self.is_pipelined;
        exchange
    }

    /// Logs a request of which the head did not arrive whole.
    fn unanswered(&mut self, conf: Rc<WorkerConf>, bounds: &Bounds, status: u16, text: &str) {
        let head = self.buffer.split().freeze();
        let mut exchange = self.exchange(conf, begun(head, bounds));
        respond::choose_server_of_refused(&mut exchange);
        exchange.status = status;
        let text = format!("{text} while reading client request headers");
        error::request(&exchange, Level::Info, &text);
        let conf = Rc::clone(&exchange.conf);
        let core = conf.location(exchange.location).http_core();
        if status == 408 && core.reset_timedout_connection {
            self.io.reset_on_close();
        }
        log(&mut exchange);
    }

    /// Answers one request; `refusal` is the status a broken one gets.
    async fn answer(&mut self, exchange: &mut Exchange, refusal: Option<(u16, String)>) -> Next {
        let answer = match respond::begin(exchange, refusal) {
            Begun::Waits(pending) => {
                if !self.out.is_empty() {
                    // A client that is gone is noticed by what is waited for, or when the response is sent.
                    let _ = write::flush(self).await;
                }
                respond::wait(exchange, pending).await
            }
            Begun::Done(answer) => answer,
        };
        let next = match answer {
            Ok(response) => self.finish(exchange, response).await,
            Err(status) => self.give_up(exchange, status).await,
        };
        respond::end(exchange);
        next
    }

    /// Closes without an answer.
    async fn give_up(&mut self, exchange: &mut Exchange, status: u16) -> Next {
        exchange.status = status;
        log(exchange);
        let _ = write::flush(self).await;
        let core = exchange.conf.location(exchange.location).http_core();
        // As nginx: not for a 408 of the configuration.
        let is_timed_out = exchange.is_content_late || status == 444;
        if is_timed_out && core.reset_timedout_connection {
            self.io.reset_on_close();
        }
        Next::Close
    }

    /// Sends the response, logs it, and decides what comes after it.
    async fn finish(&mut self, exchange: &mut Exchange, response: Box<Response>) -> Next {
        let conf = Rc::clone(&exchange.conf);
        let core = conf.location(exchange.location).http_core();
        let body = &mut exchange.body;
        if body.skip_buffered().is_err() || body.is_awaiting_continue() || body.is_lent() {
            exchange.keep_alive = false;
        }
        // Locations said so as they were entered.
        let is_in_server = exchange.location == conf.server(exchange.server).conf;
        exchange.keep_alive &=
            !self.worker.is_stopping() && (!is_in_server || keep_alive::is_allowed(exchange));
        self.send_timeout = core.send_timeout;
        let sent = write::response(self, exchange, response, core).await;
        exchange.is_complete = sent == Sent::Whole;
        log(exchange);
        match sent {
            Sent::Whole => {}
            Sent::TimedOut if core.reset_timedout_connection => {
                self.io.reset_on_close();
                return Next::Close;
            }
            _ => return Next::Close,
        }
        if !exchange.keep_alive {
            self.buffer = std::mem::take(&mut exchange.body.unread);
            let has_more = !exchange.body.is_finished() || !self.buffer.is_empty();
            return match core.lingering_close {
                LingeringClose::Off => Next::Close,
                LingeringClose::Always => Next::Linger(Lingering::of(core)),
                LingeringClose::On if has_more => Next::Linger(Lingering::of(core)),
                LingeringClose::On => Next::Close,
            };
        }
        // Nothing is held back here: that takes a request whose body is over.
        if !exchange.body.is_finished()
            && exchange.body.skip(core.lingering_timeout, core.lingering_time).await.is_err()
        {
            return Next::Close;
        }
        if self.worker.is_stopping() {
            // The stop came after the head had promised to keep the connection.
            let _ = write::flush(self).await;
            return Next::Close;
        }
        self.buffer = std::mem::take(&mut exchange.body.unread);
        self.keepalive_timeout = core.keepalive_timeout.timeout;
        Next::Request
    }

    /// Reads on for a while after the answer: closing with unread bytes would reset the connection
    /// and could take the answer from the client.
    async fn linger(&mut self, bounds: Lingering) {
        self.io.shutdown(Shutdown::Write);
        let deadline = tokio::time::Instant::now() + bounds.time;
        while tokio::time::Instant::now() < deadline {
            self.buffer.clear();
            let read = self.io.read(&mut self.buffer);
            match tokio::time::timeout(bounds.timeout, read).await {
                Ok(Ok(count)) if count > 0 => {}
                _ => return,
            }
        }
    }
}
