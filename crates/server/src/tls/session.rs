//! What is known of a connection's TLS once its handshake is over, and the variables that show it.

use super::client_auth::{ClientAuth, Judgement};
use super::handshake::Offered;
use super::{names, x509};
use crate::config::compiled::ServerId;
use crate::exchange::Exchange;
use crate::exchange::variables::Getter;
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion, ServerConnection};
use std::cell::RefCell;
use std::io::Write as _;
use std::sync::Arc;

/// What a session is known by: the library does not tell its own, so it carries this one.
#[derive(Clone, Copy, Debug)]
pub struct SessionId(pub [u8; 32]);

impl SessionId {
    /// One that no other session has.
    pub fn random() -> Self {
        let mut id = [0; 32];
        // Without randomness there is no handshake either.
        let _ = aws_lc_rs::rand::fill(&mut id);
        Self(id)
    }
}

/// The outcome of a handshake.
#[derive(Debug)]
pub struct Session {
    /// The server the client named, or the default one.
    pub server: ServerId,
    offered: Offered,
    version: Option<ProtocolVersion>,
    suite: Option<CipherSuite>,
    group: Option<NamedGroup>,
    alpn: Bytes,
    is_resumed: bool,
    id: SessionId,
    /// The client's certificate and those behind it.
    chain: Vec<CertificateDer<'static>>,
    judged: RefCell<Judged>,
}

/// What servers say of the client's certificate, each by its own rules.
#[derive(Debug, Default)]
struct Judged {
    /// By the server of the handshake, for those that ask for no certificate.
    first: Option<Judgement>,
    /// By those that were asked last.
    by: Vec<(Arc<ClientAuth>, Judgement)>,
}

/// Judgements that are kept for one connection; chosen.
const JUDGED_MAX: usize = 8;

impl Session {
    pub fn new(
        session: &ServerConnection,
        offered: Offered,
        server: ServerId,
        id: SessionId,
    ) -> Self {
        let resumed = session.received_resumption_data().and_then(|id| id.try_into().ok());
        Self {
            id: resumed.map_or(id, SessionId),
            server,
            offered,
            version: session.protocol_version(),
            suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            alpn: Bytes::copy_from_slice(session.alpn_protocol().unwrap_or_default()),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            chain: session.peer_certificates().unwrap_or_default().to_vec(),
            judged: RefCell::default(),
        }
    }

    /// Was HTTP/2 agreed on?
    pub fn speaks_h2(&self) -> bool {
        self.alpn == "h2"
    }

    /// The name the client asked for, lower-cased.
    pub fn server_name(&self) -> Option<&Bytes> {
        self.offered.server_name.as_ref()
    }

    /// What a server says of the client's certificate, whichever server the handshake was with; one
    /// that asks for none shows what that one says.
    pub fn judgement(&self, auth: Option<&Arc<ClientAuth>>) -> Judgement {
        let mut judged = self.judged.borrow_mut();
        let Some(auth) = auth else { return judged.first.clone().unwrap_or(Judgement::None) };
        // By address: a reload makes rules of its own, with other lists and authorities.
        if let Some((_, known)) = judged.by.iter().find(|(by, _)| Arc::ptr_eq(by, auth)) {
            return known.clone();
        }
        let judgement = auth.judge(&self.chain);
        judged.first.get_or_insert_with(|| judgement.clone());
        if judged.by.len() == JUDGED_MAX {
            judged.by.remove(0);
        }
        judged.by.push((Arc::clone(auth), judgement.clone()));
        judgement
    }

    fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }
}

fn put(out: &mut Vec<u8>, text: &[u8]) -> bool {
    out.extend_from_slice(text);
    !text.is_empty()
}

/// Appends what `show` makes of the session, if there is one.
fn with(
    exchange: &Exchange,
    out: &mut Vec<u8>,
    show: impl FnOnce(&Session) -> Option<String>,
) -> bool {
    let shown = exchange.client.tls.get().and_then(|session| show(session));
    shown.is_some_and(|text| put(out, text.as_bytes()))
}

