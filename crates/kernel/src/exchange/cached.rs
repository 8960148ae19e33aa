//! What the cache did for a request and why: `$upstream_cache_status`, and `Cache-Status` of RFC 9211.

use crate::base::tally::Tally;
use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Arc;
use yorozu_cache::{Entry, EntryHead, Flow};
use yorozu_http::date;
use yorozu_http::field::is_of_variable;

/// Why an answer is not stored; words of `$cache_detail`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotStored {
    SetCookie,
    Vary,
    /// `X-Accel-Expires: 0`
    AccelExpires,
    NoStore,
    NoCache,
    Private,
    /// Nothing says how long it is fresh, or it is not at all.
    NoLifetime,
    /// Its `Age` or `Expires` says that it is stale already.
    Expired,
    /// Asked for with `Authorization`, and not said to be for all.
    Authorization,
    /// `*_no_cache`
    Forbidden,
    /// A part of a page that was not asked for, or a page being validated.
    Partial,
    /// `*_cache_min_uses`
    MinUses,
    /// Waited for another maker in vain (`*_cache_lock_timeout`).
    LockTimeout,
    /// The answer to a HEAD, under a key that a GET has too.
    Head,
    /// A range far behind the start (`*_cache_max_range_offset`).
    RangeOffset,
    /// A GET with content.
    Body,
    /// Headers that the upstream sees, and of which it is not known what it makes.
    UnknownHeader,
    /// The request chose an address for it beside the key's, for the first time or too many.
    Split,
    /// A redirect to the request's own URL.
    Loop,
    /// More tags than can be kept: it could not be purged.
    Tags,
    /// Another answer of this zone and key, or the refusal of its page, led to it (`X-Accel-Redirect`, `error_page`): a hit would
    /// skip that.
    Redirected,
    /// It depends on what was said of the client when it was let in (`auth_request_set`), and the key does not.
    Permission,
    /// The request has a cookie by which the application tells its visitors apart (`X-Accel-Cookies`).
    Cookie,
    /// Something that decides the answer could not be found out.
    Undecided,
    /// It would have been a hit (`*_cache_dry_run`).
    DryRun,
}

impl NotStored {
    /// Whether the response itself says so, as the next one is likely to, whoever asks.
    pub fn is_by_response(self) -> bool {
        matches!(
            self,
            Self::SetCookie
                | Self::Vary
                | Self::AccelExpires
                | Self::NoStore
                | Self::NoCache
                | Self::Private
                | Self::NoLifetime
                | Self::Expired
                | Self::Loop
                | Self::Tags
        )
    }

    /// In their order.
    pub const ALL: [Self; 25] = [
        Self::SetCookie,
        Self::Vary,
        Self::AccelExpires,
        Self::NoStore,
        Self::NoCache,
        Self::Private,
        Self::NoLifetime,
        Self::Expired,
        Self::Authorization,
        Self::Forbidden,
        Self::Partial,
        Self::MinUses,
        Self::LockTimeout,
        Self::Head,
        Self::RangeOffset,
        Self::Body,
        Self::UnknownHeader,
        Self::Split,
        Self::Loop,
        Self::Tags,
        Self::Redirected,
        Self::Permission,
        Self::Cookie,
        Self::Undecided,
        Self::DryRun,
    ];

    /// Whether such a request is not answered from the cache either, so that this is why it was passed by.
    pub fn bypasses(self) -> bool {
        matches!(self, Self::Redirected | Self::Permission | Self::Cookie | Self::DryRun)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::SetCookie => "set-cookie",
            Self::Vary => "vary",
            Self::AccelExpires => "x-accel-expires",
            Self::NoStore => "no-store",
            Self::NoCache => "no-cache",
            Self::Private => "private",
            Self::NoLifetime => "no-lifetime",
            Self::Expired => "expired",
            Self::Authorization => "authorization",
            Self::Forbidden => "forbidden",
            Self::Partial => "partial",
            Self::MinUses => "min-uses",
            Self::LockTimeout => "lock-timeout",
            Self::Head => "head",
            Self::RangeOffset => "range-offset",
            Self::Body => "body",
            Self::UnknownHeader => "unknown-header",
            Self::Split => "split",
            Self::Loop => "loop",
            Self::Tags => "tags",
            Self::Redirected => "redirected",
            Self::Permission => "permission",
            Self::Cookie => "cookie",
            Self::Undecided => "undecided",
            Self::DryRun => "dry-run",
        }
    }
}

