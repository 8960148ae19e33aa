//! One request with its response and everything known about both: where protocols meet.
//!
//! A connection makes an [`Exchange`], the phases and handlers fill in its response, the filters
//! shape it, the connection writes it, the logs read it. Nothing here knows the protocol.

pub mod attempts;
pub mod body_failed;
pub mod cached;
pub mod client;
pub mod coding;
pub mod conf;
pub mod content;
pub mod content_type;
pub mod core_variables;
pub mod credentials;
pub mod doubt;
pub mod engine;
pub mod error_page;
pub mod evaluate;
pub mod figures;
pub mod forwarded;
pub mod handler;
pub mod keep_alive;
pub mod left;
pub mod outcome;
pub mod recode;
pub mod request;
pub mod request_body;
pub mod response;
pub mod shadow;
pub mod slots;
pub mod source;
pub mod spill;
pub mod states;
pub mod stream;
pub mod subrequests;
pub mod tunnel;
pub mod variables;

use crate::base::scratch::Scratch;
use crate::base::{limits, turn};
use crate::config::regex::Captures;
use crate::config::servers::{LocationId, ServerId};
use crate::exchange::conf::WorkerConf;
use crate::exchange::request_body::RequestBody;
use attempts::Attempts;
use bytes::Bytes;
use cached::CacheStatus;
pub use client::{Client, Remote};
use coding::Coding;
use doubt::Doubt;
use engine::{FieldLines, no_fields};
use left::LeftPage;
use request::Request;
use slots::Slots;
use states::{SharedStates, States};
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::{Duration, Instant};
use subrequests::Subrequests;
use variables::Variable;

/// On whose behalf a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client's, or the server's own in the background.
    Request,
    /// A part of another request's answer (`ssi`, `auth_request`, `slice` …), which was let in with that.
    Subrequest,
    /// Only asked about (`explain`, `-t`): no gateway and no cache is asked, and nothing is logged.
    Question {
        /// Whether scripts (`*.php`) are assumed to be where they are looked for.
        supposes_scripts: bool,
    },
}

/// How often a request was sent elsewhere inside the server, and what is kept of that.
#[derive(Clone, Debug)]
pub struct Redirects {
    /// Internal redirects and rewrites still allowed.
    pub left: u32,
    /// Whether they were used up: the request is in a loop.
    pub is_cycle: bool,
    /// Whether an `error_page` was followed: the next error gets the server's own page.
    pub has_error_page: bool,
    /// Whether the path is not what the client asked for, but what an `error_page` or an upstream's `X-Accel-Redirect` has in its
    /// place.
    pub is_led: bool,
    /// The status an `error_page` was entered with; 0 where its page decides.
    pub error_status: Option<u16>,
    /// Whether an error of the server's own ends the subrequest without a page: who asks has something in its place.
    pub has_stub: bool,
    /// The status by which a filter replaced the response: an `error_page` for it is still to be followed.
    pub refused: Option<u16>,
}

impl Default for Redirects {
    fn default() -> Self {
        Self {
            left: limits::URI_CHANGES_MAX,
            is_cycle: false,
            has_error_page: false,
            is_led: false,
            error_status: None,
            has_stub: false,
            refused: None,
        }
    }
}

/// What one pass through the phases finds out. An `error_page`, an internal redirect or a named location
/// begins another pass, which starts with nothing of it: what a location may store or where it sends
/// requests never becomes another location's.
#[derive(Default)]
pub struct Pass {
    /// The slice that the upstream is asked for.
    pub slice: Cell<Option<Slice>>,
    /// Whether `auth_basic` or `auth_request` let the client in.
    pub is_let_in_by_credentials: bool,
    /// What modules keep with it.
    states: States,
}

impl Pass {
    /// What a shadow of the request has of it.
    fn for_shadow(&self) -> Self {
        Self { states: self.states.for_shadow(), ..Self::default() }
    }
}

impl Deref for Pass {
    type Target = States;

    fn deref(&self) -> &States {
        &self.states
    }
}

impl DerefMut for Pass {
    fn deref_mut(&mut self) -> &mut States {
        &mut self.states
    }
}

/// A part of a large response: its first byte, and its length.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub start: u64,
    pub bytes: u64,
}

impl Slice {
    /// As a `Range` field asks for it (RFC 9110, section 14.2).
    pub fn range(self) -> String {
        format!("bytes={}-{}", self.start, self.start + self.bytes - 1)
    }
}

