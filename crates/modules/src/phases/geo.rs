//! `geo`: a variable whose value depends on an address.

use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::{Env, define};
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::variables::Computed;
use yorozu_kernel::exchange::{Exchange, forwarded};

/// The module.
pub const MODULE: Module = Module::new("http_geo", || DIRECTIVES.to_vec());

/// Networks of one family by the length of their prefix; the longest that matches counts.
#[derive(Debug, Default)]
struct Networks(BTreeMap<u128, HashMap<u128, Bytes>>);

impl Networks {
    fn find(&self, bits: u128) -> Option<&Bytes> {
        self.0.iter().rev().find_map(|(mask, networks)| networks.get(&(bits & mask)))
    }
}

/// A compiled `geo` block.
#[derive(Debug)]
struct Geo {
    /// The address that is looked at; the client's without it.
    source: Option<Template>,
    default: Bytes,
    v4: Networks,
    v6: Networks,
    /// `ranges`: the first address of each, with the last and the value.
    ranges: BTreeMap<u32, (u32, Bytes)>,
    proxies: Vec<Network>,
    is_proxy_recursive: bool,
    is_volatile: bool,
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "geo",
    HTTP,
    Arity::ONE_OR_TWO,
    Action::Open(open),
    "A variable whose value depends on an address.",
)];

impl Computed for Geo {
    fn value(&self, exchange: &mut Exchange) -> Bytes {
        let found = self.find(self.address(exchange));
        found.unwrap_or(&self.default).clone()
    }

    fn is_volatile(&self) -> bool {
        self.is_volatile
    }
}

impl Geo {
    /// As nginx: what has no address - the client of a Unix socket, another text - is 255.255.255.255.
    fn address(&self, exchange: &mut Exchange) -> IpAddr {
        let known = match &self.source {
            Some(source) => {
                let text = source.value(exchange);
                std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok())
            }
            None => exchange.remote.ip(),
        };
        let Some(address) = known else { return Ipv4Addr::BROADCAST.into() };
        let is_proxy = |address: IpAddr| self.proxies.iter().any(|one| one.matches(Some(address)));
        if !is_proxy(address) {
            return address;
        }
        let named =
            forwarded::named(exchange, b"x-forwarded-for", self.is_proxy_recursive, is_proxy);
        named.map_or(address, |named| named.ip())
    }

    fn find(&self, address: IpAddr) -> Option<&Bytes> {
        let v4 = match address {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(ip) => ip.to_ipv4_mapped(),
        };
        if let Some(ip) = v4 {
            let range = self.ranges.range(..=ip.to_bits()).next_back();
            let range = range.filter(|(_, (last, _))| ip.to_bits() <= *last);
            return range
                .map(|(_, (_, value))| value)
                .or_else(|| self.v4.find(ip.to_bits().into()));
        }
        match address {
            IpAddr::V6(ip) => self.v6.find(ip.to_bits()),
            IpAddr::V4(_) => None,
        }
    }

    fn add_network(&mut self, text: &str, value: Bytes, env: &Env) -> Result<(), ValueError> {
        let invalid = || ValueError(format!("invalid network \"{text}\""));
        let (networks, mask, bits) = match Network::written(text, env).ok_or_else(invalid)? {
            Network::V4 { bits, mask } => (&mut self.v4, mask.into(), bits.into()),
            Network::V6 { bits, mask } => (&mut self.v6, mask, bits),
            Network::All | Network::Unix => return Err(invalid()),
        };
        networks.0.entry(mask).or_default().insert(bits, value);
        Ok(())
    }

    fn delete_network(&mut self, text: &str) {
        let (networks, mask, bits) = match Network::parse(text) {
            Some(Network::V4 { bits, mask }) => (&mut self.v4, mask.into(), bits.into()),
            Some(Network::V6 { bits, mask }) => (&mut self.v6, mask, bits),
            _ => return,
        };
        networks.0.entry(mask).or_default().remove(&bits);
    }

    /// A later range takes the place of what it covers of earlier ones.
    fn add_range(&mut self, text: &str, value: Option<Bytes>) -> Result<(), ValueError> {
        let invalid = || ValueError(format!("invalid range \"{text}\""));
        let (first, last) = text.split_once('-').ok_or_else(invalid)?;
        let bits = |text: &str| text.parse::<Ipv4Addr>().ok().map(|ip| ip.to_bits());
        let (first, last) = (bits(first).ok_or_else(invalid)?, bits(last).ok_or_else(invalid)?);
        if first > last {
            return Err(invalid());
        }
        // They do not overlap, so those that reach into this one are the last ones before its end.
        let before = self.ranges.range(..=last).rev();
        let touched = before.take_while(|(_, (end, _))| *end >= first);
        let touched: Vec<u32> = touched.map(|(start, _)| *start).collect();
        for start in touched {
            let Some((end, value)) = self.ranges.remove(&start) else { continue };
            if start < first {
                self.ranges.insert(start, (first - 1, value.clone()));
            }
            if end > last {
                self.ranges.insert(last + 1, (end, value));
            }
        }
        if let Some(value) = value {
            self.ranges.insert(first, (last, value));
        }
        Ok(())
    }
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let (source, name) = match &line.args[..] {
        [source, name] => (Some(Template::compile(source, env).map_err(at)?), name),
        _ => (None, &line.args[0]),
    };
    let slot = define(name, env).map_err(at)?;
    let mut geo = Geo {
        source,
        default: Bytes::new(),
        v4: Networks::default(),
        v6: Networks::default(),
        ranges: BTreeMap::new(),
        proxies: Vec::new(),
        is_proxy_recursive: false,
        is_volatile: false,
    };
    let mut has_ranges = false;
    for row in line.block.as_deref().unwrap_or_default() {
        let name = row.name_text();
        *env.line.borrow_mut() = Some(row.at.clone());
        let one = match &row.args[..] {
            [] if name == "ranges" => {
                has_ranges = true;
                continue;
            }
            [] if name == "proxy_recursive" => {
                geo.is_proxy_recursive = true;
                continue;
            }
            [] if name == "volatile" => {
                geo.is_volatile = true;
                continue;
            }
            [one] => one.clone(),
            _ => return Err(ValueError::new("invalid number of the geo parameters").at(&row.at)),
        };
        let text = String::from_utf8_lossy(&one).into_owned();
        let done = match (&*name, has_ranges) {
            ("default", _) => {
                geo.default = one;
                Ok(())
            }
            ("proxy", _) => match Network::written(&text, env) {
                Some(network) => {
                    geo.proxies.push(network);
                    Ok(())
                }
                None => Err(ValueError(format!("invalid network \"{text}\""))),
            },
            ("delete", true) => geo.add_range(&text, None),
            ("delete", false) => {
                geo.delete_network(&text);
                Ok(())
            }
            (range, true) => geo.add_range(range, Some(one)),
            (network, false) => geo.add_network(network, one, env),
        };
        done.map_err(|error| error.at(&row.at))?;
    }
    env.definitions.borrow_mut().push(Definition { slot, source: Box::new(geo) });
    Ok(())
}
