//! The response on its way from a handler through the filters to the connection.

use super::recode::Recode;
use super::tunnel::Tunnel;
use crate::base::spare::SpareLists;
use crate::exchange::stream::Stream;
use bytes::Bytes;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use yorozu_cache::Entry;
use yorozu_http::conditional;
use yorozu_http::field::is_same;

thread_local! {
    static LINES: SpareLists<(Bytes, Bytes)> = const { SpareLists::empty() };
}

/// Field lines whose list the worker has room for again; chosen: most heads have fewer.
const LINES_USUAL: usize = 64;

/// Bytes to send.
#[derive(Clone, Debug)]
pub enum Segment {
    /// From memory.
    Memory(Bytes),
    /// From an open file.
    File(Arc<File>, Range<u64>),
}

impl Segment {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, range) => range.end - range.start,
        }
    }

    /// The bytes at `range` of it.
    pub fn part(&self, range: Range<u64>) -> Self {
        match self {
            Self::Memory(bytes) => {
                let inside = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
                Self::Memory(bytes.slice(inside(range.start)..inside(range.end)))
            }
            Self::File(file, whole) => {
                Self::File(Arc::clone(file), whole.start + range.start..whole.start + range.end)
            }
        }
    }
}

/// The content.
#[derive(Debug)]
pub enum Body {
    /// Known whole: nothing, one segment, or several (multipart ranges).
    Segments(Vec<Segment>),
    /// Shared bytes, the common case of a cached page.
    Memory(Bytes),
    /// Arrives while it is sent.
    Stream(Box<Stream>),
    /// No content: the connection is joined with the upstream's.
    Tunnel(Box<dyn Tunnel>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Memory(Bytes::new())
    }

    /// Its length, if known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Segments(segments) => Some(segments.iter().map(Segment::bytes).sum()),
            Self::Memory(bytes) => Some(bytes.len() as u64),
            Self::Stream(_) | Self::Tunnel(_) => None,
        }
    }
}

/// A response; fields that filters act on are kept apart.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The origin's reason phrase, when it sent one.
    pub reason: Option<Bytes>,
    /// Empty for none.
    pub content_type: Bytes,
    /// The charset that the upstream wants it to be in (`X-Accel-Charset`).
    pub charset: Option<Bytes>,
    pub content_length: Option<u64>,
    /// Seconds since 1970.
    pub last_modified: Option<i64>,
    /// Empty for none.
    pub etag: Bytes,
    /// Seconds since a stored page was made.
    pub age: Option<u64>,
    /// Field lines in order.
    pub fields: Vec<(Bytes, Bytes)>,
    /// A stored entry whose field lines go before `fields`.
    pub stored: Option<Arc<Entry>>,
    /// Whether fields are added after the content.
    pub has_trailers: bool,
    pub body: Body,
    /// Whether an upstream has judged the request's conditions.
    pub upstream_validates: bool,
    /// Whether the client has it already: it goes out as a 304, without its content.
    pub is_unchanged: bool,
    /// Whether the range filter may cut it.
    pub allow_ranges: bool,
    /// Whether it may cut what arrives and is not stored, too.
    pub forces_ranges: bool,
    /// The stored page it is, with which compressed forms can be kept.
    pub stored_page: Option<StoredPage>,
    /// Changes the encoding byte for byte, when it is known which bytes are sent.
    pub recoder: Option<Box<dyn Recode>>,
    /// `Vary: Accept-Encoding` is due.
    pub vary_encoding: bool,
    /// `Date` and `Server` come from the origin (`fastcgi_pass_header`).
    pub has_own_date: bool,
    pub has_own_server: bool,
    /// `Last-Modified` comes from the origin, whatever the status.
    pub has_own_last_modified: bool,
    /// A redirect made here, relative to the request: the connection completes it.
    pub location: Option<Bytes>,
}

/// Where the compressed forms of a stored page are kept.
#[derive(Clone, Debug)]
pub struct StoredPage {
    pub zone: Arc<yorozu_cache::Zone>,
    pub key: yorozu_cache::Key,
    pub entry: Arc<Entry>,
}

impl Response {
    pub fn new(status: u16) -> Self {
        Self {
            status,
            reason: None,
            content_type: Bytes::new(),
            charset: None,
            content_length: None,
            last_modified: None,
            etag: Bytes::new(),
            age: None,
            fields: Vec::new(),
            stored: None,
            has_trailers: false,
            body: Body::empty(),
            upstream_validates: false,
            is_unchanged: false,
            allow_ranges: false,
            forces_ranges: false,
            stored_page: None,
            recoder: None,
            vary_encoding: false,
            has_own_date: false,
            has_own_server: false,
            has_own_last_modified: false,
            location: None,
        }
    }

    /// A complete response from memory.
    pub fn with_body(status: u16, content_type: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self {
            content_type: content_type.into(),
            content_length: Some(body.len() as u64),
            body: Body::Memory(body),
            ..Self::new(status)
        }
    }

