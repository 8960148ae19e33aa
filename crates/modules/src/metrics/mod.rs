//! Metrics: what is counted of requests, and how it is shown.
//!
//! Nothing is counted where no directive of this module is written. Each module's own counters are beside its code, and
//! [`Module::showing`](yorozu_kernel::config::module::Module::showing) brings them here
//! (`docs/decisions/0031-metrics.md`).

mod api;
mod process;
mod prometheus;
mod traffic;
mod zones;

use api::Api;
use prometheus::Prometheus;
use serde_json::json;
use traffic::Traffic;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::config::types::word_enum;
use yorozu_kernel::exchange::figures::Section;
use yorozu_kernel::exchange::handler::Handler;
use zones::{LOCATIONS, SERVERS, ZoneName};
pub use zones::{count, total};

/// The module.
pub const MODULE: Module = Module::new("http_api", || [DIRECTIVES, OTHERS, OF_TRAFFIC].concat())
    .with(&[silent::<Draft>])
    .showing(
        |_, report| {
            zones::report(report);
            process::report(report);
        },
        SECTIONS,
    );

/// What `api` shows of it.
const SECTIONS: &[Section] = &[
    Section::one("nginx", process::nginx),
    Section::one("processes", process::processes),
    Section::by_name(
        "http/server_zones",
        |_| zones::figures(&SERVERS),
        ("server zone not found", "ServerZoneNotFound"),
    ),
    Section::by_name(
        "http/location_zones",
        |_| zones::figures(&LOCATIONS),
        ("location zone not found", "LocationZoneNotFound"),
    ),
    // Nothing is counted of these. nginx always has them, and its client library takes none of its figures without them.
    Section::one("workers", |_| json!([])),
    Section::by_name("slabs", |_| json!({}), ("slab not found", "SlabNotFound")),
    Section::by_name(
        "resolvers",
        |_| json!({}),
        ("resolver zone not found", "ResolverZoneNotFound"),
    ),
    Section::by_name(
        "http/limit_conns",
        |_| json!({}),
        ("limit_conn not found", "LimitConnNotFound"),
    ),
    Section::by_name("http/limit_reqs", |_| json!({}), ("limit_req not found", "LimitReqNotFound")),
];

settings! {
    inherit = Draft::inherit, check = register;
    /// How many zone names are counted separately, for servers and locations each; the rest go to the zone "other".
    status_zone_limit: u64 = "200", ONE, HTTP;
    /// A server's `status_zone`, also for its locations.
    server_zone: ZoneName = none, ONE, 0;
    /// A location's `status_zone`.
    location_zone: ZoneName = none, ONE, 0;
    /// Format of vhost_traffic_status_display if the path names none.
    vhost_traffic_status_display_format: TrafficFormat = "html", ONE, HTTP_SERVER_LOCATION;
}

word_enum! {
    /// `vhost_traffic_status_display_format`
    TrafficFormat {
        Json = "json",
        Html = "html",
        Prometheus = "prometheus",
    }
}

/// Makes zones known before they have a request.
fn register(conf: &Conf, _: &Env) -> Result<(), ValueError> {
    let limit = usize::try_from(conf.status_zone_limit).unwrap_or(usize::MAX);
    conf.server_zone.register(&SERVERS, limit);
    conf.location_zone.register(&LOCATIONS, limit);
    Ok(())
}

const fn set(
    name: &'static str,
    contexts: Contexts,
    arity: Arity,
    set: Setter,
    doc: &'static str,
) -> Directive {
    Directive::row(name, contexts, arity, Action::Set(set), doc)
}

/// Rows that are no plain settings.
const OTHERS: &[Directive] = &[
    set(
        "status_zone",
        SERVER | LOCATION | LOCATION_IF,
        Arity::ONE,
        |block, args| {
            if args.word(0) != b"off" {
                args.env.is_counted.set(true);
            }
            let is_server = block.context == SERVER;
            let draft = block.drafts.of::<Draft>();
            if !is_server {
                return draft.location_zone.set(args);
            }
            draft.server_zone.set(args)?;
            if args.word(0) == b"$server_name" {
                // It is this server's in all its locations.
                draft.server_zone.change(ZoneName::settle);
            }
            Ok(())
        },
        "Zone that requests are counted in, which may be a variable; off for none. A server's and a location's zone both count.",
    ),
    set(
        "prometheus",
        LOCATION,
        Arity::ONE,
        |block, args| match args.word(0) {
            b"all" => show(block, args, Prometheus),
            other => {
                let other = String::from_utf8_lossy(other);
                Err(ValueError(format!("unknown template \"{other}\", expected \"all\"")))
            }
        },
        "Answers with all metrics, in the formats of Prometheus and OpenMetrics.",
    ),
    set(
        "api",
        LOCATION,
        Arity::UP_TO_TWO,
        |block, args| match args.words.first().map(|word| &word[..]) {
            None | Some(b"write=off") if args.words.len() < 2 => show(block, args, Api),
            Some(b"write=on") => {
                Err(ValueError::new("\"write=on\" is not supported: there is nothing to write"))
            }
            _ => Err(args.invalid_parameter(args.words.last().map_or(b"", |word| &word[..]))),
        },
        "Answers with figures as JSON, in the format of nginx's commercial API; read-only.",
    ),
    set(
        "vhost_traffic_status_zone",
        HTTP,
        Arity::UP_TO_TWO,
        by_server_name,
        "Counts requests by server name, like status_zone $server_name in each server; its size has no effect.",
    ),
    set(
        "vhost_traffic_status",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        |block, args| {
            if bool::from_args(args)? {
                return by_server_name(block, args);
            }
            block.drafts.of::<Draft>().server_zone.replace(ZoneName::Off);
            Ok(())
        },
        "Whether requests are counted by server name; off in a location leaves its requests out.",
    ),
    set(
        "vhost_traffic_status_display",
        LOCATION,
        Arity::UP_TO_TWO,
        |block, args| match args.words.first().map(|word| &word[..]) {
            None => show(block, args, Traffic),
            Some(_) => Err(args.invalid_value()),
        },
        "Answers as nginx-module-vts does: below the location at format/json, format/prometheus and format/html.",
    ),
];

