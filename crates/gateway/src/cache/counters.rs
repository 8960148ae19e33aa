//! What is counted of requests to the cache, by zone and reason; a zone keeps its counters.

use super::kept;
use super::seen::{self, Effect};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use yorozu_cache::{Evicted, PURGE_KINDS, Zone};
use yorozu_kernel::base::report::{Report, Value as Figure};
use yorozu_kernel::base::tally::{Cells, Named, Tally};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::{CacheStatus, Forward, NotStored, Report as Cached};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::exchange::figures::Section;
use yorozu_kernel::live::{self, reason::Reason};

/// By status: answers, their bytes, and of answers that were stored the same.
const ANSWERS: usize = 0;
const BYTES: usize = ANSWERS + CacheStatus::ALL.len();
const WRITTEN: usize = BYTES + CacheStatus::ALL.len();
const BYTES_WRITTEN: usize = WRITTEN + CacheStatus::ALL.len();
/// By reason.
const FORWARDED: usize = BYTES_WRITTEN + CacheStatus::ALL.len();
const NOT_STORED: usize = FORWARDED + Forward::ALL.len();
/// Answers that were stored, or renewed.
const STORED: usize = NOT_STORED + NotStored::ALL.len();
/// Requests that waited for another's answer and got it.
const COLLAPSED: usize = STORED + 1;
/// Milliseconds that it took to make what was answered from the cache.
const SAVED: usize = COLLAPSED + 1;
/// Renewals in the background.
const REFRESHES: usize = SAVED + 1;
/// Requests that no rule passed by, and whose answers must not be stored.
const UNSTORABLE: usize = REFRESHES + 1;
const CELLS: usize = UNSTORABLE + 1;

/// By the zone's name: a reload that makes a new zone of it counts on.
static ZONES: Named = Named::new(CELLS);

/// What caches answered, by the first name of the server: by status, and the milliseconds that saved.
static SERVERS: Named = Named::new(SERVERS_CELLS);
const SERVERS_SAVED: usize = CacheStatus::ALL.len();
const SERVERS_UNSTORABLE: usize = SERVERS_SAVED + 1;
const SERVERS_CELLS: usize = SERVERS_UNSTORABLE + 1;

/// The counters of the zone of this name.
pub fn named(name: &str) -> &'static Tally {
    ZONES.of(name)
}

/// The counters of a zone.
pub fn of(zone: &Zone) -> Option<&'static Tally> {
    kept::of(zone).map(|kept| kept.tally)
}

/// Counts a request that is over.
pub fn count(exchange: &Exchange) {
    let report = &exchange.cache_report;
    let Some(tally) = report.tally else { return };
    let sent = exchange.bytes_sent;
    let is_unstorable = !report.is_hit
        && exchange.cache_status.is_some()
        && Reason::of(exchange).is_some_and(Reason::is_unstorable);
    tally.with(|cells| {
        if let Some(status) = exchange.cache_status {
            let status = status as usize;
            cells.add(ANSWERS + status, 1);
            cells.add(BYTES + status, sent);
            if report.is_stored {
                cells.add(WRITTEN + status, 1);
                cells.add(BYTES_WRITTEN + status, sent);
            }
        }
        if report.is_hit {
            cells.add(SAVED, report.saved.into());
        } else {
            outcome(report, cells);
            if is_unstorable {
                cells.add(UNSTORABLE, 1);
            }
        }
        if report.is_collapsed {
            cells.add(COLLAPSED, 1);
        }
    });
    let server = exchange.conf.server(exchange.server);
    server.cache_tally.get_or_init(|| SERVERS.of(server.name())).with(|cells| {
        if let Some(status) = exchange.cache_status {
            cells.add(status as usize, 1);
        }
        if report.is_hit {
            cells.add(SERVERS_SAVED, report.saved.into());
        }
        if is_unstorable {
            cells.add(SERVERS_UNSTORABLE, 1);
        }
    });
}

/// Counts a renewal that no client waited for.
pub fn count_refresh(exchange: &Exchange) {
    let report = &exchange.cache_report;
    if let Some(tally) = report.tally {
        live::count_refresh(exchange);
        tally.with(|cells| {
            cells.add(REFRESHES, 1);
            outcome(report, cells);
        });
    }
}

/// Why the upstream was asked, and what was done with its answer.
fn outcome(report: &Cached, cells: &Cells) {
    if let Some(why) = report.forward {
        cells.add(FORWARDED + why as usize, 1);
    }
    if let Some(why) = report.not_stored {
        cells.add(NOT_STORED + why as usize, 1);
    } else if report.is_stored {
        cells.add(STORED, 1);
    }
}

