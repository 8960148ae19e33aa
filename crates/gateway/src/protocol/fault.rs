//! Why an upstream failed, and the words for it in `*_next_upstream` and `*_cache_use_stale`.

use super::codec::CodecError;
use bitflags::bitflags;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::types::add_word_flags;

/// Why an upstream failed a request; decides about the next peer, stale entries and the status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It could not be reached, or closed the connection.
    Error,
    /// It did not answer in time.
    Timeout,
    /// Its answer broke the protocol.
    InvalidHead,
    /// It said that it did nothing for the request; as nginx, an answer that is none.
    Refused,
    /// It answered with this status, which counts as a failure here.
    Status(u16),
    /// All peers are taken out or tried.
    NoPeer,
}

impl Fault {
    /// The status the client gets.
    pub fn status(&self) -> u16 {
        match self {
            Self::Timeout => 504,
            Self::Status(status) => *status,
            Self::Error | Self::InvalidHead | Self::Refused | Self::NoPeer => 502,
        }
    }

    /// What `*_next_upstream` and `*_cache_use_stale` call it.
    pub fn condition(&self) -> Conditions {
        match self {
            Self::Error | Self::NoPeer => Conditions::ERROR,
            Self::Timeout => Conditions::TIMEOUT,
            Self::InvalidHead | Self::Refused => Conditions::INVALID_HEADER,
            Self::Status(status) => Conditions::of_status(*status),
        }
    }
}

impl From<CodecError> for Fault {
    fn from(problem: CodecError) -> Self {
        match problem {
            CodecError::Refused(_) => Self::Refused,
            _ => Self::InvalidHead,
        }
    }
}

bitflags! {
    /// Conditions under which the next peer tries, or a stale entry answers.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct Conditions: u16 {
        const ERROR = 1;
        const TIMEOUT = 1 << 1;
        const INVALID_HEADER = 1 << 2;
        const HTTP_500 = 1 << 3;
        const HTTP_502 = 1 << 4;
        const HTTP_503 = 1 << 5;
        const HTTP_504 = 1 << 6;
        const HTTP_403 = 1 << 7;
        const HTTP_404 = 1 << 8;
        const HTTP_429 = 1 << 9;
        const UPDATING = 1 << 10;
        const NON_IDEMPOTENT = 1 << 11;
        const DENIED = 1 << 12;
        const OFF = 1 << 13;
    }
}

impl Conditions {
    /// Whether one of these conditions is among those written.
    pub fn has(self, any: Self) -> bool {
        !self.contains(Self::OFF) && self.intersects(any)
    }

    /// The condition of a status; none for one that is never a failure.
    pub fn of_status(status: u16) -> Self {
        match status {
            500 => Self::HTTP_500,
            502 => Self::HTTP_502,
            503 => Self::HTTP_503,
            504 => Self::HTTP_504,
            403 => Self::HTTP_403,
            404 => Self::HTTP_404,
            429 => Self::HTTP_429,
            _ => Self::empty(),
        }
    }
}

impl Conditions {
    /// The words of a directive; as in nginx, also those that are of use to another one.
    fn words(directive: &str) -> Vec<(&'static str, Self)> {
        let mut known = vec![
            ("error", Self::ERROR),
            ("timeout", Self::TIMEOUT),
            ("invalid_header", Self::INVALID_HEADER),
            ("http_500", Self::HTTP_500),
            ("http_502", Self::HTTP_502),
            ("http_504", Self::HTTP_504),
            ("http_503", Self::HTTP_503),
            ("http_403", Self::HTTP_403),
            ("http_404", Self::HTTP_404),
            ("http_429", Self::HTTP_429),
            ("non_idempotent", Self::NON_IDEMPOTENT),
            ("off", Self::OFF),
        ];
        if !directive.starts_with("grpc_") {
            known.push(("updating", Self::UPDATING));
        }
        if !directive.ends_with("use_stale") {
            known.push(("denied", Self::DENIED));
        }
        known
    }
}

impl Adds for Conditions {
    fn add(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        add_word_flags(self, args, &Self::words(args.name))
    }
}
