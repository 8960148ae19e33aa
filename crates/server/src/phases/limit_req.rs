//! `limit_req`: how many requests each second a key may make, by the leaky bucket.

use super::Step;
use crate::config::directive::*;
use crate::config::template::Template;
use crate::config::types::Status;
use crate::exchange::Exchange;
use crate::logging::error::{self, Level};
use crate::process::turn;
use bytes::Bytes;
use quick_cache::sync::Cache;
use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use yorozu_conf::value;

/// Bytes of a state, by which nginx's manual counts how many a zone holds.
const STATE_BYTES: u64 = 128;
/// A request in the unit that rates and excesses are kept in.
const REQUEST: i64 = 1000;

#[derive(Debug)]
struct State {
    /// Thousandths of a request beyond the rate.
    excess: i64,
    /// As [`millis`] has it.
    last: i64,
}

type States = Cache<Bytes, Arc<Mutex<State>>>;

/// `limit_req_zone key zone=name:size rate=rate`
#[derive(Clone, Debug)]
pub struct Zone {
    key: Template,
    key_text: Bytes,
    /// Thousandths of a request in a second.
    rate: i64,
    bytes: u64,
    states: Arc<States>,
}

impl Zone {
    /// Goes on with the states of a zone that was written the same before.
    pub fn keep(&mut self, old: &Self) {
        if (&self.key_text, self.bytes) == (&old.key_text, old.bytes) {
            self.states = Arc::clone(&old.states);
        }
    }
}

/// `limit_req zone=name [burst=number] [nodelay | delay=number]`
#[derive(Clone, Debug)]
pub struct Limit {
    zone: String,
    /// Thousandths of a request.
    burst: i64,
    delay: i64,
}

impl Setting for Vec<Limit> {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Limit::read(args).map(|limit| vec![limit])
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let limit = Limit::read(args)?;
        if self.iter().any(|known| known.zone == limit.zone) {
            return Err(args.duplicate());
        }
        self.push(limit);
        Ok(())
    }
}

impl Limit {
    fn read(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut limit = Self { zone: String::new(), burst: 0, delay: 0 };
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
                _ => return Err(args.invalid_parameter(word)),
            }
        }
        if limit.zone.is_empty() {
            return Err(ValueError::new("\"limit_req\" must have \"zone\" parameter"));
        }
        Ok(limit)
    }
}

/// Is every zone defined?
///
/// # Errors
/// One is not.
pub fn check(conf: &Conf, env: &crate::config::env::Env) -> Result<(), ValueError> {
    let zones = env.limits.borrow();
    match conf.limit_req.iter().find(|limit| !zones.req.contains_key(&limit.zone)) {
        Some(limit) => Err(ValueError(format!("zero size shared memory zone \"{}\"", limit.zone))),
        None => Ok(()),
    }
}

settings! {
    in limit_req;
    /// How often a key may ask, and how much of a burst is delayed or passed.
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
    "A zone of keys and the rate at which each may ask.",
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
    let Some((name, bytes)) = named else {
        return Err(ValueError::new("\"limit_req_zone\" must have \"zone\" parameter"));
    };
    let states = usize::try_from(bytes / STATE_BYTES).unwrap_or(usize::MAX);
    let zone = Zone {
        key: Template::compile(args.word(0), args.env)?,
        key_text: args.words[0].clone(),
        rate,
        bytes,
        states: Arc::new(Cache::new(states)),
    };
    let zones = &mut args.env.limits.borrow_mut().req;
    if let Some(old) = zones.get(&name) {
        let key = String::from_utf8_lossy(&old.key_text);
        let text = format!("limit_req_zone \"{name}\" is already bound to key \"{key}\"");
        return Err(ValueError(text));
    }
    zones.insert(name, zone);
    Ok(())
}

/// `name:size` of a zone.
pub fn name_and_size(text: &str) -> Result<(String, u64), ValueError> {
    /// nginx's: eight pages.
    const BYTES_MIN: u64 = 8 * 4096;
    let wrong = || ValueError(format!("invalid zone size \"zone={text}\""));
    let (name, size) = text.split_once(':').ok_or_else(wrong)?;
    let bytes = value::size(size.as_bytes()).ok_or_else(wrong)?;
    if bytes < BYTES_MIN {
        return Err(ValueError(format!("zone \"{name}\" is too small")));
    }
    Ok((name.to_owned(), bytes))
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

/// Milliseconds on a clock that nobody sets.
fn millis() -> i64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let passed = turn::instant().saturating_duration_since(*BEGUN).as_millis();
    i64::try_from(passed).unwrap_or(i64::MAX)
}

