//! What happens to a response between its handler and the connection.

use crate::handlers::{self, CACHED};
use std::rc::Rc;
use yorozu_gateway::cache::report;
use yorozu_gateway::protocol;
use yorozu_gateway::upstream::sticky;
use yorozu_http::uri::with_args;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::handler::{Bound, Filter};
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::stream::Stream;
use yorozu_modules::access_log;
use yorozu_modules::filters::{
    addition, charset, compress, headers, more_headers, not_modified, range, slice, ssi, sub,
    userid,
};

/// Response filters in the order a head passes them.
const ORDER: [Filter; 18] = [
    slice::FILTER, // before what looks at the status: a slice is the beginning of a whole
    Filter::always(not_modified::judge), // early: by what the handler says of its content
    Filter::always(headers::brought), // before what adds and clears: nginx has it from the start
    more_headers::FILTER, // before `add_header`, as that module's filter lies
    headers::FILTER, // sees the final status; `add_header` depends on it
    // Beside what the location adds.
    Filter::when(
        |location| report::is_on(location, &CACHED),
        |exchange, response| report::filter(exchange, response, &CACHED),
    ),
    // Beside the fields of the answer that it goes with.
    Filter::when(|location| protocol::of(location).is_some(), sticky::filter),
    userid::FILTER,                       // behind `add_header`, as nginx has it
    compress::gunzip::FILTER, // before what compresses: its content has no coding after it
    sub::FILTER,              // before what adds: it replaces in the location's own content
    addition::FILTER,         // before what converts: all is one text
    Filter::always(charset::filter), // before what compresses: it converts text
    ssi::FILTER,              // behind what converts: what it includes was converted by itself
    compress::FILTER,         // withdraws ranges: byte positions of the coded body are not stable
    Filter::always(not_modified::settle), // behind what shapes the head of the 200
    Filter::always(range::filter), // cuts exactly the bytes that are sent
    Filter::always(charset::convert), // byte for byte, so that ranges are of what is stored
    Filter::always(headers::make_room_for_trailers), // last: the content is a stream after it
];

/// Those that the response to a subrequest passes: it becomes a part of another one.
const WITHIN: [Filter; 4] =
    [compress::gunzip::FILTER, sub::FILTER, Filter::always(charset::filter), ssi::FILTER];

/// The filters that have something to do in a location: of all, and of those for responses to subrequests.
pub fn bound(location: &LocationConf) -> (Bound, Bound) {
    let bound = |filters: &[Filter]| {
        let numbered = (0..).zip(filters);
        numbered.filter(|(_, filter)| (filter.is_on)(location)).map(|(number, _)| number).collect()
    };
    (bound(&ORDER), bound(&WITHIN))
}

/// The status and the content of a subrequest.
pub async fn content(asked: &mut Exchange) -> (u16, Stream) {
    asked.part = Some(with_args(&asked.uri, &asked.args).into());
    let answer = Box::pin(handlers::whole(asked)).await;
    // Also one that ends without a page is logged, as what is shown in its place does not say why.
    asked.status = match &answer {
        Ok(response) => response.status,
        Err(status) => *status,
    };
    if asked.conf.location(asked.location).http_core().log_subrequest {
        access_log::log(asked);
    }
    let Ok(mut response) = answer else { return (asked.status, Body::empty().into_stream()) };
    let conf = Rc::clone(&asked.conf);
    for number in conf.location(asked.location).filters_within {
        (WITHIN[number].shape)(asked, &mut response);
    }
    response.apply_recoder();
    (response.status, response.take_stream())
}

/// Passes a response through every filter.
pub fn apply(exchange: &mut Exchange, response: &mut Response) {
    if let Some(status) = exchange.final_status() {
        // The page of an `error_page` is sent under the error's status.
        response.status = status;
        response.reason = None;
    }
    exchange.status = response.status;
    let conf = Rc::clone(&exchange.conf);
    for number in conf.location(exchange.location).filters {
        (ORDER[number].shape)(exchange, response);
        exchange.status = response.status;
    }
    // As nginx: of other answers it is not said when they changed, unless the upstream says so.
    if !matches!(response.status, 200 | 206 | 304) && !response.has_own_last_modified {
        response.last_modified = None;
    }
    if response.status == 204 && !keeps_type(exchange) {
        response.content_type.clear();
    }
}

/// Whether a 204 says of which type its missing content is: as nginx, if an upstream did, and not over HTTP/2.
fn keeps_type(exchange: &Exchange) -> bool {
    let mut fields = exchange.upstream_fields.iter();
    !exchange.request.is_multiplexed()
        && (exchange.cache_status.is_some()
            || fields.any(|(name, _)| name.eq_ignore_ascii_case(b"content-type")))
}
