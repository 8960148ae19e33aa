//! `geo`: a variable whose value depends on an address.

use bytes::Bytes;
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::base::address;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::define;
use yorozu_kernel::config::loader::{Loader, rows};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::regex::Undecided;
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
    default: Option<Bytes>,
    values: HashMap<Bytes, u32, RandomState>,
    /// The values by their places.
    texts: Vec<Bytes>,
    /// `ranges`: by where each begins where it ends, and its value. As nginx's, none reaches over the bound of a network of 16
    /// bits, and one that lies inside another divides it.
    pieces: BTreeMap<u32, (u32, u32)>,
    /// The networks that have a value, for warnings.
    named: HashMap<Network, u32, RandomState>,
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
    fn value(&self, exchange: &mut Exchange) -> Result<Bytes, Undecided> {
        let found = self.find(self.address(exchange));
        Ok(found.unwrap_or(&self.default).clone())
    }

    fn is_volatile(&self) -> bool {
        self.is_volatile
    }
}

impl Geo {
    /// As nginx: what has no address - the client of a Unix socket, another text - is 255.255.255.255.
    fn address(&self, exchange: &mut Exchange) -> IpAddr {
        let known = match &self.source {
            Some(source) => address::ip(&source.value(exchange)),
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
        let place = u32::try_from(self.texts.len()).expect("fewer lines than that are read");
        self.values.insert(value.clone(), place);
        self.texts.push(value.clone());
        place
    }

    /// One line: `name value`; `network` reads the networks that are added, `warn` is told what was hardly meant.
    fn line(
        &mut self,
        name: &str,
        value: &Bytes,
        network: &dyn Fn(&str) -> Option<Network>,
        warn: &dyn Fn(&str),
    ) -> Result<(), ValueError> {
        let text = String::from_utf8_lossy(value);
        match (name, self.has_ranges) {
            ("default", has_ranges) => {
                if let Some(old) = self.default.replace(value.clone()) {
                    let what =
                        if has_ranges { "default geo range" } else { "network \"default\"," };
                    warn(&duplicate(what, value, &old));
                }
            }
            ("proxy", _) => {
                let proxy = network(&text).ok_or_else(|| invalid("network", &text))?;
                self.proxies.push(proxy);
            }
            ("delete", true) => self.delete_range(&text, warn)?,
            ("delete", false) => {
                let deleted = broadcast(&text).or_else(|| Network::parse(&text));
                self.network(deleted, None).ok_or_else(|| invalid("network", &text))?;
                if deleted.and_then(|deleted| self.named.remove(&deleted)).is_none() {
                    warn(&format!("no network \"{text}\" to delete"));
                }
            }
            (range, true) => self.range(range, value, warn)?,
            (name, false) => {
                let place = self.value(value);
                let network = network(name);
                self.network(network, Some(place)).ok_or_else(|| invalid("network", name))?;
                if let Some(old) = network.and_then(|network| self.named.insert(network, place)) {
                    let old = &self.texts[old as usize];
                    warn(&duplicate(&format!("network \"{name}\","), value, old));
                }
            }
        }
        Ok(())
    }

    /// Whether there was a line about networks: ranges come before those.
    fn has_networks(&self) -> bool {
        let has_lines = !self.v4.is_empty() || !self.v6.is_empty() || self.default.is_some();
        has_lines && !self.has_ranges
    }

    /// `None` for what is no network of addresses.
    fn network(&mut self, network: Option<Network>, value: Option<u32>) -> Option<()> {
        let value = value.unwrap_or(Spans::<u32>::NOTHING);
        match network? {
            Network::All | Network::Unix => return None,
            network => {
                let v4 = network.v4_bounds().map(|(first, last)| Range { first, last, value });
                let v6 = network.v6_bounds().map(|(first, last)| Range { first, last, value });
                self.v4.extend(v4);
                self.v6.extend(v6);
            }
        }
        Some(())
    }

    /// # Errors
    /// It is no range, or neither apart from another one nor inside it.
    fn range(&mut self, text: &str, value: &Bytes, warn: &dyn Fn(&str)) -> Result<(), ValueError> {
        let place = self.value(value);
        for (first, last) in pieces(bounds(text)?) {
            let before = self.pieces.range(..=last).next_back().map(|(start, end)| (*start, *end));
            let Some((start, (end, old))) = before.filter(|(_, (end, _))| *end >= first) else {
                self.pieces.insert(first, (last, place));
                continue;
            };
            if first < start || last > end {
                let [start, end] = [start, end].map(Ipv4Addr::from_bits);
                return Err(ValueError(format!("range \"{text}\" overlaps \"{start}-{end}\"")));
            }
            if (first, last) == (start, end) {
                let old = &self.texts[old as usize];
                warn(&duplicate(&format!("range \"{text}\","), value, old));
            }
            if start < first {
                self.pieces.insert(start, (first - 1, old));
            }
            if last < end {
                self.pieces.insert(last + 1, (end, old));
            }
            self.pieces.insert(first, (last, place));
        }
        Ok(())
    }

    /// As nginx: only what was written, or is left of it, goes.
    fn delete_range(&mut self, text: &str, warn: &dyn Fn(&str)) -> Result<(), ValueError> {
        let mut is_missing = false;
        for (first, last) in pieces(bounds(text)?) {
            match self.pieces.get(&first).is_some_and(|(end, _)| *end == last) {
                true => _ = self.pieces.remove(&first),
                false => is_missing = true,
            }
        }
        if is_missing {
            warn(&format!("no address range \"{text}\" to delete"));
        }
        Ok(())
    }

    fn compile(self, source: Option<Template>) -> Geo {
        let pieces = self.pieces.into_iter();
        let ranges = pieces.map(|(first, (last, value))| Range { first, last, value });
        Geo {
            source,
            default: self.default.unwrap_or_default(),
            values: self.texts.into(),
            ranges: Spans::nested(joined(ranges)),
            v4: smallest(self.v4),
            v6: smallest(self.v6),
            proxies: self.proxies,
            is_proxy_recursive: self.is_proxy_recursive,
            is_volatile: self.is_volatile,
        }
    }
}

/// The address that stands for what has none, and is no address elsewhere.
fn broadcast(text: &str) -> Option<Network> {
    (text == "255.255.255.255").then_some(Network::V4(Ipv4Addr::BROADCAST, 32))
}

/// The addresses of `first-last`.
fn bounds(text: &str) -> Result<(u32, u32), ValueError> {
    let bits = |text: &str| address::v4(text.as_bytes()).map(Ipv4Addr::to_bits);
    let bounds = text.split_once('-').and_then(|(first, last)| bits(first).zip(bits(last)));
    bounds.filter(|(first, last)| first <= last).ok_or_else(|| invalid("range", text))
}

/// The parts of a range in each network of 16 bits.
fn pieces((first, last): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    (first >> 16..=last >> 16).map(move |head| {
        let (start, end) = (head << 16, head << 16 | 0xffff);
        (start.max(first), end.min(last))
    })
}

/// Ranges in order, those that touch and have one value as one.
fn joined(ranges: impl Iterator<Item = Range<u32>>) -> impl Iterator<Item = Range<u32>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        let touches = |next: &Range<u32>, range: &Range<u32>| {
            range.last.checked_add(1) == Some(next.first) && range.value == next.value
        };
        while let Some(next) = ranges.next_if(|next| touches(next, &range)) {
            range.last = next.last;
        }
        Some(range)
    })
}