/// Between a stored type and the charset that its text is to be in; no type holds it.
pub const CHARSET_MARK: u8 = 0;

/// A stored response that a client gets.
#[derive(Clone, Debug)]
pub enum Stored {
    Entry(Arc<Entry>),
    /// One that is still being stored.
    Flow(Arc<Flow>),
}

impl Stored {
    fn head(&self) -> &EntryHead {
        match self {
            Self::Entry(entry) => &entry.head,
            Self::Flow(flow) => &flow.head,
        }
    }

    /// The values of the fields of the upstream's that a variable's name stands for, of those that are stored.
    pub fn values(&self, name: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let head = self.head();
        let own = match name {
            b"content-type" => head.content_type.split(|byte| *byte == CHARSET_MARK).next(),
            b"etag" => Some(&head.etag[..]),
            _ => None,
        };
        let time = head.last_modified.filter(|_| name == b"last-modified");
        let fields = head.fields.iter().filter(move |(found, _)| is_of_variable(found, name));
        let own = own.filter(|value| !value.is_empty()).map(Cow::Borrowed);
        own.into_iter()
            .chain(time.map(|time| Cow::Owned(date::format(time).into_bytes())))
            .chain(fields.map(|(_, value)| Cow::Borrowed(&value[..])))
    }
}

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
    /// In their order.
    pub const ALL: [Self; 7] = [
        Self::Bypass,
        Self::Expired,
        Self::Hit,
        Self::Miss,
        Self::Revalidated,
        Self::Stale,
        Self::Updating,
    ];

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
    /// In their order.
    pub const ALL: [Self; 6] =
        [Self::Bypass, Self::Method, Self::UriMiss, Self::VaryMiss, Self::Stale, Self::Partial];

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
    /// Whether the upstream's answer was stored.
    pub is_stored: bool,
    /// Why it was not.
    pub not_stored: Option<NotStored>,
    /// The header that did it, or that gave the page another address; the cookie.
    pub header: Option<&'static str>,
    /// Milliseconds for which the answer is still fresh; below 0 for a stale one.
    pub ttl: Option<i64>,
    /// Whether it waited for, or shared, another request's answer.
    pub is_collapsed: bool,
    pub is_hit: bool,
    /// Milliseconds that it took to make what is answered, where that is stored.
    pub saved: u32,
    /// Where this is counted, if it is.
    pub tally: Option<&'static Tally>,
}

impl Report {
    /// Whether a cache has been asked.
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
        if let Some(header) = self.header {
            let _ = write!(out, "; header=\"{header}\"");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_whole_and_in_order() {
        assert!((0..).zip(NotStored::ALL).all(|(at, why)| why as usize == at));
        assert!((0..).zip(CacheStatus::ALL).all(|(at, status)| status as usize == at));
        assert!((0..).zip(Forward::ALL).all(|(at, why)| why as usize == at));
        let last = (NotStored::Tags, CacheStatus::Updating, Forward::Partial);
        assert_eq!((last.0 as usize, last.1 as usize, last.2 as usize), (19, 6, 5));
    }

    #[test]
    fn members_are_as_rfc_9211_writes_them() {
        let text = |report: &Report| {
            let mut out = Vec::new();
            report.append(b"a", &mut out);
            String::from_utf8(out).unwrap()
        };
        let by_header = Report {
            forward: Some(Forward::UriMiss),
            not_stored: Some(NotStored::Split),
            header: Some("origin"),
            ..Report::default()
        };
        assert_eq!(text(&by_header), "a; fwd=uri-miss; detail=split; header=\"origin\"");
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
