//! Texts in quotes, as `.case` files have them.

/// A quoted text with `\r \n \t \" \\ \xHH`, perhaps `* count` times, and what follows it.
pub(crate) fn quoted_bytes(text: &str) -> (Vec<u8>, &str) {
    let inner = text.strip_prefix('"').unwrap_or_else(|| panic!("expected a quoted text: {text}"));
    let mut out = Vec::new();
    let bytes = inner.as_bytes();
    let mut at = 0;
    loop {
        match bytes[at] {
            b'"' => break,
            b'\\' => {
                at += 1;
                out.push(match bytes[at] {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'x' => {
                        at += 2;
                        u8::from_str_radix(&inner[at - 1..=at], 16).unwrap()
                    }
                    other => other,
                });
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    let rest = &inner[at + 1..];
    let Some(more) = rest.strip_prefix(" * ") else { return (out, rest) };
    let end = more.find(|c: char| !c.is_ascii_digit()).unwrap_or(more.len());
    (out.repeat(more[..end].parse().unwrap()), &more[end..])
}

/// As [`quoted_bytes`], as text.
pub(crate) fn quoted(text: &str) -> (String, &str) {
    let (bytes, rest) = quoted_bytes(text);
    (String::from_utf8_lossy(&bytes).into_owned(), rest)
}
