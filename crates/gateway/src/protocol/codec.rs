//! How a protocol's answers are read.

use super::usual;
use bytes::{Bytes, BytesMut};
use std::any::Any;
use std::io;
use std::ops::Deref;
use yorozu_http::field;
use yorozu_kernel::base::spare::SpareLists;
use yorozu_kernel::exchange::engine::{FieldLines, no_fields};
use yorozu_kernel::logging::error::{os_error, verbatim};
use yorozu_wire::WireError;
use yorozu_wire::h1::{Field, range, upstream_fields, upstream_fields_into};

/// A response head as the protocol's codec read it.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    pub reason: Option<Bytes>,
    /// Shared with the exchange's `$upstream_http_*`.
    pub fields: FieldLines,
}

impl Default for Head {
    fn default() -> Self {
        Self { status: 0, reason: None, fields: no_fields() }
    }
}

impl Head {
    /// The values of `name`, in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Bytes> {
        self.fields
            .iter()
            .filter(move |(found, _)| field::is_same(found, name))
            .map(|(_, value)| value)
    }

    /// The first value of `name`.
    pub fn field<'a>(&'a self, name: &'a [u8]) -> Option<&'a Bytes> {
        self.values(name).next()
    }
}

/// What a head says of where its content ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Announced {
    pub length: Option<u64>,
    pub is_chunked: bool,
}

impl Head {
    /// Where the content ends, which has to be said in one way.
    ///
    /// # Errors
    /// Two readers could understand it differently; as nginx, whatever protocol it came by.
    pub fn announced(&self) -> Result<Announced, CodecError> {
        let invalid = |text: &str| Err(CodecError::Invalid(format!("upstream sent {text}")));
        let mut found = Announced::default();
        for (name, value) in self.fields.iter() {
            // By length first: most names are none of these.
            match name.len() {
                14 if field::is_same(b"content-length", name) => {
                    if found.length.is_some() {
                        return invalid("duplicate header line: \"Content-Length\"");
                    }
                    let Some(length) = yorozu_conf::value::number(value) else {
                        return invalid("invalid \"Content-Length\" header");
                    };
                    found.length = Some(length);
                }
                17 if field::is_same(b"transfer-encoding", name) => {
                    if found.is_chunked {
                        return invalid("duplicate header line: \"Transfer-Encoding\"");
                    }
                    if !value.eq_ignore_ascii_case(b"chunked") {
                        return invalid("unknown \"Transfer-Encoding\"");
                    }
                    found.is_chunked = true;
                }
                _ => {}
            }
        }
        if found.is_chunked && found.length.is_some() {
            return invalid(
                "\"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            );
        }
        Ok(found)
    }

    /// Drops all but the first of the fields that an answer has once; those dropped.
    pub fn drop_repeated(&mut self) -> Vec<(Bytes, Bytes)> {
        let mut known = 0;
        if !self.fields.iter().any(|(name, _)| is_again(name, &mut known)) {
            return Vec::new();
        }
        let mut known = 0;
        let all = self.fields.iter().cloned();
        let (dropped, kept): (Vec<_>, Vec<_>) =
            all.partition(|(name, _)| is_again(name, &mut known));
        self.fields = kept.into();
        dropped
    }
}

/// Whether `name` is one that an answer has once, and among the `known` already. Not among them is
/// `Content-Encoding`, which nginx counts here: each of its lines names a coding of the content.
fn is_again(name: &[u8], known: &mut u16) -> bool {
    let is = |once: &[u8]| field::is_same(once, name);
    // By length first: most names are none of these.
    let bit = match name.len() {
        4 if is(b"date") => 1,
        4 if is(b"etag") => 1 << 1,
        6 if is(b"server") => 1 << 2,
        7 if is(b"expires") => 1 << 3,
        7 if is(b"refresh") => 1 << 4,
        8 if is(b"location") => 1 << 5,
        12 if is(b"content-type") => 1 << 6,
        13 if is(b"last-modified") => 1 << 7,
        13 if is(b"accept-ranges") => 1 << 8,
        13 if is(b"content-range") => 1 << 9,
        _ => return false,
    };
    let was_known = *known & bit != 0;
    *known |= bit;
    was_known
}

thread_local! {
    static FIELDS: SpareLists<Field> = const { SpareLists::empty() };
}

/// Fields of a head whose list the worker has room for again; chosen: most heads have fewer.
const FIELDS_USUAL: usize = 64;

/// Where the fields of a head stand in it.
pub struct FieldSpans(Vec<Field>);

impl FieldSpans {
    /// Reads them as [`upstream_fields`](yorozu_wire::h1::upstream_fields) does, from a position on; and where the head ends.
    ///
    /// # Errors
    /// A line is not a field line: it is named.
    pub fn read(input: &[u8], from: usize) -> Result<Option<(Self, usize)>, CodecError> {
        let mut spans = Self(FIELDS.with(SpareLists::take));
        let end = upstream_fields_into(input, from, &mut spans.0)
            .map_err(|_| invalid_header(input, from))?;
        Ok(end.map(|end| (spans, end)))
    }

