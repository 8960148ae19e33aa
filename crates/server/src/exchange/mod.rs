//! One request with its response and everything known about both: where protocols meet.
//!
//! A connection makes an [`Exchange`], the phases and handlers fill in its response, the filters
//! shape it, the connection writes it, the logs read it. Nothing here knows the protocol.

pub mod file;
pub mod request;
pub mod response;
pub mod scratch;
pub mod slots;
pub mod subrequests;
pub mod temporary;
pub mod variables;

use crate::cache::invalidate::Posted;
use crate::cache::{CacheStatus, Plan};
use crate::config::compiled::{ListenAddress, LocationId, ServerId, WorkerConf};
use crate::config::regex::Spans;
use crate::connection::body::RequestBody;
use crate::filters::compress::Coding;
use crate::filters::{slice, ssi, userid};
use crate::handlers::proxy::Destination;
use crate::limits;
use crate::phases::{Pending, limit_conn, limit_req};
use crate::process::turn;
use crate::tls::session::Session;
use bytes::Bytes;
use request::Request;
use slots::Slots;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subrequests::Subrequests;
use yorozu_wire::proxy_protocol::ProxyHeader;

/// Who asks, as far as known.
#[derive(Debug)]
pub struct Remote {
    /// `None` for a Unix socket; port 0 where it is not known.
    pub address: Option<SocketAddr>,
    /// The address as logs show it; `unix:` for a Unix socket.
    pub text: String,
}

impl Remote {
    pub fn of(address: Option<SocketAddr>) -> Self {
        let text = address.map_or_else(|| "unix:".to_owned(), |address| address.ip().to_string());
        Self { address, text }
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip())
    }
}

/// What all requests of one connection share.
#[derive(Debug)]
pub struct Client {
    /// The other end.
    pub remote: Rc<Remote>,
    /// This end; `None` for a Unix socket.
    pub local: Option<SocketAddr>,
    /// Serial number, unique in the process.
    pub number: u64,
    /// When the connection was accepted.
    pub since: Instant,
    /// Requests begun so far.
    pub requests: Cell<u64>,
    /// The listening socket it came through.
    pub address: ListenAddress,
    /// That socket's place in the list of the present configuration.
    pub listen: Cell<usize>,
    /// What the handshake came to; unset for a connection without TLS.
    pub tls: OnceCell<Box<Session>>,
    /// What a proxy in front said of it (`listen … proxy_protocol`).
    pub proxied: OnceCell<Box<ProxyHeader>>,
    /// A request that is only asked about: it counts as one over TLS.
    pub is_tls_assumed: bool,
    /// The name a client asks for in a handshake under way.
    pub asked_name: OnceCell<Box<Bytes>>,
}

impl Client {
    pub fn is_tls(&self) -> bool {
        self.is_tls_assumed || self.tls.get().is_some()
    }

    /// The same client, as if its connection had TLS or had none.
    pub fn over(&self, is_tls: bool) -> Self {
        Self {
            remote: Rc::clone(&self.remote),
            local: self.local,
            number: self.number,
            since: self.since,
            requests: self.requests.clone(),
            address: self.address.clone(),
            listen: self.listen.clone(),
            tls: OnceCell::new(),
            proxied: OnceCell::new(),
            is_tls_assumed: is_tls,
            asked_name: OnceCell::new(),
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static [u8] {
        if self.is_tls() { b"https" } else { b"http" }
    }
}

/// What is known about one attempt to reach an upstream peer.
#[derive(Clone, Debug)]
pub struct UpstreamAttempt {
    pub peer: Arc<str>,
    pub status: u16,
    pub connect_time: Option<Duration>,
    pub header_time: Option<Duration>,
    /// Until the answer was whole; `None` before.
    pub response_time: Option<Duration>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub response_bytes: u64,
}

impl UpstreamAttempt {
    /// An attempt that begins.
    pub fn new(peer: Arc<str>) -> Self {
        Self {
            peer,
            status: 0,
            connect_time: None,
            header_time: None,
            response_time: None,
            bytes_sent: 0,
            bytes_received: 0,
            response_bytes: 0,
        }
    }
}

/// The groups of the last regular expression that matched.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    subject: Bytes,
    /// `None` where there was no match.
    spans: Option<Spans>,
}

impl Captures {
    pub fn new(subject: Bytes, spans: Spans) -> Self {
        Self { subject, spans: Some(spans) }
    }

    fn span(&self, group: usize) -> Option<Range<usize>> {
        self.spans.as_ref()?.get(group)?.clone()
    }

    pub fn get(&self, group: usize) -> Option<&[u8]> {
        Some(&self.subject[self.span(group)?])
    }

    /// The group's bytes, shared; empty if it took no part.
    pub fn group(&self, group: usize) -> Bytes {
        self.span(group).map_or_else(Bytes::new, |span| self.subject.slice(span))
    }

