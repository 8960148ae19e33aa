//! Pages of which a part is stored: the answer to a range, and the start of a page whose rest is asked for alone.

use super::plan::Plan;
use crate::protocol::codec::Head;
use bytes::Bytes;
use std::sync::Arc;
use yorozu_cache::{Part, Zone, on_disk};
use yorozu_kernel::exchange::Exchange;

/// `false` if the start of the page is stored and `head` is not the rest that fits it.
///
/// # Source
/// RFC 9110, section 15.3.7.3: only parts with the same strong validator are joined.
pub async fn completes(exchange: &mut Exchange, head: &Head) -> bool {
    let Some(plan) = exchange.pass.of_mut::<Plan>() else { return true };
    let Some(start) = plan.start.clone() else { return true };
    let etag = &start.head.etag;
    let is_same = !etag.is_empty()
        && !etag.starts_with(b"W/")
        && head.field(b"etag").is_some_and(|found| found == etag);
    let (Some(part), bytes) = (&start.head.part, start.head.body_bytes) else { return false };
    let total = part.total;
    let rest = format!("bytes {bytes}-{}/{total}", total.saturating_sub(1));
    let fits = head.field(b"content-range").is_some_and(|range| range[..] == *rest.as_bytes());
    if is_same && fits {
        let zone = Arc::clone(&plan.zone);
        plan.start_body = on_disk(&zone, move |_| Zone::body(&start)).await.and_then(Result::ok);
    }
    plan.start_body.is_some()
}

/// Joins the rest of a page with its stored start: the head of the whole, and the bytes before.
pub fn completed(exchange: &mut Exchange, head: Head) -> (Head, Option<Bytes>) {
    let Some(plan) = exchange.pass.of_mut::<Plan>() else { return (head, None) };
    let (start, before) = (plan.start.take(), plan.start_body.take());
    let part = start.as_ref().and_then(|start| start.head.part.as_ref());
    let (Some(part), Some(before)) = (part, before) else { return (head, None) };
    let is_of_part = |name: &[u8]| {
        name.eq_ignore_ascii_case(b"content-range") || name.eq_ignore_ascii_case(b"content-length")
    };
    let mut fields: Vec<_> =
        head.fields.iter().filter(|(name, _)| !is_of_part(name)).cloned().collect();
    fields.push((Bytes::from_static(b"Content-Length"), part.total.to_string().into()));
    (Head { status: 200, reason: None, fields: fields.into() }, Some(before))
}

/// Which part a 206 holds, if the client asked for it and no whole page has its place.
pub(super) fn part(exchange: &Exchange, head: &Head, plan: &Plan) -> Option<Part> {
    if plan.stale.as_ref().is_some_and(|stale| stale.head.part.is_none()) {
        return None;
    }
    let asked = exchange.asked_range()?;
    let text = std::str::from_utf8(head.field(b"content-range")?).ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total: u64 = total.parse().ok()?;
    let is_sound = first <= last && last < total;
    is_sound.then(|| Part {
        first,
        total,
        is_to_end: last + 1 == total,
        asked: Bytes::copy_from_slice(&asked),
    })
}

/// The range to ask the upstream for, where the start of the page is stored already.
pub fn missing_range(exchange: &Exchange) -> Option<String> {
    let start = exchange.pass.of::<Plan>()?.start.as_ref()?;
    Some(format!("bytes={}-", start.head.body_bytes))
}
