//! What every gateway shares: directives, peers and retries, buffering, the cache in front.
//!
//! Way through: [`respond`] (cache, never waits) -> [`run`] (waits: disk, another maker, the request
//! body, the peer) -> [`fetch`] (peers, one after another) -> [`answer`] (head to response, what is
//! stored) -> [`stream`] (the body, read ahead of the client).

pub mod answer;
pub mod directives;
pub mod fetch;
pub mod run;
pub mod store;
pub mod stream;

pub use directives::{Conf, Draft, Family, rows};
pub use run::run;

use super::Outcome;
use crate::cache;
use crate::config::directive::ValueError;
use crate::config::env::{Env, Upstream};
use crate::config::template::Template;
use crate::exchange::Exchange;
use bytes::{Bytes, BytesMut};
use std::rc::Rc;
use std::sync::OnceLock;
use yorozu_wire::WireError;

/// Where a `*_pass` goes.
#[derive(Debug)]
pub struct Target {
    /// As written.
    pub address: Template,
    /// The group, if no variable stands in the address.
    upstream: OnceLock<Upstream>,
}

impl Target {
    pub fn new(address: Template) -> Self {
        Self { address, upstream: OnceLock::new() }
    }

    /// Finds the group once all `upstream` blocks are read.
    ///
    /// # Errors
    /// The address names no group and cannot be resolved.
    pub fn resolve(&self, env: &Env) -> Result<(), ValueError> {
        if let (Some(text), None) = (self.address.as_literal(), self.upstream.get()) {
            let text = String::from_utf8_lossy(&text).into_owned();
            let _ = self.upstream.set(super::upstream::named(env, &text, 0)?);
        }
        Ok(())
    }

    /// The group for this exchange; `None` if what the variables spell is no address.
    pub fn upstream(&self, exchange: &mut Exchange) -> Option<Upstream> {
        if let Some(upstream) = self.upstream.get() {
            return Some(upstream.clone());
        }
        let text = String::from_utf8_lossy(&self.address.value(exchange)).into_owned();
        if let Some(upstream) = exchange.conf.upstreams.get(&text) {
            return Some(upstream.clone());
        }
        // Only literal addresses: a name would block the worker while it is resolved.
        let is_literal = text.starts_with("unix:") || text.parse::<std::net::SocketAddr>().is_ok();
        let peers = is_literal.then(|| super::upstream::peer_addresses(&text, 0).ok())??;
        let peers = peers.into_iter().map(yorozu_upstream::PeerOptions::new).collect();
        let group = std::sync::Arc::new(yorozu_upstream::Group::new(text, peers));
        Some(Upstream { group, keepalive: None })
    }
}

/// A response head as the protocol's codec read it.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub status: u16,
    pub reason: Option<Bytes>,
    pub fields: Vec<(Bytes, Bytes)>,
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

    /// Text the application wrote for the log since the last call.
    fn take_stderr(&mut self) -> Option<Bytes>;
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
}

/// Looks into the cache; what cannot be answered from memory is left to [`run`].
pub fn respond(exchange: &mut Exchange) -> Outcome {
    let conf = Rc::clone(&exchange.conf);
    let gateway = &conf.location(exchange.location).fastcgi.gateway;
    if gateway.cache.zone().is_none() {
        return Outcome::Gateway;
    }
    cache::lookup(exchange, gateway).unwrap_or(Outcome::Gateway)
}
