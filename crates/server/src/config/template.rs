//! Text with variables, compiled once: `"$scheme://$host$request_uri"`.

use super::directive::ValueError;
use super::env::Env;
use crate::exchange::Exchange;
use crate::exchange::scratch::Scratch;
use crate::exchange::slots;
use crate::exchange::variables::Variable;
use bytes::Bytes;

/// A text with variables; nginx's complex value.
#[derive(Clone, Debug, Default)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Bytes),
    Capture(usize),
    Variable(Variable),
}

impl Template {
    /// A text without variables.
    pub fn literal(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        Self { parts: if text.is_empty() { Vec::new() } else { vec![Part::Text(text)] } }
    }

    /// Finds the variables in `text`.
    ///
    /// # Errors
    /// `$` without a name, or an unclosed brace.
    pub fn compile(text: &[u8], env: &Env) -> Result<Self, ValueError> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some((&byte, tail)) = rest.split_first() {
            if byte != b'$' || tail.is_empty() {
                plain.push(byte);
                rest = tail;
                continue;
            }
            let (part, after) = variable(tail, env)?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain).into()));
            }
            parts.push(part);
            rest = after;
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain.into()));
        }
        Ok(Self { parts })
    }

    /// The text, if no variable stands in it.
    pub fn as_literal(&self) -> Option<Bytes> {
        self.literal_text().cloned()
    }

    fn literal_text(&self) -> Option<&Bytes> {
        static EMPTY: Bytes = Bytes::new();
        match &self.parts[..] {
            [] => Some(&EMPTY),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// As [`Template::append`], of a text whose values change nothing on the exchange but what it may compute
    /// anew (`root` with variables).
    pub fn append_peeked(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        match self.literal_text() {
            Some(text) => out.extend_from_slice(text),
            None => {
                let mut shadow = exchange.shadow();
                // `root` with `$request_filename`: it would need itself. What is under way ends with the shadow.
                if slots::begin(&mut shadow, std::ptr::from_ref(self).addr(), None) {
                    self.append(&mut shadow, out);
                }
            }
        }
    }

    /// Does it hold `$request_method`?
    pub fn has_request_method(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if v.is_request_method()))
    }

    /// Does it hold `$http_name`? `name` with dashes, lower-case.
    pub fn has_field(&self, name: &[u8]) -> bool {
        let is_it =
            |variable: &Variable| matches!(variable, Variable::RequestField(n) if **n == *name);
        self.parts.iter().any(|part| matches!(part, Part::Variable(v) if is_it(v)))
    }

    /// Appends the text with its values.
    pub fn append(&self, exchange: &mut Exchange, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => exchange.captures.append(*group, out),
                Part::Variable(variable) => {
                    variable.append(exchange, out);
                }
            }
        }
    }

    /// As [`Template::append`], with `$1`… passed through `escape`.
    pub fn append_with_captures(
        &self,
        exchange: &mut Exchange,
        out: &mut Vec<u8>,
        escape: fn(&[u8], &mut Vec<u8>),
    ) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => {
                    escape(exchange.captures.get(*group).unwrap_or_default(), out);
                }
                Part::Variable(variable) => {
                    variable.append(exchange, out);
                }
            }
        }
    }

    /// As [`Template::append`], with every value passed through `escape` but those that `is_plain`.
    pub fn append_escaped(
        &self,
        exchange: &mut Exchange,
        out: &mut Vec<u8>,
        is_plain: fn(&[u8]) -> bool,
        escape: fn(Option<&[u8]>, &mut Vec<u8>),
    ) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Capture(group) => escape(exchange.captures.get(*group), out),
                Part::Variable(variable) => {
                    let start = out.len();
                    if !variable.append(exchange, out) {
                        out.truncate(start);
                        escape(None, out);
                    } else if !is_plain(&out[start..]) {
                        let value = out.split_off(start);
                        escape(Some(&value), out);
                    }
                }
            }
        }
    }

    /// The text with its values.
    pub fn value(&self, exchange: &mut Exchange) -> Bytes {
        if let Some(text) = self.as_literal() {
            return text;
        }
        let mut out = Scratch::take();
        self.append(exchange, &mut out);
        Bytes::copy_from_slice(&out)
    }

    /// nginx's truth of a string: neither empty nor `0`.
    pub fn is_true(&self, exchange: &mut Exchange) -> bool {
        let mut value = Scratch::take();
        self.append(exchange, &mut value);
        !value.is_empty() && value[..] != *b"0"
    }
}

/// The variable after a `$`, and what follows it.
fn variable<'t>(tail: &'t [u8], env: &Env) -> Result<(Part, &'t [u8]), ValueError> {
    if let Some(digit @ b'0'..=b'9') = tail.first() {
        return Ok((Part::Capture(usize::from(digit - b'0')), &tail[1..]));
    }
    let (name, after) = match tail.strip_prefix(b"{") {
        Some(inner) => {
            let name_bytes = name_length(inner);
            if inner.get(name_bytes) != Some(&b'}') {
                let name = String::from_utf8_lossy(&inner[..name_bytes]);
                return Err(ValueError(format!(
                    "the closing bracket in \"{name}\" variable is missing"
                )));
            }
            (&inner[..name_bytes], &inner[name_bytes + 1..])
        }
        None => tail.split_at(name_length(tail)),
    };
    if name.is_empty() {
        return Err(ValueError::new("invalid variable name"));
    }
    if let [digit @ b'0'..=b'9'] = name {
        return Ok((Part::Capture(usize::from(digit - b'0')), after));
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Ok((Part::Variable(env.variables.borrow_mut().resolve(&name)), after))
}

fn name_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
}
