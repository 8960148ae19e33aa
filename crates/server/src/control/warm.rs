//! `yorozu warm`: a page is asked for as a visitor would, so that it is stored for those who come.

use super::{Problem, explain};
use crate::filters;
use crate::handlers;
use bytes::Bytes;
use std::rc::Rc;
use yorozu_connection::read_file;
use yorozu_http::field::argument;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::response::{Body, Segment};
use yorozu_kernel::find_config;

/// Most content handed back: a sitemap has at most 50 MB (sitemaps.org).
const CONTENT_MAX: usize = 50 * 1024 * 1024;
/// Bytes read of a file at a time.
const PIECE: u64 = 64 * 1024;

/// The content of the control request: as for `explain`. The answer: `STATUS CACHE CODING BYTES`, a line end, and with
/// `?content` the content.
pub(super) async fn warm(exchange: &mut Exchange) -> Result<Vec<u8>, Problem> {
    let conf = Rc::clone(&exchange.conf);
    let mut asked = explain::asked(&conf, &super::content(exchange).await?)?;
    find_config::begin(&mut asked)?;
    let closed = |status| format!("the connection is closed (status {status})");
    let mut response = handlers::whole(&mut asked).await.map_err(closed)?;
    filters::apply(&mut asked, &mut response);
    let coding = response.field(b"content-encoding");
    let coding = coding.map_or("-".into(), |coding| String::from_utf8_lossy(coding));
    let cache = asked.cache_status.map_or("-", |status| status.name());
    let start = format!("{} {cache} {coding}", response.status);
    let is_wanted = argument(&exchange.args, b"content").is_some();
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
