//! `*_cache_purge`: requests that remove stored pages, in the syntax of nginx's commercial version and of the
//! third-party module.
//!
//! | written | purged by | answer |
//! | --- | --- | --- |
//! | `ZONE KEY` in a location | every request to it | 200 and the key, 412 if nothing was stored |
//! | `METHOD [purge_all] [from all \| ADDRESS ...]` | requests with this method (`on`: PURGE), for their own URL | the same |
//! | `$flag ...` | requests for which a flag is neither empty nor 0, for their own URL | 204, 404 if nothing was stored |
//!
//! A `*` at the end of the key matches any ending. All variants and methods of a key go. Where
//! neither `from` nor `allow` and `deny` of the location restrict purges, this machine may purge. A purge that could not be
//! written to disk, so that it may not outlast the server, is answered with 500.

use super::directives::{From, PurgeRule};
use super::key;
use super::settings::{self, Conf};
use super::url::Scope;
use crate::nodes::{self, By, Told};
use crate::protocol::family::Family;
use bytes::Bytes;
use std::collections::HashSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::{Key, Purge, PurgeMode, StoreError, Zone};
use yorozu_kernel::base::tasks;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::cached::Report;
use yorozu_kernel::exchange::conf::{Config, LocationConf};
use yorozu_kernel::exchange::forwarded;
use yorozu_kernel::exchange::outcome::Outcome;
use yorozu_kernel::exchange::response::Response;
use yorozu_kernel::logging::error::{self, Level};

/// The settings of the gateway whose rule makes the request a purge.
fn rule<'a>(
    exchange: &mut Exchange,
    location: &'a LocationConf,
    families: &[&Family],
) -> Option<&'a Conf> {
    // A location only for purges has no gateway: all families are asked.
    let own = settings::of(location);
    let all = families.iter().map(|family| settings::with_prefix(location, family));
    let mut families = own.into_iter().chain(all);
    let is_own = |conf: &Conf| own.is_some_and(|own| std::ptr::eq(conf, own));
    families.find(|conf| match &conf.cache_purge {
        PurgeRule::Off => false,
        PurgeRule::Key { .. } => true,
        PurgeRule::Method { method, .. } => {
            is_own(conf) && exchange.request.method_text() == method
        }
        PurgeRule::Flags(flags) => is_own(conf) && flags.iter().any(|flag| flag.is_true(exchange)),
    })
}

/// Whether a request to the location can be a purge; `families`: those whose pages may be stored.
pub fn is_possible(location: &LocationConf, families: &[&Family]) -> bool {
    let is_off = |conf: &Conf| matches!(conf.cache_purge, PurgeRule::Off);
    !families.iter().all(|family| is_off(settings::with_prefix(location, family)))
}

/// Whether the request is a purge; `families`: as above.
pub fn is_asked(exchange: &mut Exchange, families: &[&Family]) -> bool {
    let conf = Rc::clone(&exchange.conf);
    rule(exchange, conf.location(exchange.location), families).is_some()
}

/// Purges what the request asks for. `has_rules`: `allow` and `deny` name the client, and it was let in.
pub async fn run(exchange: &mut Exchange, families: &[&Family], has_rules: bool) -> Outcome {
    let config = Rc::clone(&exchange.conf);
    let location = config.location(exchange.location);
    let Some(conf) = rule(exchange, location, families) else { return Outcome::Status(500) };
    if !is_allowed(exchange, &conf.cache_purge, has_rules) {
        let text =
            "purge refused: only local clients may, unless \"allow\" or \"from\" names the client";
        error::request(exchange, Level::Error, text);
        return Outcome::Status(403);
    }
    let zones = match conf.cache_purge.zone() {
        Some(name) => config.zones.get(name).cloned().into_iter().collect(),
        None => match key::zones(exchange, conf) {
            Ok(zones) => zones,
            Err(status) => return Outcome::Status(status),
        },
    };
    if zones.is_empty() {
        return Outcome::Status(404);
    }
    let (purges, shown) = purges(exchange, conf, &zones);
    if exchange.doubt.is_open() {
        // Which pages are meant.
        return Outcome::Status(500);
    }
    let (mut count, mut told, mut is_durable) = (0, None::<Told>, true);
    for (zone, purges) in purges {
        match everywhere(&config, &zone, purges, PurgeMode::Hard).await {
            Ok((counts, of_bus)) => {
                count += counts.iter().sum::<usize>();
                if let Some(of_bus) = of_bus {
                    told.get_or_insert_default().join(of_bus);
                }
            }
            Err(problem) => {
                error::request(exchange, Level::Crit, &problem.0);
                is_durable = false;
            }
        }
    }
    if !is_durable {
        let text = "purged pages may be back after a restart: the error log says why\n";
        return answer(self::text(500, text.to_owned()), None);
    }
    exchange.cache_report = Report::default();
    let told = match told {
        Some(told) => Some(settled(&config, told).await),
        None => None,
    };
    match (&conf.cache_purge, count) {
        // An error page has no place for it: the other nodes may have had the page.
        (PurgeRule::Flags(_), 0) if told.is_none() => Outcome::Status(404),
        (PurgeRule::Flags(_), 0) => answer(Response::new(404), told),
        (PurgeRule::Flags(_), _) => answer(Response::new(204), told),
        (_, 0) if told.is_none() => Outcome::Status(412),
        (_, 0) => answer(text(412, format!("purged 0: {shown}\n")), told),
        (_, count) => answer(text(200, format!("purged {count}: {shown}\n")), told),
    }
}

