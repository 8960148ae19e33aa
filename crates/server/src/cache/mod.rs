//! Page-cache policy: may a stored response answer, and may a fetched one be stored?
//!
//! Way through: [`lookup`] (memory) -> [`prepare`] (disk, other makers) -> the gateway fetches ->
//! [`freshness`] -> [`Collector`] -> stored. The bytes belong to `yorozu-cache`; this module opens
//! no file.
//!
//! # Invariants
//! - A response that sets a cookie, or says no-store, no-cache, private or `Vary: *`, is stored only
//!   if `*_ignore_headers` names that field.
//! - What was asked for with `Authorization` is stored only if the answer says that it is for all.
//! - Only whole responses are stored, and parts that say which part they are.
//! - The answer to a HEAD is stored only under a key that holds the method.
//!
//! # Sources
//! nginx, `fastcgi_cache` and its relatives; RFC 9111; RFC 5861.

pub mod answer;
pub mod collector;
pub mod directives;
pub mod early;
pub mod freshness;
pub mod invalidate;
pub mod key;
pub mod purge;
pub mod report;
pub mod storing;
pub mod unkeyed;

pub use answer::{answer, answer_stale, revalidated};
pub use collector::{Collecting, Collector};
pub use report::{CacheStatus, Forward, Report};

use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::handlers::gateway::directives::Failures;
use crate::handlers::gateway::{self, Conf, Protocol};
use crate::handlers::{Handler, Outcome};
use crate::logging::error::{self, Context, Level};
use crate::tasks;
use bytes::Bytes;
use freshness::NotStored;
use std::sync::Arc;
use std::time::Instant;
use storing::{Claimed, Objections, claim};
use yorozu_cache::{Claim, Depth, Entry, FillGuard, Key, Making, Purge, Waiter, Woken, Zone};

/// What the cache knows about the request under way.
pub struct Plan {
    pub zone: Arc<Zone>,
    /// Key of the first variant.
    pub key: Key,
    /// The first variant, if it is stored.
    pub first: Option<Arc<Entry>>,
    /// An expired entry: may answer if the origin fails, and may be validated.
    pub stale: Option<Arc<Entry>>,
    /// A stored start of the page; the origin is asked for the rest (`*_cache_complete_partial`).
    pub start: Option<Arc<Entry>>,
    /// The body of that, once the rest has come.
    pub start_body: Option<Bytes>,
    /// Why the answer may not be stored.
    pub not_stored: Option<NotStored>,
    /// What the request says against storing it, once that was asked.
    pub objections: Option<Objections>,
    /// Is the page made for everybody, in the background?
    pub is_refresh: bool,
    /// Held while this request makes the page.
    pub guard: Option<FillGuard>,
    pub is_bypassed: bool,
    /// Since the upstream is asked: a purge from then on keeps the answer from being stored.
    pub making: Option<Arc<Making>>,
    /// An entry that was read from its file, and a making from before that.
    loaded: Option<(Arc<Entry>, Arc<Making>)>,
    /// Is the stored page gone that the answer would have built on?
    is_base_lost: bool,
}

impl Plan {
    /// Nothing is known yet of what is stored under `key`.
    pub fn new(zone: Arc<Zone>, key: Key) -> Self {
        Self {
            zone,
            key,
            first: None,
            stale: None,
            start: None,
            start_body: None,
            not_stored: None,
            objections: None,
            is_refresh: false,
            guard: None,
            is_bypassed: false,
            making: None,
            loaded: None,
            is_base_lost: false,
        }
    }

    /// The upstream is about to be asked: what it answers begins here, or where the stored page was found on
    /// which the answer builds. That must still be there.
    pub fn begin(&mut self) {
        let base = self.start.as_ref().or(self.stale.as_ref());
        let since_base = base.and_then(|base| match &self.loaded {
            Some((entry, making)) if Arc::ptr_eq(entry, base) => Some(Arc::clone(making)),
            _ => {
                let key = Key::primary(base.head.key.clone());
                self.zone.begin_from(&key, base).map(Arc::new)
            }
        });
        self.is_base_lost = base.is_some() && since_base.is_none();
        if self.is_base_lost {
            self.start = None;
        }
        let making = since_base.unwrap_or_else(|| Arc::new(self.zone.begin()));
        if let Some(guard) = &self.guard {
            guard.started(&making);
        }
        self.making = Some(making);
    }

