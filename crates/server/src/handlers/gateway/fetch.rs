//! One response head from one of a group's peers: connect, send, read, and the next peer on failure.

use super::directives::Failures;
use super::stream::{Source, stderr_text};
use super::{Codec, CodecError, Conf, Fault, Head};
use crate::config::env::Upstream;
use crate::connection::body::{BodyError, RequestBody};
use crate::exchange::UpstreamAttempt;
use crate::logging::error::{Context, Level, os_error};
use bytes::{Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_upstream::{Connection, Group, Kept, Peer, Pool, PoolLimits, Tried};

/// A request ready to be sent.
pub struct Job {
    pub upstream: Upstream,
    /// The whole request, or its part before a body that lies in a file.
    pub request: Vec<u8>,
    /// The body, if it lies in a file, and how a piece of it is framed.
    pub body_file: Option<(Arc<File>, u64)>,
    /// The body, if it is sent on while it arrives (`*_request_buffering off`).
    pub live: Cell<Option<RequestBody>>,
    pub body_timeout: Duration,
    /// What went wrong on the client's side of a body sent on.
    pub client_fault: Cell<Option<BodyError>>,
    /// `*_bind`
    pub from: Option<SocketAddr>,
    pub frame: fn(&mut Vec<u8>, &[u8]),
    pub conf: Conf,
    pub codec: Box<dyn Fn() -> Box<dyn Codec>>,
    /// Is, or was, there a body in [`Job::live`]? Once begun it cannot be sent to another peer.
    pub is_live: bool,
    /// Texts in the application's messages that make its answer a failure.
    pub catch_stderr: Vec<Bytes>,
    pub may_keep: bool,
    pub is_idempotent: bool,
    pub context: Context,
    /// `fastcgi://`
    pub scheme: &'static str,
}

/// A response head, and the connection its body comes from.
pub struct Fetched {
    pub head: Head,
    pub source: Source,
    pub lease: Lease,
    pub started: Instant,
    pub received: u64,
}

/// A connection in use: knows where to put it back.
pub struct Lease {
    group: Arc<Group>,
    peer: Peer,
    keepalive: Option<PoolLimits>,
    requests: u64,
    opened: Instant,
    is_settled: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_settled {
            self.group.released(&self.peer);
        }
    }
}

impl Lease {
    /// The request is over; a whole connection may be kept.
    pub fn release(mut self, connection: Connection, is_reusable: bool) {
        self.group.succeeded(&self.peer);
        self.is_settled = true;
        let Some(limits) = self.keepalive.filter(|_| is_reusable) else { return };
        let kept = Kept { connection, requests: self.requests, opened: self.opened };
        with_pool(&self.group.name, |pool| {
            pool.put(self.peer.address.clone(), kept, &limits, Instant::now());
        });
    }
}

thread_local! {
    static POOLS: RefCell<HashMap<String, Pool>> = RefCell::default();
}

fn with_pool<R>(group: &str, act: impl FnOnce(&mut Pool) -> R) -> R {
    POOLS.with_borrow_mut(|pools| match pools.get_mut(group) {
        Some(pool) => act(pool),
        None => act(pools.entry(group.to_owned()).or_default()),
    })
}

/// Asks peers until one answers acceptably.
///
/// # Errors
/// The last peer's fault.
///
/// # Cancel safety
/// The connection is closed; the group's accounting is left to its time window.
pub async fn fetch(job: &Job, attempts: &mut Vec<UpstreamAttempt>) -> Result<Fetched, Fault> {
    let started = Instant::now();
    let mut tried = Tried::default();
    let mut last = Fault::NoPeer;
    loop {
        let Some(peer) = job.upstream.group.select(&mut tried, Instant::now()) else {
            if last == Fault::NoPeer {
                job.context.upstream(
                    Level::Error,
                    "no live upstreams while connecting to upstream",
                    Some(&job.name(None)),
                );
                attempts.push(UpstreamAttempt {
                    peer: job.upstream.group.name.clone(),
                    status: 502,
                    ..UpstreamAttempt::default()
                });
            }
            return Err(last);
        };
        let mut attempt =
            UpstreamAttempt { peer: peer.address.to_string(), ..UpstreamAttempt::default() };
        let begun = Instant::now();
        let mut was_sent = false;
        let result = job.ask(&peer, &mut attempt, &mut was_sent).await;
        attempt.response_time = begun.elapsed();
        let fault = match &result {
            Ok(fetched) => {
                attempt.status = fetched.head.status;
                let is_failure =
                    job.conf.next_upstream.has(Failures::of_status(fetched.head.status));
                is_failure.then_some(Fault::Status(fetched.head.status))
            }
            Err(fault) => {
                attempt.status = fault.status();
                Some(fault.clone())
            }
        };
        attempts.push(attempt);
        let Some(fault) = fault else { return result };
        let may_retry = job.may_try_next(&fault, was_sent, tried.count(), started);
        if !matches!(fault, Fault::Status(403 | 404)) {
            job.upstream.group.failed(&peer, Instant::now());
        }
        if !may_retry {
            return match result {
                Ok(mut fetched) => {
                    // Counted as failed above; the lease must not count it as a success.
                    fetched.lease.is_settled = true;
                    fetched.lease.keepalive = None;
                    Ok(fetched)
                }
                Err(fault) => Err(fault),
            };
        }
        last = fault;
    }
}

