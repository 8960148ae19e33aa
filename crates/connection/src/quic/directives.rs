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
    /// Whether clients may speak HTTP/0.9 over QUIC (`hq-interop`), as interoperability tests do.
    http3_hq: bool = "off", ONE, HTTP_SERVER;
    /// Requests on one connection that are handled at once.
    http3_max_concurrent_streams: u64 = "128", ONE, HTTP_SERVER;
    /// How much of a request body a client may send before it is read.
    http3_stream_buffer_size: Size = "64k", ONE, HTTP_SERVER;
    /// Whether several datagrams are sent with one system call, where supported (`UDP_SEGMENT`).
    quic_gso: bool = "on", ONE, HTTP_SERVER;
    /// Secret for tokens, stateless resets and connection IDs; if not set, one is generated at startup.
    quic_host_key: Option<HostKey> = none, ONE, HTTP_SERVER;
    /// Whether clients must first prove that they own the address they send from.
    quic_retry: bool = "off", ONE, HTTP_SERVER;
}

/// Rows without effect.
pub const OTHERS: &[Directive] = &[
    Directive::row(
        "quic_active_connection_id_limit",
        HTTP_SERVER,
        Arity::ONE,
        Action::Ignored("five per client are kept", once::<u64>),
        "How many connection IDs of a client are kept.",
    ),
    Directive::row(
        "quic_bpf",
        MAIN,
        Arity::ONE,
        Action::Ignored("a worker that gets another worker's datagram hands it over", once::<bool>),
        "Whether the system delivers a migrated client's datagrams to its worker.",
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
