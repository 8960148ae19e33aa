//! `cache_memory`: what the memory tiers of all zones may take together.
//!
//! ```text
//! cache_memory 2g;
//! cache_memory 25%;
//! ```
//! Without it, zones whose line says nothing of `memory=` share a quarter of what there is; the others have what they say.

use std::collections::BTreeMap;
use std::sync::Arc;
use yorozu_cache::{Zone, bounds};
use yorozu_conf::value;
use yorozu_kernel::base::memory::available_bytes;
use yorozu_kernel::base::readable::size;
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::place::{Place, place};
use yorozu_kernel::config::shared::{Shared, SharedType};

/// The module.
pub const MODULE: Module =
    Module::new("cache_memory", || DIRECTIVES.to_vec()).sharing(&[SharedType::of::<Memory>()]);

const DIRECTIVES: &[Directive] = &[Directive::row(
    "cache_memory",
    HTTP,
    Arity::ONE,
    Action::Set(cache_memory),
    "What the memory tiers of all cache zones may use together: a size, or a share of the memory of the machine or the container (25%). If not set, zones without `memory=` share a quarter.",
)];

/// Share of the memory that zones without `memory=` have together; chosen: PHP and a database need the rest.
const SHARE_DEFAULT: u64 = 25;
/// Where the system does not say how much memory it has; chosen.
const AVAILABLE_DEFAULT: u64 = 1 << 30;

/// What is said of the memory of zones.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `cache_memory`, in bytes.
    said: Option<u64>,
    /// What the zones that share their memory may take together.
    budget: u64,
    /// The zones, and whether their line has `memory=`.
    zones: BTreeMap<String, bool>,
}

impl Shared for Memory {
    fn place() -> &'static Place {
        place!()
    }
}

fn cache_memory(_: &mut Block, args: &Args<'_>) -> Result<(), ValueError> {
    let text = args.text(0);
    let expected = || {
        ValueError(format!("invalid value \"{text}\", expected a size, or a share from 1% to 100%"))
    };
    let bytes = match text.strip_suffix('%') {
        Some(digits) => {
            let percent = digits.parse::<u64>().ok().filter(|percent| (1..=100).contains(percent));
            share(percent.ok_or_else(expected)?)
        }
        None => value::offset(args.word(0)).filter(|bytes| *bytes > 0).ok_or_else(expected)?,
    };
    match args.env.shared::<Memory>().said.replace(bytes) {
        Some(_) => Err(args.duplicate()),
        None => Ok(()),
    }
}

fn share(percent: u64) -> u64 {
    available_bytes().unwrap_or(AVAILABLE_DEFAULT) / 100 * percent
}

impl Memory {
    /// Notes a zone; `is_said`: its line has `memory=`.
    pub(super) fn note(&mut self, zone: &str, is_said: bool) {
        self.zones.insert(zone.to_owned(), is_said);
    }

    fn is_shared(&self, zone: &str) -> bool {
        self.said.is_some() || self.zones.get(zone) == Some(&false)
    }

    /// Gives each of the zones that share their memory its part for now, and all others theirs.
    pub fn divide(&self, zones: &[(String, Arc<Zone>)]) {
        let (shared, others): (Vec<_>, Vec<_>) =
            zones.iter().partition(|(name, _)| self.is_shared(name));
        others.iter().for_each(|(_, zone)| zone.set_memory_bound(zone.options().memory_bytes));
        let needs: Vec<_> = shared.iter().map(|(_, zone)| zone.memory_need()).collect();
        for ((_, zone), bound) in shared.iter().zip(bounds(&needs, self.budget)) {
            zone.set_memory_bound(bound);
        }
    }
}

/// Settles what zones have together, and warns where that is less than they may take.
pub fn settle(env: &Env) {
    let mut memory = env.shared::<Memory>();
    memory.budget = memory.said.unwrap_or_else(|| share(SHARE_DEFAULT));
    let zones = env.zones.borrow();
    let shared = zones.iter().filter(|(name, _)| memory.is_shared(name));
    let wanted: Vec<u64> = shared.map(|(_, zone)| zone.options.memory_bytes).collect();
    let (sum, budget) = (wanted.iter().sum::<u64>(), memory.budget);
    if sum > budget {
        let (count, sum, budget) = (wanted.len(), size(sum), size(budget));
        let how = match memory.said {
            Some(_) => "as \"cache_memory\" says",
            None => "a quarter of what there is, see \"cache_memory\"",
        };
        env.warn(format!("the memory of {count} cache zones, {sum}, is {budget} in all: {how}"));
    }
}