/// An answer, with what came of the purge on the other nodes.
fn answer(mut response: Response, told: Option<Told>) -> Outcome {
    if let Some(told) = told {
        response.add(Bytes::from_static(b"X-Purge-Bus"), told.text());
    }
    Outcome::Respond(Box::new(response))
}

fn text(status: u16, text: String) -> Response {
    Response::with_body(status, Bytes::from_static(b"text/plain"), text)
}

fn is_allowed(exchange: &Exchange, rule: &PurgeRule, has_rules: bool) -> bool {
    let ip = exchange.remote.ip();
    match rule {
        PurgeRule::Method { from: Some(From::All), .. } => true,
        PurgeRule::Method { from: Some(From::Networks(networks)), .. } => {
            networks.iter().any(|network| network.matches(ip))
        }
        _ if has_rules => true,
        _ => forwarded::is_from_here(exchange),
    }
}

/// What the request's key means in these zones, or its URL in those of its site, for GET and HEAD; and the key as text.
fn purges(exchange: &mut Exchange, conf: &Conf, zones: &[Arc<Zone>]) -> (InZones, String) {
    let (in_zones, may_end) = match &conf.cache_purge {
        PurgeRule::Method { takes_all: true, .. } => {
            let all = zones.iter().map(|zone| (Arc::clone(zone), vec![Purge::All]));
            return (all.collect(), "everything".to_owned());
        }
        PurgeRule::Key { key: template, .. } => {
            let key = |exchange: &mut Exchange| Key::new(template.value(exchange));
            let keys: Vec<Key> =
                key::of_get_and_head(exchange, key).iter().flat_map(spellings).collect();
            (zones.iter().map(|zone| (Arc::clone(zone), keys.clone())).collect(), true)
        }
        // `%2a` in a URL is one, too, where the key holds the decoded path.
        _ => {
            let may_end = exchange.request.target().ends_with(b"*");
            (Scope::Site.keys(exchange, Some(conf)), may_end)
        }
    };
    let shown = in_zones.first().and_then(|(_, keys)| keys.first());
    let shown = shown.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    (of_keys(in_zones, may_end), shown.unwrap_or_default())
}

/// The keys that a key spelled by a purge location stands for: a captured path is decoded, one in `$request_uri` is as its
/// client encoded it, in upper or lower case.
fn spellings(key: &Key) -> Vec<Key> {
    let is_encoded = |byte: u8| !byte.is_ascii_graphic() || b"\"<>\\^`{|}".contains(&byte);
    let mut found = vec![key.clone()];
    let text = key.as_bytes();
    if text.iter().any(|byte| is_encoded(*byte)) {
        let spelled = |digits: &[u8; 16]| {
            let mut out = Vec::with_capacity(text.len() + 2);
            for byte in text {
                match is_encoded(*byte) {
                    false => out.push(*byte),
                    true => out.extend([
                        b'%',
                        digits[usize::from(byte >> 4)],
                        digits[usize::from(byte & 15)],
                    ]),
                }
            }
            Key::new(out.into())
        };
        found.extend([b"0123456789ABCDEF", b"0123456789abcdef"].map(spelled));
    }
    found
}

/// Purges by zone.
pub type InZones = Vec<(Arc<Zone>, Vec<Purge>)>;

