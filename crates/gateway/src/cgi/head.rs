//! The head of an application's answer.
//!
//! # Source
//! RFC 3875, section 6.

use crate::protocol::codec::{CodecError, FieldSpans, Head};
use bytes::Bytes;
use yorozu_http::field;
use yorozu_kernel::logging::error::verbatim;

/// The head whose fields stand in `text`.
///
/// # Errors
/// `Status` is none.
pub fn head(text: &Bytes, fields: &FieldSpans) -> Result<Head, CodecError> {
    let fields = fields.lines(text);
    let find = |name: &[u8]| {
        fields.iter().find(|(found, _)| field::is_same(found, name)).map(|(_, value)| value)
    };
    let (status, reason) = match find(b"status") {
        Some(line) => status_line(line)?,
        None if find(b"location").is_some() => (302, None),
        None => (200, None),
    };
    Ok(Head { status, reason, fields })
}

/// `404 Not Found`. Unlike nginx: no interim status, for an application has one answer (RFC 3875, section 6.3.3), and what
/// follows a `101` would be a client's own records; no more than three digits.
fn status_line(line: &Bytes) -> Result<(u16, Option<Bytes>), CodecError> {
    let (digits, rest) = line.split_at_checked(3).unwrap_or_default();
    let status = yorozu_conf::value::number(digits).and_then(|status| u16::try_from(status).ok());
    let is_ended = matches!(rest.first(), None | Some(b' ' | b'\t'));
    let Some(status) = status.filter(|status| *status >= 200 && is_ended) else {
        let text = format!("upstream sent invalid status \"{}\"", verbatim(line));
        return Err(CodecError::Invalid(text));
    };
    let reason = Some(rest.trim_ascii()).filter(|reason| yorozu_http::status::is_reason(reason));
    Ok((status, reason.map(|reason| line.slice_ref(reason))))
}
