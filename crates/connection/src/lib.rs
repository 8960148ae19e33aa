//! Connections of clients: bytes to exchanges and back.

#![expect(missing_docs, reason = "public for the server's crates alone; fields say what they are")]

mod fields;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod head;
mod header_buffers;
pub mod listen;
pub mod quic;
mod respond;
mod rules;
mod send;
pub mod socket;
mod source;
mod times;
pub mod tls;
pub mod transport;
mod write;

use crate::tls::handshake::{NoSession, handshake};
use crate::tls::session;
use crate::tls::stream::Tls;
use bytes::BytesMut;
pub use send::read_file;
use std::cell::Cell;
use std::fmt::Debug;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::Transport;
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::base::limits;
use yorozu_kernel::config::http_core;
use yorozu_kernel::config::servers::ListenAddress;
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::engine::Host;
use yorozu_kernel::find_config;
use yorozu_kernel::logging::error::Level;
use yorozu_wire::proxy_protocol;

/// What the worker knows of a connection: enough to end it when it is idle.
pub trait Connected: Debug {
    /// Whether the client has no request under way.
    fn is_idle(&self) -> bool;

    /// Whether it may be ended to make room for another one.
    fn spare(&self) -> Option<Spare>;

    /// Whether it ends by itself when the worker stops, as its protocol says.
    fn ends_itself(&self) -> bool;

    /// Whether it came through the socket of this address, as far as others end it for that.
    fn is_of(&self, address: &ListenAddress) -> bool;

    /// Ends it, as it is idle: what the client sent already is still answered.
    fn end_idle(&self);

    /// Ends it now.
    fn cut(&self);
}

/// Why a connection may be ended for another one; what comes first goes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Spare {
    /// The client has its answers.
    Idle,
    /// It has sent nothing.
    Silent,
    /// It has begun its first request, or a handshake, and takes its time.
    Slow,
}

/// How far a client is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stage {
    /// It has to say something before its first request is whole.
    Beginning,
    /// It has sent nothing of its first request.
    Silent,
    /// It has no request under way.
    Idle,
    /// It has.
    Busy,
}

/// A connection over TCP or a Unix socket.
#[derive(Debug)]
pub struct ConnectionHandle {
    pub io: Rc<Transport>,
    pub client: Rc<Client>,
    pub stage: Cell<Stage>,
    /// Whether it ends by itself when the worker stops, as its protocol says.
    pub ends_itself: Cell<bool>,
}

impl Connected for ConnectionHandle {
    fn is_idle(&self) -> bool {
        self.stage.get() == Stage::Idle
    }

    fn spare(&self) -> Option<Spare> {
        match self.stage.get() {
            Stage::Idle => Some(Spare::Idle),
            Stage::Silent => Some(Spare::Silent),
            Stage::Beginning if self.client.since.elapsed() >= limits::BEGINNING => {
                Some(Spare::Slow)
            }
            Stage::Beginning | Stage::Busy => None,
        }
    }

    fn ends_itself(&self) -> bool {
        self.ends_itself.get()
    }

    fn is_of(&self, address: &ListenAddress) -> bool {
        self.client.address == *address
    }

    fn end_idle(&self) {
        self.stage.set(Stage::Busy);
        self.io.shutdown(Shutdown::Read);
    }

    fn cut(&self) {
        self.stage.set(Stage::Busy);
        self.io.shutdown(Shutdown::Both);
    }
}

/// Serves a connection to its end, with any protocol.
pub async fn serve(handle: Rc<ConnectionHandle>, client: Rc<Client>, worker: Rc<dyn Host>) {
    let io = Rc::clone(&handle.io);
    // Boxed, as everything rare: a connection is moved when it starts.
    if is_proxied(&client, &worker) && !Box::pin(is_introduced(&io, &client, &worker)).await {
        return;
    }
    if let Transport::Tls(tls) = &*io {
        if !Box::pin(shake_hands(tls, &client, &worker)).await {
            return;
        }
    }
    let (speaks_h2, early) = match session::of(&client) {
        Some(session) => (session.speaks_h2(), BytesMut::new()),
        None if may_begin_h2(&client, &worker) => Box::pin(begins_h2(&io, &client, &worker)).await,
        None => (false, BytesMut::new()),
    };
    if speaks_h2 {
        handle.ends_itself.set(true);
        Box::pin(h2::serve(handle, client, worker, early)).await;
    } else {
        h1::serve(handle, client, worker, early).await;
    }
    io.notify_close();
}

/// Whether this socket expects a PROXY protocol header; also if the socket is gone: the reader reports that.
fn is_proxied(client: &Client, worker: &Rc<dyn Host>) -> bool {
    current_conf(client, worker).is_none_or(|conf| conf.socket(client).is_proxied)
}

/// Whether a client may speak HTTP/2 without TLS.
fn may_begin_h2(client: &Client, worker: &Rc<dyn Host>) -> bool {
    current_conf(client, worker).is_some_and(|conf| {
        let socket = conf.socket(client);
        let server = conf.server(socket.default_server).conf;
        !socket.is_tls && (socket.http2 || conf.location(server).of::<h2::Conf>().http2)
    })
}

