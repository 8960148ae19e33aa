//! Sections that are written: with the static table alone (RFC 9204, section 4.5). They depend on nothing that was sent
//! before, and no one waits for them.

use super::fixed::{Found, find};
use crate::packed::{put_integer, put_string};

const FIELD: u8 = 0xc0;
const NAME: u8 = 0x50;
const LITERAL: u8 = 0x20;

/// Appends what a section begins with: it needs no entries (section 4.5.1).
pub fn put_prefix(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends the status of a response, which comes first.
pub fn put_status(out: &mut Vec<u8>, status: u16) {
    let digits = [status / 100 % 10, status / 10 % 10, status % 10];
    #[expect(clippy::cast_possible_truncation, reason = "a digit")]
    put_field(out, b":status", &digits.map(|digit| b'0' + digit as u8));
}

/// Appends a field; its name in small letters.
pub fn put_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match find(name, value) {
        Some(Found::Field(number)) => return put_integer(out, FIELD, 6, number.into()),
        Some(Found::Name(number)) => put_integer(out, NAME, 4, number.into()),
        None => put_string(out, LITERAL, 3, name, true),
    }
    put_string(out, 0, 7, value, false);
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Section};
    use super::*;

    #[test]
    fn a_section_is_short() {
        let mut out = Vec::new();
        put_prefix(&mut out);
        put_status(&mut out, 200);
        put_field(&mut out, b"Content-Encoding", b"gzip");
        put_field(&mut out, b"vary", b"Accept-Encoding");
        assert_eq!(out[..6], [0, 0, 0xc0 | 25, 0xc0 | 43, 0x5f, 59 - 15]);
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let long = "x".repeat(400);
        let mut section = Vec::new();
        put_prefix(&mut section);
        put_status(&mut section, 304);
        put_status(&mut section, 418);
        let fields = [
            ("Content-Type", "text/html"),
            ("X-Frame-Options", "sameorigin"),
            ("X-Long", &long),
            ("x-codes-badly", "\u{1}\u{2}{}~\\"),
            ("Set-Cookie", ""),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("", ""),
        ];
        for (name, value) in fields {
            put_field(&mut section, name.as_bytes(), value.as_bytes());
        }
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut decoder = Decoder::new(0, 0);
        let read = decoder.section(0, &section, |name, value| {
            found.push((text(name), text(value)));
            true
        });
        assert_eq!(read, Ok(Section::Whole));
        let expected = [(":status", "304"), (":status", "418")]
            .into_iter()
            .chain(fields)
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}
