//! The URLs of pages: a page bears the URL that it was made for as a tag, and a purge of a URL takes what bears it.
//!
//! | part of a URL | as it is borne |
//! | --- | --- |
//! | host | that of the request; `*` and the first name of its server where the key does not hold it, for all names lead there |
//! | path | decoded, as the request was sent; beside it the path that rules led to, where the key holds that |
//! | arguments | as sent, without those that `cache_drop_args` and `cache_keep_args` take away; beside it none, where the key does not hold them |
//!
//! Scheme and port tell no pages apart. A page that is found by another URL than its own, where rules lead, is also purged
//! under the key of the request for that.

use super::settings::{self, Conf};
use super::{cleaned, key};
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;
use yorozu_cache::{Key, Zone};
use yorozu_http::uri::{normalize, with_args};
use yorozu_kernel::config::servers::ServerId;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::find_config;

/// The tags of what is stored for the request under a key.
pub fn tags(exchange: &Exchange, own: &Key) -> Vec<Bytes> {
    let own = own.page();
    let holds = |text: &[u8]| memchr::memmem::find(own.as_bytes(), text).is_some();
    let host = Cow::Borrowed(&exchange.request.host[..]);
    let host = if holds(&host) { host } else { any_host(exchange, exchange.server).into() };
    let tag = |url: &[u8]| Key::of_url(&host, url).to_tag();
    if is_part(exchange) {
        return vec![tag(exchange.part.as_deref().unwrap_or(&exchange.uri))];
    }
    let path = sent_path(exchange);
    let args = kept_args(exchange);
    let mut found = vec![tag(&with_args(&path, &args))];
    if !args.is_empty() && !holds(&args) {
        found.push(tag(&path));
    }
    if exchange.uri != *path && holds(&exchange.uri) {
        let args = Some(&exchange.args[..]).filter(|args| holds(args));
        found.push(tag(&with_args(&exchange.uri, args.unwrap_or_default())));
    }
    found
}

/// In which zones a purge looks for the pages of a URL.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scope {
    /// In those of the servers of the host that it is asked for, and of the one that is asked.
    #[default]
    Site,
    /// In all: the control socket's.
    All,
}

impl Scope {
    /// These zones.
    pub fn zones(self, exchange: &mut Exchange) -> Vec<Arc<Zone>> {
        let config = Arc::clone(&exchange.conf.config);
        if self == Self::All {
            return config.zones.values().cloned().collect();
        }
        let servers = servers(exchange);
        let locations = servers.iter().flat_map(|id| config.locations_of(*id));
        let mut found = Vec::new();
        for conf in locations.filter_map(settings::of) {
            for zone in key::zones(exchange, conf).unwrap_or_default() {
                add(&mut found, zone);
            }
        }
        found
    }

    /// The keys under which the pages of the request's URL are purged, by zone: those that it has in the cache of its
    /// location, if there is one (`conf`), for GET and HEAD, which come first; and those of the URL.
    pub fn keys(self, exchange: &mut Exchange, conf: Option<&Conf>) -> Vec<(Arc<Zone>, Vec<Key>)> {
        let urls = urls(exchange);
        let (mut zones, mut own) = (Vec::new(), Vec::new());
        if let Some(conf) = conf {
            zones = key::zones(exchange, conf).unwrap_or_default();
            own = key::of_get_and_head(exchange, |exchange| key::primary(exchange, conf));
        }
        let own_zones = zones.len();
        self.zones(exchange).into_iter().for_each(|zone| add(&mut zones, zone));
        let keys = |at| if at < own_zones { [&own[..], &urls].concat() } else { urls.clone() };
        zones.into_iter().enumerate().map(|(at, zone)| (zone, keys(at))).collect()
    }
}

/// Adds a zone, once.
fn add(zones: &mut Vec<Arc<Zone>>, zone: Arc<Zone>) {
    if !zones.iter().any(|known| Arc::ptr_eq(known, &zone)) {
        zones.push(zone);
    }
}

/// The keys of the request's URL, as it was sent and where rules have led it.
fn urls(exchange: &Exchange) -> Vec<Key> {
    let path = sent_path(exchange);
    let mut urls = vec![with_args(&path, &kept_args(exchange))];
    if exchange.uri != *path {
        urls.push(with_args(&exchange.uri, &exchange.args));
    }
    let mut hosts = vec![exchange.request.host.to_vec()];
    for host in servers(exchange).into_iter().map(|id| any_host(exchange, id)) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts.iter().flat_map(|host| urls.iter().map(|url| Key::of_url(host, url))).collect()
}

/// The servers of the request's host, and the one that is asked.
fn servers(exchange: &Exchange) -> Vec<ServerId> {
    let mut servers = find_config::servers_of_host(&exchange.conf, &exchange.request.host);
    if !servers.contains(&exchange.server) {
        servers.push(exchange.server);
    }
    servers
}

/// In the place of the host of a page whose key does not hold it. No host has a star.
fn any_host(exchange: &Exchange, server: ServerId) -> Vec<u8> {
    [b"*", exchange.conf.server(server).name().as_bytes()].concat()
}

/// The path that the request was sent for, decoded.
fn sent_path(exchange: &Exchange) -> Cow<'_, [u8]> {
    let (sent, _) = exchange.request.split_target();
    match normalize(sent, true) {
        Ok(normalized) => Cow::Owned(normalized.path),
        Err(_) => Cow::Borrowed(sent),
    }
}

fn kept_args(exchange: &Exchange) -> Vec<u8> {
    let mut args = Vec::new();
    cleaned::append_args(exchange, exchange.request.split_target().1, &mut args);
    args
}

/// Whether it is a part of another URL's page, with a URL of its own that no client asked for. Slices have that of the whole.
fn is_part(exchange: &Exchange) -> bool {
    exchange.is_subrequest() && exchange.pass.slice.get().is_none()
}
