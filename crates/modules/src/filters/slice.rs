//! `slice`: a large response is asked for, and stored, in slices of equal length.
//!
//! The key of the cache and the request to the upstream name `$slice_range`; the answer, a 206, becomes
//! the beginning of the whole, and what is missing of it is asked for slice by slice while it is sent.

use bytes::Bytes;
use std::cell::Cell;
use std::io::Write as _;
use std::rc::Rc;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::Size;
use yorozu_kernel::exchange::handler::Filter;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::{Body, Response};
use yorozu_kernel::exchange::stream::{self, Slices, Torn};
use yorozu_kernel::exchange::variables::{Row, Variable};
use yorozu_kernel::exchange::{Exchange, Role, Slice};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module =
    Module::new("http_slice", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]).computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[("slice_range", Variable::Builtin(range))];

settings! {
    /// Length of a slice; 0 for none.
    slice: Size = "0", ONE, HTTP_SERVER_LOCATION;
}

/// `$slice_range`. Its use begins slicing.
pub fn range(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let slice = exchange.pass.slice.get().or_else(|| first(exchange));
    exchange.pass.slice.set(slice);
    slice.is_some_and(|slice| write!(out, "{}", slice.range()).is_ok())
}

/// The slice in which the range begins that the client asks for.
fn first(exchange: &Exchange) -> Option<Slice> {
    let bytes = exchange.conf.location(exchange.location).of::<Conf>().slice.0;
    if bytes == 0 || exchange.is_subrequest() {
        return None;
    }
    let request = &exchange.request;
    let asked = request.known(request.known.range).filter(|_| request.known.if_range.is_none());
    let digits = asked.and_then(|asked| asked.strip_prefix(b"bytes=")).unwrap_or_default();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let is_one = !digits.contains(&b',');
    let start = std::str::from_utf8(&digits[..end]).ok().and_then(|text| text.parse().ok());
    // As nginx, whose numbers end there.
    let start: u64 = start.filter(|start| is_one && *start <= i64::MAX as u64).unwrap_or(0);
    Some(Slice { start: start / bytes * bytes, bytes })
}

/// What a 206 holds: its first byte, the byte behind its last, and how long the whole is.
fn held(response: &Response) -> Option<(u64, u64, u64)> {
    let text = std::str::from_utf8(response.field(b"content-range")?).ok()?;
    let (range, whole) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let last: u64 = last.parse().ok()?;
    Some((first.parse().ok()?, last.checked_add(1)?, whole.parse().ok()?))
}

/// The whole's length, if the response is the slice that was asked for.
fn fitting(slice: Slice, response: &Response) -> Result<u64, String> {
    if response.status != 206 {
        return Err(format!("unexpected status code {} in slice response", response.status));
    }
    let Some((start, end, whole)) = held(response) else {
        return Err("invalid range in slice response".to_owned());
    };
    if start != slice.start || end != whole.min(slice.start + slice.bytes) {
        return Err(format!("unexpected range in slice response: {start}-{end}"));
    }
    Ok(whole)
}

/// Where it has something to do.
pub const FILTER: Filter = Filter::when(|location| location.of::<Conf>().slice.0 > 0, filter);

/// Makes the whole of the slice that has come.
///
/// # Source
/// nginx, `ngx_http_slice_filter_module`.
fn filter(exchange: &mut Exchange, response: &mut Response) {
    let Some(slice) = exchange.pass.slice.get() else { return };
    if response.status != 206 {
        return;
    }
    let whole = match fitting(slice, response) {
        Ok(whole) => whole,
        Err(text) => {
            error::request(exchange, Level::Error, &text);
            exchange.is_given_up = true;
            return;
        }
    };
    response.status = 200;
    response.reason = None;
    response.remove(b"content-range");
    response.remove(b"accept-ranges");
    // Compressed forms are of the whole.
    response.stored_page = None;
    if exchange.request.method == Method::Head {
        response.content_length = Some(whole);
        return;
    }
    let wanted = Rc::new(Cell::new((slice.start, whole)));
    let mut content = response.take_stream();
    response.content_length = Some(whole);
    response.allow_ranges = true;
    let (asked, etag, limits) = (exchange.shadow(), response.etag.clone(), Rc::clone(&wanted));
    asked.pass.slice.set(Some(slice));
    let mut made = stream::made_by(exchange.body.client_closed(), |sink| async move {
        // What is wanted is known when all filters have seen the head.
        let (from, to) = limits.get();
        let mut next = slice.start + slice.bytes;
        if from < next {
            sink.put_all(&mut content).await?;
        } else {
            drop(content);
            next = from / slice.bytes * slice.bytes;
        }
        while next < to {
            let mut stream = ask(&asked, Slice { start: next, ..slice }, &etag).await?;
            sink.append(&mut stream).await?;
            next += slice.bytes;
        }
        Ok(())
    });
    made.slice(Slices { wanted, bytes: slice.bytes });
    response.body = Body::Stream(Box::new(made));
}

/// The content of the next slice.
async fn ask(first: &Exchange, slice: Slice, etag: &Bytes) -> Result<stream::Stream, Torn> {
    let mut asked = Box::new(first.request_of_its_own());
    asked.role = Role::Subrequest;
    asked.pass.slice.set(Some(slice));
    let response = (asked.conf.engine.content_again)(&mut asked).await;
    let mut response = response.map_err(|_| Torn)?;
    let fits = match fitting(slice, &response) {
        Ok(_) if response.etag != *etag => Err("etag mismatch in slice response".to_owned()),
        fits => fits.map(|_| ()),
    };
    if let Err(text) = fits {
        error::request(&asked, Level::Error, &text);
        return Err(Torn);
    }
    Ok(response.take_stream())
}
