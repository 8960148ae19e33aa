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
use yorozu_kernel::exchange::figures::Section;
use yorozu_kernel::exchange::handler::Handler;
use zones::{LOCATIONS, SERVERS, ZoneName};
pub use zones::{count, total};

/// The module.
pub const MODULE: Module =
    Module::new("http_api", || [DIRECTIVES, OTHERS].concat()).with(&[silent::<Draft>]).showing(
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
    /// Names of zones that are counted apart, of servers and of locations each; the rest is the zone "other".
    status_zone_limit: u64 = "200", ONE, HTTP;
    /// A server's `status_zone`, also for its locations.
    server_zone: ZoneName = none, ONE, 0;
    /// A location's `status_zone`.
    location_zone: ZoneName = none, ONE, 0;
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
        "Zone that requests are counted in, which may be a variable; off for none. A server's and a location's are counted each.",
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
        "Answers with all metrics, as Prometheus and OpenMetrics have them.",
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
        "Answers with figures as JSON, in the shape of nginx's commercial API; read-only.",
    ),
    set(
        "vhost_traffic_status_zone",
        HTTP,
        Arity::UP_TO_TWO,
        by_server_name,
        "Counts requests by the name of their server, as status_zone $server_name in each; its size has no effect.",
    ),
    set(
        "vhost_traffic_status",
        HTTP_SERVER_LOCATION,
        Arity::ONE,
        |block, args| match args.word(0) {
            b"on" => by_server_name(block, args),
            b"off" => {
                block.drafts.of::<Draft>().server_zone.replace(ZoneName::Off);
                Ok(())
            }
            other => Err(args.invalid_value_must_be(other, "\"on\" or \"off\"")),
        },
        "Whether requests are counted by the name of their server; off in a location leaves its requests out.",
    ),
    set(
        "vhost_traffic_status_display",
        LOCATION,
        Arity::UP_TO_TWO,
        |block, args| match args.words.first().map(|word| &word[..]) {
            None => show(block, args, Traffic),
            Some(_) => Err(args.invalid_value()),
        },
        "Answers as the module of virtual hosts' traffic does: below the location at format/json, format/prometheus and format/html.",
    ),
];

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
