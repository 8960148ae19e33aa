//! What a module brings: its directives, settings and variables. The list of modules is the server's (`modules.rs`).

use super::directive::Directive;
use super::settings::AnyDraft;
use super::shared::SharedType;
use crate::exchange::figures::{Reporter, Section};
use crate::exchange::variables::{Row, Variable};
use std::collections::HashMap;
use std::rc::Rc;

/// A module, as the list of modules has it.
pub struct Module {
    /// As nginx's manual has it, without `ngx_` and `_module`.
    pub name: &'static str,
    /// Its rows.
    pub directives: fn() -> Vec<Directive>,
    /// Its settings in a location, each as a block that says nothing has them.
    pub drafts: &'static [fn() -> Rc<dyn AnyDraft>],
    /// What it has once for a configuration.
    pub shared: &'static [SharedType],
    /// Its variables.
    pub variables: &'static [Row],
    /// Its metrics.
    pub report: Option<Reporter>,
    /// What `api` shows of it.
    pub sections: &'static [Section],
}

impl Module {
    /// A module that has directives alone.
    pub const fn new(name: &'static str, directives: fn() -> Vec<Directive>) -> Self {
        Self {
            name,
            directives,
            drafts: &[],
            shared: &[],
            variables: &[],
            report: None,
            sections: &[],
        }
    }

    /// The same with settings.
    #[must_use]
    pub const fn with(self, drafts: &'static [fn() -> Rc<dyn AnyDraft>]) -> Self {
        Self { drafts, ..self }
    }

    /// The same with what it has once for a configuration.
    #[must_use]
    pub const fn sharing(self, shared: &'static [SharedType]) -> Self {
        Self { shared, ..self }
    }

    /// The same with variables.
    #[must_use]
    pub const fn computing(self, variables: &'static [Row]) -> Self {
        Self { variables, ..self }
    }

    /// The same with metrics, and with what `api` shows.
    #[must_use]
    pub const fn showing(self, report: Reporter, sections: &'static [Section]) -> Self {
        Self { report: Some(report), sections, ..self }
    }
}

/// Why a directive has no effect: its name, the words that make it so (all, where there are none), and the reason.
pub type WithoutEffect = (&'static str, &'static [&'static str], &'static str);

/// The modules of the server.
pub struct Modules {
    pub all: &'static [Module],
    by_name: HashMap<String, Vec<Directive>>,
    variables: HashMap<&'static str, &'static Variable>,
    without_effect: &'static [WithoutEffect],
}

impl Modules {
    pub fn new(all: &'static [Module], without_effect: &'static [WithoutEffect]) -> Self {
        let mut by_name: HashMap<String, Vec<Directive>> = HashMap::new();
        for row in all.iter().flat_map(|module| (module.directives)()) {
            // A context of none: the setting is filled by another row.
            if row.contexts != 0 {
                by_name.entry(row.name.clone().into_owned()).or_default().push(row);
            }
        }
        let variables = all.iter().flat_map(|module| module.variables);
        let variables = variables.map(|(name, variable)| (*name, variable)).collect();
        Self { all, by_name, variables, without_effect }
    }

    /// The rows of a name: one, or one per context where it means different things (`server`).
    pub fn rows(&self, name: &str) -> &[Directive] {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The variable of a name that the server computes.
    pub fn variable(&self, name: &str) -> Option<&'static Variable> {
        self.variables.get(name).copied()
    }

    /// Every name with its rows.
    pub fn names(&self) -> impl Iterator<Item = (&String, &Vec<Directive>)> {
        self.by_name.iter()
    }

    /// Why a directive changes nothing however it is written; `None` if it can.
    pub fn without_effect_at_all(&self, name: &str) -> Option<&'static str> {
        let mut all = self.without_effect.iter();
        all.find(|(found, words, _)| *found == name && words.is_empty()).map(|(.., why)| *why)
    }

    /// Why a simple directive, so written, changes nothing; `None` if it does.
    pub fn without_effect(&self, name: &str, args: &[bytes::Bytes]) -> Option<&'static str> {
        let (_, words, why) = self.without_effect.iter().find(|(found, ..)| *found == name)?;
        let is_so = words.is_empty()
            || args.first().is_some_and(|arg| words.iter().any(|w| arg == w.as_bytes()));
        is_so.then_some(*why)
    }
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Modules").finish_non_exhaustive()
    }
}
