//! The `charset` parameter of `Content-Type`.

use bytes::Bytes;

/// Where the parameter `charset` begins, `;` included (RFC 9110, section 8.3.1).
pub fn parameter(content_type: &[u8]) -> Option<usize> {
    let lower = content_type.to_ascii_lowercase();
    let mut starts = memchr::memchr_iter(b';', &lower);
    starts.find(|at| lower[at + 1..].trim_ascii_start().starts_with(b"charset="))
}

pub fn with_charset(content_type: &[u8], charset: &[u8]) -> Bytes {
    [content_type, b"; charset=", charset].concat().into()
}
