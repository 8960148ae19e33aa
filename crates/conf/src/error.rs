//! Where and why a configuration was refused.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A line of a configuration file; prints as `FILE:LINE`, as nginx's messages end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Position {
    /// The file as it was named after resolving it against the prefix.
    pub file: Arc<Path>,
    /// Counted from 1.
    pub line: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Why a configuration was refused. `Display` is one line, as `yorozu -t` prints it.
///
/// The wording is nginx's where nginx has a message for the same fault: operators search for it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// A character where the grammar does not allow it.
    #[error("unexpected \"{got}\" in {at}")]
    Unexpected {
        /// The character found.
        got: char,
        /// Where it stands.
        at: Position,
    },
    /// The file ended inside a directive or block.
    #[error("unexpected end of file, expecting {expecting} in {at}")]
    UnexpectedEnd {
        /// What would have been accepted.
        expecting: &'static str,
        /// The last line of the file.
        at: Position,
    },
    /// The text of `-g` ended inside a directive.
    #[error("unexpected end of parameter, expecting \";\" in {at}")]
    UnexpectedEndOfParameter {
        /// Where it stands.
        at: Position,
    },
    /// A block in the text of `-g`.
    #[error("block directives are not supported in -g option in {at}")]
    BlockInParameter {
        /// Where it stands.
        at: Position,
    },
    /// A simple directive was followed by a block.
    #[error("directive \"{name}\" is not terminated by \";\" in {at}")]
    NotTerminated {
        /// The directive's name.
        name: String,
        /// Where it stands.
        at: Position,
    },
    /// A block directive without its block.
    #[error("directive \"{name}\" has no opening \"{{\" in {at}")]
    NoOpeningBrace {
        /// The directive's name.
        name: String,
        /// Where it stands.
        at: Position,
    },
    /// One word exceeds the bound of the lexer.
    #[error("too long parameter \"{start}...\" started in {at}")]
    TooLong {
        /// The first bytes of the word.
        start: String,
        /// Where the word starts.
        at: Position,
    },
    /// Blocks or includes nest deeper than the bound.
    #[error("blocks and includes nest deeper than {max} levels in {at}")]
    TooDeep {
        /// The bound.
        max: usize,
        /// Where it was exceeded.
        at: Position,
    },
    /// A file named by `include` (or the main file) cannot be read.
    #[error("open() \"{path}\" failed ({reason}){}", in_position(.at.as_ref()))]
    Open {
        /// The file.
        path: String,
        /// `errno: text`, as nginx prints it.
        reason: String,
        /// The `include`; `None` for the main file.
        at: Option<Position>,
    },
    /// A pattern of an `include` that matches too much.
    #[error("glob() \"{pattern}\" failed ({reason}) in {at}")]
    Glob {
        /// The pattern.
        pattern: String,
        /// What was too much.
        reason: String,
        /// The `include`.
        at: Position,
    },
    /// More is included than any configuration needs.
    #[error(
        "the configuration has more than {max} {what}, included ones counted each time, in {at}"
    )]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
        /// Where it was exceeded.
        at: Position,
    },
    /// A directive that no module has.
    #[error("unknown directive \"{name}\" in {at}")]
    UnknownDirective {
        /// The name as written.
        name: String,
        /// Where it stands.
        at: Position,
    },
    /// A directive in a block where it has no meaning.
    #[error("\"{name}\" directive is not allowed here in {at}")]
    NotAllowedHere {
        /// The directive's name.
        name: String,
        /// Where it stands.
        at: Position,
    },
    /// The count of arguments does not fit.
    #[error("invalid number of arguments in \"{name}\" directive in {at}")]
    ArgumentCount {
        /// The directive's name.
        name: String,
        /// Where it stands.
        at: Position,
    },
    /// A directive's value was refused; the text is the setter's.
    #[error("{text} in {at}")]
    Value {
        /// What is wrong and what was expected.
        text: String,
        /// Where the directive stands.
        at: Position,
    },
    /// A fault of the configuration as a whole, without a line of its own.
    #[error("{text}")]
    Whole {
        /// What is wrong.
        text: String,
    },
}

fn in_position(at: Option<&Position>) -> String {
    at.map(|at| format!(" in {at}")).unwrap_or_default()
}

/// `2: No such file or directory`, as nginx prints system errors.
pub fn os_error(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            let plain = text.split(" (os error").next().unwrap_or(&text);
            format!("{number}: {plain}")
        }
        None => text,
    }
}
