//! The static table (RFC 9204, appendix A).

/// The first has number 0.
pub(super) const FIELDS: [(&[u8], &[u8]); 99] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// Numbers of fields, those with shorter names first, and where the names of each length begin among them.
const BY_LENGTH: ([u8; FIELDS.len()], [u8; NAME_BYTES_MAX + 2]) = by_length();

const fn by_length() -> ([u8; FIELDS.len()], [u8; NAME_BYTES_MAX + 2]) {
    let (mut numbers, mut starts) = ([0; FIELDS.len()], [0; NAME_BYTES_MAX + 2]);
    let (mut count, mut length) = (0, 0);
    while length <= NAME_BYTES_MAX {
        starts[length] = count as u8;
        let mut number = 0;
        while number < FIELDS.len() {
            if FIELDS[number].0.len() == length {
                numbers[count] = number as u8;
                count += 1;
            }
            number += 1;
        }
        length += 1;
    }
    starts[length] = count as u8;
    assert!(count == FIELDS.len(), "a longer name");
    (numbers, starts)
}

/// Whether a field has the name of the one before it, both in the order of [`BY_LENGTH`].
const REPEATS: [bool; FIELDS.len()] = {
    let mut repeats = [false; FIELDS.len()];
    let mut at = 1;
    while at < FIELDS.len() {
        let (one, other) = (BY_LENGTH.0[at - 1] as usize, BY_LENGTH.0[at] as usize);
        repeats[at] = is_equal(FIELDS[one].0, FIELDS[other].0);
        at += 1;
    }
    repeats
};

const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Where a field is in the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Found {
    Field(u8),
    /// Only its name.
    Name(u8),
}

/// Looks a field up, whatever the case of its name's letters.
pub(super) fn find(name: &[u8], value: &[u8]) -> Option<Found> {
    let (numbers, starts) = &BY_LENGTH;
    let (start, end) = (*starts.get(name.len())?, *starts.get(name.len() + 1)?);
    let range = usize::from(start)..usize::from(end);
    let (mut found, mut is_named) = (None, false);
    for (number, repeats) in numbers[range.clone()].iter().zip(&REPEATS[range]) {
        let field = &FIELDS[usize::from(*number)];
        // A dozen have the same name, one behind the other.
        is_named = if *repeats { is_named } else { field.0.eq_ignore_ascii_case(name) };
        if is_named {
            if field.1 == value {
                return Some(Found::Field(*number));
            }
            found = found.or(Some(Found::Name(*number)));
        } else if found.is_some() {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found() {
        for (number, (name, value)) in (0..).zip(FIELDS) {
            assert_eq!(find(name, value), Some(Found::Field(number)));
            assert_eq!(find(&name.to_ascii_uppercase(), value), Some(Found::Field(number)));
            let first = FIELDS.iter().position(|field| field.0 == name).unwrap();
            let name_alone = Found::Name(u8::try_from(first).unwrap());
            assert_eq!(find(name, b"other"), Some(name_alone));
        }
        for name in [&b""[..], b"x", &[b'a'; 32], &[b'a'; 33], &[b'a'; 500]] {
            assert_eq!(find(name, b""), None);
        }
    }
}
