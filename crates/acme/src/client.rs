//! Requests to an issuer, over connections as those to upstreams: one each, which is closed behind the answer.
//!
//! The library wants what it waits for to be `Send`, and connections belong to one thread: so they are a task beside it.

use crate::certificate::Duty;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::ServerName;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot};
use yorozu_kernel::base::tasks;
use yorozu_upstream::{Connection, PeerAddress, SocketOptions, Tls, TlsOptions};
use yorozu_wire::h1::{Answer, AnswerReader};

/// Time for one request and its answer; nginx's timeouts of upstreams.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of an answer's content; chosen, chains of certificates have some thousand.
const CONTENT_BYTES_MAX: usize = 1024 * 1024;
/// Redirects that are followed for one document; chosen.
const REDIRECTS_MAX: usize = 10;

type Sent = Request<BodyWrapper<Bytes>>;

/// A request, and where its answer goes.
struct Asked {
    request: Sent,
    answer: oneshot::Sender<Result<BytesResponse, Error>>,
}

/// What the library makes requests with.
pub(crate) struct Client {
    asked: mpsc::Sender<Asked>,
}

/// What answers said beside what the library reads.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How long the issuer wants to be left alone.
    pub retry_after: Option<Duration>,
    /// Where its terms are.
    pub terms: Option<String>,
    /// The last answer, for a message where it was none that the library understands.
    pub answered: Option<Answered>,
}

/// An answer of the issuer, or of what stands in front of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Answered {
    status: StatusCode,
    content_type: String,
    uri: String,
    /// What a problem document says (RFC 7807).
    detail: Option<String>,
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, content_type, uri, detail } = self;
        write!(f, "the issuer answered {status}")?;
        match detail {
            Some(detail) => write!(f, ": {detail}")?,
            None if content_type.is_empty() => {}
            None => write!(f, " with {content_type}")?,
        }
        write!(f, " while requesting \"{uri}\"")
    }
}

/// Shared by the task that sees and those who ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight(Arc<Mutex<Seen>>);

impl Sight {
    pub(crate) fn get(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// A client, whose task ends with it.
    pub(crate) fn start(duty: Arc<Duty>, sight: Sight) -> Self {
        let (asked, mut requests) = mpsc::channel::<Asked>(1);
        drop(tasks::of_request(async move {
            while let Some(Asked { request, answer }) = requests.recv().await {
                let answered = tokio::time::timeout(TIMEOUT, respond(&duty, &sight, request)).await;
                let late = || Err("timed out (110: Connection timed out)".to_owned());
                let answered = answered.unwrap_or_else(|_| late());
                // Whoever asked may be gone.
                let _ = answer.send(answered.map_err(|text| Error::Other(text.into())));
            }
        }));
        Self { asked }
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Sent,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let asked = self.asked.clone();
        Box::pin(async move {
            let gone = || Error::Other("the connection's task ended".into());
            let (answer, answered) = oneshot::channel();
            asked.send(Asked { request, answer }).await.map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        })
    }
}

/// Makes a request, and follows redirects of documents.
async fn respond(duty: &Duty, sight: &Sight, request: Sent) -> Result<BytesResponse, String> {
    let (parts, body) = request.into_parts();
    // The library's way to bytes goes by an answer.
    let content = BytesResponse::from(Response::new(body))
        .body
        .into_bytes()
        .await
        .map_err(|problem| problem.to_string())?;
    let may_follow = parts.method == Method::GET || parts.method == Method::HEAD;
    let mut uri = parts.uri;
    let mut left = REDIRECTS_MAX;
    loop {
        let shown = uri.to_string();
        let tell = |problem: String| format!("{problem} while requesting \"{shown}\"");
        keeps_tls(&duty.issuer.uri, &uri).map_err(tell)?;
        let answer = exchange(duty, &parts.method, &uri, &parts.headers, &content);
        let answer = answer.await.map_err(tell)?;
        let location = answer.headers().get(header::LOCATION).filter(|_| may_follow);
        if let Some(location) = location.filter(|_| answer.status().is_redirection()) {
            let location = location.to_str().ok().and_then(|text| resolved(&uri, text));
            uri =
                location.filter(|_| left > 0).ok_or_else(|| tell("invalid redirect".to_owned()))?;
            left -= 1;
            continue;
        }
        note(sight, &shown, &answer);
        let (parts, content) = answer.into_parts();
        return Ok(BytesResponse { parts, body: Box::new(content) });
    }
}

/// What a directory that was fetched over TLS names is asked over TLS, too.
///
/// # Errors
/// It would not be.
fn keeps_tls(directory: &Uri, uri: &Uri) -> Result<(), String> {
    let is_tls = |uri: &Uri| uri.scheme_str() == Some("https");
    match is_tls(directory) && !is_tls(uri) {
        true => Err("the issuer's directory is https and names an address that is not".to_owned()),
        false => Ok(()),
    }
}

/// Where a redirect leads.
fn resolved(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        let authority = base.authority()?;
        return format!("{}://{authority}{location}", base.scheme_str()?).parse().ok();
    }
    let uri: Uri = location.parse().ok()?;
    // What began over TLS goes on over TLS.
    let is_known = uri.scheme_str() == Some("https") || uri.scheme_str() == base.scheme_str();
    (is_known && uri.host().is_some()).then_some(uri)
}

