//! The head of an HTTP/1 request: collected, read, and judged.

use super::header_buffers::HeaderBuffers;
use super::transport::Transport;
use bytes::{Bytes, BytesMut};
use memchr::memchr;
use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;
use yorozu_http::field;
use yorozu_http::uri::{self, split_authority};
use yorozu_kernel::base::counters::{Counted, Present};
use yorozu_kernel::base::spare::SpareLists;
use yorozu_kernel::base::timer::Timer;
use yorozu_kernel::base::turn;
use yorozu_kernel::config::http_core::Conf;
use yorozu_kernel::exchange::request::{KnownFields, Method, Request};
use yorozu_kernel::logging::error::verbatim;
use yorozu_wire::WireError;
use yorozu_wire::h1::{
    Field, FieldRules, RequestLine, Span, Version, fields, fields_at_once, fields_begun,
    fields_end, range, request_line, slice,
};

thread_local! {
    static FIELDS: SpareLists<Field> = const { SpareLists::empty() };
}

/// Fields of a head whose list the worker has room for again; chosen: most heads have fewer.
const FIELDS_USUAL: usize = 64;

/// The request is over: what it held may hold the next one.
pub fn give_back(request: &mut Request) {
    FIELDS.with(|lists| lists.give(std::mem::take(&mut request.fields), FIELDS_USUAL));
}

/// A head that was read.
pub enum Received {
    Request(Request),
    /// Answered with a status and, where it could be read, the request's line.
    Bad {
        status: u16,
        text: String,
        request: Request,
    },
    /// It is not whole.
    Partial,
}

/// What came of waiting for a request, which has its place beforehand: it is too large to be handed on and on.
pub enum Arrived {
    Request,
    /// Answered with a status and, where it could be read, the request's line.
    Bad {
        status: u16,
        text: String,
    },
    /// The client went away.
    Closed,
    /// The client was silent in the middle of a head.
    TimedOut,
    /// More has to come, and nothing may be waited for.
    NotYet,
}

/// Bounds of a head, before its server is known.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub(super) line_bytes_max: usize,
    pub(super) head_bytes_max: usize,
    /// `client_header_buffer_size` and `large_client_header_buffers`, where a head comes line by line.
    pub(super) first_bytes: usize,
    pub(super) large_bytes: usize,
    pub(super) large_count: u64,
    pub(super) fields_max: usize,
    pub(super) rules: FieldRules,
    pub(super) drops_invalid: bool,
    pub(super) merges_slashes: bool,
}

impl Bounds {
    /// Nothing is within them.
    pub(super) const NONE: Self = Self {
        line_bytes_max: 0,
        head_bytes_max: 0,
        first_bytes: 0,
        large_bytes: 0,
        large_count: 0,
        fields_max: 0,
        rules: FieldRules { underscores: false },
        drops_invalid: false,
        merges_slashes: false,
    };

    /// Those of HTTP/2 and HTTP/3, where no buffer is smaller than the others.
    pub fn of_streams(conf: &Conf) -> Self {
        let large = conf.large_client_header_buffers;
        let line_bytes_max = usize::try_from(large.size).unwrap_or(usize::MAX);
        Self { line_bytes_max, head_bytes_max: large.total(), ..Self::of(conf) }
    }

    pub fn of(conf: &Conf) -> Self {
        let first = conf.client_header_buffer_size.bytes();
        let large = conf.large_client_header_buffers;
        let large_bytes = usize::try_from(large.size).unwrap_or(usize::MAX);
        Self {
            line_bytes_max: first.max(large_bytes),
            head_bytes_max: first.saturating_add(large.total()),
            first_bytes: first,
            large_bytes,
            large_count: large.count,
            fields_max: usize::try_from(conf.max_headers).unwrap_or(usize::MAX),
            rules: FieldRules { underscores: conf.underscores_in_headers },
            drops_invalid: conf.ignore_invalid_headers,
            merges_slashes: conf.merge_slashes,
        }
    }
}

