//! `geo`: a variable whose value depends on an address.

use bytes::Bytes;
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::define;
use yorozu_kernel::config::loader::Loader;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::spans::{Address, Range, Spans};
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::variables::Computed;
use yorozu_kernel::exchange::{Exchange, forwarded};

/// The module.
pub const MODULE: Module = Module::new("http_geo", || DIRECTIVES.to_vec());

/// A compiled `geo` block.
#[derive(Debug)]
struct Geo {
    /// The address that is looked at; the client's without it.
    source: Option<Template>,
    default: Bytes,
    /// Each value once; the spans have their places.
    values: Box<[Bytes]>,
    ranges: Spans<u32>,
    v4: Spans<u32>,
    v6: Spans<u128>,
    proxies: Vec<Network>,
    is_proxy_recursive: bool,
    is_volatile: bool,
}

/// What the lines of a `geo` block say.
#[derive(Default)]
struct Draft {
    default: Bytes,
    values: HashMap<Bytes, u32, RandomState>,
    /// `ranges`: as written; where they overlap the last one counts.
    ranges: Vec<Range<u32>>,
    /// As written, those that are deleted without a value: of the same network the last line counts.
    v4: Vec<Range<u32>>,
    v6: Vec<Range<u128>>,
    proxies: Vec<Network>,
    has_ranges: bool,
    is_proxy_recursive: bool,
    is_volatile: bool,
}

/// The smallest network that an address is in counts.
fn smallest<A: Address>(mut networks: Vec<Range<A>>) -> Spans<A> {
    // A stable sort, so that of the same network the last line is the last.
    networks.sort_by_key(|network| (network.first, Reverse(network.last)));
    let is_same =
        |one: &Range<A>, other: &Range<A>| (one.first, one.last) == (other.first, other.last);
    let last_lines = networks.chunk_by(is_same).filter_map(|lines| lines.last());
    Spans::nested(last_lines.filter(|network| network.value != Spans::<A>::NOTHING).copied())
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
        let value = match (v4, address) {
            (Some(ip), _) => {
                let ip = ip.to_bits();
                self.ranges.find(ip).or_else(|| self.v4.find(ip))
            }
            (None, IpAddr::V6(ip)) => self.v6.find(ip.to_bits()),
            (None, IpAddr::V4(_)) => None,
        };
        Some(&self.values[value? as usize])
    }
}

impl Draft {
    /// The place of a value, which is kept once.
    fn value(&mut self, value: &Bytes) -> u32 {
        if let Some(place) = self.values.get(value) {
            return *place;
        }
        let place = u32::try_from(self.values.len()).expect("fewer lines than that are read");
        self.values.insert(value.clone(), place);
        place
    }

    /// One line: `name value`; `network` reads the networks that are added.
    fn line(
        &mut self,
        name: &str,
        value: &Bytes,
        network: &dyn Fn(&str) -> Option<Network>,
    ) -> Result<(), ValueError> {
        match (name, self.has_ranges) {
            ("default", _) => self.default = value.clone(),
            ("proxy", _) => {
                let text = String::from_utf8_lossy(value);
                let proxy = network(&text).ok_or_else(|| invalid("network", &text))?;
                self.proxies.push(proxy);
            }
            ("delete", true) => {
                self.range(&String::from_utf8_lossy(value), Spans::<u32>::NOTHING)?;
            }
            ("delete", false) => self.delete_network(&String::from_utf8_lossy(value)),
            (range, true) => {
                let value = self.value(value);
                self.range(range, value)?;
            }
            (text, false) => {
                let value = self.value(value);
                self.network(network(text), value).ok_or_else(|| invalid("network", text))?;
            }
        }
        Ok(())
    }

    /// `None` for what is no network of addresses.
    fn network(&mut self, network: Option<Network>, value: u32) -> Option<()> {
        match network? {
            Network::V4 { bits, mask } => {
                self.v4.push(Range { first: bits, last: bits | !mask, value });
            }
            Network::V6 { bits, mask } => {
                self.v6.push(Range { first: bits, last: bits | !mask, value });
            }
            Network::All | Network::Unix => return None,
        }
        Some(())
    }

    fn delete_network(&mut self, text: &str) {
        // As nginx: what is no network was not there.
        let _ = self.network(Network::parse(text), Spans::<u32>::NOTHING);
    }

    fn range(&mut self, text: &str, value: u32) -> Result<(), ValueError> {
        let invalid = || invalid("range", text);
        let (first, last) = text.split_once('-').ok_or_else(invalid)?;
        let bits = |text: &str| text.parse::<Ipv4Addr>().ok().map(|ip| ip.to_bits());
        let (first, last) = (bits(first).ok_or_else(invalid)?, bits(last).ok_or_else(invalid)?);
        if first > last {
            return Err(invalid());
        }
        self.ranges.push(Range { first, last, value });
        Ok(())
    }

