//! `server … resolve`: names that are looked up again whenever their answers expire.

use super::{Upstream, Upstreams};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use yorozu_kernel::base::faults;
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error_log::ErrorLogs;
use yorozu_upstream::{PeerAddress, PeerOptions, Place, ResolveFault, Resolver};

/// What of a name says where its peers are.
#[derive(Clone, Debug)]
pub enum Means {
    /// Its addresses, with this port.
    Addresses(u16),
    /// The same as the system has them, once it has any.
    System(u16),
    /// SRV records; `service` as written, and the name that has them.
    Service { service: String, records: String },
}

impl Means {
    /// `service=`: as nginx, one without a dot is that of a protocol over TCP.
    pub fn service(service: &str, host: &str) -> Self {
        let records = match service.contains('.') {
            true => format!("{service}.{host}"),
            false => format!("_{service}._tcp.{host}"),
        };
        Self::Service { service: service.to_owned(), records }
    }
}

/// A name that stands for peers.
#[derive(Clone, Debug)]
pub struct Name {
    pub host: String,
    pub means: Means,
    /// What its peers are like; the address is each one's own.
    pub template: PeerOptions,
    /// Held by the worker that asks.
    pub turn: Arc<Mutex<()>>,
}

/// The names of one group.
#[derive(Debug)]
pub struct Names {
    pub names: Vec<Name>,
    /// Of the block itself, or else of `http`.
    pub resolver: OnceLock<(Resolver, Duration)>,
}

/// Gives blocks without a `resolver` that of `http`.
///
/// # Errors
/// There is none, and a name to resolve.
pub(super) fn check(
    upstreams: &Upstreams,
    of_http: Option<&(Resolver, Duration)>,
) -> Result<(), ValueError> {
    for upstream in upstreams.iter() {
        let Some(names) = &upstream.names else { continue };
        if let Some(resolver) = of_http {
            // The block's own one stays.
            let _ = names.resolver.set(resolver.clone());
        }
        let needs_resolver = |name: &Name| !matches!(name.means, Means::System(_));
        if names.resolver.get().is_none() && names.names.iter().any(needs_resolver) {
            return Err(ValueError(format!(
                "no resolver defined to resolve names at run time in upstream \"{}\"",
                upstream.group.name
            )));
        }
    }
    Ok(())
}

/// Least time between two questions; nginx's least validity is a second too.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// When to ask again after a failure; chosen.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Starts what keeps names resolved; one worker does it for all.
pub fn start(conf: &WorkerConf) {
    for upstream in conf.shared.of::<Upstreams>().iter() {
        let Some(names) = &upstream.names else { continue };
        for index in 0..names.names.len() {
            let (upstream, log) = (Arc::clone(upstream), conf.error_log.clone());
            conf.tasks.keep("the resolving of a name", move || {
                keep(Arc::clone(&upstream), index, log.clone())
            });
        }
    }
}

/// Resolves one name, again and again, once no other worker does.
async fn keep(upstream: Arc<Upstream>, index: usize, log: ErrorLogs) {
    let names = upstream.names.as_ref().expect("started for names");
    let _turn = names.names[index].turn.lock().await;
    loop {
        faults::point("resolve");
        let Some(wait) = ask(&upstream, index, &log).await else { return };
        tokio::time::sleep(wait).await;
    }
}

