//! TLS inside of QUIC (RFC 9001): the library's cryptography, by the settings of the server that a client names.
//!
//! The client's first message is collected until it is whole; the server it names then decides the rest, as over TCP.
//! Sessions are the library's to hold, and may belong to any thread for it. What they need of their worker - the client,
//! and the configuration - is found by the connection's number in a table of the worker's thread ([`Guest`]).

use super::paths::{Paths, watched};
use crate::tls::handshake::{choose, speaks_over_quic};
use crate::tls::session::{Offered, Session as TlsSession, SessionId};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use quinn::crypto::{
    ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn::{ConnectionId, Side, TransportErrorCode};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};
use rustls::server::Acceptor;
use rustls::{CipherSuite, Side as TlsSide};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Cursor;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_kernel::base::tasks;
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::Client;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_tls::provider;

/// The one version that is spoken.
pub(super) const VERSION: u32 = 1;

/// TLS alerts (RFC 8446, section 6.2).
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;

/// Type and length of a handshake message.
const MESSAGE_HEAD_BYTES: usize = 4;
/// The largest content of a record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// A client that shakes hands, and the configuration it does so by, with its socket's place there.
type Known = (Rc<Client>, Rc<WorkerConf>, usize);

thread_local! {
    static GUESTS: RefCell<HashMap<u64, Known>> = RefCell::default();
}

/// A client that shakes hands, in its thread's table.
pub(super) struct Guest(u64);

impl Guest {
    pub(super) fn new(client: &Rc<Client>, conf: Rc<WorkerConf>) -> Self {
        let socket = conf.sockets.iter().position(|socket| socket.address == client.address);
        let known = (Rc::clone(client), conf, socket.unwrap_or_default());
        GUESTS.with_borrow_mut(|guests| guests.insert(client.number, known));
        Self(client.number)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // At the end of the thread there is no table any more.
        let _ = GUESTS.try_with(|guests| guests.borrow_mut().remove(&self.0));
    }
}

fn guest(number: u64) -> Option<Known> {
    GUESTS.with_borrow(|guests| guests.get(&number).cloned())
}

/// The cipher of first packets.
pub(super) fn first_suite() -> Option<Suite> {
    let is_first = |suite: CipherSuite| suite == CipherSuite::TLS13_AES_128_GCM_SHA256;
    let mut suites = provider().cipher_suites.iter().filter(|suite| is_first(suite.suite()));
    suites.find_map(|suite| suite.tls13()?.quic_suite())
}

/// The cryptography of one connection, or (without a number) of what comes before any.
pub(super) struct Crypto {
    suite: Suite,
    connection: Option<(u64, Arc<Paths>)>,
}

impl Crypto {
    /// For a connection: its number, and where its client is.
    pub(super) fn new(suite: Suite, connection: Option<(u64, Arc<Paths>)>) -> Arc<Self> {
        Arc::new(Self { suite, connection })
    }
}

impl ServerConfig for Crypto {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        match version {
            VERSION => Ok(first_keys(&self.suite, id, TlsSide::Server)),
            _ => Err(UnsupportedVersion),
        }
    }

    fn retry_tag(&self, _version: u32, first_id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        retry_tag(first_id, packet)
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut written = Vec::new();
        parameters.write(&mut written);
        let (number, paths) = self.connection.clone().expect("it begins with a connection");
        Box::new(Handshake {
            number,
            paths,
            suite: self.suite,
            next: None,
            is_known: false,
            state: State::Hello { bytes: Vec::new(), parameters: written },
        })
    }
}

