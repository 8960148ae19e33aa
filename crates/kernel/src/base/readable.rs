//! What people read on a terminal, and in lines: sizes, and text of clients without what a terminal would obey.

/// Whether a terminal obeys a character: controls, line ends, and what changes the direction of writing.
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text in which such characters are spelled out.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_obeyed(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    out
}

/// The same of a text that is JSON, and stays the same JSON.
pub fn harmless_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Those of ASCII are white space between values: in a string JSON itself does not let them be.
        match is_obeyed(c) && !c.is_ascii() {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    out
}

/// A number of bytes in a unit that leaves few digits: `9876 B`, `12 KB`.
pub fn size(bytes: u64) -> String {
    let (mut rest, mut unit) = (bytes, "B");
    for next in ["KB", "MB", "GB", "TB"] {
        if rest < 10 * 1024 {
            break;
        }
        (rest, unit) = (rest / 1024, next);
    }
    format!("{rest} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_spelled_out() {
        assert_eq!(harmless("a\u{1b}]0;x\u{7}\n\u{9b}é"), "a\\u{1b}]0;x\\u{7}\\u{a}\\u{9b}é");
        assert_eq!(harmless_json("{\"a\":\"\u{9b}\u{202e}é\"}\n"), "{\"a\":\"\\u009b\\u202eé\"}\n");
    }
}