    /// What a request of its own needs to refresh the page; the claim goes with it.
    fn for_refresh(&self, guard: FillGuard) -> Self {
        Self {
            first: self.first.clone(),
            stale: self.stale.clone(),
            is_refresh: true,
            guard: Some(guard),
            loaded: self.loaded.clone(),
            ..Self::new(Arc::clone(&self.zone), self.key.clone())
        }
    }

    /// Is the stored page over, now that its renewal got an answer of this status that may not be stored? A
    /// page that answers only while it is renewed would answer for ever; an upstream in trouble ends none.
    pub fn ends_with(&self, status: u16, why: NotStored) -> bool {
        let is_trouble = status >= 500 || matches!(status, 408 | 425 | 429);
        let vary = self.stale.as_ref().map_or(&b""[..], |stale| &stale.head.vary);
        let is_of_request = self.objections.as_ref().is_some_and(|found| !found.admit(vary))
            || self.not_stored.is_some()
            || (why == NotStored::Forbidden && !self.is_refresh);
        let is_answering = |stale: &Arc<Entry>| stale.head.is_purged || self.is_refresh;
        self.stale.as_ref().is_some_and(is_answering) && !is_trouble && !is_of_request
    }

    /// Removes the stored page; who waits for its renewal is woken afterwards.
    pub fn end_stale(self, context: Context) {
        tasks::of_request(async move {
            let page = vec![Purge::Page(self.key.clone())];
            if let Err(problem) = purge::purge(&self.zone, page, Depth::Hard).await {
                context.upstream(Level::Crit, &problem, None);
            }
            drop(self);
        });
    }
}

/// Looks into the memory tier. `None`: something has to be waited for.
pub fn lookup(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    if !conf.cache_methods.admits(exchange.request.method_text()) {
        exchange.cache_report.forward = Some(Forward::Method);
        return None;
    }
    let zone = match key::zone(exchange, conf) {
        Ok(zone) => zone?,
        Err(status) => return Some(Outcome::Status(status)),
    };
    let has_method = conf.cache_key.as_ref().is_some_and(|key| key.has_request_method());
    let is_head_of_get =
        exchange.request.method == Method::Head && !has_method && !is_asked_as_get(exchange);
    let key = key::primary(exchange, conf);
    let mut plan = Plan::new(zone, key);
    plan.not_stored = is_head_of_get.then_some(NotStored::Head);
    if conf.cache_bypass.0.iter().any(|value| value.is_true(exchange)) {
        plan.is_bypassed = true;
        exchange.cache_status = Some(CacheStatus::Bypass);
        exchange.cache_report.forward = Some(Forward::Bypass);
        exchange.pass.cache = Some(plan);
        return None;
    }
    let entry = find_in_memory(exchange, conf, &mut plan);
    exchange.pass.cache = Some(plan);
    judge(exchange, conf, &entry?)
}

/// Does the upstream get a GET for a HEAD?
fn is_asked_as_get(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    matches!(location.handler, Handler::Gateway(Protocol::Proxy(_)))
        && location.proxy.proxy_cache_convert_head
}

fn find_in_memory(exchange: &Exchange, conf: &Conf, plan: &mut Plan) -> Option<Arc<Entry>> {
    let entry = plan.zone.peek(&plan.key)?;
    match key::variant(exchange, conf, plan, &entry) {
        None => Some(entry),
        Some(key) => {
            let found = plan.zone.peek(&key).filter(|found| is_of_family(found, &entry));
            plan.first = Some(entry);
            found
        }
    }
}

/// Was it stored as a variant of `first`, and not of one that is gone?
fn is_of_family(entry: &Entry, first: &Entry) -> bool {
    entry.head.family == first.head.family
}

