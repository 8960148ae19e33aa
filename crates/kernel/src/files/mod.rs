//! Files: which one a request names, what lies there, reading without making the event loop wait, temporary ones.

pub mod open;
pub mod path;
pub mod read;
pub mod temporary;

use nix::unistd::Uid;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether what lies at `path` belongs to a user. Blocks.
pub fn is_of_user(path: &Path, user: Uid) -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "asked by the master process, which serves no one"
    )]
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|found| found.uid() == user.as_raw())
}