/// Directives of the module of virtual hosts' traffic that change nothing here, or that stand for something else.
const OF_TRAFFIC: &[Directive] = &[
    ignored(
        "vhost_traffic_status_average_method",
        Arity::ONE_OR_TWO,
        NO_MEANS,
        "How times are averaged.",
    ),
    ignored(
        "vhost_traffic_status_bypass_limit",
        Arity::ONE,
        NO_LIMITS,
        "Whether traffic limits are bypassed.",
    ),
    ignored(
        "vhost_traffic_status_bypass_stats",
        Arity::ONE,
        "\"vhost_traffic_status off\" leaves requests out",
        "Whether requests are left out.",
    ),
    ignored(
        "vhost_traffic_status_display_jsonp",
        Arity::ONE,
        "there is no JSONP: other origins would read the figures",
        "The JSONP callback function.",
    ),
    ignored(
        "vhost_traffic_status_display_sum_key",
        Arity::ONE,
        "there is no sum of all servers",
        "The name of the sum of all servers.",
    ),
    ignored(
        "vhost_traffic_status_dump",
        Arity::ONE_OR_TWO,
        "figures are kept across reloads, but not restarts",
        "A file that the figures are saved to.",
    ),
    ignored("vhost_traffic_status_filter", Arity::ONE, NO_FILTERS, "Whether filters apply."),
    ignored(
        "vhost_traffic_status_filter_by_host",
        Arity::ONE,
        "requests are counted by server name, which clients cannot make up",
        "Whether requests are counted by their host.",
    ),
    ignored(
        "vhost_traffic_status_filter_check_duplicate",
        Arity::ONE,
        NO_FILTERS,
        "Whether duplicate filters count once.",
    ),
    ignored(
        "vhost_traffic_status_filter_max_node",
        Arity::ONE_OR_MORE,
        "\"status_zone_limit\" limits the names that are counted separately",
        "How many values of a filter are counted separately.",
    ),
    ignored(
        "vhost_traffic_status_histogram_buckets",
        Arity::ONE_OR_MORE,
        "these figures have no histograms",
        "The bucket bounds of histograms.",
    ),
    ignored("vhost_traffic_status_limit", Arity::ONE, NO_LIMITS, "Whether traffic limits apply."),
    ignored(
        "vhost_traffic_status_limit_check_duplicate",
        Arity::ONE,
        NO_LIMITS,
        "Whether duplicate limits apply once.",
    ),
    ignored(
        "vhost_traffic_status_stats_by_upstream",
        Arity::ONE,
        "upstreams are always counted",
        "Whether upstreams are counted.",
    ),
    refused(
        "vhost_traffic_status_filter_by_set_key",
        "use \"status_zone\" with the variable in a location",
        "Counts requests by a variable.",
    ),
    refused(
        "vhost_traffic_status_limit_traffic",
        "use \"limit_req\", \"limit_conn\" or \"limit_rate\"",
        "Refuses requests above an amount of traffic.",
    ),
    refused(
        "vhost_traffic_status_limit_traffic_by_set_key",
        "use \"limit_req\", \"limit_conn\" or \"limit_rate\"",
        "Refuses requests above an amount of traffic, by a variable.",
    ),
    refused(
        "vhost_traffic_status_set_by_filter",
        "figures are no variables: use \"prometheus\" or \"api\"",
        "A variable with a figure.",
    ),
];

const NO_MEANS: &str = "the mean is over all requests";
const NO_LIMITS: &str = "there are no traffic limits";
const NO_FILTERS: &str = "there are no filters";

const fn ignored(
    name: &'static str,
    arity: Arity,
    why: &'static str,
    doc: &'static str,
) -> Directive {
    Directive::row(name, HTTP_SERVER_LOCATION, arity, Action::Ignored(why, anything), doc)
}

const fn refused(name: &'static str, why: &'static str, doc: &'static str) -> Directive {
    Directive::row(name, HTTP_SERVER_LOCATION, Arity::ANY, Action::Refused(why), doc)
}

/// Has a location answer with figures.
fn show(block: &mut Block, args: &Args<'_>, handler: impl Handler) -> Result<(), ValueError> {
    args.env.is_counted.set(true);
    block.handle_by(handler);
    Ok(())
}

fn by_server_name(block: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    args.env.is_counted.set(true);
    let name = Template::compile(b"$server_name", args.env)?;
    block.drafts.of::<Draft>().server_zone.replace(ZoneName::named(name));
    Ok(())
}
