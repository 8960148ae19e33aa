//! `ssl_stapling`: asks the responder of a certificate's authority for the certificate's state (RFC 6960),
//! and keeps the answer with the certificate until there is a newer one.

use crate::tls::server::ServerTls;
use arc_swap::ArcSwap;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use bytes::{Bytes, BytesMut};
use der::asn1::{Null, ObjectIdentifier, OctetString};
use der::{Any, Decode as _, Encode as _};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;
use x509_cert::Certificate;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityInfoAccessSyntax, ExtendedKeyUsage};
use x509_cert::spki::AlgorithmIdentifierOwned;
use yorozu_http::uri::{Escape, escape_into};
use yorozu_kernel::base::faults;
use yorozu_kernel::config::servers::LocationId;
use yorozu_kernel::exchange::conf::{Config, WorkerConf};
use yorozu_kernel::exchange::credentials::encode_base64;
use yorozu_kernel::logging::error::Level;
use yorozu_tls::ocsp::{
    BasicOcspResponse, CertId, CertStatus, OcspRequest, OcspResponse, OcspResponseStatus, Request,
    TbsRequest,
};
use yorozu_tls::signature::is_signed;
use yorozu_upstream::{Connection, PeerAddress, SocketOptions};
use yorozu_wire::h1::AnswerReader;

const SHA1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
/// id-ad-ocsp
const RESPONDER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1");
/// id-kp-OCSPSigning
const SIGNS_ANSWERS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.9");

/// Longest time between two questions; nginx's.
const INTERVAL_MAX: Duration = Duration::from_secs(60 * 60);
/// Time until the next question after a failure; nginx's.
const PAUSE: Duration = Duration::from_secs(5 * 60);
/// Time for one question and its answer; nginx's.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of an answer's content; chosen, usual ones have some thousand.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// A request is asked by GET if its encoded form is shorter, in bytes (RFC 6960, appendix A.1).
const GET_BYTES_MAX: usize = 255;
/// How far clocks may differ; nginx's.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// A certificate with its key, replaced when there is a new answer about it.
pub type Stapled = Arc<ArcSwap<CertifiedKey>>;

/// What is asked about a certificate, and where.
#[derive(Debug)]
pub struct Question {
    certificate: Stapled,
    issuer: Certificate,
    id: CertId,
    responder: Responder,
    /// Held by the worker that asks.
    turn: Mutex<()>,
}

/// `http://host:port/path`
#[derive(Clone, Debug, Eq, PartialEq)]
struct Responder {
    host: String,
    port: u16,
    path: String,
}

impl Question {
    /// `url` is `ssl_stapling_responder`; else the certificate names its responder.
    ///
    /// # Errors
    /// Why there is no responder to ask, in nginx's words.
    pub fn new(
        certificate: &Stapled,
        trusted: &[CertificateDer<'_>],
        url: Option<&str>,
    ) -> Result<Self, &'static str> {
        let chain = certificate.load_full();
        let parse = |der: &CertificateDer<'_>| Certificate::from_der(der).ok();
        let own = chain.cert.first().and_then(parse).ok_or("certificate cannot be read")?;
        let others = chain.cert.iter().skip(1).chain(trusted).filter_map(parse);
        let issuer = others
            .into_iter()
            .find(|other| other.tbs_certificate().subject() == own.tbs_certificate().issuer())
            .ok_or("issuer certificate not found")?;
        let named = named_responder(&own);
        let url = url.or(named.as_deref()).ok_or("no OCSP responder URL in the certificate")?;
        let responder = Responder::parse(url).ok_or("invalid URL prefix in OCSP responder")?;
        let id = id_of(&own, &issuer).ok_or("certificate cannot be read")?;
        let turn = Mutex::new(());
        Ok(Self { certificate: Arc::clone(certificate), issuer, id, responder, turn })
    }

    /// The request, in DER.
    fn encode(&self) -> Option<Vec<u8>> {
        let request = Request { req_cert: self.id.clone() };
        let tbs_request = TbsRequest { request_list: vec![request] };
        OcspRequest { tbs_request }.to_der().ok()
    }

