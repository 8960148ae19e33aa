//! `split_clients`: a variable that is one of several values for fixed shares of the clients.

use bytes::Bytes;
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::define;
use yorozu_kernel::config::loader::{Loader, rows};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::Computed;

/// The module.
pub const MODULE: Module = Module::new("http_split_clients", || DIRECTIVES.to_vec());

/// A compiled `split_clients` block.
#[derive(Debug)]
struct Split {
    key: Template,
    /// The largest hash of each part, exclusive, and its value; the last one takes the rest.
    parts: Vec<(u32, Template)>,
    rest: Option<Template>,
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "split_clients",
    HTTP,
    Arity::TWO,
    Action::Open(open),
    "A variable that is one of several values for fixed shares of the clients.",
)];

impl Computed for Split {
    fn value(&self, exchange: &mut Exchange) -> Bytes {
        let hash = murmur2(&self.key.value(exchange));
        let part = self.parts.iter().find(|(end, _)| hash < *end).map(|(_, value)| value);
        part.or(self.rest.as_ref()).map(|value| value.value(exchange)).unwrap_or_default()
    }
}

/// MurmurHash2, of which shares are made: the same clients get the same values as with nginx.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

/// Hundredths of a percent.
fn share(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let part = format!("{part:0<2}");
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > 2 || !is_number(whole) || !is_number(&part) || whole.is_empty() {
        return None;
    }
    let share = whole.parse::<u32>().ok()?.checked_mul(100)? + part.parse::<u32>().ok()?;
    (share > 0).then_some(share)
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let key = Template::compile(&line.args[0], env).map_err(at)?;
    let slot = define(&line.args[1], env).map_err(at)?;
    let mut split = Split { key, parts: Vec::new(), rest: None };
    let mut sum = 0;
    for row in rows(line)? {
        let at = |error: ValueError| error.at(&row.at);
        let name = row.name_text();
        let [value] = &row.args[..] else {
            return Err(at(ValueError::new("invalid number of the split_clients parameters")));
        };
        let value = Template::compile(value, env).map_err(at)?;
        if name == "*" {
            split.rest = Some(value);
            continue;
        }
        let invalid = || ValueError(format!("invalid percent value \"{name}\""));
        sum += share(&name).ok_or_else(invalid).map_err(at)?;
        if sum > 10_000 {
            return Err(at(ValueError::new("percent total is greater than 100%")));
        }
        let end = u64::from(sum) * u64::from(u32::MAX) / 10_000;
        split.parts.push((u32::try_from(end).unwrap_or(u32::MAX), value));
    }
    env.definitions.borrow_mut().push(Definition { slot, source: Box::new(split) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_shares() {
        // Austin Appleby's MurmurHash2 with a seed of 0.
        assert_eq!(murmur2(b""), 0);
        assert_eq!(
            (share("0.5%"), share("50%"), share("33.33%")),
            (Some(50), Some(5000), Some(3333))
        );
        assert_eq!(
            (share("50"), share("0%"), share("1.234%"), share("x%")),
            (None, None, None, None)
        );
    }
}
