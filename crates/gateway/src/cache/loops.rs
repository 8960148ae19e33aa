//! Redirects that lead to the page that they are: stored, they would be a loop for all clients.

use super::cleaned;
use crate::protocol;
use crate::protocol::codec::Head;
use yorozu_http::field;
use yorozu_http::uri::split_authority;
use yorozu_kernel::exchange::Exchange;

/// Whether the answer redirects to the page that its key stands for: stored, it would be a loop for all clients. Hosts
/// are compared without port, without the scheme if the key does not hold it, and arguments as far as it does.
pub(super) fn leads_to_itself(exchange: &Exchange, head: &Head) -> bool {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
        return false;
    }
    let Some(location) = head.field(b"location") else { return false };
    let request = &exchange.request;
    let own = [&b"/"[..], request.target().strip_prefix(b"/").unwrap_or_default()].concat();
    let location = as_browsers_read(location);
    let scheme = scheme(&location).filter(|name| is_of_web(name));
    let rest = &location[scheme.map_or(0, |name| name.len() + 1)..];
    let is_own_scheme = scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(exchange.scheme()));
    let has_authority = rest.starts_with(b"//") || !is_own_scheme;
    let path = if has_authority {
        let rest = &rest[rest.iter().take_while(|byte| **byte == b'/').count()..];
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#'));
        let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
        let host = authority.rsplit(|byte| *byte == b'@').next().unwrap_or_default();
        if split_authority(host).is_none_or(|(host, _)| *host != request.host[..]) {
            return false;
        }
        path
    } else {
        rest
    };
    let path = path.split(|byte| *byte == b'#').next().unwrap_or_default();
    // Nothing at all is a reference to what it was found at (RFC 3986, section 4.4).
    let is_same_path = (path.is_empty() && !has_authority)
        || same_target(&own, path, |args| keyed_args(exchange, args));
    is_same_path && (is_own_scheme || !holds_scheme(exchange))
}

/// A reference as browsers read it (URL Standard, section 4.4): tabs and line ends count for nothing, and of `\` and `/`
/// one is as good as the other.
fn as_browsers_read(reference: &[u8]) -> Vec<u8> {
    let query = reference.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let path_bytes = query.unwrap_or(reference.len());
    let read =
        |(at, byte): (usize, &u8)| if *byte == b'\\' && at < path_bytes { b'/' } else { *byte };
    let kept = |(_, byte): &(usize, &u8)| !matches!(byte, b'\t' | b'\r' | b'\n');
    reference.iter().enumerate().filter(kept).map(read).collect()
}

/// The scheme of a reference, if it has one.
fn scheme(reference: &[u8]) -> Option<&[u8]> {
    let end = reference.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
    (end > 0 && reference[end] == b':').then(|| &reference[..end])
}

fn is_of_web(scheme: &[u8]) -> bool {
    scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
}

/// Whether `reference`, without its authority, resolves to the target it was found at (RFC 3986, section 5.2).
fn same_target(own: &[u8], reference: &[u8], keyed: impl Fn(&[u8]) -> Vec<u8>) -> bool {
    let path_bytes = own.iter().position(|byte| *byte == b'?').unwrap_or(own.len());
    let kept = match reference.first() {
        None | Some(b'/') => &b""[..],
        Some(b'?') => &own[..path_bytes],
        Some(_) => match own[..path_bytes].iter().rposition(|byte| *byte == b'/') {
            Some(at) => &own[..=at],
            None => b"/",
        },
    };
    let meant = if reference.is_empty() { b"/".to_vec() } else { [kept, reference].concat() };
    let normal = |target: &[u8]| {
        let target = yorozu_http::uri::normalize(target, false).ok()?;
        Some((target.path, keyed(&target.args.unwrap_or_default())))
    };
    meant == own || normal(&meant).is_some_and(|meant| normal(own) == Some(meant))
}

/// As much of `args` as the key holds.
fn keyed_args(exchange: &Exchange, args: &[u8]) -> Vec<u8> {
    const WHOLE: [&str; 4] = ["args", "query_string", "request", "request_uri"];
    let location = exchange.conf.location(exchange.location);
    let has_key = super::settings::of(location).is_some_and(|conf| conf.cache_key.is_some());
    let reads = exchange.conf.reads_of(exchange.location).filter(|_| has_key);
    let Some(key) = reads.map(|reads| &reads.key) else { return args.to_vec() };
    if WHOLE.iter().any(|name| key.has(name)) {
        return args.to_vec();
    }
    let mut keyed = Vec::new();
    if key.has("cache_uri") || key.has("cache_args") {
        cleaned::append_args(exchange, args, &mut keyed);
    }
    for name in key.iter().filter_map(|source| source.strip_prefix("arg_")) {
        keyed.push(b'&');
        keyed.extend_from_slice(field::argument(args, name.as_bytes()).unwrap_or_default());
    }
    keyed
}

/// Whether the page has another key over the other scheme.
fn holds_scheme(exchange: &Exchange) -> bool {
    let location = exchange.conf.location(exchange.location);
    let settings = super::settings::of(location);
    if settings.is_some_and(|conf| conf.cache_key.is_none()) {
        return protocol::of(location).is_some_and(|protocol| protocol.family().has_default_key);
    }
    let reads = exchange.conf.reads_of(exchange.location);
    reads.is_some_and(|reads| reads.keyed_of_url.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_before_they_are_compared() {
        let table = [
            ("/a", "/a", true),
            ("/a", "", false),
            ("/", "", true),
            ("/a?q", "?q", true),
            ("/a?q", "?r", false),
            ("/b/a", "a", true),
            ("/b/a", "./a", true),
            ("/b/a", "/b/../b/a", true),
            ("/b/a", "/a", false),
            ("/a%62", "/ab", true),
            ("//a", "/a", false),
        ];
        for (own, reference, wanted) in table {
            assert_eq!(
                same_target(own.as_bytes(), reference.as_bytes(), <[u8]>::to_vec),
                wanted,
                "{own} {reference}"
            );
        }
    }
}
