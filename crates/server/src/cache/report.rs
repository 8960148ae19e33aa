//! What the cache did for a request and why: `$upstream_cache_status`, and `Cache-Status` of RFC 9211.

use super::freshness::NotStored;
use crate::config::directive::*;
use crate::exchange::Exchange;
use bytes::Bytes;
use std::io::Write as _;

/// What the cache did for a request; `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CacheStatus {
    Bypass,
    Expired,
    Hit,
    Miss,
    Revalidated,
    Stale,
    Updating,
}

impl CacheStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypass => "BYPASS",
            Self::Expired => "EXPIRED",
            Self::Hit => "HIT",
            Self::Miss => "MISS",
            Self::Revalidated => "REVALIDATED",
            Self::Stale => "STALE",
            Self::Updating => "UPDATING",
        }
    }
}

/// Why a request went to the upstream; the words of `fwd` (RFC 9211, section 2.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forward {
    /// `*_cache_bypass`
    Bypass,
    /// Not one of `*_cache_methods`.
    Method,
    /// Nothing is stored under the key.
    UriMiss,
    /// Nothing is stored for the fields that `Vary` names.
    VaryMiss,
    /// What is stored is not fresh.
    Stale,
    /// What is stored does not hold the range.
    Partial,
}

impl Forward {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// What is said about a request in `Cache-Status`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// `None`: answered from the cache, or no cache was asked.
    pub forward: Option<Forward>,
    /// The upstream's status, once it answered.
    pub forward_status: Option<u16>,
    /// Was the upstream's answer stored?
    pub is_stored: bool,
    /// Why it was not.
    pub not_stored: Option<NotStored>,
    /// Milliseconds for which the answer is still fresh; below 0 for a stale one.
    pub ttl: Option<i64>,
    /// Did it wait for, or share, another request's answer?
    pub is_collapsed: bool,
    pub is_hit: bool,
}

impl Report {
    /// Has a cache been asked?
    pub fn is_made(&self) -> bool {
        self.is_hit || self.forward.is_some()
    }

    /// One member of the field: `yorozu; hit; ttl=30`.
    ///
    /// # Source
    /// RFC 9211, section 2.
    pub fn append(&self, name: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(name);
        if self.is_hit {
            out.extend_from_slice(b"; hit");
        } else if let Some(forward) = self.forward {
            let _ = write!(out, "; fwd={}", forward.name());
            if let Some(status) = self.forward_status {
                let _ = write!(out, "; fwd-status={status}");
            }
            if self.is_stored {
                out.extend_from_slice(b"; stored");
            }
        }
        if self.is_collapsed {
            out.extend_from_slice(b"; collapsed");
        }
        if let Some(ttl) = self.ttl {
            let _ = write!(out, "; ttl={}", ttl.div_euclid(1000));
        }
        if let Some(why) = self.not_stored {
            let _ = write!(out, "; detail={}", why.name());
        }
    }
}

/// `*_cache_status off | on | name`: the name of this cache in the field.
#[derive(Clone, Debug, Default)]
pub struct StatusName(pub Option<Bytes>);

/// The cache's name where `on` gives it none.
pub const NAME: &[u8] = b"yorozu";

impl Setting for StatusName {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match args.word(0) {
            b"off" => Ok(Self(None)),
            b"on" => Ok(Self(Some(Bytes::from_static(NAME)))),
            name => {
                // A token (RFC 8941, section 3.3.4).
                let is_token = name[0].is_ascii_alphabetic()
                    && name
                        .iter()
                        .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(b));
                let name = Bytes::copy_from_slice(name);
                is_token.then_some(Self(Some(name))).ok_or_else(|| {
                    ValueError(format!("invalid name \"{}\", it must be a token", args.text(0)))
                })
            }
        }
    }
}

/// `$cache_status`: the member that `*_cache_status` sends, under the default name.
pub fn append_status(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let report = &exchange.cache_report;
    if report.is_made() {
        report.append(NAME, out);
    }
    report.is_made()
}

/// `$cache_detail`: why the upstream's answer was not stored.
pub fn append_detail(exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let detail = exchange.cache_report.not_stored;
    detail.is_some_and(|why| {
        out.extend_from_slice(why.name().as_bytes());
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_as_rfc_9211_writes_them() {
        let text = |report: &Report| {
            let mut out = Vec::new();
            report.append(b"a", &mut out);
            String::from_utf8(out).unwrap()
        };
        let hit = Report { is_hit: true, ttl: Some(30_999), ..Report::default() };
        assert_eq!(text(&hit), "a; hit; ttl=30");
        assert_eq!(text(&Report { ttl: Some(-1), ..hit }), "a; hit; ttl=-1");
        let miss = Report {
            forward: Some(Forward::UriMiss),
            forward_status: Some(200),
            not_stored: Some(NotStored::SetCookie),
            ..Report::default()
        };
        assert_eq!(text(&miss), "a; fwd=uri-miss; fwd-status=200; detail=set-cookie");
        let stored = Report { is_stored: true, not_stored: None, is_collapsed: true, ..miss };
        assert_eq!(text(&stored), "a; fwd=uri-miss; fwd-status=200; stored; collapsed");
    }
}
