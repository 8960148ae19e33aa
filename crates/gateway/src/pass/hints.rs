//! Early hints: which fields of an upstream's 103 the client sees.

use super::{Settings, shown};
use crate::protocol::Protocol;
use crate::protocol::codec::Head;
use bytes::Bytes;

/// Fields that say how a message is carried, which the client's connection has its own of, and those that are changed on
/// the way (`proxy_redirect`, `proxy_cookie_path`): of the answer itself, not of what comes before it.
const OF_THE_ANSWER: [&[u8]; 9] = [
    b"content-length",
    b"location",
    b"proxy-connection",
    b"refresh",
    b"set-cookie",
    b"te",
    b"trailer",
    b"trailers",
    b"upgrade",
];

/// The fields of early hints that the client gets.
///
/// # Source
/// RFC 8297, section 2: they are those that the final answer is likely to have; what it hides is hidden here too.
pub(super) fn shown(
    protocol: &dyn Protocol,
    conf: Settings<'_>,
    head: &Head,
) -> Vec<(Bytes, Bytes)> {
    let is_shown = |name: &[u8]| {
        !shown::is_hidden(protocol, conf, name)
            && !shown::is_of_connection(head, name)
            && !OF_THE_ANSWER.iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    head.fields.iter().filter(|(name, _)| is_shown(name)).cloned().collect()
}
