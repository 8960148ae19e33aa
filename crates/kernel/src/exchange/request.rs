//! The request as it arrived.

use bytes::Bytes;
use yorozu_http::field::{Name, Value, is_same};
use yorozu_http::uri;
use yorozu_wire::h1::{Field, Span, Version, slice};

/// Methods the server itself acts on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Mkcol,
    Copy,
    Move,
    Options,
    Propfind,
    Proppatch,
    Lock,
    Unlock,
    Patch,
    Trace,
    Connect,
    /// Any other token.
    Other,
}

impl Method {
    pub fn parse(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"MKCOL" => Self::Mkcol,
            b"COPY" => Self::Copy,
            b"MOVE" => Self::Move,
            b"OPTIONS" => Self::Options,
            b"PROPFIND" => Self::Propfind,
            b"PROPPATCH" => Self::Proppatch,
            b"LOCK" => Self::Lock,
            b"UNLOCK" => Self::Unlock,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }

    pub fn is_get_or_head(self) -> bool {
        matches!(self, Self::Get | Self::Head)
    }
}

/// Positions in [`Request::fields`] of fields the server acts on.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownFields {
    pub accept_encoding: Option<u16>,
    pub authorization: Option<u16>,
    pub connection: Option<u16>,
    pub cookie: Option<u16>,
    pub expect: Option<u16>,
    pub host: Option<u16>,
    pub if_match: Option<u16>,
    pub if_modified_since: Option<u16>,
    pub if_none_match: Option<u16>,
    pub if_range: Option<u16>,
    pub if_unmodified_since: Option<u16>,
    pub range: Option<u16>,
    pub user_agent: Option<u16>,
    pub via: Option<u16>,
}

impl KnownFields {
    /// The place of a field that the server acts on, by its name.
    fn of(&mut self, name: &[u8]) -> Option<&mut Option<u16>> {
        Some(match &name.to_ascii_lowercase()[..] {
            b"accept-encoding" => &mut self.accept_encoding,
            b"authorization" => &mut self.authorization,
            b"connection" => &mut self.connection,
            b"cookie" => &mut self.cookie,
            b"expect" => &mut self.expect,
            b"host" => &mut self.host,
            b"if-match" => &mut self.if_match,
            b"if-modified-since" => &mut self.if_modified_since,
            b"if-none-match" => &mut self.if_none_match,
            b"if-range" => &mut self.if_range,
            b"if-unmodified-since" => &mut self.if_unmodified_since,
            b"range" => &mut self.range,
            b"user-agent" => &mut self.user_agent,
            b"via" => &mut self.via,
            _ => return None,
        })
    }

    fn all(&mut self) -> [&mut Option<u16>; 14] {
        [
            &mut self.accept_encoding,
            &mut self.authorization,
            &mut self.connection,
            &mut self.cookie,
            &mut self.expect,
            &mut self.host,
            &mut self.if_match,
            &mut self.if_modified_since,
            &mut self.if_none_match,
            &mut self.if_range,
            &mut self.if_unmodified_since,
            &mut self.range,
            &mut self.user_agent,
            &mut self.via,
        ]
    }
}

/// The request line and fields, as offsets into one buffer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The bytes of the head.
    pub head: Bytes,
    /// How many of them the client sent.
    pub sent_bytes: u64,
    /// The request line without its end.
    pub line: Span,
    pub method: Method,
    pub method_span: Span,
    /// In place of the client's, after a redirect made here.
    pub method_override: Option<&'static [u8]>,
    /// Path and query as sent.
    pub target_span: Span,
    pub version: Version,
    pub fields: Vec<Field>,
    pub known: KnownFields,
    /// Whether its fields were read to their end.
    pub is_read: bool,
    /// Lower-cased host without port; empty without `Host`.
    pub host: Bytes,
    /// The port of the authority as written; empty without.
    pub port: Bytes,
    pub content_length: Option<u64>,
    /// Whether it has a body whose length is not known before it is read.
    pub is_chunked: bool,
}

impl Request {
    /// A request of which nothing could be read.
    pub fn unread(head: Bytes) -> Self {
        Self {
            sent_bytes: head.len() as u64,
            head,
            line: 0..0,
            method: Method::Other,
            method_span: 0..0,
            method_override: None,
            target_span: 0..0,
            version: Version::V10,
            fields: Vec::new(),
            known: KnownFields::default(),
            is_read: false,
            host: Bytes::new(),
            port: Bytes::new(),
            content_length: None,
            is_chunked: false,
        }
    }

    #[inline]
    pub fn span(&self, span: &Span) -> &[u8] {
        slice(&self.head, span)
    }

    #[inline]
    pub fn method_text(&self) -> &[u8] {
        self.method_override.unwrap_or_else(|| self.span(&self.method_span))
    }

    /// From here on it counts as a GET.
    pub fn become_get(&mut self) {
        self.method = Method::Get;
        self.method_override = Some(b"GET");
    }

    #[inline]
    pub fn target(&self) -> &[u8] {
        self.span(&self.target_span)
    }

    /// The target before its `?`, and what is behind that.
    pub fn split_target(&self) -> (&[u8], &[u8]) {
        let target = self.target();
        let end = memchr::memchr(b'?', target).unwrap_or(target.len());
        (&target[..end], target.get(end + 1..).unwrap_or_default())
    }

