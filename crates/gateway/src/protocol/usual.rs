//! Names and values that heads of answers have again and again.
//!
//! A part of a head holds a share of the buffer that the head was read into, and to count shares is one of the dearest
//! things that a processor does. What is known needs none.

use bytes::Bytes;
use std::ops::Range;

/// The part of a head that stands at `range`.
///
/// # Panics
/// If `range` is not in `head`.
pub fn part(head: &Bytes, range: Range<usize>) -> Bytes {
    match known(&head[range.clone()]) {
        Some(text) => Bytes::from_static(text),
        None => head.slice(range),
    }
}

/// The one of some texts of the same length that `text` is.
macro_rules! among {
    ($text:ident, $($known:literal),+ $(,)?) => { one_of($text, const { &[$(*$known),+] }) };
}

/// `text`, if it is one of these to the letter.
fn known(text: &[u8]) -> Option<&'static [u8]> {
    // By length: few are compared, and those as numbers of that length.
    match text.len() {
        0 => Some(b""),
        2 => among!(text, b"OK"),
        3 => among!(text, b"Age", b"Via", b"age", b"via"),
        4 => among!(
            text, b"Date", b"ETag", b"Vary", b"Link", b"gzip", b"date", b"etag", b"vary", b"link",
        ),
        5 => among!(text, b"bytes", b"close"),
        6 => among!(text, b"Server", b"Pragma", b"server", b"pragma", b"public"),
        7 => among!(text, b"Expires", b"nosniff", b"chunked", b"expires"),
        8 => among!(text, b"Location", b"text/css", b"no-cache", b"location"),
        9 => among!(text, b"text/html", b"Not Found"),
        10 => among!(
            text,
            b"Connection",
            b"Set-Cookie",
            b"keep-alive",
            b"Keep-Alive",
            b"connection",
            b"set-cookie",
            b"SAMEORIGIN",
        ),
        12 => among!(
            text,
            b"Content-Type",
            b"content-type",
            b"Content-type",
            b"X-Powered-By",
            b"x-powered-by",
            b"Not Modified",
        ),
        13 => among!(
            text,
            b"Cache-Control",
            b"Last-Modified",
            b"Accept-Ranges",
            b"cache-control",
            b"last-modified",
            b"accept-ranges",
        ),
        14 => among!(text, b"Content-Length", b"content-length", b"Content-length"),
        15 => among!(text, b"Accept-Encoding", b"X-Frame-Options", b"x-frame-options",),
        16 => among!(text, b"Content-Encoding", b"content-encoding", b"application/json",),
        17 => among!(text, b"Transfer-Encoding", b"transfer-encoding"),
        22 => among!(
            text,
            b"X-Content-Type-Options",
            b"x-content-type-options",
            b"application/javascript",
        ),
        24 => among!(text, b"text/html; charset=UTF-8", b"text/html; charset=utf-8",),
        25 => among!(text, b"Strict-Transport-Security", b"strict-transport-security",),
        29 => among!(text, b"Thu, 19 Nov 1981 08:52:00 GMT", b"Wed, 11 Jan 1984 05:00:00 GMT",),
        _ => None,
    }
}

fn one_of<const LENGTH: usize>(
    text: &[u8],
    known: &'static [[u8; LENGTH]],
) -> Option<&'static [u8]> {
    let text = <&[u8; LENGTH]>::try_from(text).ok()?;
    known.iter().find(|known| *known == text).map(|known| &known[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_stands_there() {
        let head = Bytes::from_static(b"OK Content-Type content-TYPE close-");
        for (range, is_known) in [
            (0..2, true),
            (3..15, true),
            (16..28, false),
            (29..34, true),
            (29..35, false),
            (2..2, true),
        ] {
            assert_eq!(part(&head, range.clone()), &head[range.clone()]);
            assert_eq!(known(&head[range]).is_some(), is_known);
        }
    }

    #[test]
    fn each_stands_with_those_of_its_length() {
        let all = include_str!("usual.rs")
            .split("fn known")
            .nth(1)
            .unwrap()
            .split("_ =>")
            .next()
            .unwrap();
        let mut count = 0;
        for text in all.split("b\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert_eq!(known(text.as_bytes()), Some(text.as_bytes()));
            count += 1;
        }
        assert!(count > 50);
    }
}