/// nginx's words for a line that another one takes back.
fn duplicate(what: &str, value: &[u8], old: &[u8]) -> String {
    let [value, old] = [value, old].map(String::from_utf8_lossy);
    format!("duplicate {what} value: \"{value}\", old value: \"{old}\"")
}

fn invalid(what: &str, text: &str) -> ValueError {
    ValueError(format!("invalid {what} \"{text}\""))
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let (source, name) = match &line.args[..] {
        [source, name] if source.starts_with(b"$") => {
            (Some(Template::compile(source, env).map_err(at)?), name)
        }
        [source, _] => {
            let source = String::from_utf8_lossy(source);
            return Err(at(ValueError(format!("invalid variable name \"{source}\""))));
        }
        _ => (None, &line.args[0]),
    };
    let slot = define(name, env).map_err(at)?;
    let mut draft = Draft::default();
    for row in rows(line)? {
        *env.line.borrow_mut() = Some(row.at.clone());
        let name = String::from_utf8_lossy(&row.name);
        match (&*name, &row.args[..]) {
            ("ranges", []) if draft.has_networks() => {
                let text =
                    "the \"ranges\" directive must be the first directive inside \"geo\" block";
                return Err(ValueError::new(text).at(&row.at));
            }
            ("ranges", []) => draft.has_ranges = true,
            ("proxy_recursive", []) => draft.is_proxy_recursive = true,
            ("volatile", []) => draft.is_volatile = true,
            (name, [value]) => {
                let network = |text: &str| broadcast(text).or_else(|| Network::written(text, env));
                let warn = |text: &str| env.warn_here(text);
                draft.line(name, value, &network, &warn).map_err(|error| error.at(&row.at))?;
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
                    draft.line("delete", &text.into(), &Network::parse, &|_| {}).unwrap();
                } else {
                    draft.line(&text, &value.to_string().into(), &Network::parse, &|_| {}).unwrap();
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
    fn a_range_inside_another_one_divides_it() {
        for _ in 0..1000 {
            let mut draft = Draft { has_ranges: true, ..Draft::default() };
            let mut naive: Vec<(u32, u32, String)> = Vec::new();
            for number in 0..fastrand::u32(..12) {
                let (a, b) = (address(), address());
                let (first, last) = (a.min(b).to_bits(), a.max(b).to_bits());
                let (text, value) =
                    (format!("{}-{}", a.min(b), a.max(b)), (number % 4).to_string());
                if fastrand::u8(..5) == 0 {
                    draft.line("delete", &text.into(), &Network::parse, &|_| {}).unwrap();
                    naive.retain(|(start, end, _)| (*start, *end) != (first, last));
                    continue;
                }
                let taken =
                    draft.line(&text, &value.clone().into(), &Network::parse, &|_| {}).is_ok();
                let met: Vec<_> =
                    naive.extract_if(.., |one| one.0 <= last && one.1 >= first).collect();
                match &met[..] {
                    [] => {}
                    [(start, end, old)] if *start <= first && last <= *end => {
                        if *start < first {
                            naive.push((*start, first - 1, old.clone()));
                        }
                        if last < *end {
                            naive.push((last + 1, *end, old.clone()));
                        }
                    }
                    _ => {
                        assert!(!taken, "{text} among {met:?}");
                        naive.extend(met);
                        continue;
                    }
                }
                assert!(taken, "{text} among {naive:?}");
                naive.push((first, last, value));
            }
            let geo = draft.compile(None);
            for _ in 0..20 {
                let address = address();
                let covers = |(first, last, _): &&(u32, u32, _)| {
                    (*first..=*last).contains(&address.to_bits())
                };
                let wanted = naive.iter().find(covers).map(|(_, _, value)| value.as_bytes());
                assert_eq!(geo.find(address.into()).map(|found| &found[..]), wanted, "{address}");
            }
        }
    }
}
