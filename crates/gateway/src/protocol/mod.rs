//! What a gateway asks of the protocol that it speaks.
//!
//! FastCGI, uwsgi, SCGI, HTTP and memcached implement [`Protocol`], each in its own folder; the gateway and the cache know nothing
//! else of them. A protocol makes a [`Call`] of an exchange, reads the answer with a
//! [`Codec`](codec::Codec), and has its own directives beside those that are stamped with its prefix
//! ([`family`]).

pub mod call;
pub mod codec;
pub mod family;
pub mod fault;
pub mod target;
pub mod tls;
pub mod usual;

use crate::upstream::Upstream;
use bytes::Bytes;
use call::Call;
use family::HasFamily;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use target::Target;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_kernel::exchange::handler::Handler;
use yorozu_upstream::TlsOptions;

/// The protocol a location speaks, and its target: what its `*_pass` says.
///
/// What has a default here is what most protocols say.
pub trait Protocol: HasFamily + Any + Debug + Send + Sync {
    /// Where it goes, unless each request spells it.
    fn target(&self) -> Option<&Target>;

    /// The group for this exchange; what has no [`Protocol::target`] says it itself.
    ///
    /// # Errors
    /// The status the client gets.
    fn upstream<'a>(&'a self, exchange: &'a mut Exchange) -> Later<'a, Result<Arc<Upstream>, u16>> {
        Box::pin(async {
            match self.target() {
                Some(target) => target.upstream(exchange).await,
                None => Err(500),
            }
        })
    }

    /// `fastcgi://`
    fn scheme(&self) -> &'static str;

    /// What it makes of an exchange with this content.
    ///
    /// # Errors
    /// The status the client gets.
    fn call(
        &self,
        exchange: &mut Exchange,
        location: &LocationConf,
        content: Content,
    ) -> Result<Call, u16>;

    /// Finds out what the cache key may say of where this exchange goes.
    ///
    /// # Errors
    /// The status the client gets.
    fn resolve(&self, _exchange: &mut Exchange) -> Result<(), u16> {
        Ok(())
    }

    /// Whether connections may be kept for another request.
    fn may_keep(&self, location: &LocationConf) -> bool;

    /// Whether a connection has a state of its own ([`Talk::Within`](call::Talk)): then only those of such requests are
    /// used.
    fn has_sessions(&self, _location: &LocationConf) -> bool {
        false
    }

    /// Whether connections may have to be encrypted.
    fn may_use_tls(&self) -> bool {
        false
    }

    /// How connections are encrypted, where no variable decides.
    fn tls(&self, _location: &LocationConf) -> Option<TlsOptions> {
        None
    }

    /// Whether a body of unknown length may be sent on while it arrives.
    fn takes_chunked(&self, _location: &LocationConf) -> bool {
        false
    }

    /// Whether requests have other content than the client's.
    fn replaces_content(&self, _location: &LocationConf) -> bool {
        false
    }

    /// Gives `each` what the configuration sends in the place of the client's field of this name; `false` if it says
    /// nothing of that, and the client's goes on.
    fn each_set(
        &self,
        _location: &LocationConf,
        _name: &[u8],
        _each: &mut dyn FnMut(SetTo<'_>),
    ) -> bool {
        false
    }

    /// Whether the client's field of this name goes on as it is.
    fn passes_on(&self, location: &LocationConf, name: &[u8]) -> bool {
        !self.each_set(location, name, &mut |_| ())
    }

    /// Whether the client gets an answer's trailers.
    fn passes_trailers(&self, _location: &LocationConf) -> bool {
        false
    }

    /// Fields of an answer that are not the client's, besides those of every gateway.
    fn hidden(&self) -> &'static [&'static [u8]] {
        &[]
    }

    /// A field of an answer as the client shall see it; `None` if it stays as it is.
    fn rewritten(&self, _exchange: &mut Exchange, _name: &[u8], _value: &[u8]) -> Option<Bytes> {
        None
    }

    /// The line for the log if this status says that there is no such page; the client gets the server's own 404 then.
    fn miss(&self, _status: u16) -> Option<&'static str> {
        None
    }

    /// Whether answers say their type; else it follows from the path.
    fn says_type(&self) -> bool {
        true
    }

    /// Whether answers have fields, which variables show.
    fn has_fields(&self) -> bool {
        true
    }

    /// Whether it leads to a server of HTTP, which judges the conditions of requests by itself; else this server is the
    /// origin, and has to (RFC 9110, section 13.2.1).
    fn judges_conditions(&self) -> bool {
        false
    }

    /// Whether ranges of its answers are always cut here, as others' are with `*_force_ranges`.
    fn forces_ranges(&self) -> bool {
        false
    }

    /// Whether a GET is sent for a HEAD, so that the page can be stored.
    fn asks_head_as_get(&self, _location: &LocationConf) -> bool {
        false
    }

    /// Appends the key of a stored page where `*_cache_key` says nothing; of protocols that have one
    /// ([`Family::has_default_key`]).
    fn default_key(&self, _exchange: &mut Exchange, _location: &LocationConf, _key: &mut Vec<u8>) {}
}

/// What a field is set to.
pub enum SetTo<'a> {
    /// The same for each request.
    Text(&'a [u8]),
    Spelled(&'a Template),
}

/// The handler of a location whose content is another server's; what it does is the gateway's.
#[derive(Debug)]
pub struct Gateway(pub Box<dyn Protocol>);

/// The protocol that a location speaks, if its content is another server's.
pub fn of(location: &LocationConf) -> Option<&dyn Protocol> {
    location.handler.downcast_ref().map(|Gateway(protocol)| &**protocol)
}

/// What a handler's `*_pass` says, if it speaks this protocol.
pub fn spoken_by<P: Protocol>(handler: &dyn Handler) -> Option<&P> {
    let Gateway(protocol) = handler.downcast_ref()?;
    let protocol: &dyn Any = &**protocol;
    protocol.downcast_ref()
}