    /// Judges an answer; how long it holds.
    ///
    /// # Errors
    /// Why it is not valid.
    fn check(&self, answer: &[u8], now: Duration) -> Result<Duration, String> {
        let broken = |_| "the OCSP response cannot be read".to_owned();
        let answer = OcspResponse::from_der(answer).map_err(broken)?;
        if answer.response_status != OcspResponseStatus::Successful {
            return Err(format!("OCSP response not successful ({:?})", answer.response_status));
        }
        let bytes = answer.response_bytes.ok_or("the OCSP response is empty")?;
        let basic = BasicOcspResponse::from_der(bytes.response.as_bytes()).map_err(broken)?;
        self.check_signature(&basic)?;
        let about = basic.tbs_response_data.responses.iter().find(|r| r.cert_id == self.id);
        let about = about.ok_or("certificate status not found in the OCSP response")?;
        match about.cert_status {
            CertStatus::Good(_) => {}
            CertStatus::Revoked(_) => {
                return Err("certificate status \"revoked\" in the OCSP response".to_owned());
            }
            CertStatus::Unknown(_) => {
                return Err("certificate status \"unknown\" in the OCSP response".to_owned());
            }
        }
        if about.this_update.to_unix_duration() > now + CLOCK_SKEW {
            return Err("the OCSP response is not yet valid".to_owned());
        }
        let Some(next) = about.next_update.map(|next| next.to_unix_duration()) else {
            return Ok(INTERVAL_MAX);
        };
        next.checked_sub(now).ok_or_else(|| "the OCSP response has expired".to_owned())
    }

    /// By the authority itself, or by a responder that it has authorized (RFC 6960, section 4.2.2.2).
    fn check_signature(&self, basic: &BasicOcspResponse) -> Result<(), String> {
        let content = basic.tbs_response_data.to_der().map_err(|problem| problem.to_string())?;
        let is_by = |signer: &Certificate| {
            let key = signer.tbs_certificate().subject_public_key_info();
            is_signed(&content, &basic.signature_algorithm, &basic.signature, key)
        };
        let is_made_for_it = |signer: &&Certificate| {
            let usage = signer.tbs_certificate().get_extension::<ExtendedKeyUsage>();
            matches!(usage, Ok(Some((_, usage))) if usage.0.contains(&SIGNS_ANSWERS))
                && self.has_signed(signer)
        };
        let delegates = basic.certs.iter().flatten().filter(is_made_for_it);
        let mut signers = std::iter::once(&self.issuer).chain(delegates);
        if signers.any(is_by) { Ok(()) } else { Err("OCSP_basic_verify() failed".to_owned()) }
    }

    /// Whether the authority has signed a certificate.
    fn has_signed(&self, certificate: &Certificate) -> bool {
        let (content, algorithm) =
            (certificate.tbs_certificate(), certificate.signature_algorithm());
        let key = self.issuer.tbs_certificate().subject_public_key_info();
        content.signature() == algorithm
            && content
                .to_der()
                .is_ok_and(|content| is_signed(&content, algorithm, certificate.signature(), key))
    }
}

fn named_responder(certificate: &Certificate) -> Option<String> {
    let access = certificate.tbs_certificate().get_extension::<AuthorityInfoAccessSyntax>();
    let (_, access) = access.ok()??;
    access.0.iter().find_map(|place| match &place.access_location {
        GeneralName::UniformResourceIdentifier(url) if place.access_method == RESPONDER => {
            Some(url.to_string())
        }
        _ => None,
    })
}

fn id_of(own: &Certificate, issuer: &Certificate) -> Option<CertId> {
    let hash = |bytes: &[u8]| {
        OctetString::new(digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()).ok()
    };
    let key = &issuer.tbs_certificate().subject_public_key_info().subject_public_key;
    let parameters = Some(Any::encode_from(&Null).ok()?);
    Some(CertId {
        hash_algorithm: AlgorithmIdentifierOwned { oid: SHA1, parameters },
        issuer_name_hash: hash(&issuer.tbs_certificate().subject().to_der().ok()?)?,
        issuer_key_hash: hash(key.as_bytes()?)?,
        serial_number: own.tbs_certificate().serial_number().clone(),
    })
}

