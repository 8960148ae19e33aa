//! `allow` and `deny`: which clients may ask, by address.

use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::network::Network;
use yorozu_kernel::config::place::{ModuleConf, Place, place};
use yorozu_kernel::config::settings::{Compiling, ModuleDraft, silent};
use yorozu_kernel::exchange::Exchange;

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
    rules: Vec<Rule>,
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
        Ok(Conf { rules: self.rules.or_default() })
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
        !self.rules.is_empty()
    }
}

/// Whether the first rule that matches the client admits it; `None`: none matches.
pub fn allows(exchange: &Exchange, conf: &Conf) -> Option<bool> {
    let peer = exchange.remote.ip();
    conf.rules.iter().find(|rule| rule.network.matches(peer)).map(|rule| rule.is_allow)
}