/// Answers from an entry if that may be done without waiting.
fn judge(exchange: &mut Exchange, conf: &Conf, entry: &Arc<Entry>) -> Option<Outcome> {
    let now = exchange.now_millis();
    if entry.head.part.is_some() {
        return judge_part(exchange, conf, entry);
    }
    if entry.head.is_fresh(now) {
        if conf.cache_early_refresh.is_due(entry, now) {
            refresh_early(exchange, conf, entry);
        }
        return Some(answer(exchange, entry, CacheStatus::Hit));
    }
    // A soft purge lets it answer once more, whatever the configuration says of stale pages.
    let is_purged = entry.head.is_purged;
    let may_answer = is_purged
        || (conf.cache_use_stale.has(Failures::UPDATING) && !entry.head.must_revalidate)
        || now < entry.head.stale_updating_until;
    exchange.cache_status = Some(CacheStatus::Expired);
    exchange.cache_report.forward = Some(Forward::Stale);
    let plan = exchange.pass.cache.as_mut().expect("set by lookup");
    plan.stale = Some(Arc::clone(entry));
    if !may_answer || plan.guard.is_some() {
        return None;
    }
    let key = plan.key.clone();
    let is_background = conf.cache_background_update || is_purged;
    match claim(exchange, conf, &key)? {
        Claimed::Taken(_) => Some(answer(exchange, entry, CacheStatus::Updating)),
        Claimed::Maker(guard) if is_background => {
            let shadow = exchange.request_of_its_own();
            refresh(exchange, Box::new(shadow), guard);
            Some(answer(exchange, entry, CacheStatus::Stale))
        }
        Claimed::Maker(guard) => {
            exchange.pass.cache.as_mut()?.guard = Some(guard);
            None
        }
        Claimed::Barred if is_background => {
            refresh_clean(exchange, conf, &key)?;
            Some(answer(exchange, entry, CacheStatus::Stale))
        }
        Claimed::Barred => None,
    }
}

/// `*_cache_early_refresh`: has one request renew a page that is still fresh.
fn refresh_early(exchange: &mut Exchange, conf: &Conf, entry: &Arc<Entry>) {
    let plan = exchange.pass.cache.as_mut().expect("set by lookup");
    if plan.guard.is_some() {
        return;
    }
    let key = plan.key.clone();
    plan.stale = Some(Arc::clone(entry));
    match claim(exchange, conf, &key) {
        Some(Claimed::Maker(guard)) => {
            let shadow = exchange.request_of_its_own();
            refresh(exchange, Box::new(shadow), guard);
        }
        Some(Claimed::Barred) => drop(refresh_clean(exchange, conf, &key)),
        Some(Claimed::Taken(_)) | None => {}
    }
    exchange.pass.cache.as_mut().expect("set by lookup").stale = None;
}

/// Has `shadow` renew the page in the background.
fn refresh(exchange: &Exchange, mut shadow: Box<Exchange>, guard: FillGuard) {
    shadow.pass.cache = exchange.pass.cache.as_ref().map(|plan| plan.for_refresh(guard));
    gateway::run::refresh_in_background(shadow);
}

/// Has a request renew the page that differs from the one under way in all that stands against storing its
/// answer; `None` if there is no such request.
fn refresh_clean(exchange: &mut Exchange, conf: &Conf, key: &Key) -> Option<()> {
    let shadow = storing::clean(exchange, conf)?;
    let zone = &exchange.pass.cache.as_ref()?.zone;
    if let Claim::Maker(guard) = zone.claim(key, Instant::now(), conf.cache_lock_age) {
        refresh(exchange, shadow, guard);
    }
    Some(())
}

/// Answers from a stored part, if the request asks for no more than it holds.
fn judge_part(exchange: &mut Exchange, conf: &Conf, entry: &Arc<Entry>) -> Option<Outcome> {
    let is_fresh = entry.head.is_fresh(exchange.now_millis());
    let range = is_fresh.then(|| answer::covered(exchange, entry)).flatten();
    if let Some(range) = range {
        return Some(answer::answer_part(exchange, entry, &range));
    }
    exchange.cache_report.forward = Some(Forward::Partial);
    let is_start = entry.head.part.as_ref().is_some_and(|part| part.first == 0);
    let wants_all = exchange.asked_range().is_none();
    let plan = exchange.pass.cache.as_mut()?;
    // It is read into memory.
    let is_short = entry.head.body_bytes <= plan.zone.share();
    if is_fresh && is_start && is_short && wants_all && conf.cache_complete_partial {
        plan.start = Some(Arc::clone(entry));
    }
    None
}

