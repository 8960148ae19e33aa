//! Claims of pages, by those requests whose answers may be stored.
//!
//! A request whose answer is unlikely to be stored claims nothing: while it held the claim of an expired page, no
//! other would make that page. It is answered for itself alone, and where the stale page may answer, the page is made by a
//! request without what stands against it ([`clean`]).

use super::decision::Claiming;
use super::key;
use super::objections::Objections;
use super::plan::Plan;
use super::sent::Credentials;
use super::settings::Conf;
use super::unkeyed;
use bytes::Bytes;
use std::time::Instant;
use yorozu_cache::{Claim, FillGuard, Key, Waiter};
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::{Exchange, Role};

/// The objections to the request under way, judged once a pass.
pub fn objections<'e>(exchange: &'e mut Exchange, conf: &Conf) -> &'e Objections {
    static NONE: Objections = Objections::NONE;
    let Some(mut plan) = exchange.pass.take::<Plan>() else { return &NONE };
    if plan.objections.is_none() {
        plan.objections = Some(Objections::of(exchange, conf, plan.not_stored));
    }
    let plan = exchange.pass.put(plan);
    plan.objections.as_ref().unwrap_or(&NONE)
}

/// Answer to a claim of a page.
pub enum Claimed {
    Maker(FillGuard),
    /// Another request makes it.
    Taken(Waiter),
    /// The answer to this request is unlikely to be stored, and none makes the page.
    Barred,
}

/// What the stored variants of the page vary by.
fn known_vary(exchange: &Exchange) -> Bytes {
    let plan = exchange.pass.of::<Plan>();
    let stored = plan.and_then(|plan| plan.stale.as_ref().or(plan.first.as_ref()));
    stored.map_or_else(Bytes::new, |entry| entry.head.vary.clone())
}

/// Whether the answer to the request is unlikely to be stored.
pub fn is_barred(exchange: &mut Exchange, conf: &Conf) -> bool {
    let vary = known_vary(exchange);
    !objections(exchange, conf).admit(&vary) || is_forbidden(exchange, conf)
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

/// The request that makes the page for all clients in place of a barred one: a GET without credentials, content and
/// what the key does not hold. `None` if that is another page, or its answer is not stored either.
pub fn clean(exchange: &mut Exchange, conf: &Conf) -> Option<Box<Exchange>> {
    let vary = known_vary(exchange);
    let mut unkeyed = objections(exchange, conf).unkeyed.clone();
    // These tell which variant it is.
    unkeyed.retain(|found| !found.is_varied_by(&vary));
    let wanted = exchange.pass.of::<Plan>()?.key.clone();
    let (location, id) = (exchange.location, *exchange.id());
    let mut asked = unkeyed::tried(exchange, &exchange.client, |request| {
        if request.method == Method::Head {
            request.become_get();
        }
        request.drop_content();
        request.retain_fields(|name| !name.eq_ignore_ascii_case(b"authorization"));
        for found in &unkeyed {
            unkeyed::take_away(request, &found.suspect);
        }
    })?;
    let is_same = asked.location == location && key::primary(&mut asked, conf) == wanted;
    // The configuration may make them of something else that the client says.
    let is_authorized = Credentials::of(&mut asked, conf).are_unkeyed;
    asked.request_id = id.into();
    asked.role = Role::Request;
    (is_same && !is_authorized && !is_forbidden(&asked, conf)).then_some(asked)
}

/// Whether `*_no_cache` holds for this request. Conditions that also hold for a request without any field wait
/// for the answer (`$upstream_http_...`) and do not count yet.
fn is_forbidden(exchange: &Exchange, conf: &Conf) -> bool {
    let holds = |asked: &mut Exchange| conf.no_cache.0.iter().any(|value| value.is_true(asked));
    if conf.no_cache.0.is_empty() || !exchange.peek(holds) {
        return false;
    }
    let bare = unkeyed::tried(exchange, &exchange.client, |request| {
        request.retain_fields(|name| name.eq_ignore_ascii_case(b"host"));
    });
    bare.is_none_or(|mut bare| bare.location != exchange.location || !holds(&mut bare))
}
