//! The directives of Zstandard, named as in the module nginx's users build in.

use super::gzip::MimeTypes;
use super::put_ratio;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::{Buffers, Size};
use yorozu_kernel::exchange::coding::Coding;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_zstd", || [DIRECTIVES, OTHERS].concat())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] =
    &[("zstd_ratio", Variable::Builtin(|ex, out| put_ratio(ex, Coding::Zstd, out)))];

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
    /// Whether responses are compressed with Zstandard for clients that accept it.
    zstd: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Number and size of buffers; accepted, memory is allocated as needed.
    zstd_buffers: Buffers = "32 4k", TWO, HTTP_SERVER_LOCATION;
    /// Compression level, from 1 (fastest) to 22 (smallest).
    zstd_comp_level: Level = "1", ONE, HTTP_SERVER_LOCATION;
    /// Minimum length of responses, by their Content-Length.
    zstd_min_length: Size = "20", ONE, HTTP_SERVER_LOCATION;
    /// Types compressed besides text/html; `*` for all.
    zstd_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
}

/// Rows that are refused.
pub const OTHERS: &[Directive] = &[Directive::row(
    "zstd_dict_file",
    HTTP,
    Arity::ONE,
    Action::Refused("browsers have no dictionary of the server's"),
    "Dictionary for compression.",
)];