    /// The fields themselves, of the head that they were read in.
    pub fn lines(&self, head: &Bytes) -> FieldLines {
        let part = |span| usual::part(head, range(span));
        self.0.iter().map(|field| (part(&field.name), part(&field.value))).collect()
    }
}

/// nginx's words, with the line.
#[cold]
fn invalid_header(input: &[u8], from: usize) -> CodecError {
    let mut at = from;
    for line in input[from..].split_inclusive(|byte| *byte == b'\n') {
        let text = [line, b"\r\n"].concat();
        if !line.trim_ascii().is_empty() && upstream_fields(&text, 0).is_err() {
            break;
        }
        at += line.len();
    }
    let line = input[at..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = verbatim(line.trim_ascii_end()).replace('\r', "\\r");
    CodecError::Invalid(format!("upstream sent invalid header: \"{line}\""))
}

impl Drop for FieldSpans {
    fn drop(&mut self) {
        let list = std::mem::take(&mut self.0);
        // At the end of the thread there are no lists any more.
        let _ = FIELDS.try_with(|lists| lists.give(list, FIELDS_USUAL));
    }
}

impl Deref for FieldSpans {
    type Target = [Field];

    fn deref(&self) -> &[Field] {
        &self.0
    }
}

/// Progress within a response body.
#[derive(Debug)]
pub enum BodyStep {
    Data(Bytes),
    NeedMore,
    End,
}

/// What a codec has to know of the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub head_bytes_max: usize,
    pub is_head_request: bool,
    /// Whether an upgrade was asked for.
    pub may_upgrade: bool,
}

/// What reads the answers to a request, each with a codec of its own.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub asked: Asked,
    pub make: fn(Asked) -> Box<dyn Codec>,
}

impl Reader {
    /// A codec for one answer.
    pub fn codec(&self) -> Box<dyn Codec> {
        (self.make)(self.asked)
    }
}

/// One protocol's reading side; state of one request on one connection.
pub trait Codec {
    /// Reads the response head; `Ok(None)` if more is needed.
    ///
    /// # Errors
    /// What the peer did wrong.
    fn read_head(&mut self, input: &mut BytesMut) -> Result<Option<Head>, CodecError>;

    /// Reads on in the body.
    ///
    /// # Errors
    /// What the peer did wrong.
    fn read_body(&mut self, input: &mut BytesMut) -> Result<BodyStep, CodecError>;

    /// Whether the response is whole when the peer closes.
    fn is_whole_at_close(&self) -> bool;

    /// Whether the connection may serve another request; asked after the end of the body.
    fn is_reusable(&self) -> bool;

    /// Whether the connection leaves the protocol after this head, as the client asked; only HTTP does.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Whether only the head of the answer was asked for: what that says of the content, it does not have.
    fn is_of_head_request(&self) -> bool {
        false
    }

    /// What stands behind the content and counts as a part of the answer (`$upstream_response_length`), in bytes.
    fn end_bytes(&self) -> usize {
        0
    }

    /// Whether the application reports success; asked after the end of the body.
    fn may_be_stored(&self) -> bool {
        true
    }

    /// Text the application wrote for the log since the last call.
    fn take_stderr(&mut self) -> Option<Bytes> {
        None
    }

    /// nginx's words around such a text.
    fn in_nginx_words(&self, text: &[u8]) -> String {
        verbatim(text).into_owned()
    }

    /// Fields behind the body. Asked after its end.
    fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        Vec::new()
    }

    /// What is to be said to the peer before it says more; asked once the request is sent.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// What the next conversation on the connection has to know.
    fn leave(&mut self) -> Option<Box<dyn Any>> {
        None
    }

    /// nginx's words for a connection closed in the middle of the body.
    fn closed_early(&self) -> &'static str {
        "upstream prematurely closed connection"
    }
}

/// Why a codec gave up, in nginx's words. What was done then (`while …`) adds who reads.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("upstream sent too big header")]
    HeadTooBig,
    #[error("upstream closed the response early")]
    Incomplete,
    #[error("readv() failed ({})", os_error(.0))]
    Lost(io::Error),
    #[error("{0}")]
    Invalid(String),
    /// The peer did nothing for the request.
    #[error("{0}")]
    Refused(String),
}

impl CodecError {
    /// For the log.
    pub fn text(&self, codec: &dyn Codec) -> String {
        match self {
            Self::Incomplete => codec.closed_early().to_owned(),
            other => other.to_string(),
        }
    }
}

/// Hands out a body that is there already.
#[derive(Default)]
pub struct Whole {
    pub body: Option<Bytes>,
    /// What stood behind it.
    pub end_bytes: usize,
}

impl Codec for Whole {
    fn read_head(&mut self, _: &mut BytesMut) -> Result<Option<Head>, CodecError> {
        unreachable!("it came before the body")
    }

    fn read_body(&mut self, _: &mut BytesMut) -> Result<BodyStep, CodecError> {
        let body = self.body.take().filter(|body| !body.is_empty());
        Ok(body.map_or(BodyStep::End, BodyStep::Data))
    }

    fn is_whole_at_close(&self) -> bool {
        self.body.is_none()
    }

    fn end_bytes(&self) -> usize {
        self.end_bytes
    }

    fn is_reusable(&self) -> bool {
        false
    }
}