impl Fault {
    fn bit(&self) -> u32 {
        match self {
            Self::Error | Self::NoPeer => Failures::ERROR,
            Self::Timeout => Failures::TIMEOUT,
            Self::InvalidHead => Failures::INVALID_HEADER,
            Self::Status(status) => Failures::of_status(*status),
        }
    }

    /// The bit that `*_cache_use_stale` looks at.
    pub fn failure(&self) -> u32 {
        self.bit()
    }
}

impl Job {
    /// `fastcgi://unix:/run/php.sock:` for messages.
    fn name(&self, peer: Option<&Peer>) -> String {
        let peer =
            peer.map_or_else(|| self.upstream.group.name.clone(), |peer| peer.address.to_string());
        let end = if peer.starts_with("unix:") { ":" } else { "" };
        format!("{}{peer}{end}", self.scheme)
    }

    fn may_try_next(&self, fault: &Fault, was_sent: bool, tries: usize, started: Instant) -> bool {
        let allowed = self.conf.next_upstream;
        let tries_max = self.conf.next_upstream_tries;
        let time_max = self.conf.next_upstream_timeout;
        let is_used_up = was_sent && self.is_live;
        allowed.has(fault.bit())
            && !is_used_up
            && (self.is_idempotent || !was_sent || allowed.has(Failures::NON_IDEMPOTENT))
            && (tries_max == 0 || (tries as u64) < tries_max)
            && (time_max.is_zero() || started.elapsed() < time_max)
            && tries < self.upstream.group.peers().len()
    }