/// What a bucket holds with one request more; an error: more than `burst`.
fn excess(state: &State, now: i64, rate: i64, burst: i64) -> Result<i64, i64> {
    // Another worker's turn may have begun later.
    let passed = (now - state.last).max(0);
    let excess = (state.excess - rate * passed / 1000 + REQUEST).max(0);
    if excess > burst { Err(excess) } else { Ok(excess) }
}

/// What a limit of a request counts.
struct Bucket<'c> {
    /// Its place among the limits of the location.
    at: usize,
    limit: &'c Limit,
    rate: i64,
    state: Arc<Mutex<State>>,
    /// With this request.
    excess: i64,
}

/// Judges a request by all of its limits and, if none refuses, counts it for each. An error: the place of the first
/// that refuses, and what it would hold.
///
/// All are locked meanwhile: what one worker counts another one sees, and a request that a limit refuses never counts
/// for others.
fn count(buckets: &mut [Bucket<'_>], now: i64) -> Result<(), (usize, i64)> {
    // In an order that is not the configuration's, so that no two wait for each other.
    buckets.sort_unstable_by(|a, b| a.limit.zone.cmp(&b.limit.zone));
    let mut refused: Option<(usize, i64)> = None;
    let mut locked = Vec::with_capacity(buckets.len());
    for bucket in buckets {
        let state = bucket.state.lock().unwrap_or_else(PoisonError::into_inner);
        match excess(&state, now, bucket.rate, bucket.limit.burst) {
            Ok(excess) => bucket.excess = excess,
            Err(excess) if refused.is_none_or(|(first, _)| bucket.at < first) => {
                refused = Some((bucket.at, excess));
            }
            Err(_) => {}
        }
        locked.push((state, bucket.excess));
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    for (mut state, excess) in locked {
        *state = State { excess, last: now.max(state.last) };
    }
    Ok(())
}

/// Counts the request, once for all of its passes.
///
/// # Source
/// nginx, `ngx_http_limit_req_module`: every limit of the location counts, the longest delay holds.
pub fn pass(exchange: &mut Exchange) -> Step {
    let config = Rc::clone(&exchange.conf);
    let conf = &config.location(exchange.location).limit_req;
    if conf.limit_req.is_empty() || exchange.limit_req_status.is_some() {
        return Step::Next;
    }
    let mut buckets = Vec::new();
    for (at, limit) in conf.limit_req.iter().enumerate() {
        let Some(zone) = config.limits.req.get(&limit.zone) else { continue };
        let key = zone.key.value(exchange);
        if key.is_empty() {
            continue;
        }
        let fresh = || Ok::<_, ()>(Arc::new(Mutex::new(State { excess: -REQUEST, last: 0 })));
        let Ok(state) = zone.states.get_or_insert_with(&key, fresh) else { continue };
        buckets.push(Bucket { at, limit, rate: zone.rate, state, excess: 0 });
    }
    if let Err((at, excess)) = count(&mut buckets, millis()) {
        return reject(exchange, conf, excess, &conf.limit_req[at].zone);
    }
    let wait = |bucket: &Bucket<'_>| {
        bucket.excess.saturating_sub(bucket.limit.delay).max(0) * 1000 / bucket.rate
    };
    // Of those that make it wait as long the first is told of.
    let longest = buckets.iter().max_by_key(|bucket| (wait(bucket), Reverse(bucket.at)));
    let Some(bucket) = longest else { return Step::Next };
    let (longest, excess, zone) = (wait(bucket), bucket.excess, &bucket.limit.zone);
    if longest == 0 {
        exchange.limit_req_status = Some(Verdict::Passed);
        return Step::Next;
    }
    let dry = if conf.limit_req_dry_run { ", dry run" } else { "" };
    let shown = thousandths(excess);
    let text = format!("delaying request{dry}, excess: {shown}, by zone \"{zone}\"");
    error::request(exchange, conf.limit_req_log_level.below(), &text);
    if conf.limit_req_dry_run {
        exchange.limit_req_status = Some(Verdict::DelayedDryRun);
        return Step::Next;
    }
    exchange.limit_req_status = Some(Verdict::Delayed);
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
        exchange.limit_req_status = Some(Verdict::RejectedDryRun);
        return Step::Next;
    }
    exchange.limit_req_status = Some(Verdict::Rejected);
    Step::Done(crate::handlers::Outcome::Status(conf.limit_req_status.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let state = |excess, last| State { excess, last };
        // The first request of a key is no excess.
        assert_eq!(excess(&state(-REQUEST, 5000), 5000, 1000, 0), Ok(0));
        assert_eq!(excess(&state(0, 5000), 5000, 1000, 0), Err(1000));
        assert_eq!(excess(&state(0, 5000), 5000, 1000, 1000), Ok(1000));
        assert_eq!(excess(&state(1000, 5000), 5500, 1000, 2000), Ok(1500));
        assert_eq!(excess(&state(1000, 5000), 9000, 1000, 2000), Ok(0));
        // Of a worker whose turn began earlier.
        assert_eq!(excess(&state(1000, 5000), 4000, 1000, 2000), Ok(2000));
        assert_eq!(thousandths(1005), "1.005");
    }

    fn limit(zone: &str, burst: i64) -> Limit {
        Limit { zone: zone.into(), burst: burst * REQUEST, delay: 0 }
    }

    type Bound<'c> = (&'c Limit, &'c Arc<Mutex<State>>);

    fn bucket<'c>((at, (limit, state)): (usize, &Bound<'c>)) -> Bucket<'c> {
        Bucket { at, limit, rate: 1000, state: Arc::clone(state), excess: 0 }
    }

    /// Asks 1000 times in each of eight threads at one moment; how many were admitted.
    fn admitted(limits: &[Bound<'_>]) -> usize {
        let admitted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for turn in 0..8 {
                let admitted = &admitted;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let mut buckets: Vec<_> = limits.iter().enumerate().map(bucket).collect();
                        if turn % 2 == 1 {
                            buckets.reverse();
                        }
                        let is_admitted = count(&mut buckets, 5000).is_ok();
                        admitted.fetch_add(usize::from(is_admitted), Ordering::Relaxed);
                    }
                });
            }
        });
        admitted.into_inner()
    }

    fn fresh() -> Arc<Mutex<State>> {
        Arc::new(Mutex::new(State { excess: -REQUEST, last: 0 }))
    }

    #[test]
    fn workers_that_count_at_the_same_moment_admit_no_more_than_one_would() {
        // The first, and the burst.
        assert_eq!(admitted(&[(&limit("a", 99), &fresh())]), 100);
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
        // The first in the configuration is told of.
        let mut refused = [bucket((1, &all[0])), bucket((0, &all[1]))];
        assert_eq!(count(&mut refused, 5000), Err((0, 50 * REQUEST)));
    }

    #[test]
    fn what_is_written_is_checked() {
        let error = |text: &str| crate::testing::try_config(text).err().unwrap_or_default();
        let zone = |rest: &str| error(&format!("http {{ limit_req_zone $uri {rest}; }}"));
        assert!(zone("zone=a:1m rate=0r/s").contains("invalid rate \"rate=0r/s\""));
        assert!(zone("zone=a:1k rate=1r/s").contains("zone \"a\" is too small"));
        assert!(zone("zone=a rate=1r/s").contains("invalid zone size \"zone=a\""));
        assert!(zone("rate=1r/s burst=2").contains("invalid parameter \"burst=2\""));
        let limit = |rest: &str| error(&format!("http {{ server {{ limit_req {rest}; }} }}"));
        assert!(limit("burst=5").contains("must have \"zone\" parameter"));
        assert!(limit("zone=a burst=x").contains("invalid burst value \"burst=x\""));
        let twice =
            "limit_req_zone $uri zone=a:1m rate=1r/s; limit_req zone=a; limit_req zone=a burst=5;";
        assert!(
            error(&format!("http {{ {twice} }}")).contains("\"limit_req\" directive is duplicate")
        );
        assert!(limit("zone=a").contains("zero size shared memory zone \"a\""));
    }
}
