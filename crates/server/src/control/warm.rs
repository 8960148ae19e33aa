//! `yorozu warm`: a page is asked for as a visitor would, so that it is stored for those who come.

use super::{Problem, explain};
use crate::filters;
use crate::handlers;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_connection::read_file;
use yorozu_http::field::argument;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::exchange::response::{Body, Segment};
use yorozu_kernel::find_config;

/// Most content handed back: a sitemap has at most 50 MB (sitemaps.org).
const CONTENT_MAX: usize = 50 * 1024 * 1024;
/// Bytes read of a file at a time.
const PIECE: u64 = 64 * 1024;

/// The content of the control request: as for `explain`. The answer: `STATUS CACHE CODING BYTES`, a line end, and with
/// `?content` the content.
pub(super) async fn warm(exchange: &mut Exchange) -> Result<Vec<u8>, Problem> {
    let head = super::content(exchange).await?;
    let is_wanted = argument(&exchange.args, b"content").is_some();
    of_head(&exchange.conf, &head, is_wanted).await
}

/// As a request with this head would: `SCHEME PORT`, a line end, and the head.
///
/// # Errors
/// It cannot be asked, or its answer is incomplete.
pub(crate) async fn of_head(
    conf: &Rc<WorkerConf>,
    head: &[u8],
    is_wanted: bool,
) -> Result<Vec<u8>, Problem> {
    let mut asked = explain::asked(conf, head)?;
    find_config::begin(&mut asked)?;
    let closed = |status| format!("the connection is closed (status {status})");
    let mut response = handlers::whole(&mut asked).await.map_err(closed)?;
    if response.content_type.starts_with(b"text/event-stream") {
        return Err("a stream of events has no end, and is not stored".to_owned().into());
    }
    filters::apply(&mut asked, &mut response);
    let coding = response.field(b"content-encoding");
    let coding = coding.map_or("-".into(), |coding| String::from_utf8_lossy(coding));
    let cache = asked.cache_status.map_or("-", |status| status.name());
    let start = format!("{} {cache} {coding}", response.status);
    let body = std::mem::replace(&mut response.body, Body::empty());
    let (bytes, content) = drain(body, is_wanted).await?;
    Ok([format!("{start} {bytes}\n").as_bytes(), &content].concat())
}

/// Reads a body to its end; its bytes, and if they are wanted the content.
async fn drain(body: Body, is_wanted: bool) -> Result<(u64, Vec<u8>), String> {
    let torn = || "the response is incomplete".to_owned();
    let (mut bytes, mut content) = (0, Vec::new());
    let mut keep = |piece: &Bytes| {
        bytes += piece.len() as u64;
        let is_too_long = is_wanted && content.len() + piece.len() > CONTENT_MAX;
        if is_wanted && !is_too_long {
            content.extend_from_slice(piece);
        }
        if is_too_long { Err(format!("more than {CONTENT_MAX} bytes")) } else { Ok(()) }
    };
    match body {
        Body::Memory(all) => keep(&all)?,
        Body::Segments(segments) => {
            for segment in segments {
                each_piece(segment, &mut keep).await?;
            }
        }
        Body::Stream(mut stream) => {
            while let Some(segment) = stream.next().await.map_err(|_| torn())? {
                each_piece(segment, &mut keep).await?;
            }
        }
        Body::Tunnel(_) => return Err("the upstream changed the protocol".to_owned()),
    }
    Ok((bytes, content))
}

async fn each_piece(
    segment: Segment,
    keep: &mut impl FnMut(&Bytes) -> Result<(), String>,
) -> Result<(), String> {
    match segment {
        Segment::Memory(bytes) => keep(&bytes),
        Segment::File(file, range) => {
            let mut at = range.start;
            while at < range.end {
                let length = (range.end - at).min(PIECE);
                // At most a piece: it fits.
                let piece = read_file(&file, at, length as usize).await;
                keep(&piece.map_err(|_| "a stored page could not be read".to_owned())?)?;
                at += length;
            }
            Ok(())
        }
    }
}
