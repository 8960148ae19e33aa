//! Page-cache policy: whether a stored response may answer, and whether a fetched one may be stored.
//!
//! Way through: [`lookup`] (memory) -> [`prepare`] (disk, other makers) -> the gateway fetches ->
//! [`entry`], [`freshness`] -> [`Collector`] -> stored. What a stored response can do for a request
//! is decided in [`decision`]. The bytes belong to `yorozu-cache`; this module opens no file and asks no upstream:
//! it returns what the caller shall do ([`Found`]).
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
pub mod cleaned;
pub mod collector;
pub mod counters;
pub mod decision;
pub mod directives;
mod dry_run;
pub mod early;
pub mod eligibility;
pub mod entry;
pub mod freshness;
pub mod header_rules;
mod headers;
pub mod invalidate;
pub mod kept;
pub mod key;
pub mod learned;
mod left;
mod loops;
pub mod memory;
pub mod parts;
mod permission;
pub mod plan;
pub mod purge;
pub mod report;
pub mod secondary;
mod seen;
pub mod sent;
pub mod settings;
pub mod shared;
pub mod storing;
pub mod url;
mod wait;

pub use answer::{answer, answer_stale, revalidated};
pub use collector::{Collecting, Collector};
pub use headers::{is_of_page, is_of_scheme, is_unknown_header};
pub use plan::Plan;
pub use settings::Conf;
pub use wait::is_due;
use yorozu_http::field;
use yorozu_kernel::exchange::cached::{CacheStatus, Forward, NotStored};

use crate::protocol;
use answer::Failure;
use bytes::Bytes;
use decision::{AskedOfPart, Claiming, Decision, Missing, Renewal, Step};
use secondary::Secondary;
use std::sync::Arc;
use std::time::Instant;
use storing::{Claimed, claim};
use yorozu_cache::{Claim, Entry, FillGuard, Key, on_disk};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::exchange::variables::{Row, Variable, put};
use yorozu_kernel::live;
use yorozu_kernel::logging::error::{self, Level};

/// The module: what the caches of all gateways have in common.
pub const MODULE: Module = Module::new("cache", Vec::new)
    .computing(VARIABLES)
    .showing(counters::report, counters::SECTIONS);

/// Its variables.
const VARIABLES: &[Row] = &[
    ("cache_detail", Variable::Builtin(report::append_detail)),
    ("cache_saved", Variable::Builtin(counters::append_saved)),
    ("cache_status", Variable::Builtin(report::append_status)),
    ("upstream_cache_key", Variable::Builtin(report::append_key)),
    (
        "upstream_cache_status",
        Variable::Builtin(|ex, out| {
            ex.cache_status.is_some_and(|status| put(out, status.name().as_bytes()))
        }),
    ),
];

/// Whether the request goes by way of the cache, whatever becomes of the answer.
pub fn is_asked(exchange: &Exchange) -> bool {
    exchange.pass.of::<Plan>().is_some()
}

/// Whether the upstream's answer may be stored.
pub fn is_cacheable(exchange: &Exchange) -> bool {
    exchange.pass.of::<Plan>().is_some_and(|plan| plan.not_stored.is_none())
}

/// What the cache has for a request.
pub struct Found {
    pub outcome: Outcome,
    /// A request that shall renew the page in the background.
    pub refresh: Option<Box<Exchange>>,
}

impl From<Outcome> for Found {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, refresh: None }
    }
}

/// Why the cache is not asked for a page.
pub enum NotAsked {
    /// The method is none of `*_cache_methods`, or the request opens a WebSocket.
    Request(Forward),
    /// The zone's name spells that there is none.
    Off,
    /// The status the client gets.
    Status(u16),
}