/// One request with its response and context.
pub struct Exchange {
    /// The configuration this request began with.
    pub conf: Rc<WorkerConf>,
    pub server: ServerId,
    pub location: LocationId,
    pub client: Rc<Client>,
    /// The client of this request: the other end, or the one that a trusted proxy names.
    pub remote: Rc<Remote>,
    pub request: Request,
    pub body: RequestBody,

    /// Normalised path; rewritten by `rewrite`, `try_files`, `index`, `error_page`.
    pub uri: Vec<u8>,
    /// Query, without `?`.
    pub args: Vec<u8>,
    /// Whether the configuration gave it a query, empty or not; one of the client's is there if it is not empty.
    pub has_set_args: bool,
    /// Whether the path is still that of the client's target.
    pub is_uri_as_sent: bool,
    /// Whether the path begins as the location does, so that a gateway or an alias may replace that: not after `rewrite`, until
    /// another location is found.
    pub is_uri_in_location: bool,
    /// Whether `try_files` found the path below the `alias` of a regex.
    pub is_uri_below_alias: bool,
    /// Whether this pass is caused by the configuration rather than the client.
    pub is_internal: bool,
    pub redirects: Redirects,
    /// Whether something that decides its answer could not be found out.
    pub doubt: Doubt,
    pub captures: Captures,
    pub variables: Slots,
    /// The status sent, or to be sent; 0 before it is known.
    pub status: u16,
    /// Whether the connection may be used for another request after this response.
    pub keep_alive: bool,
    /// `X-Accel-Limit-Rate` or `set $limit_rate`, in bytes per second.
    pub limit_rate: Option<u64>,

    /// Whether it arrived before the previous one was answered.
    pub is_pipelined: bool,
    pub started: Instant,
    /// Bytes of the request, head and body.
    pub request_bytes: u64,
    pub bytes_sent: u64,
    pub body_bytes_sent: u64,
    /// Whether the whole response was sent.
    pub is_complete: bool,
    pub attempts: Attempts,
    pub cache_status: Option<CacheStatus>,
    pub role: Role,
    /// Of a subrequest: the method of the client's request.
    pub method_of_client: Option<Bytes>,
    /// Whether the connection must end without a response.
    pub is_given_up: bool,
    /// Whether the client's content did not come in time.
    pub is_content_late: bool,
    /// The encoding of the text that is answered, where one is wanted.
    pub charset: Option<Bytes>,
    /// Variables that hold what was said of the client when it was let in (`auth_request_set`).
    pub said_of_client: Vec<Variable>,
    /// What it may still ask for itself.
    pub subrequests: Subrequests,
    /// Challenges of authentications that failed on the way: fields of the final answer.
    pub challenges: Vec<(Bytes, Bytes)>,
    /// Where a redirect led that an `error_page` took the place of: the final answer says so, too.
    pub replaced_location: Option<Bytes>,
    /// What the cache did, and why.
    pub cache_report: cached::Report,
    /// Field lines of the upstream's response head, for `$upstream_http_*`.
    pub upstream_fields: FieldLines,
    /// The stored response that takes the place of an upstream's, for the same.
    pub stored: Option<cached::Stored>,
    /// Which of the upstream's trailers the client gets, by their names (`proxy_pass_trailers`).
    pub passes_trailer: Option<fn(&Exchange, &[u8]) -> bool>,
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
    /// What modules keep with the request.
    pub states: SharedStates,
    /// Fields that an `X-Accel-Redirect` answer hands on.
    pub accel_fields: Vec<(Bytes, Bytes)>,
    /// Of a part of another page: the path and the arguments by which that includes it.
    pub part: Option<Bytes>,
    /// Pages that it came for, and whose answers or refusals led elsewhere.
    pub left_pages: Vec<LeftPage>,
}

impl Exchange {
    /// A request as it arrived, before its server is chosen.
    #[inline(always)] // What it is given is large, and would be moved once more.
    pub fn new(
        conf: Rc<WorkerConf>,
        client: Rc<Client>,
        request: Request,
        body: RequestBody,
    ) -> Self {
        let server = conf.socket(&client).default_server;
        Self::of_server(conf, server, client, request, body)
    }

