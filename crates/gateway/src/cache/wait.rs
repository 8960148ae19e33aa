//! With `*_cache_lock`: waiting for the request that makes the page, reading along while it arrives, and making it again where
//! it stops arriving.

use super::seen::{self, Effect};
use super::storing::{self, Claimed, claim};
use super::{
    Conf, Found, Maker, Plan, Prepared, answer, as_refresh, eligibility, find_in_memory, judge,
    key, make_without_strangers,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_cache::{Claim, Flow, Key, Waiter, Woken};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{CacheStatus, NotStored};

/// With `cache_lock`: claims the page, or waits for the request that did, and reads along.
pub(super) async fn for_maker(exchange: &mut Exchange, conf: &Conf) -> Prepared {
    let Some(prepared) = for_claimed(exchange, conf).await else { return Prepared::Nothing };
    if matches!(prepared, Prepared::Found(_))
        && exchange.pass.of::<Plan>().is_some_and(|plan| plan.had_other_maker)
    {
        // The upstream was asked because of it.
        exchange.cache_status = Some(CacheStatus::Miss);
        exchange.cache_report.is_hit = false;
    }
    prepared
}

/// The request that makes the page of a key in place of this one, if nothing but headers that no list knows stands against that;
/// once.
fn other_maker(exchange: &mut Exchange, conf: &Conf, key: &Key) -> Option<Box<Exchange>> {
    let plan = exchange.pass.of_mut::<Plan>()?;
    let is_stored = !plan.secondary.is_chosen || plan.uses > 1;
    if !is_stored || std::mem::replace(&mut plan.had_other_maker, true) {
        return None;
    }
    let is_by_strangers = storing::is_barred_by_strangers(exchange, conf);
    let maker =
        if is_by_strangers { make_without_strangers(exchange, conf, key) } else { Maker::None };
    let shadow = maker.asked()?;
    let eligibility = eligibility::of_request(exchange, conf);
    eligibility.strangers().for_each(|name| _ = seen::count(name, Effect::Unshared));
    Some(shadow)
}

/// Waits for the maker. `None`: this request is it, or has waited in vain.
async fn for_claimed(exchange: &mut Exchange, conf: &Conf) -> Option<Prepared> {
    let deadline = tokio::time::Instant::now() + conf.cache_lock_timeout;
    exchange.pass.of_mut::<Plan>()?.waits_until = Some(deadline);
    let plan = exchange.pass.of::<Plan>()?;
    // When the variants of a page are known, each has its own maker.
    let (first, page) = (plan.first.clone(), plan.key.clone());
    let mut key = first.and_then(|first| key::variant(exchange, conf, &page, &first));
    loop {
        let wanted = key.as_ref().unwrap_or(&page).clone();
        let zone = &exchange.pass.of::<Plan>()?.zone;
        if zone.setbacks().is_unstorable(&wanted, Instant::now()) {
            // What it waited for would not be for it.
            return None;
        }
        let waiter = match claim(exchange, conf, &wanted)? {
            Claimed::Maker(guard) => {
                exchange.pass.of_mut::<Plan>()?.guard = Some(guard);
                return None;
            }
            Claimed::Taken(waiter) => waiter,
            Claimed::Barred => return other_maker(exchange, conf, &wanted).map(Prepared::MadeBy),
        };
        match wait(&waiter, conf, deadline).await {
            Waited::InVain => {
                // As nginx: a request that waited in vain fetches, and does not store.
                exchange.pass.of_mut::<Plan>()?.not_stored = Some(NotStored::LockTimeout);
                return None;
            }
            Waited::Overdue | Waited::Woken(Woken::Free) => {
                // It may have been stored by another way meanwhile, also by an earlier maker.
                let mut plan = exchange.pass.take::<Plan>()?;
                let found = find_in_memory(exchange, conf, &mut plan);
                exchange.pass.put(plan);
                if let Some(found) = found.and_then(|entry| judge(exchange, conf, &entry)) {
                    return Some(Prepared::Found(found));
                }
            }
            Waited::Woken(Woken::Stored(entry)) => {
                match key::variant(exchange, conf, &page, &entry) {
                    None => {
                        exchange.cache_report.is_collapsed = true;
                        let found = judge(exchange, conf, &entry);
                        if found.is_some() || exchange.pass.of::<Plan>()?.stale.is_some() {
                            return found.map(Prepared::Found);
                        }
                    }
                    Some(other) => {
                        // What it varies by.
                        exchange.pass.of_mut::<Plan>()?.first = Some(entry);
                        key = Some(other);
                    }
                }
            }
            Waited::Woken(Woken::Flowing(flow)) => {
                match key::other_variant(exchange, conf, &page, &flow.head) {
                    None => {
                        // Without one it is not stored after all: it is claimed again.
                        if let Some(follower) = flow.follow() {
                            exchange.cache_report.is_collapsed = true;
                            let refresh = stand_by(exchange, conf, &flow, wanted);
                            let outcome = answer::answer_along(exchange, &flow, follower);
                            return Some(Prepared::Found(Found { outcome, refresh }));
                        }
                    }
                    Some(other) => key = Some(other),
                }
            }
        }
    }
}

/// The request that would make the page again, should its body stop arriving, for all who read along; `None` if there is one, or
/// this may be none.
fn stand_by(
    exchange: &mut Exchange,
    conf: &Conf,
    flow: &Arc<Flow>,
    key: Key,
) -> Option<Box<Exchange>> {
    let watch = flow.watch().filter(|_| !patience(conf).is_zero())?;
    let shadow = match storing::is_barred(exchange, conf) {
        true => {
            let vary = storing::known_vary(exchange);
            eligibility::without_strangers(exchange, conf, &vary)?
        }
        false => Box::new(exchange.request_of_its_own()),
    };
    let mut shadow = as_refresh(exchange, shadow, None);
    shadow.pass.of_mut::<Plan>()?.stands_by = Some((watch, key));
    Some(shadow)
}

/// How long a page may stop arriving: as long as a request waits for another one's page.
fn patience(conf: &Conf) -> Duration {
    conf.cache_lock_age.min(conf.cache_lock_timeout)
}

/// Waits until a background request is to be made. Whether it is.
pub async fn is_due(exchange: &mut Exchange, conf: &Conf) -> bool {
    let Some(plan) = exchange.pass.of_mut::<Plan>() else { return true };
    let Some((watch, key)) = plan.stands_by.take() else { return true };
    let patience = patience(conf);
    if !watch.is_due(patience).await {
        return false;
    }
    loop {
        match plan.zone.claim(&key, Instant::now(), patience) {
            Claim::Maker(mut guard) => {
                guard.make_again(watch);
                plan.guard = Some(guard);
                return true;
            }
            Claim::Taken(waiter) => match waiter.woken().await {
                Woken::Free => {}
                Woken::Flowing(flow) => {
                    watch.made_again(&flow);
                    return false;
                }
                Woken::Stored(entry) => {
                    watch.stored_again(&entry);
                    return false;
                }
            },
        }
    }
}

/// How the waiting for a maker ended.
enum Waited {
    Woken(Woken),
    /// The maker takes longer than `*_cache_lock_age`.
    Overdue,
    /// `*_cache_lock_timeout` is over.
    InVain,
}

async fn wait(waiter: &Waiter, conf: &Conf, deadline: tokio::time::Instant) -> Waited {
    tokio::select! {
        biased;
        woken = waiter.woken() => Waited::Woken(woken),
        () = tokio::time::sleep_until(deadline) => Waited::InVain,
        () = tokio::time::sleep(conf.cache_lock_age) => Waited::Overdue,
    }
}
