//! `limit_req`: how many requests each second a key may make, by the leaky bucket.

use super::limit_zones::{Counted, Limited, Zones};
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_kernel::base::turn;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::shared::SharedType;
use yorozu_kernel::config::types::{Status, name_and_size};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Step;
use yorozu_kernel::exchange::variables::{Row, Variable, put};
use yorozu_kernel::logging::error::{self, Level};

/// The module.
pub const MODULE: Module = Module::new("http_limit_req", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .sharing(&[SharedType::of::<Zones<Requests>>()])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[(
    "limit_req_status",
    Variable::Builtin(|ex, out| {
        let verdict = ex.states.show(|verdict: &Verdict| *verdict);
        verdict.is_some_and(|verdict| put(out, verdict.name().as_bytes()))
    }),
)];

/// Bytes of a bucket, by which nginx's manual counts how many a zone holds.
const STATE_BYTES: u64 = 128;
/// A request in the unit that rates and excesses are kept in.
const REQUEST: i64 = 1000;

/// How full the bucket of a key is.
#[derive(Debug)]
pub struct Bucket {
    /// Thousandths of a request beyond the rate.
    excess: i64,
    /// As [`millis`] has it.
    last: i64,
}

/// The states of a zone, by key.
pub type States = Cache<Bytes, Arc<Mutex<Bucket>>, ByKey>;

/// What a bucket takes of its zone: more than usual if its key is long, which may be a client's choice.
#[derive(Clone, Debug)]
pub struct ByKey;

impl Weighter<Bytes, Arc<Mutex<Bucket>>> for ByKey {
    fn weight(&self, key: &Bytes, _: &Arc<Mutex<Bucket>>) -> u64 {
        STATE_BYTES.max(key.len() as u64 + STATE_BYTES / 2)
    }
}

fn states(bytes: u64) -> States {
    let count = usize::try_from(bytes / STATE_BYTES).unwrap_or(usize::MAX);
    Cache::with_weighter(count, bytes, ByKey)
}

/// `limit_req_zone key zone=name:size rate=rate`; the rule is the rate in thousandths of a request in a second.
#[derive(Clone, Copy, Debug)]
pub enum Requests {}

impl Limited for Requests {
    const DIRECTIVE: &'static str = "limit_req_zone";
    type Rule = i64;
    type States = States;

    fn states(bytes: u64) -> States {
        states(bytes)
    }

    fn place() -> &'static Place {
        place!()
    }
}

/// `limit_req zone=name [burst=number] [nodelay | delay=number] [upstream]`
#[derive(Clone, Debug)]
pub struct Limit {
    zone: String,
    /// Thousandths of a request.
    burst: i64,
    delay: i64,
    counted: Counted,
}

impl Setting for Limit {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut limit = Self { zone: String::new(), burst: 0, delay: 0, counted: Counted::All };
        for word in args.words {
            let text = String::from_utf8_lossy(word).into_owned();
            let number = |what: &str, digits: &str| {
                let found = digits.parse::<u32>().ok().filter(|n| *n > 0 || what == "delay");
                found
                    .map(|n| i64::from(n) * REQUEST)
                    .ok_or_else(|| ValueError(format!("invalid {what} value \"{text}\"")))
            };
            match text.split_once('=') {
                Some(("zone", name)) => name.clone_into(&mut limit.zone),
                Some(("burst", digits)) => limit.burst = number("burst", digits)?,
                Some(("delay", digits)) => limit.delay = number("delay", digits)?,
                None if text == "nodelay" => limit.delay = i64::MAX,
                None if text == "upstream" => limit.counted = Counted::ToUpstream,
                _ => return Err(args.invalid_parameter(word)),
            }
        }
        if limit.zone.is_empty() {
            return Err(ValueError::new("\"limit_req\" must have \"zone\" parameter"));
        }
        Ok(limit)
    }

    fn repeats(&self, earlier: &Self) -> bool {
        self.zone == earlier.zone && self.counted == earlier.counted
    }
}

