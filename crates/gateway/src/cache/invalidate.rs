//! Invalidation: what a request that may have changed a page does to the stored one.

use super::directives::Invalidate;
use super::key;
use super::plan::Plan;
use super::purge;
use super::settings::Conf;
use super::url::Scope;
use crate::nodes::{self, By};
use crate::protocol::codec::Head;
use std::sync::Arc;
use yorozu_cache::{Key, Making, Purge, PurgeMode, StoreError, Zone};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::request::Method;
use yorozu_kernel::logging::error::{self, Level};

/// Removes the stored page of the request's URL after the upstream answered `status` to a method that is
/// not known to be safe; all variants, under GET and HEAD.
///
/// # Source
/// RFC 9111, section 4.4. nginx does not do it.
pub async fn after(exchange: &mut Exchange, conf: &Conf, status: u16) {
    if !is_due(exchange, conf) || !(200..400).contains(&status) {
        return;
    }
    if key::zones(exchange, conf).is_ok_and(|zones| !zones.is_empty()) {
        for (zone, keys) in Scope::Site.keys(exchange, Some(conf)) {
            remove(exchange, conf, &zone, keys).await;
        }
    }
}

/// Whether stored pages may go with what the upstream answers to the request.
pub fn is_due(exchange: &Exchange, conf: &Conf) -> bool {
    let method = exchange.request.method_text();
    let is_unsafe = !is_safe(method) && !conf.cache_methods.admits(method);
    is_unsafe && conf.cache_invalidate != Invalidate::Off && conf.zone().is_some()
}

/// Removes the pages of keys from a zone, as far as `*_cache_invalidate` says.
async fn remove(exchange: &mut Exchange, conf: &Conf, zone: &Arc<Zone>, mut keys: Vec<Key>) {
    let takes_all = conf.cache_invalidate == Invalidate::On;
    let own = posted(exchange).filter(|own| Arc::ptr_eq(&own.zone, zone));
    // First: it applies to what is stored from here on; what was stored before is found.
    for key in &keys {
        zone.changed(key, takes_all, own.as_ref().map(|own| &*own.making));
    }
    let mut here: Vec<(Key, Option<Vec<Key>>)> =
        keys.iter().map(|key| (key.clone(), zone.stored_of(key))).collect();
    here.retain(|(_, stored)| !stored.as_ref().is_some_and(Vec::is_empty));
    if !takes_all {
        // Other nodes may have them all the same; where pages are removed by what they say, each decides by its own.
        let is_here = |key: &Key| here.iter().any(|(here, _)| here == key);
        let (present, absent): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_here);
        if let Some(tier) = nodes::tier(&exchange.conf, zone) {
            for key in absent {
                // This one would get it back from the tier that nodes share; under the key of a URL no page is there, but
                // pages may bear it.
                match Purge::Page(key.clone()).is_beside() {
                    true => tier.leave(&key),
                    false => tier.forget(&key).await,
                }
            }
        }
        keys = present;
    }
    if keys.is_empty() {
        return;
    }
    let purges: Vec<Purge> = keys.into_iter().map(Purge::Page).collect();
    let (of_task, now) = (Arc::clone(zone), exchange.now());
    let remove = move || {
        let is_meant = |(key, stored): (Key, Option<Vec<Key>>)| {
            (takes_all || says_its_lifetime(&of_task, &key, stored, now)).then_some(key)
        };
        let purges: Vec<Purge> = here.into_iter().filter_map(is_meant).map(Purge::Page).collect();
        if purges.is_empty() {
            return Ok(takes_all);
        }
        let by = By::Change(own.as_ref().map(|own| &*own.making));
        nodes::purge(&of_task, &purges, PurgeMode::Hard, by).map(|_| true)
    };
    // Begins once it is foreseen.
    let work = async move { tokio::task::spawn_blocking(remove).await };
    let is_done = |done: &Result<_, _>| !matches!(done, Ok(Ok(false)));
    let conf = &exchange.conf;
    let done = purge::spread(conf, zone, &purges, PurgeMode::Hard, work, is_done).await;
    if let Some((Ok(Err::<bool, StoreError>(problem)), _)) = done {
        error::request(exchange, Level::Crit, &problem.to_string());
    }
}