impl Responder {
    fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let path = if path.is_empty() { "/" } else { path };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

/// Starts to ask about every certificate; one worker does it for all.
pub fn start(conf: &Rc<WorkerConf>) {
    for server in &conf.servers {
        for question in &conf.location(server.conf).of::<ServerTls>().questions {
            let (config, server) = (Arc::clone(&conf.config), server.conf);
            let question = Arc::clone(question);
            conf.tasks.keep("OCSP stapling", move || {
                keep(Arc::clone(&question), Arc::clone(&config), server)
            });
        }
    }
}

/// Asks about one certificate, again and again, once no other worker does.
async fn keep(question: Arc<Question>, config: Arc<Config>, server: LocationId) {
    let _turn = question.turn.lock().await;
    loop {
        faults::point("stapling");
        let pause = question.ask(&config, server).await;
        tokio::time::sleep(pause).await;
    }
}

impl Question {
    /// Asks once, and keeps a good answer; the time until the next question.
    async fn ask(&self, config: &Config, server: LocationId) -> Duration {
        let answer = match tokio::time::timeout(TIMEOUT, self.fetch(config, server)).await {
            Ok(answer) => answer,
            Err(_) => Err("OCSP responder timed out (110: Connection timed out)".to_owned()),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let judged = answer.and_then(|answer| Ok((self.check(&answer, now)?, answer)));
        match judged {
            Ok((validity, answer)) => {
                let mut certificate = CertifiedKey::clone(&self.certificate.load());
                certificate.ocsp = Some(answer.to_vec());
                self.certificate.store(Arc::new(certificate));
                (validity / 2).clamp(Duration::from_secs(1), INTERVAL_MAX)
            }
            Err(problem) => {
                let Responder { host, port, .. } = &self.responder;
                let text = format!(
                    "{problem} while requesting certificate status, responder: {host}:{port}"
                );
                config.location(server).error_log.process(Level::Error, &text);
                PAUSE
            }
        }
    }

    async fn address(&self, config: &Config, server: LocationId) -> Result<SocketAddr, String> {
        let Responder { host, port, .. } = &self.responder;
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok((ip, *port).into());
        }
        let core = config.location(server).http_core();
        if let Some(resolver) = &core.resolver {
            let found = resolver.addresses(host, core.resolver_timeout).await;
            let found = found.map_err(|fault| format!("{host} could not be resolved ({fault})"))?;
            return Ok((found.addresses[0], *port).into());
        }
        let found = tokio::net::lookup_host((&**host, *port)).await;
        let found = found.ok().and_then(|mut found| found.next());
        found.ok_or_else(|| format!("{host} could not be resolved"))
    }

    /// The responder's answer, in DER.
    async fn fetch(&self, config: &Config, server: LocationId) -> Result<Bytes, String> {
        let request = self.encode().ok_or("the OCSP request cannot be made")?;
        let address = PeerAddress::Tcp(self.address(config, server).await?);
        let failed = |problem: std::io::Error| yorozu_kernel::logging::error::os_error(&problem);
        let connection =
            Connection::open(&address, SocketOptions::default()).await.map_err(failed)?;
        connection.write_all(&self.responder.request(&request)).await.map_err(failed)?;
        let (mut reader, mut input) = (AnswerReader::new(true, ANSWER_BYTES_MAX), BytesMut::new());
        let answer = loop {
            let answer = match connection.read(&mut input).await.map_err(failed)? {
                0 => reader.ended(true).map(Some),
                _ => reader.take(&input.split()),
            };
            if let Some(answer) = answer.map_err(|problem| problem.to_string())? {
                break answer;
            }
        };
        match answer.status {
            200 => Ok(answer.content.into()),
            _ => Err("OCSP responder sent no response with status 200".to_owned()),
        }
    }
}

impl Responder {
    /// The HTTP request: a short one by GET, which caches may answer (RFC 6960, appendix A.1), as nginx asks.
    fn request(&self, ocsp: &[u8]) -> Vec<u8> {
        let Self { host, path, .. } = self;
        let encoded = encode_base64(ocsp);
        if encoded.len() < GET_BYTES_MAX {
            let mut out = format!("GET {}/", path.strip_suffix('/').unwrap_or(path)).into_bytes();
            escape_into(&mut out, encoded.as_bytes(), Escape::Component);
            out.extend_from_slice(format!(" HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes());
            return out;
        }
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/ocsp-request\r\nContent-Length: {}\r\n\r\n",
            ocsp.len()
        );
        [head.as_bytes(), ocsp].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_request_is_one_of_get() {
        let responder = Responder::parse("http://a.example/b/").unwrap();
        let short = responder.request(&[0xff, 0xff, 0xbf]);
        assert_eq!(short, b"GET /b/%2F%2F%2B%2F HTTP/1.0\r\nHost: a.example\r\n\r\n");
        let long = responder.request(&[7; 300]);
        assert!(long.starts_with(b"POST /b/ HTTP/1.0\r\n") && long.ends_with(&[7; 300]));
    }

    #[test]
    fn responders_are_named_by_url() {
        let parse =
            |url: &str| Responder::parse(url).map(|r| format!("{} {} {}", r.host, r.port, r.path));
        assert_eq!(parse("http://a.example").as_deref(), Some("a.example 80 /"));
        assert_eq!(parse("http://a.example:81/b/c").as_deref(), Some("a.example 81 /b/c"));
        assert_eq!(parse("http://[::1]:81/").as_deref(), Some("::1 81 /"));
        assert_eq!(parse("https://a.example/"), None);
        assert_eq!(parse("http:///b"), None);
    }
}