/// RFC 9001, section 5.8.
fn retry_tag(first_id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
    const KEY: [u8; 16] = [
        0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8,
        0x4e,
    ];
    const NONCE: [u8; 12] =
        [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let length = u8::try_from(first_id.len()).expect("IDs have 20 bytes at most");
    let pseudo = [&[length], &first_id[..], packet].concat();
    let key = UnboundKey::new(&AES_128_GCM, &KEY).expect("a key of the right length");
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let sealed =
        LessSafeKey::new(key).seal_in_place_separate_tag(nonce, Aad::from(&pseudo), &mut []);
    let mut tag = [0; 16];
    tag.copy_from_slice(sealed.expect("nothing is sealed").as_ref());
    tag
}

fn first_keys(suite: &Suite, id: &ConnectionId, side: TlsSide) -> Keys {
    keys(suite.keys(id, side, Version::V1))
}

fn keys(keys: rustls::quic::Keys) -> Keys {
    let rustls::quic::Keys { local, remote } = keys;
    Keys {
        header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
        packet: KeyPair { local: Box::new(local.packet), remote: Box::new(remote.packet) },
    }
}

/// How far a handshake is.
enum State {
    /// The client's first message is not whole; with our transport parameters, as they are written.
    Hello {
        bytes: Vec<u8>,
        parameters: Vec<u8>,
    },
    Begun(Box<Begun>),
    Failed,
}

struct Begun {
    tls: ServerConnection,
    server: ServerId,
    /// Until it is known what the handshake comes to.
    offered: Option<Offered>,
}

/// A handshake, and the keys behind it.
struct Handshake {
    number: u64,
    paths: Arc<Paths>,
    suite: Suite,
    next: Option<Secrets>,
    /// Whether the library was told that the client's first message was read.
    is_known: bool,
    state: State,
}

fn alert(code: u8, reason: String) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(code), frame: None, reason }
}

fn gone() -> TransportError {
    alert(INTERNAL_ERROR, "the handshake is over".to_owned())
}

impl Handshake {
    fn tls(&self) -> Option<&ServerConnection> {
        match &self.state {
            State::Begun(begun) => Some(&begun.tls),
            _ => None,
        }
    }

    /// Keys of the packets that a client moves with.
    fn watched(
        &self,
        local: Box<dyn rustls::quic::PacketKey>,
        remote: Box<dyn rustls::quic::PacketKey>,
    ) -> KeyPair<Box<dyn PacketKey>> {
        KeyPair { local: watched(local, &self.paths), remote: watched(remote, &self.paths) }
    }

    /// Chooses the server once the client's first message is whole; `None` before.
    fn begin(&mut self, more: &[u8]) -> Result<Option<Vec<u8>>, TransportError> {
        let State::Hello { bytes, parameters } = &mut self.state else { return Ok(None) };
        bytes.extend_from_slice(more);
        let Some([_, length @ ..]) = bytes.first_chunk::<MESSAGE_HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if bytes.len() < MESSAGE_HEAD_BYTES + length {
            return Ok(None);
        }
        let (bytes, parameters) = (std::mem::take(bytes), std::mem::take(parameters));
        self.state = State::Failed;
        let offered = read_hello(&bytes[..MESSAGE_HEAD_BYTES + length])?;
        let (client, conf, socket) = guest(self.number).ok_or_else(gone)?;
        client.listen.set(socket);
        // The library holds locks that a panic would leave shut to all connections.
        let chosen = tasks::guard(|| choose(&offered, &client, &conf, speaks_over_quic));
        let chosen = chosen.map_err(|panicked| alert(INTERNAL_ERROR, panicked.to_string()))?;
        let (server, config) = chosen.map_err(|(code, why)| alert(code, why))?;
        let tls = ServerConnection::new(config, Version::V1, parameters)
            .map_err(|problem| alert(INTERNAL_ERROR, problem.to_string()))?;
        self.state = State::Begun(Box::new(Begun { tls, server, offered: Some(offered) }));
        Ok(Some(bytes))
    }
}

impl Begun {
    fn read(&mut self, bytes: &[u8], number: u64) -> Result<(), TransportError> {
        self.tls.read_hs(bytes).map_err(|problem| {
            let code = self.tls.alert().map_or(INTERNAL_ERROR, u8::from);
            alert(code, problem.to_string())
        })?;
        self.note(number);
        Ok(())
    }