/// Looks a name up; when to do it again, if ever.
async fn ask(upstream: &Upstream, index: usize, log: &ErrorLogs) -> Option<Duration> {
    let names = upstream.names.as_ref().expect("started for names");
    let name = &names.names[index];
    if let Means::System(port) = name.means {
        return ask_system(upstream, name, port, log).await;
    }
    let Some((resolver, timeout)) = names.resolver.get() else { return Some(RETRY_INTERVAL) };
    let failed = |problem: ResolveFault| {
        let what = match &name.means {
            Means::Addresses(_) | Means::System(_) => name.host.clone(),
            Means::Service { service, .. } => format!("service {service} of {}", name.host),
        };
        let text = format!(
            "{what} could not be resolved ({problem}) while resolving upstream \"{}\"",
            upstream.group.name
        );
        log.process(Level::Error, &text);
    };
    let found = match &name.means {
        Means::System(_) => unreachable!("asked above"),
        Means::Addresses(port) => resolver.addresses(&name.host, *timeout).await.map(|found| {
            if let Some(problem) = found.is_stale_for {
                failed(problem);
            }
            let to = |ip| PeerAddress::Tcp(SocketAddr::new(ip, *port));
            let mut addresses: Vec<_> = found.addresses.into_iter().map(to).collect();
            addresses.sort();
            let peer = |address| PeerOptions { address, ..name.template.clone() };
            (addresses.into_iter().map(peer).collect(), found.valid_until)
        }),
        Means::Service { service, records } => {
            resolver.services(records, *timeout).await.map(|offered| {
                for (server, problem) in &offered.missing {
                    let text = format!(
                        "{server} could not be resolved ({problem}) while resolving service {service} of {}",
                        name.host
                    );
                    log.process(Level::Error, &text);
                }
                (peers(&name.template, &offered.places), offered.valid_until)
            })
        }
    };
    let server = &name.template.server;
    match found {
        Ok((peers, valid_until)) => {
            upstream.group.resolved(server, peers);
            Some(valid_until.saturating_duration_since(Instant::now()).max(INTERVAL_MIN))
        }
        Err(problem) => {
            failed(problem);
            if problem == ResolveFault::NotFound {
                // As nginx: after another fault those that are known are better than none.
                upstream.group.resolved(server, Vec::new());
            }
            Some(RETRY_INTERVAL)
        }
    }
}

/// As at a start: a name that the system knows keeps its addresses until the next reload.
async fn ask_system(
    upstream: &Upstream,
    name: &Name,
    port: u16,
    log: &ErrorLogs,
) -> Option<Duration> {
    let found = tokio::net::lookup_host((&*name.host, port)).await;
    let mut found: Vec<_> = found.map(Iterator::collect).unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        let text = format!(
            "host not found in upstream \"{}\": its requests are answered with 502 until it is",
            name.template.server
        );
        log.process(Level::Error, &text);
        return Some(RETRY_INTERVAL);
    }
    let peer = |address| PeerOptions { address, ..name.template.clone() };
    let peers = found.into_iter().map(PeerAddress::Tcp).map(peer).collect();
    upstream.group.resolved(&name.template.server, peers);
    None
}

/// The peers of a service. As nginx: those with the best priority serve, and others where none of them can. Of a
/// backup's the best are backups, and others are left out.
fn peers(template: &PeerOptions, places: &[Place]) -> Vec<PeerOptions> {
    let best = places.iter().map(|place| place.priority).min();
    let is_best = |place: &&Place| Some(place.priority) == best;
    let used = places.iter().filter(|place| !template.backup || is_best(place));
    let peer = |place: &Place| PeerOptions {
        address: PeerAddress::Tcp(place.address),
        weight: if template.weight == 1 { place.weight.into() } else { template.weight },
        backup: template.backup || !is_best(&place),
        ..template.clone()
    };
    used.map(peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_primaries_and_backups() {
        let place = |priority, weight, port| Place {
            priority,
            weight,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        };
        let places = [place(10, 3, 1), place(10, 1, 2), place(20, 5, 3)];
        let short = |template: &PeerOptions| -> Vec<_> {
            let peers = peers(template, &places);
            peers.iter().map(|peer| (peer.weight, peer.backup)).collect()
        };
        let mut template = PeerOptions::new(PeerAddress::Unix("".into()));
        assert_eq!(short(&template), [(3, false), (1, false), (5, true)]);
        template.weight = 2;
        assert_eq!(short(&template), [(2, false), (2, false), (2, true)]);
        template.backup = true;
        assert_eq!(short(&template), [(2, true), (2, true)]);
    }

    #[test]
    fn a_service_without_a_dot_is_one_over_tcp() {
        let records = |service| match Means::service(service, "example.com") {
            Means::Service { records, .. } => records,
            _ => unreachable!("a service"),
        };
        assert_eq!(records("http"), "_http._tcp.example.com");
        assert_eq!(records("_http._tcp"), "_http._tcp.example.com");
        assert_eq!(records("server1.backend"), "server1.backend.example.com");
    }
}