/// As [`with`], of the client's certificate.
fn with_certificate(
    exchange: &Exchange,
    out: &mut Vec<u8>,
    show: impl FnOnce(&CertificateDer<'static>) -> Option<String>,
) -> bool {
    with(exchange, out, |session| show(session.certificate()?))
}

fn join<T: Copy>(items: &[T], name: fn(T) -> String) -> Option<String> {
    Some(items.iter().map(|item| name(*item)).collect::<Vec<_>>().join(":"))
}

/// Is it a value that clients send to keep servers from relying on the known ones (RFC 8701)?
fn is_grease(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

fn ciphers(session: &Session) -> Option<String> {
    let known = session.offered.suites.iter().copied();
    let known: Vec<_> = known.filter(|suite| !is_grease(u16::from(*suite))).collect();
    join(&known, names::cipher)
}

fn curves(session: &Session) -> Option<String> {
    let known = session.offered.groups.iter().copied();
    let known: Vec<_> = known.filter(|group| !is_grease(u16::from(*group))).collect();
    join(&known, names::curve)
}

fn verdict(exchange: &Exchange, session: &Session) -> Option<String> {
    let server = exchange.conf.server(exchange.server);
    Some(match session.judgement(server.tls.client_auth.as_ref()) {
        Judgement::None => "NONE".to_owned(),
        Judgement::Success => "SUCCESS".to_owned(),
        Judgement::Failed(_, words) => format!("FAILED:{words}"),
    })
}

fn version(session: &Session) -> Option<String> {
    let name = match session.version? {
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        _ => return None,
    };
    Some(name.to_owned())
}

/// PEM with every line but the first indented, so that it can be sent as a field's value.
fn indented(pem: &str) -> String {
    pem.trim_end().replace('\n', "\n\t")
}

fn escaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

/// The variables `$ssl_*`.
pub fn getter(name: &str) -> Option<Getter> {
    use x509::Who::{Issuer, Subject};
    Some(match name {
        "ssl_protocol" => |ex, out| with(ex, out, version),
        "ssl_cipher" => |ex, out| with(ex, out, |s| s.suite.map(names::cipher)),
        "ssl_ciphers" => |ex, out| with(ex, out, ciphers),
        "ssl_curve" => |ex, out| with(ex, out, |s| s.group.map(names::curve)),
        "ssl_curves" => |ex, out| with(ex, out, curves),
        "ssl_server_name" => |ex, out| match (ex.client.tls.get(), ex.client.asked_name.get()) {
            (Some(session), _) => session.server_name().is_some_and(|name| put(out, name)),
            (None, asked) => asked.is_some_and(|name| put(out, name)),
        },
        "ssl_alpn_protocol" => |ex, out| ex.client.tls.get().is_some_and(|s| put(out, &s.alpn)),
        "ssl_session_id" => |ex, out| with(ex, out, |s| Some(x509::hex(&s.id.0, false))),
        "ssl_session_reused" => {
            |ex, out| with(ex, out, |s| Some(if s.is_resumed { "r" } else { "." }.to_owned()))
        }
        "ssl_early_data" => |_, _| false,
        "ssl_client_verify" => |ex, out| with(ex, out, |s| verdict(ex, s)),
        "ssl_client_raw_cert" => |ex, out| with_certificate(ex, out, x509::pem),
        "ssl_client_cert" => {
            |ex, out| with_certificate(ex, out, |c| x509::pem(c).map(|pem| indented(&pem)))
        }
        "ssl_client_escaped_cert" => {
            |ex, out| with_certificate(ex, out, |c| x509::pem(c).map(|pem| escaped(&pem)))
        }
        "ssl_client_s_dn" => |ex, out| with_certificate(ex, out, |c| x509::name(c, Subject)),
        "ssl_client_i_dn" => |ex, out| with_certificate(ex, out, |c| x509::name(c, Issuer)),
        "ssl_client_s_dn_legacy" => {
            |ex, out| with_certificate(ex, out, |c| x509::legacy_name(c, Subject))
        }
        "ssl_client_i_dn_legacy" => {
            |ex, out| with_certificate(ex, out, |c| x509::legacy_name(c, Issuer))
        }
        "ssl_client_serial" => |ex, out| with_certificate(ex, out, x509::serial),
        "ssl_client_fingerprint" => {
            |ex, out| with_certificate(ex, out, |c| Some(x509::fingerprint(c)))
        }
        "ssl_client_v_start" => {
            |ex, out| with_certificate(ex, out, |c| Some(x509::date(x509::validity(c)?.0)))
        }
        "ssl_client_v_end" => {
            |ex, out| with_certificate(ex, out, |c| Some(x509::date(x509::validity(c)?.1)))
        }
        "ssl_client_v_remain" => {
            |ex, out| with_certificate(ex, out, |c| Some(x509::days_left(c)?.to_string()))
        }
        _ => return None,
    })
}
