//! What modules show of themselves while the server runs: metrics, and parts of what `api` answers.

use super::conf::Config;
use crate::base::report::Report;
use serde_json::Value;

/// Adds a module's metrics.
pub type Reporter = fn(&Config, &mut Report);

/// A part of what `api` answers, at a path like `http/caches`.
#[derive(Clone, Copy)]
pub struct Section {
    pub path: &'static str,
    /// What it shows now.
    pub figures: fn(&Config) -> Value,
    /// Of a part with a value for each name: the text and the code of the error about a name that is not there.
    pub missing: Option<(&'static str, &'static str)>,
}

impl Section {
    /// One value.
    pub const fn one(path: &'static str, figures: fn(&Config) -> Value) -> Self {
        Self { path, figures, missing: None }
    }

    /// A value for each name.
    pub const fn by_name(
        path: &'static str,
        figures: fn(&Config) -> Value,
        missing: (&'static str, &'static str),
    ) -> Self {
        Self { path, figures, missing: Some(missing) }
    }
}