/// Waits for the rest of a head that begins in `buffer`, if it may, and reads the request.
///
/// # Cancel safety
/// What was read is in `buffer`.
pub async fn receive(
    io: &Transport,
    buffer: &mut BytesMut,
    timer: &mut Timer,
    bounds: &Bounds,
    timeout: Duration,
    may_wait: bool,
    request: &mut Request,
) -> Arrived {
    let mut seen = Seen::default();
    let mut reading = None;
    loop {
        match progress(buffer, &mut seen, bounds) {
            Ok(Some(end)) => {
                let Seen { line, fields, .. } = seen;
                let line = line.expect("a complete head has a line");
                request.sent_bytes = end as u64;
                request.head = buffer.split_to(end).freeze();
                return match read_into(request, &line, fields, bounds) {
                    Ok(()) => Arrived::Request,
                    Err((status, text)) => Arrived::Bad { status, text },
                };
            }
            Ok(None) => {}
            // It is only good for a log line and an error page.
            Err((status, text)) => {
                *request = unfinished(buffer.split().freeze(), seen.line.as_ref(), bounds);
                return Arrived::Bad { status, text };
            }
        }
        if !may_wait {
            return Arrived::NotYet;
        }
        let (_, begun) =
            reading.get_or_insert_with(|| (Counted::of(Present::Reading), turn::instant()));
        let limit = timeout.saturating_sub(turn::instant().saturating_duration_since(*begun));
        match timer.within(limit, pin!(io.read(buffer))).await {
            None => return Arrived::TimedOut,
            Some(Ok(count)) if count > 0 => {}
            Some(_) => return Arrived::Closed,
        }
    }
}

/// Status and text for the log.
pub(super) type Refusal = (u16, String);

/// What is known of a head, as far as it has come.
#[derive(Default)]
struct Seen {
    line: Option<RequestLine>,
    /// Where its end was searched already.
    searched: usize,
    /// The fields, if they were read while the end was looked for.
    fields: Option<Vec<Field>>,
    /// Where what was not judged yet begins, of one that came in pieces; 0 before its first line was.
    judged: usize,
    /// Where its lines are, once that matters.
    buffers: Option<HeaderBuffers>,
}

/// The end of the head, once it is there.
fn progress(buffer: &[u8], seen: &mut Seen, bounds: &Bounds) -> Result<Option<usize>, Refusal> {
    if seen.line.is_none() {
        let read = request_line(buffer).map_err(|error| match error {
            WireError::Version => (505, error.to_string()),
            _ => (400, error.to_string()),
        })?;
        match read {
            None if !has_room(buffer, None, seen, bounds) => {
                return Err((414, "client sent too long URI".to_owned()));
            }
            None => return Ok(None),
            Some(read) if !has_room(buffer, Some(read.consumed as usize), seen, bounds) => {
                return Err((414, "client sent too long URI".to_owned()));
            }
            Some(read) => seen.line = Some(read),
        }
    }
    let line = seen.line.as_ref().expect("just read");
    let start = line.consumed as usize;
    if line.version == Version::V09 {
        return Ok(Some(start));
    }
    let end = match seen.searched {
        0 => whole_fields(buffer, start, bounds).map(|(fields, end)| {
            seen.fields = Some(fields);
            end
        }),
        _ => None,
    };
    let end = end.or_else(|| fields_end(buffer, start, seen.searched.max(start)));
    seen.searched = buffer.len();
    if !has_room(buffer, end, seen, bounds) {
        return Err((494, "client sent too long header line".to_owned()));
    }
    if end.is_none() {
        let line = seen.line.as_ref().expect("read above");
        seen.judged = judge_begun(buffer, line, seen.judged, bounds)?;
    }
    Ok(end)
}