impl Conf {
    /// Whether there are limits for these requests.
    pub fn has(&self, counted: Counted) -> bool {
        self.limit_req.iter().any(|limit| limit.counted == counted)
    }
}

/// # Errors
/// A zone is not defined.
pub fn check(conf: &Conf, env: &Env) -> Result<(), ValueError> {
    Zones::<Requests>::check(env, conf.limit_req.iter().map(|limit| &limit.zone))
}

settings! {
    inherit = Draft::inherit, check = check;
    /// How often a key may make requests, and how much of a burst is delayed or passed. With `upstream`, only requests that reach an upstream count, not hits.
    limit_req: Vec<Limit> = none, ONE_TO_FOUR, HTTP_SERVER_LOCATION;
    /// Whether limits are only counted and logged.
    limit_req_dry_run: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// The level of refusals in the error log; delays are one level below.
    limit_req_log_level: Level = "error", ONE, HTTP_SERVER_LOCATION;
    /// The status of refusals.
    limit_req_status: Status = "503", ONE, HTTP_SERVER_LOCATION;
}

pub const OTHERS: &[Directive] = &[Directive::row(
    "limit_req_zone",
    HTTP,
    Arity::THREE,
    Action::Set(|_, args| zone(args)),
    "A zone of keys and the rate at which each may make requests.",
)];

fn zone(args: &Args<'_>) -> Result<(), ValueError> {
    let (mut named, mut rate) = (None, REQUEST);
    for word in &args.words[1..] {
        let text = String::from_utf8_lossy(word).into_owned();
        match text.split_once('=') {
            Some(("zone", value)) => named = Some(name_and_size(value)?),
            Some(("rate", value)) => {
                let wrong = || ValueError(format!("invalid rate \"{text}\""));
                let (digits, per) = match (value.strip_suffix("r/s"), value.strip_suffix("r/m")) {
                    (Some(digits), _) => (digits, 1),
                    (_, Some(digits)) => (digits, 60),
                    _ => (value, 1),
                };
                let number = digits.parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
                rate = i64::from(number) * REQUEST / per;
            }
            _ => return Err(args.invalid_parameter(word)),
        }
    }
    let Some(named) = named else {
        return Err(ValueError::new("\"limit_req_zone\" must have \"zone\" parameter"));
    };
    Zones::<Requests>::define(args, named, rate)
}

/// `$limit_req_status`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    Passed,
    Delayed,
    Rejected,
    DelayedDryRun,
    RejectedDryRun,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Delayed => "DELAYED",
            Self::Rejected => "REJECTED",
            Self::DelayedDryRun => "DELAYED_DRY_RUN",
            Self::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// Milliseconds on the monotonic clock.
fn millis() -> i64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let passed = turn::instant().saturating_duration_since(*BEGUN).as_millis();
    i64::try_from(passed).unwrap_or(i64::MAX)
}

/// What a bucket holds with one request more; an error: more than `burst`.
fn excess(bucket: &Bucket, now: i64, rate: i64, burst: i64) -> Result<i64, i64> {
    // Another worker's turn may have begun later.
    let passed = (now - bucket.last).max(0);
    let excess = (bucket.excess - rate * passed / 1000 + REQUEST).max(0);
    if excess > burst { Err(excess) } else { Ok(excess) }
}

/// The bucket of a key: one for all workers, made by the first.
fn bucket_of(states: &States, key: &Bytes) -> Option<Arc<Mutex<Bucket>>> {
    let fresh = || Ok::<_, ()>(Arc::new(Mutex::new(Bucket { excess: -REQUEST, last: 0 })));
    // A copy, so that the head that the key may be a part of is not kept.
    let make = || states.get_or_insert_with(&Bytes::copy_from_slice(key), fresh).ok();
    states.get(key).or_else(make)
}

/// What a request adds to one bucket.
struct Charge<'c> {
    /// Its place among the limits of the location.
    at: usize,
    limit: &'c Limit,
    rate: i64,
    bucket: Arc<Mutex<Bucket>>,
    /// With this request.
    excess: i64,
}

