//! `*_cache_dry_run`: pages are stored, and the upstream answers each request all the same. Its response shows whether the stored one would
//! have been right.

use super::collector::Collector;
use super::decision::Decision;
use super::entry::Collected;
use super::plan::Plan;
use std::sync::Arc;
use yorozu_cache::Entry;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{Forward, NotStored};
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

/// Judges the stored response by the upstream's, which takes its place: it should be one that may be stored, and the same.
pub(super) fn judge(
    exchange: &Exchange,
    stored: Arc<Entry>,
    status: u16,
    judged: Result<Collector, NotStored>,
) -> Collected {
    match judged {
        Ok(collector) if stored.head.part.is_none() => {
            Collected::Stored(Box::new(collector.comparing(stored)))
        }
        // What stands against storing it in the request would not have kept a hit from it, and an upstream's failure is none of the page's.
        Err(why) if why.is_by_response() && status < 500 => {
            let text = format!(
                "dry run: would have been a hit, but the upstream's response may not be stored ({})",
                why.name()
            );
            error::request(exchange, Level::Error, &text);
            Collected::NotStored
        }
        _ => Collected::NotStored,
    }
}
