//! A worker's end of an address: what arrives becomes connections.

use super::alarm::Alarm;
use super::crypto::{Crypto, Guest, VERSION, first_suite};
use super::directives::Conf;
use super::ids::Ids;
use super::keys::Keys;
use super::paths::Paths;
use super::socket::Sockets;
use super::switch::Switch;
use super::tokens::Tokens;
use crate::add_one;
use crate::tls::server::ServerTls;
use quinn::{
    AckFrequencyConfig, AsyncTimer, AsyncUdpSocket, Connecting, EndpointConfig, IdleTimeout,
    Incoming, MtuDiscoveryConfig, Runtime, ServerConfig, TransportConfig, ValidationTokenConfig,
    VarInt,
};
use rustls::quic::Suite;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::base::{address, limits, tasks};
use yorozu_kernel::config::servers::{ListenAddress, ServerId};
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::logging::error::Level;

/// Streams in one direction that a client has: those of RFC 9114, section 6.2, and RFC 9204; as nginx.
const ONE_WAY_STREAMS: u32 = 3;
/// Packets that a client need not acknowledge at once, and how long, where it knows the extension for it
/// (draft-ietf-quic-ack-frequency); chosen: half of what may be under way first, so that none is waited for. Each
/// acknowledgment costs as much as a packet that is sent.
const UNACKNOWLEDGED: u32 = 5;
const UNACKNOWLEDGED_TIME: Duration = Duration::from_millis(10);

/// The worker's event loop, as the library needs it.
#[derive(Debug)]
struct Loop;

impl Runtime for Loop {
    fn new_timer(&self, moment: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Alarm::new(moment.into()))
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tasks::of_request(work);
    }

    fn wrap_udp_socket(&self, _: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// Takes connections at an address until it is dropped; those that it has go on.
pub struct Endpoint {
    inner: quinn::Endpoint,
    sockets: Arc<Sockets>,
    address: SocketAddr,
    keys: Keys,
    suite: Suite,
    tokens: Arc<Tokens>,
    /// Handshakes under way.
    handshakes: Rc<Cell<usize>>,
    /// Whether clients have to show where they are because of those.
    is_pressed: Cell<bool>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.sockets.close();
        self.inner.set_server_config(None);
    }
}

/// A connection whose handshake has begun.
pub struct Opening {
    pub(crate) connecting: Connecting,
    pub(crate) handshake: Handshake,
    pub(crate) paths: Arc<Paths>,
    /// Whether the client has shown, by a token, that it receives what goes to its address.
    pub(crate) is_proved: bool,
}

/// A handshake under way.
pub(crate) struct Handshake {
    _guest: Guest,
    count: Rc<Cell<usize>>,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

/// The default server of an address.
fn default_server(conf: &WorkerConf, address: SocketAddr) -> Option<ServerId> {
    let address = ListenAddress::Udp(address);
    let socket = conf.sockets.iter().find(|socket| socket.address == address)?;
    Some(socket.default_server)
}

impl Endpoint {
    /// Reads `sockets`, which are the worker's alone.
    ///
    /// # Errors
    /// As the system has it.
    pub fn open(
        address: SocketAddr,
        sockets: &[UdpSocket],
        switch: &Arc<Switch>,
        conf: &WorkerConf,
    ) -> io::Result<Self> {
        let failed = || io::Error::other("no cryptography for QUIC");
        let settings = default_server(conf, address).map(|server| conf.of_server::<Conf>(server));
        let secret = settings.and_then(|conf| conf.quic_host_key.as_ref()).map(|key| &key.0[..]);
        let suite = first_suite().ok_or_else(failed)?;
        let joined = switch.join(address, secret).map_err(|_| failed())?;
        let keys = joined.keys.clone();
        let ids = Ids::new(keys.clone(), joined.number);
        let log = conf.error_log.clone();
        let sockets = Sockets::new(sockets, address, ids.clone(), Arc::clone(switch), joined, log)?;
        let sockets = Arc::new(sockets);
        let mut config = EndpointConfig::new(Arc::clone(&keys.reset));
        config.supported_versions(vec![VERSION]);
        config.cid_generator(move || Box::new(ids.clone()));
        let tokens = Arc::new(Tokens::default());
        let general = server_config(&Crypto::new(suite, None), &keys, &tokens, None);
        let inner = quinn::Endpoint::new_with_abstract_socket(
            config,
            Some(general),
            Arc::clone(&sockets) as Arc<dyn AsyncUdpSocket>,
            Arc::new(Loop),
        )?;
        let (handshakes, is_pressed) = (Rc::default(), Cell::new(false));
        Ok(Self { inner, sockets, address, keys, suite, tokens, handshakes, is_pressed })
    }

    /// The next client that has shown what it has to show; `None` if the endpoint is of no use any more.
    pub async fn next(&self, conf: impl Fn() -> Rc<WorkerConf>) -> Option<Incoming> {
        loop {
            let incoming = self.inner.accept().await?;
            if incoming.remote_address_validated() || !incoming.may_retry() {
                return Some(incoming);
            }
            let conf = conf();
            let Some(server) = default_server(&conf, self.address) else {
                incoming.ignore();
                continue;
            };
            if !conf.of_server::<Conf>(server).quic_retry && !self.is_pressed(&conf) {
                return Some(incoming);
            }
            // It may be asked: that was looked at.
            let _ = incoming.retry();
        }
    }