    /// The part of the target before the arguments, as it was sent.
    pub fn path_as_sent(&self) -> &[u8] {
        let target = self.target();
        let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
        &target[..end]
    }

    #[inline]
    pub fn line_text(&self) -> &[u8] {
        self.span(&self.line)
    }

    #[inline]
    pub fn name(&self, field: &Field) -> &[u8] {
        slice(&self.head, &field.name)
    }

    #[inline]
    pub fn value(&self, field: &Field) -> &[u8] {
        slice(&self.head, &field.value)
    }

    /// The value of a known field.
    #[inline]
    pub fn known(&self, index: Option<u16>) -> Option<&[u8]> {
        index.map(|index| self.value(&self.fields[usize::from(index)]))
    }

    /// All values of `name`, in order.
    #[inline]
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| is_same(self.name(field), name))
            .map(|field| self.value(field))
    }

    /// The first value of `name`.
    #[inline]
    pub fn field<'a>(&'a self, name: &'a [u8]) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    /// The host and port asked for, as written. It is what the target or `:authority` names, where one of
    /// them does: `Host` says nothing else (see `connection::head`).
    #[inline]
    pub fn authority(&self) -> &[u8] {
        self.known(self.known.host).unwrap_or_default()
    }

    /// Takes away the fields whose names `keeps` does not want.
    pub fn retain_fields(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        let mut places = Vec::with_capacity(self.fields.len());
        let mut kept = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let is_kept = keeps(self.name(field));
            places.push(is_kept.then_some(kept.len()));
            if is_kept {
                kept.push(field.clone());
            }
        }
        self.fields = kept;
        for known in self.known.all() {
            let place = known.and_then(|index| places[usize::from(index)]);
            *known = place.and_then(|place| u16::try_from(place).ok());
        }
    }

    /// Whether it came over HTTP/2 or HTTP/3.
    pub fn is_multiplexed(&self) -> bool {
        self.version >= Version::V20
    }

    /// Whether it has content, according to its head.
    pub fn has_content(&self) -> bool {
        self.is_chunked || self.content_length.is_some_and(|length| length > 0)
    }

    /// From here on it has no content, and says of none.
    pub fn drop_content(&mut self) {
        (self.content_length, self.is_chunked) = (None, false);
        self.retain_fields(|name| {
            !name.eq_ignore_ascii_case(b"content-length")
                && !name.eq_ignore_ascii_case(b"transfer-encoding")
        });
    }

    /// Writes the authority as the host alone, as `server_name` compares it.
    pub fn normalize_authority(&mut self) {
        self.port = Bytes::new();
        let Some(field) = self.known.host.map(usize::from) else { return };
        self.fields[field].value = self.append_to_head(&self.host.clone());
    }

    /// Adds a `Host` field, whose value is in the head, to a request that has none.
    pub fn add_host(&mut self, value: Span) {
        let name = self.append_to_head(b"Host");
        self.known.host = u16::try_from(self.fields.len()).ok();
        self.fields.push(Field { name, value, is_invalid: false });
    }

    /// Adds a field that the client did not send.
    pub fn add_field(&mut self, name: Name<'_>, value: &Value<'_>) {
        let place = u16::try_from(self.fields.len()).ok();
        let (name, value) = (self.append_to_head(&name), self.append_to_head(value));
        let known = self.known.of(&self.head[name.start as usize..name.end as usize]);
        if let Some(known) = known.filter(|known| known.is_none()) {
            *known = place;
        }
        self.fields.push(Field { name, value, is_invalid: false });
    }

    /// Has it ask for another target than the client did.
    pub fn set_target(&mut self, target: &[u8]) {
        let mut target = target.to_vec();
        uri::escape_breaks(&mut target, 0);
        self.target_span = self.append_to_head(&target);
    }

    /// Puts text behind the head, for what the client did not send.
    fn append_to_head(&mut self, text: &[u8]) -> Span {
        let at = |head: &Bytes| u32::try_from(head.len()).unwrap_or(u32::MAX);
        let start = at(&self.head);
        self.head = [&self.head[..], text].concat().into();
        start..at(&self.head)
    }

    /// Appends every `Cookie` value, joined as one.
    pub fn append_cookies(&self, out: &mut Vec<u8>) -> bool {
        if self.known.cookie.is_none() {
            return false;
        }
        append_joined(self.values(b"cookie"), b"; ", out)
    }

    /// Whether the connection may stay open, going by version and `Connection`.
    pub fn wants_keep_alive(&self) -> bool {
        if self.known.connection.is_none() {
            return self.version >= Version::V11;
        }
        let has = |token: &[u8]| {
            self.values(b"connection").any(|value| yorozu_http::field::list_has(value, token))
        };
        !has(b"close") && (has(b"keep-alive") || self.version >= Version::V11)
    }
}

/// Appends `values` with `separator` between them; `false` if there are none.
pub fn append_joined(
    values: impl Iterator<Item = impl AsRef<[u8]>>,
    separator: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let mut is_found = false;
    for value in values {
        if is_found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value.as_ref());
        is_found = true;
    }
    is_found
}