    /// Tells the client's requests what the handshake came to: when it is over, or when requests come before that.
    fn note(&mut self, number: u64) {
        let is_early = self.tls.is_handshaking();
        if is_early && self.tls.zero_rtt_keys().is_none() {
            return;
        }
        let Some((client, conf, _)) = guest(number) else { return };
        if let Some(offered) = self.offered.take() {
            let session = TlsSession::new(&self.tls, offered, SessionId::random());
            if let Some(auth) =
                &conf.of_server::<crate::tls::server::ServerTls>(self.server).client_auth
            {
                session.verification(Some(auth));
            }
            // It is set here alone.
            let _ = client.tls.set(Rc::new(session));
        }
        if let Some(session) = crate::tls::session::of(&client) {
            session.is_early.set(is_early);
        }
    }
}

/// What the client offers in its first message.
fn read_hello(message: &[u8]) -> Result<Offered, TransportError> {
    let refuse = |problem: &dyn std::fmt::Display| alert(DECODE_ERROR, problem.to_string());
    let mut acceptor = Acceptor::default();
    for part in message.chunks(RECORD_BYTES) {
        let length = u16::try_from(part.len()).expect("a record's length").to_be_bytes();
        let record = [&[22, 3, 1], &length[..], part].concat();
        acceptor.read_tls(&mut Cursor::new(record)).map_err(|problem| refuse(&problem))?;
    }
    match acceptor.accept() {
        Ok(Some(accepted)) => Ok(Offered::of(&accepted.client_hello())),
        Ok(None) => Err(alert(DECODE_ERROR, "not a client's first message".to_owned())),
        Err((problem, _)) => Err(refuse(&problem)),
    }
}

impl Session for Handshake {
    fn initial_keys(&self, id: &ConnectionId, side: Side) -> Keys {
        let side = if side == Side::Client { TlsSide::Client } else { TlsSide::Server };
        first_keys(&self.suite, id, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        // What is known stands with the client.
        self.is_known.then(|| Box::new(()) as Box<dyn Any>)
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.tls()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.tls().is_none_or(|tls| tls.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let hello = self.begin(bytes)?;
        match &mut self.state {
            State::Hello { .. } => return Ok(false),
            State::Begun(begun) => begun.read(hello.as_deref().unwrap_or(bytes), self.number)?,
            State::Failed => return Err(gone()),
        }
        Ok(!std::mem::replace(&mut self.is_known, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(written) = self.tls().and_then(|tls| tls.quic_transport_parameters()) else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(written))?))
    }

    fn write_handshake(&mut self, into: &mut Vec<u8>) -> Option<Keys> {
        let State::Begun(begun) = &mut self.state else { return None };
        Some(match begun.tls.write_hs(into)? {
            KeyChange::Handshake { keys: changed } => keys(changed),
            KeyChange::OneRtt { keys: changed, next } => {
                self.next = Some(next);
                let rustls::quic::Keys { local, remote } = changed;
                let header: KeyPair<Box<dyn HeaderKey>> =
                    KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) };
                Keys { header, packet: self.watched(local.packet, remote.packet) }
            }
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(self.watched(keys.local, keys.remote))
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Servers are sent none.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // Nothing here asks for any.
        Err(ExportKeyingMaterialError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_retry_is_that_of_the_rfc() {
        // RFC 9001, appendix A.4.
        let id = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]);
        let packet = b"\xff\x00\x00\x00\x01\x00\x08\xf0\x67\xa5\x50\x2a\x42\x62\xb5token";
        let tag = retry_tag(&id, packet);
        assert_eq!(tag, *b"\x04\xa2\x65\xba\x2e\xff\x4d\x82\x90\x58\xfb\x3f\x0f\x24\x96\xba");
    }
}