    /// Whether more handshakes are under way than are begun with clients that may not be where they say.
    fn is_pressed(&self, conf: &WorkerConf) -> bool {
        let is_pressed = self.handshakes.get() > limits::QUIC_HANDSHAKES_MAX / 2;
        if is_pressed != self.is_pressed.replace(is_pressed) && is_pressed {
            let count = self.handshakes.get();
            conf.error_log.process(
                Level::Warn,
                &format!("{count} QUIC handshakes are under way at {}: clients have to prove their addresses for now", self.address),
            );
        }
        is_pressed
    }

    /// Begins a handshake with the settings of the present configuration; `None` if nothing can follow.
    pub fn begin(
        &self,
        incoming: Incoming,
        client: &Rc<Client>,
        conf: &Rc<WorkerConf>,
    ) -> Option<Opening> {
        let Some(server) = default_server(conf, self.address) else {
            incoming.refuse();
            return None;
        };
        if self.handshakes.get() >= limits::QUIC_HANDSHAKES_MAX {
            // It asks again.
            incoming.ignore();
            return None;
        }
        self.handshakes.set(self.handshakes.get() + 1);
        let count = Rc::clone(&self.handshakes);
        let handshake = Handshake { _guest: Guest::new(client, Rc::clone(conf)), count };
        let (peer, is_proved) = (incoming.remote_address(), incoming.remote_address_validated());
        let paths = Paths::new(peer);
        let crypto = Crypto::new(self.suite, Some((client.number, Arc::clone(&paths))));
        let config = server_config(&crypto, &self.keys, &self.tokens, Some((conf, server, peer)));
        match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => Some(Opening { connecting, handshake, paths, is_proved }),
            // Its first message was read, and nothing can come of it.
            Err(problem) => {
                add_one(&COUNTERS.handshakes_failed);
                let text = format!("quic handshake failed ({problem}) while SSL handshaking");
                let logs = &conf.location(conf.server(server).conf).error_log;
                logs.connection(Level::Info, client, &text);
                None
            }
        }
    }
}

/// What the library is told for a server; without one, for what comes before it is known.
fn server_config(
    crypto: &Arc<Crypto>,
    keys: &Keys,
    tokens: &Arc<Tokens>,
    server: Option<(&WorkerConf, ServerId, SocketAddr)>,
) -> ServerConfig {
    let crypto = Arc::clone(crypto) as Arc<dyn quinn::crypto::ServerConfig>;
    let mut config = ServerConfig::new(crypto, Arc::clone(&keys.token));
    config.max_incoming(limits::QUIC_INCOMING_MAX);
    config.incoming_buffer_size(limits::QUIC_INCOMING_BYTES);
    config.incoming_buffer_size_total(limits::QUIC_INCOMING_BYTES);
    let mut validation = ValidationTokenConfig::default();
    validation.log(Arc::clone(tokens) as Arc<dyn quinn::TokenLog>);
    validation.lifetime(limits::QUIC_TOKEN_LIFETIME);
    if let Some((conf, server, peer)) = server {
        // Those who come again with one need not be asked where they are, and their early requests need not wait.
        let is_of_use = conf.of_server::<Conf>(server).quic_retry
            || conf.of_server::<ServerTls>(server).has_early_data;
        validation.sent(u32::from(is_of_use));
        config.transport_config(Arc::new(transport(conf, server, peer)));
    }
    config.validation_token_config(validation);
    config
}

fn transport(conf: &WorkerConf, server: ServerId, peer: SocketAddr) -> TransportConfig {
    let own: &Conf = conf.of_server(server);
    let core = conf.location(conf.server(server).conf).http_core();
    let number = |value: u64| VarInt::from_u64(value).unwrap_or(VarInt::MAX);
    let room = own.http3_stream_buffer_size.bytes() as u64;
    let streams = own.http3_max_concurrent_streams;
    // 0 would be for ever.
    let idle = match core.keepalive_timeout.timeout {
        timeout if timeout.is_zero() => core.client_header_timeout,
        timeout => timeout,
    };
    let mut acknowledgments = AckFrequencyConfig::default();
    acknowledgments
        .ack_eliciting_threshold(UNACKNOWLEDGED.into())
        .max_ack_delay(Some(UNACKNOWLEDGED_TIME));
    let mut transport = TransportConfig::default();
    // Each datagram costs about the same, whatever its length. What the route does not take need not be tried.
    if let Some(bytes) = address::route_datagram_bytes(peer) {
        let (least, most) = limits::QUIC_DATAGRAM_BYTES;
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(bytes.clamp(least, most));
        transport.mtu_discovery_config(Some(discovery));
    }
    transport
        .ack_frequency_config(Some(acknowledgments))
        .max_concurrent_bidi_streams(number(streams))
        .max_concurrent_uni_streams(ONE_WAY_STREAMS.into())
        .stream_receive_window(number(room))
        .receive_window(number(streams.saturating_mul(room)))
        .send_window(limits::QUIC_SEND_BYTES)
        .max_idle_timeout(IdleTimeout::try_from(idle).ok())
        .datagram_receive_buffer_size(None)
        .enable_segmentation_offload(own.quic_gso);
    transport
}
