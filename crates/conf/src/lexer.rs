//! Bytes to words: quotes, escapes, comments, `${braces}`, exactly as nginx reads them.

use crate::error::{ConfError, Position};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;

/// Longest word, in bytes; nginx's own bound is its 4096-byte read buffer. Chosen larger because
/// generated `map` and `Content-Security-Policy` values exceed it.
pub const WORD_BYTES_MAX: usize = 64 * 1024;

/// What ended the words of a directive, or stands for itself.
#[derive(Debug, Eq, PartialEq)]
pub enum Statement {
    /// `name arg ... ;`
    Simple(Words),
    /// `name arg ... {`
    BlockStart(Words),
    /// `}`
    BlockEnd(u32),
    /// The end of the text.
    End(u32),
}

/// A directive's words, unquoted and unescaped. One without escapes is a part of the file's text, not a copy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Words {
    /// The first one.
    pub name: Bytes,
    /// The others.
    pub args: Vec<Bytes>,
    /// Line on which the first one starts, from 1.
    pub line: u32,
}

/// Reads statements from one file's text.
pub struct Lexer<'a> {
    input: &'a Bytes,
    offset: usize,
    line: u32,
    file: &'a Arc<Path>,
    /// The words of the statement that is being read, and where the first one starts.
    words: Vec<Bytes>,
    words_line: u32,
}

enum Ended {
    Space,
    Semicolon,
    Brace,
}

impl<'a> Lexer<'a> {
    /// Starts at the first line of `input`; `file` is named in errors.
    pub fn new(input: &'a Bytes, file: &'a Arc<Path>) -> Self {
        Self { input, offset: 0, line: 1, file, words: Vec::new(), words_line: 1 }
    }

    fn at(&self, line: u32) -> Position {
        Position { file: Arc::clone(self.file), line }
    }

    fn next_byte(&mut self) -> Option<u8> {
        let byte = *self.input.get(self.offset)?;
        self.offset += 1;
        if byte == b'\n' {
            self.line += 1;
        }
        Some(byte)
    }

    /// The next statement.
    ///
    /// # Errors
    /// [`ConfError`] with nginx's wording when the text breaks the grammar.
    pub fn statement(&mut self) -> Result<Statement, ConfError> {
        loop {
            let line = self.line;
            let Some(byte) = self.next_byte() else {
                if self.words.is_empty() {
                    return Ok(Statement::End(line));
                }
                return Err(self.unexpected_end(line));
            };
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'#' => self.skip_comment(),
                b';' if !self.words.is_empty() => return Ok(Statement::Simple(self.words())),
                b'{' if !self.words.is_empty() => return Ok(Statement::BlockStart(self.words())),
                b'}' if self.words.is_empty() => return Ok(Statement::BlockEnd(line)),
                b';' | b'{' | b'}' => return Err(self.unexpected(byte, line)),
                quote @ (b'"' | b'\'') => {
                    let word = self.quoted_word(quote, line)?;
                    self.push(word, line);
                    self.after_quote()?;
                }
                _ => {
                    self.offset -= 1;
                    let (word, ended) = self.bare_word(line)?;
                    self.push(word, line);
                    match ended {
                        Ended::Space => {}
                        Ended::Semicolon => return Ok(Statement::Simple(self.words())),
                        Ended::Brace => return Ok(Statement::BlockStart(self.words())),
                    }
                }
            }
        }
    }

    fn push(&mut self, word: Bytes, line: u32) {
        if self.words.is_empty() {
            self.words_line = line;
        }
        self.words.push(word);
    }

    /// Takes the words, of which there is one at least. Their room is kept for the next ones.
    fn words(&mut self) -> Words {
        let mut words = self.words.drain(..);
        let name = words.next().expect("a statement has a word");
        Words { name, args: words.collect(), line: self.words_line }
    }

    fn unexpected(&self, byte: u8, line: u32) -> ConfError {
        ConfError::Unexpected { got: char::from(byte), at: self.at(line) }
    }

    fn unexpected_end(&self, line: u32) -> ConfError {
        ConfError::UnexpectedEnd { expecting: "\";\" or \"}\"", at: self.at(line) }
    }

    /// Skips Lua, to behind the brace that ends its block: those in its strings and comments do not count.
    ///
    /// # Errors
    /// The text ends before.
    pub fn skip_lua(&mut self) -> Result<(), ConfError> {
        let mut depth = 1;
        while let Some(byte) = self.next_byte() {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 1 => return Ok(()),
                b'}' => depth -= 1,
                b'"' | b'\'' => self.skip_lua_string(byte),
                b'[' => drop(self.skip_lua_brackets()),
                b'-' if self.input.get(self.offset) == Some(&b'-') => {
                    self.offset += 1;
                    let is_long = self.input.get(self.offset) == Some(&b'[') && {
                        self.offset += 1;
                        self.skip_lua_brackets()
                    };
                    if !is_long {
                        self.skip_comment();
                    }
                }
                _ => {}
            }
        }
        Err(ConfError::UnexpectedEnd { expecting: "\"}\"", at: self.at(self.line) })
    }

    fn skip_lua_string(&mut self, quote: u8) {
        while let Some(byte) = self.next_byte() {
            match byte {
                b'\\' => drop(self.next_byte()),
                b'\n' => return,
                _ if byte == quote => return,
                _ => {}
            }
        }
    }

    /// Skips `[[ ... ]]`, or with as many `=` between, of which the first bracket was read. `false`: it is none.
    fn skip_lua_brackets(&mut self) -> bool {
        let rest = &self.input[self.offset..];
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        if rest.get(level) != Some(&b'[') {
            return false;
        }
        let end = [&b"]"[..], &rest[..level], b"]"].concat();
        let length = rest.windows(end.len()).position(|part| part == end);
        for _ in 0..length.map_or(rest.len(), |at| at + end.len()) {
            self.next_byte();
        }
        true
    }

    fn skip_comment(&mut self) {
        while let Some(byte) = self.input.get(self.offset) {
            if *byte == b'\n' {
                return;
            }
            self.offset += 1;
        }
    }

    /// After a closing quote nginx wants a space, `;`, `{` or `)`.
    fn after_quote(&mut self) -> Result<(), ConfError> {
        match self.input.get(self.offset) {
            None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b')') => Ok(()),
            Some(byte) => Err(self.unexpected(*byte, self.line)),
        }
    }

    fn quoted_word(&mut self, quote: u8, line: u32) -> Result<Bytes, ConfError> {
        let start = self.offset;
        loop {
            match self.next_byte() {
                None => return Err(self.unexpected_end(self.line)),
                Some(b'\\') => {
                    self.next_byte();
                }
                Some(byte) if byte == quote => break,
                Some(_) => self.bound(start, line)?,
            }
        }
        Ok(self.unescaped(start))
    }

    fn bare_word(&mut self, line: u32) -> Result<(Bytes, Ended), ConfError> {
        let start = self.offset;
        let mut after_dollar = false;
        loop {
            let rest = &self.input[self.offset..];
            let plain = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
            if plain > 0 {
                after_dollar = false;
                self.offset += plain;
                self.bound(start, line)?;
            }
            let Some(byte) = self.next_byte() else {
                return Err(self.unexpected_end(self.line));
            };
            let ended = match byte {
                b'{' if after_dollar => {
                    after_dollar = false;
                    continue;
                }
                b'\\' => {
                    after_dollar = false;
                    self.next_byte();
                    continue;
                }
                b' ' | b'\t' | b'\r' | b'\n' => Ended::Space,
                b';' => Ended::Semicolon,
                b'{' => Ended::Brace,
                _ => {
                    after_dollar = true;
                    self.bound(start, line)?;
                    continue;
                }
            };
            return Ok((self.unescaped(start), ended));
        }
    }

    /// What stands between `start` and the byte that was read last.
    fn unescaped(&self, start: usize) -> Bytes {
        let raw = self.input.slice(start..self.offset - 1);
        if raw.contains(&b'\\') { unescape(&raw) } else { raw }
    }

    fn bound(&self, start: usize, line: u32) -> Result<(), ConfError> {
        if self.offset - start <= WORD_BYTES_MAX {
            return Ok(());
        }
        let start = String::from_utf8_lossy(&self.input[start..start + 10]).into_owned();
        Err(ConfError::TooLong { start, at: self.at(line) })
    }
}

