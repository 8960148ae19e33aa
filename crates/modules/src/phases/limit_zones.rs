//! The zones of `limit_req` and `limit_conn`: states of keys, under the names that limits call them by.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use yorozu_kernel::config::directive::{Args, ValueError};
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::place::Place;
use yorozu_kernel::config::shared::Shared;
use yorozu_kernel::config::template::Template;

/// What is limited.
pub trait Limited: 'static {
    /// The directive that defines a zone.
    const DIRECTIVE: &'static str;
    /// What a zone says beside its key, name and size.
    type Rule: Send + Sync;
    /// The states of its keys.
    type States: Send + Sync;

    /// The states of a zone of this size.
    fn states(bytes: u64) -> Self::States;

    fn place() -> &'static Place;
}

/// Which requests a limit counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Counted {
    All,
    /// Those that reach an upstream (`upstream`).
    ToUpstream,
}

/// `limit_…_zone key zone=name:size`
pub struct Zone<L: Limited> {
    pub key: Template,
    key_text: Bytes,
    pub rule: L::Rule,
    pub bytes: u64,
    pub states: Arc<L::States>,
}

/// The zones of a configuration, by name.
pub struct Zones<L: Limited>(BTreeMap<String, Zone<L>>);

impl<L: Limited> Zones<L> {
    /// Adds a zone whose key is the first argument.
    ///
    /// # Errors
    /// It has no name, or another zone has it already.
    pub fn define(
        args: &Args<'_>,
        (name, bytes): (String, u64),
        rule: L::Rule,
    ) -> Result<(), ValueError> {
        let key = Template::compile(args.word(0), args.env)?;
        if name.is_empty() {
            let text = format!("\"{}\" must have \"zone\" parameter", L::DIRECTIVE);
            return Err(ValueError(text));
        }
        args.env.named.borrow_mut().zone(&name, L::DIRECTIVE, bytes)?;
        let zones = &mut args.env.shared::<Self>().0;
        if let Some(other) = zones.get(&name) {
            let key = String::from_utf8_lossy(&other.key_text);
            let text = format!("{} \"{name}\" is already bound to key \"{key}\"", L::DIRECTIVE);
            return Err(ValueError(text));
        }
        let (key_text, states) = (args.words[0].clone(), Arc::new(L::states(bytes)));
        zones.insert(name, Zone { key, key_text, rule, bytes, states });
        Ok(())
    }

    /// The zone of that name.
    pub fn get(&self, name: &str) -> Option<&Zone<L>> {
        self.0.get(name)
    }

    /// Checks that all of these zones are defined.
    ///
    /// # Errors
    /// One is not.
    pub fn check<'n>(
        env: &Env,
        mut names: impl Iterator<Item = &'n String>,
    ) -> Result<(), ValueError> {
        let zones = &env.shared::<Self>().0;
        match names.find(|name| !zones.contains_key(*name)) {
            Some(name) => Err(ValueError(format!("zero size shared memory zone \"{name}\""))),
            None => Ok(()),
        }
    }
}

impl<L: Limited> Default for Zones<L> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<L: Limited> Shared for Zones<L> {
    const SURVIVES: bool = true;

    fn place() -> &'static Place {
        L::place()
    }

    /// A zone that is written the same goes on with its states.
    fn finish(&mut self, earlier: &Self) {
        for (name, zone) in &mut self.0 {
            let is_same =
                |old: &&Zone<L>| (&old.key_text, old.bytes) == (&zone.key_text, zone.bytes);
            if let Some(old) = earlier.0.get(name).filter(is_same) {
                zone.states = Arc::clone(&old.states);
            }
        }
    }
}
