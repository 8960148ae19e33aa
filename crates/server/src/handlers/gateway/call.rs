//! What a protocol makes of an exchange.

use super::Codec;
use crate::connection::body::Content;
use bytes::Bytes;
use std::io::Write as _;
use yorozu_upstream::TlsOptions;
use yorozu_wire::fastcgi;

/// A request as one protocol sends it, and how its answer is read.
pub struct Call {
    /// The whole request, or its part before a body that lies in a file or still arrives.
    pub request: Bytes,
    /// How pieces of such a body are framed.
    pub framing: Framing,
    /// Does it ask whether the stored page is still good, and put no other condition? Only then a 304 says so.
    pub validates: bool,
    /// The content that the request announces; in memory, it is a part of [`Call::request`].
    pub content: Content,
    /// Makes a reader for one answer.
    pub codec: Box<dyn Fn() -> Box<dyn Codec>>,
    /// Texts in the application's messages that make its answer a failure.
    pub catch_stderr: Vec<Bytes>,
    /// May the connection be kept for another request?
    pub may_keep: bool,
    /// Is the connection encrypted, and how?
    pub tls: Option<TlsOptions>,
    /// `fastcgi://`, for messages.
    pub scheme: &'static str,
    /// Is [`Call::request`] a key, asked for over a connection shared with other requests?
    pub is_pipelined: bool,
    /// `/path` behind the peer's address in messages.
    pub uri: Vec<u8>,
}

/// How pieces of a request body are framed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Framing {
    /// As they are; their length was announced.
    Plain,
    /// RFC 9112, section 7.1.
    Chunked,
    /// FastCGI's records of the stdin stream.
    Stdin,
}

impl Framing {
    /// The longest piece that can be framed at once.
    pub fn piece_bytes_max(self) -> usize {
        match self {
            Self::Plain | Self::Chunked => usize::MAX,
            Self::Stdin => fastcgi::CONTENT_BYTES_MAX,
        }
    }

    /// Writes what goes before a piece of `length` bytes to `before`; returns what goes behind it.
    pub fn around(self, length: usize, before: &mut Vec<u8>) -> &'static [u8] {
        match self {
            Self::Plain => b"",
            Self::Chunked => {
                let _ = write!(before, "{length:x}\r\n");
                b"\r\n"
            }
            Self::Stdin => fastcgi::stdin_head(before, length),
        }
    }

    /// The end of the body.
    pub fn end(self) -> Vec<u8> {
        let mut end = Vec::new();
        match self {
            Self::Plain => {}
            Self::Chunked => end.extend_from_slice(b"0\r\n\r\n"),
            Self::Stdin => {
                fastcgi::stdin_head(&mut end, 0);
            }
        }
        end
    }
}
