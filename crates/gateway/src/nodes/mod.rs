//! More than one machine: a purge on one node is done on all, and a page that one made is there for all.
//!
//! Way through: [`purge`](crate::cache::purge) does a purge on its own node and gives it to the [`Bus`] of the
//! configuration. One thread of the process ([`keeper`]) writes it into a Redis stream (`send.rs`), reads what the others
//! wrote (`read.rs`), and asks who has done what (`wait.rs`, of nodes in `members.rs`). Pages of all nodes are in a [`Tier`] (`tier.rs`), and are compared with
//! the purges that this node knows (`marks.rs`). `docs/decisions/0034-nodes.md` says why so.
//!
//! # Invariants
//! - No fault of Redis keeps a node from serving or purging its own pages.
//! - A node serves no page before it knows what the others purged while it was away, or has purged everything.

mod bus;
mod here;
pub mod keeper;
mod lane;
mod link;
mod marks;
mod members;
mod message;
mod outbox;
mod place;
mod read;
mod send;
mod spec;
mod target;
pub mod tier;
mod told;
mod wait;

pub use bus::{Bus, Foreseen};
pub use here::{By, purge};
use lane::Server;
use rustls::ClientConfig;
use spec::Spec;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
pub use tier::Tier;
use tier::TierSpec;
pub use told::Told;
use yorozu_cache::Zone;
use yorozu_kernel::base::report::Report;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::SharedType;
use yorozu_kernel::config::{self, block::Block};
use yorozu_kernel::exchange::conf::Config;
use yorozu_tls::client::believing;
use yorozu_tls::pem::PemFiles;

/// The module.
pub const MODULE: Module = Module::new("cache_nodes", || DIRECTIVES.to_vec())
    .sharing(&[SharedType::of::<Nodes>()])
    .showing(report, &[]);

const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "cache_purge_bus",
        HTTP,
        Arity::ONE_OR_MORE,
        Action::Set(set),
        "Redis server, cluster or sentinels through which this node's purges reach the others: a URL, and stream=, node=, secret=, password=, wait=, timeout=, start_timeout=, ca=.",
    ),
    refused("srcache_fetch", CACHE, "Where OpenResty's srcache requests a stored page."),
    refused("srcache_fetch_skip", CACHE, "When it does not."),
    refused("srcache_store", CACHE, "Where OpenResty's srcache stores a page."),
    refused("srcache_store_skip", CACHE, "When it does not."),
    refused(
        "srcache_response_cache_control",
        CONTROL,
        "Whether OpenResty's srcache respects the lifetime that responses state.",
    ),
    refused("redis_pass", PAGES, "Answers with a value in Redis."),
    refused("redis2_pass", PAGES, "Sends commands to Redis."),
    refused("redis2_query", PAGES, "A command for Redis."),
];

const CACHE: &str = "use \"fastcgi_cache\", and for several nodes \"cache_purge_bus\" and \"shared=\" in the line of its zone (docs/nodes.md); conditions stand in \"fastcgi_cache_bypass\" and \"fastcgi_no_cache\"";
const PAGES: &str = "pages in Redis are \"fastcgi_cache\" here, and for several nodes \"cache_purge_bus\" and \"shared=\" in the line of their zone (docs/nodes.md); other values need an application";

const CONTROL: &str = "use \"fastcgi_cache\" with \"fastcgi_ignore_headers Cache-Control Expires\" where srcache ignores what answers say (docs/nodes.md)";

const fn refused(name: &'static str, why: &'static str, doc: &'static str) -> Directive {
    Directive::row(
        name,
        HTTP_SERVER_LOCATION | LOCATION_IF,
        Arity::ONE_OR_MORE,
        Action::Refused(why),
        doc,
    )
}

/// What a configuration has of other nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    /// `cache_purge_bus`
    pub bus: Option<Arc<Bus>>,
    /// `shared=` of zones.
    shared: Vec<Shared>,
    tiers: OnceLock<Vec<Arc<Tier>>>,
    /// Those of the configuration before.
    earlier: (Option<Arc<Bus>>, Vec<Arc<Tier>>),
}

/// `shared=` of a zone.
#[derive(Debug)]
struct Shared {
    zone: String,
    spec: TierSpec,
    tls: Option<Arc<ClientConfig>>,
}

impl config::shared::Shared for Nodes {
    const SURVIVES: bool = true;

    fn place() -> &'static Place {
        place!()
    }

    fn follow(&mut self, earlier: &Self) {
        self.earlier = (earlier.bus.clone(), earlier.tiers().to_vec());
    }
}

impl Nodes {
    /// The tiers of zones that share their pages.
    fn tiers(&self) -> &[Arc<Tier>] {
        self.tiers.get_or_init(|| {
            let Some(bus) = &self.bus else { return Vec::new() };
            self.shared.iter().map(|shared| self.tier(shared, bus)).collect()
        })
    }

