//! `server … resolve`: names that are looked up again whenever their answers expire.

use super::{Upstream, Upstreams};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use yorozu_kernel::base::faults;
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_kernel::logging::error::Level;
use yorozu_kernel::logging::error_log::ErrorLogs;
use yorozu_upstream::{PeerAddress, PeerOptions, Resolver};

/// A name that stands for peers.
#[derive(Clone, Debug)]
pub struct Name {
    pub host: String,
    pub port: u16,
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
    upstreams: &BTreeMap<String, Arc<Upstream>>,
    of_http: Option<&(Resolver, Duration)>,
) -> Result<(), ValueError> {
    for (group, upstream) in upstreams {
        let Some(names) = &upstream.names else { continue };
        if let Some(resolver) = of_http {
            // The block's own one stays.
            let _ = names.resolver.set(resolver.clone());
        }
        if names.resolver.get().is_none() {
            return Err(ValueError(format!(
                "no resolver defined to resolve names at run time in upstream \"{group}\""
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
    for upstream in conf.shared.of::<Upstreams>().0.values() {
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
        let wait = ask(&upstream, index, &log).await;
        tokio::time::sleep(wait).await;
    }
}

async fn ask(upstream: &Upstream, index: usize, log: &ErrorLogs) -> Duration {
    let names = upstream.names.as_ref().expect("started for names");
    let name = &names.names[index];
    let Some((resolver, timeout)) = names.resolver.get() else { return RETRY_INTERVAL };
    match resolver.addresses(&name.host, *timeout).await {
        Ok(found) => {
            let mut addresses: Vec<PeerAddress> = found
                .addresses
                .iter()
                .map(|ip| PeerAddress::Tcp(SocketAddr::new(*ip, name.port)))
                .collect();
            addresses.sort();
            upstream.group.resolved(&name.template, &addresses);
            found.valid_until.saturating_duration_since(Instant::now()).max(INTERVAL_MIN)
        }
        Err(problem) => {
            let text = format!(
                "{} could not be resolved ({problem}) while resolving upstream \"{}\"",
                name.host, upstream.group.name
            );
            log.process(Level::Error, &text);
            RETRY_INTERVAL
        }
    }
}
