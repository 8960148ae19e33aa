//! The tier that nodes share (`shared=`): what the maker of a page does before it asks the upstream.
//!
//! Another node may have made the page: then it is stored here as if it had been made here. Or another one is making it,
//! as its lease says: then it is waited for. Else the lease is this node's, and goes with the claim.

use super::collector::{Made, store};
use super::decision::Decision;
use super::plan::Plan;
use super::settings::Conf;
use super::{Found, decide, expire, is_of_group, judge, key};
use crate::nodes::{self, Tier, tier};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use yorozu_cache::{Entry, Key, Making, Zone};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::logging::error;

/// Between two looks for a page that another node makes; chosen.
const PAUSE: Duration = Duration::from_millis(10);

/// A page of another node, and the making it came with.
type Taken = (Arc<Entry>, Arc<Making>);

/// Whether nodes share the page that the request asks for.
pub fn is_there(exchange: &Exchange) -> bool {
    let plan = exchange.pass.of::<Plan>();
    plan.is_some_and(|plan| nodes::tier(&exchange.conf, &plan.zone).is_some())
}

/// What another node has made for the request; `None`: it is for this one to make.
///
/// # Cancel safety
/// Nothing is held but the claim and the lease, which are freed with the exchange.
pub async fn find(exchange: &mut Exchange, conf: &Conf) -> Option<Found> {
    let config = Rc::clone(&exchange.conf);
    let plan = exchange.pass.of::<Plan>()?;
    let tier = nodes::tier(&config, &plan.zone)?;
    let is_maker = (plan.guard.is_some() || !conf.cache_lock) && !conf.cache_dry_run;
    if !is_maker || plan.is_bypassed || plan.not_stored.is_some() || plan.start.is_some() {
        return None;
    }
    let deadline = plan.waits_until.unwrap_or_else(|| Instant::now() + conf.cache_lock_timeout);
    let has_lease = plan.guard.is_some() && tier.has_leases();
    let (mut is_leased, zone, page) = (!has_lease, Arc::clone(&plan.zone), plan.key.clone());
    loop {
        match take(exchange, conf, (tier, &zone, &page)).await {
            Sought::Page(taken) => return answer(exchange, conf, taken),
            Sought::Away => return None,
            Sought::Nothing if is_leased => return None,
            Sought::Nothing => {}
        }
        match tier.lease(&page).await {
            tier::Leased::Mine(lease) => {
                exchange.pass.of_mut::<Plan>()?.guard.as_mut()?.hold(lease);
                // It may have been put there just before.
                is_leased = true;
            }
            tier::Leased::Taken if wait(tier, &page, deadline).await => {}
            tier::Leased::Taken | tier::Leased::None => return None,
        }
    }
}

/// Waits while another node makes the page; `false` if that takes too long, or is not known.
async fn wait(tier: &Tier, page: &Key, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        sleep(PAUSE).await;
        match tier.is_leased(page).await {
            Some(true) => {}
            Some(false) => return true,
            None => return false,
        }
    }
    false
}

enum Sought {
    Page(Taken),
    Nothing,
    Away,
}

/// Looks for the page, and if it varies for the variant.
async fn take(
    exchange: &mut Exchange,
    conf: &Conf,
    (tier, zone, page): (&Arc<Tier>, &Arc<Zone>, &Key),
) -> Sought {
    let now = (exchange.now(), exchange.now_millis());
    let making = Arc::new(zone.begin());
    let entry = match tier.get(zone, page, &making, now).await {
        tier::Found::Page(entry) => Arc::new(*entry),
        tier::Found::Stale(entry) => {
            keep_stale(exchange, conf, page, *entry);
            return Sought::Nothing;
        }
        tier::Found::Nothing => return Sought::Nothing,
        tier::Found::Away => return Sought::Away,
    };
    let Some(variant) = key::variant(exchange, conf, page, &entry) else {
        return sought(exchange, conf, (entry, making));
    };
    // The first variant says what the page varies by, also if this one is to be made.
    let made = Made { entry: Arc::clone(&entry), making, guard: None };
    store(Arc::clone(zone), made, now.0, error::Context::of(exchange));
    if let Some(plan) = exchange.pass.of_mut::<Plan>() {
        plan.first = Some(Arc::clone(&entry));
    }
    let of_variant = Arc::new(zone.begin());
    match tier.get(zone, &variant, &of_variant, now).await {
        tier::Found::Page(found) if is_of_group(&found, &entry) => {
            sought(exchange, conf, (Arc::new(*found), of_variant))
        }
        tier::Found::Away => Sought::Away,
        _ => Sought::Nothing,
    }
}

/// Whether the page can answer, and is newer than what this node has.
fn sought(exchange: &Exchange, conf: &Conf, taken: Taken) -> Sought {
    let is_hit = matches!(decide(exchange, conf, &taken.0), Decision::Hit);
    match is_hit && is_newer(exchange, &taken.0) {
        true => Sought::Page(taken),
        false => Sought::Nothing,
    }
}

fn is_newer(exchange: &Exchange, entry: &Entry) -> bool {
    let stale = exchange.pass.of::<Plan>().and_then(|plan| plan.stale.as_ref());
    stale.is_none_or(|stale| entry.head.stored_at > stale.head.stored_at)
}

/// Has an expired page at hand for an origin that fails, as if it had been stored here. One of a page that varies is another
/// variant's.
fn keep_stale(exchange: &mut Exchange, conf: &Conf, page: &Key, entry: Entry) {
    if is_newer(exchange, &entry) && key::variant(exchange, conf, page, &entry).is_none() {
        expire(exchange, &Arc::new(entry));
    }
}

/// Stores the page and answers with it.
fn answer(exchange: &mut Exchange, conf: &Conf, (entry, making): Taken) -> Option<Found> {
    let plan = exchange.pass.of_mut::<Plan>()?;
    plan.stale = None;
    let (zone, guard) = (Arc::clone(&plan.zone), plan.guard.take());
    let made = Made { entry: Arc::clone(&entry), making, guard };
    store(zone, made, exchange.now(), error::Context::of(exchange));
    let found = judge(exchange, conf, &entry);
    // It came fresh: whether it is to be refreshed early is for the next one.
    found.map(|found| Found { refresh: None, ..found })
}