    pub fn append(&self, group: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.get(group).unwrap_or_default());
    }
}

/// What one pass through the phases finds out. An `error_page`, an internal redirect or a named location
/// begins another pass, which starts with nothing of it: what a location may store or where it sends
/// requests never becomes another location's.
#[derive(Default)]
pub struct Pass {
    /// The cache's part, until the answer is on its way.
    pub cache: Option<Plan>,
    /// Where it has none: the answer to a POST may be stored all the same.
    pub posted: Option<Posted>,
    /// Where `proxy_pass` goes.
    pub proxy: Option<Rc<Destination>>,
    /// The slice that the upstream is asked for.
    pub slice: Cell<Option<slice::Slice>>,
}

/// One request with its response and context.
pub struct Exchange {
    /// The configuration this request began with.
    pub conf: Rc<WorkerConf>,
    pub server: ServerId,
    pub location: LocationId,
    pub client: Rc<Client>,
    /// The client of this request: the other end, or whom a trusted proxy names.
    pub remote: Rc<Remote>,
    pub request: Request,
    pub body: RequestBody,

    /// Normalised path; rewritten by `rewrite`, `try_files`, `index`, `error_page`.
    pub uri: Vec<u8>,
    /// Query, without `?`.
    pub args: Vec<u8>,
    /// Does the path still say what the client's target said?
    pub is_uri_as_sent: bool,
    /// May a gateway put another prefix in the place of the location's? Not after `rewrite … break`.
    pub is_uri_in_location: bool,
    /// Did `try_files` find the path below the `alias` of a regex?
    pub is_uri_below_alias: bool,
    /// Is this pass caused by the configuration rather than the client?
    pub is_internal: bool,
    /// Internal redirects and rewrites still allowed.
    pub uri_changes_left: u32,
    /// Were there more than that?
    pub is_in_cycle: bool,
    /// Is the next error's page the server's own?
    pub has_error_page: bool,
    pub captures: Captures,
    pub variables: Slots,
    /// The status an `error_page` was entered with.
    pub error_status: Option<u16>,
    /// The status sent, or to be sent; 0 before it is known.
    pub status: u16,
    /// Must the connection close after this response?
    pub keep_alive: bool,
    /// `X-Accel-Limit-Rate` or `set $limit_rate`, in bytes per second.
    pub limit_rate: Option<u64>,

    /// Had it arrived before the one before it was answered?
    pub is_pipelined: bool,
    pub started: Instant,
    /// In milliseconds since 1970.
    pub started_millis: i64,
    /// Bytes of the request, head and body.
    pub request_bytes: u64,
    pub bytes_sent: u64,
    pub body_bytes_sent: u64,
    /// Was the whole response sent?
    pub is_complete: bool,
    pub attempts: Vec<UpstreamAttempt>,
    pub cache_status: Option<CacheStatus>,
    /// Is it only asked about? Then no gateway and no cache is.
    pub is_dry: bool,
    /// For `-t`: are scripts (`*.php`) taken to be where they are looked for?
    pub supposes_scripts: bool,
    /// Is it made for another request's sake?
    pub is_subrequest: bool,
    /// Must the connection end without an answer?
    pub is_given_up: bool,
    /// What `userid` knows of the client.
    pub uid: Cell<Option<userid::Known>>,
    /// The encoding of the text that is answered, where one is wanted.
    pub charset: Option<Bytes>,
    /// What the pages of one answer with server side includes share.
    pub ssi: Option<Rc<RefCell<ssi::Shared>>>,
    /// What it may still ask for itself.
    pub subrequests: Subrequests,
    /// What it waits for between two phases.
    pub pending: Option<Pending>,
    pub limit_req_status: Option<limit_req::Verdict>,
    pub limit_conn_status: Option<limit_conn::Verdict>,
    /// What `limit_conn` counts until the response is sent.
    pub leases: Vec<limit_conn::Lease>,
    /// Challenges of authentications that failed on the way: fields of whatever becomes the answer.
    pub challenges: Vec<(Bytes, Bytes)>,
    /// What the cache did, and why.
    pub cache_report: crate::cache::Report,
    /// Field lines of the upstream's response head, for `$upstream_http_*`.
    pub upstream_fields: Rc<Vec<(Bytes, Bytes)>>,
    /// Fields behind the upstream's body, for `$upstream_trailer_*`.
    pub upstream_trailers: Vec<(Bytes, Bytes)>,
    /// Field lines as sent, for `$sent_http_*`.
    pub sent: response::SentHead,
    /// How the response was compressed: bytes in, bytes out.
    pub coded_bytes: Option<(Coding, u64, u64)>,
    /// Drawn when it is first asked for.
    pub request_id: OnceCell<[u8; 16]>,
    /// What is known of the pass under way, and of no other.
    pub pass: Pass,
    /// Fields that an `X-Accel-Redirect` answer hands on.
    pub accel_fields: Vec<(Bytes, Bytes)>,
}