/// Purges of pages, or with `*` at the end of a key of every key that begins so, if it `may_end` like that.
pub fn of_keys(in_zones: Vec<(Arc<Zone>, Vec<Key>)>, may_end: bool) -> InZones {
    let of_key = |key: Key| match key.as_bytes().strip_suffix(b"*").filter(|_| may_end) {
        Some(prefix) => Purge::Prefix(Bytes::copy_from_slice(prefix)),
        None => Purge::Page(key),
    };
    let of_keys = |keys: Vec<Key>| keys.into_iter().map(of_key).collect();
    in_zones.into_iter().map(|(zone, keys)| (zone, of_keys(keys))).collect()
}

/// A purge that the running server keeps to, and the next one may not know of: a line for the log, of level `crit`.
pub struct NotDurable(pub String);

/// Purges, all at once, on a thread that may block; how many stored responses each matched.
///
/// # Errors
/// Neither could the files be removed nor the purge noted.
pub async fn purge(
    zone: &Arc<Zone>,
    purges: Vec<Purge>,
    mode: PurgeMode,
) -> Result<Vec<usize>, NotDurable> {
    let zone = Arc::clone(zone);
    let work = move || nodes::purge(&zone, &purges, mode, By::Operator);
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(counts)) => Ok(counts),
        Ok(Err(problem)) => Err(NotDurable(StoreError::to_string(&problem))),
        Err(_) => Err(NotDurable("the purge was interrupted".to_owned())),
    }
}

/// As [`purge`], and tells the other nodes; what came of that, if there are any.
///
/// # Errors
/// As [`purge`]; the other nodes are told all the same.
pub async fn everywhere(
    config: &Config,
    zone: &Arc<Zone>,
    purges: Vec<Purge>,
    mode: PurgeMode,
) -> Result<(Vec<usize>, Option<Told>), NotDurable> {
    let of_others = purges.clone();
    let of_task = Arc::clone(zone);
    let work = async move { purge(&of_task, purges, mode).await };
    let interrupted = || NotDurable("the purge was interrupted".to_owned());
    let done = spread(config, zone, &of_others, mode, work, |_| true).await;
    let (done, told) = done.ok_or_else(interrupted)?;
    done.map(|counts| (counts, told))
}

/// Does a purge on this node by `work`, then tells the others, unless it turns out that nothing `is_done`; also if the
/// client goes meanwhile. `None` if that panicked.
pub async fn spread<T: 'static>(
    config: &Config,
    zone: &Arc<Zone>,
    purges: &[Purge],
    mode: PurgeMode,
    work: impl Future<Output = T> + 'static,
    is_done: fn(&T) -> bool,
) -> Option<(T, Option<Told>)> {
    let (Some(bus), Some(name)) = (nodes::bus(config), config.zone_name(zone)) else {
        return Some((work.await, None));
    };
    let (bus, foreseen) = (Arc::clone(bus), bus.foreseen(name, purges.into(), mode));
    let task = tasks::of_request(async move {
        let done = work.await;
        if !is_done(&done) {
            return (done, None);
        }
        (done, Some(bus.publish(foreseen).await))
    });
    task.await.ok()
}

/// Waits for the other nodes, where the configuration says so.
pub async fn settled(config: &Config, told: Told) -> Told {
    match nodes::bus(config) {
        Some(bus) => bus.settle(told).await,
        None => told,
    }
}

/// A tag of one host's pages, as the cache has it; of all hosts' without a host.
pub fn tag(host: &[u8], tag: &[u8]) -> Bytes {
    [host, b"\0", tag].concat().into()
}

/// Most bytes of one answer's tags together, and most tags; chosen above what WordPress plugins bound
/// themselves to (32,512 bytes). What is beyond is not tagged, so it is not stored either.
pub const TAGS_BYTES_MAX: usize = 64 * 1024;
const TAGS_MAX: usize = 4096;

/// The tags of an answer for `host`, parted by spaces or commas; `None` if there are too many.
pub fn tags<'a>(host: &[u8], lines: impl Iterator<Item = &'a [u8]>) -> Option<Vec<Bytes>> {
    let (mut found, mut seen, mut bytes) = (Vec::new(), HashSet::new(), 0);
    for line in lines {
        for word in line.split(|byte| matches!(byte, b' ' | b',' | b'\t')) {
            if word.is_empty() {
                continue;
            }
            bytes += word.len();
            let tag = tag(host, word);
            if seen.insert(tag.clone()) {
                found.push(tag);
            }
            if bytes > TAGS_BYTES_MAX || found.len() > TAGS_MAX {
                return None;
            }
        }
    }
    Some(found)
}
