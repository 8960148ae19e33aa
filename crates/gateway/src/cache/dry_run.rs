//! `*_cache_dry_run`: pages are stored, and the upstream answers each request all the same. Its response shows whether the stored one would
//! have been right.

use super::decision::Decision;
use super::entry;
use super::plan::Plan;
use crate::protocol::codec::Head;
use std::sync::Arc;
use yorozu_cache::{Entry, EntryHead};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{Forward, NotStored};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::logging::error::{self, Level};

/// Notes what the stored response would have done in place of the upstream.
pub(super) fn note(exchange: &mut Exchange, entry: &Arc<Entry>, decision: &Decision) {
    match decision {
        Decision::Hit | Decision::Part(_) => {
            super::bypass(exchange);
            exchange.cache_report.not_stored = Some(NotStored::DryRun);
            let plan = exchange.pass.of_mut::<Plan>().expect("set by lookup");
            plan.rehearsed = Some(Arc::clone(entry));
        }
        Decision::Beyond { .. } => exchange.cache_report.forward = Some(Forward::Partial),
        Decision::Expired(_) | Decision::Renewed(_) => super::expire(exchange, entry),
    }
}

/// Judges the stored response by the upstream's, which takes its place: it should be one that may be stored, and the same. Returns what
/// its body is to be compared with, if that is still open.
pub(super) fn judge(
    exchange: &Exchange,
    stored: &Entry,
    (head, response): (&Head, &Response),
    judged: Result<EntryHead, NotStored>,
) -> Option<EntryHead> {
    let is_whole = stored.head.part.is_none() && !matches!(head.status, 206 | 304);
    if !is_whole || head.status >= 500 || exchange.request.method == Method::Head {
        return None;
    }
    let entry = match judged {
        Ok(entry) => entry,
        Err(why) if why.is_by_response() => {
            let text = format!(
                "dry run: would have been a hit, but the upstream's response may not be stored ({})",
                why.name()
            );
            error::request(exchange, Level::Error, &text);
            return None;
        }
        // What stands against storing it in the request would not have kept a hit from it.
        Err(_) => EntryHead {
            status: head.status,
            content_type: entry::stored_type(response),
            fields: entry::stored_fields(response, false),
            ..EntryHead::default()
        },
    };
    let is_alike = said(&entry) == said(&stored.head);
    if !is_alike {
        error::request(exchange, Level::Error, DIFFERS);
    }
    is_alike.then_some(entry)
}

pub(super) const DIFFERS: &str =
    "dry run: would have been a hit, but the stored response differs from the upstream's";

/// What of a head a visitor would notice: status, type, and where it leads.
fn said(head: &EntryHead) -> (u16, &[u8], Option<&[u8]>) {
    let location = head.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(b"location"));
    (head.status, &head.content_type, location.map(|(_, value)| &value[..]))
}
