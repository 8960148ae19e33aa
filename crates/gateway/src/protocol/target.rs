//! Where a `*_pass` goes: a group, or an address that variables spell.

use crate::upstream::{self, Upstream, Upstreams};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use yorozu_kernel::config::directive::ValueError;
use yorozu_kernel::config::shared::Collected;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::logging::error::{self, Level};
use yorozu_upstream::{PeerAddress, PeerOptions};

/// Where a `*_pass` goes.
#[derive(Debug)]
pub struct Target {
    /// As written: `host:port`, `unix:path`, or a group's name.
    pub address: Template,
    /// The port of an address without one.
    pub default_port: u16,
    /// The group, if no variable stands in the address.
    upstream: OnceLock<Arc<Upstream>>,
}

impl Target {
    pub fn new(address: Template, default_port: u16) -> Self {
        Self { address, default_port, upstream: OnceLock::new() }
    }

    /// Finds the group once all `upstream` blocks are read.
    ///
    /// # Errors
    /// The address names no group and cannot be resolved.
    pub fn resolve(&self, shared: &Collected) -> Result<(), ValueError> {
        if let (Some(text), None) = (self.address.as_literal(), self.upstream.get()) {
            let text = String::from_utf8_lossy(&text).into_owned();
            let _ = self.upstream.set(upstream::named(shared, &text, self.default_port)?);
        }
        Ok(())
    }

    /// The group, if no variable stands in the address.
    pub fn fixed(&self) -> Option<&Arc<Upstream>> {
        self.upstream.get()
    }

    /// The group for this exchange.
    ///
    /// # Errors
    /// The status the client gets: what the variables spell is not an address, or a name that cannot
    /// be resolved.
    pub async fn upstream(&self, exchange: &mut Exchange) -> Result<Arc<Upstream>, u16> {
        if let Some(upstream) = self.upstream.get() {
            return Ok(Arc::clone(upstream));
        }
        let address = self.address.value(exchange);
        self.spelled(exchange, &address, self.default_port).await
    }

    /// The group that `address` spells.
    ///
    /// # Errors
    /// As [`Target::upstream`].
    pub async fn spelled(
        &self,
        exchange: &Exchange,
        address: &Bytes,
        default_port: u16,
    ) -> Result<Arc<Upstream>, u16> {
        let text = String::from_utf8_lossy(address).into_owned();
        if let Some(upstream) = exchange.conf.shared.of::<Upstreams>().get(&text) {
            return Ok(Arc::clone(upstream));
        }
        let addresses = match upstream::literal_address(&text, default_port) {
            Some(address) => vec![address],
            None => resolve(exchange, &text, default_port).await?,
        };
        let peers: Vec<_> = addresses.into_iter().map(PeerOptions::new).collect();
        let peers = peers.into();
        Ok(Upstream::implicit(text, peers, upstream::counters::of_spelled()))
    }
}

async fn resolve(
    exchange: &Exchange,
    text: &str,
    default_port: u16,
) -> Result<Vec<PeerAddress>, u16> {
    let fail = |text: String, status: u16| {
        error::request(exchange, Level::Error, &text);
        Err(status)
    };
    let Some((host, port)) = upstream::host_and_port(text, default_port) else {
        return fail(format!("invalid URL prefix in \"{text}\""), 500);
    };
    let core = exchange.conf.location(exchange.location).http_core();
    let Some(resolver) = &core.resolver else {
        return fail(format!("no resolver defined to resolve {host}"), 502);
    };
    match resolver.addresses(host, core.resolver_timeout).await {
        Ok(found) => {
            if let Some(problem) = found.is_stale_for {
                let text = format!(
                    "{host} could not be resolved ({problem}), its last addresses are used"
                );
                error::request(exchange, Level::Error, &text);
            }
            let to = |ip| PeerAddress::Tcp(std::net::SocketAddr::new(ip, port));
            Ok(found.addresses.into_iter().map(to).collect())
        }
        Err(problem) => fail(format!("{host} could not be resolved ({problem})"), 502),
    }
}