    pub fn add(&mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) {
        if self.fields.capacity() == 0 {
            self.fields = LINES.with(SpareLists::take);
        }
        self.fields.push((name.into(), value.into()));
    }

    /// Every field line that is not kept apart.
    #[inline]
    pub fn all_fields(&self) -> impl Iterator<Item = &(Bytes, Bytes)> {
        let stored = self.stored.iter().flat_map(|entry| entry.head.fields.iter());
        stored.chain(self.fields.iter())
    }

    /// The first value of `name` among [`Response::all_fields`].
    #[inline]
    pub fn field(&self, name: &[u8]) -> Option<&Bytes> {
        self.all_fields().find(|(found, _)| is_same(found, name)).map(|(_, value)| value)
    }

    /// The values of `name` among [`Response::all_fields`], in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Bytes> {
        self.all_fields().filter(move |(found, _)| is_same(found, name)).map(|(_, value)| value)
    }

    /// Moves the stored entry's lines to `fields`, so that they can be changed.
    pub fn own_fields(&mut self) {
        if let Some(entry) = self.stored.take() {
            let mut fields = entry.head.fields.clone();
            fields.append(&mut self.fields);
            self.fields = fields;
        }
    }

    pub fn remove(&mut self, name: &[u8]) {
        if self.field(name).is_some() {
            self.own_fields();
            self.fields.retain(|(found, _)| !is_same(found, name));
        }
    }

    /// Whether it is a stream that is stored as a page while it arrives.
    pub fn is_collected(&self) -> bool {
        matches!(&self.body, Body::Stream(stream) if stream.is_collected)
    }

    /// Applies a change of encoding that waited.
    pub fn apply_recoder(&mut self) {
        if let Some(recoder) = self.recoder.take() {
            let body = std::mem::replace(&mut self.body, Body::empty());
            self.body = body.changed(recoder);
        }
    }

    /// The content to make another of; no length is known any more.
    pub fn take_stream(&mut self) -> Stream {
        self.apply_recoder();
        let mut stream = std::mem::replace(&mut self.body, Body::empty()).into_stream();
        stream.announced = stream.announced.or(self.content_length);
        self.forget_length();
        stream
    }

    /// Changes the content while it is sent.
    pub fn change(&mut self, coder: Box<dyn Recode>) {
        self.apply_recoder();
        let mut body = std::mem::replace(&mut self.body, Body::empty());
        if let Body::Stream(stream) = &mut body {
            // So that one which breaks off is not taken for whole.
            stream.announced = stream.announced.or(self.content_length);
        }
        self.body = body.changed(coder);
        self.forget_length();
    }

    /// For content that is changed: a weak tag, or without `keeps` none and no time.
    pub fn weaken_validators(&mut self, keeps: bool) {
        if keeps {
            self.etag = conditional::weaken(&self.etag).unwrap_or_default().into();
        } else {
            self.last_modified = None;
            // What the client has may be another text.
            self.is_unchanged = false;
            // One that is no date is passed on as it came.
            self.fields.retain(|(name, _)| !name.eq_ignore_ascii_case(b"last-modified"));
            self.etag = Bytes::new();
        }
    }

    /// No byte position or length of the content is known any more.
    pub fn forget_length(&mut self) {
        self.content_length = None;
        // Ours, then: where it is another's word, it goes on.
        if std::mem::take(&mut self.allow_ranges) {
            self.remove(b"accept-ranges");
        }
    }
}

impl SentHead {
    /// The request is over: what it held may hold the next one's.
    pub fn give_back(&mut self) {
        LINES.with(|lists| lists.give(std::mem::take(&mut self.fields), LINES_USUAL));
    }

    /// What a response would say that is not sent yet.
    pub fn preview(response: &Response) -> Self {
        Self {
            content_type: response.content_type.clone(),
            content_length: response.content_length,
            last_modified: response.last_modified,
            etag: response.etag.clone(),
            location: response.location.clone().unwrap_or_default(),
            age: response.age,
            fields: response.fields.clone(),
            stored: response.stored.clone(),
            is_made: true,
            ..Self::default()
        }
    }
}

/// What was sent, kept for the logs.
#[derive(Clone, Debug, Default)]
pub struct SentHead {
    pub content_type: Bytes,
    pub content_length: Option<u64>,
    pub last_modified: Option<i64>,
    pub etag: Bytes,
    pub location: Bytes,
    pub age: Option<u64>,
    pub fields: Vec<(Bytes, Bytes)>,
    pub stored: Option<Arc<Entry>>,
    pub trailers: Vec<(Bytes, Bytes)>,
    pub has_trailers: bool,
    pub is_chunked: bool,
    pub is_keep_alive: bool,
    /// There is a response, so that this says all of it.
    pub is_made: bool,
}
