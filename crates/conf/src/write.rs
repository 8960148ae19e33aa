//! A tree to text.

use crate::parser::Directive;

/// Directives as text that is read as the same ones again, with a line for each.
pub fn write(directives: &[Directive]) -> Vec<u8> {
    let mut out = Vec::new();
    put_lines(directives, 0, &mut out);
    out
}

fn put_lines(lines: &[Directive], depth: usize, out: &mut Vec<u8>) {
    let indent = |out: &mut Vec<u8>| out.resize(out.len() + 4 * depth, b' ');
    for line in lines {
        indent(out);
        put_word(&line.name, out);
        for word in &line.args {
            out.push(b' ');
            put_word(word, out);
        }
        match &line.block {
            None => out.extend_from_slice(b";\n"),
            Some(block) => {
                out.extend_from_slice(b" {\n");
                put_lines(block, depth + 1, out);
                indent(out);
                out.extend_from_slice(b"}\n");
            }
        }
    }
}

/// A word as text that is read as the same one again: in quotes where it could be read as something else.
pub fn write_word(word: &str) -> String {
    let mut out = Vec::new();
    put_word(word.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn put_word(word: &[u8], out: &mut Vec<u8>) {
    let is_special = |byte: &u8| b" \t\r\n;{}\"'".contains(byte);
    let is_quoted = word.is_empty() || word.starts_with(b"#") || word.iter().any(is_special);
    let quote: &[u8] = if is_quoted { b"\"" } else { b"" };
    out.extend_from_slice(quote);
    for (at, byte) in word.iter().enumerate() {
        // A backslash stays one before anything else.
        let escapes = |next: &u8| b"\"'\\trn".contains(next);
        let is_escape = *byte == b'\\' && word.get(at + 1).is_none_or(escapes);
        if is_escape || *byte == b'"' {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.extend_from_slice(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_text;
    use crate::parser::tests::{Files, outline};

    #[test]
    fn what_was_written_is_read_as_the_same() {
        let text = r#"a; b "" '#c' "d e" f\;g "h\"i" 'j\'k' \l\.m "n\\" o\\t "p
q" ${r} "{s}" t#u; if ($v = "") { return 204; } location ~ "^/\d{2}\.x$" { }"#;
        let first = parse_text(&Files::default(), text).unwrap();
        let written = write(&first);
        let again = parse_text(&Files::default(), std::str::from_utf8(&written).unwrap()).unwrap();
        assert_eq!(outline(&first), outline(&again), "{}", String::from_utf8_lossy(&written));
        assert_eq!(write(&again), written);
    }
}
