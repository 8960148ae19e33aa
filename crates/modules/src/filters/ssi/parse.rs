//! The language of server side includes: text with commands, `<!--#name parameter="value" … -->`.

use bytes::Bytes;
use yorozu_kernel::logging::error::verbatim;

/// What a page is made of.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Token {
    Text(Bytes),
    Command(Command),
    /// What is not a command, with the reason.
    Broken(String),
}

/// A command with its parameters as written.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Command {
    pub(super) name: String,
    pub(super) parameters: Vec<(String, Vec<u8>)>,
    /// All of it, as it stands in the page.
    pub(super) source: Bytes,
}

impl Command {
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut found = self.parameters.iter().filter(|(found, _)| found == name);
        found.next_back().map(|(_, value)| &value[..])
    }
}

const OPEN: &[u8] = b"<!--#";
const CLOSE: &[u8] = b"-->";
/// Longest command; more is not a command. Chosen: some values of the greatest length nginx documents.
const COMMAND_MAX: usize = 16 * 1024;

/// Finds the commands in a page that comes piece by piece.
#[derive(Debug)]
pub(super) struct Parser {
    pending: Vec<u8>,
    /// `ssi_value_length`
    value_max: usize,
}

impl Parser {
    pub(super) fn new(value_max: usize) -> Self {
        Self { pending: Vec::new(), value_max }
    }

    /// Takes a piece and appends what is complete.
    pub(super) fn push(&mut self, bytes: &[u8], tokens: &mut Vec<Token>) {
        self.pending.extend_from_slice(bytes);
        loop {
            let Some(start) = memchr::memmem::find(&self.pending, OPEN) else {
                let kept = (1..OPEN.len()).rev().find(|n| self.pending.ends_with(&OPEN[..*n]));
                let end = self.pending.len() - kept.unwrap_or(0);
                self.text(end, tokens);
                return;
            };
            self.text(start, tokens);
            let inner = &self.pending[OPEN.len()..];
            match end_of_command(inner) {
                Some(end) => {
                    let command = command(&inner[..end], self.value_max);
                    let source: Vec<u8> =
                        self.pending.drain(..OPEN.len() + end + CLOSE.len()).collect();
                    tokens.push(match command {
                        Ok(command) => Token::Command(Command { source: source.into(), ..command }),
                        Err(why) => Token::Broken(why),
                    });
                }
                None if inner.len() > COMMAND_MAX => {
                    tokens.push(Token::Broken("too long SSI command".to_owned()));
                    self.pending.clear();
                }
                None => return,
            }
        }
    }

    /// The end: a command that is begun is none.
    pub(super) fn finish(&mut self, tokens: &mut Vec<Token>) {
        if !self.pending.starts_with(OPEN) {
            self.text(self.pending.len(), tokens);
        }
    }

    fn text(&mut self, end: usize, tokens: &mut Vec<Token>) {
        if end > 0 {
            let text: Vec<u8> = self.pending.drain(..end).collect();
            tokens.push(Token::Text(text.into()));
        }
    }
}

/// Where `-->` begins that is in no value.
fn end_of_command(inner: &[u8]) -> Option<usize> {
    let mut quote = None;
    let mut is_escaped = false;
    for (at, byte) in inner.iter().enumerate() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if *byte == b'\\' => is_escaped = true,
            Some(open) if open == *byte => quote = None,
            Some(_) => {}
            None if inner[at..].starts_with(CLOSE) => return Some(at),
            None if matches!(byte, b'"' | b'\'') => quote = Some(*byte),
            None => {}
        }
    }
    None
}

fn command(text: &[u8], value_max: usize) -> Result<Command, String> {
    let mut rest = text.trim_ascii();
    let name = word(&mut rest, |byte| !byte.is_ascii_whitespace());
    let mut command = Command { name: string(name), ..Command::default() };
    if command.name.is_empty() {
        return Err("invalid SSI command".to_owned());
    }
    while !rest.is_empty() {
        let name = string(word(&mut rest, |byte| *byte != b'=' && !byte.is_ascii_whitespace()));
        rest = rest.trim_ascii_start();
        let quoted = rest.strip_prefix(b"=").map(<[u8]>::trim_ascii_start);
        let Some(([quote @ (b'"' | b'\'')], after)) = quoted.and_then(|q| q.split_at_checked(1))
        else {
            return Err(format!(
                "unexpected symbol after \"{name}\" parameter in \"{}\" SSI command",
                command.name
            ));
        };
        rest = after;
        let mut value = Vec::new();
        let mut is_escaped = false;
        loop {
            let Some((byte, after)) = rest.split_first() else {
                return Err(format!("unterminated value in \"{}\" SSI command", command.name));
            };
            rest = after;
            if byte == quote && !is_escaped {
                break;
            }
            // As nginx: the backslash stays, for where the value is a text with variables.
            is_escaped = *byte == b'\\' && !is_escaped;
            value.push(*byte);
        }
        if value.len() > value_max {
            return Err(format!(
                "too long value of \"{name}\" parameter in \"{}\" SSI command",
                command.name
            ));
        }
        if let Some(byte) = rest.first().filter(|byte| !byte.is_ascii_whitespace()) {
            return Err(format!(
                "unexpected \"{}\" symbol after the value of \"{name}\" parameter in \"{}\" SSI command",
                char::from(*byte),
                command.name
            ));
        }
        command.parameters.push((name, value));
        rest = rest.trim_ascii_start();
    }
    Ok(command)
}

