//! `map`: a variable whose value depends on another text.

use bytes::Bytes;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::define;
use yorozu_kernel::config::hosts::{Hosts, is_name_or_wildcard};
use yorozu_kernel::config::loader::{self, Loader};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::regex::{Regex, Undecided};
use yorozu_kernel::config::regex_set::RegexSet;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::Computed;

/// The module.
pub const MODULE: Module = Module::new("http_map", || DIRECTIVES.to_vec());

/// A compiled `map` block.
#[derive(Debug)]
pub struct Map {
    source: Template,
    /// Lower-cased texts.
    exact: HashMap<Box<[u8]>, Template, RandomState>,
    hosts: Hosts<Template>,
    regexes: Vec<(Regex, Template)>,
    regex_set: RegexSet,
    default: Template,
    /// Names of hosts: a dot at the end does not count.
    has_hostnames: bool,
    is_volatile: bool,
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "map",
    HTTP,
    Arity::TWO,
    Action::Open(open),
    "A variable whose value depends on another value.",
)];

impl Computed for Map {
    fn value(&self, exchange: &mut Exchange) -> Result<Bytes, Undecided> {
        let subject = self.source.value(exchange);
        let lower = subject.to_ascii_lowercase();
        let host = lower.strip_suffix(b".").filter(|_| self.has_hostnames).unwrap_or(&lower);
        let found = self.exact.get(host).or_else(|| self.hosts.find(host));
        if let Some(value) = found {
            return Ok(value.value(exchange));
        }
        // `$1` of a row is the row's; whoever asks for the value has a `$1` of their own.
        let outer = exchange.captures.clone();
        let found = self.by_regex(&subject, exchange)?;
        let value = found.unwrap_or(&self.default).value(exchange);
        exchange.captures = outer;
        Ok(value)
    }

    fn is_volatile(&self) -> bool {
        self.is_volatile
    }
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let slot = define(&line.args[1], env).map_err(at)?;
    let mut map = Map {
        source: Template::compile(&line.args[0], env).map_err(at)?,
        exact: HashMap::default(),
        hosts: Hosts::default(),
        regexes: Vec::new(),
        regex_set: RegexSet::default(),
        default: Template::default(),
        has_hostnames: false,
        is_volatile: false,
    };
    let rows = loader::rows(line)?;
    map.has_hostnames = rows.iter().any(|row| &row.name[..] == b"hostnames" && row.args.is_empty());
    let mut has_default = false;
    for row in rows {
        let at = |error: ValueError| error.at(&row.at);
        match (&row.name[..], &row.args[..]) {
            (b"hostnames", []) => {}
            (b"volatile", []) => map.is_volatile = true,
            (b"default", [_]) if has_default => {
                return Err(at(ValueError::new("duplicate default map parameter")));
            }
            (b"default", [value]) => {
                has_default = true;
                map.default = Template::compile(value, env).map_err(at)?;
            }
            (key, [value]) => {
                let value = Template::compile(value, env).map_err(at)?;
                map.add(key, value, env).map_err(at)?;
            }
            _ => return Err(at(ValueError::new("invalid number of the map parameters"))),
        }
    }
    map.regex_set = RegexSet::new(map.regexes.iter().map(|(regex, _)| regex));
    env.definitions.borrow_mut().push(Definition { slot, source: Box::new(map) });
    Ok(())
}

impl Map {
    fn by_regex(
        &self,
        subject: &[u8],
        exchange: &mut Exchange,
    ) -> Result<Option<&Template>, Undecided> {
        for place in &*self.regex_set.candidates(subject) {
            let (regex, value) = &self.regexes[*place as usize];
            if regex.matches(subject, exchange)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn add(
        &mut self,
        key: &[u8],
        value: Template,
        env: &yorozu_kernel::config::env::Env,
    ) -> Result<(), ValueError> {
        let shown = String::from_utf8_lossy(key).into_owned();
        if let Some(pattern) = key.strip_prefix(b"~") {
            let (pattern, caseless) = match pattern.strip_prefix(b"*") {
                Some(pattern) => (pattern, true),
                None => (pattern, false),
            };
            self.regexes.push((Regex::compile(pattern, caseless, env)?, value));
            return Ok(());
        }
        let is_wildcard = key.starts_with(b"*.") || key.starts_with(b".") || key.ends_with(b".*");
        let key = match key.strip_prefix(b"\\") {
            Some(key) => key,
            None if self.has_hostnames && !is_name_or_wildcard(&shown) => {
                return Err(ValueError(format!("invalid hostname or wildcard \"{shown}\"")));
            }
            None => key,
        }
        .to_ascii_lowercase();
        let is_new = if self.has_hostnames && is_wildcard {
            // `.a` stands for `a` as well.
            !key.strip_prefix(b".").is_some_and(|bare| self.exact.contains_key(bare))
                && self.hosts.add(&shown.to_ascii_lowercase(), value)
        } else {
            !self.hosts.has_exact(&key) && self.exact.insert(key.into(), value).is_none()
        };
        if is_new { Ok(()) } else { Err(ValueError(format!("conflicting parameter \"{shown}\""))) }
    }
}
