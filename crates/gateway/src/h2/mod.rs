//! HTTP/2 towards upstreams: `proxy_http_version 2` and `grpc_pass`.
//!
//! As nginx, one request at a time on a connection, which is kept for the next one: so no request waits behind another's
//! answer, and a client that reads slowly holds up its own upstream by not being read from, with no windows to count
//! out. What lasts as long as the connection is a [`Line`]: a request takes it over where the one before left it
//! (`docs/decisions/0029-http2-upstreams.md`).
//!
//! Way through: [`Asking::begin`] writes the head, and content that is there ([`request`]) -> the
//! [`upload`](crate::pass::upload) sends the rest as the peer has room for it -> [`H2Codec`] reads the answer, and
//! notes what has to be said on the way.
//!
//! # Sources
//! RFC 9113; nginx, `ngx_http_grpc_module` and `proxy_http_version 2`.

mod codec;
mod line;
pub mod request;

use crate::protocol::call::{Begun, Session};
use bytes::Bytes;
use codec::H2Codec;
use line::Line;
use std::any::Any;
use std::rc::Rc;
use yorozu_kernel::exchange::content::Content;

/// What TLS calls the protocol (RFC 7301).
pub const ALPN: &[u8] = b"h2";

/// A request, for whichever connection it will be sent on.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Its fields, coded; the same on every connection, as the encoder keeps no table.
    pub block: Bytes,
    /// Content that is in memory.
    pub content: Bytes,
    /// Whether nothing follows [`Asking::content`].
    pub is_whole: bool,
    pub asked: Asked,
}

/// What a codec has to know of the request.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// `*_buffer_size`
    pub head_bytes_max: usize,
    pub is_head_request: bool,
}

impl Asking {
    pub fn new(block: Vec<u8>, content: &Content, asked: Asked) -> Self {
        let (content, is_whole) = match content {
            Content::None => (Bytes::new(), true),
            Content::Memory(body) => (body.clone(), true),
            Content::File(..) | Content::Live { .. } => (Bytes::new(), false),
        };
        Self { block: block.into(), content, is_whole, asked }
    }
}

impl Session for Asking {
    fn begin(&self, kept: Option<Box<dyn Any>>) -> Begun {
        let kept = kept.and_then(|kept| kept.downcast().ok());
        let line: Rc<Line> = kept.map_or_else(Rc::default, |line: Box<Rc<Line>>| *line);
        let mut request =
            Vec::with_capacity(self.block.len() + self.content.len().min(1 << 16) + 128);
        let is_all = self.is_whole && self.content.is_empty();
        line.begin(&self.block, is_all, &mut request);
        let mut rest = self.content.clone();
        line.put_content(&mut rest, self.is_whole, &mut request);
        Begun {
            request: request.into(),
            rest,
            codec: Box::new(H2Codec::new(Rc::clone(&line), self.asked)),
            outgoing: line,
        }
    }
}
