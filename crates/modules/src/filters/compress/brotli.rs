//! The directives of Brotli, named as in the module nginx's users build in.

use super::gzip::MimeTypes;
use super::put_ratio;
use yorozu_kernel::config::directive::*;
use yorozu_kernel::config::module::Module;
use yorozu_kernel::config::settings::silent;
use yorozu_kernel::config::types::{Buffers, Size};
use yorozu_kernel::exchange::coding::Coding;
use yorozu_kernel::exchange::variables::{Row, Variable};

/// The module.
pub const MODULE: Module = Module::new("http_brotli", || DIRECTIVES.to_vec())
    .with(&[silent::<Draft>])
    .computing(VARIABLES);

/// Its variables.
const VARIABLES: &[Row] =
    &[("brotli_ratio", Variable::Builtin(|ex, out| put_ratio(ex, Coding::Brotli, out)))];

/// Effort; 0 to 11 by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Level(pub(super) u8);

impl Setting for Level {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        match yorozu_conf::value::number(args.word(0)) {
            Some(effort @ 0..=11) => Ok(Self(effort as u8)),
            _ => Err(ValueError::new("value must be between 0 and 11")),
        }
    }
}

/// The logarithm of the window's size in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window(pub(super) u32);

impl Setting for Window {
    fn from_args(args: &Args<'_>) -> Result<Self, ValueError> {
        let size = yorozu_conf::value::size(args.word(0));
        match size.filter(|size| size.is_power_of_two()).map(u64::trailing_zeros) {
            Some(bits @ 10..=24) => Ok(Self(bits)),
            _ => Err(ValueError::new("value must be a power of two between 1k and 16m")),
        }
    }
}

settings! {
    /// Whether responses are compressed with Brotli for clients that accept it.
    brotli: bool = "off", ONE, HTTP_SERVER_LOCATION | LOCATION_IF;
    /// Number and size of buffers; accepted, memory is allocated as needed.
    brotli_buffers: Buffers = "32 4k", TWO, HTTP_SERVER_LOCATION;
    /// Compression level, from 0 (fastest) to 11 (smallest).
    brotli_comp_level: Level = "6", ONE, HTTP_SERVER_LOCATION;
    /// Minimum length of responses, by their Content-Length.
    brotli_min_length: Size = "20", ONE, HTTP_SERVER_LOCATION;
    /// Types compressed besides text/html; `*` for all.
    brotli_types: MimeTypes = "text/html", ONE_OR_MORE, HTTP_SERVER_LOCATION;
    /// Size of the window in which repetitions are found.
    brotli_window: Window = "512k", ONE, HTTP_SERVER_LOCATION;
}