/// Looks where waiting may be needed: the disk tier, and other makers. `None`: fetch it.
///
/// # Cancel safety
/// Nothing is held but the claim, which is freed with the exchange.
pub async fn prepare(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    let plan = exchange.pass.cache.as_ref()?;
    if plan.is_bypassed || plan.stale.is_some() {
        return None;
    }
    if let Some(entry) = load(exchange, conf).await {
        let outcome = judge(exchange, conf, &entry);
        let plan = exchange.pass.cache.as_mut()?;
        if outcome.is_some() {
            // Nothing is built on it.
            plan.loaded = None;
        }
        if outcome.is_some() || plan.stale.is_some() {
            return outcome;
        }
    }
    let is_partial = exchange.cache_report.forward == Some(Forward::Partial);
    let plan = exchange.pass.cache.as_mut()?;
    if conf.cache_min_uses > 1 && plan.zone.count_use(&plan.key) < conf.cache_min_uses {
        // As nginx: before it is used often enough there is no status at all.
        plan.not_stored = Some(NotStored::MinUses);
        exchange.cache_report.forward = Some(Forward::UriMiss);
        return None;
    }
    let is_known = plan.first.is_some();
    exchange.cache_status = Some(CacheStatus::Miss);
    exchange.cache_report.forward = Some(match is_partial {
        true => Forward::Partial,
        false if is_known => Forward::VaryMiss,
        false => Forward::UriMiss,
    });
    if is_range_beyond(exchange, conf) {
        exchange.pass.cache.as_mut()?.not_stored = Some(NotStored::RangeOffset);
        return None;
    }
    if conf.cache_lock && !is_partial { wait_for_maker(exchange, conf).await } else { None }
}

/// `cache_max_range_offset`: is a range asked for whose start lies so far in the page that the
/// client should not wait for what comes before it?
fn is_range_beyond(exchange: &Exchange, conf: &Conf) -> bool {
    let (Some(max), Some(range)) =
        (conf.cache_max_range_offset, exchange.request.known(exchange.request.known.range))
    else {
        return false;
    };
    let Some(start) = range.strip_prefix(b"bytes=") else { return false };
    let digits = start.split(|byte| *byte == b'-').next().unwrap_or_default();
    if exchange.pass.slice.get().is_some() {
        return false;
    }
    // From the end: that is beyond whatever comes first.
    yorozu_conf::value::number(digits).is_none_or(|start| max.0 == 0 || start > max.0)
}

