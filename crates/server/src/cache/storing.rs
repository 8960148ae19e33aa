//! What a request itself says against storing the answer to it, known before the page is claimed.
//!
//! A request whose answer will hardly be stored claims nothing: while it held the claim of an expired page, nobody
//! would make that page. It is answered for itself alone, and where the stale page may answer, the page is made by a
//! request without what stands against it ([`clean`]).

use super::freshness::NotStored;
use super::unkeyed::{self, Suspect};
use super::{Plan, key};
use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::handlers::gateway::{Conf, Head};
use bytes::Bytes;
use std::time::Instant;
use yorozu_cache::{Claim, FillGuard, Key, Waiter};

/// What stands against storing the answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Objections {
    /// Whatever the answer says.
    never: Option<NotStored>,
    /// Unless the answer says that it is for all.
    pub is_authorized: bool,
    /// Unless the answer varies by it.
    unkeyed: Vec<Suspect>,
}

impl Objections {
    fn of(exchange: &mut Exchange, conf: &Conf, plan: &Plan) -> Self {
        let request = &exchange.request;
        let tells_credentials =
            conf.cache_key.as_ref().is_some_and(|key| key.has_field(b"authorization"));
        let is_authorized = request.known.authorization.is_some() && !tells_credentials;
        let mut never = plan.not_stored;
        if request.method.is_get_or_head() && request.has_content() {
            // Applications read it, and nothing of it is in the key.
            never = never.or(Some(NotStored::Body));
        }
        Self { never, is_authorized, unkeyed: unkeyed::unkeyed(exchange, conf) }
    }

    /// Is there nothing against making the page of which this is the stored `Vary`, if any is?
    pub fn admit(&self, vary: &[u8]) -> bool {
        self.never.is_none()
            && !self.is_authorized
            && self.unkeyed.iter().all(|suspect| suspect.is_varied_by(vary))
    }

    /// Do they stand in spite of what the answer says?
    ///
    /// # Errors
    /// The reason.
    pub fn judge(&self, conf: &Conf, head: &Head) -> Result<(), NotStored> {
        if let Some(why) = self.never {
            return Err(why);
        }
        match self.unkeyed.iter().all(|suspect| suspect.is_told_by(conf, head)) {
            true => Ok(()),
            false => Err(NotStored::Unkeyed),
        }
    }
}

/// The objections to the request under way, judged once a pass.
pub fn objections<'e>(exchange: &'e mut Exchange, conf: &Conf) -> &'e Objections {
    static NONE: Objections = Objections { never: None, is_authorized: false, unkeyed: Vec::new() };
    let Some(mut plan) = exchange.pass.cache.take() else { return &NONE };
    if plan.objections.is_none() {
        plan.objections = Some(Objections::of(exchange, conf, &plan));
    }
    let plan = exchange.pass.cache.insert(plan);
    plan.objections.as_ref().unwrap_or(&NONE)
}

/// Answer to a claim of a page.
pub enum Claimed {
    Maker(FillGuard),
    /// Somebody else makes it.
    Taken(Waiter),
    /// The answer to this request will hardly be stored, and nobody makes the page.
    Barred,
}

/// What the stored variants of the page vary by.
fn known_vary(exchange: &Exchange) -> Bytes {
    let plan = exchange.pass.cache.as_ref();
    let stored = plan.and_then(|plan| plan.stale.as_ref().or(plan.first.as_ref()));
    stored.map_or_else(Bytes::new, |entry| entry.head.vary.clone())
}

/// Claims the page of `key`, if there is nothing against storing the answer.
pub fn claim(exchange: &mut Exchange, conf: &Conf, key: &Key) -> Option<Claimed> {
    let vary = known_vary(exchange);
    let is_barred = !objections(exchange, conf).admit(&vary) || is_forbidden(exchange, conf);
    let zone = &exchange.pass.cache.as_ref()?.zone;
    if is_barred {
        return Some(zone.join(key).map_or(Claimed::Barred, Claimed::Taken));
    }
    Some(match zone.claim(key, Instant::now(), conf.cache_lock_age) {
        Claim::Maker(guard) => Claimed::Maker(guard),
        Claim::Taken(waiter) => Claimed::Taken(waiter),
    })
}

/// The request that makes the page for everybody in the place of a barred one: a GET without credentials, content and
/// what the key does not hold. `None` if that is another page, or its answer is not stored either.
pub fn clean(exchange: &mut Exchange, conf: &Conf) -> Option<Box<Exchange>> {
    let vary = known_vary(exchange);
    let mut unkeyed = objections(exchange, conf).unkeyed.clone();
    // These tell which variant it is.
    unkeyed.retain(|suspect| !suspect.is_varied_by(&vary));
    let wanted = exchange.pass.cache.as_ref()?.key.clone();
    let (location, id) = (exchange.location, *exchange.id());
    let mut asked = unkeyed::tried(exchange, &exchange.client, |request| {
        if request.method == Method::Head {
            request.become_get();
        }
        request.drop_content();
        request.retain_fields(|name| !name.eq_ignore_ascii_case(b"authorization"));
        for suspect in &unkeyed {
            unkeyed::take_away(request, suspect);
        }
    })?;
    let is_same = asked.location == location && key::primary(&mut asked, conf) == wanted;
    asked.request_id = id.into();
    asked.is_dry = false;
    (is_same && !is_forbidden(&asked, conf)).then_some(asked)
}

/// Does `*_no_cache` hold for this request? Conditions that hold for one without any field, too, wait for the
/// answer (`$upstream_http_...`): they say nothing yet.
fn is_forbidden(exchange: &Exchange, conf: &Conf) -> bool {
    let holds = |asked: &mut Exchange| conf.no_cache.0.iter().any(|value| value.is_true(asked));
    if conf.no_cache.0.is_empty() || !holds(&mut exchange.shadow()) {
        return false;
    }
    let bare = unkeyed::tried(exchange, &exchange.client, |request| {
        request.retain_fields(|name| name.eq_ignore_ascii_case(b"host"));
    });
    bare.is_none_or(|mut bare| bare.location != exchange.location || !holds(&mut bare))
}
