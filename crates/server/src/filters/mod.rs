//! What happens to a response between its handler and the connection.

pub mod charset;
pub mod compress;
pub mod headers;
pub mod not_modified;
pub mod range;

use crate::exchange::Exchange;
use crate::exchange::response::Response;

type Filter = fn(&mut Exchange, &mut Response);

/// Response filters in the order a head passes them.
pub const ORDER: [Filter; 8] = [
    not_modified::filter,     // first: a 304 has no body, later work would be wasted
    charset::filter,          // before what looks at the type
    headers::challenge,       // before `add_header`, as nginx has it
    headers::filter,          // sees the final status; `add_header` depends on it
    compress::gunzip::filter, // before what compresses: its content has no coding after it
    compress::filter,         // withdraws ranges: byte positions of the coded body are not stable
    range::filter,            // cuts exactly the bytes that are sent
    headers::make_room_for_trailers, // last: the content is a stream after it
];

/// Passes a response through every filter.
pub fn apply(exchange: &mut Exchange, response: &mut Response) {
    if let Some(status) = exchange.error_status.filter(|status| *status != 0) {
        // The page of an `error_page` is sent under the error's status.
        response.status = status;
        response.reason = None;
    }
    exchange.status = response.status;
    for filter in ORDER {
        filter(exchange, response);
    }
    exchange.status = response.status;
}