/// Refuses a head that more of it cannot mend: as nginx, each line is judged when it is there, and a name before its
/// line's end. What was judged before ends at `judged`; returns where that ends now.
fn judge_begun(
    buffer: &[u8],
    line: &RequestLine,
    judged: usize,
    bounds: &Bounds,
) -> Result<usize, Refusal> {
    let start = line.consumed as usize;
    if judged == 0 {
        let target = &buffer[range(&line.path_and_query)];
        if target.first() == Some(&b'/') {
            uri::normalize(target, bounds.merges_slashes)
                .map_err(|_| (400, "client sent invalid request".to_owned()))?;
        }
    }
    let wrong = |error: WireError| (400, error.to_string());
    let mut found = Vec::new();
    let end = fields_begun(buffer, judged.max(start), bounds.rules, &mut found).map_err(wrong)?;
    if end == judged.max(start) {
        return Ok(end);
    }
    found.clear();
    fields(buffer, start, end, bounds.rules, &mut found).map_err(wrong)?;
    let mut request = Request::unread(Bytes::copy_from_slice(&buffer[..end]));
    fill_line(&mut request, line);
    keep_fields(&mut request, found, bounds)?;
    check_repeated(&mut request)?;
    check_authority(&mut request, line.authority.as_ref())?;
    Ok(end)
}

/// The fields of a head that came at once, as most do, and its end.
fn whole_fields(head: &[u8], start: usize, bounds: &Bounds) -> Option<(Vec<Field>, usize)> {
    let mut found = FIELDS.with(SpareLists::take);
    match fields_at_once(head, start, bounds.rules, &mut found) {
        Some(end) => Some((found, end)),
        None => {
            FIELDS.with(|lists| lists.give(found, FIELDS_USUAL));
            None
        }
    }
}

/// Whether what is known of the head fits in the buffers; without an `end` more has to come.
fn has_room(head: &[u8], end: Option<usize>, seen: &mut Seen, bounds: &Bounds) -> bool {
    let reached = end.unwrap_or(head.len() + 1);
    // Wherever its lines end: it has room in the first buffer, or whatever of it in a second one.
    if reached <= bounds.line_bytes_max {
        return true;
    }
    let buffers = seen.buffers.get_or_insert_with(|| {
        let skipped = head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        HeaderBuffers::new(skipped, bounds)
    });
    buffers.have_room(head, end.unwrap_or(head.len()), bounds)
}

/// What there is of a head that did not arrive whole; its server is that of the host it names so far.
pub fn begun(head: Bytes, bounds: &Bounds) -> Request {
    let line = request_line(&head).ok().flatten();
    unfinished(head, line.as_ref(), bounds)
}

fn unfinished(head: Bytes, line: Option<&RequestLine>, bounds: &Bounds) -> Request {
    let mut request = Request::unread(head);
    let Some(line) = line else {
        let end = request.head.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let end = end.unwrap_or(request.head.len());
        request.line = 0..u32::try_from(end).unwrap_or(0);
        // As nginx: whatever is wrong behind it, a HEAD gets no content.
        if let Some(method_bytes) = memchr(b' ', &request.head[..end]) {
            request.method = Method::parse(&request.head[..method_bytes]);
        }
        return request;
    };
    fill_line(&mut request, line);
    let mut end = line.consumed as usize;
    while let Some(length) = memchr(b'\n', &request.head[end..]) {
        if length > bounds.line_bytes_max {
            break;
        }
        end += length + 1;
    }
    request.fields = fields_before(&request.head, line.consumed as usize, end, bounds);
    name_host(&mut request, line.authority.as_ref());
    request
}

/// The fields before what is broken, if anything is.
fn fields_before(head: &[u8], start: usize, end: usize, bounds: &Bounds) -> Vec<Field> {
    let mut found = Vec::new();
    let broken = memchr(b'\0', &head[start..end]).map_or(end, |at| start + at);
    let end = head[start..broken]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(start, |at| start + at + 1);
    // They stand in `found`, whatever follows them.
    let _ = fields(head, start, end, bounds.rules, &mut found);
    found
}

/// Finds out which host a broken head was for.
fn name_host(request: &mut Request, authority: Option<&Span>) {
    let text = match authority {
        Some(span) => Some(slice(&request.head, span)),
        None => request.field(b"host"),
    };
    if let Some((host, port)) = text.and_then(split_authority) {
        (request.host, request.port) = shared(&request.head, host, port);
    }
}

/// Host and port that stand in a head, as parts of it where they are as they were sent.
fn shared(head: &Bytes, host: Cow<'_, [u8]>, port: Option<&[u8]>) -> (Bytes, Bytes) {
    let host = match host {
        Cow::Borrowed(host) => head.slice_ref(host),
        Cow::Owned(host) => host.into(),
    };
    (host, port.map_or_else(Bytes::new, |port| head.slice_ref(port)))
}

