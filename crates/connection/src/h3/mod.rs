//! One HTTP/3 connection: streams in, responses out, many at a time (RFC 9114).
//!
//! | file | what it has |
//! | --- | --- |
//! | `mod.rs` | the life of a connection |
//! | `shared.rs` | what its streams share |
//! | `control.rs` | streams in one direction: settings, what the client's encoder says, what it is told |
//! | `stream.rs` | one request and its response |
//! | `incoming.rs` | a request's head and body, as they arrive |
//! | `outgoing.rs` | what is sent on a stream |
//! | `write.rs` | from a response to frames |
//! | `hq.rs` | HTTP/0.9 over QUIC |
//!
//! Frames and fields themselves are `yorozu_wire::h3`'s, packets are the quinn library's (`crate::quic`).

mod control;
mod hq;
mod incoming;
mod outgoing;
mod shared;
mod stream;
mod write;

use crate::quic::Opening;
use crate::times::Times;
use crate::tls::session;
use crate::{Connected, Spare, add_one, count_handshake, current_conf, default_core, first_core};
use quinn::{Connection, ConnectionError, RecvStream, SendStream, StreamId, VarInt};
use shared::{Open, Shared};
use std::cell::{Cell, OnceCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio::time::Instant;
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::base::timer::Timer;
use yorozu_kernel::base::{tasks, turn};
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::engine::Host;
use yorozu_kernel::logging::error::Level;
use yorozu_wire::h3::frame::Code;

/// Streams taken before others have their turn; chosen: all of a usual client.
const STEPS_MAX: u32 = 128;

/// What the worker knows of a QUIC connection.
#[derive(Debug, Default)]
pub struct Handle {
    shared: OnceCell<Weak<Shared>>,
    is_idle: Cell<bool>,
    /// It is to end once it is idle.
    ending: Notify,
}

impl Connected for Handle {
    fn is_idle(&self) -> bool {
        // An answer is under way until the client has it. Looked at here: it is seldom asked.
        self.is_idle.get() && self.shared().is_some_and(|shared| !shared.has_unacknowledged())
    }

    fn spare(&self) -> Option<Spare> {
        self.is_idle().then_some(Spare::Idle)
    }

    fn ends_itself(&self) -> bool {
        true
    }

    fn is_of(&self, _: &ListenAddress) -> bool {
        // It looks for its socket itself.
        false
    }

    fn end_idle(&self) {
        self.is_idle.set(false);
        self.ending.notify_one();
    }

    fn cut(&self) {
        match self.shared() {
            Some(shared) => shared.quic.close(number(Code::NO_ERROR), b""),
            None => self.ending.notify_one(),
        }
    }
}

impl Handle {
    /// What its streams share, once the handshake is over.
    fn shared(&self) -> Option<Rc<Shared>> {
        self.shared.get().and_then(Weak::upgrade)
    }
}

/// As QUIC has it.
fn number(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

/// Serves a connection from its handshake to its end.
pub async fn serve(handle: Rc<Handle>, client: Rc<Client>, worker: Rc<dyn Host>, opening: Opening) {
    let paths = Arc::clone(&opening.paths);
    let Some((connection, confirmed)) =
        Box::pin(shake_hands(&handle, &client, &worker, opening)).await
    else {
        return;
    };
    let speaks_hq = session::of(&client).is_some_and(|session| session.alpn() != b"h3");
    let Some(conf) = current_conf(&client, &worker) else {
        return connection.close(number(Code::NO_ERROR), b"");
    };
    let streams_max = settings(&conf, &client).http3_max_concurrent_streams;
    let streams_max = usize::try_from(streams_max).unwrap_or(usize::MAX);
    let times = Times::of(&conf, &client);
    // Each request takes its own.
    drop(conf);
    let shared = Rc::new(Shared::new(connection, paths, client, worker, streams_max));
    let _ = handle.shared.set(Rc::downgrade(&shared));
    let life = Life {
        shared,
        handle,
        speaks_hq,
        streams_max,
        confirmed,
        times,
        is_ending: false,
        is_quiet: false,
        timer: Timer::default(),
        opened: turn::instant(),
    };
    life.run().await;
}

/// The settings of a connection: of the server that its handshake named.
fn settings<'c>(conf: &'c WorkerConf, client: &Client) -> &'c crate::quic::directives::Conf {
    conf.of_server(yorozu_kernel::find_config::first_server(conf, client))
}

/// Ready when the handshake is over, where requests may come before.
type Confirmed = Pin<Box<dyn Future<Output = ()>>>;

