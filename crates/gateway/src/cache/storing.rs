//! Claims of pages, by those requests whose responses may be stored.

use super::decision::Claiming;
use super::eligibility;
use super::plan::Plan;
use super::settings::Conf;
use bytes::Bytes;
use std::time::Instant;
use yorozu_cache::{Claim, FillGuard, Key, Waiter};
use yorozu_kernel::exchange::Exchange;

/// Answer to a claim of a page.
pub enum Claimed {
    Maker(FillGuard),
    /// Another request makes it.
    Taken(Waiter),
    /// The answer to this request is unlikely to be stored, and none makes the page.
    Barred,
}

/// What the stored variants of the page vary by.
pub fn known_vary(exchange: &Exchange) -> Bytes {
    let plan = exchange.pass.of::<Plan>();
    let stored = plan.and_then(|plan| plan.stale.as_ref().or(plan.first.as_ref()));
    stored.map_or_else(Bytes::new, |entry| entry.head.vary.clone())
}

/// Whether the answer to the request is unlikely to be stored.
pub fn is_barred(exchange: &mut Exchange, conf: &Conf) -> bool {
    let vary = known_vary(exchange);
    let eligibility = eligibility::of_request(exchange, conf);
    !eligibility.admits(&vary) || eligibility::is_forbidden_by_request(exchange, conf)
}

/// Whether nothing but headers that no list knows makes it so.
pub(super) fn is_barred_by_strangers(exchange: &mut Exchange, conf: &Conf) -> bool {
    let vary = known_vary(exchange);
    let eligibility = eligibility::of_request(exchange, conf);
    eligibility.admits_without_strangers(&vary)
        && !eligibility::is_forbidden_by_request(exchange, conf)
}

/// What would come of claiming the page of the plan.
pub fn claiming(exchange: &mut Exchange, conf: &Conf) -> Claiming {
    let is_barred = is_barred(exchange, conf);
    let is_claimed = |plan: &Plan| plan.zone.is_claimed(&plan.key);
    match exchange.pass.of::<Plan>().is_some_and(is_claimed) {
        true => Claiming::Taken,
        false if is_barred => Claiming::Barred,
        false => Claiming::Maker,
    }
}

/// Claims the page of `key`, if there is nothing against storing the answer.
pub fn claim(exchange: &mut Exchange, conf: &Conf, key: &Key) -> Option<Claimed> {
    let is_barred = is_barred(exchange, conf);
    let zone = &exchange.pass.of::<Plan>()?.zone;
    if is_barred {
        return Some(zone.join(key).map_or(Claimed::Barred, Claimed::Taken));
    }
    Some(match zone.claim(key, Instant::now(), conf.cache_lock_age) {
        Claim::Maker(guard) => Claimed::Maker(guard),
        Claim::Taken(waiter) => Claimed::Taken(waiter),
    })
}