pub(super) fn fill_line(request: &mut Request, line: &RequestLine) {
    request.line = line.start..line.end;
    request.method_span = line.method.clone();
    request.method = Method::parse(slice(&request.head, &line.method));
    request.target_span = line.path_and_query.clone();
    request.version = line.version;
}

/// Reads a head that is all there.
pub fn read(head: Bytes, bounds: &Bounds) -> Received {
    let mut seen = Seen::default();
    match progress(&head, &mut seen, bounds) {
        Ok(Some(end)) => {
            let line = seen.line.expect("a complete head has a line");
            interpret(head.slice(..end), &line, seen.fields, bounds)
        }
        Ok(None) => Received::Partial,
        Err((status, text)) => Received::Bad { status, text, request: Request::unread(head) },
    }
}

/// Reads a head whose line is known; its fields may be, too.
pub(super) fn interpret(
    head: Bytes,
    line: &RequestLine,
    known: Option<Vec<Field>>,
    bounds: &Bounds,
) -> Received {
    let mut request = Request::unread(head);
    match read_into(&mut request, line, known, bounds) {
        Ok(()) => Received::Request(request),
        Err((status, text)) => Received::Bad { status, text, request },
    }
}

/// Reads the fields, unless they are known, and judges what two readers could disagree on.
fn read_into(
    request: &mut Request,
    line: &RequestLine,
    known: Option<Vec<Field>>,
    bounds: &Bounds,
) -> Result<(), Refusal> {
    fill_line(request, line);
    let authority = line.authority.as_ref();
    let result = read_fields(request, line, known, bounds).and_then(|()| check(request, authority));
    if result.is_err() {
        name_host(request, authority);
    }
    result
}

fn read_fields(
    request: &mut Request,
    line: &RequestLine,
    known: Option<Vec<Field>>,
    bounds: &Bounds,
) -> Result<(), Refusal> {
    let is_known = known.is_some();
    let mut found = known.unwrap_or_else(|| FIELDS.with(SpareLists::take));
    let end = request.head.len();
    if line.version != Version::V09 && !is_known {
        let read = fields(&request.head, line.consumed as usize, end, bounds.rules, &mut found);
        if let Err(error) = read {
            request.fields = fields_before(&request.head, line.consumed as usize, end, bounds);
            return Err((400, error.to_string()));
        }
    }
    keep_fields(request, found, bounds)
}

fn keep_fields(
    request: &mut Request,
    mut found: Vec<Field>,
    bounds: &Bounds,
) -> Result<(), Refusal> {
    if bounds.drops_invalid {
        found.retain(|field: &Field| !field.is_invalid);
    }
    if found.len() > bounds.fields_max {
        return Err((400, "client sent too many header lines".to_owned()));
    }
    request.fields = found;
    Ok(())
}

/// Notes which fields there are, and refuses those of which there may be one.
fn check_repeated(request: &mut Request) -> Result<FieldCounts, Refusal> {
    let seen = known_fields(request)?;
    let counts = [
        (seen.hosts, "Host"),
        (seen.content_lengths, "Content-Length"),
        (seen.transfer_encodings, "Transfer-Encoding"),
    ];
    match counts.into_iter().find(|(count, _)| *count > 1) {
        Some((_, name)) => Err((400, format!("client sent duplicate header line: \"{name}\""))),
        None => Ok(seen),
    }
}

/// Refuses what two readers could disagree on; `authority` is where the target names one.
pub(super) fn check(request: &mut Request, authority: Option<&Span>) -> Result<(), Refusal> {
    let seen = check_repeated(request)?;
    check_authority(request, authority)?;
    request.is_read = true;
    if seen.hosts == 0 && request.version >= Version::V11 {
        let text = match request.version {
            Version::V20 | Version::V30 => "client sent neither \":authority\" nor \"Host\" header",
            _ => "client sent HTTP/1.1 request without \"Host\" header",
        };
        return Err((400, text.to_owned()));
    }
    if let Some(value) = request.field(b"content-length") {
        let length = yorozu_conf::value::number(value).filter(|length| *length <= i64::MAX as u64);
        request.content_length =
            Some(length.ok_or_else(|| {
                (400, "client sent invalid \"Content-Length\" header".to_owned())
            })?);
    }
    if seen.transfer_encodings == 0 { Ok(()) } else { check_transfer_encoding(request) }
}

