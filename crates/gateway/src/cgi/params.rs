//! The parameters of a request, each put as its protocol writes it.

use super::{FIELD_START, Param};
use crate::cache;
use crate::cache::settings::with_prefix;
use crate::pass;
use crate::protocol::SetTo;
use crate::protocol::family::Family;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::io::Write as _;
use std::iter::successors;
use yorozu_http::field;
use yorozu_kernel::base::scratch::Scratch;
use yorozu_kernel::exchange::Exchange;
use yorozu_kernel::exchange::conf::LocationConf;
use yorozu_kernel::exchange::content::Content;
use yorozu_kernel::exchange::request::{Request, append_joined};

/// Where parameters are put; `P`: how those of the configuration are kept ready.
pub trait Pairs<P: AsRef<Param>> {
    /// Puts one of the configuration, whose value `write` appends as in [`Pairs::put`].
    fn put_param(&mut self, param: &P, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        self.put(&param.as_ref().name, write);
    }

    /// Puts one whose value `write` appends itself, and says whether it is wanted.
    fn put(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool);

    /// Puts one with its value.
    fn put_value(&mut self, name: &[u8], value: &[u8]) {
        self.put(name, |out| {
            out.extend_from_slice(value);
            true
        });
    }
}

/// What a protocol has of its own in a location.
#[derive(Debug)]
pub struct Own<'a, P> {
    pub family: &'static Family,
    /// Its `*_param`.
    pub params: &'a [P],
}

/// Puts the parameters of a request with this content; whether it asks if the stored page is still good.
pub fn put<P: AsRef<Param>>(
    exchange: &mut Exchange,
    location: &LocationConf,
    own: &Own<'_, P>,
    content: &Content,
    pairs: &mut impl Pairs<P>,
) -> bool {
    // The lengths of the names that are a field's, as bits; the last is that of longer ones, too.
    let mut lengths = 0;
    for kept in own.params {
        let param = kept.as_ref();
        lengths |= if param.is_of_field { length_bit(&param.name) } else { 0 };
        if param.is_only_removal {
            continue;
        }
        pairs.put_param(kept, |out| {
            let start = out.len();
            param.value.append(exchange, out);
            if param.is_content_length && out.len() > start {
                announce(content, start, out);
            }
            !param.is_if_not_empty || out.len() > start
        });
    }
    if !pass::conf(location, own.family).pass_request_headers {
        return false;
    }
    fields(exchange, own, lengths, pairs);
    cache::is_cacheable(exchange) && own_conditions(exchange, location, own, pairs)
}

/// As [`Protocol::each_set`](crate::protocol::Protocol::each_set), where parameters are the client's fields.
pub fn each_set<P: AsRef<Param>>(
    own: &Own<'_, P>,
    location: &LocationConf,
    name: &[u8],
    each: &mut dyn FnMut(SetTo<'_>),
) -> bool {
    let mut is_set = !pass::conf(location, own.family).pass_request_headers;
    for param in own.params.iter().map(AsRef::as_ref).filter(|param| param.is_of_field) {
        if field::is_alike(&param.name[b"HTTP_".len()..], name) {
            is_set = true;
            match param.value.as_literal() {
                Some(text) => each(SetTo::Text(&text)),
                None => each(SetTo::Spelled(&param.value)),
            }
        }
    }
    is_set
}

/// Puts the length of what is sent in the place of the one that the configuration spelled from `start` on: what the
/// client announced need not be what this request has.
fn announce(content: &Content, start: usize, out: &mut Vec<u8>) {
    out.truncate(start);
    match (content, content.length()) {
        (_, Some(length)) => drop(write!(out, "{length}")),
        (Content::Live { .. }, None) => {}
        (_, None) => out.push(b'0'),
    }
}

/// Up to this many fields are compared with those of their length, which is cheaper than a table; chosen: browsers send fewer.
const FEW_FIELDS: usize = 32;

/// Bytes of a field's name as they are in that of a parameter.
const SPELLED: [u8; 256] = {
    let (mut spelled, mut byte) = ([0; 256], 0u8);
    loop {
        spelled[byte as usize] = if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() };
        if byte == u8::MAX {
            break spelled;
        }
        byte += 1;
    }
};

/// Whether two fields of a request may have the same name, which few requests have.
fn has_repeats(request: &Request) -> bool {
    if request.fields.len() > FEW_FIELDS {
        return true;
    }
    let mut lengths = 0;
    request.fields.iter().enumerate().any(|(at, field)| {
        let name = request.name(field);
        let is_new = lengths & length_bit(name) == 0;
        lengths |= length_bit(name);
        let is_same = |other| field::is_same(request.name(other), name);
        !is_new && request.fields[..at].iter().any(is_same)
    })
}