/// What the request asks the cache for.
///
/// # Errors
/// It asks for nothing.
pub fn ask(exchange: &mut Exchange, conf: &Conf) -> Result<Plan, NotAsked> {
    if !conf.cache_methods.admits(exchange.request.method_text()) {
        return Err(NotAsked::Request(Forward::Method));
    }
    if sent::opens_websocket(exchange) {
        return Err(NotAsked::Request(Forward::Bypass));
    }
    let zone = key::zone(exchange, conf).map_err(NotAsked::Status)?.ok_or(NotAsked::Off)?;
    let has_method = conf.cache_key.as_ref().is_some_and(|key| key.has_request_method());
    let is_head_of_get =
        exchange.request.method == Method::Head && !has_method && !is_asked_as_get(exchange);
    let page = key::primary(exchange, conf);
    let mut secondary = Secondary::of(exchange, conf);
    let is_for_all = |entry: Arc<Entry>| secondary::is_for_all_origins(&entry.head.fields);
    if secondary.is_of_origin && zone.peek(&page).is_some_and(is_for_all) {
        secondary = Secondary::default();
    }
    let has_nul = page.as_bytes().contains(&0);
    let mut plan = Plan::new(zone, secondary.address(page));
    plan.secondary = secondary;
    plan.not_stored = is_head_of_get.then_some(NotStored::Head);
    plan.is_bypassed = conf.cache_bypass.0.iter().any(|value| value.is_true(exchange));
    // Ranges and conditions of who gets no stored page, and leaves none, are the upstream's to answer.
    let is_apart = plan.is_bypassed && eligibility::forbids_storing(exchange, conf);
    plan.wants_shared = conf.wants_shared(exchange);
    if plan.wants_shared || is_apart {
        plan.not_stored = Some(NotStored::Forbidden);
    }
    if !exchange.left_pages.is_empty() && left::is_left(exchange, conf, &plan) {
        plan.is_bypassed = true;
        plan.not_stored = Some(NotStored::Redirected);
    }
    // `$request_body` is empty then: the key would be that of a request without content. Or it has a NUL, which parts a page's key
    // from what its variant is known by.
    let is_in_file =
        !exchange.request.method.is_get_or_head() && exchange.body.file_path().is_some();
    if is_in_file || exchange.request.has_content() && has_nul {
        plan.is_bypassed = true;
        plan.not_stored = Some(NotStored::Body);
    }
    if permission::is_of_client(exchange) {
        plan.is_bypassed = true;
        plan.not_stored = Some(NotStored::Permission);
    }
    if let Some(cookie) = learned::of_visitor(exchange, &plan.zone) {
        exchange.cache_report.header = Some(cookie);
        plan.is_bypassed = true;
        plan.not_stored = Some(NotStored::Cookie);
    }
    Ok(plan)
}

/// Whether the request's content has to be read before the cache can be asked: the key, or what decides beside it,
/// may name it.
pub fn waits_for_content(exchange: &Exchange, conf: &Conf) -> bool {
    exchange.body.is_to_come()
        && may_answer(exchange, conf)
        && conf.cache_methods.admits(exchange.request.method_text())
}

/// Whether the cache has a page for the request, or may store one. Content that was sent on and not kept may have
/// decided which.
pub fn may_answer(exchange: &Exchange, conf: &Conf) -> bool {
    let is_known = exchange.request.method.is_get_or_head() || !exchange.body.is_lost();
    conf.zone().is_some() && !exchange.is_question() && is_known && !exchange.doubt.is_there()
}

/// Looks into the memory tier. `None`: something has to be waited for.
pub fn lookup(exchange: &mut Exchange, conf: &Conf) -> Option<Found> {
    let mut plan = match ask(exchange, conf) {
        Ok(plan) => plan,
        Err(NotAsked::Request(forward)) => {
            exchange.cache_report.forward = Some(forward);
            if live::is_counted(&exchange.conf) {
                let zone = key::zone(exchange, conf).ok().flatten();
                exchange.cache_report.tally = zone.and_then(|zone| counters::of(&zone));
            }
            return None;
        }
        Err(NotAsked::Off) => return None,
        Err(NotAsked::Status(status)) => return Some(Outcome::Status(status).into()),
    };
    if exchange.doubt.is_open() {
        // Which page it is, or whether it is this client's.
        return Some(Outcome::Status(500).into());
    }
    if live::is_counted(&exchange.conf) {
        exchange.cache_report.tally = counters::of(&plan.zone);
    }
    if plan.is_bypassed {
        exchange.pass.put(plan);
        bypass(exchange);
        return None;
    }
    let entry = find_in_memory(exchange, conf, &mut plan);
    exchange.pass.put(plan);
    judge(exchange, conf, &entry?)
}

/// Nothing that is stored, or will be, answers the request.
fn bypass(exchange: &mut Exchange) {
    exchange.cache_status = Some(CacheStatus::Bypass);
    exchange.cache_report.forward = Some(Forward::Bypass);
    exchange.pass.of_mut::<Plan>().expect("put by lookup").is_bypassed = true;
}

/// Whether the upstream gets a GET for a HEAD.
fn is_asked_as_get(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    protocol::of(location).is_some_and(|protocol| protocol.asks_head_as_get(location))
}

