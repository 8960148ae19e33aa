//! `limit_conn`: how many requests of a key may be under way at once.

use super::limit_zones::{Counted, Limited, Zones};
use bytes::Bytes;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
pub const MODULE: Module = Module::new("http_limit_conn", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .sharing(&[SharedType::of::<Zones<Connections>>()])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] = &[(
    "limit_conn_status",
    Variable::Builtin(|ex, out| {
        let verdict = ex.states.show(|verdict: &Verdict| *verdict);
        verdict.is_some_and(|verdict| put(out, verdict.name().as_bytes()))
    }),
)];

/// Bytes of a state, by which nginx's manual counts how many a zone holds.
const STATE_BYTES: u64 = 64;

/// The requests of each key that are under way.
#[derive(Debug, Default)]
pub struct States(Mutex<HashMap<Bytes, u32>>);

impl States {
    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, u32>> {
        // Each use is one step: a panic elsewhere cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `limit_conn_zone key zone=name:size`
#[derive(Clone, Copy, Debug)]
pub enum Connections {}

impl Limited for Connections {
    const DIRECTIVE: &'static str = "limit_conn_zone";
    type Rule = ();
    type States = States;

    fn states(_bytes: u64) -> States {
        States::default()
    }

    fn place() -> &'static Place {
        place!()
    }
}

/// What a request is counted in until its response is sent.
#[derive(Default)]
struct Leases(Vec<Lease>);

/// One request of a key under way; counted while it lives.
#[derive(Debug)]
pub struct Lease {
    states: Arc<States>,
    key: Bytes,
}

impl Lease {
    /// Judges and counts, in one step for all workers; `None`: there are as many already, or a zone of `bytes` is full.
    fn take(states: &Arc<States>, key: Bytes, max: u32, bytes: u64) -> Option<Self> {
        let mut locked = states.lock();
        let count = locked.get(&key).copied().unwrap_or(0);
        let is_full = count == 0 && locked.len() as u64 >= bytes / STATE_BYTES;
        if count >= max || is_full {
            return None;
        }
        locked.insert(key.clone(), count + 1);
        Some(Self { states: Arc::clone(states), key })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut states = self.states.lock();
        match states.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            last => {
                debug_assert!(last.is_some(), "a lease gives back what it took, once");
                states.remove(&self.key);
            }
        }
    }
}

/// `limit_conn zone number [upstream]`
#[derive(Clone, Debug)]
pub struct Limit {
    zone: String,
    count: u32,
    counted: Counted,
}

impl Setting for Limit {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let (zone, number) = (args.text(0), args.text(1));
        let wrong = || ValueError(format!("invalid number of connections \"{number}\""));
        let count = number.parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        if count > 65_535 {
            return Err(ValueError::new("connection limit must be less 65536"));
        }
        let counted = match args.word(2) {
            b"" => Counted::All,
            b"upstream" => Counted::ToUpstream,
            other => return Err(args.invalid_parameter(other)),
        };
        Ok(Self { zone, count, counted })
    }

    fn repeats(&self, earlier: &Self) -> bool {
        self.zone == earlier.zone && self.counted == earlier.counted
    }
}

impl Conf {
    /// Whether there are limits for these requests.
    pub fn has(&self, counted: Counted) -> bool {
        self.limit_conn.iter().any(|limit| limit.counted == counted)
    }
}

/// # Errors
/// A zone is not defined.
pub fn check(conf: &Conf, env: &Env) -> Result<(), ValueError> {
    Zones::<Connections>::check(env, conf.limit_conn.iter().map(|limit| &limit.zone))
}

settings! {
    inherit = Draft::inherit, check = check;
    /// How many requests of a key may be in progress. With `upstream`, only requests that reach an upstream count, not hits.
    limit_conn: Vec<Limit> = none, TWO_OR_THREE, HTTP_SERVER_LOCATION;
    /// Whether limits are only counted and logged.
    limit_conn_dry_run: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// The level of refusals in the error log.
    limit_conn_log_level: Level = "error", ONE, HTTP_SERVER_LOCATION;
    /// The status of refusals.
    limit_conn_status: Status = "503", ONE, HTTP_SERVER_LOCATION;
}

pub const OTHERS: &[Directive] = &[Directive::row(
    "limit_conn_zone",
    HTTP,
    Arity::TWO,
    Action::Set(|_, args| zone(args)),
    "A zone of keys whose requests in progress are counted.",
)];

fn zone(args: &Args<'_>) -> Result<(), ValueError> {
    let text = args.text(1);
    let Some(value) = text.strip_prefix("zone=") else {
        return Err(args.invalid_parameter(args.word(1)));
    };
    Zones::<Connections>::define(args, name_and_size(value)?, ())
}

/// `$limit_conn_status`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    Passed,
    Rejected,
    RejectedDryRun,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Rejected => "REJECTED",
            Self::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// Counts the request, once for all of its passes.
///
/// # Source
/// nginx, `ngx_http_limit_conn_module`: counted from the end of the head to the end of the response.
pub fn pass(exchange: &mut Exchange, counted: Counted) -> Step {
    if counted == Counted::All && exchange.states.show(|_: &Verdict| ()).is_some() {
        return Step::Next;
    }
    let config = Rc::clone(&exchange.conf);
    let conf = config.location(exchange.location).of::<Conf>();
    for limit in conf.limit_conn.iter().filter(|limit| limit.counted == counted) {
        let Some(zone) = config.shared.of::<Zones<Connections>>().get(&limit.zone) else {
            continue;
        };
        let key = zone.key.value(exchange);
        if key.is_empty() {
            continue;
        }
        exchange.states.put(Verdict::Passed);
        if let Some(lease) = Lease::take(&zone.states, key, limit.count, zone.bytes) {
            exchange.states.of::<Leases>().0.push(lease);
            continue;
        }
        let dry = if conf.limit_conn_dry_run { ", dry run," } else { "" };
        let text = format!("limiting connections{dry} by zone \"{}\"", limit.zone);
        error::request(exchange, conf.limit_conn_log_level, &text);
        exchange.states.of::<Leases>().0.clear();
        if conf.limit_conn_dry_run {
            exchange.states.put(Verdict::RejectedDryRun);
            return Step::Next;
        }
        exchange.states.put(Verdict::Rejected);
        return Step::Refuse(conf.limit_conn_status.0);
    }
    Step::Next
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn workers_that_count_at_the_same_moment_admit_no_more_than_one_would() {
        const MAX: u32 = 3;
        let (states, at_once, admitted) =
            (Arc::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let Some(lease) = Lease::take(&states, "key".into(), MAX, 1024) else {
                            continue;
                        };
                        admitted.fetch_add(1, Ordering::Relaxed);
                        assert!(at_once.fetch_add(1, Ordering::SeqCst) < MAX as usize);
                        std::thread::yield_now();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        drop(lease);
                    }
                });
            }
        });
        assert!(states.lock().is_empty() && admitted.into_inner() > MAX as usize);
    }

    #[test]
    fn a_full_zone_refuses_further_keys_alone() {
        let states = Arc::default();
        let take = |key: &'static str| Lease::take(&states, key.into(), 2, 2 * STATE_BYTES);
        let leases = [take("a"), take("b"), take("a")];
        assert!(leases.iter().all(Option::is_some) && take("c").is_none() && take("a").is_none());
        drop(leases);
        assert!(take("c").is_some() && states.lock().is_empty());
    }
}
