//! Names and sizes of shared memory that `upstream` blocks say; threads share everything without it.

use yorozu_conf::value;
use yorozu_kernel::config::directive::{Args, ValueError};
use yorozu_kernel::config::env::Env;
use yorozu_kernel::config::types::ZONE_BYTES_MIN;

/// The directive, among those that have zones.
const DIRECTIVE: &str = "zone";

/// Reads `zone name [size]`.
///
/// # Errors
/// The name is empty, or another directive's; or the size is none, too small or another than before.
pub(super) fn read(args: &Args<'_>) -> Result<(), ValueError> {
    let (name, size) = (args.text(0), args.text(1));
    if name.is_empty() {
        return Err(ValueError::new("invalid zone name \"\""));
    }
    let mut bytes = 0;
    if args.words.len() > 1 {
        bytes = value::size(args.word(1))
            .ok_or_else(|| ValueError(format!("invalid zone size \"{size}\"")))?;
        if bytes < ZONE_BYTES_MIN {
            return Err(ValueError(format!("zone \"{name}\" is too small")));
        }
    }
    args.env.named.borrow_mut().zone(&name, DIRECTIVE, bytes)
}

/// Checks that each zone has a size, in whichever block it stands.
///
/// # Errors
/// One has none.
pub(super) fn check(env: &Env) -> Result<(), ValueError> {
    let named = env.named.borrow();
    match named.zone_without_size(DIRECTIVE) {
        Some(name) => Err(ValueError(format!("zero size shared memory zone \"{name}\""))),
        None => Ok(()),
    }
}
