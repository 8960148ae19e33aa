//! What one block of the configuration wrote.

use super::directive::Contexts;
use super::regex::Regex;
use super::settings::Drafts;
use crate::config::servers::{Listen, ServerName};
use crate::exchange::handler::Handler;
use crate::logging::error_log::ErrorLogs;
use bytes::Bytes;
use std::collections::HashSet;
use std::mem::Discriminant;
use std::sync::Arc;
use yorozu_conf::Position;

/// What a `location` line matches.
#[derive(Clone, Debug)]
pub enum LocationName {
    /// `= /path`
    Exact(Bytes),
    /// `/path`, or `^~ /path` when no regex shall be tried after it
    Prefix { path: Bytes, no_regex: bool },
    /// `~ …` and `~* …`
    Regex(Regex),
    /// `@name`
    Named(Bytes),
    /// `if` and `limit_except`
    Unnamed,
}

impl LocationName {
    /// The path or name, or a regex's source; empty for none.
    pub fn path(&self) -> Bytes {
        match self {
            Self::Exact(name) | Self::Named(name) | Self::Prefix { path: name, .. } => name.clone(),
            Self::Regex(regex) => Bytes::copy_from_slice(regex.source().as_bytes()),
            Self::Unnamed => Bytes::new(),
        }
    }
}

/// One block; only the parts that its context allows are ever filled.
#[derive(Clone)]
pub struct Block {
    pub context: Contexts,
    pub at: Option<Position>,

    pub error_log: Option<ErrorLogs>,
    /// Directives without effect that it has and that may stand once.
    pub ignored: HashSet<String>,
    /// What it says about each module.
    pub drafts: Drafts,

    /// What makes the response; not inherited by nested locations.
    pub handler: Option<Arc<dyn Handler>>,
    /// The line that says so.
    pub handler_at: Option<Position>,
    /// Whether there are two, of which one shall be alone.
    pub has_two_handlers: bool,
    /// Whether `events` stands in it.
    pub has_events: bool,
    pub name: LocationName,
    /// `limit_except`: the methods it does not concern, and its block.
    pub limit_except: Option<Box<(Vec<Bytes>, Block)>>,
    pub locations: Vec<Block>,
    /// Of each kind, the names that only one of them may have.
    pub location_names: HashSet<(Discriminant<LocationName>, Bytes)>,

    pub server_names: Vec<ServerName>,
    pub listens: Vec<Listen>,
    pub servers: Vec<Block>,
}

impl Block {
    pub fn new(context: Contexts, at: Option<Position>) -> Self {
        Self {
            context,
            at,
            error_log: None,
            ignored: HashSet::new(),
            drafts: Drafts::default(),
            handler: None,
            handler_at: None,
            has_two_handlers: false,
            has_events: false,
            name: LocationName::Unnamed,
            limit_except: None,
            locations: Vec::new(),
            location_names: HashSet::new(),
            server_names: Vec::new(),
            listens: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// Takes over from the enclosing block what this one does not say.
    pub fn inherit(&mut self, outer: &Self) {
        if self.error_log.is_none() {
            self.error_log.clone_from(&outer.error_log);
        }
        self.drafts.inherit(&outer.drafts);
    }

    /// Sets what makes the response; as nginx: the last one does.
    pub fn handle_by(&mut self, handler: impl Handler) {
        let before = self.handler.as_ref();
        self.has_two_handlers |= before.is_some_and(|one| one.is_alone() || handler.is_alone());
        self.handler = Some(Arc::new(handler));
        self.handler_at = None;
    }
}