impl Exchange {
    /// A request as it arrived, before its server is chosen.
    pub fn new(
        conf: Rc<WorkerConf>,
        client: Rc<Client>,
        request: Request,
        body: RequestBody,
    ) -> Self {
        let server = conf.sockets[client.listen.get()].default_server;
        let location = conf.server(server).conf;
        let variables = Slots::new(conf.variable_names.len());
        Self {
            server,
            location,
            keep_alive: request.wants_keep_alive(),
            request_bytes: request.sent_bytes,
            conf,
            remote: Rc::clone(&client.remote),
            client,
            request,
            body,
            uri: Vec::new(),
            args: Vec::new(),
            is_uri_as_sent: true,
            is_uri_in_location: true,
            is_uri_below_alias: false,
            is_internal: false,
            uri_changes_left: limits::URI_CHANGES_MAX,
            has_error_page: false,
            is_in_cycle: false,
            captures: Captures::default(),
            variables,
            error_status: None,
            status: 0,
            limit_rate: None,
            is_pipelined: false,
            started: turn::instant(),
            started_millis: turn::unix_millis(),
            bytes_sent: 0,
            body_bytes_sent: 0,
            is_complete: false,
            attempts: Vec::new(),
            cache_status: None,
            is_dry: false,
            supposes_scripts: false,
            is_subrequest: false,
            is_given_up: false,
            uid: Cell::new(None),
            charset: None,
            ssi: None,
            subrequests: Subrequests::default(),
            pending: None,
            limit_req_status: None,
            limit_conn_status: None,
            leases: Vec::new(),
            challenges: Vec::new(),
            cache_report: crate::cache::Report::default(),
            upstream_fields: Rc::default(),
            upstream_trailers: Vec::new(),
            sent: response::SentHead::default(),
            coded_bytes: None,
            request_id: OnceCell::new(),
            pass: Pass::default(),
            accel_fields: Vec::new(),
        }
    }

    /// `$request_id`, 16 random bytes: keys that the standard library draws for hash tables.
    pub fn id(&self) -> &[u8; 16] {
        use std::hash::{BuildHasher as _, Hasher as _, RandomState};
        let draw = || RandomState::new().build_hasher().finish().to_be_bytes();
        self.request_id.get_or_init(|| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&draw());
            id[8..].copy_from_slice(&draw());
            id
        })
    }

    /// May the upstream's answer be stored?
    pub fn is_cacheable(&self) -> bool {
        self.pass.cache.as_ref().is_some_and(|plan| plan.not_stored.is_none())
    }

    /// The type of content that an `X-Accel-Redirect` answer handed on.
    pub fn accel_content_type(&self) -> Option<Bytes> {
        let mut fields = self.accel_fields.iter();
        let found = fields.rfind(|(name, _)| name.eq_ignore_ascii_case(b"content-type"))?;
        Some(found.1.clone())
    }

    /// The part that the upstream is asked for: a slice, or what the client wants.
    pub fn asked_range(&self) -> Option<Cow<'_, [u8]>> {
        match self.pass.slice.get() {
            Some(slice) => Some(slice.range().into_bytes().into()),
            None => self.request.known(self.request.known.range).map(Cow::Borrowed),
        }
    }

    /// The status that an `error_page` settled, unless it left that to its page.
    pub fn settled_status(&self) -> Option<u16> {
        self.error_status.filter(|status| *status != 0)
    }

    /// Seconds since 1970 when the request began.
    pub fn now(&self) -> i64 {
        self.started_millis / 1000
    }

    /// Milliseconds since 1970, now: by what is fresh a request is answered that may have waited since it began.
    pub fn now_millis(&self) -> i64 {
        turn::unix_millis()
    }

    pub fn request_time(&self) -> Duration {
        turn::instant().saturating_duration_since(self.started)
    }

    /// Starts over with another path, as an internal redirect does.
    pub fn redirect_internally(&mut self, uri: Vec<u8>, args: Option<Vec<u8>>) {
        self.set_uri(uri);
        if let Some(args) = args {
            self.args = args;
        }
        self.is_uri_in_location = true;
        self.is_uri_below_alias = false;
        self.is_internal = true;
    }

    pub fn set_uri(&mut self, uri: Vec<u8>) {
        self.is_uri_as_sent = false;
        self.uri = uri;
    }
}

/// Milliseconds since 1970; 0 for a clock before it.
pub fn unix_millis(time: SystemTime) -> i64 {
    let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// Seconds since 1970; 0 for a clock before it.
pub fn unix_seconds(time: SystemTime) -> i64 {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
