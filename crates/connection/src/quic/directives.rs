//! The directives of QUIC and HTTP/3.

use bytes::Bytes;
use yorozu_conf::os_error;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::files::read_regular;
use yorozu_kernel::config::types::Size;

const HTTP_SERVER: Contexts = HTTP | SERVER;

settings! {
    /// Whether clients may speak HTTP/3.
    http3: bool = "on", ONE, HTTP_SERVER;
    /// Whether clients may speak HTTP/0.9 over QUIC (`hq-interop`), as tests between implementations do.
    http3_hq: bool = "off", ONE, HTTP_SERVER;
    /// Requests of one connection that are answered at once.
    http3_max_concurrent_streams: u64 = "128", ONE, HTTP_SERVER;
    /// How much of a request's body a client may send before it is read.
    http3_stream_buffer_size: Size = "64k", ONE, HTTP_SERVER;
    /// Whether several datagrams are given to the system with one call, where it takes them (`UDP_SEGMENT`).
    quic_gso: bool = "on", ONE, HTTP_SERVER;
    /// Secret that tokens, stateless resets and connection IDs are made with; without, one is drawn at the start.
    quic_host_key: Option<HostKey> = none, ONE, HTTP_SERVER;
    /// Whether clients must show first that they are at the address they send from.
    quic_retry: bool = "off", ONE, HTTP_SERVER;
}

/// Rows without effect.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "quic_active_connection_id_limit",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("five of a client's are kept", once::<u64>),
        "Connection IDs of a client that are kept.",
    ),
    Directive::row(
        "quic_bpf",
        MAIN,
        Arity::ONE,
        Action::Ignored("a worker that gets another one's datagram hands it over", once::<bool>),
        "Whether the system brings the datagrams of a client that moved to its worker.",
    ),
];

/// `quic_host_key`
#[derive(Clone, Eq, PartialEq)]
pub struct HostKey(pub Bytes);

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey")
    }
}

impl Setting for HostKey {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let path = args.env.conf_prefix.join(args.text(0));
        let key = read_regular(&path).map_err(|problem| {
            ValueError(format!("open() \"{}\" failed ({})", path.display(), os_error(&problem)))
        })?;
        match key.is_empty() {
            true => Err(ValueError(format!("\"{}\" zero key size", path.display()))),
            false => Ok(Self(key)),
        }
    }
}
