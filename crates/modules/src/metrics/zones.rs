//! What is counted of requests, by `status_zone`.
//!
//! Names of zones are kept for the process, up to `status_zone_limit` for servers and as many for locations; what has
//! another name is counted as `other`, and so is one that would not be shown as it is: too long for a label, or not UTF-8. A worker knows the names by heart: it takes the lock when there is a new one.

use super::Conf;
use bytes::Bytes;
use foldhash::{HashMap, HashMapExt as _};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use yorozu_kernel::base::report::{LABEL_BYTES_MAX, Report, Value as Figure};
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::base::tally::{Cells, HISTOGRAM, Histogram, Tally};
use yorozu_kernel::base::turn;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::CacheStatus;

/// The statuses that are counted one by one: those that this server makes, and what applications use.
const CODES: [u16; 52] = [
    101, 200, 201, 202, 204, 206, 207, 208, 226, 300, 301, 302, 303, 304, 307, 308, 400, 401, 402,
    403, 404, 405, 406, 408, 409, 410, 411, 412, 413, 414, 415, 416, 421, 422, 423, 424, 425, 426,
    429, 431, 444, 451, 494, 495, 496, 497, 499, 500, 501, 502, 503, 504,
];

/// The place of 200 among them.
const OK: usize = 1;

const RECEIVED: usize = 0;
const SENT: usize = 1;
/// Requests without an answer.
const DISCARDED: usize = 2;
/// Answers from 100, 200 … whose status is not counted by itself.
const OTHERS: usize = 3;
/// The zone of names for which there is no room.
const OTHER: &[u8] = b"other";
const CODE: usize = OTHERS + 5;
/// Times of requests: without a cache, then by what it did.
const TIMES: usize = CODE + CODES.len();
const CELLS: usize = TIMES + (CacheStatus::ALL.len() + 1) * HISTOGRAM;

/// The zones of servers, or of locations.
#[derive(Debug)]
pub struct Zones {
    /// Its place among what a worker knows.
    place: usize,
    by_name: Mutex<BTreeMap<Bytes, &'static Tally>>,
    count: AtomicUsize,
    /// What has no place among them.
    other: OnceLock<&'static Tally>,
}

/// The counters of requests outside of any server's zone.
static UNNAMED: LazyLock<&'static Tally> = LazyLock::new(|| Tally::leaked(CELLS));

pub(super) static SERVERS: Zones = Zones::new(0);
pub(super) static LOCATIONS: Zones = Zones::new(1);

thread_local! {
    /// The names that this worker knows, of servers and of locations.
    static KNOWN: RefCell<[Known; 2]> = const { RefCell::new([Known::NONE, Known::NONE]) };
}

/// Names that a worker knows.
struct Known {
    by_name: Option<HashMap<Bytes, &'static Tally>>,
    /// The one that was asked for last: the next request is often for the same.
    last: Option<(Bytes, &'static Tally)>,
}

impl Known {
    const NONE: Self = Self { by_name: None, last: None };
}

impl Zones {
    const fn new(place: usize) -> Self {
        Self {
            place,
            by_name: Mutex::new(BTreeMap::new()),
            count: AtomicUsize::new(0),
            other: OnceLock::new(),
        }
    }

    fn by_name(&self) -> MutexGuard<'_, BTreeMap<Bytes, &'static Tally>> {
        // Each use is one call: a panic elsewhere cannot leave it half changed.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of a name; those of `other` where `limit` names have some.
    pub fn of(&self, name: &[u8], limit: usize) -> &'static Tally {
        KNOWN.with_borrow_mut(|known| {
            let Known { by_name, last } = &mut known[self.place];
            if let Some((_, tally)) = last.as_ref().filter(|(last, _)| *last == name) {
                return *tally;
            }
            let by_name = by_name.get_or_insert_with(HashMap::new);
            if let Some((name, tally)) = by_name.get_key_value(name) {
                *last = Some((name.clone(), *tally));
                return *tally;
            }
            let is_known_whole = self.count.load(Ordering::Acquire) == by_name.len();
            // A zone of that name would stand beside the rest; names that are shown otherwise than they are could meet there.
            if name == OTHER
                || name.len() > LABEL_BYTES_MAX
                || std::str::from_utf8(name).is_err()
                || (is_known_whole && by_name.len() >= limit)
            {
                return self.other();
            }
            self.learn(name, limit, by_name)
        })
    }

