//! Conditional requests: 304 and 412.
//!
//! # Source
//! RFC 9110, section 13; as nginx, only answers with status 200 are judged.

use yorozu_http::conditional::etag_matches;
use yorozu_http::date;
use yorozu_kernel::config::http_core::IfModifiedSince;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::{Body, Response};

/// Evaluates the request's conditions against the response's validators.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
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
    let (since, tags) =
        (request.known(known.if_modified_since), request.known(known.if_none_match));
    if since.is_none() && tags.is_none() {
        return;
    }
    // Unlike nginx: with tags the time does not count (RFC 9110, section 13.2.2).
    let since = since.filter(|_| tags.is_none());
    if since.is_some_and(|since| is_modified(exchange, response, since)) {
        return;
    }
    if tags.is_some_and(|tags| !is_named(tags, response, true)) {
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
