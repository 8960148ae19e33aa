//! Conditional requests: 304 and 412.
//!
//! The head of a 304 is that of the 200 which would have been sent, so the filters shape a 200, and know that its content
//! is not asked for.
//!
//! # Source
//! RFC 9110, sections 13 and 15.4.5; as nginx, only answers with status 200 are judged.

use yorozu_http::conditional::etag_matches;
use yorozu_http::date;
use yorozu_kernel::config::http_core::IfModifiedSince;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::{Body, Response};

/// Judges the request's conditions by the validators that the handler gave. A 412 is another response.
pub fn judge(exchange: &mut Exchange, response: &mut Response) {
    let is_due = response.status == 200
        && !response.upstream_validates
        && exchange.request.method.is_get_or_head();
    if !is_due {
        return;
    }
    let request = &exchange.request;
    let known = &request.known;
    if let Some(time) = request.known(known.if_unmodified_since) {
        let is_met = match (date::parse_condition(time), response.last_modified) {
            (Some(since), Some(modified)) => modified <= since,
            (None, _) => true,
            _ => false,
        };
        if !is_met {
            return precondition_failed(exchange, response);
        }
    }
    if let Some(tags) = request.known(known.if_match) {
        if !is_named(tags, response, false) {
            return precondition_failed(exchange, response);
        }
    }
    response.is_unchanged =
        match (request.known(known.if_none_match), request.known(known.if_modified_since)) {
            // Unlike nginx: with tags the time does not count (RFC 9110, section 13.2.2).
            (Some(tags), _) => is_named(tags, response, true),
            (None, Some(since)) => !is_modified(exchange, response, since),
            (None, None) => false,
        };
}

/// Makes the 304 of the 200 that the client has: what describes the content goes with it.
pub fn settle(_: &mut Exchange, response: &mut Response) {
    if !response.is_unchanged {
        return;
    }
    response.status = 304;
    response.reason = None;
    response.content_type.clear();
    response.content_length = None;
    response.allow_ranges = false;
    response.remove(b"accept-ranges");
    response.remove(b"content-encoding");
    response.body = Body::empty();
}

/// Whether the response's tag is among `tags`. `*` is any, even that of a response without one.
fn is_named(tags: &[u8], response: &Response, weak: bool) -> bool {
    let has_tag = !response.etag.is_empty() || tags.trim_ascii() == b"*";
    has_tag && etag_matches(tags, &response.etag, weak)
}

fn is_modified(exchange: &Exchange, response: &Response, since: &[u8]) -> bool {
    let Some(modified) = response.last_modified else { return true };
    let location = exchange.conf.location(exchange.location);
    let compare = location.http_core().if_modified_since;
    match (compare, date::parse_condition(since)) {
        (IfModifiedSince::Off, _) | (_, None) => true,
        (_, Some(since)) if since == modified => false,
        (IfModifiedSince::Exact, _) => true,
        (IfModifiedSince::Before, Some(since)) => since < modified,
    }
}

fn precondition_failed(exchange: &mut Exchange, response: &mut Response) {
    exchange.redirects.error_status = None;
    exchange.redirects.refused = Some(412);
    *response = yorozu_kernel::exchange::error_page::standard(exchange, 412);
}
