//! Names of variables: which the configuration uses, and what defines them.

use crate::exchange::variables::{Computed, Variable, prefixed};
use std::collections::HashMap;

/// What gives a slot its value, besides `set` and captures.
#[derive(Debug)]
pub struct Definition {
    pub slot: u16,
    pub source: Box<dyn Computed>,
}

/// Variables of ours that nginx does not have: a configuration written for it may have its own of that name.
const OWN: [&str; 7] = [
    "brotli_ratio",
    "cache_args",
    "cache_cookies",
    "cache_detail",
    "cache_status",
    "cache_uri",
    "zstd_ratio",
];

/// Fields of requests whose variables may not be defined as those of others may; nginx's.
const FIELDS: [&str; 6] = [
    "http_cookie",
    "http_host",
    "http_referer",
    "http_user_agent",
    "http_via",
    "http_x_forwarded_for",
];

/// Whether a configuration may define a variable that the server computes; as nginx, some of its own.
fn may_be_changed(name: &str) -> bool {
    const CHANGEABLE: [&str; 7] = [
        "ancient_browser",
        "invalid_referer",
        "modern_browser",
        "msie",
        "proxy_host",
        "proxy_port",
        "uid_reset",
    ];
    OWN.contains(&name) || CHANGEABLE.contains(&name) || name.starts_with("ssl_")
}

/// Whether a directive's first word is a variable, and what it gets is made of the others.
pub fn is_assignment(directive: &[u8]) -> bool {
    const OTHERS: [&[u8]; 5] =
        [b"set_escape_uri", b"set_if_empty", b"set_md5", b"set_random", b"set_unescape_uri"];
    directive == b"set" || OTHERS.contains(&directive)
}

/// The variable of a name that the server computes.
pub type KnownVariables = dyn Fn(&str) -> Option<&'static Variable>;

/// What a variable of `set` is where no `set` ran.
const EMPTY: Variable = Variable::Builtin(|_, _| true);

/// Names that the configuration uses or defines.
pub struct VariableNames {
    /// Those that the server computes.
    computed: Box<KnownVariables>,
    slots: HashMap<String, u16>,
    is_defined: Vec<bool>,
    /// What a slot stands for where nothing filled it: `$http_…` and their like under `set`.
    own: Vec<Option<Variable>>,
    names: Vec<String>,
    /// Whether anything refers to an answer's own fields.
    pub has_sent: bool,
}

impl VariableNames {
    pub fn new(computed: Box<KnownVariables>) -> Self {
        let (slots, is_defined, names) = (HashMap::new(), Vec::new(), Vec::new());
        Self { computed, slots, is_defined, own: Vec::new(), names, has_sent: false }
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
        self.own.push(None);
        slot
    }

    /// The slot of a variable that `map`, `auth_request_set` or a named capture fills.
    pub fn define(&mut self, name: &str) -> u16 {
        let slot = self.slot(&name.to_ascii_lowercase());
        self.is_defined[usize::from(slot)] = true;
        self.own[usize::from(slot)] = None;
        slot
    }

    /// The slot of a variable that `set` fills. One of a family (`$http_…`) and one of nginx's that can be changed have
    /// their own value where no `set` ran, unless something else defines it; others are empty then.
    pub fn define_by_set(&mut self, name: &str) -> u16 {
        let name = name.to_ascii_lowercase();
        let slot = self.slot(&name);
        let place = usize::from(slot);
        if !self.is_defined[place] {
            self.is_defined[place] = true;
            let computed = || self.of_modules(&name).filter(|_| !OWN.contains(&&*name));
            self.own[place] = prefixed(&name).or_else(computed).or(Some(EMPTY));
            self.has_sent |= matches!(self.own[place], Some(Variable::SentField(_)));
        }
        slot
    }

    /// Gives slots to the server's variables that are defined below `lines`: what uses them may be read before that.
    pub fn note_definitions(&mut self, lines: &[yorozu_conf::Directive]) {
        for line in lines {
            self.note_definitions(line.block.as_deref().unwrap_or_default());
            let (word, is_set) = match &line.name[..] {
                name if is_assignment(name) => (line.args.first(), true),
                b"auth_request_set" => (line.args.first(), false),
                b"map" | b"split_clients" => (line.args.get(1), false),
                b"geo" => (line.args.last(), false),
                _ => continue,
            };
            let name = word.and_then(|word| std::str::from_utf8(word.strip_prefix(b"$")?).ok());
            let Some(name) = name.map(str::to_ascii_lowercase) else { continue };
            let is_computed = self.of_modules(&name).is_some();
            let is_of_family = prefixed(&name).is_some() && is_set;
            if !self.is_reserved(&name) && (is_computed || is_of_family) {
                match is_set {
                    true => _ = self.define_by_set(&name),
                    false => _ = self.define(&name),
                }
            }
        }
    }

    /// Whether the server computes it, so that the configuration may not define it.
    pub fn is_reserved(&self, name: &str) -> bool {
        FIELDS.contains(&name) || self.of_modules(name).is_some() && !may_be_changed(name)
    }

    fn of_modules(&self, name: &str) -> Option<Variable> {
        (self.computed)(name).cloned()
    }

    /// A name that is used and never defined.
    pub fn undefined(&self) -> Option<&str> {
        self.is_defined.iter().position(|defined| !defined).map(|slot| &*self.names[slot])
    }

    /// By slot, its name and what it stands for where nothing filled it.
    pub fn take(&mut self) -> (Vec<String>, Vec<Option<Variable>>) {
        (std::mem::take(&mut self.names), std::mem::take(&mut self.own))
    }
}
