//! The nginx.conf language: text in, a tree of directives with positions out.
//!
//! Way through: [`Source::read`] -> [`lexer`] (words and punctuation) -> [`parse`] (tree, includes
//! resolved) -> [`value`] (sizes, times, switches).
//!
//! # Invariants
//! - This crate knows the form of directives and not one directive, `include` excepted.
//! - No file, clock or socket is touched here; the caller passes a [`Source`].
//! - Words are bytes; nothing requires UTF-8.
//!
//! # Sources
//! nginx, "Configuration file measurement units" and the beginner's guide; behaviour checked
//! against nginx 1.22 by the tests of this crate and of the server.

mod error;
pub mod lexer;
mod parser;
pub mod value;
mod write;

pub use error::{ConfError, Position, os_error};
pub use parser::{
    Directive, LoadedFile, Source, Tree, parse, parse_global, parse_text, parse_to_fault,
};
pub use write::{write, write_word};
