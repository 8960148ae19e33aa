//! What a load of the configuration collects on its way: names of variables, log files, formats,
//! cache zones, warnings.

use super::directive::ValueError;
use super::module::Modules;
use super::named::Named;
use super::regex::Regex;
use super::settings::AnyDraft;
use super::shared::{Collected, Shared, SharedSet};
use crate::config::names::{Definition, VariableNames};
use crate::exchange::variables::Variable;
use crate::logging::file::LogFiles;
use bytes::Bytes;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use yorozu_cache::ZoneOptions;
use yorozu_conf::Position;
use yorozu_upstream::Loads;

/// A `*_cache_path` line.
#[derive(Clone, Debug)]
pub struct CacheZone {
    pub options: ZoneOptions,
}

/// The load under way. Interior mutability, because every setter may name a variable.
pub struct Env {
    /// The modules, whose directives may be written.
    pub modules: &'static Modules,
    /// The settings of each as a block that says nothing has them.
    pub silent: Vec<Rc<dyn AnyDraft>>,
    /// What the modules have once.
    pub collected: Collected,
    /// `-p`; relative paths of files the server writes or serves.
    pub prefix: PathBuf,
    /// The folder of the main configuration file; relative paths of includes.
    pub conf_prefix: PathBuf,
    /// Names of variables seen so far.
    pub variables: RefCell<VariableNames>,
    /// What defines them: `map`, `set`, named captures.
    pub definitions: RefCell<Vec<Definition>>,
    /// Regular expressions by their text and whether case does not count.
    pub regexes: RefCell<HashMap<(Bytes, bool), Regex>>,
    /// Log files by path; survives a reload.
    pub logs: Arc<LogFiles>,
    /// Cache zones by name.
    pub zones: RefCell<BTreeMap<String, CacheZone>>,
    /// Names that several modules share.
    pub named: RefCell<Named>,
    /// Lines for `-t` and the error log that do not refuse the configuration.
    pub warnings: RefCell<Vec<String>>,
    /// The line that is being read.
    pub line: RefCell<Option<Position>>,
    /// Whether a `*_bind … transparent` needs the capability.
    pub is_transparent: Cell<bool>,
    /// Whether something shows metrics, for which requests are counted.
    pub is_counted: Cell<bool>,
    /// What peers have under way; survives a reload.
    pub loads: Arc<Loads>,
    /// Directives that are accepted and have no effect, each once, for `-t`.
    pub notes: RefCell<BTreeMap<String, String>>,
}

impl Env {
    pub fn new(
        modules: &'static Modules,
        (prefix, conf_prefix): (PathBuf, PathBuf),
        logs: Arc<LogFiles>,
        earlier: &SharedSet,
    ) -> Self {
        let drafts = modules.all.iter().flat_map(|module| module.drafts);
        let shared = modules.all.iter().flat_map(|module| module.shared.iter().copied());
        Self {
            modules,
            silent: drafts.map(|silent| silent()).collect(),
            collected: Collected::begin(shared, earlier),
            prefix,
            conf_prefix,
            variables: RefCell::new(VariableNames::new(Box::new(|name| modules.variable(name)))),
            definitions: RefCell::default(),
            regexes: RefCell::default(),
            logs,
            zones: RefCell::default(),
            named: RefCell::default(),
            warnings: RefCell::default(),
            line: RefCell::default(),
            is_transparent: Cell::new(false),
            is_counted: Cell::new(false),
            loads: Arc::default(),
            notes: RefCell::default(),
        }
    }

    /// What a module has once, to be added to.
    ///
    /// # Panics
    /// It is in use.
    pub fn shared<T: Shared>(&self) -> RefMut<'_, T> {
        self.collected.of()
    }

    /// The load is over: what the modules have once.
    pub fn finish_shared(self, earlier: &SharedSet) -> SharedSet {
        self.collected.finish(earlier)
    }

    /// A path of a file the server writes or serves.
    pub fn prefix_path(&self, path: &str) -> PathBuf {
        join(&self.prefix, path)
    }

    /// As [`Env::warn`], about the line that is being read.
    pub fn warn_here(&self, text: &str) {
        let line = self.line.borrow();
        match &*line {
            Some(at) => self.warn(format!("{text} in {at}")),
            None => self.warn(text),
        }
    }

    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
}

/// `path` below `base`, unless it is absolute.
pub fn join(base: &Path, path: &str) -> PathBuf {
    base.join(path)
}

/// Variables of the server that `set` changes in their own place.
const IS_SET_AS_SUCH: [&str; 2] = ["args", "limit_rate"];

/// The variable that `set` or its like gives a value: a slot that `define` has for its name, or one of the server's that can be
/// changed.
///
/// # Errors
/// It is no variable, or one that cannot be changed.
pub fn target(
    word: &Bytes,
    env: &Env,
    define: fn(&mut VariableNames, &str) -> u16,
) -> Result<Variable, ValueError> {
    let name = name(word)?.to_ascii_lowercase();
    if IS_SET_AS_SUCH.contains(&&*name) {
        return Ok(env.variables.borrow_mut().resolve(&name));
    }
    not_reserved(&name, env)?;
    Ok(Variable::Slot(define(&mut env.variables.borrow_mut(), &name)))
}

/// The slot of `$name`, which the configuration is about to define.
pub fn define(word: &Bytes, env: &Env) -> Result<u16, ValueError> {
    let name = name(word)?;
    not_reserved(&name, env)?;
    Ok(env.variables.borrow_mut().define(&name))
}

fn name(word: &Bytes) -> Result<String, ValueError> {
    let text = String::from_utf8_lossy(word);
    let name = text.strip_prefix('$').filter(|name| !name.is_empty()).map(str::to_owned);
    name.ok_or_else(|| ValueError(format!("invalid variable name \"{text}\"")))
}

/// # Errors
/// It is one of the server's, which the configuration may not define.
pub(super) fn not_reserved(name: &str, env: &Env) -> Result<(), ValueError> {
    if IS_SET_AS_SUCH.contains(&name) {
        return Ok(());
    }
    if env.variables.borrow().is_reserved(name) {
        return Err(ValueError(format!("the duplicate \"{name}\" variable")));
    }
    Ok(())
}