/// What a zone, or all of a server, have answered.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// Answers, in the order of [`CacheStatus::ALL`].
    pub answers: [u64; CacheStatus::ALL.len()],
    /// Milliseconds that it took to make what was answered from the cache.
    pub saved_ms: u64,
    /// Of the answers, those that no rule passed by and that must not be stored.
    pub unstorable: u64,
}

/// What the zone of this name has answered.
pub fn sums(name: &str) -> Sums {
    let sums = ZONES.of(name).sums();
    let answers = CacheStatus::ALL.map(|status| sums[ANSWERS + status as usize]);
    Sums { answers, saved_ms: sums[SAVED], unstorable: sums[UNSTORABLE] }
}

/// What caches have answered at the servers of this name.
pub fn sums_of_server(name: &str) -> Sums {
    let sums = SERVERS.of(name).sums();
    let answers = CacheStatus::ALL.map(|status| sums[status as usize]);
    Sums { answers, saved_ms: sums[SERVERS_SAVED], unstorable: sums[SERVERS_UNSTORABLE] }
}

/// What `api` shows.
pub const SECTIONS: &[Section] =
    &[Section::by_name("http/caches", figures, ("cache not found", "CacheNotFound"))];

fn figures(config: &Config) -> Value {
    let zones = config.zones.iter().map(|(name, zone)| (name.clone(), of_zone(name, zone)));
    zones.collect::<Map<_, _>>().into()
}

fn of_zone(name: &str, zone: &Zone) -> Value {
    let sums = ZONES.of(name).sums();
    let usage = zone.usage();
    let mut out = Map::new();
    out.insert("size".to_owned(), json!(usage.disk_bytes));
    if let Some(max) = zone.options().disk.max_size {
        out.insert("max_size".to_owned(), json!(max));
    }
    out.insert("cold".to_owned(), json!(!zone.is_scanned()));
    for status in CacheStatus::ALL {
        let at = status as usize;
        let mut of_status = json!({ "responses": sums[ANSWERS + at], "bytes": sums[BYTES + at] });
        // As nginx: these may be written.
        if matches!(status, CacheStatus::Miss | CacheStatus::Expired | CacheStatus::Bypass) {
            of_status["responses_written"] = json!(sums[WRITTEN + at]);
            of_status["bytes_written"] = json!(sums[BYTES_WRITTEN + at]);
        }
        out.insert(status.name().to_ascii_lowercase(), of_status);
    }
    let by = |names: &[&str], from: usize| {
        let pairs = names.iter().zip(&sums[from..]);
        pairs.map(|(name, count)| ((*name).to_owned(), json!(count))).collect::<Map<_, _>>()
    };
    let evicted = Evicted::ALL.map(Evicted::name).into_iter().zip(zone.figures().evicted());
    let evicted: Map<_, _> = evicted.map(|(name, n)| (name.to_owned(), json!(n))).collect();
    // Not in nginx.
    out.insert(
        "yorozu".to_owned(),
        json!({
            "forwarded": by(&Forward::ALL.map(Forward::name), FORWARDED),
            "not_stored": by(&NotStored::ALL.map(NotStored::name), NOT_STORED),
            "stored": sums[STORED],
            "collapsed": sums[COLLAPSED],
            "refreshes": sums[REFRESHES],
            "unstorable": sums[UNSTORABLE],
            "saved_ms": sums[SAVED],
            "evicted": evicted,
            "purged": zone.figures().purged(),
            "memory": { "pages": usage.memory_entries, "bytes": usage.memory_bytes },
            "disk": { "pages": usage.disk_files, "bytes": usage.disk_bytes },
        }),
    );
    out.into()
}