    /// A request for a server.
    #[inline(always)] // As above.
    pub(super) fn of_server(
        conf: Rc<WorkerConf>,
        server: ServerId,
        client: Rc<Client>,
        request: Request,
        body: RequestBody,
    ) -> Self {
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
            has_set_args: false,
            is_uri_as_sent: true,
            is_uri_in_location: true,
            is_uri_below_alias: false,
            is_internal: false,
            redirects: Redirects::default(),
            doubt: Doubt::default(),
            captures: Captures::default(),
            variables,
            status: 0,
            limit_rate: None,
            is_pipelined: false,
            started: turn::instant(),
            bytes_sent: 0,
            body_bytes_sent: 0,
            is_complete: false,
            attempts: Attempts::default(),
            cache_status: None,
            role: Role::Request,
            method_of_client: None,
            is_given_up: false,
            is_content_late: false,
            charset: None,
            said_of_client: Vec::new(),
            subrequests: Subrequests::default(),
            challenges: Vec::new(),
            replaced_location: None,
            cache_report: cached::Report::default(),
            upstream_fields: no_fields(),
            stored: None,
            passes_trailer: None,
            upstream_trailers: Vec::new(),
            sent: response::SentHead::default(),
            coded_bytes: None,
            request_id: OnceCell::new(),
            pass: Pass::default(),
            states: SharedStates::default(),
            accel_fields: Vec::new(),
            part: None,
            left_pages: Vec::new(),
        }
    }

    /// Whether it is a part of another request's answer.
    pub fn is_subrequest(&self) -> bool {
        self.role == Role::Subrequest
    }

    /// `$request_method`. As nginx: of a subrequest that of the client's request, by which it may decide; it is itself a GET.
    pub fn method_text(&self) -> &[u8] {
        self.method_of_client.as_deref().unwrap_or_else(|| self.request.method_text())
    }

    /// Whether it is only asked about.
    pub fn is_question(&self) -> bool {
        matches!(self.role, Role::Question { .. })
    }

    /// What of the path is behind that of its location, without slashes at its ends.
    pub fn path_behind_location(&self) -> String {
        let location = self.conf.location(self.location);
        let rest = self.uri.strip_prefix(&location.name[..]).unwrap_or(&self.uri);
        String::from_utf8_lossy(rest).trim_matches('/').to_owned()
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

    /// `http` or `https`: what the client spoke to a trusted proxy, or to this server.
    pub fn scheme(&self) -> &'static [u8] {
        self.remote.scheme.unwrap_or_else(|| self.client.scheme())
    }

    /// Whether that is `https`.
    pub fn is_https(&self) -> bool {
        self.scheme() == b"https"
    }

    /// The status that an `error_page` settled, unless it left that to its page.
    pub fn final_status(&self) -> Option<u16> {
        self.redirects.error_status.filter(|status| *status != 0)
    }

    /// Whether there is a query; as nginx, an empty one of the client is none.
    pub fn has_args(&self) -> bool {
        self.has_set_args || !self.args.is_empty()
    }

    /// Seconds since 1970, now: as nginx, not when the request began, which may have waited since.
    #[inline]
    pub fn now(&self) -> i64 {
        turn::unix_seconds()
    }

    /// Milliseconds since 1970, now: by what is fresh a request is answered that may have waited since it began.
    #[inline]
    pub fn now_millis(&self) -> i64 {
        turn::unix_millis()
    }

    pub fn request_time(&self) -> Duration {
        turn::instant().saturating_duration_since(self.started)
    }

    /// Of an answer that is not sent the challenges stay, also hidden ones: without them it is no 401 or 407
    /// (RFC 9110, sections 15.5.2 and 15.5.8).
    pub fn keep_challenges(&mut self, status: u16, fields: &[(Bytes, Bytes)]) {
        let wanted: &[u8] = match status {
            401 => b"www-authenticate",
            407 => b"proxy-authenticate",
            _ => return,
        };
        let found = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        self.challenges.extend(found.cloned());
    }

    /// Starts over with another path, as an internal redirect does.
    pub fn redirect_internally(&mut self, uri: Vec<u8>, args: Option<Vec<u8>>) {
        self.set_uri(uri);
        if let Some(args) = args {
            self.args = args;
            self.has_set_args = false;
        }
        self.is_uri_in_location = true;
        self.is_uri_below_alias = false;
        self.is_internal = true;
    }

    pub fn set_uri(&mut self, uri: Vec<u8>) {
        self.is_uri_as_sent = false;
        drop(Scratch::from(std::mem::replace(&mut self.uri, uri)));
    }
}
