//! The request as it arrived.

use bytes::Bytes;
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
    pub if_match: Option<u16>,
    pub if_modified_since: Option<u16>,
    pub if_none_match: Option<u16>,
    pub if_range: Option<u16>,
    pub if_unmodified_since: Option<u16>,
    pub range: Option<u16>,
    pub user_agent: Option<u16>,
    pub via: Option<u16>,
}

/// The request line and fields, as offsets into one buffer.
#[derive(Clone, Debug)]
pub struct Request {
    /// The bytes of the head.
    pub head: Bytes,
    /// The request line without its end.
    pub line: Span,
    pub method: Method,
    pub method_span: Span,
    /// In place of the client's, after a redirect of our own.
    pub method_override: Option<&'static [u8]>,
    /// Path and query as sent.
    pub target_span: Span,
    pub version: Version,
    pub fields: Vec<Field>,
    pub known: KnownFields,
    /// Lower-cased host without port; empty without `Host`.
    pub host: Bytes,
    /// The port of the authority as written; empty without.
    pub port: Bytes,
    pub content_length: Option<u64>,
    /// Has it a body whose length is not known before it is read?
    pub is_chunked: bool,
}

impl Request {
    /// A request of which nothing could be read.
    pub fn unread(head: Bytes) -> Self {
        Self {
            head,
            line: 0..0,
            method: Method::Other,
            method_span: 0..0,
            method_override: None,
            target_span: 0..0,
            version: Version::V10,
            fields: Vec::new(),
            known: KnownFields::default(),
            host: Bytes::new(),
            port: Bytes::new(),
            content_length: None,
            is_chunked: false,
        }
    }

    pub fn span(&self, span: &Span) -> &[u8] {
        slice(&self.head, span)
    }

    pub fn method_text(&self) -> &[u8] {
        self.method_override.unwrap_or_else(|| self.span(&self.method_span))
    }

    /// From here on it counts as a GET.
    pub fn become_get(&mut self) {
        self.method = Method::Get;
        self.method_override = Some(b"GET");
    }

    pub fn target(&self) -> &[u8] {
        self.span(&self.target_span)
    }

    pub fn line_text(&self) -> &[u8] {
        self.span(&self.line)
    }

    pub fn name(&self, field: &Field) -> &[u8] {
        slice(&self.head, &field.name)
    }

    pub fn value(&self, field: &Field) -> &[u8] {
        slice(&self.head, &field.value)
    }

    /// The value of a known field.
    pub fn known(&self, index: Option<u16>) -> Option<&[u8]> {
        index.map(|index| self.value(&self.fields[usize::from(index)]))
    }

    /// All values of `name`, in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |field| self.name(field).eq_ignore_ascii_case(name))
            .map(|field| self.value(field))
    }

    /// The first value of `name`.
    pub fn field<'a>(&'a self, name: &'a [u8]) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    /// Appends every `Cookie` value, joined as one.
    pub fn append_cookies(&self, out: &mut Vec<u8>) -> bool {
        if self.known.cookie.is_none() {
            return false;
        }
        append_joined(self.values(b"cookie"), b"; ", out)
    }

    /// May the connection stay open, going by version and `Connection`?
    pub fn wants_keep_alive(&self) -> bool {
        match self.known(self.known.connection) {
            Some(value) if yorozu_http::field::list_has(value, b"close") => false,
            Some(value) if yorozu_http::field::list_has(value, b"keep-alive") => true,
            _ => self.version >= Version::V11,
        }
    }
}

/// Appends `values` with `separator` between them; `false` if there are none.
pub fn append_joined<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    separator: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let mut is_found = false;
    for value in values {
        if is_found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value);
        is_found = true;
    }
    is_found
}
