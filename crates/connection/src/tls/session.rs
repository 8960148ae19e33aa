//! What is known of a connection's TLS once its handshake is over, and the variables that show it.

use crate::tls::client_auth::{ClientAuth, Verification};
use crate::tls::server::ServerTls;
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use rustls::server::ClientHello;
use rustls::{CipherSuite, CommonState, HandshakeKind, NamedGroup, ProtocolVersion};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::sync::Arc;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::client::{Client, TlsSession};
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_tls::{ciphers, names, x509};

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

/// What a client offers.
#[derive(Debug)]
pub struct Offered {
    /// Lower-cased, without a dot at the end.
    pub server_name: Option<Bytes>,
    pub suites: Vec<rustls::CipherSuite>,
    pub groups: Vec<rustls::NamedGroup>,
}

impl Offered {
    pub fn of(hello: &ClientHello<'_>) -> Self {
        Self {
            server_name: hello.server_name().map(|name| {
                // As nginx: a name with the root's dot is the name without it.
                let name = name.strip_suffix('.').unwrap_or(name);
                name.to_ascii_lowercase().into()
            }),
            suites: hello.cipher_suites().to_vec(),
            groups: hello.named_groups().unwrap_or_default().to_vec(),
        }
    }
}

/// The outcome of a handshake.
#[derive(Debug)]
pub struct Session {
    offered: Offered,
    version: Option<ProtocolVersion>,
    suite: Option<CipherSuite>,
    group: Option<NamedGroup>,
    alpn: Bytes,
    /// Whether its requests come before the handshake is over: another client may send them once more.
    pub is_early: Cell<bool>,
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
    first: Option<Verification>,
    /// By those that were asked last.
    by: Vec<(Arc<ClientAuth>, Verification)>,
}

/// Judgements that are kept for one connection; chosen.
const JUDGED_MAX: usize = 8;

impl TlsSession for Session {
    fn server_name(&self) -> Option<&Bytes> {
        self.offered.server_name.as_ref()
    }

    fn has_certificate(&self) -> bool {
        !self.chain.is_empty()
    }
}

/// What the handshake of a client came to, if its connection has TLS.
pub fn of(client: &Client) -> Option<&Session> {
    let session: &dyn Any = &**client.tls.get()?;
    session.downcast_ref()
}

