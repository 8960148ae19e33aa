//! The directives of HTTP/2.

use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::types::Size;

const HTTP_SERVER: Contexts = HTTP | SERVER;

settings! {
    /// Whether clients may speak HTTP/2.
    http2: bool = "off", ONE, HTTP_SERVER;
    /// How much of a request's body a client may send before it is read.
    http2_body_preread_size: Size = "64k", ONE, HTTP_SERVER;
    /// Longest piece of a response's body in one frame.
    http2_chunk_size: Size = "16k", ONE, HTTP_SERVER_LOCATION;
    /// Requests of one connection that are answered at once.
    http2_max_concurrent_streams: u64 = "128", ONE, HTTP_SERVER;
}

const OBSOLETE: &str = "it is obsolete, nginx itself does not use it any more";
const NO_PUSH: &str = "responses are not pushed; nginx itself does not do it any more";

/// Rows without effect.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "http2_recv_buffer_size",
        HTTP,
        Arity::ONE,
        Action::Ignored("memory is taken as needed", once::<Size>),
        "Buffer for input.",
    ),
    Directive::row(
        "http2_idle_timeout",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"keepalive_timeout\", as nginx says itself", anything),
        "Silence after which a connection is closed.",
    ),
    Directive::row(
        "http2_recv_timeout",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"client_header_timeout\", as nginx says itself", anything),
        "Time in which the client must send on.",
    ),
    Directive::row(
        "http2_max_requests",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"keepalive_requests\", as nginx says itself", anything),
        "Requests after which a connection is closed.",
    ),
    Directive::row(
        "http2_max_field_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"large_client_header_buffers\", as nginx says itself", anything),
        "Longest field of a request.",
    ),
    Directive::row(
        "http2_max_header_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"large_client_header_buffers\", as nginx says itself", anything),
        "Longest head of a request.",
    ),
    Directive::row(
        "http2_pool_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(OBSOLETE, anything),
        "Pool of memory.",
    ),
    Directive::row(
        "http2_streams_index_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(OBSOLETE, anything),
        "Table of streams.",
    ),
    Directive::row(
        "http2_max_concurrent_pushes",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(NO_PUSH, once::<u64>),
        "Responses pushed at once.",
    ),
    Directive::row(
        "http2_push",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored(NO_PUSH, anything),
        "Pushes a response.",
    ),
    Directive::row(
        "http2_push_preload",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        Action::Ignored(NO_PUSH, once::<bool>),
        "Pushes what the response names.",
    ),
];