    #[cold]
    fn learn(
        &self,
        name: &[u8],
        limit: usize,
        known: &mut HashMap<Bytes, &'static Tally>,
    ) -> &'static Tally {
        let mut by_name = self.by_name();
        if by_name.len() < limit && !by_name.contains_key(name) {
            by_name.insert(Bytes::copy_from_slice(name), Tally::leaked(CELLS));
            self.count.store(by_name.len(), Ordering::Release);
        }
        known.extend(by_name.iter().map(|(name, tally)| (name.clone(), *tally)));
        known.get(name).copied().unwrap_or_else(|| self.other())
    }

    fn other(&self) -> &'static Tally {
        self.other.get_or_init(|| Tally::leaked(CELLS))
    }

    /// What each has counted; an empty name for requests outside of any zone.
    fn sums(&self) -> Vec<(String, Vec<u64>)> {
        let by_name = self.by_name().clone();
        let named = by_name.iter().map(|(name, tally)| (name.as_ref(), *tally));
        let other = self.other.get().map(|tally| (OTHER, *tally));
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        named.chain(other).map(|(name, tally)| (text(name), tally.sums())).collect()
    }
}

/// `status_zone NAME | $variable | off`
#[derive(Clone, Debug, Default)]
pub enum ZoneName {
    /// None is written.
    #[default]
    Unnamed,
    Off,
    Named(Named),
}

/// The name of a zone.
#[derive(Clone, Debug)]
pub struct Named {
    template: Template,
    /// Whether it is the same for all requests, whose counters are found once.
    is_one: bool,
    /// Whether it is the variable that is used most, and whose value is there without making it.
    is_host: bool,
    found: OnceLock<&'static Tally>,
}

impl Named {
    fn new(template: Template) -> Self {
        let is_one = template.as_literal().is_some();
        Self { template, is_one, is_host: false, found: OnceLock::new() }
    }
}

impl Setting for ZoneName {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"off" => Self::Off,
            b"" => return Err(ValueError::new("empty zone name")),
            name => {
                let mut named = Named::new(Template::compile(name, args.env)?);
                named.is_host = name == b"$host";
                Self::Named(named)
            }
        })
    }
}

impl ZoneName {
    pub fn named(template: Template) -> Self {
        Self::Named(Named::new(template))
    }

    /// It names a server's own zone by what all its requests have in common.
    pub fn settle(&mut self) {
        if let Self::Named(named) = self {
            named.is_one = true;
        }
    }

    /// Makes the zone known before there is a request, if its name is.
    pub fn register(&self, zones: &'static Zones, limit: usize) {
        if let Self::Named(Named { template, found, .. }) = self {
            if let Some(name) = template.as_literal() {
                found.get_or_init(|| zones.of(&name, limit));
            }
        }
    }

    fn tally(
        &self,
        exchange: &mut Exchange,
        zones: &'static Zones,
        limit: usize,
    ) -> Option<&'static Tally> {
        let Self::Named(named) = self else { return None };
        if let Some(tally) = named.found.get() {
            return Some(tally);
        }
        if named.is_host && !exchange.request.host.is_empty() {
            return Some(zones.of(&exchange.request.host, limit));
        }
        let mut name = Scratch::take();
        named.template.append(exchange, &mut name);
        let tally = (!name.is_empty()).then(|| zones.of(&name, limit))?;
        Some(if named.is_one { named.found.get_or_init(|| tally) } else { tally })
    }
}

/// Requests of all servers so far, answered or not.
pub fn total() -> u64 {
    let all = SERVERS.sums().into_iter().map(|(_, sums)| sums).chain([UNNAMED.sums()]);
    all.map(|sums| answers(&sums) + sums[DISCARDED]).sum()
}

