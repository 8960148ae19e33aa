//! The directives of HTTP/2.

use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::types::Size;

const HTTP_SERVER: Contexts = HTTP | SERVER;

settings! {
    /// Whether clients may speak HTTP/2.
    http2: bool = "off", ONE, HTTP_SERVER;
    /// How much of a request body a client may send before it is read.
    http2_body_preread_size: Size = "64k", ONE, HTTP_SERVER;
    /// Longest piece of a response body in one frame.
    http2_chunk_size: Size = "16k", ONE, HTTP_SERVER_LOCATION;
    /// Requests on one connection that are handled at once.
    http2_max_concurrent_streams: u64 = "128", ONE, HTTP_SERVER;
}

const OBSOLETE: &str = "it is obsolete; nginx itself no longer uses it";
const NO_PUSH: &str = "responses are not pushed; nginx itself no longer pushes any";

/// Rows without effect.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "http2_recv_buffer_size",
        HTTP,
        Arity::ONE,
        Action::Ignored("memory is allocated as needed", once::<Size>),
        "Input buffer.",
    ),
    Directive::row(
        "http2_idle_timeout",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"keepalive_timeout\", as nginx itself advises", anything),
        "Idle time after which a connection is closed.",
    ),
    Directive::row(
        "http2_recv_timeout",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"client_header_timeout\", as nginx itself advises", anything),
        "Time within which the client must send more.",
    ),
    Directive::row(
        "http2_max_requests",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"keepalive_requests\", as nginx itself advises", anything),
        "Requests after which a connection is closed.",
    ),
    Directive::row(
        "http2_max_field_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"large_client_header_buffers\", as nginx itself advises", anything),
        "Longest header of a request.",
    ),
    Directive::row(
        "http2_max_header_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("use \"large_client_header_buffers\", as nginx itself advises", anything),
        "Longest head of a request.",
    ),
    Directive::row(
        "http2_pool_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(OBSOLETE, anything),
        "Memory pool.",
    ),
    Directive::row(
        "http2_streams_index_size",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored(OBSOLETE, anything),
        "Size of the stream table.",
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
        "Pushes resources that the response names.",
    ),
];
