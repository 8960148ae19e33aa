//! Bytes on the wire: HTTP/1 heads and chunked bodies, HTTP/2 and HTTP/3 frames and fields, FastCGI records, the heads of SCGI and
//! uwsgi, memcached's text protocol, Redis' protocol, the PROXY protocol.
//!
//! # Invariants
//! - Pure: slices in, values with offsets out; no allocation that a peer can grow without bound.
//! - Decoders say "not enough yet" by `Ok(None)` or a `Partial`, and then have consumed nothing.
//! - What two readers could understand differently is refused, never repaired (request smuggling).
//!
//! # Sources
//! RFC 9112; RFC 9113; RFC 7541; RFC 9114; RFC 9204; FastCGI specification 1.0; SCGI's and uWSGI's; memcached's protocol.txt; Redis' protocol specification; haproxy.org's PROXY protocol; nginx's `ngx_http_parse.c` behaviour as observed from
//! outside, noted where it differs from the RFC.

mod eights;
pub mod fastcgi;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod huffman;
pub mod memcached;
mod packed;
pub mod proxy_protocol;
pub mod redis;
pub mod scgi;
mod table;
mod target;
pub mod uwsgi;

/// What breaks the rules of HTTP/2 or HTTP/3, by the codes of either, and what it ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Broken<C> {
    /// The connection is over.
    #[error("{1}")]
    Connection(C, &'static str),
    /// The stream is over.
    #[error("{1}")]
    Stream(C, &'static str),
}

/// Why bytes of a peer cannot be understood.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The method holds a byte other than `A-Z`, `_` or `-`.
    #[error("client sent invalid method")]
    Method,
    /// The request line breaks the grammar.
    #[error("client sent invalid request")]
    RequestLine,
    /// A version this server does not speak: 505.
    #[error("client sent invalid version")]
    Version,
    /// A field line breaks the grammar.
    #[error("client sent invalid header line")]
    FieldLine,
    /// A status line or CGI header of an upstream breaks the grammar.
    #[error("upstream sent invalid header")]
    UpstreamHead,
    /// A status line of an upstream breaks the grammar.
    #[error("upstream sent no valid HTTP/1.0 header")]
    UpstreamStatus,
    /// An answer of memcached breaks its protocol.
    #[error("memcached sent invalid response")]
    Memcached,
    /// An answer of Redis breaks its protocol.
    #[error("redis sent invalid response")]
    Redis,
    /// An answer of Redis is longer, or has more items, than any that is asked for.
    #[error("the answer is too long")]
    RedisLength,
    /// Neither version of the PROXY protocol.
    #[error("broken PROXY protocol header")]
    Proxy,
    /// A chunk size, its extension or its end breaks the grammar.
    #[error("client sent invalid chunked body")]
    Chunk,
    /// A FastCGI record of another protocol version.
    #[error("upstream sent unsupported FastCGI protocol version: {0}")]
    FastcgiVersion(u8),
    /// A FastCGI record of an unexpected type.
    #[error("upstream sent invalid FastCGI record type: {0}")]
    FastcgiType(u8),
    /// A FastCGI record for another request.
    #[error("upstream sent unexpected FastCGI request id: {0}")]
    FastcgiRequestId(u16),
}
