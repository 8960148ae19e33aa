//! Byte ranges of responses whose content is known whole.
//!
//! # Source
//! RFC 9110, section 14.

use bytes::Bytes;
use std::ops::Range;
use yorozu_http::date;
use yorozu_http::range::{Wanted, parse};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::{Body, Response, Segment};
use yorozu_wire::h1::Version;

/// Cuts the content to the ranges asked for.
pub fn filter(exchange: &mut Exchange, response: &mut Response) {
    if !response.allow_ranges || response.status != 200 || exchange.request.version < Version::V10 {
        return;
    }
    let conf = std::rc::Rc::clone(&exchange.conf);
    let parts_max = conf.location(exchange.location).http_core().max_ranges;
    if parts_max == 0 {
        response.remove(b"accept-ranges");
        return;
    }
    let Some(length) = response.content_length else { return };
    let is_at_hand = matches!(response.body, Body::Segments(_) | Body::Memory(_));
    let wanted = match exchange.request.known(exchange.request.known.range) {
        Some(value) if is_current(exchange, response) => {
            parse(value, length, usize::try_from(parts_max).unwrap_or(usize::MAX))
        }
        _ => Wanted::Whole,
    };
    let wanted = match wanted {
        // Of a page that still arrives only one piece can be cut, and only if its end is waited
        // for anyway.
        Wanted::Parts(parts) if !is_at_hand && (parts.len() > 1 || !may_be_cut(response)) => {
            Wanted::Whole
        }
        wanted => wanted,
    };
    match wanted {
        Wanted::Whole => {
            if response.field(b"accept-ranges").is_none() {
                response.add(Bytes::from_static(b"Accept-Ranges"), Bytes::from_static(b"bytes"));
            }
        }
        Wanted::Unsatisfiable => {
            let content_range = format!("bytes */{length}");
            exchange.redirects.error_status = None;
            exchange.redirects.refused = Some(416);
            let mut page = yorozu_kernel::exchange::error_page::standard(exchange, 416);
            // As nginx: what was added to the answer is on this page too.
            response.own_fields();
            page.fields = std::mem::take(&mut response.fields);
            page.remove(b"accept-ranges");
            page.remove(b"content-range");
            page.vary_encoding = response.vary_encoding;
            page.add(Bytes::from_static(b"Content-Range"), content_range);
            super::charset::filter(exchange, &mut page);
            *response = page;
        }
        Wanted::Parts(parts) => {
            response.status = 206;
            // What the origin said of its own answer. As nginx, what travelled here with a redirect stays.
            response.reason = None;
            let mut travelled = exchange.accel_fields.iter();
            if !travelled.any(|(name, _)| name.eq_ignore_ascii_case(b"accept-ranges")) {
                response.remove(b"accept-ranges");
            }
            response.remove(b"content-range");
            match (&parts[..], segments(response)) {
                ([part], Some(whole)) => single(response, &whole, part, length),
                (parts, Some(whole)) => multiple(exchange, response, &whole, parts, length),
                ([part], None) => streamed(response, part, length),
                (_, None) => unreachable!("several ranges of a stream are the whole"),
            }
        }
    }
}

/// The content as segments, if it is known whole.
fn segments(response: &Response) -> Option<Vec<Segment>> {
    match &response.body {
        Body::Segments(segments) => Some(segments.clone()),
        Body::Memory(bytes) => Some(vec![Segment::Memory(bytes.clone())]),
        Body::Stream(_) | Body::Tunnel(_) => None,
    }
}

/// Whether it is worth while to cut a body that still arrives.
fn may_be_cut(response: &Response) -> bool {
    response.forces_ranges
        || response.is_collected()
        || matches!(&response.body, Body::Stream(stream) if stream.is_sliced())
}

/// `If-Range`: whether the client's copy has the same validator.
fn is_current(exchange: &Exchange, response: &Response) -> bool {
    let request = &exchange.request;
    match request.known(request.known.if_range) {
        None => true,
        Some(tag) if tag.len() > 2 && tag.ends_with(b"\"") => {
            !response.etag.is_empty() && tag == &response.etag[..]
        }
        Some(time) => {
            let time = date::parse_condition(time);
            time.is_some() && time == response.last_modified
        }
    }
}

fn cut(whole: &[Segment], part: &Range<u64>, out: &mut Vec<Segment>) {
    let mut at = 0;
    for segment in whole {
        let end = at + segment.bytes();
        let (from, to) = (part.start.max(at), part.end.min(end));
        if from < to {
            out.push(segment.part(from - at..to - at));
        }
        at = end;
    }
}

fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end - 1)
}

fn single(response: &mut Response, whole: &[Segment], part: &Range<u64>, length: u64) {
    let mut segments = Vec::new();
    cut(whole, part, &mut segments);
    response.add(Bytes::from_static(b"Content-Range"), content_range(part, length));
    response.content_length = Some(part.end - part.start);
    response.body = Body::Segments(segments);
}

fn streamed(response: &mut Response, part: &Range<u64>, length: u64) {
    if let Body::Stream(stream) = &mut response.body {
        stream.cut(part.clone());
    }
    response.add(Bytes::from_static(b"Content-Range"), content_range(part, length));
    response.content_length = Some(part.end - part.start);
}

fn multiple(
    exchange: &Exchange,
    response: &mut Response,
    whole: &[Segment],
    parts: &[Range<u64>],
    length: u64,
) {
    let boundary = format!("{:020}", exchange.client.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut segments = Vec::new();
    for part in parts {
        let mut head = format!("\r\n--{boundary}\r\n").into_bytes();
        if !response.content_type.is_empty() {
            head.extend_from_slice(b"Content-Type: ");
            head.extend_from_slice(&response.content_type);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(
            format!("Content-Range: {}\r\n\r\n", content_range(part, length)).as_bytes(),
        );
        segments.push(Segment::Memory(head.into()));
        cut(whole, part, &mut segments);
    }
    segments.push(Segment::Memory(format!("\r\n--{boundary}--\r\n").into()));
    response.content_type = format!("multipart/byteranges; boundary={boundary}").into();
    response.content_length = Some(segments.iter().map(Segment::bytes).sum());
    response.body = Body::Segments(segments);
}
