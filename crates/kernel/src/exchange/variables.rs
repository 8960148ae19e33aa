//! Variables: names to values of an exchange.

use super::Exchange;
use crate::config::regex::Undecided;
use bytes::Bytes;

/// Computes a value; `false` if the variable has none now.
pub type Getter = fn(&Exchange, &mut Vec<u8>) -> bool;

/// A variable that a module has, by name.
pub type Row = (&'static str, Variable);

/// A reference to a variable, resolved when the configuration was read.
#[derive(Clone, Debug)]
pub enum Variable {
    /// One the server computes.
    Builtin(Getter),
    /// `$args`, which `set` may change.
    Args,
    /// `$limit_rate`, which `set` may change.
    LimitRate,
    /// Computed from texts that hold variables themselves.
    OfTexts(fn(&mut Exchange) -> Option<Bytes>),
    /// `$request_method`, which decides what a cache key keeps apart.
    RequestMethod,
    /// One the configuration defines.
    Slot(u16),
    /// `$http_name`
    RequestField(Box<[u8]>),
    /// `$sent_http_name`
    SentField(Box<[u8]>),
    /// `$sent_trailer_name`
    SentTrailer(Box<[u8]>),
    /// `$upstream_http_name`
    UpstreamField(Box<[u8]>),
    /// `$upstream_trailer_name`
    UpstreamTrailer(Box<[u8]>),
    /// `$upstream_cookie_name`
    UpstreamCookie(Box<[u8]>),
    /// `$cookie_name`
    Cookie(Box<[u8]>),
    /// `$arg_name`
    Argument(Box<[u8]>),
    /// `$proxy_protocol_tlv_name`
    ProxyField(Box<str>),
}

/// A variable that a block of the configuration computes: `map`, `geo`, `split_clients`.
pub trait Computed: std::fmt::Debug + Send + Sync {
    /// # Errors
    /// It cannot be told; the exchange is in doubt.
    fn value(&self, exchange: &mut Exchange) -> Result<Bytes, Undecided>;

    /// Whether it is computed again at each use.
    fn is_volatile(&self) -> bool {
        false
    }
}

impl Variable {
    /// Whether it is `$request_method`.
    pub fn is_request_method(&self) -> bool {
        matches!(self, Self::RequestMethod)
    }

    /// Whether it is the same one, of those that the client's own words or the configuration decide.
    pub fn is_it(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Slot(own), Self::Slot(other)) => own == other,
            (Self::RequestField(own), Self::RequestField(other))
            | (Self::Cookie(own), Self::Cookie(other))
            | (Self::Argument(own), Self::Argument(other)) => own == other,
            _ => false,
        }
    }
}

#[inline]
pub fn put(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

/// As [`put`], of what is never empty if it is there.
#[inline]
pub fn put_known(out: &mut Vec<u8>, value: &[u8]) -> bool {
    put(out, value) && !value.is_empty()
}

#[inline]
pub fn put_number(out: &mut Vec<u8>, value: u64) -> bool {
    put(out, decimal(value, &mut [0; 20]))
}

/// The decimal digits of a number.
pub fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    // By hand: `fmt` costs ten times as much, and a request to PHP has several numbers.
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            return &digits[at..];
        }
    }
}

/// The variable of a name that begins with a family's prefix (`http_`, `arg_` …).
pub fn prefixed(name: &str) -> Option<Variable> {
    let dashed = |rest: &str| -> Box<[u8]> { rest.replace('_', "-").into_bytes().into() };
    let plain = |rest: &str| -> Box<[u8]> { rest.as_bytes().into() };
    if let Some(rest) = name.strip_prefix("proxy_protocol_tlv_") {
        Some(Variable::ProxyField(rest.into()))
    } else if let Some(rest) = name.strip_prefix("upstream_http_") {
        Some(Variable::UpstreamField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("upstream_cookie_") {
        Some(Variable::UpstreamCookie(plain(rest)))
    } else if let Some(rest) = name.strip_prefix("upstream_trailer_") {
        Some(Variable::UpstreamTrailer(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("sent_trailer_") {
        Some(Variable::SentTrailer(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("sent_http_") {
        Some(Variable::SentField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("http_") {
        Some(Variable::RequestField(dashed(rest)))
    } else if let Some(rest) = name.strip_prefix("cookie_") {
        Some(Variable::Cookie(plain(rest)))
    } else {
        name.strip_prefix("arg_").map(|rest| Variable::Argument(plain(rest)))
    }
}