impl Session {
    /// Whether it goes on with an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    pub fn new(session: &CommonState, offered: Offered, id: SessionId) -> Self {
        Self {
            id,
            is_early: Cell::new(false),
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

    /// The protocol that was agreed on.
    pub fn alpn(&self) -> &[u8] {
        &self.alpn
    }

    /// Whether HTTP/2 was agreed on.
    pub fn speaks_h2(&self) -> bool {
        self.alpn == "h2"
    }

    /// What a server says of the client's certificate, whichever server the handshake was with; a
    /// server that asks for none shows what that server says.
    pub fn verification(&self, auth: Option<&Arc<ClientAuth>>) -> Verification {
        let mut judged = self.judged.borrow_mut();
        let Some(auth) = auth else { return judged.first.clone().unwrap_or(Verification::None) };
        // By address: a reload makes new rules, with other lists and authorities.
        if let Some((_, known)) = judged.by.iter().find(|(by, _)| Arc::ptr_eq(by, auth)) {
            return known.clone();
        }
        let verification = auth.verify(&self.chain);
        judged.first.get_or_insert_with(|| verification.clone());
        if judged.by.len() == JUDGED_MAX {
            judged.by.remove(0);
        }
        judged.by.push((Arc::clone(auth), verification.clone()));
        verification
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
    let shown = of(&exchange.client).and_then(show);
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

/// Whether it is a value that clients send to keep servers from relying on the known ones (RFC 8701).
fn is_grease(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

fn ciphers(session: &Session) -> Option<String> {
    let known = session.offered.suites.iter().copied();
    let known: Vec<_> = known.filter(|suite| !is_grease(u16::from(*suite))).collect();
    join(&known, ciphers::cipher)
}

fn curves(session: &Session) -> Option<String> {
    let known = session.offered.groups.iter().copied();
    let known: Vec<_> = known.filter(|group| !is_grease(u16::from(*group))).collect();
    join(&known, names::curve)
}

fn verdict(exchange: &Exchange, session: &Session) -> Option<String> {
    let tls: &ServerTls = exchange.conf.of_server(exchange.server);
    Some(match session.verification(tls.client_auth.as_ref()) {
        Verification::None => "NONE".to_owned(),
        Verification::Success => "SUCCESS".to_owned(),
        Verification::Failed(_, words) => format!("FAILED:{words}"),
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
pub const VARIABLES: &[Row] = &[
    ("ssl_protocol", Variable::Builtin(|ex, out| with(ex, out, version))),
    ("ssl_cipher", Variable::Builtin(|ex, out| with(ex, out, |s| s.suite.map(ciphers::cipher)))),
    ("ssl_ciphers", Variable::Builtin(|ex, out| with(ex, out, ciphers))),
    ("ssl_curve", Variable::Builtin(|ex, out| with(ex, out, |s| s.group.map(names::curve)))),
    ("ssl_curves", Variable::Builtin(|ex, out| with(ex, out, curves))),
    (
        "ssl_server_name",
        Variable::Builtin(|ex, out| match (of(&ex.client), ex.client.asked_name.get()) {
            (Some(session), _) => session.server_name().is_some_and(|name| put(out, name)),
            (None, asked) => asked.is_some_and(|name| put(out, name)),
        }),
    ),
    (
        "ssl_alpn_protocol",
        Variable::Builtin(|ex, out| of(&ex.client).is_some_and(|s| put(out, &s.alpn))),
    ),
    (
        "ssl_session_id",
        Variable::Builtin(|ex, out| {
            with(ex, out, |s| Some(base16ct::lower::encode_string(&s.id.0)))
        }),
    ),
    (
        "ssl_session_reused",
        Variable::Builtin(|ex, out| {
            with(ex, out, |s| Some(if s.is_resumed { "r" } else { "." }.to_owned()))
        }),
    ),
    (
        "ssl_early_data",
        Variable::Builtin(|ex, out| {
            of(&ex.client).is_some_and(|s| s.is_early.get()) && put(out, b"1")
        }),
    ),
    ("ssl_client_verify", Variable::Builtin(|ex, out| with(ex, out, |s| verdict(ex, s)))),
    ("ssl_client_raw_cert", Variable::Builtin(|ex, out| with_certificate(ex, out, x509::pem))),
    (
        "ssl_client_cert",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::pem(c).map(|pem| indented(&pem)))
        }),
    ),
    (
        "ssl_client_escaped_cert",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::pem(c).map(|pem| escaped(&pem)))
        }),
    ),
    (
        "ssl_client_s_dn",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::name(c, x509::Who::Subject))
        }),
    ),
    (
        "ssl_client_i_dn",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::name(c, x509::Who::Issuer))
        }),
    ),
    (
        "ssl_client_s_dn_legacy",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::legacy_name(c, x509::Who::Subject))
        }),
    ),
    (
        "ssl_client_i_dn_legacy",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| x509::legacy_name(c, x509::Who::Issuer))
        }),
    ),
    ("ssl_client_serial", Variable::Builtin(|ex, out| with_certificate(ex, out, x509::serial))),
    (
        "ssl_client_fingerprint",
        Variable::Builtin(|ex, out| with_certificate(ex, out, |c| Some(x509::fingerprint(c)))),
    ),
    (
        "ssl_client_v_start",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| Some(x509::date(x509::validity(c)?.0)))
        }),
    ),
    (
        "ssl_client_v_end",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| Some(x509::date(x509::validity(c)?.1)))
        }),
    ),
    (
        "ssl_client_v_remain",
        Variable::Builtin(|ex, out| {
            with_certificate(ex, out, |c| Some(x509::days_left(c)?.to_string()))
        }),
    ),
];
