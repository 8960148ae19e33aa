//! Page-cache policy: may a stored response answer, and may a fetched one be stored?
//!
//! Way through: [`lookup`] (memory) -> [`prepare`] (disk, other makers) -> the gateway fetches ->
//! [`freshness`] -> [`Collector`] -> stored. The bytes belong to `yorozu-cache`; this module opens
//! no file.
//!
//! # Invariants
//! - A response that sets a cookie, or says no-store, no-cache, private or `Vary: *`, is stored only
//!   if `*_ignore_headers` names that field.
//! - Only whole responses are stored.
//! - The answer to a HEAD is stored only under a key that holds the method.
//!
//! # Sources
//! nginx, `fastcgi_cache` and its relatives; RFC 9111; RFC 5861.

pub mod collector;
pub mod directives;
pub mod freshness;

pub use collector::Collector;

use crate::exchange::Exchange;
use crate::exchange::request::Method;
use crate::exchange::response::{Body, Response, Segment, StoredPage};
use crate::handlers::gateway::Protocol;
use crate::handlers::gateway::directives::Failures;
use crate::handlers::gateway::{self, Conf};
use crate::handlers::{Handler, Outcome};
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use yorozu_cache::{Claim, Entry, EntryBody, FillGuard, Key, Zone};

/// What the cache did for a request; `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CacheStatus {
    Bypass,
    Expired,
    Hit,
    Miss,
    Revalidated,
    Stale,
    Updating,
}

impl CacheStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypass => "BYPASS",
            Self::Expired => "EXPIRED",
            Self::Hit => "HIT",
            Self::Miss => "MISS",
            Self::Revalidated => "REVALIDATED",
            Self::Stale => "STALE",
            Self::Updating => "UPDATING",
        }
    }
}

/// What the cache knows about the request under way.
pub struct Plan {
    pub zone: Arc<Zone>,
    /// Key of the first variant.
    pub key: Key,
    /// An expired entry: may answer if the origin fails, and may be validated.
    pub stale: Option<Arc<Entry>>,
    /// May the answer be stored?
    pub may_store: bool,
    /// Held while this request makes the page.
    pub guard: Option<FillGuard>,
    pub is_bypassed: bool,
}

/// Looks into the memory tier. `None`: something has to be waited for.
pub fn lookup(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    if !conf.cache_methods.admits(exchange.request.method_text()) {
        return None;
    }
    let zone = match zone(exchange, conf) {
        Ok(zone) => zone?,
        Err(status) => return Some(Outcome::Status(status)),
    };
    let mut key = Vec::with_capacity(128);
    let mut has_method = false;
    match &conf.cache_key {
        Some(template) => {
            template.append(exchange, &mut key);
            has_method = template.has_request_method();
        }
        None => default_key(exchange, &mut key),
    }
    let mut plan = Plan {
        zone,
        key: Key::primary(key.into()),
        stale: None,
        may_store: exchange.request.method != Method::Head
            || has_method
            || is_asked_as_get(exchange),
        guard: None,
        is_bypassed: false,
    };
    if conf.cache_bypass.0.iter().any(|value| value.is_true(exchange)) {
        plan.is_bypassed = true;
        exchange.cache_status = Some(CacheStatus::Bypass);
        exchange.cache = Some(plan);
        return None;
    }
    let entry = find_in_memory(exchange, &plan);
    exchange.cache = Some(plan);
    judge(exchange, conf, &entry?)
}

/// Does the upstream get a GET for a HEAD?
fn is_asked_as_get(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    matches!(location.handler, Handler::Gateway(Protocol::Proxy(_)))
        && location.proxy.proxy_cache_convert_head
}

/// The zone the location names.
///
/// # Errors
/// The status the client gets for a name that variables spell and no zone has.
fn zone(exchange: &mut Exchange, conf: &Conf) -> Result<Option<Arc<Zone>>, u16> {
    let Some(name) = conf.cache.zone() else { return Ok(None) };
    let name = name.value(exchange);
    if name.is_empty() || &name[..] == b"off" {
        return Ok(None);
    }
    let name = String::from_utf8_lossy(&name);
    match exchange.conf.zones.get(&*name) {
        Some(zone) => Ok(Some(Arc::clone(zone))),
        None => {
            error::request(exchange, Level::Error, &format!("cache \"{name}\" not found"));
            Err(500)
        }
    }
}

/// A proxy's own key; for others nginx would mix every page, and this keeps them apart.
fn default_key(exchange: &mut Exchange, key: &mut Vec<u8>) {
    let conf = Rc::clone(&exchange.conf);
    let location = conf.location(exchange.location);
    if let Handler::Gateway(Protocol::Proxy(pass)) = &location.handler {
        return pass.default_key(exchange, location, key);
    }
    key.extend_from_slice(b"http");
    key.extend_from_slice(exchange.request.method_text());
    key.extend_from_slice(&exchange.request.host);
    key.extend_from_slice(exchange.request.target());
}

