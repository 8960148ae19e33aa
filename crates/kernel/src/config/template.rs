//! Text with variables, compiled once: `"$scheme://$host$request_uri"`.

use crate::exchange::variables::Variable;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

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
        Self {
            parts: if text.is_empty() {
                Box::default()
            } else {
                Box::new([Part::Text(lasting(text))])
            },
        }
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

    /// Whether it is this text, without variables.
    #[inline]
    pub fn is_text(&self, text: &[u8]) -> bool {
        self.literal_text().is_some_and(|own| own == text)
    }

    /// The text with `value` for each variable.
    pub fn with(&self, value: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for part in &self.parts {
            text.extend_from_slice(if let Part::Text(piece) = part { piece } else { value });
        }
        text
    }

    /// Whether it has `$1` to `$9`.
    pub fn has_captures(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Capture(_)))
    }

    /// Whether it holds `$request_method`.
    pub fn has_request_method(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if v.is_request_method()))
    }

    /// Whether what this one spells differs wherever the variables of `other` do, as far as that can be told: each stands
    /// in it.
    pub fn has_variables_of(&self, other: &Self) -> bool {
        let holds = |variable: &Variable| {
            self.parts.iter().any(|part| matches!(part, Part::Variable(own) if own.is_it(variable)))
        };
        other.parts.iter().all(|part| match part {
            Part::Text(_) => true,
            Part::Capture(_) => false,
            Part::Variable(variable) => holds(variable),
        })
    }

    /// Whether it holds `$http_name`; `name` with dashes, lower-case.
    pub fn has_field(&self, name: &[u8]) -> bool {
        let is_it =
            |variable: &Variable| matches!(variable, Variable::RequestField(n) if **n == *name);
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if is_it(v)))
    }
}

/// What is longer is no word that many configurations have.
const LASTING_BYTES: usize = 32;
/// Chosen: more than a configuration has, less than would be noticed when reloads bring ever others.
const LASTING_MAX: usize = 4096;

/// The same text for the rest of the process, if it is short: a value that a request takes from it is no share of a buffer,
/// and nothing has to be counted.
fn lasting(text: Bytes) -> Bytes {
    static TEXTS: Mutex<BTreeSet<&[u8]>> = Mutex::new(BTreeSet::new());
    if text.len() > LASTING_BYTES {
        return text;
    }
    // Each use is one call: a panic elsewhere cannot leave it half changed.
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(&text[..]) {
        return Bytes::from_static(known);
    }
    if texts.len() >= LASTING_MAX {
        return text;
    }
    let kept: &'static [u8] = Box::leak(Box::from(&text[..]));
    texts.insert(kept);
    Bytes::from_static(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_kept_once() {
        let place = |text: &[u8]| {
            let literal = Template::literal(text.to_vec()).as_literal().unwrap();
            assert_eq!(literal, text);
            literal.as_ptr()
        };
        assert_eq!(place(b"a short text"), place(b"a short text"));
        assert_ne!(place(b"a short text"), place(b"another one"));
        let long = [b'x'; LASTING_BYTES + 1];
        let (one, other) = (Template::literal(long.to_vec()), Template::literal(long.to_vec()));
        assert_ne!(one.as_literal().unwrap().as_ptr(), other.as_literal().unwrap().as_ptr());
    }
}
