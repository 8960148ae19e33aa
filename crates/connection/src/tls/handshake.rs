//! The handshake: which server the client names decides the certificate and everything else.

use crate::h2;
use crate::quic;
use crate::tls::server::{ServerTls, Speaks};
use crate::tls::session::{Offered, Session, SessionId};
use crate::tls::stream::Tls;
use bytes::{Bytes, BytesMut};
use rustls::server::{Accepted, Acceptor};
use rustls::{ProtocolVersion, ServerConfig, ServerConnection};
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_acme::Acme;
use yorozu_acme::challenges::PROTOCOL;
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::request::Request;
use yorozu_kernel::exchange::request_body::RequestBody;
use yorozu_kernel::exchange::{Client, Exchange};
use yorozu_kernel::find_config;

/// First byte of a record that begins a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// Why there is no session.
#[derive(Debug)]
pub enum NoSession {
    /// The client speaks without TLS; what it said.
    Plain(BytesMut),
    /// The client went away.
    Closed,
    /// The handshake failed, for the reason given.
    Failed(String),
    /// It was an issuer's, which looks whether a name is this server's (tls-alpn-01): there is nothing else to say.
    Challenge,
}

/// Shakes hands; the caller bounds the time.
///
/// # Errors
/// [`NoSession`]
///
/// # Cancel safety
/// The connection can only be closed.
pub async fn handshake(
    tls: &Tls,
    client: &Rc<Client>,
    conf: &Rc<WorkerConf>,
) -> Result<Session, NoSession> {
    let accepted = hello(tls).await?;
    let offered = Offered::of(&accepted.client_hello());
    // Before any server is looked for: what it wants of clients is not an issuer's.
    if let Some(config) = challenge(&accepted, &offered, conf) {
        return Err(answer_challenge(tls, accepted, config).await);
    }
    let (server, config) = match choose(&offered, client, conf, speaks_over_tcp) {
        Ok(chosen) => chosen,
        Err((alert, why)) => {
            // Nothing is encrypted yet (RFC 8446, section 6): a fatal alert as it stands.
            let record = [21, 3, 3, 0, 2, 2, alert];
            let _ = tls.socket().write(&[IoSlice::new(&record)]).await;
            return Err(NoSession::Failed(why));
        }
    };
    let mut session = begin(tls, accepted, config).await?;
    let id = SessionId::random();
    // Comes back with the session when it is resumed.
    session.set_resumption_data(&id.0);
    tls.begin(session);
    let early = shake(tls).await?;
    tls.keep_early(early);
    let session = tls.with_session(|session| {
        let resumed = session.received_resumption_data().and_then(|id| id.try_into().ok());
        Session::new(session, offered, resumed.map_or(id, SessionId))
    });
    let session = session.ok_or(NoSession::Closed)?;
    if let Some(auth) = &server_tls(conf, server).client_auth {
        session.verification(Some(auth));
    }
    Ok(session)
}

/// The session of a client's first message; else it is told why there is none.
async fn begin(
    tls: &Tls,
    accepted: Accepted,
    config: Arc<ServerConfig>,
) -> Result<ServerConnection, NoSession> {
    match accepted.into_connection(config) {
        Ok(session) => Ok(session),
        Err((problem, mut alert)) => {
            let mut record = Vec::new();
            let _ = alert.write_all(&mut record);
            let _ = tls.socket().write(&[IoSlice::new(&record)]).await;
            Err(NoSession::Failed(problem.to_string()))
        }
    }
}

/// Shakes hands to the end; what came behind that.
async fn shake(tls: &Tls) -> Result<BytesMut, NoSession> {
    let mut early = BytesMut::new();
    loop {
        let state = tls.with_session(|session| {
            let may_wait = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
            (session.is_handshaking(), may_wait)
        });
        if let Some((false, true)) = state {
            // All that is left to say are tickets: they go with the first response.
            break;
        }
        tls.flush().await.map_err(|_| NoSession::Closed)?;
        if !matches!(state, Some((true, _))) {
            break;
        }
        match tls.receive(&mut early).await {
            Ok(true) => {}
            Ok(false) => return Err(NoSession::Closed),
            Err(problem) if problem.kind() == std::io::ErrorKind::InvalidData => {
                return Err(NoSession::Failed(problem.to_string()));
            }
            Err(_) => return Err(NoSession::Closed),
        }
    }
    Ok(early)
}

/// Settings for a client that asks for nothing but tls-alpn-01 (RFC 8737, section 3), about a name that is being ordered.
fn challenge(
    accepted: &Accepted,
    offered: &Offered,
    conf: &WorkerConf,
) -> Option<Arc<ServerConfig>> {
    let hello = accepted.client_hello();
    let mut protocols = hello.alpn()?;
    if protocols.next() != Some(PROTOCOL) || protocols.next().is_some() {
        return None;
    }
    conf.shared.of::<Acme>().challenges().alpn(offered.server_name.as_ref()?)
}

