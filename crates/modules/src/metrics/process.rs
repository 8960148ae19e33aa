//! What is shown of the process itself.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use yorozu_kernel::base::NGINX_VERSION;
use yorozu_kernel::base::counters::COUNTERS;
use yorozu_kernel::base::report::Report;
use yorozu_kernel::base::turn::unix_millis_of;
use yorozu_kernel::exchange::conf::Config;

/// Adds the metrics of the process.
pub(super) fn report(report: &mut Report) {
    let lost = COUNTERS.log_lines_lost.load(Ordering::Relaxed);
    report
        .counter("yorozu_log_lines_lost_total", "Lines that could not be written to a log.")
        .count(&[], lost);
    let respawned = COUNTERS.workers_respawned.load(Ordering::Relaxed);
    let help = "Worker threads that took the place of one that ended by itself.";
    report.counter("yorozu_workers_respawned_total", help).count(&[], respawned);
    let version = [("version", env!("CARGO_PKG_VERSION")), ("nginx", NGINX_VERSION)];
    report.gauge("yorozu_build_info", "The running version; always 1.").count(&version, 1);
}

/// `/processes`
pub(super) fn processes(_: &Config) -> Value {
    json!({ "respawned": COUNTERS.workers_respawned.load(Ordering::Relaxed) })
}

/// `/nginx`
pub(super) fn nginx(config: &Config) -> Value {
    let time = |time: SystemTime| {
        let stamp = Timestamp::from_millisecond(unix_millis_of(time)).unwrap_or_default();
        stamp.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
    };
    let (generation, loaded) = config
        .in_use
        .as_ref()
        .map_or((0, SystemTime::UNIX_EPOCH), |used| (used.number(), used.since()));
    let pid = std::process::id();
    json!({
        "version": NGINX_VERSION,
        "build": concat!("yorozu-", env!("CARGO_PKG_VERSION")),
        "generation": generation,
        "load_timestamp": time(loaded),
        "timestamp": time(SystemTime::now()),
        "pid": pid,
        "ppid": parent(),
    })
}

/// The master process.
fn parent() -> u32 {
    static PARENT: OnceLock<u32> = OnceLock::new();
    *PARENT.get_or_init(std::os::unix::process::parent_id)
}