/// Keeps what the library does not read.
fn note(sight: &Sight, uri: &str, answer: &Response<Bytes>) {
    let mut seen = sight.get();
    seen.retry_after = None;
    if matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let said = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        seen.retry_after = said.and_then(|text| match text.trim().parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                let time = yorozu_http::date::parse(text.trim().as_bytes())?;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
                Duration::from_secs(u64::try_from(time).ok()?).checked_sub(now)
            }
        });
    }
    let is_wanted = seen.terms.is_none() || !answer.status().is_success();
    let document: Option<serde_json::Value> =
        is_wanted.then(|| serde_json::from_slice(answer.body()).ok()).flatten();
    let field = |name: header::HeaderName| answer.headers().get(name)?.to_str().ok();
    let detail = document.as_ref().filter(|_| !answer.status().is_success());
    seen.answered = Some(Answered {
        status: answer.status(),
        content_type: field(header::CONTENT_TYPE).unwrap_or_default().to_owned(),
        uri: uri.to_owned(),
        detail: detail.and_then(|found| Some(found["detail"].as_str()?.to_owned())),
    });
    if seen.terms.is_none() {
        let terms = document.as_ref().and_then(|found| found["meta"]["termsOfService"].as_str());
        seen.terms = terms.map(str::to_owned);
    }
}

/// One request on a connection of its own.
async fn exchange(
    duty: &Duty,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    content: &[u8],
) -> Result<Response<Bytes>, String> {
    let connection = connect(duty, uri).await?;
    let text = head(method, uri, headers, content.len());
    let failed = |problem: io::Error| yorozu_kernel::logging::error::os_error(&problem);
    connection.write_all(&[text.as_bytes(), content].concat()).await.map_err(failed)?;
    let (mut reader, mut input) =
        (AnswerReader::new(*method != Method::HEAD, CONTENT_BYTES_MAX), BytesMut::new());
    loop {
        let answer = match connection.read(&mut input).await {
            Ok(0) => reader.ended(true).map(Some),
            Ok(_) => reader.take(&input.split()),
            // Some servers close without TLS's own end: the length says whether it is whole.
            Err(problem) if problem.kind() == io::ErrorKind::UnexpectedEof => {
                reader.ended(false).map(Some)
            }
            Err(problem) => return Err(failed(problem)),
        };
        if let Some(answer) = answer.map_err(|problem| problem.to_string())? {
            return response(answer);
        }
    }
}