/// Which fields of a request have the same name: found in one pass, since a client may send a thousand fields.
struct Repeats {
    /// The next field of the same name.
    next: Vec<Option<usize>>,
    /// Whether it is the first of its name.
    is_first: Vec<bool>,
}

impl Repeats {
    fn of(request: &Request) -> Self {
        let count = request.fields.len();
        let mut found = Self { next: vec![None; count], is_first: vec![true; count] };
        let mut names = Vec::with_capacity(request.head.len());
        let ends: Vec<usize> = (request.fields.iter())
            .map(|field| {
                names.extend(request.name(field).iter().map(u8::to_ascii_lowercase));
                names.len()
            })
            .collect();
        let mut last: HashMap<&[u8], usize, RandomState> =
            HashMap::with_capacity_and_hasher(count, RandomState::default());
        let mut start = 0;
        for (at, end) in ends.into_iter().enumerate() {
            if let Some(before) = last.insert(&names[start..end], at) {
                found.next[before] = Some(at);
                found.is_first[at] = false;
            }
            start = end;
        }
        found
    }

    /// The field at a place and those of its name behind it.
    fn from(&self, first: usize) -> impl Iterator<Item = usize> {
        successors(Some(first), |at| self.next[*at])
    }
}

/// A bit for the length of a name.
fn length_bit(name: &[u8]) -> u64 {
    1 << name.len().min(63)
}

/// `HTTP_*` for every field that no `*_param` sets; theirs have these `lengths`.
fn fields<P: AsRef<Param>>(
    exchange: &Exchange,
    own: &Own<'_, P>,
    lengths: u64,
    pairs: &mut impl Pairs<P>,
) {
    let is_cached = cache::is_cacheable(exchange);
    let is_set = |name: &[u8]| {
        let mut params = own.params.iter().map(AsRef::as_ref);
        lengths & length_bit(name) != 0
            && params.any(|param| param.is_of_field && &param.name[..] == name)
    };
    let request = &exchange.request;
    let repeats = has_repeats(request).then(|| Repeats::of(request));
    let mut name = Scratch::take();
    for (at, field) in request.fields.iter().enumerate() {
        let field_name = request.name(field);
        let is_first = repeats.as_ref().is_none_or(|repeats| repeats.is_first[at]);
        // `Proxy` would become HTTP_PROXY, which HTTP clients inside the application obey
        // (CVE-2016-5387); no such field exists.
        if !is_first || field::is_same(b"proxy", field_name) {
            continue;
        }
        name.clear();
        name.extend_from_slice(FIELD_START);
        name.extend_from_slice(field_name);
        let spelled = &mut name[FIELD_START.len()..];
        spelled.iter_mut().for_each(|byte| *byte = SPELLED[usize::from(*byte)]);
        let is_conditional = is_cached && cache::is_for_stored_page(field_name);
        if is_conditional || is_set(&name) {
            continue;
        }
        if &name[..] == b"HTTP_HOST" {
            // The authority that chose the server and the cache key, not another one.
            pairs.put(&name, |out| {
                out.extend_from_slice(&request.host);
                if !request.port.is_empty() {
                    out.push(b':');
                    out.extend_from_slice(&request.port);
                }
                true
            });
            continue;
        }
        let Some(repeats) = &repeats else {
            pairs.put_value(&name, request.value(field));
            continue;
        };
        let separator: &[u8] = if field::is_same(b"cookie", field_name) { b"; " } else { b", " };
        pairs.put(&name, |out| {
            let values = repeats.from(at).map(|at| request.value(&request.fields[at]));
            append_joined(values, separator, out)
        });
    }
}

/// Asks for what is missing of a stored page, and whether what is stored is still good; `true` if that is the only
/// condition.
fn own_conditions<P: AsRef<Param>>(
    exchange: &Exchange,
    location: &LocationConf,
    own: &Own<'_, P>,
    pairs: &mut impl Pairs<P>,
) -> bool {
    if let Some(range) = cache::parts::missing_range(exchange) {
        pairs.put_value(b"HTTP_RANGE", range.as_bytes());
    }
    let is_condition = |param: &P| param.as_ref().name.starts_with(b"HTTP_IF_");
    if own.params.iter().any(is_condition) {
        // The configuration sets its own conditions.
        return false;
    }
    let (modified, etag) = cache::validators(exchange, with_prefix(location, own.family));
    if let Some(modified) = &modified {
        pairs.put_value(b"HTTP_IF_MODIFIED_SINCE", modified.as_bytes());
    }
    if !etag.is_empty() {
        pairs.put_value(b"HTTP_IF_NONE_MATCH", &etag);
    }
    modified.is_some() || !etag.is_empty()
}
