//! Why an upstream failed, and the words for it in `*_next_upstream` and `*_cache_use_stale`.

use super::codec::CodecError;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::types::word_bits;

/// Why an upstream failed a request; decides about the next peer, stale entries and the status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It could not be reached, or closed the connection.
    Error,
    /// It did not answer in time.
    Timeout,
    /// Its answer broke the protocol.
    InvalidHead,
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
            Self::Error | Self::InvalidHead | Self::NoPeer => 502,
        }
    }

    /// The bit that `*_next_upstream` and `*_cache_use_stale` look at.
    pub fn failure(&self) -> u32 {
        match self {
            Self::Error | Self::NoPeer => Failures::ERROR,
            Self::Timeout => Failures::TIMEOUT,
            Self::InvalidHead => Failures::INVALID_HEADER,
            Self::Status(status) => Failures::of_status(*status),
        }
    }
}

impl From<CodecError> for Fault {
    fn from(_: CodecError) -> Self {
        Self::InvalidHead
    }
}

/// Failures that let the next peer try, or a stale entry answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Failures(pub u32);

impl Failures {
    pub const ERROR: u32 = 1;
    pub const TIMEOUT: u32 = 1 << 1;
    pub const INVALID_HEADER: u32 = 1 << 2;
    pub const HTTP_500: u32 = 1 << 3;
    pub const HTTP_502: u32 = 1 << 4;
    pub const HTTP_503: u32 = 1 << 5;
    pub const HTTP_504: u32 = 1 << 6;
    pub const HTTP_403: u32 = 1 << 7;
    pub const HTTP_404: u32 = 1 << 8;
    pub const HTTP_429: u32 = 1 << 9;
    pub const UPDATING: u32 = 1 << 10;
    pub const NON_IDEMPOTENT: u32 = 1 << 11;
    pub const DENIED: u32 = 1 << 12;
    pub const OFF: u32 = 1 << 13;

    pub fn has(self, bit: u32) -> bool {
        self.0 & Self::OFF == 0 && self.0 & bit != 0
    }

    /// The bit of a status; 0 for one that is never a failure.
    pub fn of_status(status: u16) -> u32 {
        match status {
            500 => Self::HTTP_500,
            502 => Self::HTTP_502,
            503 => Self::HTTP_503,
            504 => Self::HTTP_504,
            403 => Self::HTTP_403,
            404 => Self::HTTP_404,
            429 => Self::HTTP_429,
            _ => 0,
        }
    }
}

impl Setting for Failures {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
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
            ("off", Self::OFF),
        ];
        if args.name.ends_with("use_stale") {
            known.push(("updating", Self::UPDATING));
        } else {
            known.extend([("non_idempotent", Self::NON_IDEMPOTENT), ("denied", Self::DENIED)]);
        }
        word_bits(args, &known).map(Self)
    }

    fn again(&mut self, args: &Args<'_>) -> Result<(), ValueError> {
        self.0 |= Self::from_args(args)?.0;
        Ok(())
    }
}