/// Whether a byte means nothing in a word without quotes.
fn is_plain(byte: u8) -> bool {
    !matches!(byte, b'{' | b'\\' | b' ' | b'\t' | b'\r' | b'\n' | b';' | b'$')
}

/// Resolves `\"`, `\'`, `\\`, `\t`, `\r` and `\n`; any other backslash stays, for regexes.
fn unescape(raw: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.peek().copied() } else { None };
        let resolved = match escaped {
            Some(plain @ (b'"' | b'\'' | b'\\')) => plain,
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            _ => {
                text.push(byte);
                continue;
            }
        };
        rest.next();
        text.push(resolved);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<String>, String> {
        let file: Arc<Path> = Path::new("t").into();
        match Lexer::new(&Bytes::copy_from_slice(text.as_bytes()), &file).statement() {
            Ok(Statement::Simple(words) | Statement::BlockStart(words)) => {
                let all = std::iter::once(&words.name).chain(&words.args);
                Ok(all.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
            }
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn words_are_split_quoted_and_unescaped_as_nginx_does() {
        let table: &[(&str, &[&str])] = &[
            ("a b;", &["a", "b"]),
            ("a 'b c' \"d e\";", &["a", "b c", "d e"]),
            (r#"a "\"q\"" '\'';"#, &["a", "\"q\"", "'"]),
            (r"location ~ \.php$ {", &["location", "~", r"\.php$"]),
            (r"a \\d \n \w;", &["a", r"\d", "\n", r"\w"]),
            ("a ${b}c;", &["a", "${b}c"]),
            ("a b#c; # rest", &["a", "b#c"]),
            ("# first\n a;", &["a"]),
            ("if ($a = \"x\") {", &["if", "($a", "=", "x", ")"]),
            ("a '';", &["a", ""]),
            ("a b{", &["a", "b"]),
        ];
        for (text, expected) in table {
            assert_eq!(words(text).unwrap(), *expected, "{text}");
        }
    }

    #[test]
    fn broken_text_names_the_fault_and_the_line() {
        let table = [
            (";", "unexpected \";\" in t:1"),
            ("\n{", "unexpected \"{\" in t:2"),
            ("a }", "unexpected \"}\" in t:1"),
            ("a 'b'c;", "unexpected \"c\" in t:1"),
            ("a b", "unexpected end of file, expecting \";\" or \"}\" in t:1"),
            ("a 'b\n\n", "unexpected end of file, expecting \";\" or \"}\" in t:3"),
        ];
        for (text, expected) in table {
            assert_eq!(words(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn an_overlong_word_is_refused() {
        let text = format!("a {};", "x".repeat(WORD_BYTES_MAX + 2));
        assert_eq!(
            words(&text).unwrap_err(),
            "too long parameter \"xxxxxxxxxx...\" started in t:1"
        );
    }
}
