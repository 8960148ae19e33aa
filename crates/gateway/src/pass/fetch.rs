//! One response head from one of a group's peers: connect, send, read, and the next peer on failure.

use super::Conf;
use super::conversation::Conversation;
use super::pools::{self, Lease, PoolKey};
use super::pump::Source;
use super::upload::{Sending, UploadFault};
use crate::protocol::Protocol;
use crate::protocol::call::{Call, Line, LineAnswer, LineBounds, LineFault};
use crate::protocol::codec::Head;
use crate::protocol::fault::{Conditions, Fault};
use crate::upstream::{Upstream, counters};
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_kernel::base::{room, turn};
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::attempts::{Attempts, UpstreamAttempt};
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::request_body::{BodyError, RequestBody};
use yorozu_kernel::exchange::source::RequestSource;
use yorozu_kernel::logging::error::{Level, os_error, upstream, verbatim};
use yorozu_tls::verifier::Disbelief;
use yorozu_upstream::{Connection, Kept, Peer, PeerAddress, Selector, Tls, Tried};

/// nginx's words for what is done until there is a connection.
const CONNECTING: &str = "connecting to upstream";
/// nginx's words for what is done until there is a head.
const READING_HEAD: &str = "reading response header from upstream";
/// Its words for an answer that ends before that.
pub(super) const CLOSED_EARLY: &str = "upstream prematurely closed connection";
/// How long a shared connection may be idle where no `keepalive_timeout` says; its default.
const LINE_IDLE: Duration = Duration::from_secs(60);

/// A request ready to be sent.
pub struct Job<'a> {
    pub exchange: &'a Exchange,
    pub location: &'a LocationConf,
    pub protocol: &'a dyn Protocol,
    pub conf: &'a Conf,
    pub upstream: &'a Arc<Upstream>,
    /// What the choice of a peer depends on.
    pub selector: &'a Selector,
    pub call: &'a Call,
    /// The body, if it is sent on while it arrives (`*_request_buffering off`).
    pub live: RefCell<Option<RequestBody>>,
    /// Whether there is, or was, a body in [`Job::live`]: once begun it cannot be sent to another peer.
    pub is_live: bool,
    /// Whether all of that body was sent.
    pub is_uploaded: Cell<bool>,
    /// What went wrong on the client's side of a body sent on.
    pub client_fault: Cell<Option<BodyError>>,
    /// `*_bind`
    pub from: Option<SocketAddr>,
    /// Where connections are kept, if they are.
    pub pool: Option<PoolKey>,
    pub is_idempotent: bool,
    /// The client, if it shall get early hints.
    pub hinted: Option<Rc<dyn RequestSource>>,
    /// The outcome of each peer asked.
    pub attempts: RefCell<Attempts>,
    /// Which peer was chosen last, for `sticky`.
    pub sid: RefCell<Option<Arc<str>>>,
    /// When the last of them was chosen.
    pub begun: Cell<Instant>,
    /// When the first was; what `*_next_upstream_timeout` counts from.
    pub started: Instant,
}

/// What was asked for, as messages have it.
pub struct Url {
    /// `fastcgi://`
    scheme: &'static str,
    /// `/path`, where the protocol has one.
    uri: Bytes,
}

impl Url {
    /// At this peer: `fastcgi://unix:/run/php.sock:`.
    pub fn at(&self, peer: &str) -> String {
        let end = if peer.starts_with("unix:") { ":" } else { "" };
        format!("{}{peer}{end}{}", self.scheme, verbatim(&self.uri))
    }
}

/// A response head, and the connection its body comes from.
pub struct Fetched {
    pub head: Head,
    pub source: Source,
    pub lease: Lease,
    pub started: Instant,
    pub received: u64,
    /// For messages, with the peer's address.
    pub url: Url,
    /// Bytes that go before the body: the start of a page whose rest was asked for.
    pub before: Option<Bytes>,
}

impl Fetched {
    /// The rest of the answer is not wanted: the connection ends, and after it the hold on its peer.
    pub fn end(self) {
        drop(self.source);
        self.lease.release(None);
    }
}

/// A peer that was asked in vain, and why.
type Failed = (Fault, yorozu_upstream::Lease);

