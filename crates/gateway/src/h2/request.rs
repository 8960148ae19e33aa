//! A request's fields, from the lines that HTTP/1 would have.

use super::codec::is_of_connection;
use yorozu_wire::h2::hpack::{put_request, put_request_field};

/// The block of fields for a head of HTTP/1, up to its empty line or beyond: the one place where what a request says is
/// decided knows no version.
///
/// Unlike nginx, a `Host` that the configuration sets becomes the authority, too: RFC 9113, section 8.3.1, wants that of
/// who makes a request.
pub fn block(head: &[u8], scheme: &[u8]) -> Vec<u8> {
    let mut lines =
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let fields = || lines.clone().take_while(|line| !line.is_empty()).filter_map(field);
    let is_host = |name: &[u8]| name.eq_ignore_ascii_case(b"host");
    let authority = fields().find(|(name, _)| is_host(name)).map_or(&b""[..], |(_, value)| value);
    let mut out = Vec::with_capacity(head.len());
    put_request(&mut out, method, scheme, target, authority);
    for (name, value) in fields() {
        let is_te = name.eq_ignore_ascii_case(b"te");
        // Section 8.2.2.
        let is_allowed = !is_te || value.eq_ignore_ascii_case(b"trailers");
        if is_allowed && !is_host(name) && !is_of_connection(name) {
            put_request_field(&mut out, name, value);
        }
    }
    out
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use yorozu_wire::h2::hpack::Decoder;

    #[test]
    fn heads_become_blocks() {
        let head = b"PUT /a?b HTTP/2.0\r\nHost: a.test\r\nX-One: 1\r\nConnection: close\r\nTE: trailers\r\nUpgrade: x\r\n\r\nX-Two: 2\r\n";
        let mut found = Vec::new();
        let put = |name: &[u8], value: &[u8]| {
            let text = String::from_utf8_lossy;
            found.push(format!("{}={}", text(name), text(value)));
            true
        };
        Decoder::default().decode(&block(head, b"https"), put).unwrap();
        let expected = [
            ":method=PUT",
            ":scheme=https",
            ":path=/a?b",
            ":authority=a.test",
            "x-one=1",
            "te=trailers",
        ];
        assert_eq!(found, expected);
    }
}
