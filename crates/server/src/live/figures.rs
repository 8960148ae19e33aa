//! The console's figures at a moment: counters, of which the viewer makes rates.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use yorozu_cache::{Evicted, Zone};
use yorozu_gateway::cache::counters::{self as caches, Sums};
use yorozu_gateway::upstream::counters as upstreams;
use yorozu_kernel::base::counters;
use yorozu_kernel::base::turn::unix_millis_of;
use yorozu_kernel::config::servers::ServerConf;
use yorozu_kernel::exchange::cached::CacheStatus;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::live::reason::{self, Reason};
use yorozu_kernel::live::{costs, times};
use yorozu_modules::metrics;

/// Pages that are shown; chosen.
const PAGES: usize = 20;
/// Pages of a site's plugin, which shows the last of them but for those that its owner need not look at; chosen.
const PAGES_OF_SITE: usize = 200;
/// Zones and groups that are shown; chosen: a page with more is of no use.
const NAMES_MAX: usize = 100;
/// Viewers share figures that are not older than this.
const SHARED: Duration = Duration::from_millis(900);

/// The figures as text, made once for all viewers of a second.
pub(super) fn shared(config: &Config) -> Arc<str> {
    static LAST: Mutex<Option<(Instant, Arc<str>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some((made, text)) if made.elapsed() < SHARED => Arc::clone(text),
        _ => {
            let text: Arc<str> = of(config).to_string().into();
            *last = Some((Instant::now(), Arc::clone(&text)));
            text
        }
    }
}

/// The figures.
pub(crate) fn of(config: &Config) -> Value {
    let zones: Vec<_> =
        config.zones.iter().map(|(name, zone)| (name, zone, caches::sums(name))).collect();
    let sums = || zones.iter().map(|(.., sums)| sums);
    let answers = by_status(sums().map(|sums| &sums.answers));
    let saved_ms: u64 = sums().map(|sums| sums.saved_ms).sum();
    let unstorable: u64 = sums().map(|sums| sums.unstorable).sum();
    let shown = zones.iter().take(NAMES_MAX);
    let caches: Map<_, _> =
        shown.map(|(name, zone, sums)| ((*name).clone(), of_zone(zone, sums))).collect();
    let reasons = Reason::all().zip(reason::sums()).filter(|(_, count)| *count > 0);
    let reasons: Map<_, _> =
        reasons.map(|(reason, count)| (reason.number().to_string(), json!(count))).collect();
    let mut steps = times::sums();
    let end = steps.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    steps.truncate(end);
    let connections = counters::seen();
    json!({
        "now": unix_millis_of(SystemTime::now()),
        "begun": unix_millis_of(counters::begun()),
        "requests": metrics::total(),
        "answers": answers,
        "saved_ms": saved_ms,
        "unstorable": unstorable,
        "reasons": reasons,
        "times": steps,
        "pages": pages(),
        "caches": caches,
        "upstreams": some(upstreams::groups(config)),
        "connections": { "active": connections.active, "waiting": connections.waiting },
    })
}

/// The counts of which the history is kept, in the order of [`columns`].
pub(super) fn totals(config: &Config) -> Vec<u64> {
    let sums: Vec<_> = config.zones.keys().map(|name| caches::sums(name)).collect();
    let of = |count: fn(&Sums) -> u64| sums.iter().map(count).sum();
    let mut all = vec![metrics::total(), of(|sums| sums.saved_ms), of(|sums| sums.unstorable)];
    let statuses = 0..CacheStatus::ALL.len();
    all.extend(statuses.map(|at| sums.iter().map(|sums| sums.answers[at]).sum::<u64>()));
    all.extend(reason::sums());
    all
}

/// What each of the [`totals`] counts: the name that [`of`] gives it, or where it is one of several, the names of all and its own.
pub(super) fn columns() -> Vec<Vec<String>> {
    let own = ["requests", "saved_ms", "unstorable"].map(|name| vec![name.to_owned()]);
    let answers = CacheStatus::ALL.iter().map(|status| status.name().to_owned());
    let reasons = Reason::all().map(|reason| reason.number().to_string());
    let of = |group: &str, name| vec![group.to_owned(), name];
    let answers = answers.map(|name| of("answers", name));
    let reasons = reasons.map(|name| of("reasons", name));
    own.into_iter().chain(answers).chain(reasons).collect()
}

fn some(value: Value) -> Value {
    match value {
        Value::Object(map) => map.into_iter().take(NAMES_MAX).collect::<Map<_, _>>().into(),
        other => other,
    }
}

/// What a site's plugin shows: what caches have answered at its server, and the pages of its host that were made in the last
/// minutes.
pub(crate) fn of_site(server: &ServerConf, host: &[u8]) -> Value {
    let sums = caches::sums_of_server(server.name());
    let answers = by_status(std::iter::once(&sums.answers));
    let misses = costs::latest(PAGES_OF_SITE, host).into_iter().map(|(_, path, cost)| {
        json!({
            "path": path, "requests": cost.requests, "micros": cost.micros,
            "reason": cost.reason.name(), "header": cost.header, "last": cost.last,
        })
    });
    json!({
        "now": unix_millis_of(SystemTime::now()),
        "begun": unix_millis_of(counters::begun()),
        "answers": answers,
        "saved_ms": sums.saved_ms,
        "unstorable": sums.unstorable,
        "misses": misses.collect::<Vec<_>>(),
    })
}

fn pages() -> Vec<Value> {
    let all = costs::dearest(PAGES).into_iter().map(|(host, path, cost)| {
        json!({
            "host": host, "path": path, "requests": cost.requests,
            "micros": cost.micros, "reason": cost.reason.number(),
        })
    });
    all.collect()
}

/// What all of them have answered, by status.
fn by_status<'a>(
    all: impl Iterator<Item = &'a [u64; CacheStatus::ALL.len()]>,
) -> BTreeMap<&'static str, u64> {
    let mut answers = BTreeMap::new();
    for counts in all {
        for (status, count) in CacheStatus::ALL.iter().zip(counts) {
            *answers.entry(status.name()).or_default() += count;
        }
    }
    answers
}

fn of_zone(zone: &Zone, sums: &Sums) -> Value {
    let answers = CacheStatus::ALL.iter().zip(sums.answers);
    let answers: Map<_, _> =
        answers.map(|(status, count)| (status.name().to_owned(), json!(count))).collect();
    let (usage, options) = (zone.usage(), zone.options());
    let evicted = Evicted::ALL.map(Evicted::name).into_iter().zip(zone.figures().evicted());
    let evicted = evicted.filter(|(_, count)| *count > 0);
    let evicted: Map<_, _> = evicted.map(|(name, n)| (name.to_owned(), json!(n))).collect();
    json!({
        "answers": answers,
        "memory": { "pages": usage.memory_entries, "bytes": usage.memory_bytes, "max": usage.memory_bound },
        "disk": { "pages": usage.disk_files, "bytes": usage.disk_bytes, "max": options.disk.max_size },
        "evicted": evicted,
        "purged": zone.figures().purged(),
    })
}