/// Shakes hands; `None` if nothing can follow.
async fn shake_hands(
    handle: &Handle,
    client: &Rc<Client>,
    worker: &Rc<dyn Host>,
    opening: Opening,
) -> Option<(Connection, Option<Confirmed>)> {
    let conf = current_conf(client, worker)?;
    let timeout = default_core(&conf, client).client_header_timeout;
    let server = conf.server(conf.socket(client).default_server).conf;
    let logs = conf.location(server).error_log.clone();
    drop(conf);
    let deadline = Instant::now() + timeout;
    let Opening { mut connecting, handshake, is_proved, .. } = opening;
    let log = |text: &str| logs.connection(Level::Info, client, text);
    let shaken = async {
        connecting.handshake_data().await?;
        // Early requests of a client that may not be where it says wait for the end of the handshake, which proves that.
        if is_proved && session::of(client).is_some() {
            let (connection, confirmed) = match connecting.into_0rtt() {
                Ok(begun) => begun,
                Err(_) => unreachable!("the library says that servers always can"),
            };
            let confirmed = async move {
                let _ = tokio::time::timeout_at(deadline, confirmed).await;
                drop(handshake);
            };
            return Ok((connection, Some(Box::pin(confirmed) as Confirmed)));
        }
        let connection = connecting.await?;
        drop(handshake);
        Ok((connection, None))
    };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout_at(deadline, shaken) => shaken,
        () = handle.ending.notified() => return None,
    };
    match shaken {
        Ok(Ok(connected)) => {
            count_handshake(session::of(client).is_some_and(|session| session.is_resumed()));
            Some(connected)
        }
        Ok(Err(problem)) => {
            add_one(&COUNTERS.handshakes_failed);
            let problem: ConnectionError = problem;
            log(&format!("quic handshake failed ({problem}) while SSL handshaking"));
            None
        }
        Err(_) => {
            add_one(&COUNTERS.handshakes_late);
            log("client timed out (110: Connection timed out) while SSL handshaking");
            None
        }
    }
}

/// The life of a connection whose handshake is over.
struct Life {
    shared: Rc<Shared>,
    handle: Rc<Handle>,
    speaks_hq: bool,
    streams_max: usize,
    confirmed: Option<Confirmed>,
    /// By the newest configuration that had the connection's socket.
    times: Times,
    /// GOAWAY was sent: no further stream is answered.
    is_ending: bool,
    /// Whether there is no stream.
    is_quiet: bool,
    /// Bounds how long.
    timer: Timer,
    opened: std::time::Instant,
}

/// What happens next.
enum Event {
    /// Many streams were taken.
    Busy,
    OneWay(RecvStream),
    /// A stream ended, or the connection has to.
    Told,
    /// The worker stops, or has another configuration.
    Changed,
    /// There was no stream for `keepalive_timeout`.
    Silent,
    /// It is to end, as it has no stream.
    Unwanted,
    /// The client's requests came early, and its handshake is not over in time.
    Unconfirmed,
    /// The client is gone.
    Gone,
}

impl Life {
    async fn run(mut self) {
        let shared = Rc::clone(&self.shared);
        if !self.speaks_hq {
            control::start(&shared);
        }
        let mut changed = Rc::clone(&shared.worker).changed();
        if shared.worker.is_stopping() {
            self.end();
        }
        loop {
            let event = self.next(&mut changed).await;
            match event {
                Event::Busy => tokio::task::yield_now().await,
                Event::OneWay(recv) => control::take(&shared, recv, self.speaks_hq),
                Event::Told => {}
                Event::Changed => {
                    changed = Rc::clone(&shared.worker).changed();
                    let is_served = current_conf(&shared.client, &shared.worker).is_some();
                    if shared.worker.is_stopping() || !is_served {
                        self.end();
                        changed = Box::pin(std::future::pending());
                    }
                }
                Event::Silent | Event::Unwanted => self.end(),
                Event::Unconfirmed => return self.close(Code::NO_ERROR, "").await,
                Event::Gone => return self.note_end(),
            }
            if let Some((code, text)) = shared.failure.get() {
                self.log(text);
                return self.close(code, text).await;
            }
            if self.is_ending && shared.streams.get() == 0 {
                return self.part().await;
            }
        }
    }

