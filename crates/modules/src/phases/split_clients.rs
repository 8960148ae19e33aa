//! `split_clients`: a variable that is one of several values for fixed shares of the clients.

use bytes::Bytes;
use yorozu_conf::{ConfError, Directive as Line};
use yorozu_kernel::config::block::Block;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::env::define;
use yorozu_kernel::config::loader::{Loader, rows};
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::names::Definition;
use yorozu_kernel::config::regex::Undecided;
use yorozu_kernel::config::template::Template;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::variables::Computed;

/// The module.
pub const MODULE: Module = Module::new("http_split_clients", || DIRECTIVES.to_vec());

/// A compiled `split_clients` block.
#[derive(Debug)]
struct Split {
    key: Template,
    /// The largest hash of each part, and its value. As nginx, a value is no template.
    parts: Vec<(u32, Bytes)>,
}

pub const DIRECTIVES: &[Directive] = &[Directive::row(
    "split_clients",
    HTTP,
    Arity::TWO,
    Action::Open(open),
    "A variable that has one of several values, for fixed shares of the clients.",
)];

impl Computed for Split {
    fn value(&self, exchange: &mut Exchange) -> Result<Bytes, Undecided> {
        let hash = murmur2(&self.key.value(exchange));
        let part = self.parts.iter().find(|(end, _)| hash <= *end);
        Ok(part.map(|(_, value)| value.clone()).unwrap_or_default())
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

/// Hundredths of a percent; a number too large for them is more than all.
fn share(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.is_empty())?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > 2 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let share = format!("{whole}{part:0<2}").parse().unwrap_or(u32::MAX);
    (share > 0).then_some(share)
}

fn open(loader: &mut Loader<'_>, _: &mut Block, line: &Line) -> Result<(), ConfError> {
    let env = loader.env;
    let at = |error: ValueError| error.at(&line.at);
    let key = Template::compile(&line.args[0], env).map_err(at)?;
    let slot = define(&line.args[1], env).map_err(at)?;
    let (mut shares, mut values) = (Vec::new(), Vec::new());
    for row in rows(line)? {
        let at = |error: ValueError| error.at(&row.at);
        let name = row.name_text();
        let invalid = || ValueError(format!("invalid percent value \"{name}\""));
        let share = match &name[..] {
            "*" => None,
            name => Some(share(name).ok_or_else(invalid).map_err(at)?),
        };
        let none = || ValueError::new("invalid number of the split_clients parameters");
        shares.push(share);
        values.push(row.args.first().cloned().ok_or_else(none).map_err(at)?);
    }
    let parts = ends(&shares).map_err(at)?.into_iter().zip(values).collect();
    let split = Split { key, parts };
    env.definitions.borrow_mut().push(Definition { slot, source: Box::new(split) });
    Ok(())
}

/// Shares in hundredths of a percent, `None` for all that is left, as the largest hashes of parts, inclusive. As nginx, what comes
/// behind the whole is too much, and each share is rounded by itself.
fn ends(shares: &[Option<u32>]) -> Result<Vec<u32>, ValueError> {
    const WHOLE: u32 = 10_000;
    let (mut sum, mut end) = (0_u32, 0_u32);
    let one = |share: &Option<u32>| {
        sum = share.map_or(WHOLE, |share| sum.saturating_add(share));
        if sum > WHOLE {
            return Err(ValueError::new("percent total is greater than 100%"));
        }
        let width = u64::from(share.unwrap_or_default()) * u64::from(u32::MAX) / u64::from(WHOLE);
        end += u32::try_from(width).unwrap_or_default();
        Ok(if sum == WHOLE { u32::MAX } else { end - 1 })
    };
    shares.iter().map(one).collect()
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
        assert_eq!((share(".5%"), share("50.%")), (Some(50), Some(5000)));
        for wrong in ["50", "0%", "1.234%", "x%", "%", ".%", "1.2.3%", ""] {
            assert_eq!(share(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_comes_behind_the_whole_is_too_much() {
        let all = |shares: &[Option<u32>]| ends(shares).ok();
        assert_eq!(all(&[Some(5000), None]), Some(vec![0x7fff_fffe, u32::MAX]));
        assert_eq!(all(&[Some(10_000), None]), Some(vec![u32::MAX, u32::MAX]));
        assert_eq!(all(&[None, None]), Some(vec![u32::MAX, u32::MAX]));
        for wrong in [&[None, Some(1)][..], &[Some(10_000), Some(1)], &[share("99999999999%")]] {
            assert_eq!(all(wrong), None);
        }
    }
}
