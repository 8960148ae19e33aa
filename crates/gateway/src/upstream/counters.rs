//! What is counted of groups and their peers.

use super::Upstreams;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::Add as _;
use std::sync::LazyLock;
use std::time::Duration;
use yorozu_kernel::base::report::{Report, Value as Figure};
use yorozu_kernel::base::tally::{HISTOGRAM, Histogram, Named, Tally};
use yorozu_kernel::exchange::conf::Config;
use yorozu_kernel::exchange::figures::Section;
use yorozu_upstream::PeerFigures;

/// Requests that a peer was asked for, also when another one was asked after it.
const ASKED: usize = 0;
const FAILED: usize = 1;
/// Times until answers were whole.
const TIMES: usize = 2;
const CELLS: usize = TIMES + HISTOGRAM;

/// By the group's name: a reload counts on.
static GROUPS: Named = Named::new(CELLS);

/// The name under which groups are counted that variables spell: there is no end of those.
const SPELLED: &str = "(variable)";

/// The counters of a group that the configuration names.
pub fn of(name: &str) -> &'static Tally {
    GROUPS.of(name)
}

/// The counters of all groups that variables spell.
pub fn of_spelled() -> &'static Tally {
    static TALLY: LazyLock<&'static Tally> = LazyLock::new(|| GROUPS.of(SPELLED));
    &TALLY
}

/// A peer's answer ended after this time.
pub fn answered(tally: &Tally, time: Duration) {
    tally.with(|cells| {
        cells.add(ASKED, 1);
        cells.observe(TIMES, time);
    });
}

/// A peer failed to answer.
pub fn failed(tally: &Tally) {
    tally.with(|cells| {
        cells.add(ASKED, 1);
        cells.add(FAILED, 1);
    });
}

/// What `api` shows.
pub const SECTIONS: &[Section] =
    &[Section::by_name("http/upstreams", figures, ("upstream not found", "UpstreamNotFound"))];

/// The groups of a configuration as the console shows them, also those that have no block of their own.
pub fn groups(config: &Config) -> Value {
    let all = config.shared.of::<Upstreams>().iter().map(|upstream| {
        let peers = upstream.group.figures().into_iter().map(|peer| {
            let mut value = of_peer(&peer);
            value["answers"] = json!(peer.answers);
            value["micros"] = json!(peer.answer_micros);
            value
        });
        (upstream.group.name.clone(), json!({ "peers": peers.collect::<Vec<_>>() }))
    });
    all.collect::<Map<_, _>>().into()
}

fn figures(config: &Config) -> Value {
    let all = config.shared.of::<Upstreams>().iter().filter(|upstream| upstream.is_block);
    let all = all.map(|upstream| {
        let name = &upstream.group.name;
        let peers: Vec<_> = upstream.group.figures().iter().map(of_peer).collect();
        let value = json!({ "peers": peers, "zombies": 0, "zone": name });
        (name.clone(), value)
    });
    all.collect::<Map<_, _>>().into()
}

fn of_peer(peer: &PeerFigures) -> Value {
    let mut value = json!({
        "id": peer.id, "server": &*peer.address, "name": peer.server, "backup": peer.backup,
        "weight": peer.weight, "state": peer.state, "active": peer.active,
        "requests": peer.requests, "fails": peer.fails, "unavail": peer.unavailable,
    });
    let optional = [
        ("max_conns", (peer.max_conns > 0).then_some(peer.max_conns as u64)),
        ("header_time", peer.header_time),
        ("response_time", peer.response_time),
    ];
    for (name, number) in optional {
        if let Some(number) = number {
            value[name] = json!(number);
        }
    }
    value
}

/// Adds the metrics of all groups.
pub fn report(config: &Config, report: &mut Report) {
    let groups = GROUPS.sums();
    let family =
        report.counter("yorozu_upstream_requests_total", "Requests that peers were asked for.");
    groups.iter().for_each(|(name, sums)| _ = family.count(&[("upstream", name)], sums[ASKED]));
    let help = "Requests that a peer did not answer, or not as next_upstream wants it.";
    let family = report.counter("yorozu_upstream_failures_total", help);
    groups.iter().for_each(|(name, sums)| _ = family.count(&[("upstream", name)], sums[FAILED]));
    let help = "Time from asking a peer until its answer was whole.";
    let family = report.histogram("yorozu_upstream_seconds", help);
    for (name, sums) in &groups {
        let found = Histogram::of(sums, TIMES);
        family.put(&[("upstream", name)], Figure::Histogram(found));
    }
    let groups: Vec<_> = config.shared.of::<Upstreams>().iter().collect();
    let of_peers =
        |report: &mut Report, name, help, of: fn(&PeerFigures) -> u64, add: fn(u64, u64) -> u64| {
            let family = report.gauge(name, help);
            for upstream in &groups {
                let group = &upstream.group.name;
                // An address that is there more than once is one series: several servers, or one that is written twice.
                let mut by_address = BTreeMap::new();
                for peer in upstream.group.figures() {
                    let value = of(&peer);
                    let of_address = by_address.entry(peer.address);
                    of_address.and_modify(|sum| *sum = add(*sum, value)).or_insert(value);
                }
                for (address, value) in by_address {
                    family.count(&[("upstream", group), ("peer", &address)], value);
                }
            }
        };
    let is_up = |peer: &PeerFigures| u64::from(peer.state == "up");
    of_peers(report, "yorozu_upstream_peer_up", "Whether a peer is asked.", is_up, u64::max);
    let help = "Requests under way at a peer.";
    of_peers(report, "yorozu_upstream_peer_active", help, |peer| peer.active as u64, u64::add);
}