    /// Answers requests until something else happens.
    async fn next(&mut self, changed: &mut Pin<Box<dyn Future<Output = ()>>>) -> Event {
        let (shared, handle) = (Rc::clone(&self.shared), Rc::clone(&self.handle));
        let mut steps = 0;
        let mut told = pin!(shared.told.notified());
        let mut request = pin!(shared.quic.accept_bi());
        let mut one_way = pin!(shared.quic.accept_uni());
        let mut ending = pin!(handle.ending.notified());
        poll_fn(|context| {
            if told.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Told);
            }
            while shared.streams.get() < self.streams_max {
                match request.as_mut().poll(context) {
                    Poll::Ready(Ok((send, recv))) => self.request(send, recv),
                    Poll::Ready(Err(_)) => return Poll::Ready(Event::Gone),
                    Poll::Pending => break,
                }
                if self.is_ending || shared.failure.get().is_some() {
                    return Poll::Ready(Event::Told);
                }
                request.set(shared.quic.accept_bi());
                steps += 1;
                if steps >= STEPS_MAX {
                    return Poll::Ready(Event::Busy);
                }
            }
            match one_way.as_mut().poll(context) {
                Poll::Ready(Ok(recv)) => return Poll::Ready(Event::OneWay(recv)),
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Gone),
                Poll::Pending => {}
            }
            if changed.as_mut().poll(context).is_ready() {
                return Poll::Ready(Event::Changed);
            }
            if let Some(confirmed) = &mut self.confirmed {
                if confirmed.as_mut().poll(context).is_ready() {
                    self.confirmed = None;
                    let is_early =
                        session::of(&shared.client).is_some_and(|session| session.is_early.get());
                    if is_early {
                        return Poll::Ready(Event::Unconfirmed);
                    }
                }
            }
            if self.note_quiet() {
                if self.timer.poll_wait(context, Poll::<()>::Pending).is_ready() {
                    return Poll::Ready(Event::Silent);
                }
                if ending.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Event::Unwanted);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Notes whether there is no stream.
    fn note_quiet(&mut self) -> bool {
        let is_quiet = self.shared.streams.get() == 0;
        if is_quiet && !self.is_quiet {
            let timeout = self.times().silence(&self.shared.client);
            self.timer.begin(timeout);
        }
        self.is_quiet = is_quiet;
        self.handle.is_idle.set(is_quiet);
        is_quiet
    }

    fn times(&mut self) -> Times {
        let client = &self.shared.client;
        if let Some(conf) = current_conf(client, &self.shared.worker) {
            self.times = Times::of(&conf, client);
        }
        self.times
    }

    /// Begins to answer a request.
    fn request(&mut self, mut send: SendStream, mut recv: RecvStream) {
        let shared = &self.shared;
        let id = stream_number(send.id());
        if self.is_ending {
            // The client was told that it will not be answered.
            let _ = send.reset(number(Code::REQUEST_REJECTED));
            let _ = recv.stop(number(Code::REQUEST_REJECTED));
            return;
        }
        // Also if it is answered before the next look.
        self.is_quiet = false;
        shared.next_stream.set(shared.next_stream.get().max(id + 4));
        shared.client.requests.set(shared.client.requests.get() + 1);
        self.bound();
        let shared = &self.shared;
        let open = Open::new(shared);
        let mut work: stream::Work = match self.speaks_hq {
            true => Box::pin(hq::answer(Rc::clone(shared), open, send, recv)),
            false => {
                // Written where it stays: it has thousands of bytes, which would be moved there.
                let place = Box::new_uninit();
                let answer = Box::write(place, stream::answer(Rc::clone(shared), open, send, recv));
                Box::into_pin(answer)
            }
        };
        // What waits for nothing is answered now. A panic ends the one stream, as it does in its own task.
        let mut context = Context::from_waker(Waker::noop());
        shared.is_beginning.set(true);
        let begun = tasks::guard(|| work.as_mut().poll(&mut context));
        if let Ok(Poll::Pending) = begun {
            shared.is_beginning.set(false);
            tasks::of_request(work);
        } else {
            drop(work);
            shared.is_beginning.set(false);
        }
    }

    /// Ends a connection that has had its share.
    fn bound(&mut self) {
        let client = &self.shared.client;
        let Some(conf) = current_conf(client, &self.shared.worker) else { return self.end() };
        let core = first_core(&conf, client);
        if client.requests.get() >= core.keepalive_requests
            || turn::since(self.opened) >= core.keepalive_time
            || core.keepalive_timeout.timeout.is_zero()
        {
            self.end();
        }
    }

    /// Tells the client to go; what has begun is finished.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.is_ending, true) {
            self.shared.outbox.go_away(self.shared.next_stream.get());
            self.shared.told.notify_one();
        }
    }

    /// Notes a connection that the library ended, for what the client does.
    fn note_end(&self) {
        if let Some(ConnectionError::TransportError(problem)) = self.shared.quic.close_reason() {
            self.log(&format!("quic connection failed ({problem})"));
        }
    }

    fn log(&self, text: &str) {
        let client = &self.shared.client;
        if let Some(conf) = current_conf(client, &self.shared.worker) {
            let text = format!("{text} while processing HTTP/3 connection");
            conf.error_log.connection(Level::Info, client, &text);
        }
    }

    /// Ends a connection all of whose requests are answered, when the client has the answers.
    async fn part(mut self) {
        self.handle.is_idle.set(false);
        let shared = Rc::clone(&self.shared);
        let arrived = async {
            while let Some(stream) = { shared.unacknowledged.borrow_mut().pop_front() } {
                let _ = stream.stopped().await;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(self.times().send, arrived) => {}
            _ = shared.quic.closed() => {}
        }
        self.close(Code::NO_ERROR, "").await;
    }

    async fn close(self, code: Code, text: &str) {
        self.shared.quic.close(number(code), text.as_bytes());
        // The connection's own task has to say so before the worker forgets it.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
}

/// A stream's number.
fn stream_number(id: StreamId) -> u64 {
    VarInt::from(id).into_inner()
}