fn find_in_memory(exchange: &mut Exchange, conf: &Conf, plan: &mut Plan) -> Option<Arc<Entry>> {
    let entry = plan.zone.peek(&plan.key)?;
    match key::variant(exchange, conf, &plan.key, &entry) {
        None => Some(entry),
        Some(key) => {
            let found = plan.zone.peek(&key).filter(|found| is_of_group(found, &entry));
            plan.first = Some(entry);
            found
        }
    }
}

/// Whether it was stored as a variant of `first`, and not of an older one that is gone.
fn is_of_group(entry: &Entry, first: &Entry) -> bool {
    entry.head.variant_group == first.head.variant_group
}

/// What a stored response is to the request that asked for it.
pub fn decide(exchange: &Exchange, conf: &Conf, entry: &Entry) -> Decision {
    let (head, now) = (&entry.head, exchange.now_millis());
    if head.part.is_none() {
        return Decision::of_page(head, conf, now);
    }
    let share = exchange.pass.of::<Plan>().map_or(0, |plan| plan.zone.share());
    let asked = AskedOfPart {
        covered: answer::covered(exchange, entry),
        wants_all: exchange.asked_range().is_none(),
        is_short: head.body_bytes <= share,
    };
    Decision::of_part(head, conf, now, asked)
}

/// Answers from an entry if that may be done without waiting.
fn judge(exchange: &mut Exchange, conf: &Conf, entry: &Arc<Entry>) -> Option<Found> {
    if exchange.pass.of::<Plan>()?.passes_over(&entry.head) {
        bypass(exchange);
        return None;
    }
    let decision = decide(exchange, conf, entry);
    if conf.cache_dry_run {
        dry_run::note(exchange, entry, &decision);
        return None;
    }
    match decision {
        Decision::Hit => {
            let is_due = conf.cache_early_refresh.is_due(entry, exchange.now_millis());
            let is_due = is_due && Failure::noted(exchange).is_none();
            let refresh = if is_due { refresh_early(exchange, conf, entry) } else { None };
            Some(Found { outcome: answer(exchange, conf, entry, CacheStatus::Hit), refresh })
        }
        Decision::Part(range) => Some(answer::answer_part(exchange, conf, entry, &range).into()),
        Decision::Beyond { completes } => {
            exchange.cache_report.forward = Some(Forward::Partial);
            if completes {
                exchange.pass.of_mut::<Plan>()?.start = Some(Arc::clone(entry));
            }
            None
        }
        Decision::Expired(_) => {
            expire(exchange, entry);
            let failure = Failure::noted(exchange)?;
            answer_stale(exchange, conf, failure).map(Found::from)
        }
        Decision::Renewed(renewal) => {
            expire(exchange, entry);
            match Failure::noted(exchange) {
                Some(_) => Some(answer(exchange, conf, entry, CacheStatus::Stale).into()),
                None => renew(exchange, conf, entry, renewal),
            }
        }
    }
}

/// Notes that the stored page is expired: it cannot answer by itself.
fn expire(exchange: &mut Exchange, entry: &Arc<Entry>) {
    exchange.cache_status = Some(CacheStatus::Expired);
    exchange.cache_report.forward = Some(Forward::Stale);
    exchange.pass.of_mut::<Plan>().expect("set by lookup").stale = Some(Arc::clone(entry));
}

/// Has an expired page renewed that goes on answering; `None`: by this request.
fn renew(
    exchange: &mut Exchange,
    conf: &Conf,
    entry: &Arc<Entry>,
    renewal: Renewal,
) -> Option<Found> {
    let plan = exchange.pass.of::<Plan>()?;
    if plan.guard.is_some() {
        return None;
    }
    let key = plan.key.clone();
    let (claiming, guard) = match claim(exchange, conf, &key)? {
        Claimed::Maker(guard) => (Claiming::Maker, Some(guard)),
        Claimed::Taken(_) => (Claiming::Taken, None),
        Claimed::Barred => (Claiming::Barred, None),
    };
    let (refresh, status) = match renewal.step(claiming) {
        Step::Updating => (None, CacheStatus::Updating),
        Step::Refreshing => {
            let shadow = Box::new(exchange.request_of_its_own());
            (Some(as_refresh(exchange, shadow, Some(guard?))), CacheStatus::Stale)
        }
        Step::RefreshingClean => match make_without_strangers(exchange, conf, &key) {
            Maker::None => return None,
            maker => (maker.asked(), CacheStatus::Stale),
        },
        Step::Making => {
            exchange.pass.of_mut::<Plan>()?.guard = guard;
            return None;
        }
        Step::Alone => return None,
    };
    Some(Found { outcome: answer(exchange, conf, entry, status), refresh })
}

