//! Which fields of an upstream's head the client sees.

use super::{Settings, settings};
use crate::cache;
use crate::protocol::codec::Head;
use crate::protocol::{self, Protocol};
use yorozu_http::field;
use yorozu_kernel::exchange::Exchange;

/// Fields of an answer that are for the server, not the client.
const HIDDEN: [&[u8]; 9] = [
    cache::entry::SHARED,
    cache::learned::HEADER,
    b"x-accel-purge",
    b"x-accel-expires",
    b"x-accel-expires-max",
    b"x-accel-redirect",
    b"x-accel-limit-rate",
    b"x-accel-buffering",
    b"x-accel-charset",
];
/// Whether it is one of an answer's fields that tell the server something.
pub(super) fn starts_with_accel(name: &[u8]) -> bool {
    const START: &[u8] = b"x-accel-";
    name.get(..START.len()).is_some_and(|start| field::is_same(START, start))
}

/// Fields about the connection to the upstream (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [&[u8]; 3] = [b"connection", b"keep-alive", b"transfer-encoding"];

/// Whether `Connection` names the field (RFC 9110, section 7.6.1).
pub(super) fn is_of_connection(head: &Head, name: &[u8]) -> bool {
    // What tells where the message ends, and what was hidden before, is not its to name. What the upstream would rather
    // speak is passed on as nginx does: without it a 426 says nothing.
    const NOT_ITS: [&[u8]; 3] = [b"content-length", b"content-type", b"upgrade"];
    head.values(b"connection").any(|options| field::list_has(options, name))
        && !NOT_ITS.iter().any(|kept| field::is_same(kept, name))
}

/// Besides [`field::is_of_head`] what says where a message is for, how long it is kept, or who may have it (RFC 9110, section
/// 6.5.1): a cache or a client that joins trailers to the head would believe them.
const NEVER_BEHIND: [&[u8]; 18] = [
    b"age",
    b"authorization",
    b"cache-control",
    b"cookie",
    b"date",
    b"expect",
    b"expires",
    b"location",
    b"proxy-authenticate",
    b"proxy-connection",
    b"range",
    b"refresh",
    b"retry-after",
    b"set-cookie",
    b"te",
    b"upgrade",
    b"vary",
    b"www-authenticate",
];

/// Whether the client gets a field that stands behind the content, too.
pub(super) fn passes_trailer(exchange: &Exchange, name: &[u8]) -> bool {
    let location = exchange.conf.location(exchange.location);
    let is_never_behind = || {
        field::is_of_head(name) || NEVER_BEHIND.iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    protocol::of(location).is_some_and(|protocol| {
        !is_hidden(protocol, settings(location, protocol), name) && !is_never_behind()
    })
}

pub(super) fn is_hidden(protocol: &dyn Protocol, conf: Settings<'_>, name: &[u8]) -> bool {
    let is = |found: &[u8]| field::is_same(found, name);
    let by_default = || {
        (starts_with_accel(name) && HIDDEN.iter().any(|hidden| is(hidden)))
            || protocol.hidden().iter().any(|hidden| is(hidden))
            || (conf.cache.zone().is_some() && conf.cache.cache_tag_headers.has(name))
    };
    let is_written = || conf.hide_header.iter().any(|hidden| is(hidden));
    // As nginx: whatever hides it, and in whichever block.
    let is_passed = || conf.pass_header.iter().any(|passed| is(passed));
    HOP_BY_HOP.iter().any(|hop| is(hop)) || ((by_default() || is_written()) && !is_passed())
}