/// The variant of a varying response that the request selects.
fn variant_key(exchange: &Exchange, plan: &Plan, entry: &Entry) -> Option<Key> {
    if entry.head.vary.is_empty() {
        return None;
    }
    let id = variant_id(exchange, &entry.head.vary);
    (id != entry.head.variant).then(|| plan.key.variant(&id))
}

/// Digest of the request fields that `vary` names.
pub fn variant_id(exchange: &Exchange, vary: &[u8]) -> yorozu_cache::VariantId {
    let names: Vec<&[u8]> = yorozu_http::field::list(vary).collect();
    let values: Vec<Vec<u8>> = names
        .iter()
        .map(|name| {
            let mut value = Vec::new();
            let values = exchange.request.values(name);
            crate::exchange::request::append_joined(values, b",", &mut value);
            value
        })
        .collect();
    Key::variant_id(names.into_iter().zip(values.iter().map(Vec::as_slice)))
}

fn find_in_memory(exchange: &Exchange, plan: &Plan) -> Option<Arc<Entry>> {
    let entry = plan.zone.peek(&plan.key)?;
    match variant_key(exchange, plan, &entry) {
        None => Some(entry),
        Some(key) => plan.zone.peek(&key),
    }
}

/// Answers from an entry if that may be done without waiting.
fn judge(exchange: &mut Exchange, conf: &Conf, entry: &Arc<Entry>) -> Option<Outcome> {
    let now = exchange.now();
    if now < entry.head.fresh_until {
        return Some(answer(exchange, entry, CacheStatus::Hit));
    }
    let may_answer =
        conf.cache_use_stale.has(Failures::UPDATING) || now < entry.head.stale_updating_until;
    exchange.cache_status = Some(CacheStatus::Expired);
    let plan = exchange.cache.as_mut().expect("set by lookup");
    plan.stale = Some(Arc::clone(entry));
    if !may_answer || plan.guard.is_some() {
        return None;
    }
    match plan.zone.claim(&plan.key, Instant::now(), conf.cache_lock_age) {
        Claim::Taken(_) => Some(answer(exchange, entry, CacheStatus::Updating)),
        Claim::Maker(guard) => {
            plan.guard = Some(guard);
            if !conf.cache_background_update {
                return None;
            }
            gateway::run::refresh_in_background(exchange);
            Some(answer(exchange, entry, CacheStatus::Stale))
        }
    }
}

/// Looks where waiting may be needed: the disk tier, and other makers. `None`: fetch it.
///
/// # Cancel safety
/// Nothing is held but the claim, which is freed with the exchange.
pub async fn prepare(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    let plan = exchange.cache.as_ref()?;
    if plan.is_bypassed || plan.stale.is_some() {
        return None;
    }
    if let Some(entry) = load(exchange).await {
        return judge(exchange, conf, &entry);
    }
    let plan = exchange.cache.as_mut()?;
    if conf.cache_min_uses > 1 && plan.zone.count_use(&plan.key) < conf.cache_min_uses {
        // As nginx: before it is used often enough there is no status at all.
        plan.may_store = false;
        return None;
    }
    exchange.cache_status = Some(CacheStatus::Miss);
    if is_range_beyond(exchange, conf) {
        exchange.cache.as_mut()?.may_store = false;
        return None;
    }
    if conf.cache_lock { wait_for_maker(exchange, conf).await } else { None }
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
    // From the end: that is beyond whatever comes first.
    yorozu_conf::value::number(digits).is_none_or(|start| max.0 == 0 || start > max.0)
}

/// With `cache_lock`: claims the page, or waits for the one who did.
async fn wait_for_maker(exchange: &mut Exchange, conf: &Conf) -> Option<Outcome> {
    let deadline = tokio::time::Instant::now() + conf.cache_lock_timeout;
    loop {
        let plan = exchange.cache.as_mut()?;
        match plan.zone.claim(&plan.key, Instant::now(), conf.cache_lock_age) {
            Claim::Maker(guard) => {
                plan.guard = Some(guard);
                return None;
            }
            Claim::Taken(fill) => {
                let age = tokio::time::sleep(conf.cache_lock_age);
                tokio::select! {
                    () = fill.ended() => {}
                    () = age => {}
                    () = tokio::time::sleep_until(deadline) => {
                        // As nginx: who waited in vain fetches, and does not store.
                        exchange.cache.as_mut()?.may_store = false;
                        return None;
                    }
                }
            }
        }
        let found = find_in_memory(exchange, exchange.cache.as_ref()?);
        if let Some(entry) = found {
            let outcome = judge(exchange, conf, &entry);
            if outcome.is_some() {
                return outcome;
            }
        }
    }
}

