//! `set_real_ip_from`: takes the client's address from what a trusted proxy says.

use bytes::Bytes;
use std::net::IpAddr;
use std::rc::Rc;
use yorozu_kernel::base::texts;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::exchange::{Exchange, Remote, forwarded};

/// The module.
pub const MODULE: Module =
    Module::new("http_realip", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// `set_real_ip_from`: every address a name stands for.
#[derive(Clone, Debug)]
pub struct Trusted(Vec<Network>);

impl Setting for Trusted {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        let network = Network::written(&text, args.env);
        if let Some(network) = network.filter(|network| *network != Network::All) {
            return Ok(Self(vec![network]));
        }
        let found = texts::host(&text, 0);
        let found: Vec<Network> = found.iter().map(|address| address.ip().into()).collect();
        if found.is_empty() {
            return Err(ValueError(format!("host not found in set_real_ip_from \"{text}\"")));
        }
        Ok(Self(found))
    }
}

/// `real_ip_header`
#[derive(Clone, Debug)]
pub enum RealIpHeader {
    ProxyProtocol,
    /// A field, in lower case.
    Field(Bytes),
}

impl Setting for RealIpHeader {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"proxy_protocol" => Self::ProxyProtocol,
            name => Self::Field(name.to_ascii_lowercase().into()),
        })
    }
}

settings! {
    /// What says the client's address: a field, or `proxy_protocol`.
    real_ip_header: RealIpHeader = "X-Real-IP", ONE, HTTP_SERVER_LOCATION;
    /// Whether addresses are passed over as long as they are trusted.
    real_ip_recursive: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Proxies that are believed.
    set_real_ip_from: Vec<Trusted> = none, ONE, HTTP_SERVER_LOCATION;
}

impl Conf {
    /// Whether some proxy is trusted.
    pub fn is_on(&self) -> bool {
        !self.set_real_ip_from.is_empty()
    }
}

/// Puts the client's own address in the place of the proxy's, once per request.
pub fn apply(exchange: &mut Exchange, conf: &Conf) {
    if !Rc::ptr_eq(&exchange.remote, &exchange.client.remote) {
        return;
    }
    let networks = || conf.set_real_ip_from.iter().flat_map(|trusted| trusted.0.iter());
    let is_trusted = |ip: Option<IpAddr>| networks().any(|network| network.matches(ip));
    if !is_trusted(exchange.remote.ip()) {
        return;
    }
    let found = match &conf.real_ip_header {
        RealIpHeader::ProxyProtocol => {
            exchange.client.proxied.get().and_then(|header| header.source)
        }
        RealIpHeader::Field(name) => {
            forwarded::named(exchange, name, conf.real_ip_recursive, |ip| is_trusted(Some(ip)))
        }
    };
    if let Some(address) = found {
        exchange.remote = Rc::new(Remote::of(Some(address)));
    }
}

/// Whether the request comes from a trusted proxy.
pub fn is_trusted(exchange: &Exchange) -> bool {
    let conf = exchange.conf.location(exchange.location).of::<Conf>();
    let peer = exchange.client.remote.ip();
    conf.set_real_ip_from.iter().flat_map(|trusted| &trusted.0).any(|network| network.matches(peer))
}
