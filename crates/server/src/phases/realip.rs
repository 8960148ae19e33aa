//! `set_real_ip_from`: takes the client's address from what a trusted proxy says.

use crate::config::directive::*;
use crate::config::network::Network;
use crate::exchange::{Exchange, Remote};
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::rc::Rc;

/// `set_real_ip_from`: every address a name stands for.
#[derive(Clone, Debug)]
pub struct Trusted(Vec<Network>);

impl Setting for Trusted {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        if let Some(network) = Network::parse(&text).filter(|network| *network != Network::All) {
            return Ok(Self(vec![network]));
        }
        let found = (&*text, 0).to_socket_addrs();
        let found: Vec<Network> = found
            .into_iter()
            .flatten()
            .filter_map(|address| Network::parse(&address.ip().to_string()))
            .collect();
        if found.is_empty() {
            return Err(ValueError(format!("host not found in set_real_ip_from \"{text}\"")));
        }
        Ok(Self(found))
    }
}

/// `real_ip_header`
#[derive(Clone, Debug)]
pub enum Source {
    ProxyProtocol,
    /// A field, in lower case.
    Field(Bytes),
}

impl Setting for Source {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        Ok(match args.word(0) {
            b"proxy_protocol" => Self::ProxyProtocol,
            name => Self::Field(name.to_ascii_lowercase().into()),
        })
    }
}

settings! {
    in realip;
    /// What says the client's address: a field, or `proxy_protocol`.
    real_ip_header: Source = "X-Real-IP", ONE, HTTP_SERVER_LOCATION;
    /// Whether addresses are passed over as long as they are trusted.
    real_ip_recursive: bool = "off", ONE, HTTP_SERVER_LOCATION;
    /// Proxies that are believed.
    set_real_ip_from: Vec<Trusted> = none, ONE, HTTP_SERVER_LOCATION;
}

/// Puts the client's own address in the place of the proxy's, once per request.
pub fn apply(exchange: &mut Exchange, conf: &Conf) {
    if conf.set_real_ip_from.is_empty() || !Rc::ptr_eq(&exchange.remote, &exchange.client.remote) {
        return;
    }
    let networks = || conf.set_real_ip_from.iter().flat_map(|trusted| trusted.0.iter());
    let is_trusted = |ip: Option<IpAddr>| networks().any(|network| network.matches(ip));
    if !is_trusted(exchange.remote.ip()) {
        return;
    }
    let found = match &conf.real_ip_header {
        Source::ProxyProtocol => exchange.client.proxied.get().and_then(|header| header.source),
        Source::Field(name) => {
            named(exchange, name, conf.real_ip_recursive, |ip| is_trusted(Some(ip)))
        }
    };
    if let Some(address) = found {
        exchange.remote = Rc::new(Remote::of(Some(address)));
    }
}

/// Does the request come from a proxy that is believed?
pub fn is_trusted(exchange: &Exchange) -> bool {
    let conf = &exchange.conf.location(exchange.location).realip;
    let peer = exchange.client.remote.ip();
    conf.set_real_ip_from.iter().flat_map(|trusted| &trusted.0).any(|network| network.matches(peer))
}

/// The address that a field like `X-Forwarded-For` names last; if it `is_recursive`, the last one that is no trusted
/// proxy's.
pub fn named(
    exchange: &Exchange,
    field: &[u8],
    is_recursive: bool,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<SocketAddr> {
    let values: Vec<&[u8]> = exchange.request.values(field).collect();
    let mut found = None;
    // From the proxy nearest to us to the farthest.
    for text in values.join(&b","[..]).rsplit(|byte| *byte == b',') {
        let Some(address) = parse(text.trim_ascii()) else { break };
        found = Some(address);
        if !is_recursive || !is_trusted(address.ip()) {
            break;
        }
    }
    found
}

/// An address with or without a port; the port is 0 without.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some((ip, 0).into());
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_ports() {
        let shown = |text: &str| parse(text.as_bytes()).map(|address| address.to_string());
        assert_eq!(shown("192.0.2.1").as_deref(), Some("192.0.2.1:0"));
        assert_eq!(shown("192.0.2.1:80").as_deref(), Some("192.0.2.1:80"));
        assert_eq!(shown("2001:db8::1").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]").as_deref(), Some("[2001:db8::1]:0"));
        assert_eq!(shown("[2001:db8::1]:80").as_deref(), Some("[2001:db8::1]:80"));
        assert_eq!(shown("unknown"), None);
        assert_eq!(shown(""), None);
    }
}
