//! Words and statements of a configuration's text, as nginx reads them, with what stands between them.

/// A word in its statement.
#[derive(Debug)]
pub(crate) struct Word<'a> {
    pub(crate) word: &'a str,
    /// The first word of its statement.
    pub(crate) first: &'a str,
    /// Its number in the statement.
    pub(crate) index: usize,
    /// Whether the statement, or its block, begins behind it.
    pub(crate) is_last: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Word,
    /// White space or a comment.
    Space,
    /// `;`, `{` or `}`.
    End,
}

/// The pieces of a text: all of them make the text.
fn pieces(mut text: &str) -> Vec<(Kind, &str)> {
    let mut pieces = Vec::new();
    while let Some(first) = text.chars().next() {
        let (kind, length) = match first {
            ';' | '{' | '}' => (Kind::End, 1),
            '#' => (Kind::Space, text.find('\n').unwrap_or(text.len())),
            c if c.is_whitespace() => {
                let end = text.find(|c: char| !c.is_whitespace());
                (Kind::Space, end.unwrap_or(text.len()))
            }
            _ => (Kind::Word, word_bytes(text)),
        };
        let (piece, rest) = text.split_at(length);
        pieces.push((kind, piece));
        text = rest;
    }
    pieces
}

/// The length of the word that a text begins with.
fn word_bytes(text: &str) -> usize {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let (mut is_escaped, mut before) = (false, ' ');
    for (at, c) in text.char_indices().skip(usize::from(quote.is_some())) {
        let is_end = match quote {
            Some(quote) => c == quote,
            None => c.is_whitespace() || c == ';' || (c == '{' && before != '$'),
        };
        if is_end && !is_escaped {
            return if quote.is_some() { at + 1 } else { at };
        }
        is_escaped = c == '\\' && !is_escaped;
        before = c;
    }
    text.len()
}

/// The text with each word replaced.
pub(crate) fn mapped(text: &str, mut change: impl FnMut(&Word<'_>) -> String) -> String {
    let pieces = pieces(text);
    let (mut out, mut first, mut index) = (String::new(), "", 0);
    for (at, (kind, piece)) in pieces.iter().enumerate() {
        match kind {
            Kind::Space => out.push_str(piece),
            Kind::End => {
                out.push_str(piece);
                index = 0;
            }
            Kind::Word => {
                if index == 0 {
                    first = piece;
                }
                let next = pieces[at + 1..].iter().find(|(kind, _)| *kind != Kind::Space);
                let is_last = next.is_none_or(|(kind, _)| *kind == Kind::End);
                out.push_str(&change(&Word { word: piece, first, index, is_last }));
                index += 1;
            }
        }
    }
    out
}

/// The statements of a text outside of any block, each with the name of its directive.
pub(crate) fn statements(text: &str) -> Vec<(&str, &str)> {
    let (mut statements, mut depth, mut at) = (Vec::new(), 0, 0);
    let mut begun: Option<(&str, usize)> = None;
    for (kind, piece) in pieces(text) {
        if kind == Kind::Word && begun.is_none() {
            begun = Some((piece, at));
        }
        at += piece.len();
        match piece {
            "{" if kind == Kind::End => depth += 1,
            "}" if kind == Kind::End => depth -= 1,
            _ => {}
        }
        let is_end = kind == Kind::End && piece != "{" && depth == 0;
        if let (true, Some((name, from))) = (is_end, begun) {
            statements.push((name, &text[from..at]));
            begun = None;
        }
    }
    statements
}