    async fn ask(
        &self,
        peer: &Peer,
        attempt: &mut UpstreamAttempt,
        was_sent: &mut bool,
    ) -> Result<Fetched, Fault> {
        if let Some(kept) = self.kept(peer) {
            let lease = self.lease(peer, kept.requests, kept.opened);
            let begun = Instant::now();
            attempt.connect_time = Some(Duration::ZERO);
            match self.converse(kept.connection, lease, peer, attempt, begun).await {
                // It died while idle: not the peer's fault, a new connection decides.
                Err((Fault::Error, received)) if received == 0 && self.is_idempotent => {}
                Err((fault, _)) => {
                    *was_sent = true;
                    return Err(fault);
                }
                Ok(fetched) => return Ok(fetched),
            }
        }
        let begun = Instant::now();
        let open = Connection::open(&peer.address, self.conf.socket_options(self.from));
        let connection = match tokio::time::timeout(self.conf.connect_timeout, open).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                let text = format!(
                    "connect() to {} failed ({}) while connecting to upstream",
                    peer.address,
                    os_error(&error)
                );
                self.context.upstream(Level::Error, &text, Some(&self.name(Some(peer))));
                return Err(Fault::Error);
            }
            Err(_) => {
                self.timed_out("connecting to upstream", peer);
                return Err(Fault::Timeout);
            }
        };
        attempt.connect_time = Some(begun.elapsed());
        *was_sent = true;
        let lease = self.lease(peer, 0, begun);
        self.converse(connection, lease, peer, attempt, begun).await.map_err(|(fault, _)| fault)
    }

    fn kept(&self, peer: &Peer) -> Option<Kept> {
        let limits = self.upstream.keepalive.filter(|_| self.may_keep)?;
        with_pool(&self.upstream.group.name, |pool| {
            pool.take(&peer.address, &limits, Instant::now())
        })
    }

    fn lease(&self, peer: &Peer, requests: u64, opened: Instant) -> Lease {
        Lease {
            group: Arc::clone(&self.upstream.group),
            peer: peer.clone(),
            keepalive: self.upstream.keepalive.filter(|_| self.may_keep),
            requests,
            opened,
            is_settled: false,
        }
    }

    fn timed_out(&self, doing: &str, peer: &Peer) {
        let text = format!("upstream timed out (110: Connection timed out) while {doing}");
        self.context.upstream(Level::Error, &text, Some(&self.name(Some(peer))));
    }

    fn not_sent(&self, problem: &io::Error, peer: &Peer) -> Fault {
        if problem.kind() == io::ErrorKind::Interrupted {
            // The client's fault, logged where it is answered.
            return Fault::Error;
        }
        if problem.kind() == io::ErrorKind::TimedOut {
            self.timed_out("sending request to upstream", peer);
            return Fault::Timeout;
        }
        let text =
            format!("writev() failed ({}) while sending request to upstream", os_error(problem));
        self.context.upstream(Level::Error, &text, Some(&self.name(Some(peer))));
        Fault::Error
    }

    /// Sends the request and reads the head; the error comes with the bytes received.
    async fn converse(
        &self,
        connection: Connection,
        lease: Lease,
        peer: &Peer,
        attempt: &mut UpstreamAttempt,
        begun: Instant,
    ) -> Result<Fetched, (Fault, usize)> {
        let name = self.name(Some(peer));
        let mut input = BytesMut::with_capacity(self.conf.buffer_size.bytes());
        if let Err(problem) = self.send(&connection, &mut input).await {
            // An early answer may explain why the peer stopped reading: read on below.
            if input.is_empty() {
                return Err((self.not_sent(&problem, peer), 0));
            }
        }
        attempt.bytes_sent =
            self.request.len() as u64 + self.body_file.as_ref().map_or(0, |(_, length)| *length);
        let mut codec = (self.codec)();
        let mut received = input.len();
        loop {
            let head = codec.read_head(&mut input);
            if let Some(text) = codec.take_stderr() {
                self.context.upstream(Level::Error, &stderr_text(&text), Some(&name));
                let is_caught = |caught: &Bytes| memchr::memmem::find(&text, caught).is_some();
                if self.catch_stderr.iter().any(is_caught) {
                    return Err((Fault::InvalidHead, received));
                }
            }
            match head {
                Ok(Some(head)) => {
                    attempt.header_time = Some(begun.elapsed());
                    attempt.bytes_received = received as u64;
                    let source = Source { connection, codec, input };
                    return Ok(Fetched {
                        head,
                        source,
                        lease,
                        started: begun,
                        received: received as u64,
                    });
                }
                Ok(None) => {}
                Err(problem) => {
                    self.context.upstream(Level::Error, &problem.to_string(), Some(&name));
                    return Err((Fault::InvalidHead, received));
                }
            }
            input.reserve(self.conf.buffer_size.bytes());
            match tokio::time::timeout(self.conf.read_timeout, connection.read(&mut input)).await {
                Err(_) => {
                    self.timed_out("reading response header from upstream", peer);
                    return Err((Fault::Timeout, received));
                }
                Ok(Ok(0)) => {
                    let text = "upstream prematurely closed connection while reading response header from upstream";
                    self.context.upstream(Level::Error, text, Some(&name));
                    return Err((Fault::Error, received));
                }
                Ok(Err(problem)) => {
                    let text = format!(
                        "recv() failed ({}) while reading response header from upstream",
                        os_error(&problem)
                    );
                    self.context.upstream(Level::Error, &text, Some(&name));
                    return Err((Fault::Error, received));
                }
                Ok(Ok(count)) => received += count,
            }
        }
    }

    /// Sends everything, taking up what the peer answers meanwhile so that neither side blocks.
    async fn send(&self, connection: &Connection, input: &mut BytesMut) -> io::Result<()> {
        self.write(connection, &self.request, input).await?;
        if let Some(mut body) = self.live.take() {
            let result = self.send_live(connection, &mut body, input).await;
            self.live.set(Some(body));
            return result;
        }
        let Some((file, length)) = &self.body_file else { return Ok(()) };
        let mut piece = vec![0; crate::limits::FILE_CHUNK_BYTES];
        let mut framed = Vec::with_capacity(piece.len() + 64);
        let mut at = 0;
        while at < *length {
            let count = file.read_at(&mut piece, at)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            framed.clear();
            (self.frame)(&mut framed, &piece[..count]);
            self.write(connection, &framed, input).await?;
            at += count as u64;
        }
        framed.clear();
        (self.frame)(&mut framed, b"");
        self.write(connection, &framed, input).await
    }

    /// Sends the body on while it arrives; an early answer ends that.
    async fn send_live(
        &self,
        connection: &Connection,
        body: &mut RequestBody,
        input: &mut BytesMut,
    ) -> io::Result<()> {
        let mut framed = Vec::new();
        loop {
            input.reserve(1);
            let piece = tokio::select! {
                biased;
                piece = body.piece(self.body_timeout) => piece,
                read = connection.read(input) => match read? {
                    0 => return Err(io::ErrorKind::ConnectionReset.into()),
                    _ => return Ok(()),
                },
            };
            framed.clear();
            match piece {
                Ok(Some(piece)) => (self.frame)(&mut framed, &piece),
                Ok(None) => (self.frame)(&mut framed, b""),
                Err(problem) => {
                    self.client_fault.set(Some(problem));
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            self.write(connection, &framed, input).await?;
            if body.is_finished() && framed.len() <= yorozu_wire::fastcgi::HEAD_BYTES {
                return Ok(());
            }
        }
    }

    async fn write(
        &self,
        connection: &Connection,
        bytes: &[u8],
        input: &mut BytesMut,
    ) -> io::Result<()> {
        let write = tokio::time::timeout(self.conf.send_timeout, connection.write_all(bytes));
        tokio::pin!(write);
        loop {
            let room = self.conf.buffer_size.bytes();
            input.reserve(1);
            let may_read = input.len() < room;
            tokio::select! {
                biased;
                done = &mut write => return done.map_err(|_| io::ErrorKind::TimedOut)?,
                read = connection.read(input), if may_read => {
                    if read? == 0 {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                }
            }
        }
    }
}

impl From<CodecError> for Fault {
    fn from(_: CodecError) -> Self {
        Self::InvalidHead
    }
}