/// Looks into memory again, then into the disk tier, on a thread that may block.
async fn load(exchange: &mut Exchange) -> Option<Arc<Entry>> {
    let plan = exchange.cache.as_ref()?;
    let entry = match plan.zone.peek(&plan.key) {
        Some(entry) => entry,
        None => load_key(exchange, plan.key.clone()).await?,
    };
    let plan = exchange.cache.as_ref()?;
    match variant_key(exchange, plan, &entry) {
        None => Some(entry),
        Some(key) => match plan.zone.peek(&key) {
            Some(entry) => Some(entry),
            None => load_key(exchange, key).await,
        },
    }
}

async fn load_key(exchange: &Exchange, key: Key) -> Option<Arc<Entry>> {
    let zone = Arc::clone(&exchange.cache.as_ref()?.zone);
    if !zone.may_be_on_disk(&key) {
        return None;
    }
    let now = exchange.now();
    let loaded = tokio::task::spawn_blocking(move || zone.load(&key, now)).await.ok()?;
    match loaded {
        Ok(entry) => entry,
        Err(problem) => {
            error::request(exchange, Level::Crit, &problem.to_string());
            None
        }
    }
}

/// A response made from an entry.
pub fn answer(exchange: &mut Exchange, entry: &Arc<Entry>, status: CacheStatus) -> Outcome {
    exchange.cache_status = Some(status);
    entry.touch(exchange.now());
    let head = &entry.head;
    let location = exchange.conf.location(exchange.location);
    if let Some(status) = gateway::answer::intercepted(exchange, location.gateway(), head.status) {
        return Outcome::Status(status);
    }
    let mut response = Response::new(head.status);
    response.content_type = head.content_type.clone();
    response.content_length = Some(head.body_bytes);
    response.last_modified = head.last_modified;
    response.etag = head.etag.clone();
    response.body = match &entry.body {
        EntryBody::Memory(bytes) => Body::Memory(bytes.clone()),
        EntryBody::File(file, offset) => {
            let range = *offset..*offset + head.body_bytes;
            Body::Segments(vec![Segment::File(Arc::clone(file), range)])
        }
    };
    let location = exchange.conf.location(exchange.location);
    let gateway = location.gateway();
    response.stored = Some(Arc::clone(entry));
    response.allow_ranges = gateway.force_ranges
        || response
            .field(b"accept-ranges")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"bytes"));
    response.has_own_date = response.field(b"date").is_some();
    response.has_own_server = response.field(b"server").is_some();
    if let Some(plan) = &exchange.cache {
        let key = variant_key(exchange, plan, entry).unwrap_or_else(|| plan.key.clone());
        let zone = Arc::clone(&plan.zone);
        response.stored_page = Some(StoredPage { zone, key, entry: Arc::clone(entry) });
    }
    Outcome::Respond(Box::new(response))
}

/// A stale entry in place of a failure, if `*_cache_use_stale` or the entry itself allows it.
pub fn answer_stale(exchange: &mut Exchange, conf: &Conf, failure: u32) -> Option<Outcome> {
    let now = exchange.now();
    let entry = exchange.cache.as_ref()?.stale.clone()?;
    let is_allowed = conf.cache_use_stale.has(failure) || now < entry.head.stale_error_until;
    is_allowed.then(|| answer(exchange, &entry, CacheStatus::Stale))
}

/// The upstream says the expired entry is still good.
pub fn revalidated(exchange: &mut Exchange, fresh_until: Option<i64>) -> Option<Outcome> {
    let now = exchange.now();
    let plan = exchange.cache.as_mut()?;
    let entry = plan.stale.clone()?;
    let mut head = entry.head.clone();
    head.fresh_until = fresh_until.unwrap_or(head.fresh_until);
    let renewed = Arc::new(Zone::renewed(&entry, head, now));
    if fresh_until.is_some() {
        let zone = Arc::clone(&plan.zone);
        let context = error::Context::of(exchange);
        collector::store(zone, Arc::clone(&renewed), now, context);
    }
    Some(answer(exchange, &renewed, CacheStatus::Revalidated))
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
    let stale = exchange.cache.as_ref().and_then(|plan| plan.stale.as_ref());
    match stale.filter(|_| conf.cache_revalidate) {
        None => (None, Bytes::new()),
        Some(entry) => {
            (entry.head.last_modified.map(yorozu_http::date::format), entry.head.etag.clone())
        }
    }
}
