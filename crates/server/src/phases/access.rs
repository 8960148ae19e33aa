//! `allow` and `deny`: who may ask, by address.

use crate::config::directive::*;
use crate::config::network::Network;
use crate::exchange::Exchange;

/// One `allow` or `deny`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    network: Network,
    is_allow: bool,
}

impl Setting for Rule {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let text = args.text(0);
        let network = Network::parse(&text)
            .ok_or_else(|| ValueError(format!("invalid parameter \"{text}\"")))?;
        Ok(Self { network, is_allow: args.name == "allow" })
    }
}

/// What one block says; `allow` and `deny` share one list, in the order written.
#[derive(Clone, Default)]
pub struct Draft {
    pub rules: Inherit<Vec<Rule>>,
}

impl Draft {
    pub fn inherit(&mut self, outer: &Self) {
        self.rules.inherit(&outer.rules);
    }
}

/// The rules of one location.
#[derive(Clone, Debug)]
pub struct Conf {
    rules: Vec<Rule>,
}

impl Conf {
    pub fn compile(draft: &Draft, _: &crate::config::env::Env) -> Result<Self, ValueError> {
        Ok(Self { rules: draft.rules.or_default() })
    }
}

const CONTEXTS: Contexts = HTTP_SERVER_LOCATION | LIMIT_EXCEPT;

pub const DIRECTIVES: &[Directive] = &[
    Directive::row(
        "allow",
        CONTEXTS,
        Arity::ONE,
        Action::Set(|block, args| block.access.rules.set(args)),
        "Admits an address or network.",
    ),
    Directive::row(
        "deny",
        CONTEXTS,
        Arity::ONE,
        Action::Set(|block, args| block.access.rules.set(args)),
        "Refuses an address or network.",
    ),
];

impl Conf {
    /// Does it say anything?
    pub fn is_set(&self) -> bool {
        !self.rules.is_empty()
    }
}

/// Does the first rule that matches the client admit it? `None`: none matches.
pub fn judge(exchange: &Exchange, conf: &Conf) -> Option<bool> {
    let peer = exchange.remote.ip();
    conf.rules.iter().find(|rule| rule.network.matches(peer)).map(|rule| rule.is_allow)
}

/// The user name of a `Basic` authorization.
pub fn basic_user(value: &[u8]) -> Option<Vec<u8>> {
    basic_credentials(value).map(|(user, _)| user)
}

/// Name and password of a `Basic` authorization (RFC 7617).
pub fn basic_credentials(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, token) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = decode_base64(token.trim_ascii())?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    (colon > 0).then(|| (decoded[..colon].to_vec(), decoded[colon + 1..].to_vec()))
}

/// What base64, of either alphabet, spells; `None` for other letters.
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        Some(u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        }))
    };
    let digits: Vec<u8> = text.iter().copied().take_while(|byte| *byte != b'=').collect();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let value = group.iter().try_fold(0u32, |value, byte| Some(value << 6 | digit(*byte)?))?;
        let value = value << (6 * (4 - group.len()));
        out.extend_from_slice(&value.to_be_bytes()[1..group.len()]);
    }
    Some(out)
}

/// Base64 of `bytes`, without padding.
pub fn encode_base64(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(bytes.len() * 4 / 3 + 2);
    for group in bytes.chunks(3) {
        let value = group.iter().fold(0usize, |value, byte| value << 8 | usize::from(*byte));
        let value = value << (8 * (3 - group.len()));
        out.extend((0..=group.len()).map(|place| LETTERS[value >> (18 - 6 * place) & 63]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_basic_credentials() {
        assert_eq!(basic_user(b"Basic YWxpY2U6cHc=").as_deref(), Some(&b"alice"[..]));
        assert_eq!(basic_user(b"Bearer x"), None);
        assert_eq!(basic_user(b"Basic !"), None);
    }
}
