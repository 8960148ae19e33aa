//! What a protocol makes of an exchange.

use super::codec::{Codec, Head, Reader};
use bytes::Bytes;
use std::any::Any;
use std::io::{self, Write as _};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::engine::Later;
use yorozu_upstream::{Peer, SocketOptions, TlsOptions};

/// A request as one protocol sends it, and how its answer is read.
pub struct Call {
    /// With [`Talk::Apart`] the whole request, or its part before a body that lies in a file or still arrives; else its head, as
    /// HTTP/1 would have it.
    pub request: Bytes,
    /// How pieces of such a body are framed.
    pub framing: Framing,
    /// Whether it validates the stored page, with no other condition: only then a 304 renews it.
    pub validates: bool,
    /// The content that the request announces; in memory, it is a part of [`Call::request`].
    pub content: Content,
    /// How it is begun on a connection.
    pub talk: Talk,
    /// Texts in the application's messages that make its answer a failure.
    pub catch_stderr: Vec<Bytes>,
    /// Whether the connection may be kept for another request.
    pub may_keep: bool,
    /// How the connection is encrypted, if it is.
    pub tls: Option<TlsOptions>,
    /// `fastcgi://`, for messages.
    pub scheme: &'static str,
    /// The task that sends the request, instead of a connection for it alone.
    pub line: Option<Box<dyn Line>>,
    /// Where in the request the `/path` stands that messages have behind the peer's address.
    pub uri: Range<usize>,
}

/// How a request is begun on a connection.
pub enum Talk {
    /// Whatever was said before: [`Call::request`] is sent, and this reads the answer.
    Apart(Reader),
    /// With what was said on the connection before.
    Within(Box<dyn Session>),
}

/// A request of a protocol in which a connection has a state of its own.
pub trait Session {
    /// Begins on a connection; `kept` is what the conversation before [left](Codec::leave), `None` on a new one.
    fn begin(&self, kept: Option<Box<dyn Any>>) -> Begun;
}

/// A request for one connection.
pub struct Begun {
    /// What goes out first, instead of [`Call::request`].
    pub request: Bytes,
    /// Content that is in memory and could not go with it.
    pub rest: Bytes,
    pub codec: Box<dyn Codec>,
    /// How what follows is sent.
    pub outgoing: Rc<dyn Outgoing>,
}

/// The sending side of a conversation in which the peer says how much it takes, and has to be answered beside that.
pub trait Outgoing {
    /// How many bytes of the content the peer takes now.
    fn room(&self) -> usize;

    /// Frames as much of the pieces as there is room for; what is left stays in `pieces`. With `is_last` they end the
    /// content.
    fn put(&self, pieces: &mut Vec<Bytes>, is_last: bool, out: &mut Vec<Bytes>);

    /// Ends the content.
    fn end(&self, out: &mut Vec<u8>);

    /// What is to be said beside the content.
    fn take_output(&self) -> Vec<u8>;

    /// Returns when there is more room, or something to say.
    fn changed(&self) -> Later<'_, ()>;
}

/// How pieces of a request body are framed.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// The longest piece that can be framed at once.
    pub piece_bytes_max: usize,
    /// Whether a frame holds all pieces that arrived together, and not one.
    pub joins: bool,
    /// Writes what goes before a piece of this many bytes; returns what goes behind it.
    pub around: fn(usize, &mut Vec<u8>) -> &'static [u8],
    /// Writes the end of the body.
    pub end: fn(&mut Vec<u8>),
}

impl Framing {
    /// As they are; their length was announced.
    pub const PLAIN: Self =
        Self { piece_bytes_max: usize::MAX, joins: true, around: |_, _| b"", end: |_| () };

    /// RFC 9112, section 7.1.
    pub const CHUNKED: Self = Self {
        piece_bytes_max: usize::MAX,
        joins: true,
        around: |length, before| {
            let _ = write!(before, "{length:x}\r\n");
            b"\r\n"
        },
        end: |out| out.extend_from_slice(b"0\r\n\r\n"),
    };
}

/// A connection that the requests of many share; it is the protocol's own.
pub trait Line {
    /// Asks a peer, and waits for the whole answer.
    ///
    /// # Cancel safety
    /// The answer is dropped when it comes.
    fn ask<'a>(
        &'a self,
        peer: &'a Peer,
        bounds: LineBounds,
        request: Bytes,
    ) -> Later<'a, Result<LineAnswer, LineFault>>;

    /// As how many bytes a request is sent.
    fn sent_bytes(&self, request: &[u8]) -> usize;
}

/// How a line is opened, how long it is kept, and how long an answer may take.
#[derive(Clone, Copy, Debug)]
pub struct LineBounds {
    pub socket: SocketOptions,
    pub connect_timeout: Duration,
    pub idle_timeout: Duration,
    pub read_timeout: Duration,
}

/// An answer that came over a line.
pub struct LineAnswer {
    pub head: Head,
    /// Hands out the body, which is there.
    pub codec: Box<dyn Codec>,
    pub received: u64,
}

/// Why there is none.
#[derive(Clone, Debug)]
pub enum LineFault {
    /// The server cannot be reached.
    Connect(Arc<io::Error>),
    /// Not within the connect timeout.
    ConnectTimeout,
    /// The connection ended before the answer.
    Closed,
    /// The server broke its protocol; nginx's words, and how much it had sent.
    Invalid(String, usize),
    /// No answer in the time that its question allows.
    Timeout,
}
