//! What every gateway shares: directives, peers and retries, buffering, the cache in front.
//!
//! Way through: [`respond`] (cache, never waits) -> [`run`] (waits: disk, another maker, the request
//! body, the peer) -> [`fetch`] (peers, one after another) -> [`answer`] (head to response, what is
//! stored) -> [`arriving`] (the body, if it is there) -> [`pump`] (the rest, read ahead of the client).
//!
//! A protocol brings its directives, a [`Call`] (what it makes of the exchange) and a [`Codec`].

pub mod answer;
pub mod arriving;
pub mod call;
pub mod directives;
pub mod fetch;
mod hints;
pub mod pools;
pub mod pump;
pub mod run;
pub mod store;
pub mod stream;
pub mod target;
pub mod tunnel;
pub mod upload;

pub use call::{Call, Framing};
pub use directives::{Conf, Draft, Family, rows};
pub use run::run;
pub use target::Target;

use super::{Handler, Outcome, fastcgi, memcached, proxy};
use crate::cache;
use crate::config::compiled::LocationConf;
use crate::config::env::Upstream;
use crate::connection::body::Content;
use crate::exchange::Exchange;
use bytes::{Bytes, BytesMut};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_upstream::TlsOptions;
use yorozu_wire::WireError;

/// The protocol a location speaks, and to whom.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// `fastcgi_pass`
    Fastcgi(Arc<Target>),
    /// `proxy_pass`
    Proxy(Arc<proxy::Pass>),
    /// `memcached_pass`
    Memcached(Arc<memcached::Pass>),
}

impl Protocol {
    /// Where it goes, unless that is spelled anew for each request.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Fastcgi(target) => Some(target),
            Self::Proxy(pass) => pass.target(),
            Self::Memcached(pass) => Some(&pass.target),
        }
    }

    /// `fastcgi://`
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Fastcgi(_) => "fastcgi://",
            Self::Proxy(pass) if pass.scheme() == Some(proxy::Scheme::Https) => "https://",
            Self::Proxy(_) => "http://",
            Self::Memcached(_) => "memcached://",
        }
    }

    /// May connections be kept for another request?
    pub fn may_keep(&self, location: &LocationConf) -> bool {
        match self {
            Self::Fastcgi(_) => location.fastcgi.fastcgi_keep_conn,
            Self::Proxy(_) => location.proxy.proxy_http_version == proxy::HttpVersion::V11,
            // Its connections are kept by the pipelines.
            Self::Memcached(_) => false,
        }
    }

    /// The group for this exchange.
    ///
    /// # Errors
    /// The status the client gets.
    pub async fn upstream(&self, exchange: &mut Exchange) -> Result<Arc<Upstream>, u16> {
        match self {
            Self::Fastcgi(target) => target.upstream(exchange).await,
            Self::Proxy(pass) => pass.upstream(exchange).await,
            Self::Memcached(pass) => pass.target.upstream(exchange).await,
        }
    }

    /// May a body of unknown length be sent on while it arrives?
    pub fn takes_chunked(&self, location: &LocationConf) -> bool {
        match self {
            // PHP takes none without CONTENT_LENGTH; memcached none at all.
            Self::Fastcgi(_) | Self::Memcached(_) => false,
            Self::Proxy(_) => location.proxy.proxy_http_version == proxy::HttpVersion::V11,
        }
    }

    /// Fields of an answer that are not the client's, besides those of every gateway.
    pub fn hidden(&self) -> &'static [&'static [u8]] {
        match self {
            Self::Fastcgi(_) => &[b"status"],
            Self::Memcached(_) => &[],
            Self::Proxy(_) => &proxy::HIDDEN,
        }
    }

    /// Appends what of a request decides, beside its own bytes, what becomes of it: where it goes, and how its answer is
    /// rewritten.
    pub fn append_decided(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Fastcgi(target) => target.address.append(exchange, out),
            Self::Memcached(pass) => pass.target.address.append(exchange, out),
            Self::Proxy(_) => proxy::append_decided(exchange, &location.proxy, out),
        }
        let upstream = self.target().and_then(Target::fixed);
        if let Some(key) = upstream.and_then(|upstream| upstream.hash_key.as_ref()) {
            key.append(exchange, out);
        }
    }

    /// A field of an answer as the client shall see it; `None` if it stays as it is.
    pub fn rewritten(&self, exchange: &mut Exchange, name: &[u8], value: &[u8]) -> Option<Bytes> {
        match self {
            Self::Fastcgi(_) | Self::Memcached(_) => None,
            Self::Proxy(_) => {
                let conf = Rc::clone(&exchange.conf);
                let location = conf.location(exchange.location);
                proxy::rewritten(exchange, &location.proxy, name, value)
            }
        }
    }

    /// What the protocol makes of an exchange with this content.
    ///
    /// # Errors
    /// The status the client gets.
    pub fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16> {
        match self {
            Self::Fastcgi(_) => Ok(fastcgi::call(exchange, location, content)),
            Self::Proxy(pass) => pass.call(exchange, location, content),
            Self::Memcached(pass) => pass.call(exchange),
        }
    }
}