/// Judges a request by all of its limits and, if none refuses, counts it for each. An error: the place of the first
/// that refuses, and what it would hold.
///
/// All are locked meanwhile: what one worker counts another one sees, and a request that a limit refuses never counts
/// for others.
fn count(charges: &mut [Charge<'_>], now: i64) -> Result<(), (usize, i64)> {
    // In an order that is not the configuration's, so that no two wait for each other.
    charges.sort_unstable_by(|a, b| a.limit.zone.cmp(&b.limit.zone));
    let mut refused: Option<(usize, i64)> = None;
    let mut locked = Vec::with_capacity(charges.len());
    for charge in charges {
        let bucket = charge.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        match excess(&bucket, now, charge.rate, charge.limit.burst) {
            Ok(excess) => charge.excess = excess,
            Err(excess) if refused.is_none_or(|(first, _)| charge.at < first) => {
                refused = Some((charge.at, excess));
            }
            Err(_) => {}
        }
        locked.push((bucket, charge.excess));
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    for (mut bucket, excess) in locked {
        *bucket = Bucket { excess, last: now.max(bucket.last) };
    }
    Ok(())
}

/// Counts the request, once for all of its passes.
///
/// # Source
/// nginx, `ngx_http_limit_req_module`: every limit of the location counts, the longest delay holds.
pub fn pass(exchange: &mut Exchange, counted: Counted) -> Step {
    if counted == Counted::All && exchange.states.show(|_: &Verdict| ()).is_some() {
        return Step::Next;
    }
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    let limits = conf.limit_req.iter().enumerate();
    let mut charges = Vec::new();
    for (at, limit) in limits.filter(|(_, limit)| limit.counted == counted) {
        let Some(zone) = config.shared.of::<Zones<Requests>>().get(&limit.zone) else { continue };
        let key = zone.key.value(exchange);
        if key.is_empty() {
            continue;
        }
        let Some(bucket) = bucket_of(&zone.states, &key) else { continue };
        charges.push(Charge { at, limit, rate: zone.rule, bucket, excess: 0 });
    }
    if let Err((at, excess)) = count(&mut charges, millis()) {
        return reject(exchange, conf, excess, &conf.limit_req[at].zone);
    }
    let wait = |charge: &Charge<'_>| {
        charge.excess.saturating_sub(charge.limit.delay).max(0) * 1000 / charge.rate
    };
    // Of those with the same delay the first is logged.
    let longest = charges.iter().max_by_key(|charge| (wait(charge), Reverse(charge.at)));
    let Some(charge) = longest else { return Step::Next };
    let (longest, excess, zone) = (wait(charge), charge.excess, &charge.limit.zone);
    if longest == 0 {
        exchange.states.put(Verdict::Passed);
        return Step::Next;
    }
    let dry = if conf.limit_req_dry_run { ", dry run" } else { "" };
    let shown = thousandths(excess);
    let text = format!("delaying request{dry}, excess: {shown}, by zone \"{zone}\"");
    error::request(exchange, conf.limit_req_log_level.below(), &text);
    if conf.limit_req_dry_run {
        exchange.states.put(Verdict::DelayedDryRun);
        return Step::Next;
    }
    exchange.states.put(Verdict::Delayed);
    Step::Delay(Duration::from_millis(longest.unsigned_abs()))
}

fn thousandths(excess: i64) -> String {
    format!("{}.{:03}", excess / 1000, excess % 1000)
}

fn reject(exchange: &mut Exchange, conf: &Conf, excess: i64, zone: &str) -> Step {
    let dry = if conf.limit_req_dry_run { ", dry run" } else { "" };
    let shown = thousandths(excess);
    let text = format!("limiting requests{dry}, excess: {shown} by zone \"{zone}\"");
    error::request(exchange, conf.limit_req_log_level, &text);
    if conf.limit_req_dry_run {
        exchange.states.put(Verdict::RejectedDryRun);
        return Step::Next;
    }
    exchange.states.put(Verdict::Rejected);
    Step::Refuse(conf.limit_req_status.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let bucket = |excess, last| Bucket { excess, last };
        // The first request of a key is not an excess.
        assert_eq!(excess(&bucket(-REQUEST, 5000), 5000, 1000, 0), Ok(0));
        assert_eq!(excess(&bucket(0, 5000), 5000, 1000, 0), Err(1000));
        assert_eq!(excess(&bucket(0, 5000), 5000, 1000, 1000), Ok(1000));
        assert_eq!(excess(&bucket(1000, 5000), 5500, 1000, 2000), Ok(1500));
        assert_eq!(excess(&bucket(1000, 5000), 9000, 1000, 2000), Ok(0));
        // Of a worker whose turn began earlier.
        assert_eq!(excess(&bucket(1000, 5000), 4000, 1000, 2000), Ok(2000));
        assert_eq!(thousandths(1005), "1.005");
    }

    #[test]
    fn long_keys_take_the_room_of_several() {
        for (length, least, most) in [(4, 6000, 8192), (6000, 100, 180)] {
            let states = states(1 << 20);
            for number in 0..20_000 {
                states.insert(format!("{number:0length$}").into(), fresh());
            }
            assert!((least..=most).contains(&states.len()), "{} of {length} bytes", states.len());
        }
    }

    fn limit(zone: &str, burst: i64) -> Limit {
        Limit { zone: zone.into(), burst: burst * REQUEST, delay: 0, counted: Counted::All }
    }

    type Bound<'c> = (&'c Limit, &'c Arc<Mutex<Bucket>>);

    fn charge<'c>((at, (limit, bucket)): (usize, &Bound<'c>)) -> Charge<'c> {
        Charge { at, limit, rate: 1000, bucket: Arc::clone(bucket), excess: 0 }
    }

    /// Asks 1000 times in each of eight threads at one moment; how many were admitted.
    fn admitted(limits: &[Bound<'_>]) -> usize {
        let admitted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for turn in 0..8 {
                let admitted = &admitted;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut charges: Vec<_> = limits.iter().enumerate().map(charge).collect();
                        if turn % 2 == 1 {
                            charges.reverse();
                        }
                        let is_admitted = count(&mut charges, 5000).is_ok();
                        admitted.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
                    }
                });
            }
        });
        admitted.into_inner()
    }

    fn fresh() -> Arc<Mutex<Bucket>> {
        Arc::new(Mutex::new(Bucket { excess: -REQUEST, last: 0 }))
    }

    #[test]
    fn workers_that_count_at_the_same_moment_admit_no_more_than_one_would() {
        // The first, and the burst.
        assert_eq!(admitted(&[(&limit("a", 99), &fresh())]), 100);
    }

    #[test]
    fn workers_that_bring_a_key_at_the_same_moment_count_it_once() {
        let (limit, states) = (limit("a", 4), states(1 << 20));
        for round in 0..300_u32 {
            let (key, admitted) = (Bytes::from(round.to_string()), AtomicUsize::new(0));
            let begin = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        begin.wait();
                        for _ in 0..5 {
                            let bucket = bucket_of(&states, &key).unwrap();
                            let is_admitted =
                                count(&mut [charge((0, &(&limit, &bucket)))], 5000).is_ok();
                            admitted.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(admitted.into_inner(), 5, "the first, and the burst");
        }
    }

    #[test]
    fn what_one_limit_refuses_counts_for_no_other() {
        let (wide, narrow, middle) = (fresh(), fresh(), fresh());
        let limits = [limit("a", 199), limit("b", 49), limit("c", 99)];
        let all = [(&limits[0], &wide), (&limits[1], &narrow), (&limits[2], &middle)];
        assert_eq!(admitted(&all), 50);
        // What is left of each, to the last.
        assert_eq!(admitted(&all[..1]), 150);
        assert_eq!(admitted(&all[1..]), 0);
        assert_eq!(admitted(&all[2..]), 50);
        // The first in the configuration is reported.
        let mut refused = [charge((1, &all[0])), charge((0, &all[1]))];
        assert_eq!(count(&mut refused, 5000), Err((0, 50 * REQUEST)));
    }
}
