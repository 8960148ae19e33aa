//! `gunzip`: undoes gzip for clients that do not take it.

use super::coder::Gunzip;
use super::gzip;
use bytes::Bytes;
use std::io;
use std::rc::Rc;
use yorozu_http::conditional;
use yorozu_http::negotiation::accepts;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::Buffers;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::recode::Recode;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::logging::error::{Context, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_gunzip", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

settings! {
    /// Whether responses are gunzipped for clients that do not accept gzip.
    gunzip: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Number and size of buffers; accepted, memory is allocated as needed.
    gunzip_buffers: Buffers = "32 4k", TWO, HTTP_SERVER_LOCATION;
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(|location| location.of::<Conf>().gunzip, filter);

/// Gzip being undone; what breaks off then is explained in the error log.
#[derive(Debug)]
struct Undone {
    gunzip: Gunzip,
    log: Context,
}

impl Undone {
    fn failed(&self, problem: io::Error) -> io::Error {
        self.log.upstream(Level::Error, &format!("inflate() failed: {problem}"), None);
        problem
    }
}

impl Recode for Undone {
    fn takes(&self) -> usize {
        self.gunzip.takes()
    }

    fn write(&mut self, bytes: &[u8], is_flushed: bool) -> io::Result<Bytes> {
        self.gunzip.write(bytes, is_flushed).map_err(|problem| self.failed(problem))
    }

    fn finish(&mut self) -> io::Result<Bytes> {
        self.gunzip.finish().map_err(|problem| self.failed(problem))
    }
}

/// Undoes gzip if the client does not take it.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    let is_gzip =
        |value: &[u8]| value.eq_ignore_ascii_case(b"gzip") || value.eq_ignore_ascii_case(b"x-gzip");
    if !response.field(b"content-encoding").is_some_and(|value| is_gzip(value)) {
        return;
    }
    response.vary_encoding = location.of::<gzip::Conf>().gzip_vary;
    let request = &exchange.request;
    let accepted = request.known(request.known.accept_encoding);
    if accepted.is_some_and(|accepted| accepts(accepted, b"gzip"))
        && gzip::is_let(exchange, response, location.of::<gzip::Conf>())
    {
        return;
    }
    response.change(Box::new(Undone { gunzip: Gunzip::default(), log: Context::of(exchange) }));
    response.remove(b"accept-ranges");
    response.remove(b"content-encoding");
    response.etag = conditional::weaken(&response.etag).unwrap_or_default().into();
}
