//! Names of variables: which the configuration uses, and what defines them.

use crate::exchange::variables::{Computed, Variable, prefixed};
use std::collections::HashMap;

/// What gives a slot its value, besides `set` and captures.
#[derive(Debug)]
pub struct Definition {
    pub slot: u16,
    pub source: Box<dyn Computed>,
}

/// The variable of a name that the server computes.
pub type KnownVariables = dyn Fn(&str) -> Option<&'static Variable>;

/// Names that the configuration uses or defines.
pub struct VariableNames {
    /// Those that the server computes.
    computed: Box<KnownVariables>,
    slots: HashMap<String, u16>,
    is_defined: Vec<bool>,
    names: Vec<String>,
    /// Whether anything refers to an answer's own fields.
    pub has_sent: bool,
}

impl VariableNames {
    pub fn new(computed: Box<KnownVariables>) -> Self {
        let (slots, is_defined, names) = (HashMap::new(), Vec::new(), Vec::new());
        Self { computed, slots, is_defined, names, has_sent: false }
    }

    /// The variable a name stands for; an unknown name gets a slot, to be defined later.
    pub fn resolve(&mut self, name: &str) -> Variable {
        if let Some(slot) = self.slots.get(name) {
            return Variable::Slot(*slot);
        }
        if let Some(variable) = self.of_modules(name).or_else(|| prefixed(name)) {
            self.has_sent |= matches!(variable, Variable::SentField(_));
            return variable;
        }
        Variable::Slot(self.slot(name))
    }

    fn slot(&mut self, name: &str) -> u16 {
        if let Some(slot) = self.slots.get(name) {
            return *slot;
        }
        let slot = u16::try_from(self.names.len()).expect("a configuration names few variables");
        self.slots.insert(name.to_owned(), slot);
        self.names.push(name.to_owned());
        self.is_defined.push(false);
        slot
    }

    /// The slot of a variable that `set`, `map` or a named capture fills.
    pub fn define(&mut self, name: &str) -> u16 {
        let slot = self.slot(&name.to_ascii_lowercase());
        self.is_defined[usize::from(slot)] = true;
        slot
    }

    /// Whether the server computes it, so that the configuration may not define it.
    pub fn is_reserved(&self, name: &str) -> bool {
        self.of_modules(name).is_some()
    }

    fn of_modules(&self, name: &str) -> Option<Variable> {
        (self.computed)(name).cloned()
    }

    /// A name that is used and never defined.
    pub fn undefined(&self) -> Option<&str> {
        self.is_defined.iter().position(|defined| !defined).map(|slot| &*self.names[slot])
    }

    pub fn take_names(&mut self) -> Vec<String> {
        std::mem::take(&mut self.names)
    }
}