/// With `cache_lock`: claims the page, or waits for the one who did, and reads along.
async fn wait_for_maker(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    let deadline = tokio::time::Instant::now() + conf.cache_lock_timeout;
    let plan = exchange.pass.cache.as_ref()?;
    // Of a page whose variants are known each has a maker of its own.
    let first = plan.first.clone();
    let mut key = first.and_then(|first| key::variant(exchange, conf, plan, &first));
    loop {
        let plan = exchange.pass.cache.as_ref()?;
        let wanted = key.as_ref().unwrap_or(&plan.key).clone();
        let waiter = match claim(exchange, conf, &wanted)? {
            Claimed::Maker(guard) => {
                exchange.pass.cache.as_mut()?.guard = Some(guard);
                return None;
            }
            Claimed::Taken(waiter) => waiter,
            Claimed::Barred => return None,
        };
        match wait(&waiter, conf, deadline).await {
            Waited::InVain => {
                // As nginx: who waited in vain fetches, and does not store.
                exchange.pass.cache.as_mut()?.not_stored = Some(NotStored::LockTimeout);
                return None;
            }
            Waited::Overdue | Waited::Woken(Woken::Free) => {
                // It may have been stored by another way meanwhile, also by an earlier maker.
                let mut plan = exchange.pass.cache.take()?;
                let found = find_in_memory(exchange, conf, &mut plan);
                exchange.pass.cache = Some(plan);
                if let Some(outcome) = found.and_then(|entry| judge(exchange, conf, &entry)) {
                    return Some(outcome);
                }
            }
            Waited::Woken(Woken::Stored(entry)) => {
                let plan = exchange.pass.cache.as_ref()?;
                match key::variant(exchange, conf, plan, &entry) {
                    None => {
                        exchange.cache_report.is_collapsed = true;
                        let outcome = judge(exchange, conf, &entry);
                        if outcome.is_some() || exchange.pass.cache.as_ref()?.stale.is_some() {
                            return outcome;
                        }
                    }
                    Some(other) => key = Some(other),
                }
            }
            Waited::Woken(Woken::Flowing(flow)) => {
                let plan = exchange.pass.cache.as_ref()?;
                match key::other_variant(exchange, conf, plan, &flow.head) {
                    None => {
                        // Without one it is not stored after all: it is claimed again.
                        if let Some(follower) = flow.follow() {
                            exchange.cache_report.is_collapsed = true;
                            return Some(answer::answer_along(exchange, &flow, follower));
                        }
                    }
                    Some(other) => key = Some(other),
                }
            }
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

/// Looks into memory again, then into the disk tier, on a thread that may block.
pub async fn load(exchange: &mut Exchange, conf: &Conf) -> Option<Arc<Entry>> {
    let plan = exchange.pass.cache.as_ref()?;
    let entry = match plan.zone.peek(&plan.key) {
        Some(entry) => entry,
        None => load_key(exchange, plan.key.clone()).await?,
    };
    let plan = exchange.pass.cache.as_ref()?;
    let Some(key) = key::variant(exchange, conf, plan, &entry) else { return Some(entry) };
    let found = match plan.zone.peek(&key) {
        Some(entry) => Some(entry),
        None => load_key(exchange, key).await,
    };
    let found = found.filter(|found| is_of_family(found, &entry));
    exchange.pass.cache.as_mut()?.first = Some(entry);
    found
}

async fn load_key(exchange: &mut Exchange, key: Key) -> Option<Arc<Entry>> {
    let zone = Arc::clone(&exchange.pass.cache.as_ref()?.zone);
    if !zone.may_be_on_disk(&key) {
        return None;
    }
    let now = exchange.now();
    let loaded = tokio::task::spawn_blocking(move || zone.load(&key, now)).await.ok()?;
    match loaded {
        Ok(found) => {
            let (entry, making) = found?;
            let plan = exchange.pass.cache.as_mut()?;
            plan.loaded = Some((Arc::clone(&entry), Arc::new(making)));
            Some(entry)
        }
        Err(problem) => {
            error::request(exchange, Level::Crit, &problem.to_string());
            None
        }
    }
}

/// Is the client's field of this name for the stored page, and not for the one who makes it? In any
/// case.
pub fn is_for_stored_page(name: &[u8]) -> bool {
    const CONDITIONS: [&[u8]; 6] = [
        b"if-modified-since",
        b"if-unmodified-since",
        b"if-none-match",
        b"if-match",
        b"range",
        b"if-range",
    ];
    CONDITIONS.iter().any(|condition| condition.eq_ignore_ascii_case(name))
}

/// Validators of the expired entry, for a conditional request to the upstream.
pub fn validators(exchange: &Exchange, conf: &Conf) -> (Option<String>, Bytes) {
    let plan = exchange.pass.cache.as_ref().filter(|plan| !plan.is_base_lost);
    let stale = plan.and_then(|plan| plan.stale.as_ref());
    // As nginx: other statuses are fetched anew.
    match stale.filter(|entry| conf.cache_revalidate && entry.head.status == 200) {
        None => (None, Bytes::new()),
        Some(entry) => {
            (entry.head.last_modified.map(yorozu_http::date::format), entry.head.etag.clone())
        }
    }
}

/// The range to ask the upstream for, where the start of the page is stored already.
pub fn missing_range(exchange: &Exchange) -> Option<String> {
    let start = exchange.pass.cache.as_ref()?.start.as_ref()?;
    Some(format!("bytes={}-", start.head.body_bytes))
}