fn word<'t>(rest: &mut &'t [u8], is_in: impl Fn(&u8) -> bool) -> &'t [u8] {
    let end = rest.iter().position(|byte| !is_in(byte)).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_ascii_start();
    word
}

fn string(word: &[u8]) -> String {
    verbatim(word).into_owned()
}

/// What an `if` compares.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Condition<'t> {
    /// Whether the text, with its variables, is not empty.
    Some(&'t [u8]),
    /// Whether two texts are the same, or with `false` are not.
    Equal(&'t [u8], &'t [u8], bool),
    /// Whether a regex matches a text, or with `false` does not.
    Match(&'t [u8], &'t [u8], bool),
}

/// Reads an `expr`.
pub(super) fn condition(expr: &[u8]) -> Result<Condition<'_>, &'static str> {
    let is_left = |byte: &u8| byte.is_ascii_alphanumeric() || b"$_{}\"'".contains(byte);
    let mut rest = expr;
    let left = {
        let end = rest.iter().position(|byte| !is_left(byte)).unwrap_or(rest.len());
        let (left, after) = rest.split_at(end);
        rest = after.trim_ascii_start();
        left
    };
    if rest.is_empty() {
        return Ok(Condition::Some(left));
    }
    let (right, is_equal) = match (rest.strip_prefix(b"!="), rest.strip_prefix(b"=")) {
        (Some(right), _) => (right, false),
        (_, Some(right)) => (right, true),
        _ => return Err("invalid expression"),
    };
    let right = right.trim_ascii_start();
    match right.strip_prefix(b"/") {
        Some(regex) => match regex.strip_suffix(b"/") {
            Some(regex) => Ok(Condition::Match(left, regex, is_equal)),
            None => Err("invalid expression"),
        },
        None => {
            let right = if right.starts_with(b"\\/") { &right[1..] } else { right };
            Ok(Condition::Equal(left, right, is_equal))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str, piece: usize) -> Vec<Token> {
        let mut parser = Parser::new(20);
        let mut tokens = Vec::new();
        text.as_bytes().chunks(piece).for_each(|part| parser.push(part, &mut tokens));
        parser.finish(&mut tokens);
        tokens
    }

    #[test]
    fn commands_are_found_over_pieces() {
        let text = "a<!--#echo var='x--> \\'y\\z' default=\"\" -->b<!- <!--# else--> c<!--#if";
        for piece in [1, 2, 7, 1000] {
            let found = tokens(text, piece);
            let mut plain = Vec::new();
            let mut commands = Vec::new();
            for token in found {
                match token {
                    Token::Text(text) => plain.extend_from_slice(&text),
                    Token::Command(command) => commands.push(command),
                    Token::Broken(why) => panic!("{why}"),
                }
            }
            assert_eq!(String::from_utf8(plain).unwrap(), "ab<!-  c");
            assert_eq!(commands[0].name, "echo");
            assert_eq!(commands[0].get("var"), Some(&b"x--> \\'y\\z"[..]));
            let end = text.find("b<!-").unwrap();
            assert_eq!(commands[0].source[..], text.as_bytes()[1..end]);
            assert_eq!(commands[0].get("default"), Some(&b""[..]));
            assert_eq!((&*commands[1].name, commands[1].parameters.len()), ("else", 0));
        }
    }

    #[test]
    fn what_is_not_a_command_is_reported() {
        for text in [
            "<!--# -->",
            "<!--#echo var=x -->",
            "<!--#echo var -->",
            "<!--#echo var='123456789012345678901' -->",
            "<!--#echo var='a'default='b' -->",
        ] {
            assert!(matches!(tokens(text, 100)[..], [Token::Broken(_)]), "{text}");
        }
    }

    #[test]
    fn conditions_are_read() {
        assert_eq!(condition(b"$a"), Ok(Condition::Some(b"$a")));
        assert_eq!(condition(b"$a = b c"), Ok(Condition::Equal(b"$a", b"b c", true)));
        assert_eq!(condition(b"$a != /^b/"), Ok(Condition::Match(b"$a", b"^b", false)));
        assert_eq!(condition(b"${a}=\\/b"), Ok(Condition::Equal(b"${a}", b"/b", true)));
        assert!(condition(b"$a ~ b").is_err());
        assert!(condition(b"$a = /b").is_err());
    }
}
