//! What is wrong with a value of the configuration.

use yorozu_conf::{ConfError, Position};

/// What is wrong with a directive's arguments; the caller adds the position.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ValueError(pub String);

impl ValueError {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn at(self, at: &Position) -> ConfError {
        ConfError::Value { text: self.0, at: at.clone() }
    }
}