/// Asks peers until one answers acceptably.
///
/// # Errors
/// The last peer's fault.
///
/// # Cancel safety
/// The connection is closed and the peer's lease given back.
pub async fn fetch(job: &Job<'_>) -> Result<Box<Fetched>, Fault> {
    let mut tried = Tried::default();
    loop {
        let group = &job.upstream.group;
        let begun = turn::instant();
        let Some(lease) = group.select(&mut tried, job.selector, begun) else {
            job.no_peer();
            return Err(Fault::NoPeer);
        };
        let peer = lease.peer();
        job.attempts.borrow_mut().push(UpstreamAttempt::new(Arc::clone(peer.text())));
        if job.upstream.sticky.is_some() {
            job.sid.replace(Some(Arc::clone(peer.sid())));
        }
        job.begun.set(begun);
        let mut was_sent = false;
        match job.ask(lease, &mut was_sent).await {
            Ok(mut fetched) => {
                let may_try_next = |fault: &Fault| job.may_try_next(fault, was_sent, tried.count());
                if !job.is_refused(&mut fetched, may_try_next) {
                    return Ok(fetched);
                }
            }
            Err((fault, lease)) => {
                job.attempt_ended();
                if job.is_clients_fault() {
                    drop(lease);
                } else {
                    job.attempt(|attempt| attempt.status = fault.status());
                    counters::failed(job.upstream.tally);
                    let peer = lease.peer().clone();
                    if lease.failed(turn::instant()) {
                        let doing = if was_sent { READING_HEAD } else { CONNECTING };
                        job.taken_out(doing, &peer);
                    }
                }
                if !job.may_try_next(&fault, was_sent, tried.count()) {
                    return Err(fault);
                }
            }
        }
        job.attempt_ended();
    }
}