/// `*_cache_early_refresh`: has one request renew a page that is still fresh.
fn refresh_early(
    exchange: &mut Exchange,
    conf: &Conf,
    entry: &Arc<Entry>,
) -> Option<Box<Exchange>> {
    let plan = exchange.pass.of_mut::<Plan>().expect("set by lookup");
    if plan.guard.is_some() {
        return None;
    }
    let key = plan.key.clone();
    plan.stale = Some(Arc::clone(entry));
    let refresh = match claim(exchange, conf, &key) {
        Some(Claimed::Maker(guard)) => {
            let shadow = exchange.request_of_its_own();
            Some(as_refresh(exchange, Box::new(shadow), Some(guard)))
        }
        Some(Claimed::Barred) => make_without_strangers(exchange, conf, &key).asked(),
        Some(Claimed::Taken(_)) | None => None,
    };
    exchange.pass.of_mut::<Plan>().expect("set by lookup").stale = None;
    refresh
}

/// Has `shadow` renew the page.
fn as_refresh(
    exchange: &Exchange,
    mut shadow: Box<Exchange>,
    guard: Option<FillGuard>,
) -> Box<Exchange> {
    if let Some(plan) = exchange.pass.of::<Plan>() {
        shadow.pass.put(plan.for_refresh(guard));
        shadow.cache_report.tally = exchange.cache_report.tally;
        shadow.cache_report.forward = exchange.cache_report.forward.or(Some(Forward::Stale));
    }
    // An answer to a GET with content is not stored: what is renewed there has none.
    if !exchange.request.method.is_get_or_head() {
        shadow.body = exchange.body.copy();
        shadow.request.content_length = shadow.body.known_length();
    }
    shadow
}

/// Which other request makes a page in place of the one under way.
enum Maker {
    /// This one, from here on.
    Asked(Box<Exchange>),
    /// One that already does.
    UnderWay,
    /// None may.
    None,
}

impl Maker {
    fn asked(self) -> Option<Box<Exchange>> {
        match self {
            Self::Asked(shadow) => Some(shadow),
            Self::UnderWay | Self::None => None,
        }
    }
}

/// Has a request make the page that differs from the one under way in all that stands against storing its response.
fn make_without_strangers(exchange: &mut Exchange, conf: &Conf, key: &Key) -> Maker {
    let vary = storing::known_vary(exchange);
    let shadow = eligibility::without_strangers(exchange, conf, &vary);
    make_by(exchange, conf, key, shadow)
}

/// Has `shadow` make the page of a key, unless another request does.
fn make_by(
    exchange: &mut Exchange,
    conf: &Conf,
    key: &Key,
    shadow: Option<Box<Exchange>>,
) -> Maker {
    let Some((shadow, plan)) = shadow.zip(exchange.pass.of::<Plan>()) else { return Maker::None };
    match plan.zone.claim(key, Instant::now(), conf.cache_lock_age) {
        Claim::Maker(guard) => Maker::Asked(as_refresh(exchange, shadow, Some(guard))),
        Claim::Taken(_) => Maker::UnderWay,
    }
}

/// What looking where waiting may be needed came to.
pub enum Prepared {
    Found(Found),
    /// This request makes the page in its place; it is to be looked for once more.
    MadeBy(Box<Exchange>),
    /// The upstream is to be asked.
    Nothing,
}

impl From<Option<Found>> for Prepared {
    fn from(found: Option<Found>) -> Self {
        found.map_or(Self::Nothing, Self::Found)
    }
}