/// Whether the page says itself how long it is fresh, in any of its `stored` variants. `true` for what is not found: it may
/// be out of memory, and on its way to its file. Blocks.
fn says_its_lifetime(zone: &Zone, page: &Key, stored: Option<Vec<Key>>, now: i64) -> bool {
    /// Variants that are looked at; chosen: all of a page have their lifetime from one place.
    const LOOKED_AT: usize = 16;
    let may_say = |key: &Key| {
        let in_memory = zone.peek(key);
        let found = in_memory.or_else(|| zone.load(key, now).ok()?.map(|(entry, _)| entry));
        found.is_none_or(|entry| !entry.head.is_by_operator)
    };
    match stored {
        Some(keys) => keys.iter().take(LOOKED_AT).any(may_say),
        None => may_say(page),
    }
}

/// An answer that may be stored under another method than its own.
#[derive(Clone)]
pub struct Posted {
    zone: Arc<Zone>,
    making: Arc<Making>,
}

/// The upstream is about to be asked with a POST whose answer may be stored for GET.
pub fn begin(exchange: &mut Exchange, conf: &Conf) {
    if conf.cache_content_location && exchange.request.method == Method::Post {
        if let Ok(Some(zone)) = key::zone(exchange, conf) {
            let making = Arc::new(zone.begin());
            exchange.pass.put(Posted { zone, making });
        }
    }
}

/// What the answer to the POST under way began as.
fn posted(exchange: &Exchange) -> Option<Posted> {
    let of_plan = |plan: &Plan| {
        let making = Arc::clone(plan.making.as_ref()?);
        Some(Posted { zone: Arc::clone(&plan.zone), making })
    };
    exchange.pass.of::<Posted>().cloned().or_else(|| exchange.pass.of::<Plan>().and_then(of_plan))
}

/// `*_cache_content_location`: lets the answer to a POST be stored for GET, if it says that it is the page
/// of the request's own URL.
///
/// # Source
/// RFC 9110, section 9.3.3; RFC 9111, section 3.
pub fn plan_for_get(exchange: &mut Exchange, conf: &Conf, head: &Head) {
    let is_asked = conf.cache_content_location && exchange.request.method == Method::Post;
    if !is_asked || head.status != 200 || !is_of_own_url(exchange, head) {
        return;
    }
    let Some(Posted { zone, making }) = posted(exchange) else { return };
    let key = key::with_method(exchange, conf, b"GET");
    exchange.pass.put(Plan { making: Some(making), ..Plan::new(zone, key) });
}

/// Whether `Content-Location` names the request's own URL.
fn is_of_own_url(exchange: &Exchange, head: &Head) -> bool {
    let Some(location) = head.field(b"content-location") else { return false };
    let target = exchange.request.target();
    let path = match location.strip_prefix(b"//").or_else(|| {
        let rest = location.strip_prefix(exchange.scheme())?;
        rest.strip_prefix(b"://")
    }) {
        None => &location[..],
        Some(rest) => {
            let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            if !rest[..slash].eq_ignore_ascii_case(exchange.request.authority()) {
                return false;
            }
            &rest[slash..]
        }
    };
    path == target
}

/// RFC 9110, section 9.2.1; RFC 4918; RFC 3253, section 3.6; RFC 5323. Any other may change something.
fn is_safe(method: &[u8]) -> bool {
    const SAFE: [&[u8]; 7] =
        [b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PROPFIND", b"REPORT", b"SEARCH"];
    SAFE.contains(&method)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no worker waits for a test's files")]
mod tests {
    use super::*;
    use crate::cache::directives::disk_at;
    use yorozu_cache::{EntryHead, ZoneOptions};

    #[test]
    fn what_says_its_lifetime_is_found_where_only_the_disk_has_it() {
        let folder = std::env::temp_dir().join(format!("yorozu-invalidate.{}", std::process::id()));
        let options = ZoneOptions { memory_bytes: 1 << 20, disk: disk_at(folder.clone()) };
        let zone = Zone::open(options).unwrap();
        let page = Key::new("page".into());
        let making = zone.begin();
        let (key, began) = (page.as_bytes().to_vec().into(), making.moment());
        let head = EntryHead { key, began, status: 200, ..EntryHead::default() };
        let entry = Arc::new(zone.seal(head, "text".into(), 0));
        zone.write(&page, &entry, 0, &making).unwrap();
        // While anything is being made, changes are noted.
        let _other = zone.begin();
        zone.changed(&page, false, None);
        assert!(says_its_lifetime(&zone, &page, Some(vec![page.clone()]), 0));
        assert!(!says_its_lifetime(&zone, &page, Some(Vec::new()), 0));
        drop(zone);
        let _ = std::fs::remove_dir_all(folder);
    }
}