/// Adds the metrics of the configuration's zones.
pub fn report(config: &Config, report: &mut Report) {
    let zones =
        config.zones.iter().map(|(name, zone)| (name.as_str(), ZONES.of(name).sums(), zone));
    let zones: Vec<_> = zones.collect();
    let lower = CacheStatus::ALL.map(|status| status.name().to_ascii_lowercase());
    let statuses = lower.each_ref().map(String::as_str);
    let forwards = Forward::ALL.map(Forward::name);
    let reasons = NotStored::ALL.map(NotStored::name);
    let by_word: [(_, _, _, &[&str], _); 4] = [
        (
            "yorozu_cache_responses_total",
            "Answers by cache zone and what the cache did.",
            "status",
            &statuses,
            ANSWERS,
        ),
        ("yorozu_cache_sent_bytes_total", "Bytes of these answers.", "status", &statuses, BYTES),
        (
            "yorozu_cache_forwarded_total",
            "Requests that the upstream was asked for, by reason.",
            "reason",
            &forwards,
            FORWARDED,
        ),
        (
            "yorozu_cache_not_stored_total",
            "Answers of the upstream that were not stored, by reason.",
            "reason",
            &reasons,
            NOT_STORED,
        ),
    ];
    for (name, help, label, words, from) in by_word {
        let family = report.counter(name, help);
        for (zone, sums, _) in &zones {
            for (word, count) in words.iter().zip(&sums[from..]) {
                family.count(&[("zone", zone), (label, word)], *count);
            }
        }
    }
    let help = "Answers to requests that no rule passed by, which must not be stored.";
    let plain = [
        ("yorozu_cache_unstorable_total", help, UNSTORABLE),
        ("yorozu_cache_stored_total", "Answers that were stored or renewed.", STORED),
        ("yorozu_cache_collapsed_total", "Requests that shared another one's answer.", COLLAPSED),
        ("yorozu_cache_refreshes_total", "Renewals that no client waited for.", REFRESHES),
    ];
    for (name, help, at) in plain {
        let family = report.counter(name, help);
        zones.iter().for_each(|(zone, sums, _)| _ = family.count(&[("zone", zone)], sums[at]));
    }
    let help = "Time that upstreams took to make what the cache answered with.";
    let family = report.counter("yorozu_saved_seconds_total", help);
    for (zone, sums, _) in &zones {
        family.put(&[("zone", zone)], Figure::Number(in_seconds(sums[SAVED])));
    }
    let help = "Answers whose requests had such a header: of another address than the key's, or not shared.";
    let family = report.counter("yorozu_cache_headers_total", help);
    for (header, counts) in seen::by_name() {
        for (effect, count) in Effect::ALL.iter().zip(counts) {
            family.count(&[("header", header), ("effect", effect.name())], count);
        }
    }
    of_store(report, &zones);
}

#[expect(clippy::cast_precision_loss, reason = "2^52 milliseconds are a hundred thousand years")]
fn in_seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

type OfZone<'a> = (&'a str, Vec<u64>, &'a std::sync::Arc<Zone>);

/// What the zones themselves count.
fn of_store(report: &mut Report, zones: &[OfZone<'_>]) {
    let tiers = |report: &mut Report, name, help, of: fn(&Zone) -> [u64; 2]| {
        let family = report.gauge(name, help);
        for (zone, _, store) in zones {
            for (tier, value) in ["memory", "disk"].iter().zip(of(store)) {
                family.count(&[("zone", zone), ("tier", tier)], value);
            }
        }
    };
    tiers(report, "yorozu_cache_bytes", "Bytes in a tier.", |zone| {
        let usage = zone.usage();
        [usage.memory_bytes, usage.disk_bytes]
    });
    tiers(report, "yorozu_cache_entries", "Pages in a tier.", |zone| {
        let usage = zone.usage();
        [usage.memory_entries as u64, usage.disk_files as u64]
    });
    let max = report.gauge("yorozu_cache_max_bytes", "Bound of a tier, where it has one.");
    for (zone, _, store) in zones {
        let options = store.options();
        max.count(&[("zone", zone), ("tier", "memory")], store.usage().memory_bound);
        if let Some(bytes) = options.disk.max_size {
            max.count(&[("zone", zone), ("tier", "disk")], bytes);
        }
    }
    let help = "Pages that left a tier, by cause; \"memory\" leaves the file.";
    let family = report.counter("yorozu_cache_evicted_total", help);
    for (zone, _, store) in zones {
        for (why, count) in Evicted::ALL.iter().zip(store.figures().evicted()) {
            family.count(&[("zone", zone), ("cause", why.name())], count);
        }
    }
    let family = report.counter("yorozu_purges_total", "Purges by what they name.");
    for (zone, _, store) in zones {
        for (kind, count) in PURGE_KINDS.iter().zip(store.figures().purges()) {
            family.count(&[("zone", zone), ("kind", kind)], count);
        }
    }
    let family = report.counter("yorozu_purged_pages_total", "Pages that purges found.");
    for (zone, _, store) in zones {
        family.count(&[("zone", zone)], store.figures().purged());
    }
    let help = "Pages that were not written to the disk, as too many waited for it.";
    let family = report.counter("yorozu_cache_unwritten_total", help);
    for (zone, _, store) in zones {
        family.count(&[("zone", zone)], store.usage().unwritten);
    }
}

/// `$cache_saved`: seconds that it took to make what is answered from the cache, like `0.123`.
pub fn append_saved(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let report = &exchange.cache_report;
    if report.is_hit {
        let millis = report.saved;
        let _ = write!(out, "{}.{:03}", millis / 1000, millis % 1000);
    }
    report.is_hit
}