    fn compile(mut self, source: Option<Template>) -> Geo {
        let in_order = self.ranges.is_sorted_by(|one, next| one.last < next.first);
        let ranges = if in_order {
            Spans::nested(self.ranges.into_iter())
        } else {
            self.ranges.reverse();
            Spans::first_counts(&self.ranges)
        };
        let mut values = vec![Bytes::new(); self.values.len()];
        for (value, place) in self.values {
            values[place as usize] = value;
        }
        Geo {
            source,
            default: self.default,
            values: values.into(),
            ranges,
            v4: smallest(self.v4),
            v6: smallest(self.v6),
            proxies: self.proxies,
            is_proxy_recursive: self.is_proxy_recursive,
            is_volatile: self.is_volatile,
        }
    }
}

fn invalid(what: &str, text: &str) -> ValueError {
    ValueError(format!("invalid {what} \"{text}\""))
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let (source, name) = match &line.args[..] {
        [source, name] => (Some(Template::compile(source, env).map_err(at)?), name),
        _ => (None, &line.args[0]),
    };
    let slot = define(name, env).map_err(at)?;
    let mut draft = Draft::default();
    for row in line.block.as_deref().unwrap_or_default() {
        *env.line.borrow_mut() = Some(row.at.clone());
        let name = String::from_utf8_lossy(&row.name);
        match (&*name, &row.args[..]) {
            ("ranges", []) => draft.has_ranges = true,
            ("proxy_recursive", []) => draft.is_proxy_recursive = true,
            ("volatile", []) => draft.is_volatile = true,
            (name, [value]) => {
                let network = |text: &str| Network::written(text, env);
                draft.line(name, value, &network).map_err(|error| error.at(&row.at))?;
            }
            _ => return Err(ValueError::new("invalid number of the geo parameters").at(&row.at)),
        }
    }
    let source = Box::new(draft.compile(source));
    env.definitions.borrow_mut().push(Definition { slot, source });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> std::net::Ipv4Addr {
        u32::from_be_bytes([10, 0, fastrand::u8(..2), fastrand::u8(..16)]).into()
    }

    #[test]
    fn the_longest_network_counts() {
        for _ in 0..1000 {
            let mut draft = Draft::default();
            let mut networks: Vec<(Network, String)> = Vec::new();
            for number in 0..fastrand::u32(..12) {
                let (text, value) =
                    (format!("{}/{}", address(), fastrand::u8(20..=32)), number % 4);
                let network = Network::parse(&text).unwrap();
                networks.retain(|(earlier, _)| *earlier != network);
                if fastrand::u8(..5) == 0 {
                    draft.line("delete", &text.into(), &Network::parse).unwrap();
                } else {
                    draft.line(&text, &value.to_string().into(), &Network::parse).unwrap();
                    networks.push((network, value.to_string()));
                }
            }
            let geo = draft.compile(None);
            for _ in 0..20 {
                let address = IpAddr::V4(address());
                let matching =
                    networks.iter().filter(|(network, _)| network.matches(Some(address)));
                let bounds = |network: &Network| network.v4_bounds().unwrap();
                let longest =
                    matching.min_by_key(|(network, _)| bounds(network).1 - bounds(network).0);
                let naive = longest.map(|(_, value)| value.as_bytes());
                assert_eq!(geo.find(address).map(|found| &found[..]), naive, "{address}");
            }
        }
    }

    #[test]
    fn the_last_range_counts() {
        for _ in 0..1000 {
            let mut draft = Draft { has_ranges: true, ..Draft::default() };
            let mut ranges = Vec::new();
            for number in 0..fastrand::u32(..12) {
                let (a, b) = (address(), address());
                let (first, last, value) = (a.min(b), a.max(b), (number % 4).to_string());
                let text = format!("{first}-{last}");
                if fastrand::u8(..5) == 0 {
                    draft.line("delete", &text.into(), &Network::parse).unwrap();
                    ranges.push((first, last, None));
                } else {
                    draft.line(&text, &value.clone().into(), &Network::parse).unwrap();
                    ranges.push((first, last, Some(value)));
                }
            }
            let geo = draft.compile(None);
            for _ in 0..20 {
                let address = address();
                let covers = |(first, last, _): &&(_, _, _)| (*first..=*last).contains(&address);
                let naive =
                    ranges.iter().rev().find(covers).and_then(|(_, _, value)| value.clone());
                let found = geo.find(address.into()).map(|found| found.to_vec());
                assert_eq!(found, naive.map(String::into_bytes), "{address}");
            }
        }
    }
}