/// Decides which host and port are asked for. From here on `Host` says it, and nothing else does: an authority
/// in the target takes its place (RFC 9112, section 3.2.2).
fn check_authority(request: &mut Request, authority: Option<&Span>) -> Result<(), Refusal> {
    let invalid = || (400, "client sent invalid host header".to_owned());
    let split = |head: &Bytes, text: &[u8]| {
        let (host, port) = split_authority(text).ok_or_else(invalid)?;
        Ok(shared(head, host, port))
    };
    let mut chosen = (Bytes::new(), Bytes::new());
    if request.known.host.is_some() {
        chosen = split(&request.head, request.authority())?;
    }
    if let Some(span) = authority {
        chosen = split(&request.head, slice(&request.head, span))?;
        match request.known.host {
            Some(host) => request.fields[usize::from(host)].value = span.clone(),
            None => request.add_host(span.clone()),
        }
    }
    (request.host, request.port) = chosen;
    Ok(())
}

fn check_transfer_encoding(request: &mut Request) -> Result<(), Refusal> {
    let refuse = |text: &str| Err((400, text.to_owned()));
    if request.version < Version::V11 {
        return refuse("client sent HTTP/1.0 request with \"Transfer-Encoding\" header");
    }
    if !request.field(b"transfer-encoding").unwrap_or_default().eq_ignore_ascii_case(b"chunked") {
        return Err((501, "client sent unknown \"Transfer-Encoding\"".to_owned()));
    }
    if request.content_length.is_some() {
        return refuse(
            "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        );
    }
    request.is_chunked = true;
    Ok(())
}

#[derive(Default)]
struct FieldCounts {
    hosts: usize,
    content_lengths: usize,
    transfer_encodings: usize,
}

/// Notes where the fields are that the server acts on; fields that must be single are.
fn known_fields(request: &mut Request) -> Result<FieldCounts, Refusal> {
    let mut known = KnownFields::default();
    let mut seen = FieldCounts::default();
    let mut content_range = None;
    for (index, field) in request.fields.iter().enumerate() {
        let name = request.name(field);
        let index = u16::try_from(index)
            .map_err(|_| (400, "client sent too many header lines".to_owned()))?;
        let is = |text: &str| field::is_same(name, text.as_bytes());
        let unique = |place: &mut Option<u16>| match place.replace(index) {
            None => Ok(()),
            Some(_) => {
                let name = verbatim(name);
                Err((400, format!("client sent duplicate header line: \"{name}\"")))
            }
        };
        match name.len() {
            3 if is("via") => known.via = Some(index),
            4 if is("host") => {
                seen.hosts += 1;
                known.host = Some(index);
            }
            // As nginx: of these the first counts.
            5 if is("range") => {
                known.range.get_or_insert(index);
            }
            6 if is("cookie") => {
                known.cookie.get_or_insert(index);
            }
            6 if is("expect") => unique(&mut known.expect)?,
            8 if is("if-match") => unique(&mut known.if_match)?,
            8 if is("if-range") => unique(&mut known.if_range)?,
            10 if is("connection") => {
                known.connection.get_or_insert(index);
            }
            10 if is("user-agent") => {
                known.user_agent.get_or_insert(index);
            }
            13 if is("authorization") => unique(&mut known.authorization)?,
            13 if is("content-range") => unique(&mut content_range)?,
            13 if is("if-none-match") => unique(&mut known.if_none_match)?,
            14 if is("content-length") => seen.content_lengths += 1,
            15 if is("accept-encoding") => {
                known.accept_encoding.get_or_insert(index);
            }
            17 if is("if-modified-since") => unique(&mut known.if_modified_since)?,
            17 if is("transfer-encoding") => seen.transfer_encodings += 1,
            19 if is("if-unmodified-since") => unique(&mut known.if_unmodified_since)?,
            _ => {}
        }
    }
    request.known = known;
    Ok(seen)
}