/// Counts a request that is over.
pub fn count(exchange: &mut Exchange) {
    let conf = Rc::clone(&exchange.conf);
    let own = conf.location(exchange.location).of::<Conf>();
    let limit = usize::try_from(own.status_zone_limit).unwrap_or(usize::MAX);
    let server = match &own.server_zone {
        // Its counters have no name, and are no zone of `api`.
        ZoneName::Unnamed => Some(*UNNAMED),
        named => named.tally(exchange, &SERVERS, limit),
    };
    let location = own.location_zone.tally(exchange, &LOCATIONS, limit);
    // Most are answered in the turn in which they came.
    let (begun, now) = (exchange.started, turn::instant());
    let time = if begun == now { Duration::ZERO } else { now.saturating_duration_since(begun) };
    if let Some(tally) = server {
        tally.with(|cells| add(exchange, time, cells));
    }
    if let Some(tally) = location {
        tally.with(|cells| add(exchange, time, cells));
    }
}

fn add(exchange: &Exchange, time: Duration, cells: &Cells) {
    cells.add(RECEIVED, exchange.request_bytes);
    cells.add(SENT, exchange.bytes_sent);
    let status = exchange.status;
    if !(100..600).contains(&status) || exchange.bytes_sent == 0 {
        return cells.add(DISCARDED, 1);
    }
    // Most are this.
    let code = if status == 200 { Ok(OK) } else { CODES.binary_search(&status) };
    cells.add(code.map_or(OTHERS + usize::from(status / 100 - 1), |code| CODE + code), 1);
    // A connection that leaves HTTP is no answer that takes its time.
    if status >= 200 {
        let place = exchange.cache_status.map_or(0, |status| status as usize + 1);
        cells.observe(TIMES + place * HISTOGRAM, time);
    }
}

/// What is said of a request's cache: `none`, or its status.
fn cache_name(place: usize) -> String {
    match place.checked_sub(1) {
        None => "none".to_owned(),
        Some(at) => CacheStatus::ALL[at].name().to_ascii_lowercase(),
    }
}

/// Answers from 100, 200 …
fn classes(sums: &[u64]) -> [u64; 5] {
    let mut classes = [0; 5];
    classes.copy_from_slice(&sums[OTHERS..CODE]);
    for (code, count) in CODES.iter().zip(&sums[CODE..]) {
        classes[usize::from(code / 100 - 1)] += count;
    }
    classes
}

fn answers(sums: &[u64]) -> u64 {
    classes(sums).iter().sum()
}

/// Adds the metrics of all zones.
pub(super) fn report(report: &mut Report) {
    let mut servers = SERVERS.sums();
    servers.push((String::new(), UNNAMED.sums()));
    servers.retain(|(name, sums)| !name.is_empty() || sums.iter().any(|sum| *sum > 0));
    requests(
        report,
        &servers,
        [
            ("yorozu_requests_total", "Requests by zone and class of their status."),
            ("yorozu_received_bytes_total", "Bytes of requests, heads included."),
            ("yorozu_sent_bytes_total", "Bytes of answers, heads included."),
            ("yorozu_request_seconds", "Time from a request's first byte to its answer's last."),
        ],
    );
    requests(
        report,
        &LOCATIONS.sums(),
        [
            ("yorozu_location_requests_total", "Requests by a location's zone and class."),
            ("yorozu_location_received_bytes_total", "Bytes of requests by a location's zone."),
            ("yorozu_location_sent_bytes_total", "Bytes of answers by a location's zone."),
            ("yorozu_location_request_seconds", "Time of requests by a location's zone."),
        ],
    );
}

type Name = (&'static str, &'static str);

