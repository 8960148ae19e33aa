//! Text with variables, compiled once: `"$scheme://$host$request_uri"`.

use crate::exchange::variables::Variable;
use bytes::Bytes;

/// A text with variables; nginx's complex value.
#[derive(Clone, Debug, Default)]
pub struct Template {
    pub(crate) parts: Box<[Part]>,
}

/// A piece of a template.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Text(Bytes),
    Capture(usize),
    Variable(Variable),
}

impl Template {
    /// A text without variables.
    pub fn literal(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        Self { parts: if text.is_empty() { Box::default() } else { Box::new([Part::Text(text)]) } }
    }

    /// The text, if no variable stands in it.
    pub fn as_literal(&self) -> Option<Bytes> {
        self.literal_text().cloned()
    }

    pub(crate) fn literal_text(&self) -> Option<&Bytes> {
        static EMPTY: Bytes = Bytes::new();
        match &self.parts[..] {
            [] => Some(&EMPTY),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it holds `$request_method`.
    pub fn has_request_method(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if v.is_request_method()))
    }

    /// Whether it holds `$http_name`; `name` with dashes, lower-case.
    pub fn has_field(&self, name: &[u8]) -> bool {
        let is_it =
            |variable: &Variable| matches!(variable, Variable::RequestField(n) if **n == *name);
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if is_it(v)))
    }
}
