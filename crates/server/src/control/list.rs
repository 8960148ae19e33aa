//! `yorozu cache stat` and `yorozu cache ls`.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;
use yorozu_cache::{EntryHead, Key, VariantId, Zone};
use yorozu_http::field::argument;
use yorozu_kernel::base::readable::harmless;
use yorozu_kernel::base::turn::unix_millis_of;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::Config;

/// Pages listed where no `limit` says.
const LIMIT: usize = 1000;

/// All zones' figures and folders, as JSON.
pub(super) fn stat(config: &Config) -> String {
    let all: Vec<_> = config.zones.values().map(Arc::clone).collect();
    let mut found = figures(config, &all);
    for (name, zone) in &config.zones {
        found["zones"][name]["disk"]["path"] =
            zone.options().disk.path.display().to_string().into();
    }
    format!("{found}\n")
}

/// The figures of some zones, as JSON.
pub(super) fn figures(config: &Config, shown: &[Arc<Zone>]) -> Value {
    let is_shown = |zone: &Arc<Zone>| shown.iter().any(|shown| Arc::ptr_eq(shown, zone));
    let zones = config.zones.iter().filter(|(_, zone)| is_shown(zone)).map(|(name, zone)| {
        let (usage, options) = (zone.usage(), zone.options());
        let memory = json!({
            "pages": usage.memory_entries, "bytes": usage.memory_bytes, "bytes_max": usage.memory_bound,
        });
        let names = json!({ "bytes": usage.names_bytes, "bytes_max": usage.names_bytes_max });
        let disk = json!({
            "pages": usage.disk_files, "pages_max": options.disk.files_max,
            "bytes": usage.disk_bytes, "bytes_max": options.disk.max_size,
            "waiting_bytes": usage.waiting_bytes, "unwritten": usage.unwritten,
        });
        (name.clone(), json!({ "memory": memory, "names": names, "disk": disk }))
    });
    json!({ "server": "yorozu", "zones": zones.collect::<Map<_, _>>() })
}

/// A line of JSON for each page; one that has `limit` alone ends a list that is not whole.
pub(super) async fn ls(exchange: &Exchange) -> Result<String, String> {
    let text = |name: &[u8]| {
        let value = argument(&exchange.args, name)?;
        let value = yorozu_http::uri::unescape(value);
        Some(String::from_utf8_lossy(&value).into_owned())
    };
    let limit = match text(b"limit") {
        None => LIMIT,
        Some(limit) => {
            limit.parse().map_err(|_| format!("invalid limit \"{limit}\", expected a number"))?
        }
    };
    let prefix = text(b"prefix").unwrap_or_default();
    let wanted = text(b"zone");
    let zones = &exchange.conf.zones;
    if let Some(name) = wanted.as_ref().filter(|name| !zones.contains_key(*name)) {
        let known = zones.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(format!("cache zone \"{name}\" is unknown, expected one of: {known}"));
    }
    let now = unix_millis_of(SystemTime::now());
    let mut out = String::new();
    let mut left = limit;
    for (name, zone) in zones {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let (zone, prefix) = (Arc::clone(zone), prefix.clone());
        let heads = tokio::task::spawn_blocking(move || zone.list(prefix.as_bytes(), left)).await;
        let heads = heads.unwrap_or_default();
        left -= heads.len();
        for head in heads {
            line(&mut out, name, &head, now);
        }
    }
    if left == 0 {
        let _ = writeln!(out, "{}", json!({ "limit": limit }));
    }
    Ok(out)
}

fn line(out: &mut String, zone: &str, head: &EntryHead, now: i64) {
    let left = (head.fresh_until - now).div_euclid(1000);
    let state = if head.is_fresh(now) { "fresh" } else { "stale" };
    let page = json!({
        "zone": zone, "state": state, "seconds": left.abs(), "status": head.status,
        "bytes": head.body_bytes, "key": show_key(&head.key),
    });
    let _ = writeln!(out, "{page}");
}

/// A key as a person reads it; that of another address of the page, and of a further variant, holds digests.
pub(super) fn show_key(key: &[u8]) -> String {
    let key = Key::new(Bytes::copy_from_slice(key));
    let (page, address) = (key.page(), key.address());
    let mut shown = harmless(&String::from_utf8_lossy(page.as_bytes()));
    let mut add = |what: &str, rest: &[u8]| {
        let digest = &rest[rest.len() - size_of::<VariantId>()..];
        let _ = write!(shown, " ({what} {})", base16ct::lower::encode_string(&digest[..4]));
    };
    if address != page {
        add("address", address.as_bytes());
    }
    if key != address {
        add("variant", key.as_bytes());
    }
    shown
}
