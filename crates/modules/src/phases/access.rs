//! `allow` and `deny`: which clients may ask, by address.

use std::net::IpAddr;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, silent};
use yorozu_kernel::config::spans::{Address, Range, Spans};
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::outcome::Permission;

/// The module.
pub const MODULE: Module =
    Module::new("http_access", || DIRECTIVES.to_vec()).with(&[silent::<Draft>]);

/// One `allow` or `deny`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    network: Network,
    is_allow: bool,
}

impl Setting for Rule {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        let network = Network::written(&text, args.env)
            .ok_or_else(|| ValueError(format!("invalid parameter \"{text}\"")))?;
        Ok(Self { network, is_allow: args.name == "allow" })
    }
}

/// What one block says; `allow` and `deny` share one list, in the order written.
#[derive(Clone, Default)]
pub struct Draft {
    rules: Inherit<Vec<Rule>>,
}

/// The rules of one location.
#[derive(Clone, Debug)]
pub struct Conf {
    is_set: bool,
    /// The first rule of each address, as [`number`] has it.
    v4: Spans<u32>,
    v6: Spans<u128>,
    /// What the first rule for clients of Unix sockets says.
    unix: Option<bool>,
}

/// The rule at a place of the list: a smaller number stands before a greater one, an odd one admits.
fn number(at: usize, is_allow: bool) -> u32 {
    u32::try_from(at * 2).expect("fewer lines than that are read") | u32::from(is_allow)
}

impl Conf {
    fn new(rules: &[Rule]) -> Self {
        let for_unix = |rule: &&Rule| rule.network.matches(None);
        Self {
            is_set: !rules.is_empty(),
            v4: first_rules(rules, Network::v4_bounds),
            v6: first_rules(rules, Network::v6_bounds),
            unix: rules.iter().find(for_unix).map(|rule| rule.is_allow),
        }
    }

    /// Whether a client of this address is refused.
    pub fn refuses(&self, peer: IpAddr) -> bool {
        self.allows(Some(peer)) == Some(false)
    }

    /// Whether the first rule that matches a client admits it; `None` as `peer` is a client of a Unix socket.
    fn allows(&self, peer: Option<IpAddr>) -> Option<bool> {
        let first = match peer {
            None => return self.unix,
            Some(IpAddr::V4(ip)) => self.v4.find(ip.to_bits()),
            Some(IpAddr::V6(ip)) => {
                // Rules of both families are about such an address.
                let mapped = ip.to_ipv4_mapped().and_then(|ip| self.v4.find(ip.to_bits()));
                mapped.into_iter().chain(self.v6.find(ip.to_bits())).min()
            }
        };
        first.map(|number| number & 1 == 1)
    }
}

/// The first rule of each address of a family, of which `bounds` has the addresses of a network.
fn first_rules<A: Address>(rules: &[Rule], bounds: fn(Network) -> Option<(A, A)>) -> Spans<A> {
    let range = |(at, rule): (usize, &Rule)| {
        let (first, last) = bounds(rule.network)?;
        Some(Range { first, last, value: number(at, rule.is_allow) })
    };
    let ranges: Vec<_> = rules.iter().enumerate().filter_map(range).collect();
    Spans::first_counts(&ranges)
}

impl ModuleDraft for Draft {
    type Conf = Conf;

    fn place() -> &'static Place {
        place!()
    }

    fn inherit(&mut self, outer: &Self) {
        self.rules.inherit(&outer.rules);
    }

    fn compile(&self, _at: &Compiling<'_>) -> Result<Conf, ValueError> {
        Ok(Conf::new(self.rules.written().map_or(&[], Vec::as_slice)))
    }
}

impl ModuleConf for Conf {
    fn place() -> &'static Place {
        Draft::place()
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LIMIT_EXCEPT;

pub const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "allow",
        CONTEXTS,
        Arity::ONE,
        Action::Set(|block, args| block.drafts.of::<Draft>().rules.set(args)),
        "Admits an address or network.",
    ),
    Directive::row(
        "deny",
        CONTEXTS,
        Arity::ONE,
        Action::Set(|block, args| block.drafts.of::<Draft>().rules.set(args)),
        "Refuses an address or network.",
    ),
];

impl Conf {
    /// Whether it says anything.
    pub fn is_set(&self) -> bool {
        self.is_set
    }
}

/// What the first rule that matches the client says.
pub fn check(exchange: &Exchange, conf: &Conf) -> Permission {
    match conf.allows(exchange.remote.ip()) {
        Some(true) => Permission::Allow,
        Some(false) => Permission::Refuse(403),
        None => Permission::NoOpinion,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> String {
        let small = || fastrand::u8(..3);
        match fastrand::u32(..12) {
            0 => "all".to_owned(),
            1 => "unix:".to_owned(),
            2..=4 => format!("2001:db8:{}::{}/{}", small(), small(), fastrand::u8(..=128)),
            5 => format!("::ffff:10.{}.0.{}/{}", small(), small(), fastrand::u8(90..=128)),
            _ => format!("10.{}.0.{}/{}", small(), small(), fastrand::u8(..=32)),
        }
    }

    fn peer() -> Option<IpAddr> {
        let small = || fastrand::u8(..3);
        let text = match fastrand::u32(..8) {
            0 => return None,
            1..=3 => format!("10.{}.0.{}", small(), small()),
            4 => format!("{}.9.9.9", fastrand::u8(..)),
            5 | 6 => format!("::ffff:10.{}.0.{}", small(), small()),
            _ => format!("2001:db8:{}::{}", small(), small()),
        };
        Some(text.parse().unwrap())
    }

    #[test]
    fn the_first_rule_counts_however_they_overlap() {
        for _ in 0..3000 {
            let rule = |_| Rule {
                network: Network::parse(&network()).unwrap(),
                is_allow: fastrand::bool(),
            };
            let rules: Vec<Rule> = (0..fastrand::usize(..10)).map(rule).collect();
            let conf = Conf::new(&rules);
            for _ in 0..20 {
                let peer = peer();
                let first = rules.iter().find(|rule| rule.network.matches(peer));
                let naive = first.map(|rule| rule.is_allow);
                assert_eq!(conf.allows(peer), naive, "{peer:?} by {rules:?}");
            }
        }
    }
}