impl Job<'_> {
    /// `fastcgi://unix:/run/php.sock:` for messages.
    fn name(&self, peer: Option<&Peer>) -> String {
        self.url().at(peer.map_or(&*self.upstream.group.name, |peer| peer.text()))
    }

    fn url(&self) -> Url {
        Url { scheme: self.call.scheme, uri: self.call.request.slice(self.call.uri.clone()) }
    }

    /// Logs what went wrong with the head.
    pub(super) fn log_head(&self, level: Level, text: &str, peer: &Peer) {
        self.log_at(level, &format!("{text} while {READING_HEAD}"), peer);
    }

    /// nginx's words for a head that is too long, and which directive says how long it may be.
    pub(super) fn log_bound(&self, text: &str, peer: &Peer) {
        let prefix = self.protocol.family().prefix;
        let bytes = self.conf.buffer_size.bytes();
        let text = format!("{text} while {READING_HEAD}, \"{prefix}_buffer_size\" is {bytes}");
        self.log_at(Level::Error, &text, peer);
    }

    pub(super) fn log(&self, text: &str, peer: &Peer) {
        self.log_at(Level::Error, text, peer);
    }

    pub(super) fn log_at(&self, level: Level, text: &str, peer: &Peer) {
        upstream(self.exchange, level, text, || self.name(Some(peer)));
    }

    /// Notes something about the attempt under way.
    pub(super) fn attempt(&self, note: impl FnOnce(&mut UpstreamAttempt)) {
        let mut attempts = self.attempts.borrow_mut();
        if let Some(attempt) = attempts.last_mut() {
            note(attempt);
        }
    }

    /// The attempt is over, and no body of it is wanted.
    pub fn attempt_ended(&self) {
        let time = turn::since(self.begun.get());
        self.attempt(|attempt| attempt.response_time = Some(time));
    }

    /// Whom else to ask matters only where there are others.
    fn taken_out(&self, doing: &str, peer: &Peer) {
        if self.upstream.group.peers().len() > 1 {
            let text = format!("upstream server temporarily disabled while {doing}");
            self.log_at(Level::Warn, &text, peer);
        }
    }

    fn no_peer(&self) {
        let text = &format!("no live upstreams while {CONNECTING}");
        upstream(self.exchange, Level::Error, text, || self.name(None));
        let mut attempt = UpstreamAttempt::new(self.upstream.group.name.as_str().into());
        attempt.status = 502;
        attempt.response_time = Some(Duration::ZERO);
        self.attempts.borrow_mut().push(attempt);
    }

    fn may_try_next(&self, fault: &Fault, was_sent: bool, tries: usize) -> bool {
        let conf = self.conf;
        (!was_sent || self.may_repeat())
            && conf.next_upstream.has(fault.condition())
            && (conf.next_upstream_tries == 0 || (tries as u64) < conf.next_upstream_tries)
            && self.has_time()
            && tries < self.upstream.group.tries_max()
    }

    /// Whether a request that was sent may be sent again.
    fn may_repeat(&self) -> bool {
        let may_do_twice =
            self.is_idempotent || self.conf.next_upstream.has(Conditions::NON_IDEMPOTENT);
        may_do_twice && !self.is_live
    }

    /// Whether there is time for another attempt.
    fn has_time(&self) -> bool {
        let bound = self.conf.next_upstream_timeout;
        bound.is_zero() || turn::since(self.started) < bound
    }

    /// Whether a request may be sent again over a new connection, should a kept one turn out to be closed. As in nginx, that
    /// is none of `*_next_upstream_tries`.
    pub(super) fn may_reconnect(&self) -> bool {
        self.may_repeat() && self.conf.next_upstream.has(Conditions::ERROR) && self.has_time()
    }

    /// The attempt over a kept connection came to nothing: another begins with the same peer.
    fn reconnecting(&self, peer: &Peer) {
        self.attempt(|attempt| attempt.status = 502);
        self.attempt_ended();
        self.attempts.borrow_mut().push(UpstreamAttempt::new(Arc::clone(peer.text())));
        self.begun.set(turn::instant());
    }

    /// Whether it ended because of what the client sent, or did not send.
    fn is_clients_fault(&self) -> bool {
        let fault = self.client_fault.take();
        let is_clients = fault.is_some();
        self.client_fault.set(fault);
        is_clients
    }

    /// Whether the status of an answer is a failure for which another peer is asked.
    fn is_refused(&self, fetched: &mut Fetched, may_try_next: impl Fn(&Fault) -> bool) -> bool {
        let status = fetched.head.status;
        self.attempt(|attempt| attempt.status = status);
        let is_failure = self.conf.next_upstream.has(Conditions::of_status(status));
        // As nginx: an answer that goes to the client is none of the peer's failures.
        if !is_failure || !may_try_next(&Fault::Status(status)) {
            fetched.lease.headed();
            return false;
        }
        // As nginx: these say nothing about the peer.
        if !matches!(status, 403 | 404) && fetched.lease.blame(turn::instant()) {
            self.taken_out(READING_HEAD, fetched.lease.peer());
        }
        true
    }

    async fn ask(
        &self,
        lease: yorozu_upstream::Lease,
        was_sent: &mut bool,
    ) -> Result<Box<Fetched>, Failed> {
        if let Some(line) = &self.call.line {
            *was_sent = true;
            return Box::pin(self.ask_line(&**line, lease)).await;
        }
        let peer = lease.peer();
        let mut kept = self.pool.as_ref().and_then(|key| pools::take(key, peer));
        loop {
            let begun = turn::instant();
            let is_kept = kept.is_some();
            let (whom, kept) = match kept.take() {
                Some((whom, kept)) => (Some(whom), kept),
                None => {
                    let connected = match self.connect_at_once(peer) {
                        Some(connected) => connected,
                        // Boxed, as everything rare.
                        None => Box::pin(self.connect(peer)).await,
                    };
                    match connected {
                        Ok(connection) => {
                            let whom = self.pool.as_ref().map(|key| pools::whom(key, peer));
                            let connection = Rc::new(connection);
                            (whom, Kept { connection, requests: 0, opened: begun, memory: None })
                        }
                        Err(fault) => return Err((fault, lease)),
                    }
                }
            };
            let time = if is_kept { Duration::ZERO } else { turn::since(begun) };
            self.attempt(|attempt| attempt.connect_time = Some(time));
            *was_sent = true;
            let Kept { connection, requests, opened, memory } = kept;
            let (codec, opening) = self.opening(memory);
            let mut talk = Conversation::new(connection, codec, is_kept);
            self.begin(&mut talk, opening).await;
            let result = self.read_head(&mut talk, peer).await;
            self.attempt(|attempt| {
                attempt.bytes_sent = talk.sent();
                attempt.bytes_received = talk.received as u64;
            });
            match result {
                // It died while idle: not the peer's fault, a new connection decides.
                Err(Fault::Error) if self.reconnects(&talk) => {
                    *was_sent = false;
                    self.reconnecting(peer);
                }
                // It ended in order, and the request went past that: whatever it is, it was not done.
                Err(Fault::Refused) if is_kept && !self.is_live => {
                    *was_sent = false;
                    self.reconnecting(peer);
                }
                Err(Fault::Refused) => {
                    *was_sent = self.is_live;
                    return Err((Fault::Refused, lease));
                }
                Err(fault) => return Err((fault, lease)),
                Ok(head) => {
                    self.attempt(|attempt| attempt.header_time = Some(turn::since(begun)));
                    // Written where it stays.
                    let place = Box::new_uninit();
                    let fetched = Fetched {
                        head,
                        received: talk.received as u64,
                        source: talk.into_source(),
                        lease: Lease::new(self.upstream, lease, whom, (requests, opened)),
                        started: begun,
                        url: self.url(),
                        before: None,
                    };
                    return Ok(Box::write(place, fetched));
                }
            }
        }
    }

    /// Asks over a connection that other requests share.
    async fn ask_line(
        &self,
        line: &dyn Line,
        lease: yorozu_upstream::Lease,
    ) -> Result<Box<Fetched>, Failed> {
        let (conf, peer) = (self.conf, lease.peer());
        let keepalive = self.upstream.keepalive.map(|keepalive| keepalive.limits.idle_timeout);
        let bounds = LineBounds {
            socket: conf.socket_options(self.from),
            connect_timeout: conf.connect_timeout,
            idle_timeout: keepalive.unwrap_or(LINE_IDLE),
            read_timeout: conf.read_timeout,
        };
        let begun = turn::instant();
        let answer = line.ask(peer, bounds, self.call.request.clone()).await;
        let LineAnswer { head, codec, received } = match answer {
            Ok(answer) => answer,
            Err(fault) => return Err((self.line_fault(line, &fault, peer), lease)),
        };
        let time = turn::since(begun);
        self.attempt(|attempt| {
            attempt.connect_time = Some(Duration::ZERO);
            attempt.header_time = Some(time);
            attempt.bytes_sent = line.sent_bytes(&self.call.request) as u64;
            attempt.bytes_received = received;
        });
        let source = Source::new(None, codec, BytesMut::new(), Sending::Done);
        let lease = Lease::new(self.upstream, lease, None, (0, begun));
        let (started, url) = (begun, self.url());
        Ok(Box::new(Fetched { head, source, lease, started, received, url, before: None }))
    }

    fn line_fault(&self, line: &dyn Line, fault: &LineFault, peer: &Peer) -> Fault {
        if !matches!(fault, LineFault::Connect(_) | LineFault::ConnectTimeout) {
            let sent = line.sent_bytes(&self.call.request) as u64;
            self.attempt(|attempt| attempt.bytes_sent = sent);
        }
        match fault {
            LineFault::Connect(problem) => {
                self.not_connected(problem, peer);
                Fault::Error
            }
            LineFault::ConnectTimeout => {
                self.timed_out(CONNECTING, peer);
                Fault::Timeout
            }
            LineFault::Timeout => {
                self.timed_out(READING_HEAD, peer);
                Fault::Timeout
            }
            LineFault::Closed => {
                self.log_head(Level::Error, CLOSED_EARLY, peer);
                Fault::Error
            }
            LineFault::Invalid(text, received) => {
                self.attempt(|attempt| attempt.bytes_received = *received as u64);
                self.log_head(Level::Error, text, peer);
                Fault::InvalidHead
            }
        }
    }

    /// Whether this server itself listens there.
    fn is_of_ourselves(&self, peer: &Peer) -> bool {
        let own = self.exchange.client.local.map(|local| local.ip());
        let is_here = |ip: IpAddr| ip.is_loopback() || Some(ip) == own;
        self.exchange.conf.sockets.iter().any(|socket| match (&socket.address, peer.address()) {
            (ListenAddress::Tcp(listened), PeerAddress::Tcp(asked)) => {
                listened == asked
                    || listened.port() == asked.port()
                        && listened.ip().is_unspecified()
                        && is_here(asked.ip())
            }
            (ListenAddress::Unix(listened), PeerAddress::Unix(asked)) => listened == asked,
            _ => false,
        })
    }

    fn not_connected(&self, problem: &io::Error, peer: &Peer) {
        let (is_late, level) = refusal(peer.address(), problem);
        let at = if is_late { String::new() } else { format!(" to {}", peer.text()) };
        let why = os_error(problem);
        let text = format!("connect(){at} failed ({why}) while {CONNECTING}");
        self.log_at(level, &text, peer);
    }

    /// As [`Job::connect`], where that needs no waiting: without keep-alive each request to PHP opens a Unix socket.
    fn connect_at_once(&self, peer: &Peer) -> Option<Result<Connection, Fault>> {
        if room::is_full() && self.is_of_ourselves(peer) {
            let text = format!("worker_connections are not enough while {CONNECTING}");
            self.log_at(Level::Alert, &text, peer);
            return Some(Err(Fault::Error));
        }
        if self.call.tls.is_some() {
            return None;
        }
        let options = self.conf.socket_options(self.from);
        let opened = Connection::open_at_once(peer.address(), options)?;
        Some(opened.map_err(|error| {
            self.not_connected(&error, peer);
            Fault::Error
        }))
    }

    async fn connect(&self, peer: &Peer) -> Result<Connection, Fault> {
        let conf = self.conf;
        let open = Connection::open(peer.address(), conf.socket_options(self.from));
        let connection = match tokio::time::timeout(conf.connect_timeout, open).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                self.not_connected(&error, peer);
                return Err(Fault::Error);
            }
            Err(_) => {
                self.timed_out(CONNECTING, peer);
                return Err(Fault::Timeout);
            }
        };
        let Some(options) = &self.call.tls else { return Ok(connection) };
        match tokio::time::timeout(conf.connect_timeout, Tls::handshake(connection, options)).await
        {
            Ok(Ok(tls)) => Ok(Connection::Tls(Box::new(tls))),
            Ok(Err(error)) => {
                self.log(&format!("{} while SSL handshaking to upstream", tls_error(&error)), peer);
                Err(Fault::Error)
            }
            Err(_) => {
                self.timed_out("SSL handshaking to upstream", peer);
                Err(Fault::Timeout)
            }
        }
    }

    pub(super) fn timed_out(&self, doing: &str, peer: &Peer) {
        let text = format!("upstream timed out (110: Connection timed out) while {doing}");
        self.log(&text, peer);
    }

    /// The request could not be sent.
    pub(super) fn not_sent(&self, problem: UploadFault, peer: &Peer) -> Fault {
        match problem {
            UploadFault::Client(problem) => {
                // Logged where the client is answered.
                self.client_fault.set(Some(problem));
                Fault::Error
            }
            UploadFault::Peer(problem) if problem.kind() == io::ErrorKind::TimedOut => {
                self.timed_out("sending request to upstream", peer);
                Fault::Timeout
            }
            UploadFault::Peer(problem) => {
                let why = os_error(&problem);
                let text = format!("writev() failed ({why}) while sending request to upstream");
                self.log(&text, peer);
                Fault::Error
            }
        }
    }
}