/// Whether a client without TLS begins with HTTP/2's preface; and the bytes read to find out.
async fn begins_h2(io: &Transport, client: &Client, worker: &Rc<dyn Host>) -> (bool, BytesMut) {
    let mut early = BytesMut::new();
    let Some(conf) = current_conf(client, worker) else { return (false, early) };
    let timeout = default_core(&conf, client).client_header_timeout;
    // A silent client keeps no configuration alive.
    drop(conf);
    let read = async {
        while early.len() < h2::PREFACE.len() && h2::PREFACE.starts_with(&early) {
            if !matches!(io.read(&mut early).await, Ok(count) if count > 0) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(timeout, read).await;
    (early.starts_with(h2::PREFACE), early)
}

/// Reads what a proxy in front says of the client, where one does; `false` if it says nothing right.
async fn is_introduced(io: &Transport, client: &Rc<Client>, worker: &Rc<dyn Host>) -> bool {
    let Some(conf) = current_conf(client, worker) else { return false };
    let timeout = default_core(&conf, client).client_header_timeout;
    drop(conf);
    let mut header = Ok(None);
    let length = io.socket().read_part(|bytes| {
        header = proxy_protocol::read(bytes);
        match &header {
            Ok(Some((_, length))) => Some(*length),
            Ok(None) => None,
            Err(_) => Some(0),
        }
    });
    match tokio::time::timeout(timeout, length).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return false,
    }
    match header {
        Ok(Some((header, _))) => client.proxied.set(Box::new(header)).is_ok(),
        Ok(None) => false,
        Err(problem) => {
            let Some(conf) = current_conf(client, worker) else { return false };
            let server = conf.server(conf.socket(client).default_server).conf;
            let text = format!("{problem} while reading PROXY protocol");
            conf.location(server).error_log.connection(Level::Error, client, &text);
            false
        }
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Counts a handshake that came to a session. One with early data is resumed, and counted when that came.
fn count_handshake(is_resumed: bool) {
    add_one(&COUNTERS.handshakes);
    if is_resumed {
        add_one(&COUNTERS.handshakes_resumed);
    }
}

/// Shakes hands; `false` if nothing can follow.
async fn shake_hands(tls: &Tls, client: &Rc<Client>, worker: &Rc<dyn Host>) -> bool {
    let Some(conf) = current_conf(client, worker) else { return false };
    let core = default_core(&conf, client);
    let logs = &conf.location(conf.server(conf.socket(client).default_server).conf).error_log;
    let shaken = tokio::time::timeout(core.client_header_timeout, handshake(tls, client, &conf));
    match shaken.await {
        Ok(Ok(session)) => {
            count_handshake(session.is_resumed());
            let is_first = client.tls.set(Rc::new(session)).is_ok();
            debug_assert!(is_first, "a connection shakes hands once");
            true
        }
        Ok(Err(NoSession::Plain(early))) => {
            // Answered as what it is: with a page that says what is wrong.
            tls.speak_plainly(early);
            true
        }
        Ok(Err(NoSession::Failed(why))) => {
            add_one(&COUNTERS.handshakes_failed);
            let text = format!("SSL_do_handshake() failed ({why}) while SSL handshaking");
            logs.connection(Level::Info, client, &text);
            false
        }
        Ok(Err(NoSession::Challenge)) => {
            logs.connection(Level::Info, client, "answered an issuer's challenge (tls-alpn-01)");
            false
        }
        Ok(Err(NoSession::Closed)) => {
            add_one(&COUNTERS.handshakes_failed);
            logs.connection(Level::Info, client, "peer closed connection in SSL handshake");
            false
        }
        Err(_) => {
            add_one(&COUNTERS.handshakes_late);
            let text = "client timed out (110: Connection timed out) while SSL handshaking";
            logs.connection(Level::Info, client, text);
            false
        }
    }
}

/// The worker's configuration; `None` if it no longer has this connection's socket.
fn current_conf(client: &Client, worker: &Rc<dyn Host>) -> Option<Rc<WorkerConf>> {
    let conf = worker.conf();
    let is_same =
        |index: usize| conf.sockets.get(index).is_some_and(|s| s.address == client.address);
    if !is_same(client.listen.get()) {
        let index = conf.sockets.iter().position(|socket| socket.address == client.address)?;
        client.listen.set(index);
    }
    Some(conf)
}

/// As [`default_core`], once it is known which server a handshake named.
fn first_core<'c>(conf: &'c WorkerConf, client: &Client) -> &'c http_core::Conf {
    let server = conf.server(find_config::first_server(conf, client));
    conf.location(server.conf).http_core()
}

/// The settings that hold before a request's server is known.
fn default_core<'c>(conf: &'c WorkerConf, client: &Client) -> &'c http_core::Conf {
    let server = conf.server(conf.socket(client).default_server);
    conf.location(server.conf).http_core()
}
