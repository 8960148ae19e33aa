//! Bytes of requests, paths and applications in the text of a message, so that the log has them as they are.

use std::borrow::Cow;
use std::path::Path;

/// Stands, with a byte added that is not UTF-8, for that byte: private use, the last characters there are.
const FIRST: u32 = 0x10_FF00;

/// The byte that a character stands for. ASCII is UTF-8, so none stands for a byte of it: a client whose text comes to the log
/// by another way than [`verbatim`] could begin a line there.
fn byte_of(character: char) -> Option<u8> {
    let byte = u32::from(character).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok());
    byte.filter(|byte| !byte.is_ascii())
}

/// As text. What is not UTF-8 is put so that [`push_safe`] finds the bytes again.
#[must_use]
pub fn verbatim(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        // The characters that stand for bytes must not be taken for them.
        Ok(text) if !text.contains(|found| byte_of(found).is_some()) => Cow::Borrowed(text),
        _ => Cow::Owned(held(bytes)),
    }
}

/// [`verbatim`] of a path.
#[must_use]
pub fn path(path: &Path) -> Cow<'_, str> {
    verbatim(path.as_os_str().as_encoded_bytes())
}

fn held(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    let stand_in = |byte: &u8| char::from_u32(FIRST + u32::from(*byte));
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match byte_of(character) {
                None => text.push(character),
                Some(_) => {
                    let mut own = [0; 4];
                    character.encode_utf8(&mut own);
                    text.extend(own.iter().filter_map(stand_in));
                }
            }
        }
        text.extend(chunk.invalid().iter().filter_map(stand_in));
    }
    text
}

/// Appends a text with its control characters as `\xXX`, as access logs have them: paths, names of users and
/// messages of applications shall neither begin new lines nor control the reader's terminal.
pub(super) fn push_safe(line: &mut Vec<u8>, text: &str) {
    let mut plain = 0;
    for (at, character) in text.char_indices() {
        let stands_for = byte_of(character);
        if stands_for.is_none() && !character.is_control() {
            continue;
        }
        line.extend_from_slice(&text.as_bytes()[plain..at]);
        plain = at + character.len_utf8();
        match stands_for {
            Some(byte) => line.push(byte),
            None => text.as_bytes()[at..plain].iter().for_each(|byte| push_escaped(line, *byte)),
        }
    }
    line.extend_from_slice(&text.as_bytes()[plain..]);
}

fn push_escaped(line: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digits = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
    line.extend_from_slice(&[b'\\', b'x', digits[0], digits[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_and_control_characters_are_escaped() {
        let table: [(&[u8], &[u8]); 9] = [
            (
                "open() \"/a\" failed, c\\d \u{e9}\u{20ac}".as_bytes(),
                "open() \"/a\" failed, c\\d \u{e9}\u{20ac}".as_bytes(),
            ),
            (b"a\n[emerg] b", b"a\\x0A[emerg] b"),
            (b"\r\n\t\0\x1b[31m\x7f", b"\\x0D\\x0A\\x09\\x00\\x1B[31m\\x7F"),
            // U+009B begins a terminal's sequences as ESC [ does.
            ("a\u{9b}31m".as_bytes(), b"a\\xC2\\x9B31m"),
            (b"", b""),
            (b"caf\xe9 \xff\x80\n", b"caf\xe9 \xff\x80\\x0A"),
            (b"\xe2\x82", b"\xe2\x82"),
            // What stands for bytes, itself.
            (b"\xf4\x8f\xbc\x8a \xf4\x8f\xbf\xbf", b"\xf4\x8f\xbc\x8a \xf4\x8f\xbf\xbf"),
            ("\u{fffd} \u{10feff}".as_bytes(), "\u{fffd} \u{10feff}".as_bytes()),
        ];
        for (bytes, expected) in table {
            let mut line = b"* ".to_vec();
            push_safe(&mut line, &verbatim(bytes));
            assert_eq!(line[2..].escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }

    #[test]
    fn no_text_of_others_stands_for_control_characters() {
        // Not every text was made by `verbatim`.
        for (text, expected) in [
            ("a\u{10ff0a}[emerg] b", "a\u{10ff0a}[emerg] b".as_bytes()),
            ("\u{10ff00}\u{10ff1b}\u{10ff7f}", "\u{10ff00}\u{10ff1b}\u{10ff7f}".as_bytes()),
            ("\u{10ff80}\u{10ffff}", b"\x80\xff"),
        ] {
            let mut line = Vec::new();
            push_safe(&mut line, text);
            assert_eq!(line.escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }
}
