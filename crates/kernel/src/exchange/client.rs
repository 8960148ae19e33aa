//! The client of a connection, as far as all of its requests share it.

use crate::config::servers::ListenAddress;
use bytes::Bytes;
use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;
use yorozu_wire::proxy_protocol::ProxyHeader;

/// What a TLS handshake came to.
pub trait TlsSession: Any + Debug {
    /// The name the client asked for, lower-cased.
    fn server_name(&self) -> Option<&Bytes>;

    /// Whether the client showed a certificate.
    fn has_certificate(&self) -> bool;
}

/// The client, as far as known.
#[derive(Debug)]
pub struct Remote {
    /// `None` for a Unix socket; port 0 where it is not known.
    pub address: Option<SocketAddr>,
    /// The address as logs show it; `unix:` for a Unix socket.
    pub text: String,
    /// The scheme that it spoke to a trusted proxy (`real_ip_scheme`); `None`: the connection's.
    pub scheme: Option<&'static [u8]>,
}

impl Remote {
    pub fn of(address: Option<SocketAddr>) -> Self {
        let text = address.map_or_else(|| "unix:".to_owned(), |address| address.ip().to_string());
        Self { address, text, scheme: None }
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip())
    }
}

/// What all requests of one connection share.
#[derive(Clone, Debug)]
pub struct Client {
    /// The other end.
    pub remote: Rc<Remote>,
    /// This end; `None` for a Unix socket.
    pub local: Option<SocketAddr>,
    /// Serial number, unique in the process.
    pub number: u64,
    /// When the connection was accepted.
    pub since: Instant,
    /// Requests begun so far.
    pub requests: Cell<u64>,
    /// The listening socket it came through.
    pub address: ListenAddress,
    /// That socket's place in the list of the present configuration.
    pub listen: Cell<usize>,
    /// What the handshake came to; unset for a connection without TLS.
    pub tls: OnceCell<Rc<dyn TlsSession>>,
    /// What a proxy in front said of it (`listen … proxy_protocol`).
    pub proxied: OnceCell<Box<ProxyHeader>>,
    /// A request that is only asked about: it counts as one over TLS.
    pub is_tls_assumed: bool,
    /// The name a client asks for in a handshake under way.
    pub asked_name: OnceCell<Box<Bytes>>,
}

impl Client {
    /// One that has asked for nothing yet, on a socket that is the first of the configuration until it is looked for.
    pub fn new(
        number: u64,
        address: ListenAddress,
        remote: Rc<Remote>,
        local: Option<SocketAddr>,
        since: Instant,
    ) -> Self {
        Self {
            remote,
            local,
            number,
            since,
            requests: Cell::new(0),
            address,
            listen: Cell::new(0),
            tls: OnceCell::new(),
            is_tls_assumed: false,
            asked_name: OnceCell::new(),
            proxied: OnceCell::new(),
        }
    }

    pub fn is_tls(&self) -> bool {
        self.is_tls_assumed || self.tls.get().is_some()
    }

    /// Whether the client showed a certificate.
    pub fn has_certificate(&self) -> bool {
        self.tls.get().is_some_and(|session| session.has_certificate())
    }

    /// The same client, at another address, that spoke `scheme` to a trusted proxy.
    pub fn at(&self, address: SocketAddr, scheme: Option<&'static [u8]>) -> Self {
        Self {
            remote: Rc::new(Remote { scheme, ..Remote::of(Some(address)) }),
            proxied: OnceCell::new(),
            asked_name: OnceCell::new(),
            ..self.clone()
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_tls() { b"https" } else { b"http" }
    }
}