/// As nginx words and weighs a connection that was not made: whether it was heard of later, when the address goes without
/// saying, and how severe it is. What the system refuses at once, and no peer is to blame for, is critical.
fn refusal(address: &PeerAddress, problem: &io::Error) -> (bool, Level) {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable,
        TimedOut, WouldBlock,
    };
    let kind = problem.kind();
    let is_late = matches!(address, PeerAddress::Tcp(_))
        && matches!(kind, ConnectionRefused | ConnectionReset | HostUnreachable | TimedOut);
    let is_peers = is_late
        || matches!(
            kind,
            ConnectionRefused
                | ConnectionReset
                | HostUnreachable
                | NetworkDown
                | NetworkUnreachable
                | WouldBlock
        );
    (is_late, if is_peers { Level::Error } else { Level::Crit })
}

/// nginx's words for a failed handshake, with rustls's reason.
fn tls_error(problem: &io::Error) -> String {
    if let Some(why) = Disbelief::of(problem) {
        return why.to_string();
    }
    match problem.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Other => {
            format!("SSL_do_handshake() failed ({problem})")
        }
        io::ErrorKind::UnexpectedEof => "peer closed connection in SSL handshake".to_owned(),
        _ => format!("SSL_do_handshake() failed ({})", os_error(problem)),
    }
}
