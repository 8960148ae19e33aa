//! The directives of Zstandard, named as in the module nginx's users build in.

use super::gzip::MimeTypes;
use crate::config::directive::*;
use crate::config::types::{Buffers, Size};

/// Effort; 1 to 22 by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Level(pub(super) u8);

impl Setting for Level {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match yorozu_conf::value::number(args.word(0)) {
            Some(effort @ 1..=22) => Ok(Self(effort as u8)),
            _ => Err(ValueError::new("value must be between 1 and 22")),
        }
    }
}

settings! {
    in zstd;
    /// Whether responses are compressed with Zstandard for clients that take it.
    zstd: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Count and size of buffers; accepted, memory is taken as needed.
    zstd_buffers: Buffers = "32 4k", TWO, HTTP_SERVER_LOCATION;
    /// Effort of compression, from 1 (fastest) to 22 (smallest).
    zstd_comp_level: Level = "1", ONE, HTTP_SERVER_LOCATION;
    /// Least length of answers, going by Content-Length.
    zstd_min_length: Size = "20", ONE, HTTP_SERVER_LOCATION;
    /// Types compressed beside text/html; `*` for all.
    zstd_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// Rows that are refused.
pub const OTHERS: &[Directive] = &[Directive::row(
    "zstd_dict_file",
    HTTP,
    Arity::ONE,
    Action::Refused("browsers know no dictionary of the server's"),
    "Dictionary for compression.",
)];
