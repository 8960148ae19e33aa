//! `gunzip`: undoes gzip for clients that do not take it.

use super::{Coder, gzip};
use crate::config::directive::*;
use crate::config::types::Buffers;
use crate::exchange::Exchange;
use crate::exchange::response::Response;
use std::rc::Rc;
use yorozu_http::conditional;
use yorozu_http::negotiation::accepts;

settings! {
    in gunzip;
    /// Whether gzip is undone for clients that do not take it.
    gunzip: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Count and size of buffers; accepted, memory is taken as needed.
    gunzip_buffers: Buffers = "32 4k", TWO, HTTP_SERVER_LOCATION;
}

/// Undoes gzip if the client does not take it.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let is_gzip =
        |value: &[u8]| value.eq_ignore_ascii_case(b"gzip") || value.eq_ignore_ascii_case(b"x-gzip");
    if !location.gunzip.gunzip
        || !response.field(b"content-encoding").is_some_and(|value| is_gzip(value))
    {
        return;
    }
    response.vary_encoding = location.gzip.gzip_vary;
    let request = &exchange.request;
    let accepted = request.known(request.known.accept_encoding);
    if accepted.is_some_and(|accepted| accepts(accepted, b"gzip"))
        && gzip::is_let(exchange, response, &location.gzip)
    {
        return;
    }
    response.change(Coder::gunzip());
    response.remove(b"accept-ranges");
    response.remove(b"content-encoding");
    response.etag = conditional::weaken(&response.etag).unwrap_or_default().into();
}
