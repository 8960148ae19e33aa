//! How a protocol's answers are read.

use bytes::{Bytes, BytesMut};
use std::rc::Rc;
use yorozu_wire::WireError;

/// A response head as the protocol's codec read it.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub status: u16,
    pub reason: Option<Bytes>,
    /// Shared with the exchange's `$upstream_http_*`.
    pub fields: Rc<Vec<(Bytes, Bytes)>>,
}

impl Head {
    /// The values of `name`, in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Bytes> {
        self.fields
            .iter()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The first value of `name`.
    pub fn field<'a>(&'a self, name: &'a [u8]) -> Option<&'a Bytes> {
        self.values(name).next()
    }
}

/// Progress within a response body.
#[derive(Debug)]
pub enum BodyStep {
    Data(Bytes),
    NeedMore,
    End,
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
        String::from_utf8_lossy(text).into_owned()
    }

    /// Fields behind the body. Asked after its end.
    fn take_trailers(&mut self) -> Vec<(Bytes, Bytes)> {
        Vec::new()
    }

    /// nginx's words for a connection closed in the middle of the body.
    fn closed_early(&self) -> &'static str {
        "upstream prematurely closed connection"
    }
}

/// Why a codec gave up.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("upstream sent too big header while reading response header from upstream")]
    HeadTooBig,
    #[error("upstream closed the response early")]
    Incomplete,
    /// With nginx's words for it.
    #[error("{0}")]
    Invalid(String),
}

/// Hands out a body that is there already.
pub struct Whole {
    pub body: Option<Bytes>,
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

    fn is_reusable(&self) -> bool {
        false
    }
}
