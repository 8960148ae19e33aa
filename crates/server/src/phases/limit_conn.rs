//! `limit_conn`: how many requests of a key may be under way at once.

use super::Step;
use super::limit_req::name_and_size;
use crate::config::directive::*;
use crate::config::template::Template;
use crate::config::types::Status;
use crate::exchange::Exchange;
use crate::logging::error::{self, Level};
use bytes::Bytes;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a state, by which nginx's manual counts how many a zone holds.
const STATE_BYTES: u64 = 64;

#[derive(Debug, Default)]
struct States(Mutex<HashMap<Bytes, u32>>);

impl States {
    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, u32>> {
        // Each use is one step: a panic elsewhere cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `limit_conn_zone key zone=name:size`
#[derive(Clone, Debug)]
pub struct Zone {
    key: Template,
    key_text: Bytes,
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

/// One request of a key under way; counted while it lives.
#[derive(Debug)]
pub struct Lease {
    states: Arc<States>,
    key: Bytes,
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

/// `limit_conn zone number`
#[derive(Clone, Debug)]
pub struct Limit {
    zone: String,
    count: u32,
}

impl Setting for Vec<Limit> {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let mut limits = Self::new();
        limits.again(args)?;
        Ok(limits)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        let (zone, number) = (args.text(0), args.text(1));
        let wrong = || ValueError(format!("invalid number of connections \"{number}\""));
        let count = number.parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        if count > 65_535 {
            return Err(ValueError::new("connection limit must be less 65536"));
        }
        if self.iter().any(|limit| limit.zone == zone) {
            return Err(args.duplicate());
        }
        self.push(Limit { zone, count });
        Ok(())
    }
}

/// Is every zone defined?
///
/// # Errors
/// One is not.
pub fn check(conf: &Conf, env: &crate::config::env::Env) -> Result<(), ValueError> {
    let zones = env.limits.borrow();
    match conf.limit_conn.iter().find(|limit| !zones.conn.contains_key(&limit.zone)) {
        Some(limit) => Err(ValueError(format!("zero size shared memory zone \"{}\"", limit.zone))),
        None => Ok(()),
    }
}

settings! {
    in limit_conn;
    /// How many requests of a key may be under way.
    limit_conn: Vec<Limit> = none, TWO, HTTP_SERVER_LOCATION;
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
    "A zone of keys whose requests under way are counted.",
)];

fn zone(args: &Args<'_>) -> Result<(), ValueError> {
    let text = args.text(1);
    let Some(value) = text.strip_prefix("zone=") else {
        return Err(args.invalid_parameter(args.word(1)));
    };
    let (name, bytes) = name_and_size(value)?;
    let key = Template::compile(args.word(0), args.env)?;
    let zone = Zone { key, key_text: args.words[0].clone(), bytes, states: Arc::default() };
    let zones = &mut args.env.limits.borrow_mut().conn;
    if let Some(old) = zones.get(&name) {
        let key = String::from_utf8_lossy(&old.key_text);
        let text = format!("limit_conn_zone \"{name}\" is already bound to key \"{key}\"");
        return Err(ValueError(text));
    }
    zones.insert(name, zone);
    Ok(())
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
pub fn pass(exchange: &mut Exchange) -> Step {
    let config = Rc::clone(&exchange.conf);
    let conf = &config.location(exchange.location).limit_conn;
    if conf.limit_conn.is_empty() || exchange.limit_conn_status.is_some() {
        return Step::Next;
    }
    for limit in &conf.limit_conn {
        let Some(zone) = config.limits.conn.get(&limit.zone) else { continue };
        let key = zone.key.value(exchange);
        if key.is_empty() {
            continue;
        }
        exchange.limit_conn_status = Some(Verdict::Passed);
        let is_admitted = {
            let mut states = zone.states.lock();
            let count = states.get(&key).copied().unwrap_or(0);
            let is_full = count == 0 && states.len() as u64 >= zone.bytes / STATE_BYTES;
            let is_admitted = count < limit.count && !is_full;
            if is_admitted {
                states.insert(key.clone(), count + 1);
            }
            is_admitted
        };
        if is_admitted {
            exchange.leases.push(Lease { states: Arc::clone(&zone.states), key });
            continue;
        }
        let dry = if conf.limit_conn_dry_run { ", dry run," } else { "" };
        let text = format!("limiting connections{dry} by zone \"{}\"", limit.zone);
        error::request(exchange, conf.limit_conn_log_level, &text);
        exchange.leases.clear();
        if conf.limit_conn_dry_run {
            exchange.limit_conn_status = Some(Verdict::RejectedDryRun);
            return Step::Next;
        }
        exchange.limit_conn_status = Some(Verdict::Rejected);
        return Step::Done(crate::handlers::Outcome::Status(conf.limit_conn_status.0));
    }
    Step::Next
}
