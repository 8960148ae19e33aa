//! What happens to a response between its handler and the connection.

pub mod addition;
pub mod charset;
pub mod compress;
pub mod headers;
pub mod not_modified;
pub mod range;
pub mod slice;
pub mod ssi;
pub mod sub;
pub mod userid;

use crate::exchange::Exchange;
use crate::exchange::response::{Body, Response};
use crate::handlers;
use crate::handlers::gateway::stream::{Stream, Torn};
use crate::logging::access;

type Filter = fn(&mut Exchange, &mut Response);

/// Response filters in the order a head passes them.
pub const ORDER: [Filter; 14] = [
    slice::filter, // before what looks at the status: a slice is the beginning of a whole
    not_modified::filter, // early: a 304 has no body, later work would be wasted
    headers::challenge, // before `add_header`, as nginx has it
    headers::filter, // sees the final status; `add_header` depends on it
    userid::filter, // behind `add_header`, as nginx has it
    compress::gunzip::filter, // before what compresses: its content has no coding after it
    sub::filter,   // before what adds: it replaces in the location's own content
    addition::filter, // before what converts: all is one text
    charset::filter, // before what compresses: it converts text
    ssi::filter,   // behind what converts: what it includes was converted by itself
    compress::filter, // withdraws ranges: byte positions of the coded body are not stable
    range::filter, // cuts exactly the bytes that are sent
    charset::convert, // byte for byte, so that ranges are of what is stored
    headers::make_room_for_trailers, // last: the content is a stream after it
];

/// Those that the response to a subrequest passes: it becomes a part of another one.
const WITHIN: [Filter; 4] = [compress::gunzip::filter, sub::filter, charset::filter, ssi::filter];

/// The content that another path has, for the sake of `exchange`.
async fn subrequest(exchange: &Exchange, path: &[u8]) -> Result<Stream, Torn> {
    let mut asked = Box::new(exchange.subrequest(path).ok_or(Torn)?);
    asked.charset.clone_from(&exchange.charset);
    Ok(content(&mut asked).await.1)
}

/// The status and the content of a subrequest.
pub async fn content(asked: &mut Exchange) -> (u16, Stream) {
    let mut response = match Box::pin(handlers::whole(asked)).await {
        Ok(response) => response,
        Err(status) => return (status, Body::empty().into_stream()),
    };
    asked.status = response.status;
    if asked.conf.location(asked.location).http_core.log_subrequest {
        access::log(asked);
    }
    WITHIN.iter().for_each(|filter| filter(asked, &mut response));
    response.settle_recoding();
    (response.status, response.take_stream())
}

/// Passes a response through every filter.
pub fn apply(exchange: &mut Exchange, response: &mut Response) {
    if let Some(status) = exchange.settled_status() {
        // The page of an `error_page` is sent under the error's status.
        response.status = status;
        response.reason = None;
    }
    exchange.status = response.status;
    for filter in ORDER {
        filter(exchange, response);
        exchange.status = response.status;
    }
    // As nginx: of other answers it is not said when they changed. Unlike nginx, a cache says what the upstream
    // said, so that a cache behind it can ask whether that still holds (RFC 9111, section 4.3).
    if !matches!(response.status, 200 | 206 | 304) && !exchange.cache_report.is_made() {
        response.last_modified = None;
    }
    if response.status == 204 {
        response.content_type.clear();
    }
}
