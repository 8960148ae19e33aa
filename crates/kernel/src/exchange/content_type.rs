//! The `charset` parameter of `Content-Type`.

use bytes::Bytes;

/// Where the parameter `charset` begins, `;` included (RFC 9110, section 8.3.1).
pub fn parameter(content_type: &[u8]) -> Option<usize> {
    let lower = content_type.to_ascii_lowercase();
    let mut starts = memchr::memchr_iter(b';', &lower);
    starts.find(|at| lower[at + 1..].trim_ascii_start().starts_with(b"charset="))
}

/// Adds the charset, unless the type has one or there is none.
pub fn add_charset(content_type: &mut Bytes, charset: &[u8]) {
    if !content_type.is_empty() && parameter(content_type).is_none() {
        *content_type = with_charset(content_type, charset);
    }
}

pub fn with_charset(content_type: &[u8], charset: &[u8]) -> Bytes {
    [content_type, b"; charset=", charset].concat().into()
}
