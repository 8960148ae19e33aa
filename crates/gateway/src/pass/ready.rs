//! `keepalive_ready`: connections that are open, and shaken hands over, before a request needs them.

use super::conf;
use super::pools::{self, PoolKey};
use crate::protocol::{self, Protocol};
use crate::upstream::Upstream;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use yorozu_kernel::base::faults;
use yorozu_kernel::config::servers::LocationId;
use yorozu_kernel::exchange::conf::WorkerConf;
use yorozu_upstream::{Connection, Kept, Peer, PeerAddress, SocketOptions, Tls, TlsOptions};

/// How often peers are looked at when no connection was taken meanwhile; chosen.
const INTERVAL: Duration = Duration::from_secs(1);

/// Connections of one pool that are kept ready.
struct Ready {
    key: PoolKey,
    upstream: Arc<Upstream>,
    tls: Option<TlsOptions>,
    options: SocketOptions,
    connect_timeout: Duration,
    count: usize,
}

/// Starts what keeps this worker's pools filled.
pub fn start(conf: &Rc<WorkerConf>) {
    let mut seen = HashSet::new();
    for location in &conf.locations {
        let Some(protocol) = protocol::of(location) else { continue };
        let Some(ready) = of_location(conf, location.id, protocol) else { continue };
        if seen.insert(ready.key.clone()) {
            let ready = Rc::new(ready);
            conf.tasks.keep("keepalive_ready", move || Rc::clone(&ready).keep());
        }
    }
}

fn of_location(config: &WorkerConf, id: LocationId, protocol: &dyn Protocol) -> Option<Ready> {
    let location = config.location(id);
    let upstream = protocol.target()?.fixed()?;
    let keepalive = upstream.keepalive.filter(|keepalive| keepalive.ready > 0)?;
    // Where connections come from may depend on the request.
    let gateway = conf(location, protocol.family());
    if !protocol.may_keep(location) || gateway.bind.0.is_some() {
        return None;
    }
    let tls = protocol.tls(location);
    let tls_name = tls.as_ref().map(|tls| tls.name.to_str());
    let place = std::ptr::from_ref(location).addr();
    let speech = (protocol.scheme(), protocol.has_sessions(location));
    Some(Ready {
        key: PoolKey::new(upstream, speech, None, place, tls_name.as_deref()),
        upstream: Arc::clone(upstream),
        options: gateway.socket_options(None),
        connect_timeout: gateway.connect_timeout,
        count: keepalive.ready,
        tls,
    })
}

impl Ready {
    async fn keep(self: Rc<Self>) {
        loop {
            faults::point("ready");
            let taken = pools::taken();
            for peer in self.upstream.group.peers() {
                self.fill(&peer).await;
            }
            // A timeout is as good a reason to look as a connection that was taken.
            let _ = tokio::time::timeout(INTERVAL, taken.notified()).await;
        }
    }

    async fn fill(&self, peer: &Peer) {
        while pools::lacks(&self.key, peer, self.count) {
            let open = self.open(peer.address());
            // A peer that is down is the requests' to report.
            let Ok(Ok(connection)) = tokio::time::timeout(self.connect_timeout, open).await else {
                return;
            };
            // Meanwhile requests may have given theirs back: none of those is driven out.
            if !pools::lacks(&self.key, peer, self.count) {
                return;
            }
            let connection = Rc::new(connection);
            let kept = Kept { connection, requests: 0, opened: Instant::now(), memory: None };
            pools::put(pools::whom(&self.key, peer), &self.upstream, kept);
        }
    }

    async fn open(&self, address: &PeerAddress) -> std::io::Result<Connection> {
        let connection = Connection::open(address, self.options).await?;
        match &self.tls {
            None => Ok(connection),
            Some(tls) => Ok(Connection::Tls(Box::new(Tls::handshake(connection, tls).await?))),
        }
    }
}