/// How connections of a location are encrypted, where no variable decides.
pub fn tls_options(protocol: &Protocol, location: &LocationConf) -> Option<TlsOptions> {
    match protocol {
        Protocol::Fastcgi(_) | Protocol::Memcached(_) => None,
        Protocol::Proxy(pass) => proxy::tls::client_options(pass, &location.proxy.tls),
    }
}

/// A response head as the protocol's codec read it.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub status: u16,
    pub reason: Option<Bytes>,
    /// Shared with the exchange's `$upstream_http_*`.
    pub fields: Rc<Vec<(Bytes, Bytes)>>,
}

impl Head {
    /// The values of `name`, in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Bytes> {
        self.fields
            .iter()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The first value of `name`.
    pub fn field<'a>(&'a self, name: &'a [u8]) -> Option<&'a Bytes> {
        self.values(name).next()
    }
}

/// Progress within a response body.
#[derive(Debug)]
pub enum BodyStep {
    Data(Bytes),
    NeedMore,
    End,
}

/// Why an upstream failed a request; decides about the next peer, stale entries and the status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It could not be reached, or closed the connection.
    Error,
    /// It did not answer in time.
    Timeout,
    /// Its answer broke the protocol.
    InvalidHead,
    /// It answered with this status, which counts as a failure here.
    Status(u16),
    /// All peers are taken out or tried.
    NoPeer,
}

impl Fault {
    /// The status the client gets.
    pub fn status(&self) -> u16 {
        match self {
            Self::Timeout => 504,
            Self::Status(status) => *status,
            Self::Error | Self::InvalidHead | Self::NoPeer => 502,
        }
    }
}

/// One protocol's reading side; state of one request on one connection.
pub trait Codec {
    /// Reads the response head; `Ok(None)` if more is needed.
    ///
    /// # Errors
    /// What the peer did wrong.
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError>;

    /// Reads on in the body.
    ///
    /// # Errors
    /// What the peer did wrong.
    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError>;

    /// The peer closed: is the response whole?
    fn is_whole_at_close(&self) -> bool;

    /// May the connection serve another request? Asked after the end of the body.
    fn is_reusable(&self) -> bool;

    /// Does the connection leave the protocol behind this head, as the client asked for? Only what speaks HTTP does.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Does the application say that its answer is as it should be? Asked after the end of the body.
    fn may_be_stored(&self) -> bool {
        true
    }

    /// Text the application wrote for the log since the last call.
    fn take_stderr(&mut self) -> Option<Bytes> {
        None
    }

    /// Fields behind the body. Asked after its end.
    fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        Vec::new()
    }

    /// nginx's words for a connection closed in the middle of the body.
    fn closed_early(&self) -> &'static str {
        "upstream prematurely closed connection"
    }
}

/// Why a codec gave up.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("upstream sent too big header while reading response header from upstream")]
    HeadTooBig,
    #[error("upstream closed the response early")]
    Incomplete,
    /// With nginx's words for it.
    #[error("{0}")]
    Invalid(String),
}

/// Looks into the cache; what cannot be answered from memory is left to [`run`].
pub fn respond(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    if let Handler::Gateway(Protocol::Proxy(pass)) = &location.handler {
        // The cache key may name it.
        if let Err(status) = pass.settle(exchange) {
            return Outcome::Status(status);
        }
    }
    let gateway = location.gateway();
    if gateway.cache.zone().is_none() || exchange.is_dry {
        return Outcome::Gateway;
    }
    cache::lookup(exchange, gateway).unwrap_or(Outcome::Gateway)
}