/// An answer as the library has it.
fn response(answer: Answer) -> Result<Response<Bytes>, String> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.fields {
        response = response.header(name, value);
    }
    response.body(answer.content.into()).map_err(|problem| problem.to_string())
}

fn head(method: &Method, uri: &Uri, headers: &HeaderMap, length: usize) -> String {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let authority = uri.authority().map(|it| it.as_str()).unwrap_or_default();
    let mut text =
        format!("{method} {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n");
    for (name, value) in headers {
        if let Ok(value) = value.to_str() {
            let own = if name == header::USER_AGENT { "yorozu " } else { "" };
            text += &format!("{name}: {own}{value}\r\n");
        }
    }
    if *method == Method::POST {
        text += &format!("Content-Length: {length}\r\n");
    }
    text + "\r\n"
}

/// Connects to the first address of the host that answers.
async fn connect(duty: &Duty, uri: &Uri) -> Result<Connection, String> {
    let host = uri.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let mut problem = format!("{host} could not be resolved");
    for address in addresses(duty, host, port).await? {
        match open(duty, host, address, is_tls).await {
            Ok(connection) => return Ok(connection),
            Err(why) => problem = why,
        }
    }
    Err(problem)
}

async fn open(
    duty: &Duty,
    host: &str,
    address: SocketAddr,
    is_tls: bool,
) -> Result<Connection, String> {
    let failed = |what: &str, problem: &io::Error| {
        format!("{what} failed ({})", yorozu_kernel::logging::error::os_error(problem))
    };
    let peer = PeerAddress::Tcp(address);
    let connection = Connection::open(&peer, SocketOptions::default()).await;
    let connection =
        connection.map_err(|problem| failed(&format!("connect() to {address}"), &problem))?;
    if !is_tls {
        return Ok(connection);
    }
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| format!("\"{host}\" is no name of a server"))?;
    let options = TlsOptions { config: Arc::clone(&duty.issuer.tls), name };
    let tls = Tls::handshake(connection, &options).await;
    let tls = tls.map_err(|problem| match yorozu_tls::verifier::Disbelief::of(&problem) {
        Some(why) => why.to_string(),
        None => failed("SSL_do_handshake()", &problem),
    })?;
    Ok(Connection::Tls(Box::new(tls)))
}

/// By the configuration's `resolver`, or else the system's.
async fn addresses(duty: &Duty, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    if let Some((resolver, timeout)) = &duty.resolver {
        let found = resolver.addresses(host, *timeout).await;
        let found = found.map_err(|fault| format!("{host} could not be resolved ({fault})"))?;
        return Ok(found.addresses.iter().map(|address| (*address, port).into()).collect());
    }
    let found = tokio::net::lookup_host((host, port)).await;
    Ok(found.map_err(|problem| format!("{host} could not be resolved ({problem})"))?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_over_tls_names_is_asked_over_tls() {
        let may_follow = |directory: &str, uri: &str| {
            keeps_tls(&directory.parse().unwrap(), &uri.parse().unwrap()).is_ok()
        };
        assert!(may_follow("https://a.example/dir", "https://b.example/new-order"));
        assert!(!may_follow("https://a.example/dir", "http://a.example/new-order"));
        assert!(may_follow("http://127.0.0.1/dir", "http://127.0.0.1/new-order"));
        assert!(may_follow("http://127.0.0.1/dir", "https://a.example/new-order"));
    }

    #[test]
    fn redirects_stay_with_tls() {
        let base: Uri = "https://a.example:1/dir".parse().unwrap();
        let to = |text| resolved(&base, text).map(|uri| uri.to_string());
        assert_eq!(to("/x?y").as_deref(), Some("https://a.example:1/x?y"));
        assert_eq!(to("https://b.example/").as_deref(), Some("https://b.example/"));
        assert_eq!(to("http://b.example/"), None);
        assert_eq!(to("//b.example/"), None);
    }
}
