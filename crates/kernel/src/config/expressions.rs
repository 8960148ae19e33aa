//! Texts with variables and regular expressions, as directives spell them.

use super::env::{Env, not_reserved};
use super::regex::Regex;
use super::template::{Part, Template};
use super::value_error::ValueError;
use bytes::Bytes;

impl Regex {
    /// Compiles `source`; named groups become variables. What stands in several places is one expression.
    ///
    /// # Errors
    /// As [`Regex::naming`].
    pub fn compile(source: &[u8], caseless: bool, env: &Env) -> Result<Self, ValueError> {
        let key = (Bytes::copy_from_slice(source), caseless);
        let known = env.regexes.borrow().get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let define = |name: &str| env.variables.borrow_mut().define(name);
        let regex = Self::naming(source, caseless, define)?;
        for (_, name) in regex.names() {
            not_reserved(&name.to_ascii_lowercase(), env)?;
        }
        env.regexes.borrow_mut().insert(key, regex.clone());
        Ok(regex)
    }
}

impl Template {
    /// Finds the variables in `text`.
    ///
    /// # Errors
    /// `$` without a name, or an unclosed brace.
    pub fn compile(text: &[u8], env: &Env) -> Result<Self, ValueError> {
        Self::compile_by(&[text], |tail| variable(tail, env))
    }

    /// The same of several texts, one behind the other: no name goes on in the next one. There are no captures, a digit
    /// begins a name.
    ///
    /// # Errors
    /// As [`Template::compile`].
    pub fn compile_all(texts: &[Bytes], env: &Env) -> Result<Self, ValueError> {
        let invalid = |tail: &[u8]| {
            ValueError(format!("invalid parameter \"${}\"", String::from_utf8_lossy(tail)))
        };
        Self::compile_by(texts, |tail| name(tail, env)?.ok_or_else(|| invalid(tail)))
    }

    fn compile_by<'t, T: AsRef<[u8]>>(
        texts: &'t [T],
        part: impl Fn(&'t [u8]) -> Result<(Part, &'t [u8]), ValueError>,
    ) -> Result<Self, ValueError> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        for text in texts {
            let mut rest = text.as_ref();
            while let Some((&byte, tail)) = rest.split_first() {
                if byte != b'$' {
                    plain.push(byte);
                    rest = tail;
                    continue;
                }
                let (part, after) = part(tail)?;
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain).into()));
                }
                parts.push(part);
                rest = after;
            }
        }
        if parts.is_empty() {
            return Ok(Self::literal(plain));
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain.into()));
        }
        Ok(Self { parts: parts.into() })
    }
}

/// The variable after a `$`, and what follows it.
fn variable<'t>(tail: &'t [u8], env: &Env) -> Result<(Part, &'t [u8]), ValueError> {
    if let Some(digit @ b'1'..=b'9') = tail.first() {
        return Ok((Part::Capture(usize::from(digit - b'0')), &tail[1..]));
    }
    name(tail, env)?.ok_or_else(|| ValueError::new("invalid variable name"))
}

/// The variable whose name stands after a `$`, and what follows it; `None` if there is no name.
fn name<'t>(tail: &'t [u8], env: &Env) -> Result<Option<(Part, &'t [u8])>, ValueError> {
    let (name, after) = match tail.strip_prefix(b"{") {
        // As nginx: what ends here is no name that lacks its bracket.
        Some(b"") => return Ok(None),
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
        return Ok(None);
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Ok(Some((Part::Variable(env.variables.borrow_mut().resolve(&name)), after)))
}

fn name_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
}
