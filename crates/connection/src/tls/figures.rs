//! What is shown of TLS towards clients: handshakes, and until when certificates are valid.

use super::server::ServerTls;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::base::report::Report;
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::exchange::figures::Section;

/// What `api` shows.
pub(super) const SECTIONS: &[Section] = &[Section::one("ssl", |_| {
    json!({
        "handshakes": load(&COUNTERS.handshakes),
        "handshakes_failed": load(&COUNTERS.handshakes_failed),
        "handshake_timeout": load(&COUNTERS.handshakes_late),
        "session_reuses": load(&COUNTERS.handshakes_resumed),
    })
})];

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Adds the metrics.
pub(super) fn report(config: &Config, report: &mut Report) {
    let family = report.counter("yorozu_tls_handshakes_total", "TLS handshakes by their outcome.");
    let resumed = load(&COUNTERS.handshakes_resumed);
    let whole = load(&COUNTERS.handshakes).saturating_sub(resumed);
    for (outcome, count) in [
        ("full", whole),
        ("resumed", resumed),
        ("failed", load(&COUNTERS.handshakes_failed)),
        ("timeout", load(&COUNTERS.handshakes_late)),
    ] {
        family.count(&[("outcome", outcome)], count);
    }
    let family = report.gauge(
        "yorozu_certificate_expiry_seconds",
        "When a server's certificate ceases to be valid, in seconds since 1970.",
    );
    for (name, time) in expiries(config) {
        family.count(&[("name", &name)], time);
    }
}

/// By the first name of each server, the earliest time of its certificates.
fn expiries(config: &Config) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for server in &config.servers {
        let tls: &ServerTls = config.location(server.conf).of();
        if let Some(time) = tls.expiry() {
            let earliest = found.entry(server.name().to_owned()).or_insert(time);
            *earliest = time.min(*earliest);
        }
    }
    found
}