    /// The one of the configuration before, if that was the same.
    fn tier(&self, Shared { zone, spec, tls }: &Shared, bus: &Arc<Bus>) -> Arc<Tier> {
        let is_same = |tier: &&Arc<Tier>| {
            tier.zone == *zone && tier.spec == *spec && Arc::ptr_eq(&tier.bus, bus)
        };
        match self.earlier.1.iter().find(is_same) {
            Some(same) => {
                same.set_tls(tls.clone());
                Arc::clone(same)
            }
            None => Arc::new(Tier::new(zone, spec.clone(), Arc::clone(bus), tls.clone())),
        }
    }
}

/// `shared=` in the line of a zone.
///
/// # Errors
/// What is wrong with it.
pub fn share(args: &Args<'_>, zone: &str, url: &str) -> Result<(), ValueError> {
    let (spec, authorities) = spec::tier(args, url)?;
    let is_tls = |server: &Server| matches!(server, Server::Redis(target) if target.is_tls);
    let tls = tls(args, spec.servers.iter().any(is_tls), authorities.as_deref())?;
    args.env.shared::<Nodes>().shared.push(Shared { zone: zone.to_owned(), spec, tls });
    Ok(())
}

/// Checks what a whole configuration says.
///
/// # Errors
/// Pages are shared and purges are not.
pub fn check(nodes: &Nodes) -> Result<(), ValueError> {
    match (&nodes.bus, nodes.shared.first()) {
        (None, Some(Shared { zone, .. })) => Err(ValueError(format!(
            "zone \"{zone}\" has \"shared=\" without \"cache_purge_bus\": pages that one node purges would come back from there"
        ))),
        _ => Ok(()),
    }
}

/// The shared tier of a zone.
pub fn tier<'a>(config: &'a Config, zone: &Arc<Zone>) -> Option<&'a Arc<Tier>> {
    let tiers = config.shared.of::<Nodes>().tiers();
    if tiers.is_empty() {
        return None;
    }
    let name = config.zone_name(zone)?;
    tiers.iter().find(|tier| tier.zone == name)
}

fn tls(
    args: &Args<'_>,
    is_tls: bool,
    authorities: Option<&Path>,
) -> Result<Option<Arc<ClientConfig>>, ValueError> {
    let files = args.env.shared::<PemFiles>().clone();
    is_tls.then(|| believing(authorities, &files)).transpose()
}

/// The bus of a configuration.
pub fn bus(config: &Config) -> Option<&Arc<Bus>> {
    config.shared.of::<Nodes>().bus.as_ref()
}

fn set(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let spec = Spec::from_args(args)?;
    let tls = tls(args, spec.target.is_tls, spec.authorities.as_deref())?;
    let mut nodes = args.env.shared::<Nodes>();
    if nodes.bus.is_some() {
        return Err(args.duplicate());
    }
    // One that goes on keeps its place, its queue and its connections.
    let earlier = nodes.earlier.0.take();
    nodes.bus = Some(match earlier {
        Some(same) if same.spec == spec => {
            same.set_tls(tls);
            same
        }
        other => Arc::new(Bus::new(spec, tls, other.as_ref())),
    });
    Ok(())
}

fn report(config: &Config, report: &mut Report) {
    let Some(bus) = bus(config) else { return };
    let figures = &bus.figures;
    let value = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    let connected = figures.is_connected.load(Ordering::Relaxed);
    report
        .gauge("yorozu_purge_bus_connected", "Whether the Redis of the purge bus answers.")
        .count(&[], connected.into());
    report
        .gauge("yorozu_purge_bus_queued", "Purges that wait for the Redis of the purge bus.")
        .count(&[], value(&figures.queued));
    let entries = [("sent", &figures.sent), ("read", &figures.read), ("refused", &figures.refused)];
    let help = "Entries of the purge bus: sent by this node, read of others, and not believed.";
    let family = report.counter("yorozu_purge_bus_entries_total", help);
    for (kind, cell) in entries {
        family.count(&[("kind", kind)], value(cell));
    }
    let help = "How often everything was purged softly, as purges of other nodes were lost.";
    report.counter("yorozu_purge_bus_lost_total", help).count(&[], value(&figures.lost));
    report_tiers(config, report);
}

fn report_tiers(config: &Config, report: &mut Report) {
    let help = "What was found in the tier that nodes share, by zone.";
    let family = report.counter("yorozu_cache_shared_total", help);
    for tier in config.shared.of::<Nodes>().tiers() {
        let figures = &tier.figures;
        for (outcome, cell) in [
            ("hit", &figures.hit),
            ("miss", &figures.miss),
            ("old", &figures.old),
            ("damaged", &figures.damaged),
            ("failed", &figures.failed),
            ("stored", &figures.stored),
            ("dropped", &figures.dropped),
        ] {
            let labels = [("zone", tier.zone.as_str()), ("outcome", outcome)];
            family.count(&labels, cell.load(Ordering::Relaxed));
        }
    }
}
