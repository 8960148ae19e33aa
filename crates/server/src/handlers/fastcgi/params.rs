//! The parameters of a request.

use super::Param;
use crate::cache;
use crate::config::compiled::LocationConf;
use crate::exchange::Exchange;
use crate::exchange::request::append_joined;
use yorozu_wire::fastcgi::{RecordKind, begin_request, pair, pair_with, stream, stream_with};

/// Room for a request before it has to grow; chosen: most are shorter.
const REQUEST_BYTES: usize = 2048;
/// As [`REQUEST_BYTES`], of a field's name.
const NAME_BYTES: usize = 64;

/// The request up to its body; with the body, if that is in memory.
///
/// `is_live`: the body follows while it arrives.
pub(super) fn request(exchange: &mut Exchange, location: &LocationConf, is_live: bool) -> Vec<u8> {
    let conf = &location.fastcgi;
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    begin_request(&mut out, conf.fastcgi_keep_conn);
    stream_with(&mut out, RecordKind::Params, |params| {
        for param in &conf.fastcgi_param {
            pair_with(params, &param.name, |out| {
                let start = out.len();
                param.value.append(exchange, out);
                !param.is_if_not_empty || out.len() > start
            });
        }
        if conf.gateway.pass_request_headers {
            fields(exchange, location, params);
        }
    });
    stream(&mut out, RecordKind::Params, b"");
    let has_file = exchange.body.file().is_some() && conf.gateway.pass_request_body;
    if !has_file && !is_live {
        let body = if conf.gateway.pass_request_body { exchange.body.in_memory() } else { None };
        if let Some(body) = body.filter(|body| !body.is_empty()) {
            stream(&mut out, RecordKind::Stdin, body);
        }
        stream(&mut out, RecordKind::Stdin, b"");
    }
    out
}

/// `HTTP_*` for every field that no `fastcgi_param` sets.
fn fields(exchange: &Exchange, location: &LocationConf, params: &mut Vec<u8>) {
    let conf = &location.fastcgi;
    let is_cached = exchange.is_cacheable();
    let is_set = |name: &[u8], list: &[Param]| list.iter().any(|param| &param.name[..] == name);
    let request = &exchange.request;
    let mut name = Vec::with_capacity(NAME_BYTES);
    for (at, field) in request.fields.iter().enumerate() {
        let field_name = request.name(field);
        // `Proxy` would become HTTP_PROXY, which HTTP clients inside the application obey
        // (CVE-2016-5387); no such field exists.
        let is_repeated =
            request.fields[..at].iter().any(|f| request.name(f).eq_ignore_ascii_case(field_name));
        if is_repeated || field_name.eq_ignore_ascii_case(b"proxy") {
            continue;
        }
        name.clear();
        name.extend_from_slice(b"HTTP_");
        name.extend(field_name.iter().map(|byte| match byte {
            b'-' => b'_',
            byte => byte.to_ascii_uppercase(),
        }));
        let is_conditional = is_cached && cache::is_for_stored_page(field_name);
        if is_conditional || is_set(&name, &conf.fastcgi_param) {
            continue;
        }
        if name == b"HTTP_HOST" {
            // The authority that chose the server and the cache key, not another one.
            pair_with(params, &name, |out| {
                out.extend_from_slice(&request.host);
                if !request.port.is_empty() {
                    out.push(b':');
                    out.extend_from_slice(&request.port);
                }
                true
            });
            continue;
        }
        let separator: &[u8] =
            if field_name.eq_ignore_ascii_case(b"cookie") { b"; " } else { b", " };
        pair_with(params, &name, |out| append_joined(request.values(field_name), separator, out));
    }
    if is_cached {
        let (modified, etag) = cache::validators(exchange, &conf.gateway);
        if let Some(modified) = modified {
            pair(params, b"HTTP_IF_MODIFIED_SINCE", modified.as_bytes());
        }
        if !etag.is_empty() {
            pair(params, b"HTTP_IF_NONE_MATCH", &etag);
        }
        if let Some(range) = cache::missing_range(exchange) {
            pair(params, b"HTTP_RANGE", range.as_bytes());
        }
    }
}