/// Looks where waiting may be needed: the disk tier, and other makers.
///
/// # Cancel safety
/// Nothing is held but the claim, which is freed with the exchange.
pub async fn prepare(exchange: &mut Exchange, conf: &Conf) -> Prepared {
    let is_asked = |plan: &Plan| !plan.is_bypassed && plan.stale.is_none();
    if !exchange.pass.of::<Plan>().is_some_and(is_asked) {
        return Prepared::Nothing;
    }
    if let Some(entry) = load(exchange, conf).await {
        let found = judge(exchange, conf, &entry);
        let Some(plan) = exchange.pass.of_mut::<Plan>() else { return Prepared::Nothing };
        if found.is_some() {
            // Nothing is built on it.
            plan.loaded = None;
        }
        if found.is_some() || plan.stale.is_some() || plan.rehearsed.is_some() {
            return found.into();
        }
    }
    if exchange.pass.of::<Plan>().is_some_and(|plan| plan.wants_shared) {
        // Whether the page is shared is not known, and this request does not make it.
        bypass(exchange);
        return Prepared::Nothing;
    }
    let is_partial = exchange.cache_report.forward == Some(Forward::Partial);
    let is_range_beyond = is_range_beyond(exchange, conf);
    let Some(plan) = exchange.pass.of_mut::<Plan>() else { return Prepared::Nothing };
    let is_counted = conf.cache_min_uses > 1 || plan.secondary.is_chosen;
    if is_counted && !plan.had_other_maker {
        plan.uses = plan.zone.count_use(&plan.key);
    }
    let missing = Missing::of(conf, plan.uses, is_partial, is_range_beyond);
    plan.not_stored = match missing {
        Missing::TooFewUses => Some(NotStored::MinUses),
        Missing::RangeBeyond => Some(NotStored::RangeOffset),
        Missing::InLine | Missing::Beside => plan.not_stored,
    };
    let is_known = plan.first.is_some();
    exchange.cache_status = Some(CacheStatus::Miss);
    if missing == Missing::TooFewUses {
        exchange.cache_report.forward = Some(Forward::UriMiss);
        return Prepared::Nothing;
    }
    exchange.cache_report.forward = Some(match is_partial {
        true => Forward::Partial,
        false if is_known => Forward::VaryMiss,
        false => Forward::UriMiss,
    });
    match missing {
        Missing::InLine => wait::for_maker(exchange, conf).await,
        _ => Prepared::Nothing,
    }
}

/// `cache_max_range_offset`: whether the range asked for starts so far in the page that the client should not
/// wait for what comes before it.
pub fn is_range_beyond(exchange: &Exchange, conf: &Conf) -> bool {
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
    // From the end: that is always beyond what comes first.
    yorozu_conf::value::number(digits).is_none_or(|start| max.0 == 0 || start > max.0)
}

/// Looks into memory again, then into the disk tier, on a thread that may block.
pub async fn load(exchange: &mut Exchange, conf: &Conf) -> Option<Arc<Entry>> {
    let plan = exchange.pass.of::<Plan>()?;
    let entry = match plan.zone.peek(&plan.key) {
        Some(entry) => entry,
        None => load_key(exchange, plan.key.clone()).await?,
    };
    let page = exchange.pass.of::<Plan>()?.key.clone();
    let Some(key) = key::variant(exchange, conf, &page, &entry) else { return Some(entry) };
    let found = match exchange.pass.of::<Plan>()?.zone.peek(&key) {
        Some(entry) => Some(entry),
        None => load_key(exchange, key).await,
    };
    let found = found.filter(|found| is_of_group(found, &entry));
    exchange.pass.of_mut::<Plan>()?.first = Some(entry);
    found
}

async fn load_key(exchange: &mut Exchange, key: Key) -> Option<Arc<Entry>> {
    let zone = Arc::clone(&exchange.pass.of::<Plan>()?.zone);
    if !zone.may_be_on_disk(&key) {
        return None;
    }
    let now = exchange.now();
    let loaded = on_disk(&zone, move |zone| zone.load(&key, now)).await?;
    match loaded {
        Ok(found) => {
            let (entry, making) = found?;
            let plan = exchange.pass.of_mut::<Plan>()?;
            plan.loaded = Some((Arc::clone(&entry), Arc::new(making)));
            Some(entry)
        }
        Err(problem) => {
            error::request(exchange, Level::Crit, &problem.to_string());
            None
        }
    }
}

/// Whether the client's field of this name, as applications may read it, is meant for the stored page and not for the
/// upstream.
pub fn is_for_stored_page(name: &[u8]) -> bool {
    const CONDITIONS: [&[u8]; 6] = [
        b"if-modified-since",
        b"if-unmodified-since",
        b"if-none-match",
        b"if-match",
        b"range",
        b"if-range",
    ];
    CONDITIONS.iter().any(|condition| field::is_alike(name, condition))
}

/// Validators of the expired entry, for a conditional request to the upstream.
pub fn validators(exchange: &Exchange, conf: &Conf) -> (Option<String>, Bytes) {
    let plan = exchange.pass.of::<Plan>().filter(|plan| !plan.is_base_lost);
    let stale = plan.and_then(|plan| plan.stale.as_ref());
    // As nginx: other statuses are fetched again.
    match stale
        .filter(|entry| conf.cache_revalidate && !conf.cache_dry_run && entry.head.status == 200)
    {
        None => (None, Bytes::new()),
        Some(entry) => {
            (entry.head.last_modified.map(yorozu_http::date::format), entry.head.etag.clone())
        }
    }
}