async fn answer_challenge(tls: &Tls, accepted: Accepted, config: Arc<ServerConfig>) -> NoSession {
    match begin(tls, accepted, config).await {
        Ok(session) => tls.begin(session),
        Err(why) => return why,
    }
    match shake(tls).await {
        // The issuer closes as soon as it has seen the certificate.
        Ok(_) | Err(NoSession::Closed) => NoSession::Challenge,
        Err(why) => why,
    }
}

/// Reads the client's first message.
async fn hello(tls: &Tls) -> Result<Accepted, NoSession> {
    let mut acceptor = Acceptor::default();
    let mut is_first = true;
    loop {
        let mut bytes = BytesMut::new();
        let read = tls.socket().read(usize::MAX, |part| bytes.extend_from_slice(part)).await;
        match (read, bytes.first()) {
            (Ok(count), Some(first)) if count > 0 => {
                if is_first && *first != HANDSHAKE {
                    return Err(NoSession::Plain(bytes));
                }
            }
            _ => return Err(NoSession::Closed),
        }
        is_first = false;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            acceptor
                .read_tls(&mut rest)
                .map_err(|problem| NoSession::Failed(problem.to_string()))?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((problem, mut alert)) => {
                let mut record = Vec::new();
                let _ = alert.write_all(&mut record);
                let _ = tls.socket().write(&[IoSlice::new(&record)]).await;
                return Err(NoSession::Failed(problem.to_string()));
            }
        }
    }
}

/// TLS alerts (RFC 8446, section 6.2).
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;
const NO_APPLICATION_PROTOCOL: u8 = 120;

type Chosen = (ServerId, Arc<ServerConfig>);

/// What a server speaks, if anything.
type SpeaksBy = fn(&WorkerConf, &Client, ServerId) -> Option<Speaks>;

fn speaks_over_tcp(conf: &WorkerConf, client: &Client, server: ServerId) -> Option<Speaks> {
    let socket = conf.socket(client);
    let settings = conf.location(conf.server(server).conf);
    let may_use_h2 = socket.http2 || settings.of::<h2::Conf>().http2;
    Some(if may_use_h2 { Speaks::Http1Or2 } else { Speaks::Http1 })
}

/// What a server speaks over QUIC.
pub fn speaks_over_quic(conf: &WorkerConf, _: &Client, server: ServerId) -> Option<Speaks> {
    let own: &quic::directives::Conf = conf.of_server(server);
    match (own.http3, own.http3_hq) {
        (true, true) => Some(Speaks::Http3OrHq),
        (true, false) => Some(Speaks::Http3),
        (false, true) => Some(Speaks::Hq),
        (false, false) => None,
    }
}

/// The server a client names, and its settings; else the alert, and the reason for the log.
///
/// # Errors
/// The alert, and the reason for the log.
pub fn choose(
    offered: &Offered,
    client: &Rc<Client>,
    conf: &Rc<WorkerConf>,
    speaks: SpeaksBy,
) -> Result<Chosen, (u8, String)> {
    let socket = conf.socket(client);
    let exchange = || {
        let request = Request::unread(Bytes::new());
        Exchange::new(Rc::clone(conf), Rc::clone(client), request, RequestBody::none())
    };
    let named = offered.server_name.as_ref();
    let named = named.map_or(Ok(None), |name| find_config::server_of(&mut exchange(), name));
    let Ok(named) = named else {
        return Err((INTERNAL_ERROR, "it cannot be told which server has the name".to_owned()));
    };
    let server = named.unwrap_or(socket.default_server);
    let tls = server_tls(conf, server);
    if tls.rejects {
        return Err((UNRECOGNIZED_NAME, "the server rejects handshakes".to_owned()));
    }
    let shows = if tls.has_certificate() { server } else { socket.default_server };
    let tls = server_tls(conf, shows);
    let Some(speaks) = speaks(conf, client, server) else {
        return Err((NO_APPLICATION_PROTOCOL, "the server speaks no protocol here".to_owned()));
    };
    let with_name = || {
        let mut exchange = exchange();
        (exchange.server, exchange.location) = (shows, conf.server(shows).conf);
        if let Some(name) = &offered.server_name {
            let _ = exchange.client.asked_name.set(Box::new(name.clone()));
        }
        exchange
    };
    match tls.config(speaks, with_name) {
        Ok(Some(config)) => Ok((server, config)),
        Ok(None) => Err((INTERNAL_ERROR, "the server has no certificate".to_owned())),
        Err(why) => Err((INTERNAL_ERROR, why)),
    }
}

fn server_tls(conf: &WorkerConf, server: ServerId) -> &ServerTls {
    conf.of_server(server)
}