fn requests(report: &mut Report, zones: &[(String, Vec<u64>)], names: [Name; 4]) {
    const CLASS: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let [count, received, sent, times] = names;
    let family = report.counter(count.0, count.1);
    for (zone, sums) in zones {
        for (class, answers) in CLASS.iter().zip(classes(sums)) {
            family.count(&[("zone", zone), ("status", class)], answers);
        }
        family.count(&[("zone", zone), ("status", "none")], sums[DISCARDED]);
    }
    for ((name, help), cell) in [(received, RECEIVED), (sent, SENT)] {
        let family = report.counter(name, help);
        zones.iter().for_each(|(zone, sums)| _ = family.count(&[("zone", zone)], sums[cell]));
    }
    let family = report.histogram(times.0, times.1);
    for (zone, sums) in zones {
        for place in 0..=CacheStatus::ALL.len() {
            let found = Histogram::of(sums, TIMES + place * HISTOGRAM);
            if found.count() > 0 {
                let labels = [("zone", zone.as_str()), ("cache", &cache_name(place))];
                family.put(&labels, Figure::Histogram(found));
            }
        }
    }
}

/// The zones as nginx's `api` shows them.
pub(super) fn figures(zones: &Zones) -> Value {
    let all = zones.sums().into_iter().map(|(name, sums)| (name, zone_figures(&sums)));
    all.collect::<Map<_, _>>().into()
}

fn zone_figures(sums: &[u64]) -> Value {
    let codes = CODES.iter().zip(&sums[CODE..]).filter(|(_, count)| **count > 0);
    let codes: Map<_, _> = codes.map(|(code, count)| (code.to_string(), json!(count))).collect();
    let class = classes(sums);
    json!({
        "requests": answers(sums) + sums[DISCARDED],
        "responses": {
            "1xx": class[0], "2xx": class[1], "3xx": class[2], "4xx": class[3], "5xx": class[4],
            "codes": codes, "total": answers(sums),
        },
        "discarded": sums[DISCARDED],
        "received": sums[RECEIVED],
        "sent": sums[SENT],
    })
}

/// What the module of virtual hosts' traffic shows of a server.
pub(super) struct Traffic {
    pub name: String,
    pub requests: u64,
    pub received: u64,
    pub sent: u64,
    /// Of 1xx to 5xx.
    pub classes: Vec<u64>,
    /// By the cache's status, lower-case.
    pub cached: Vec<(String, u64)>,
    pub micros: u64,
}

/// The servers' zones in its terms.
pub(super) fn traffic() -> Vec<Traffic> {
    let zones = SERVERS.sums().into_iter();
    let traffic = zones.map(|(name, sums)| {
        let times = |place| Histogram::of(&sums, TIMES + place * HISTOGRAM);
        let places = 0..=CacheStatus::ALL.len();
        Traffic {
            name,
            requests: answers(&sums) + sums[DISCARDED],
            received: sums[RECEIVED],
            sent: sums[SENT],
            classes: classes(&sums).to_vec(),
            cached: places.clone().skip(1).map(|at| (cache_name(at), times(at).count())).collect(),
            micros: places.map(|place| times(place).sum_micros).sum(),
        }
    });
    traffic.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order() {
        assert!(CODES.is_sorted() && CODES[OK] == 200);
    }

    #[test]
    fn names_are_bounded_and_the_rest_is_other() {
        static ZONES: Zones = Zones::new(0);
        let one = |name: &[u8]| ZONES.of(name, 3).with(|cells| cells.add(SENT, 1));
        // Names of another thread are known here, too.
        std::thread::spawn(move || one(b"first")).join().unwrap();
        for number in 0..10_000 {
            one(format!("host-{number}").as_bytes());
        }
        one(&[b'x'; LABEL_BYTES_MAX + 1]);
        one(b"first");
        let sums: Vec<_> =
            ZONES.sums().into_iter().map(|(name, sums)| (name, sums[SENT])).collect();
        let expected = [("first", 2), ("host-0", 1), ("host-1", 1), ("other", 9999)];
        assert_eq!(sums, expected.map(|(name, count)| (name.to_owned(), count)));
        assert_eq!(KNOWN.with_borrow(|known| known[0].by_name.as_ref().unwrap().len()), 3);
    }
}
